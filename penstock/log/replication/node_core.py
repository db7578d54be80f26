"""What a storage node decides: which blocks it takes, when it may say so, and what it may deny.

Owns fences, tombstones, the presence of blocks, group commit and waiting reads. Knows no sockets,
no files, no clock: the shell passes `now_ms`, performs the `NodeWrite` that `take_write` returns
(write all records, fsync once), calls `written`, and gives the answers of `take_answers`.

    add, fence, recovery read ──decide──► ordered ──take_write──► in flight ──written──► answered

Laws: every request is decided against all that was ordered before it, durable or not; an answer
waits until everything that it rests on is durable. After a fence no block of an older epoch is
taken (R01), and a recovery read fences before it is answered, so its "absent" binds (R02). "Absent"
is said only to a caller that believes in this very life of the node, and only of a block that was
not lost here: damage is of blocks, and those before and after it are answered (R04, R05). What lies
below a log's first segment was given up: it is never taken again (R13), and nothing else is ever
deleted (R40). DistributedLog III-A, III-B.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from penstock.errors import BadRequest, Damaged, Fenced, PenstockError, Unavailable
from penstock.ids import BlockId
from penstock.limits import DELIVERY_BYTES, KIB, POSITION_MAX
from penstock.log.block_format import BlockHeader, BlockKind, check_block
from penstock.log.group_format import Buffer
from penstock.log.replication.manifest import SegmentKey
from penstock.log.replication.node_api import Fence, Found

#: One write and its fsync: large enough for a disk's bandwidth, small enough not to delay the rest.
WRITE_BYTES_MAX = DELIVERY_BYTES
#: What a record costs beyond its block, so that a flood of tiny ones stays within the same bounds.
RECORD_OVERHEAD_BYTES = KIB // 4
#: However long a reader is willing to wait.
WAIT_MS_MAX = 60_000

#: Who asked; the core hands it back with the answer and never looks inside.
Cause = object


class AddRecord(NamedTuple):
    """A block to keep. `mark` tells it from any other block under the same id."""

    key: SegmentKey
    block: int
    mark: int
    data: Buffer


class FenceRecord(NamedTuple):
    log: str
    segment: int
    epoch: int


class TrimRecord(NamedTuple):
    """The log's segments below this one were given up for good."""

    log: str
    first_segment: int


Record = AddRecord | FenceRecord | TrimRecord


class NodeWrite(NamedTuple):
    """Order to the shell: write these records in this order, fsync, then say `written`."""

    records: tuple[Record, ...]
    bytes: int
    #: How many records were ordered up to its last.
    end: int


class ReadRequest(NamedTuple):
    """See `node_messages.ReadBlocks`."""

    key: SegmentKey
    first: int
    durable_block: int = 0
    bytes_max: int = DELIVERY_BYTES
    fence_epoch: int = 0
    wait_ms: int = 0


class ReadPlan(NamedTuple):
    """What a read may be told. With HERE: the blocks [first, end), about `bytes_max` of them."""

    found: Found
    durable_block: BlockId
    key: SegmentKey
    first: int = 0
    end: int = 0
    bytes_max: int = 0


class NodeAnswer(NamedTuple):
    """The outcome for `cause`; None: added, or given up as asked."""

    cause: Cause
    outcome: Fence | ReadPlan | PenstockError | None


class StoredPart(NamedTuple):
    """What the store has of a part when it is first used."""

    #: First and end of ranges of blocks, ascending.
    ranges: tuple[tuple[int, int], ...] = ()
    #: The largest durable block in the headers of its blocks.
    durable_block: int = 0
    #: Of the blocks that are not there, those that may have been there and were lost, as `ranges`.
    unsure: tuple[tuple[int, int], ...] = ()


class BlockStore(Protocol):
    """Where durable blocks are kept. All calls are quick: the shell does before what is not."""

    def load(self, key: SegmentKey) -> StoredPart:
        """Called when a part is used for the first time, or again after `close_part`."""

    def put(self, record: AddRecord) -> None:
        """The block is durable from now on."""

    def mark(self, key: SegmentKey, block: int) -> int:
        """Of a block that is there."""

    def drop(self, log: str, first_segment: int) -> None:
        """All segments of the log below this one were given up, durably: they may be removed."""


class Ranges:
    """Ascending ranges of blocks that do not touch; adding at the end is the quick case."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: tuple[tuple[int, int], ...] = ()) -> None:
        self._starts = array("Q", [first for first, _ in ranges])
        self._ends = array("Q", [end for _, end in ranges])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    @property
    def end(self) -> int:
        return self._ends[-1] if self._ends else 0

    def end_of(self, block: int) -> int:
        """The end of the range that holds this block; the block itself if none does."""
        at = bisect_right(self._starts, block) - 1
        return max(block, self._ends[at]) if at >= 0 else block

    def add(self, block: int) -> None:
        ends = self._ends
        if not ends or block > ends[-1]:
            self._starts.append(block)
            ends.append(block + 1)
        elif block == ends[-1]:
            ends[-1] = block + 1
        else:
            self._insert(block)

    def _insert(self, block: int) -> None:
        starts, ends = self._starts, self._ends
        at = bisect_right(starts, block)
        if at and block < ends[at - 1]:
            return
        joins_left = at > 0 and ends[at - 1] == block
        joins_right = at < len(starts) and starts[at] == block + 1
        if joins_left and joins_right:
            ends[at - 1] = ends[at]
            del starts[at], ends[at]
        elif joins_left:
            ends[at - 1] = block + 1
        elif joins_right:
            starts[at] = block
        else:
            starts.insert(at, block)
            ends.insert(at, block + 1)

    def remove(self, block: int) -> None:
        starts, ends = self._starts, self._ends
        at = bisect_right(starts, block) - 1
        if at < 0 or block >= ends[at]:
            return
        first, end = starts[at], ends[at]
        del starts[at], ends[at]
        if block + 1 < end:
            starts.insert(at, block + 1)
            ends.insert(at, end)
        if first < block:
            starts.insert(at, first)
            ends.insert(at, block)

    def within(self, first: int, end: int) -> list[tuple[int, int]]:
        """What of them lies in [first, end)."""
        found = []
        at = max(bisect_right(self._starts, first) - 1, 0)
        while at < len(self._starts) and self._starts[at] < end:
            left, right = max(self._starts[at], first), min(self._ends[at], end)
            if left < right:
                found.append((left, right))
            at += 1
        return found


@dataclass(slots=True)
class _Waiting:
    cause: Cause
    read: ReadRequest
    trusted: bool
    answered: bool = False


@dataclass(slots=True)
class _Part:
    """One part of a segment."""

    #: Blocks that are durable here and whole, as far as is known.
    durable: Ranges
    #: All blocks below were acknowledged, says the writer: the largest that was heard.
    durable_block: int
    #: Blocks that are unknown unless they are in `durable`: they may have been lost.
    unsure: Ranges
    #: Blocks that were ordered and are not durable yet, with their marks.
    pending: dict[int, int] = field(default_factory=dict)
    waiting: list[_Waiting] = field(default_factory=list)
    #: Reads that are looked up once what was ordered before them is durable.
    queued: int = 0


class NodeCore:
    """One storage node. `poisoned` after a failed write: the process must stop and recover."""

    def __init__(self, store: BlockStore, *, write_bytes_max: int = WRITE_BYTES_MAX) -> None:
        self._store = store
        self._write_bytes_max = write_bytes_max
        #: By log and segment; what is not here was never fenced.
        self._fences: dict[tuple[str, int], int] = {}
        #: By log: segments below were given up.
        self._first_segments: dict[str, int] = {}
        self._parts: dict[SegmentKey, _Part] = {}
        #: Records that no write has taken yet, and what they cost.
        self._waiting: deque[Record] = deque()
        self._waiting_bytes = 0
        self._in_flight: NodeWrite | None = None
        #: How many records were ordered, and how many of them are durable.
        self._ordered = 0
        self._durable = 0
        #: In order, each with how many records must be durable first; a read is looked up then.
        self._answers: deque[tuple[int, Cause, Fence | PenstockError | _Waiting | None]] = deque()
        self._ready: list[NodeAnswer] = []
        #: Parts with waiting reads of which something changed.
        self._stirred: dict[SegmentKey, None] = {}
        #: Deadlines of waiting reads; the number keeps equal ones in order.
        self._deadlines: list[tuple[int, int, _Waiting]] = []
        self._waits = 0
        self.poisoned = False

    # ---- starting

    def restore(self, record: FenceRecord | TrimRecord) -> None:
        """Take in what an earlier process made durable; blocks come from the store."""
        if isinstance(record, FenceRecord):
            key = (record.log, record.segment)
            self._fences[key] = max(record.epoch, self._fences.get(key, 0))
        else:
            known = self._first_segments.get(record.log, 0)
            self._first_segments[record.log] = max(record.first_segment, known)
            self._forget_below(record.log)

    def snapshot(self) -> list[FenceRecord | TrimRecord]:
        """What `restore` needs to get here again, given the store."""
        trims = [TrimRecord(log, first) for log, first in self._first_segments.items()]
        fences = [FenceRecord(*key, epoch) for key, epoch in self._fences.items()]
        return [*trims, *fences]

    # ---- requests

    def add(
        self, cause: Cause, key: SegmentKey, epoch: int, data: Buffer, *, trusted: bool = True
    ) -> None:
        """Take a block. The answer comes once it is durable, also if it was there before."""
        try:
            self._check_writable(key.log, key.segment, epoch, trusted)
            header = _check_new_block(key, data)
            part = self._part(key)
            mark = block_mark(header, data)
            known = self._mark(part, key, header.block)
            if known is not None and known != mark:
                raise BadRequest(f"another block {header.block} of {key} is here")
        except PenstockError as error:
            self._answers.append((self._ordered, cause, error))
            return
        if known is None:
            part.pending[header.block] = mark
            self._order(AddRecord(key, header.block, mark, data), len(data))
        self._answers.append((self._ordered, cause, None))
        if header.durable_block > part.durable_block:
            part.durable_block = header.durable_block
            if part.waiting:
                self._stirred[key] = None

    def fence(
        self, cause: Cause, log: str, segment: int, epoch: int, *, trusted: bool = True
    ) -> None:
        """Take no block of an older epoch from now on; answered by a `Fence`."""
        try:
            self._check_writable(log, segment, epoch, trusted)
        except PenstockError as error:
            self._answers.append((self._ordered, cause, error))
            return
        self._raise_fence(log, segment, epoch)
        part = self._part(SegmentKey(log, segment))
        following = max(part.durable.end, max(part.pending, default=-1) + 1)
        fence = Fence(BlockId(part.durable_block), BlockId(following))
        self._answers.append((self._ordered, cause, fence))

    def read(
        self, cause: Cause, read: ReadRequest, *, trusted: bool = True, now_ms: int = 0
    ) -> None:
        """Answered by a `ReadPlan`: at once, after the fence, or when `first` is durable."""
        key = read.key
        if key.segment < self._first_segments.get(key.log, 0) and not read.fence_epoch:
            self._ready.append(NodeAnswer(cause, _gone(read)))
            return
        if read.fence_epoch and trusted:
            try:
                self._check_writable(key.log, key.segment, read.fence_epoch, trusted)
            except PenstockError as error:
                self._answers.append((self._ordered, cause, error))
                return
            self._raise_fence(key.log, key.segment, read.fence_epoch)
            self._queue(_Waiting(cause, read, trusted))
            return
        waiting = _Waiting(cause, read, trusted)
        plan = self._look(read, trusted)
        if plan is not None and plan.found is Found.LATER and read.wait_ms and not read.fence_epoch:
            self._part(key).waiting.append(waiting)
            self._waits += 1
            deadline = now_ms + min(read.wait_ms, WAIT_MS_MAX)
            heappush(self._deadlines, (deadline, self._waits, waiting))
        else:
            self._tell(waiting, plan)

    def list_blocks(self, key: SegmentKey, first: int, end: int) -> list[tuple[int, int]]:
        """Ranges of blocks that are here, whole and durable."""
        if key.segment < self._first_segments.get(key.log, 0):
            return []
        return self._part(key).durable.within(first, end)

    def trim(self, cause: Cause, log: str, first_segment: int) -> None:
        """Give up the segments below; the caller has positively read that in the log's manifest."""
        if first_segment > self._first_segments.get(log, 0):
            self._first_segments[log] = first_segment
            self._order(TrimRecord(log, first_segment), 0)
            self._forget_below(log)
        self._answers.append((self._ordered, cause, None))

    def lost(self, key: SegmentKey, block: int) -> None:
        """A block turned out to be damaged: it is unknown from now on, and may be added again."""
        if key.segment >= self._first_segments.get(key.log, 0):
            part = self._part(key)
            part.durable.remove(block)
            part.unsure.add(block)

    def first_segment(self, log: str) -> int:
        return self._first_segments.get(log, 0)

    def is_open(self, key: SegmentKey) -> bool:
        """Whether the next request need not `load` this part."""
        return key in self._parts

    def close_part(self, key: SegmentKey) -> bool:
        """Forget what the store knows anyway; False if something waits for it."""
        part = self._parts.get(key)
        if part is not None and (part.pending or part.waiting or part.queued):
            return False
        self._parts.pop(key, None)
        return True

    # ---- writes and answers

    def take_write(self) -> NodeWrite | None:
        """The next write to perform, if there is one and none is in flight."""
        if self._in_flight is not None or not self._waiting or self.poisoned:
            return None
        waiting = self._waiting
        if self._waiting_bytes <= self._write_bytes_max:
            records, size = tuple(waiting), self._waiting_bytes
            waiting.clear()
        else:
            taken: list[Record] = []
            size = 0
            while waiting and size < self._write_bytes_max:
                record = waiting.popleft()
                taken.append(record)
                size += RECORD_OVERHEAD_BYTES
                size += len(record.data) if isinstance(record, AddRecord) else 0
            records = tuple(taken)
        self._waiting_bytes -= size
        self._in_flight = NodeWrite(records, size, self._ordered - len(waiting))
        return self._in_flight

    def written(self, write: NodeWrite) -> None:
        """The write is durable: its blocks may be shown, and its answers given."""
        assert write is self._in_flight
        self._in_flight = None
        self._durable = write.end
        for record in write.records:
            if isinstance(record, AddRecord):
                part = self._parts.get(record.key)
                if part is None:
                    continue  # given up meanwhile
                self._store.put(record)
                part.durable.add(record.block)
                del part.pending[record.block]
            elif isinstance(record, TrimRecord):
                self._store.drop(record.log, record.first_segment)

    def write_failed(self) -> None:
        """The disk refused: what is in flight is unknown for ever, nothing more may be told."""
        self.poisoned = True

    def expire(self, now_ms: int) -> None:
        """Waiting reads whose time is over are answered with what there is."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            waiting = heappop(self._deadlines)[2]
            if not waiting.answered:
                part = self._part(waiting.read.key)
                part.waiting.remove(waiting)
                self._tell(waiting, self._look(waiting.read, waiting.trusted))

    def due_ms(self) -> int | None:
        """When `expire` should be called, if nothing happens before."""
        while self._deadlines and self._deadlines[0][2].answered:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def take_answers(self) -> list[NodeAnswer]:
        """Answers whose grounds are durable."""
        if self.poisoned:
            return []
        if self._stirred:
            self._release()
        answers = self._answers
        ready = self._ready
        while answers and answers[0][0] <= self._durable:
            _, cause, outcome = answers.popleft()
            if isinstance(outcome, _Waiting):
                part = self._parts.get(outcome.read.key)
                if part is not None:  # else it was given up
                    part.queued -= 1
                self._tell(outcome, self._look(outcome.read, outcome.trusted))
            else:
                ready.append(NodeAnswer(cause, outcome))
        self._ready = []
        return ready

    @property
    def is_idle(self) -> bool:
        return not self._waiting and self._in_flight is None

    def check(self) -> None:
        """Assert every invariant that can be seen from here."""
        in_flight = self._in_flight.records if self._in_flight is not None else ()
        assert self._durable + len(in_flight) + len(self._waiting) == self._ordered
        ordered = [r for r in (*in_flight, *self._waiting) if isinstance(r, AddRecord)]
        for record in ordered:
            part = self._parts.get(record.key)
            assert part is None or part.pending.get(record.block) == record.mark
        for key, part in self._parts.items():
            assert key.segment >= self._first_segments.get(key.log, 0)
            for block in part.pending:
                assert part.durable.end_of(block) == block
                assert any((r.key, r.block) == (key, block) for r in ordered)
            ends = -1
            for first, end in part.durable:
                assert ends < first < end
                ends = end
        needs = [need for need, _, _ in self._answers]
        assert needs == sorted(needs)
        queued = [read.read.key for _, _, read in self._answers if isinstance(read, _Waiting)]
        for key, part in self._parts.items():
            assert part.queued == queued.count(key)

    # ---- decisions

    def _part(self, key: SegmentKey) -> _Part:
        part = self._parts.get(key)
        if part is None:
            stored = self._store.load(key)
            part = _Part(Ranges(stored.ranges), stored.durable_block, Ranges(stored.unsure))
            self._parts[key] = part
        return part

    def _check_writable(self, log: str, segment: int, epoch: int, trusted: bool) -> None:
        if not trusted:
            raise Unavailable("this node has lost something since: it takes nothing in that name")
        first = self._first_segments.get(log, 0)
        if segment < first:
            raise Fenced(f"segment {segment} of {log} was given up: the first is {first}")
        fence = self._fences.get((log, segment), 0)
        if epoch < fence:
            raise Fenced(f"segment {segment} of {log} is fenced at epoch {fence}, not {epoch}")

    def _raise_fence(self, log: str, segment: int, epoch: int) -> None:
        if epoch > self._fences.get((log, segment), 0):
            self._fences[log, segment] = epoch
            self._order(FenceRecord(log, segment, epoch), 0)

    def _order(self, record: Record, size: int) -> None:
        self._waiting.append(record)
        self._waiting_bytes += RECORD_OVERHEAD_BYTES + size
        self._ordered += 1

    def _mark(self, part: _Part, key: SegmentKey, block: int) -> int | None:
        pending = part.pending.get(block)
        if pending is not None:
            return pending
        if part.durable.end_of(block) == block:
            return None
        return self._store.mark(key, block)

    def _look(self, read: ReadRequest, trusted: bool) -> ReadPlan | None:
        """What can be told of a read now; None: its block is about to be durable."""
        key, first = read.key, read.first
        if key.segment < self._first_segments.get(key.log, 0):
            return _gone(read)
        part = self._part(key)
        bound = max(part.durable_block, read.durable_block)
        known = BlockId(part.durable_block)
        if not read.fence_epoch and first >= bound:
            return ReadPlan(Found.LATER, known, key)
        end = part.durable.end_of(first)
        if end > first:
            if not read.fence_epoch:
                end = min(end, bound)
            return ReadPlan(Found.HERE, known, key, first, end, read.bytes_max)
        if first in part.pending:
            return None
        is_sure = trusted and part.unsure.end_of(first) == first
        return ReadPlan(Found.ABSENT if is_sure else Found.UNKNOWN, known, key)

    def _tell(self, waiting: _Waiting, plan: ReadPlan | None) -> None:
        waiting.answered = True
        if plan is None:
            self._queue(waiting)
        else:
            self._ready.append(NodeAnswer(waiting.cause, plan))

    def _queue(self, waiting: _Waiting) -> None:
        """Its part stays open until it is looked up."""
        self._part(waiting.read.key).queued += 1
        self._answers.append((self._ordered, waiting.cause, waiting))

    def _release(self) -> None:
        """Waiting reads whose block is durable now."""
        stirred, self._stirred = self._stirred, {}
        for key in stirred:
            part = self._parts.get(key)
            if part is None:
                continue
            still = []
            for waiting in part.waiting:
                plan = self._look(waiting.read, waiting.trusted)
                if plan is not None and plan.found is Found.LATER:
                    still.append(waiting)
                else:
                    self._tell(waiting, plan)
            part.waiting = still

    def _forget_below(self, log: str) -> None:
        first = self._first_segments[log]
        for key in [key for key in self._parts if key.log == log and key.segment < first]:
            for waiting in self._parts.pop(key).waiting:
                self._tell(waiting, _gone(waiting.read))
        for fenced in [at for at in self._fences if at[0] == log and at[1] < first]:
            del self._fences[fenced]


def block_mark(header: BlockHeader, data: Buffer) -> int:
    """Equal for equal blocks: the CRCs of a block's header and body."""
    return int.from_bytes(data[4:8], "little") | header.body_crc << 32


def _gone(read: ReadRequest) -> ReadPlan:
    return ReadPlan(Found.UNKNOWN, BlockId(0), read.key)


def _check_new_block(key: SegmentKey, data: Buffer) -> BlockHeader:
    """It is the request that is wrong, not our bytes: a refusal."""
    try:
        header, _ = check_block(data)
    except Damaged as error:
        raise BadRequest(f"the block cannot be read: {error}") from error
    if header.block_bytes != len(data):
        raise BadRequest(f"{len(data)} bytes for a block of {header.block_bytes}")
    if max(header.block, header.durable_block) >= POSITION_MAX:
        raise BadRequest(f"block {header.block}, durable {header.durable_block}: too large")
    if header.segment != key.segment or (header.kind is BlockKind.INDEX) != (key.part == 1):
        raise BadRequest(f"block {header.block} of segment {header.segment} is not for {key}")
    return header
