"""Order append groups: decide each one once, and tell nobody before it is durable.

Owns guards, idempotence, fencing of producers, group commit and the order of answers. Knows no
sockets, no files, no clock: the shell passes `now_ms`, performs the `Write` that `take_write`
returns (write all records, fsync once), and calls `written`, in order. One write is in flight at a
time (`writes_max`; a replicated log has more, its nodes are far away, up to `in_flight_bytes_max`);
meanwhile the next collects.

    append ──decide──► ordered ──take_write──► in flight ──written──► durable: answered and visible
                │
                └─ duplicate, refused: the answer waits until what it rests on is durable

Laws: (I5, I7) a group is decided against all groups ordered before it, durable or not; (I1, I22)
every answer, a refusal too, waits until everything ordered before it is durable, so nothing that a
crash could undo was ever told to anybody. Impeller 3.1, 3.4; DistributedLog II-D, III-A.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import (
    BadRequest,
    Damaged,
    GuardFailed,
    PenstockError,
    SeqGap,
    SeqMismatch,
    StaleInstance,
)
from penstock.ids import Lsn
from penstock.limits import DELIVERY_BYTES, LOG_INFLIGHT_BYTES_MAX
from penstock.log.core.producers import AppendedGroup, ProducerState
from penstock.log.core.state import LogState, claim_nonce
from penstock.log.group_format import CLAIM, Body, decode_sets
from penstock.log.record_format import RECORD_HEADER_BYTES
from penstock.log.records import IMMEDIATE, Appended, Flush, Guard, Kind, check_sets, meta_tag

#: One write and its fsync: large enough to use a disk's bandwidth, small enough not to delay the
#: rest.
WRITE_BYTES_MAX = DELIVERY_BYTES

#: Who asked; the core hands it back with the answer and never looks inside.
Cause = object


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """When a segment is full: bytes of records, or milliseconds since its first one."""

    bytes: int
    ms: int
    #: Bytes after which the state is wanted again inside a segment; 0: only where it starts.
    snapshot_bytes: int = 0


@dataclass(frozen=True, slots=True)
class OldDuplicate:
    """The seq was used long ago: the shell finds that group, `decide_duplicate` does the rest."""

    producer: str
    instance: int
    first_seq: int
    count: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome for `cause`: what was asked for, or the error that says why not."""

    cause: Cause
    outcome: Appended | OldDuplicate | PenstockError


@dataclass(frozen=True, slots=True)
class OrderedGroup:
    """A group with its place; the segment and durable LSN are filled in when it is written."""

    first_lsn: Lsn
    time_ms: int
    body: Body
    #: The state below it, if a snapshot is due here.
    snapshot: LogState | None = None
    #: It starts a new segment, which begins with that snapshot.
    rolls: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """Order to the shell: write these records in this order, fsync, then say `written`."""

    groups: tuple[OrderedGroup, ...]
    durable_lsn: Lsn
    bytes: int

    @property
    def roll(self) -> LogState | None:
        """Not None: seal the segment, open the next one, and write there."""
        return self.groups[0].snapshot if self.groups[0].rolls else None

    @property
    def snapshot(self) -> LogState | None:
        """Not None: write this state down before the groups, whether the segment rolls or not."""
        return self.groups[0].snapshot

    @property
    def end_lsn(self) -> Lsn:
        last = self.groups[-1]
        return Lsn(last.first_lsn + last.body.count)


class Sequencer:
    """One log's order. `poisoned` after a failed write: the owner must stop and recover."""

    def __init__(
        self,
        state: LogState,
        *,
        limits: SegmentLimits,
        segment_bytes: int = 0,
        segment_ms: int = 0,
        write_bytes_max: int = WRITE_BYTES_MAX,
        writes_max: int = 1,
        in_flight_bytes_max: int = LOG_INFLIGHT_BYTES_MAX,
    ) -> None:
        #: State after everything ordered, durable or not.
        self.state = state
        self._limits = limits
        #: Bytes ordered into the newest segment, and the time of its first group.
        self._segment_bytes = segment_bytes
        self._segment_ms = segment_ms
        #: First LSN that is not durable. Readers never see it or anything above.
        self.durable_lsn = state.next_lsn
        self._write_bytes_max = write_bytes_max
        self._writes_max = writes_max
        self._in_flight_bytes_max = in_flight_bytes_max
        #: Bytes ordered since the last snapshot, and what the shell wrote besides; after how many
        #: the next is due (0: never).
        self._unsaved_bytes = 0
        self.snapshot_bytes = limits.snapshot_bytes
        #: Ordered groups that no write has taken yet, and their bytes.
        self._waiting: deque[OrderedGroup] = deque()
        self._waiting_bytes = 0
        #: When the oldest waiting group must be written; None if nothing waits.
        self._due_ms: int | None = None
        #: The latest time at which a waiting group was asked for.
        self._asked_ms = 0
        self._in_flight: deque[Write] = deque()
        self._in_flight_bytes = 0
        #: Answers in order, each with the LSN that must be durable first.
        self._answers: deque[tuple[Lsn, Answer]] = deque()
        self.poisoned = False

    # ---- events

    def append(
        self,
        cause: Cause,
        body: Body,
        *,
        guards: Sequence[Guard] = (),
        flush: Flush = IMMEDIATE,
        now_ms: int,
    ) -> None:
        """Decide one group. Its answer comes from a later `take_answers`."""
        try:
            outcome = self._decide(body, guards)
        except PenstockError as error:
            self._answer_soon(cause, error)
            return
        if outcome is not None:
            self._answer_soon(cause, outcome)
            return
        first_lsn = self.state.next_lsn
        time_ms = max(now_ms, self.state.time_ms)
        rolls = self._is_rolled_by(len(body.data), time_ms)
        snapshot = self.state.copy() if self._is_snapshot_due(len(body.data), rolls) else None
        self.state.apply(body, first_lsn=first_lsn, time_ms=time_ms)
        self._waiting.append(OrderedGroup(first_lsn, time_ms, body, snapshot, rolls))
        self._waiting_bytes += RECORD_HEADER_BYTES + len(body.data)
        due_ms = now_ms + flush.delay_ms
        if self._due_ms is None:
            self._asked_ms, self._due_ms = now_ms, due_ms
        else:
            self._asked_ms = max(self._asked_ms, now_ms)
            self._due_ms = min(self._due_ms, due_ms)
        self._answer(cause, Appended(first_lsn, body.count))

    def ask(self, cause: Cause) -> None:
        """Answer `cause` (with an empty Appended) once all that is ordered now is durable."""
        self._answer_soon(cause, Appended(self.state.next_lsn, 0))

    def take_write(self, now_ms: int) -> Write | None:
        """The next write to perform now, if one is due and not too many are in flight."""
        if not self._has_room or not self._waiting or self.poisoned:
            return None
        assert self._due_ms is not None
        # Before it was asked for: the clock was set back, and nobody may wait until it catches up.
        is_early = self._asked_ms <= now_ms < self._due_ms
        if is_early and self._waiting_bytes < self._write_bytes_max:
            return None
        groups: list[OrderedGroup] = []
        size = 0
        while self._waiting and (not groups or size < self._write_bytes_max):
            if groups and self._waiting[0].snapshot is not None:
                break
            group = self._waiting.popleft()
            groups.append(group)
            size += RECORD_HEADER_BYTES + len(group.body.data)
        self._waiting_bytes -= size
        # What stays behind was due no later than what was taken: write it as soon as possible.
        self._asked_ms = now_ms
        self._due_ms = now_ms if self._waiting else None
        write = Write(tuple(groups), self.durable_lsn, size)
        self._in_flight.append(write)
        self._in_flight_bytes += size
        return write

    def written(self, write: Write) -> None:
        """The write is durable: its groups are visible from now on."""
        assert write is self._in_flight[0]
        self._in_flight.popleft()
        self._in_flight_bytes -= write.bytes
        self.durable_lsn = write.end_lsn

    def write_failed(self) -> None:
        """The disk refused: what is in flight is unknown for ever, nothing more may be acked."""
        self.poisoned = True

    def wrote_besides(self, size: int) -> None:
        """Who recovers must read this, too: it brings the next snapshot nearer."""
        self._unsaved_bytes += size

    def take_snapshot(self, lsn: Lsn) -> LogState | None:
        """The state at `lsn`, where the shell's next write is, if a snapshot is due by now.

        It is for the moment only: the next group changes it.
        """
        if lsn != self.state.next_lsn or not 0 < self.snapshot_bytes < self._unsaved_bytes:
            return None
        self._unsaved_bytes = 0
        return self.state

    def take_answers(self) -> list[Answer]:
        """Answers whose grounds are durable, in the order of the requests."""
        ready: list[Answer] = []
        while self._answers and self._answers[0][0] <= self.durable_lsn and not self.poisoned:
            ready.append(self._answers.popleft()[1])
        return ready

    def due_ms(self) -> int | None:
        """When `take_write` should be called again, if nothing happens before."""
        return self._due_ms if self._has_room else None

    @property
    def _has_room(self) -> bool:
        """Another write may be on its way."""
        is_full = self._in_flight_bytes >= self._in_flight_bytes_max
        return len(self._in_flight) < self._writes_max and not is_full

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._in_flight

    def check(self) -> None:
        """Assert every invariant that can be seen from here."""
        lsn = self.durable_lsn
        for write in self._in_flight:
            assert write.groups[0].first_lsn == lsn
            lsn = write.end_lsn
        for group in self._waiting:
            assert group.first_lsn == lsn
            lsn = Lsn(lsn + group.body.count)
        assert lsn == self.state.next_lsn
        assert self._in_flight_bytes == sum(write.bytes for write in self._in_flight)
        assert self._waiting_bytes == sum(
            RECORD_HEADER_BYTES + len(group.body.data) for group in self._waiting
        )
        assert (self._due_ms is None) == (not self._waiting)

    # ---- decisions

    def _is_rolled_by(self, size: int, time_ms: int) -> bool:
        """Segments roll by size and by time; the state is copied where the new one starts."""
        limits = self._limits
        full = self._segment_bytes and self._segment_bytes + size > limits.bytes
        old = self._segment_bytes and time_ms - self._segment_ms >= limits.ms
        if full or old:
            self._segment_bytes = 0
        if not self._segment_bytes:
            self._segment_ms = time_ms
        self._segment_bytes += RECORD_HEADER_BYTES + size
        return bool(full or old)

    def _is_snapshot_due(self, size: int, rolls: bool) -> bool:
        """Where a segment starts there always is a snapshot."""
        self._unsaved_bytes += RECORD_HEADER_BYTES + size
        due = rolls or 0 < self.snapshot_bytes < self._unsaved_bytes
        if due:
            self._unsaved_bytes = 0
        return due

    def _answer(self, cause: Cause, outcome: Appended | OldDuplicate | PenstockError) -> None:
        self._answers.append((self.state.next_lsn, Answer(cause, outcome)))

    def _answer_soon(self, cause: Cause, outcome: Appended | OldDuplicate | PenstockError) -> None:
        """Whoever asks accepted no delay: what the answer rests on is written at once."""
        if self._waiting:
            self._due_ms = self._asked_ms
        self._answer(cause, outcome)

    def _decide(self, body: Body, guards: Sequence[Guard]) -> Appended | OldDuplicate | None:
        """None: order it. A duplicate: its first outcome. Raises what refuses it."""
        known = self.state.producers.get(body.producer)
        claim = body.flags & CLAIM
        duplicate = decide_claim(body, known) if claim else decide_seq(body, known)
        if duplicate is not None:
            return duplicate
        for guard in guards:
            value = self.state.metadata.get(guard.key)
            found = None if value is None else value.data
            if found != guard.expected:
                raise GuardFailed(
                    f"metadata {guard.key} is {_show(found)}, the guard expects "
                    f"{_show(guard.expected)}"
                )
        check_meta_entries(body)
        return None


def decide_claim(body: Body, known: ProducerState | None) -> Appended | None:
    """Opening a producer: a higher instance takes over; the same claim again is a duplicate.

    A claim must be acknowledged before data is sent. Then a data group that comes late, after its
    producer retired, meets an unknown producer and is refused instead of being appended again.
    """
    if known is None or body.instance > known.instance:
        return None
    if body.instance == known.instance and claim_nonce(body) == known.claim_nonce:
        return Appended(known.claim_lsn, 1, duplicate=True)
    raise StaleInstance(
        f"producer {body.producer} has instance {known.instance}, the claim is for "
        f"{body.instance}: open it again"
    )


def decide_seq(body: Body, known: ProducerState | None) -> Appended | OldDuplicate | None:
    """Idempotence (I7): a seq takes effect once, gaps are refused, older instances are fenced.

    A lower instance is fenced only if its group is not the one that stands in the log: an answer
    `Fenced` promises that the group was never visible.
    """
    name, seq = body.producer, body.first_seq
    if known is None:
        raise SeqGap(f"producer {name} is not open: claim it first")
    if seq < known.next_seq:
        recent = known.recent
        if not recent or seq < recent[0].first_seq:
            return OldDuplicate(name, body.instance, seq, body.count)
        group = next(group for group in reversed(recent) if group.first_seq <= seq)
        # A newer instance wrote there: whatever the shapes, this one must hear that it is fenced.
        if group.first_seq == seq or group.instance > body.instance:
            return decide_duplicate(body.instance, body.count, group)
        raise SeqMismatch(
            f"producer {name}: seq {seq} lies inside an earlier group; the next is {known.next_seq}"
        )
    if body.instance != known.instance:
        raise StaleInstance(
            f"producer {name} has instance {known.instance}; instance {body.instance} is fenced"
        )
    if seq > known.next_seq:
        raise SeqGap(f"producer {name}: seq {seq} leaves a gap, the next is {known.next_seq}")
    return None


def decide_duplicate(instance: int, count: int, group: AppendedGroup) -> Appended:
    """The first seq stands in the log: the same group, or what a newer instance wrote there."""
    if group.instance > instance:
        raise StaleInstance(
            f"seq {group.first_seq} was written by instance {group.instance}; "
            f"instance {instance} is fenced"
        )
    if group.count != count:
        raise SeqMismatch(
            f"seq {group.first_seq} starts a group of {group.count} entries, not of {count}"
        )
    return Appended(group.first_lsn, count, duplicate=True)


def check_meta_entries(body: Body) -> None:
    """A metadata entry carries exactly the tags of its keys, and no key is set twice in a group."""
    seen: set[str] = set()
    for index, row in enumerate(body.rows):
        if row[0] != Kind.META:
            continue
        try:
            sets = decode_sets(body.payload(index))
        except Damaged as error:
            # It is the request that is wrong, not our bytes: a refusal, hence never visible.
            raise BadRequest(f"a metadata entry cannot be read: {error}") from error
        check_sets(sets)
        keys = {change.key for change in sets}
        if body.entry_tags(index) != tuple(meta_tag(change.key) for change in sets):
            raise BadRequest("the tags of a metadata entry are not those of its keys")
        if keys & seen:
            raise BadRequest("a metadata key is set twice in one group")
        seen |= keys


def _show(value: bytes | None) -> str:
    if value is None:
        return "absent"
    return repr(value[:40]) + ("…" if len(value) > 40 else "")
