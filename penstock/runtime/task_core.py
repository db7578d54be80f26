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

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.limits import PAYLOAD_BYTES_MAX
from penstock.log.records import Entry, Kind, NewEntry
from penstock.ops.api import START_MS, Delta
from penstock.ops.bad_rows import set_bad_rows_aside
from penstock.ops.chain import Chain, NothingDone, outer_inputs
from penstock.ops.payloads import decode_delta, decode_placed
from penstock.plan import nodes as n
from penstock.plan.nodes import StageInput
from penstock.protocol.committed import Counted, Marked, ranked
from penstock.protocol.markers import Heard, Marker, Origin
from penstock.protocol.names import (
    TaskId,
    coordinator_producer,
    flush_tag,
    keyed_tag,
    node_tag,
    parse_task,
)
from penstock.protocol.shared_time import hear, looked_by_all, settle, time_of
from penstock.runtime.checkpoints import Checkpoints
from penstock.runtime.commit import Commit
from penstock.runtime.dead_letters import DeadLetter, letter_of_entry, letter_of_row
from penstock.runtime.inheritance import Predecessor
from penstock.runtime.inputs import Arrival, Arrivals, SourceReader
from penstock.runtime.layout import cut_payload
from penstock.runtime.outputs import Outputs
from penstock.runtime.row_merge import RowMerge, place_of
from penstock.runtime.spec import QuerySpec
from penstock.runtime.taken import Stats, Taken, Uncommitted
from penstock.runtime.trials import Trial
from penstock.state.api import Change
from penstock.state.changelog import encode_changes
from penstock.state.memory import MemoryState
from penstock.state.room import Room

#: Rows pushed into the operators at once: enough to pay for a call, few enough to stay in cache.
ROWS_AT_ONCE = 16_384
#: Bytes of results at which a task takes nothing more in before it has committed.
PENDING_BYTES_MAX = 2 * 1024 * 1024


#: What time it is at every input, which have stepped aside, and at the sources of stages within.
Times = tuple[dict[int, int | None], frozenset[int], dict[int, tuple[int | None, bool]]]
#: The time of a task's output, whether it has stepped aside, and of its own rows by stage within.
Told = tuple[int | None, bool, dict[int, tuple[int | None, bool]]]


class Poisoned(Exception):
    """Processing entries up to `lsn` failed; the state is half changed and must be dropped."""

    def __init__(self, lsn: Lsn | None, cause: Exception) -> None:
        super().__init__(f"entries up to LSN {lsn}: {cause}")
        #: None: no entry is to blame, time passed.
        self.lsn = lsn
        self.cause = cause


class TaskCore:
    """One instance of one task."""

    def __init__(
        self,
        spec: QuerySpec,
        task: TaskId,
        instance: int,
        now_ms: Callable[[], int],
        room: Room | None = None,
    ) -> None:
        self.spec = spec
        self.task = task
        self.instance = instance
        #: Whose cuts count: the instance of the coordinator that assigned it; None: nobody's.
        self.run: int | None = None
        #: Whether it has come to a cut (succession.py); and whether the commit there was captured.
        self.is_cut = self._is_last_captured = False
        self._now_ms = now_ms
        self.stage = spec.query.stages[task.stage]
        #: The stages that run here; the last of them is the task's own.
        self._stages = spec.running(task.stage)
        self._inputs = outer_inputs(self._stages)
        self.state = MemoryState(spec.owned(task), room)
        self.stats = Stats()
        self.taken = Taken(self._inputs, spec.lanes_read(task.stage))
        #: What rows that are set aside are told to come from.
        self._working_on: tuple[str, Lsn] = ("", Lsn(0))
        on_bad = self._bury_row if self._buries else None
        self._pipeline = Chain(
            self._stages, self.state, spec.statics, self._late, now_ms, on_bad
        )  # fmt: skip
        self._is_placed = spec.orders(task.stage)
        self._outputs = Outputs(spec, self.stage, first_turn=task.index)
        self._sources = SourceReader()
        self._arrivals = Arrivals(ROWS_AT_ONCE)
        #: Which leaves an entry with this tag is for.
        self._leaves: dict[str, list[int]] = {}
        self._task_names: dict[int, list[str]] = {}
        #: The tags of markers of upstream stages, and the tasks that write them.
        self._marker_tags: list[str] = []
        self.upstream: set[str] = set()
        #: Those of stages whose tasks share a source, and tell its time together.
        self._sharing: set[str] = set()
        #: Upstream stages whose tasks each tell the time of rows that they read themselves.
        self._telling: set[int] = set()
        #: What time it is at a stage's tasks before they have said anything.
        self._unheard_ms: dict[int, int | None] = {}
        #: Tasks that share a source with this one: rows that they have read, and their time.
        self._siblings: dict[str, object] = {}
        #: The stages within whose source they share, and the tags of all their markers.
        self._within = spec.shared_within(task.stage)
        self._peer_tags = self._peers = frozenset[str]()
        #: By leaf whose rows are put in order.
        self._merges: dict[int, RowMerge] = {}
        self._find_inputs()
        self._heard: dict[str, Heard] = {}
        self._number = self._rows_in = self._rows_out = 0
        self._told: Told | None = None
        self.checkpoints = Checkpoints(spec.settings)
        self._has_state = False
        self._last_row_ms: dict[int, int] = {}
        #: When the operators were last told the time, and what.
        self._advanced: tuple[int, Times] = (0, ({}, frozenset(), {}))
        self._careful_upto: Lsn | None = None
        self._next = Uncommitted(Lsn(0))
        self._read_from = self._begun_at = Lsn(0)
        #: Whether rows that wait were not all read again yet.
        self._is_rereading = False
        self._committed_position = Lsn(0)
        #: False once processing has failed: the position is beyond what was done, and a commit
        #: that the shell asks for before it has heard of the failure would skip the rest.
        self._is_whole = True

    def _find_inputs(self) -> None:
        name, version = self.spec.name, self.spec.version
        for place, leaf in enumerate(self._inputs):
            if isinstance(leaf, n.Scan):
                for tag in self.spec.source_tags(self.task, leaf.stream):
                    self._leaves.setdefault(tag, []).append(place)
                continue
            self._marker_tags.append(keyed_tag(name, version, leaf.stage))
            self.upstream.update(self._tasks_of(leaf.stage))
            if self.spec.tells_looked(leaf.stage):
                self._sharing.update(self._tasks_of(leaf.stage))
            if self.spec.orders(leaf.stage):
                self._merges[place] = RowMerge(Lsn(0))
            if self._tells_its_own_time(leaf.stage):
                self._telling.add(leaf.stage)
            self._unheard_ms[leaf.stage] = START_MS if self.spec.tells_time(leaf.stage) else None
            for node in sorted(self.spec.owned(self.task)):
                tag = node_tag(name, version, leaf.stage, node)
                self._leaves.setdefault(tag, []).append(place)

        peers = self.spec.tasks_of(self.task.stage)
        if self._within:
            self._peer_tags = frozenset(task.marker_tag for task in peers)
        elif self.spec.tells_looked(self.task.stage) and self.stage.keys is not None:
            self._peer_tags = frozenset([self._own_tag])
        if self._peer_tags:
            self._marker_tags += sorted(self._peer_tags)
            self._peers = frozenset(map(str, peers))
            self._siblings = {str(task): None for task in peers if task != self.task}

    def _tells_its_own_time(self, stage: int) -> bool:
        reads = any(isinstance(leaf, n.Scan) for leaf in self.spec.inputs(stage))
        return reads and not self.spec.shared_within(stage)

    @property
    def _own_tag(self) -> str:
        """Where the markers of this stage's tasks stand, for those that read its output."""
        return keyed_tag(self.spec.name, self.spec.version, self.task.stage)

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

    @property
    def rows_waiting(self) -> int:
        """Rows that were read, and wait for others before them."""
        return sum(map(len, self._merges.values()))

    @property
    def read_from(self) -> Lsn:
        """Where to read on after `begin`: rows below the position may have to be read again."""
        return self._read_from

    def begin(self, marker: Marker | None, *, careful_upto: Lsn | None = None) -> None:
        """Go on after the task's last marker, whose state was applied; None: for the first time."""
        now = self._now_ms()
        self.checkpoints.begin(marker, now)
        self._last_row_ms = {place: now for place, _ in enumerate(self._inputs)}
        self._careful_upto = careful_upto
        self.state.forget_log()  # what was restored is no change of ours
        if marker is None:
            starts = [source.start for source in self.spec.sources.values()]
            self._next = Uncommitted(Lsn(min(starts, default=0)), is_due=True)
            self._outputs.add(self._pipeline.start())
        else:
            self._next = Uncommitted(marker.position)
            self._committed_position = marker.position
            self._heard = dict(marker.heard)
            self._number = marker.number + 1
            self._rows_in, self._rows_out = marker.rows_in, marker.rows_out
            self._told = (marker.watermark_ms, marker.is_idle, marker.sources)
            self._has_state = marker.has_state
            self._merges = {place: RowMerge(self._looked(place)) for place in self._merges}
            self.is_cut = marker.cut is not None and marker.cut == self._cut
        held_from = None if marker is None else marker.reread_from
        self._begun_at = self._next.position
        self._read_from = self._begun_at if held_from is None else held_from
        self._is_rereading = held_from is not None
        self._advance()

    @property
    def _cut(self) -> tuple[int, int] | None:
        """What a marker says that stands at a cut."""
        return None if self.run is None else (self.run, self.spec.layout.version)

    # -- input

    def take(self, entry: Entry, counted: Counted) -> None:
        """An entry under one of the tags, and what counts at its place (protocol/committed.py)."""
        assert not self.is_cut, f"{entry.lsn} is beyond the cut"
        if entry.lsn < self._next.position:
            self._take_again(entry, counted)
            return
        self._is_rereading = False
        self._next.position = Lsn(entry.lsn + 1)
        self.take_held(entry, counted)

    def _take_again(self, entry: Entry, counted: Counted) -> None:
        """Below the position only rows that wait for others are still to be done."""
        assert self._read_from <= entry.lsn < self._begun_at, f"{entry.lsn} was taken in before"
        if isinstance(counted, Marked):
            entries, first = counted.entries, counted.first_lsn
        else:
            entries, first = [] if counted is None else [counted], entry.lsn
        for data in entries:
            for place in self._places_of(data):
                if place in self._merges:
                    self._hold(data, first, place)

    def take_held(self, entry: Entry, counted: Counted) -> None:
        """The same for an entry below the position, which the commit protocol has held back."""
        self._is_whole = False
        if isinstance(counted, Marked):
            marker = counted.marker
            if marker.task in self.upstream:
                self._hear(marker, entry.lsn)
                self.taken.heard(marker.task, marker.rows_out)
                self._keep_oldest(marker.origin_ms)
            elif marker.task in self._peers:
                self._hear_peer(marker, entry.lsn)
            for rank, staged in ranked(counted):
                order = place_of(entry.lsn, rank)
                self._take_data(staged, entry, counted.first_lsn, order)
        elif counted is not None:
            self._take_data(counted, entry, entry.lsn, place_of(entry.lsn, 0))
        elif entry.kind is Kind.CONTROL:
            # Of the kinds that are no input, only a request to commit up to here has our tag.
            self._next.is_due = True
            self._next.is_asked = True
            if entry.payload == cut_payload(self.spec.layout.version):
                is_ours = entry.producer == coordinator_producer(self.spec.name)
                self.is_cut = is_ours and entry.instance == self.run
        self._is_whole = True

    def _hear(self, marker: Marker, lsn: Lsn) -> None:
        if marker.task in self._sharing:
            self._hear_shared(marker, lsn)
        else:
            self._heard[marker.task] = Heard(lsn, marker.watermark_ms, marker.is_idle)

    def _hear_shared(self, marker: Marker, lsn: Lsn) -> None:
        self._heard[marker.task] = hear(self._heard.get(marker.task), lsn, marker)
        names = self._tasks_of(parse_task(marker.task).stage)
        words = settle([self._heard.get(name) for name in names])
        self._heard.update({n: word for n, word in zip(names, words, strict=True) if word})

    def _hear_peer(self, marker: Marker, lsn: Lsn) -> None:
        """A task of the same stage, or this one itself: the time of a source is what the log says.

        A stage within is heard as if it had tasks of its own.
        """
        index = parse_task(marker.task).index
        for stage, (told_ms, is_idle) in marker.sources.items():
            name = str(TaskId(self.spec.name, self.spec.version, stage, index))
            told = replace(marker, task=name, watermark_ms=told_ms, is_idle=is_idle)
            self._hear_shared(told, lsn)
        if marker.task in self._siblings:
            self._hear_sibling(marker)

    def _hear_sibling(self, marker: Marker) -> None:
        """It read rows up to where this task has not told that it looked: others wait for that.

        A marker without rows or a new time is itself such an answer, or all would answer one
        another for ever.
        """
        told = (marker.rows_in, marker.sources or marker.watermark_ms)
        if told != self._siblings[marker.task]:
            self._siblings[marker.task] = told
            self._next.is_due |= marker.position > self._committed_position

    def _take_data(self, entry: Entry, at: Entry, first: Lsn, order: int) -> None:
        """It counts where `at` stands; `first` is that of all entries that count there; `order`
        its place among them all."""
        for place in self._places_of(entry):
            leaf = self._inputs[place]
            if isinstance(leaf, n.Scan):
                self.stats.source_bytes += len(entry.payload)
                self._take_source(entry, at, place, leaf, order)
            elif place in self._merges:
                self.taken.came(place, at.time_ms)
                self._next.rows_in += self._hold(entry, first, place)
            else:
                self.taken.came(place, at.time_ms)
                self._take_keyed(entry, at.lsn, place, leaf)

    def _places_of(self, entry: Entry) -> list[int]:
        """The leaves that an entry is for."""
        return next((self._leaves[tag] for tag in entry.tags if tag in self._leaves), [])

    def _hold(self, entry: Entry, first: Lsn, place: int) -> int:
        """Rows that wait for those before them, and are read again from `first` on; how many."""
        leaf = self._inputs[place]
        assert isinstance(leaf, StageInput)
        try:
            delta, places = decode_placed(entry.payload, leaf.schema)
        except BadFormat as error:
            raise BadFormat(f"stage {leaf.stage}, LSN {entry.lsn}: {error}") from error
        self._merges[place].add(first, delta, places, entry.lsn)
        return len(delta)

    def _looked(self, place: int) -> Lsn:
        """How far all tasks that write this leaf's rows have looked in their source."""
        leaf = self._inputs[place]
        assert isinstance(leaf, StageInput)
        return looked_by_all([self._heard.get(name) for name in self._tasks_of(leaf.stage)])

    def _release(self) -> None:
        """Rows that need not wait any more join what was taken in."""
        for place, merge in self._merges.items():
            first = merge.held_from
            leaf = self._inputs[place]
            assert isinstance(leaf, StageInput)
            for lsn, delta in merge.release(self._looked(place), apart=self._buries):
                assert first is not None
                # The first of them: a second failure there is seen to be the same one.
                arrival = Arrival(place, delta, first, f"stage {leaf.stage}", entry_lsn=lsn)
                self._arrivals.add(arrival)

    def _take_source(self, entry: Entry, at: Entry, place: int, leaf: n.Scan, order: int) -> None:
        source = self.spec.sources[leaf.stream]
        if at.lsn < source.start or not self.spec.takes(self.task, leaf.stream, entry.lsn):
            return
        self._keep_oldest(entry.time_ms)
        self.taken.came(place, at.time_ms)
        try:
            rows = self._sources.read(entry, leaf, source.schema, at)
        except BadFormat as error:
            if not self._buries:
                raise
            self._bury([letter_of_entry(entry, leaf.stream, error, str(self.task))])
            return
        self.taken.came_by_lane(entry.tags, rows.num_rows)
        self._arrivals.add(Arrival(place, Delta(rows), at.lsn, leaf.stream, order=order))

    def _take_keyed(self, entry: Entry, counts_at: Lsn, place: int, leaf: StageInput) -> None:
        changing = self.spec.query.stages[leaf.stage].changing
        try:
            delta = decode_delta(entry.payload, leaf.schema, changing=changing)
        except BadFormat as error:
            raise BadFormat(f"stage {leaf.stage}, LSN {entry.lsn}: {error}") from error
        self._arrivals.add(Arrival(place, delta, counts_at, f"stage {leaf.stage}"))

    def _keep_oldest(self, time_ms: int | None) -> None:
        oldest = self._next.origin_ms
        if time_ms is not None and (oldest is None or time_ms < oldest):
            self._next.origin_ms = time_ms

    def is_input(self, marker: Entry) -> bool:
        """Whether what the marker names may be this task's: it counts where a source is read.

        Before a source's start there may be commits that have lost rows (stream/earliest.py).
        """
        if not self._peer_tags.isdisjoint(marker.tags):
            return False
        leaves = [self._inputs[p] for tag in marker.tags for p in self._leaves.get(tag, ())]
        scans = [leaf for leaf in leaves if isinstance(leaf, n.Scan)]
        return not scans or any(
            marker.lsn >= self.spec.sources[scan.stream].start for scan in scans
        )

    def looked(self, looked_up_to: Lsn) -> None:
        """There is nothing more for this task below this LSN."""
        self._is_rereading &= looked_up_to < self._begun_at
        self._next.position = Lsn(max(self._next.position, looked_up_to))

    # -- work

    def work(self) -> None:
        """Push what was taken in through the operators, and tell them the time."""
        if not self._is_whole:
            return
        self._is_whole = False
        self._release()
        trial = Trial(self._copy)
        for arrival in self._arrivals.drain(whole=self._is_careful or self._is_placed):
            rows = self._push_carefully(arrival, trial) if self._is_careful else self._push(arrival)
            if not rows:
                continue
            if arrival.place not in self._merges:  # else they were counted when they came
                self._next.rows_in += rows
            self._next.is_due = True
            self.stats.rows_in += rows
            self.taken.took(arrival.place, rows)
            self._last_row_ms[arrival.place] = self._now_ms()
        if self._careful_upto is not None and self._is_beyond(self._careful_upto):
            self._careful_upto = None
        self._advance()
        self.taken.settle(self._now_ms)
        self._is_whole = True
        if not self.has_work:
            self._next.origin_ms = None  # nothing came of it: what comes later is younger

    def _is_beyond(self, lsn: Lsn) -> bool:
        """Whether all rows up to there were worked on."""
        held = [merge.held_from for merge in self._merges.values()]
        is_held = any(first is not None and first <= lsn for first in held)
        return self.position > lsn and not is_held and not self._is_rereading

    @property
    def _is_careful(self) -> bool:
        return self._careful_upto is not None

    @property
    def _buries(self) -> bool:
        return self.spec.settings.dead_letter is not None

    def _push(self, arrival: Arrival) -> int:
        """How many rows went in."""
        self._working_on = (arrival.origin, arrival.told_lsn)
        try:
            self._outputs.add(self._pipeline.push(arrival.place, arrival.delta), arrival.order)
        except NothingDone as error:
            if not self._buries:
                raise Poisoned(arrival.lsn, error.cause) from error.cause
        except Exception as error:
            raise Poisoned(arrival.lsn, error) from error
        else:
            return len(arrival.delta)
        # The rows of each entry can be tried again.
        rows = 0
        for part in arrival.parts or (arrival,):
            try_rows = partial(self._pipeline.try_rows, part.place)
            good = self._bury_rows(part, *set_bad_rows_aside(part.delta, try_rows))
            rows += self._push_good(good)
        return rows

    def _push_good(self, arrival: Arrival) -> int:
        """Of rows that do not fail where they enter; they may where they go from there."""
        if len(arrival.delta):
            try:
                out = self._pipeline.push(arrival.place, arrival.delta)
            except Exception as error:
                raise Poisoned(arrival.lsn, error) from error
            self._outputs.add(out, arrival.order)
        return len(arrival.delta)

    def _push_carefully(self, arrival: Arrival, trial: Trial) -> int:
        """Rows that fail where state is kept become dead letters; the others go in.

        Those that fail in a step above or below it are left to the pipeline: there they may be
        others.
        """
        place, leaf = arrival.place, self._inputs[arrival.place]
        if isinstance(leaf, n.Scan) or leaf.append_only:
            return self._push_tried(arrival, trial)

        def try_rows(delta: Delta) -> None:
            # Rows to be taken back as well: they fail, or not, as they did when they were given.
            # That depends on no state, or it might be another one by now.
            scratch = Chain(self._stages, MemoryState(), self.spec.statics, on_bad=_tell_nobody)
            scratch.push(place, Delta(delta.batch))

        good = self._bury_rows(arrival, *set_bad_rows_aside(arrival.delta, try_rows))
        return self._push(good) if len(good.delta) else 0

    def _push_tried(self, arrival: Arrival, trial: Trial) -> int:
        """All rows together, or if that fails one by one, as they were tried."""
        if trial.failure_of(arrival.place, arrival.delta) is None:
            return self._push(arrival)
        rows = 0
        for row in range(len(arrival.delta)):
            one = replace(arrival, delta=arrival.delta.take(np.array([row])), parts=())
            error = trial.failure_of(one.place, one.delta)
            if error is None:
                rows += self._push(one)
            else:
                self._bury_rows(one, one.delta, [(one.delta, error)])
        return rows

    def _copy(self) -> Chain:
        """The operators with a state like theirs, told what they were last told of time."""
        now_ms, times = self._advanced
        state = MemoryState(self.spec.owned(self.task), self.state.room)
        state.apply(self.state.freeze())
        statics = self.spec.statics
        chain = Chain(self._stages, state, statics, now_ms=lambda: now_ms, on_bad=_tell_nobody)
        chain.advance(*times)
        return chain

    def _bury_rows(
        self, arrival: Arrival, good: Delta, bad: list[tuple[Delta, Exception]]
    ) -> Arrival:
        """The arrival without its bad rows."""
        self._working_on = (arrival.origin, arrival.told_lsn)
        for row, error in bad:
            self._bury_row(row, error)
        return replace(arrival, delta=good)

    def _bury_row(self, row: Delta, error: Exception) -> None:
        if (row.all_weights() < 0).any():
            return  # taken back: it was told of when it was given
        origin, lsn = self._working_on
        self._bury([letter_of_row(row, error, origin=origin, lsn=lsn, task=str(self.task))])

    def _bury(self, dead: list[DeadLetter]) -> None:
        self._next.is_due = True
        self._next.dead += dead
        self.stats.dead_letters += len(dead)

    def _advance(self) -> None:
        """Tell the operators what time it is at every input."""
        self._working_on = ("time", self.position)
        times = self._time()
        self._advanced = self._now_ms(), times
        try:
            self._outputs.add(self._pipeline.advance(*times))
        except Exception as error:
            raise Poisoned(None, error) from error

    def _time(self) -> Times:
        """What time it is at every input, which have stepped aside, and at shared sources."""
        marks: dict[int, int | None] = {}
        idle: set[int] = set()
        for place, leaf in enumerate(self._inputs):
            if isinstance(leaf, n.Scan):
                marks[place] = None
                if self._is_quiet(place):
                    idle.add(place)
                continue
            unheard_ms = self._unheard_ms[leaf.stage]
            names = self._tasks_of(leaf.stage)
            if names[0] in self._sharing:
                shared_ms, is_idle = self._shared_time(names)
                marks[place] = unheard_ms if shared_ms is None else shared_ms
                if is_idle:
                    idle.add(place)
                continue
            words = self._heard_from(leaf.stage)
            told = [unheard_ms if word is None else word.watermark_ms for word in words]
            is_idle = all(word is not None and word.is_idle for word in words)
            # Who is idle holds nobody back: if all are, the latest time counts (ops/pipeline.py).
            which = max if is_idle else min
            marks[place] = None if None in told else which(ms for ms in told if ms is not None)
            if is_idle:
                idle.add(place)
        return marks, frozenset(idle), {stage: self._time_within(stage) for stage in self._within}

    def _time_within(self, stage: int) -> tuple[int | None, bool]:
        shared_ms, is_idle = self._shared_time(self._tasks_of(stage))
        return (START_MS if shared_ms is None else shared_ms), is_idle

    def _shared_time(self, names: list[str]) -> tuple[int | None, bool]:
        """The time of a source that these tasks share, and whether it has stepped aside."""
        words = [self._heard.get(name) for name in names]
        return time_of(words), all(word is not None and word.is_idle for word in words)

    def _tasks_of(self, stage: int) -> list[str]:
        names = self._task_names.get(stage)
        if names is None:
            name, version = self.spec.name, self.spec.version
            shares = self.spec.shares_at(stage)
            names = [str(TaskId(name, version, stage, share.index)) for share in shares]
            self._task_names[stage] = names
        return names

    def _heard_from(self, stage: int) -> list[Heard | None]:
        """The last word of each task of a stage that does not step aside.

        One that is told the time by others steps aside only with all: else it has not heard yet
        what woke them, and may still bring older rows.
        """
        words = [self._heard.get(name) for name in self._tasks_of(stage)]
        awake = [word for word in words if word is None or not word.is_idle]
        return awake if awake and stage in self._telling else words

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
        if not self._is_whole or self._is_last_captured:
            return False
        return self._next.is_due or self._outputs.rows > 0 or self._tell() != self._told

    def _tell(self) -> Told:
        """What a marker of now says of time."""
        chain = self._pipeline
        sources = {stage: chain.own_time(stage) for stage in self._within}
        return chain.watermark_ms, chain.is_idle, sources

    def refresh(self) -> None:
        """Say in the next commit how far was looked, even if nothing else is to be said."""
        self._next.is_due |= self._next.position > self._committed_position

    def take_commit(self) -> Commit | None:
        """Capture all that was done since the last one; None if that is nothing."""
        if self._arrivals or self._merges:
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
        told = self._tell()
        done, self._next = self._next, Uncommitted(self._next.position)
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
        held = [lsn for merge in self._merges.values() if (lsn := merge.held_from) is not None]
        if self._is_rereading:
            held.append(self._read_from)
        marker = Marker(
            task=str(self.task),
            instance=self.instance,
            number=self._number,
            position=position,
            inline=0,
            watermark_ms=told[0],
            is_idle=told[1],
            sources=told[2],
            heard=dict(self._heard),
            checkpoints=self.checkpoints.named,
            has_state=self._has_state,
            rows_in=self._rows_in,
            rows_out=self._rows_out,
            origin_ms=done.origin_ms,
            reread_from=min(held, default=None),
            cut=self._cut if self.is_cut else None,
            origins=self.checkpoints.origins,
        )
        self._number += 1
        self._is_last_captured = self.is_cut
        is_news = told != self._told
        self._told = told
        self._committed_position = position
        self.checkpoints.changed(sum(len(entry.payload) for entry in changes))
        # While a checkpoint is still being read, none takes its place: if a file of it turns out to
        # be damaged, all must be there with which another instance would do without it.
        is_all_here = not self.state.tables_unread()
        is_due = is_all_here and self.checkpoints.is_due(self._now_ms())
        needs_whole = is_due and self.checkpoints.needs_whole
        return Commit(
            data=tuple(data),
            changes=tuple(changes),
            marker=marker,
            tags=(self.task.marker_tag, *tags),
            is_asked=done.is_asked,
            tells_time=is_news,
            is_checkpoint=is_due,
            frozen=self.state.freeze() if needs_whole else None,
        )

    def _encode(self, changes: Sequence[Change]) -> list[NewEntry]:
        tags = (self.task.change_tag,)
        payloads = encode_changes(changes, PAYLOAD_BYTES_MAX) if changes else []
        return [NewEntry(payload, tags, Kind.CHANGE) for payload in payloads]

    def report_inputs(self) -> dict[str, dict[str, Any]]:
        """What was taken in, by input."""
        return self.taken.report(self._tasks_of)

    def report_nodes(self) -> dict[str, list[int]]:
        """Rows by virtual node: those that go to other stages, and those of lanes."""
        told = {"lane_rows": self.taken.lane_rows, "node_rows": self._outputs.node_rows.tolist()}
        return {name: counts for name, counts in told.items() if any(counts)}

    # -- checkpoints

    def checkpointed(self, reference: dict[str, object]) -> None:
        """A checkpoint is durable; the next marker names it, and the one before it.

        What markers named before may be deleted once that marker is durable.
        """
        self._next.is_due |= self.checkpoints.add(reference)

    @property
    def checkpoint_lsn(self) -> int | None:
        """The marker of the newest checkpoint."""
        return self.checkpoints.newest_lsn

    @property
    def stages(self) -> tuple[int, ...]:
        """Those that run here; the last is the task's own."""
        return tuple(stage.id for stage in self._stages)

    @property
    def wanted(self) -> Collection[int] | None:
        """The virtual nodes of a checkpoint that count; None: all."""
        return None

    def predecessor(self, origin: Origin) -> Predecessor:
        """What is needed of the state of one."""
        return Predecessor(self.spec, origin, self.spec.owned(self.task), self.state.room)

    def restored(self, changes: Sequence[Change], size: int) -> None:
        """Apply committed changes, or a checkpoint, on the way to the last marker."""
        self.state.apply(changes)
        self.checkpoints.changed(size)

    def passed(self, marker: Marker) -> None:
        """A marker on that way, of a task that is still running elsewhere."""
        self.checkpoints.passed(marker)


def _tell_nobody(row: Delta, error: Exception) -> None:
    """Of rows that are only tried."""


def check_marker(marker: Marker, task: TaskId) -> None:
    """A marker found under a task's tag is that task's."""
    if marker.task != str(task):
        raise BadFormat(f"a marker of {marker.task} stands under the tag of {task}")
