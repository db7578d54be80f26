"""One task: committed entries in, one group out that commits all of it. Pure.

Owns the order of things: entries are taken in log order, time is told after them, and what came of
them is captured together with the position in one Commit. The shell (task.py) reads, appends, and
tells what was acknowledged.

    take(entry, counted)  ─►  work()  ─►  take_commit()  ─►  group(ranges)
             ▲                                                      │
             └──────────── goes on while it is appended ◄───────────┘

Laws: (I9) the positions of a task's markers are contiguous: whatever was taken in before a commit
is captured by it, and nothing after. (I11) the changes of a commit are those of its inputs. A
commit that fails ends the instance: nothing of it is kept, the next one resumes from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.limits import PAYLOAD_BYTES_MAX
from penstock.log.records import Entry, Kind, NewEntry
from penstock.ops.api import START_MS, Delta
from penstock.ops.payloads import decode_delta
from penstock.ops.pipeline import Pipeline
from penstock.plan import nodes as n
from penstock.plan.nodes import StageInput
from penstock.protocol.committed import Counted, Marked
from penstock.protocol.markers import Heard, Marker
from penstock.protocol.names import TaskId, flush_tag, keyed_tag, node_tag
from penstock.runtime.commit import Commit
from penstock.runtime.dead_letters import DeadLetter, find_bad_rows, letter_of_entry
from penstock.runtime.inputs import Arrival, Arrivals, decode_source
from penstock.runtime.outputs import Outputs
from penstock.runtime.spec import QuerySpec, share_of
from penstock.state.api import Change
from penstock.state.changelog import encode_changes
from penstock.state.memory import MemoryState
from penstock.stream.registration import stream_tag

#: Rows pushed into the operators at once: enough to pay for a call, few enough to stay in cache.
ROWS_AT_ONCE = 16_384
#: Bytes of results at which a task takes nothing more in before it has committed.
PENDING_BYTES_MAX = 2 * 1024 * 1024
#: Bytes of changes since the last checkpoint before the next is worth its while: they are replayed
#: at about 8 MB/s, so this many cost a restart less than its other steps.
CHECKPOINT_BYTES_MIN = 256 * 1024


class Poisoned(Exception):
    """Processing entries up to `lsn` failed; the state is half changed and must be dropped."""

    def __init__(self, lsn: Lsn | None, cause: Exception) -> None:
        super().__init__(f"entries up to LSN {lsn}: {cause}")
        #: None: no entry is to blame, time passed.
        self.lsn = lsn
        self.cause = cause


@dataclass(slots=True)
class Stats:
    """What a task has done since its instance began; the worker reports it."""

    rows_in: int = 0
    rows_out: int = 0
    rows_late: int = 0
    dead_letters: int = 0
    commits: int = 0


@dataclass(slots=True)
class _Progress:
    """Since the last commit was captured."""

    position: Lsn
    rows_in: int = 0
    origin_ms: int | None = None
    dead: list[DeadLetter] = field(default_factory=list)
    is_due: bool = False
    #: Somebody waits for a marker.
    is_asked: bool = False


class TaskCore:
    """One instance of one task."""

    def __init__(
        self,
        spec: QuerySpec,
        task: TaskId,
        instance: int,
        now_ms: Callable[[], int],
    ) -> None:
        self.spec = spec
        self.task = task
        self.instance = instance
        self._now_ms = now_ms
        self.stage = spec.query.stages[task.stage]
        self._inputs = self.stage.inputs
        self.state = MemoryState(spec.owned(task))
        self.stats = Stats()
        self._pipeline = Pipeline(self.stage.root, self.state, spec.statics, self._late, now_ms)
        self._outputs = Outputs(spec, self.stage)
        self._arrivals = Arrivals(ROWS_AT_ONCE)
        #: Which leaves an entry with this tag is for.
        self._leaves: dict[str, list[int]] = {}
        #: The tags of markers of upstream stages, and the tasks that write them.
        self._marker_tags: list[str] = []
        self.upstream: set[str] = set()
        #: What time it is at a stage's tasks before they have said anything.
        self._unheard_ms: dict[int, int | None] = {}
        self._find_inputs()
        self._heard: dict[str, Heard] = {}
        self._number = 0
        self._rows_in = 0
        self._rows_out = 0
        self._told: tuple[int | None, bool] | None = None
        self._checkpoints: tuple[dict[str, object], ...] = ()
        self._has_state = False
        self._change_bytes = 0
        self._checkpoint_bytes = 0
        self._checkpoint_due_ms = now_ms() + spec.settings.checkpoint_interval_ms
        self._last_row_ms: dict[int, int] = {}
        self._careful_upto: Lsn | None = None
        self._next = _Progress(Lsn(0))
        self._committed_position = Lsn(0)
        #: False once processing has failed: the position is beyond what was done, and a commit
        #: that the shell asks for before it has heard of the failure would skip the rest.
        self._is_whole = True

    def _find_inputs(self) -> None:
        name, version = self.spec.name, self.spec.version
        for place, leaf in enumerate(self._inputs):
            if isinstance(leaf, n.Scan):
                self._leaves.setdefault(stream_tag(leaf.stream), []).append(place)
                continue
            self._marker_tags.append(keyed_tag(name, version, leaf.stage))
            for index in range(self.spec.tasks[leaf.stage]):
                self.upstream.add(str(TaskId(name, version, leaf.stage, index)))
            self._unheard_ms[leaf.stage] = START_MS if self.spec.tells_time(leaf.stage) else None
            for node in sorted(self.spec.owned(self.task)):
                tag = node_tag(name, version, leaf.stage, node)
                self._leaves.setdefault(tag, []).append(place)

    def _late(self, operator: str, rows: Delta) -> None:
        self.stats.rows_late += len(rows)

    # -- start

    @property
    def tags(self) -> tuple[str, ...]:
        """What the task reads."""
        flush = flush_tag(self.spec.name, self.spec.version, self.task.stage)
        return (*self._leaves, *self._marker_tags, flush)

    @property
    def position(self) -> Lsn:
        """Everything below was taken in."""
        return self._next.position

    def begin(self, marker: Marker | None, *, careful_upto: Lsn | None = None) -> None:
        """Go on after the task's last marker, whose state was applied; None: for the first time."""
        now = self._now_ms()
        self._last_row_ms = {place: now for place, _ in enumerate(self._inputs)}
        self._careful_upto = careful_upto
        self.state.forget_log()  # what was restored is no change of ours
        if marker is None:
            starts = [source.start for source in self.spec.sources.values()]
            self._next = _Progress(Lsn(min(starts, default=0)), is_due=True)
            self._outputs.add(self._pipeline.start())
        else:
            self._next = _Progress(marker.position)
            self._committed_position = marker.position
            self._heard = dict(marker.heard)
            self._number = marker.number + 1
            self._rows_in, self._rows_out = marker.rows_in, marker.rows_out
            self._told = (marker.watermark_ms, marker.is_idle)
            self._checkpoints = marker.checkpoints
            self._checkpoint_bytes = sum(int(newest["bytes"]) for newest in marker.checkpoints[:1])
            self._has_state = marker.has_state
        self._advance()

    # -- input

    def take(self, entry: Entry, counted: Counted) -> None:
        """An entry under one of the tags, and what counts at its place (protocol/committed.py)."""
        assert entry.lsn >= self._next.position, f"{entry.lsn} was taken in before"
        self._next.position = Lsn(entry.lsn + 1)
        self.take_held(entry, counted)

    def take_held(self, entry: Entry, counted: Counted) -> None:
        """The same for an entry below the position, which the commit protocol has held back."""
        self._is_whole = False
        if isinstance(counted, Marked):
            marker = counted.marker
            if marker.task in self.upstream:
                self._heard[marker.task] = Heard(entry.lsn, marker.watermark_ms, marker.is_idle)
                self._keep_oldest(marker.origin_ms)
            for staged in counted.entries:
                self._take_data(staged, entry.lsn)
        elif counted is not None:
            self._take_data(counted, entry.lsn)
        elif entry.kind is Kind.CONTROL:
            # Of the kinds that are no input, only a request to commit up to here has our tag.
            self._next.is_due = True
            self._next.is_asked = True
        self._is_whole = True

    def _take_data(self, entry: Entry, counts_at: Lsn) -> None:
        places = next((self._leaves[tag] for tag in entry.tags if tag in self._leaves), [])
        for place in places:
            leaf = self._inputs[place]
            if isinstance(leaf, n.Scan):
                self._take_source(entry, counts_at, place, leaf)
            else:
                self._take_keyed(entry, counts_at, place, leaf)

    def _take_source(self, entry: Entry, counts_at: Lsn, place: int, leaf: n.Scan) -> None:
        source = self.spec.sources[leaf.stream]
        tasks = self.spec.tasks[self.task.stage]
        if counts_at < source.start or (
            tasks > 1 and share_of(entry.lsn, tasks) != self.task.index
        ):
            return
        self._keep_oldest(entry.time_ms)
        try:
            rows = decode_source(entry, leaf, source.schema)
        except BadFormat as error:
            if self.spec.settings.dead_letter is None:
                raise
            self._bury([letter_of_entry(entry, leaf.stream, error, str(self.task))])
            return
        self._arrivals.add(Arrival(place, Delta(rows), counts_at, leaf.stream))

    def _take_keyed(self, entry: Entry, counts_at: Lsn, place: int, leaf: StageInput) -> None:
        changing = self.spec.query.stages[leaf.stage].changing
        delta = decode_delta(entry.payload, leaf.schema, changing=changing)
        self._arrivals.add(Arrival(place, delta, counts_at, f"stage {leaf.stage}"))

    def _keep_oldest(self, time_ms: int | None) -> None:
        oldest = self._next.origin_ms
        if time_ms is not None and (oldest is None or time_ms < oldest):
            self._next.origin_ms = time_ms

    def looked(self, looked_up_to: Lsn) -> None:
        """There is nothing more for this task below this LSN."""
        self._next.position = Lsn(max(self._next.position, looked_up_to))

    # -- work

    def work(self) -> None:
        """Push what was taken in through the operators, and tell them the time."""
        if not self._is_whole:
            return
        self._is_whole = False
        for arrival in self._arrivals.drain(whole=self._is_careful):
            if self._is_careful:
                arrival = self._without_bad_rows(arrival)
            rows = len(arrival.delta)
            if not rows:
                continue
            try:
                self._outputs.add(self._pipeline.push(arrival.place, arrival.delta))
            except Exception as error:
                raise Poisoned(arrival.lsn, error) from error
            self._next.rows_in += rows
            self._next.is_due = True
            self.stats.rows_in += rows
            self._last_row_ms[arrival.place] = self._now_ms()
        if self._careful_upto is not None and self.position > self._careful_upto:
            self._careful_upto = None
        self._advance()
        self._is_whole = True
        if not self.has_work:
            self._next.origin_ms = None  # nothing came of it: what comes later is younger

    @property
    def _is_careful(self) -> bool:
        return self._careful_upto is not None

    def _without_bad_rows(self, arrival: Arrival) -> Arrival:
        """Rows that fail by themselves become dead letters: tried on operators without state."""

        def try_rows(delta: Delta) -> None:
            scratch = Pipeline(self.stage.root, MemoryState(), self.spec.statics)
            # Rows to be taken back as well: they fail, or not, as they did when they were given.
            scratch.push(arrival.place, Delta(delta.batch))

        good, dead = find_bad_rows(arrival, try_rows, str(self.task))
        if dead:
            self._bury(dead)
        return good

    def _bury(self, dead: list[DeadLetter]) -> None:
        self._next.is_due = True
        self._next.dead += dead
        self.stats.dead_letters += len(dead)

    def _advance(self) -> None:
        """Tell the operators what time it is at every input."""
        marks: dict[int, int | None] = {}
        idle: set[int] = set()
        for place, leaf in enumerate(self._inputs):
            if isinstance(leaf, n.Scan):
                marks[place] = None
                if self._is_quiet(place):
                    idle.add(place)
                continue
            words = self._heard_from(leaf.stage)
            unheard_ms = self._unheard_ms[leaf.stage]
            told = [unheard_ms if word is None else word.watermark_ms for word in words]
            is_idle = all(word is not None and word.is_idle for word in words)
            # Who is idle holds nobody back: if all are, the latest time counts (ops/pipeline.py).
            which = max if is_idle else min
            marks[place] = None if None in told else which(ms for ms in told if ms is not None)
            if is_idle:
                idle.add(place)
        try:
            self._outputs.add(self._pipeline.advance(marks, frozenset(idle)))
        except Exception as error:
            raise Poisoned(None, error) from error

    def _heard_from(self, stage: int) -> list[Heard | None]:
        """The last word of every task of an upstream stage that does not step aside."""
        tasks = range(self.spec.tasks[stage])
        names = (str(TaskId(self.spec.name, self.spec.version, stage, i)) for i in tasks)
        words = [self._heard.get(name) for name in names]
        awake = [word for word in words if word is None or not word.is_idle]
        return awake or words

    def _is_quiet(self, place: int) -> bool:
        after_ms = self.spec.settings.idle_after_ms
        return after_ms is not None and self._now_ms() - self._last_row_ms[place] >= after_ms

    # -- output

    @property
    def is_full(self) -> bool:
        """So much waits to be committed that nothing more should be taken in before."""
        return self._outputs.bytes > PENDING_BYTES_MAX

    @property
    def has_work(self) -> bool:
        """Whether a commit would say anything new."""
        if not self._is_whole:
            return False
        told = (self._pipeline.watermark_ms, self._pipeline.is_idle)
        return self._next.is_due or self._outputs.rows > 0 or told != self._told

    def refresh(self) -> None:
        """Say in the next commit how far was looked, even if nothing else is to be said."""
        self._next.is_due |= self._next.position > self._committed_position

    def take_commit(self) -> Commit | None:
        """Capture all that was done since the last one; None if that is nothing."""
        if self._arrivals:
            self.work()  # the position says that they are in
        return self._capture(self._next.position) if self.has_work else None

    def take_all(self, position: Lsn) -> Commit | None:
        """Capture all that was done, new or not, with the whole state; for protocols that ask.

        None if processing has failed: the instance is about to end.
        """
        self.work()
        if not self._is_whole:
            return None
        return replace(self._capture(position), frozen=self.state.freeze())

    def _capture(self, position: Lsn) -> Commit:
        told = (self._pipeline.watermark_ms, self._pipeline.is_idle)
        done, self._next = self._next, _Progress(self._next.position)
        rows_out = self._outputs.rows
        tags = self._outputs.marker_tags(done.dead)
        data = self._outputs.take(done.dead)
        logs = self.spec.settings.protocol.logs_changes
        changes = self._encode(self.state.take_log()) if logs else []
        if not logs:
            self.state.forget_log()
        self._has_state |= bool(changes)
        self._rows_in += done.rows_in
        self._rows_out += rows_out
        self.stats.rows_out += rows_out
        self.stats.commits += 1
        marker = Marker(
            task=str(self.task),
            instance=self.instance,
            number=self._number,
            position=position,
            inline=0,
            watermark_ms=told[0],
            is_idle=told[1],
            heard=dict(self._heard),
            checkpoints=self._checkpoints,
            has_state=self._has_state,
            rows_in=self._rows_in,
            rows_out=self._rows_out,
            origin_ms=done.origin_ms,
        )
        commit = Commit(
            data=tuple(data),
            changes=tuple(changes),
            marker=marker,
            tags=(self.task.marker_tag, *tags),
            is_asked=done.is_asked,
            tells_time=told != self._told,
        )
        self._number += 1
        self._told = told
        self._committed_position = position
        self._change_bytes += sum(len(entry.payload) for entry in changes)
        return replace(commit, frozen=self._freeze())

    def _encode(self, changes: Sequence[Change]) -> list[NewEntry]:
        tags = (self.task.change_tag,)
        payloads = encode_changes(changes, PAYLOAD_BYTES_MAX) if changes else []
        return [NewEntry(payload, tags, Kind.CHANGE) for payload in payloads]

    # -- checkpoints

    def _freeze(self) -> tuple[Change, ...] | None:
        settings = self.spec.settings
        now = self._now_ms()
        enough = max(CHECKPOINT_BYTES_MIN, self._checkpoint_bytes)
        if settings.checkpoints is None or not settings.protocol.logs_changes:
            return None
        if now < self._checkpoint_due_ms or self._change_bytes < enough:
            return None
        self._checkpoint_due_ms = now + settings.checkpoint_interval_ms
        self._change_bytes = 0
        return self.state.freeze()

    def checkpointed(self, reference: dict[str, object], size: int) -> None:
        """A checkpoint is durable; the next marker names it, and the one before it.

        What markers named before may be deleted once that marker is durable.
        """
        newest, lsn = self.checkpoint_lsn, reference["marker_lsn"]
        assert isinstance(lsn, int)
        if newest is not None and lsn <= newest:
            return  # it took longer to write than the one after it
        self._checkpoints = (reference, *self._checkpoints[:1])
        self._checkpoint_bytes = size
        self._next.is_due = True

    def checkpoint_missed(self) -> None:
        """A frozen state was not made durable: after the next interval one is due anyway."""
        self._change_bytes += max(CHECKPOINT_BYTES_MIN, self._checkpoint_bytes)

    @property
    def checkpoint_lsn(self) -> int | None:
        """The marker of the newest checkpoint."""
        if not self._checkpoints:
            return None
        lsn = self._checkpoints[0]["marker_lsn"]
        assert isinstance(lsn, int)
        return lsn

    def restored(self, changes: Sequence[Change], size: int) -> None:
        """Apply committed changes, or a checkpoint, on the way to the last marker."""
        self.state.apply(changes)
        self._change_bytes += size


def check_marker(marker: Marker, task: TaskId) -> None:
    """A marker found under a task's tag is that task's."""
    if marker.task != str(task):
        raise BadFormat(f"a marker of {marker.task} stands under the tag of {task}")
