"""Runs a storage node's core on real time and real files.

Owns the threads: the event loop (all decisions), one writer of the journal
(serving/group_commit.py), and a small pool for reads, indexes and flushes. What is decided is
node_core.py's, what is durable journal.py's, where blocks lie segment_store.py's.
Laws: a failed write or flush ends the owner (R48): what was in flight is never answered. A part
whose file cannot be opened or read fails alone, and says so; now and then its blocks are written to
the newest journal, so that the old ones can be dropped. When such parts hold too much, nothing more
is taken at all: what they cost is bounded, in memory and on disk.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import NamedTuple, TypeVar

from penstock.errors import PenstockError, Unavailable
from penstock.ids import BlockId
from penstock.log.group_format import Buffer
from penstock.log.node.journal import Journal, LengthRecord, RecoveredJournal
from penstock.log.node.metrics import NodeMetrics
from penstock.log.node.segment_store import GONE, Extent, Flushed, SegmentStore
from penstock.log.replication.manifest import SegmentKey
from penstock.log.replication.node_api import Fence, Found
from penstock.log.replication.node_core import (
    AddRecord,
    NodeCore,
    NodeWrite,
    ReadPlan,
    ReadRequest,
)
from penstock.log.serving.group_commit import (
    INLINE_BYTES,
    NOTE_DELAY_MS,
    Apart,
    GroupCommit,
    WriterThread,
)
from penstock.log.serving.task_set import TaskSet
from penstock.log.storage.disk import Disk

logger = logging.getLogger(__name__)

READ_THREADS = 4
#: Parts that are flushed together: one sync of the directory for all of them.
FLUSH_PARTS = 64
#: So many journals' worth of blocks may wait in memory for their flush; then adds must wait.
UNFLUSHED_JOURNALS_MAX = 4
#: Parts that were set aside may hold one journal's worth of blocks, and what came until the flush
#: that set them aside. It is written again when that frees some times as much.
CARRY_FACTOR = 2
#: With parts set aside, so many files of the journal may be there: some parts forbid to drop any.
JOURNALS_ASIDE_MAX = 64

T = TypeVar("T")


class BlocksFound(NamedTuple):
    """The answer to a read, with the bytes of its blocks."""

    found: Found
    durable_block: BlockId
    data: list[Buffer]


#: Called once with the outcome, on the event loop. None: added.
AddReply = Callable[[PenstockError | None], None]
_Call = Callable[[], None]
FenceReply = Callable[[Fence | PenstockError], None]
ReadReply = Callable[[BlocksFound | PenstockError], None]


class _ReadCause(NamedTuple):
    """Marks the cause of a read, whose blocks have to be fetched."""

    reply: ReadReply


class _Job(NamedTuple):
    """One write of the journal."""

    write: NodeWrite | None
    buffers: list[Buffer]
    is_new: bool
    #: Told once it is durable.
    done: list[asyncio.Future[None]]
    #: It has blocks of parts that were set aside.
    carries: bool = False

    @property
    def is_small(self) -> bool:
        if self.is_new or self.carries:
            return False
        return self.write is None or self.write.bytes <= INLINE_BYTES


class NodeOwner:
    """Blocks, fences and flushes of one node. All methods are for the event loop."""

    def __init__(
        self,
        journal_disk: Disk,
        store: SegmentStore,
        core: NodeCore,
        recovered: RecoveredJournal,
        *,
        metrics: NodeMetrics,
        after_event: Callable[[], None],
        on_drained: Callable[[], None],
        on_fatal: Callable[[BaseException], None],
        journal_bytes: int,
        fsync_delay_ms: float = 0.0,
        apart: Apart | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`apart` and `clock`: where writes are done and what measures them, in a simulation."""
        self.core = core
        self.store = store
        self.journal = Journal(journal_disk, recovered, bytes_max=journal_bytes)
        self.metrics = metrics
        self._after_event = after_event
        self._on_drained = on_drained
        self._on_fatal = on_fatal
        self._journal_bytes = journal_bytes
        self._unflushed_bytes_max = UNFLUSHED_JOURNALS_MAX * journal_bytes
        self._fsync_delay = fsync_delay_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._pool = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="node-reader")
        self._commit: GroupCommit[_Job, None] = GroupCommit(
            take=self._next_job,
            is_small=lambda job: job.is_small,
            perform=self._perform,
            written=self._written,
            failed=self._failed,
            apart=WriterThread("node-writer") if apart is None else apart,
            clock=clock,
        )
        #: Lengths for the next write, and who waits for it.
        self._lengths: list[LengthRecord] = []
        self._durable: list[asyncio.Future[None]] = []
        #: Blocks of parts that were set aside, for the next write.
        self._carried: list[AddRecord] = []
        #: What is wrong with parts, in words.
        self._problems: dict[SegmentKey, str] = {}
        for key, block in recovered.lost:
            logger.error("a block is damaged in the journal segment=%s block=%d", key, block)
            metrics.damaged_blocks += 1
            self._problems[key] = f"block {block} was damaged in the journal and is unknown"
        #: What waits for the index of a part.
        self._loading: dict[SegmentKey, list[tuple[Callable[[PenstockError], None], _Call]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._flush_due = asyncio.Event()
        self._stopping = False
        # A task that nobody foresaw to fail ends the owner: half of one must not go on.
        self._tasks = TaskSet(self._failed)

    def start(self) -> None:
        if self.journal.numbers or self.store.has_removals:
            self._flush_due.set()
        for key, _, end in self.store.missing():
            self._doubt(key, GONE, end)
        self._tasks.spawn(self._flush_loop())
        self._tasks.spawn(self._note_loop())

    async def stop(self, *, clean: bool) -> None:
        """Finish what is in flight and close the files; or, if not clean, just let go."""
        self._stopping = True
        await self._tasks.cancel()
        while clean and not self.core.poisoned and (self._commit.is_busy or not self.core.is_idle):
            self.pump()
            await asyncio.sleep(0.001)
        await self._commit.close()
        await asyncio.to_thread(self._pool.shutdown, wait=True)
        if self._timer is not None:
            self._timer.cancel()
        if clean and not self.core.poisoned:
            await asyncio.to_thread(self._close)
        else:
            self.journal.abandon()
        self.store.close()

    def _close(self) -> None:
        note = self.journal.encode_note()
        if note is not None:
            self.journal.write(note, False)
        self.journal.close()

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Do something slow in the pool."""
        return await self._loop.run_in_executor(self._pool, function, *arguments)

    @property
    def is_full(self) -> bool:
        """Too much waits for its flush: `on_drained` tells when that is over."""
        return self.store.memory_bytes > self._unflushed_bytes_max

    @property
    def is_burdened(self) -> bool:
        """Parts that were set aside hold too much: nothing more is taken."""
        return self.store.aside_bytes > self._journal_bytes or (
            bool(self.store.aside) and len(self.journal.numbers) > JOURNALS_ASIDE_MAX
        )

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    # ---- requests; `pump` must follow once all that arrived together is in

    def add(
        self, reply: AddReply, key: SegmentKey, epoch: int, data: Buffer, trusted: bool
    ) -> None:
        if self.store.aside and self.is_burdened:
            count = len(self.store.aside)
            reply(Unavailable(f"the files of {count} parts cannot be used: nothing more is taken"))
            return
        if self.core.is_open(key) and not self._stopping:
            if key in self.store.aside:
                reply(Unavailable(f"nothing more is taken of {key}: {self._problems.get(key)}"))
                return
            self.core.add(reply, key, epoch, data, trusted=trusted)
        else:
            self._when_loaded(
                key, reply, lambda: self.core.add(reply, key, epoch, data, trusted=trusted)
            )

    def fence(self, reply: FenceReply, key: SegmentKey, epoch: int, trusted: bool) -> None:
        log, segment, _ = key
        self._when_loaded(
            key, reply, lambda: self.core.fence(reply, log, segment, epoch, trusted=trusted)
        )

    def read(self, reply: ReadReply, read: ReadRequest, trusted: bool) -> None:
        self._when_loaded(
            read.key,
            reply,
            lambda: self.core.read(_ReadCause(reply), read, trusted=trusted, now_ms=self._now_ms()),
        )

    def list_blocks(
        self,
        reply: Callable[[list[tuple[int, int]] | PenstockError], None],
        key: SegmentKey,
        first: int,
        end: int,
    ) -> None:
        self._when_loaded(key, reply, lambda: reply(self.core.list_blocks(key, first, end)))

    def trim(self, log: str, first_segment: int) -> asyncio.Future[None]:
        """Give up the segments below, which the log's manifest positively says."""
        future: asyncio.Future[None] = self._loop.create_future()

        def reply(_: PenstockError | None) -> None:
            if not future.done():
                future.set_result(None)

        self.core.trim(reply, log, first_segment)
        for key in [key for key in self._problems if key.log == log]:
            if key.segment < first_segment:
                del self._problems[key]
        self.pump()
        self._after_event()  # who waits for a block of them is told
        return future

    def _when_loaded(
        self, key: SegmentKey, failed: Callable[[PenstockError], None], call: _Call
    ) -> None:
        """Requests for a part whose index is read first keep their order."""
        if self._stopping:
            failed(Unavailable("the node is stopping"))
            return
        waiting = self._loading.get(key)
        if waiting is not None:
            waiting.append((failed, call))
        elif self.core.is_open(key) or self.store.is_loaded(key):
            call()
        else:
            self._loading[key] = [(failed, call)]
            self._tasks.spawn(self._load(key))

    async def _load(self, key: SegmentKey) -> None:
        problem = await self._load_index(key)
        for failed, call in self._loading.pop(key):
            if problem is None:
                call()
            else:
                failed(problem)
        self.pump()
        self._after_event()

    async def _load_index(self, key: SegmentKey) -> PenstockError | None:
        """Read the index of a part; what is in the way is this part's problem only."""
        try:
            found = await self.run(self.store.load_index, key)
        except (PenstockError, OSError) as error:
            return self._set_aside(key, error)
        self._take_back(key)
        if found.damage:
            self._doubt(key, found.damage, found.end)
            self.metrics.damaged_parts += 1
        self.store.loaded(key, found)
        return None

    def _doubt(self, key: SegmentKey, damage: str, end: int | None) -> None:
        below = "" if end is None else f" below {end}"
        words = f"its file {damage}: blocks{below} that are not here are unknown"
        if self._problems.get(key) != words:
            logger.error("a part has lost something segment=%s: %s", key, words)
        self._problems[key] = words

    def _set_aside(self, key: SegmentKey, error: Exception) -> PenstockError:
        words = f"its file cannot be used: {error}"
        if self._problems.get(key) != words:
            logger.error("a part is set aside, others go on segment=%s: %s", key, words)
        self._problems[key] = words
        self.store.set_aside(key)
        return Unavailable(words)

    def _take_back(self, key: SegmentKey) -> None:
        if key in self.store.aside:
            logger.info("the file of a part can be used again segment=%s", key)
            self._problems.pop(key, None)
            self.store.take_back(key)

    def problems(self, count_max: int) -> list[str]:
        """What is wrong with parts, in words."""
        shown = [f"{_name(key)}: {words}" for key, words in self._problems.items()][:count_max]
        more = len(self._problems) - len(shown)
        return [*shown, f"{more} more parts have problems"] if more else shown

    def _close_surplus(self) -> None:
        for old in self.store.surplus():
            if old not in self._loading and self.core.close_part(old):
                self.store.close_part(old)

    # ---- writes

    def pump(self, *, inline: bool = True) -> None:
        """Start the next write if one is due, and give the answers that are ready."""
        self._commit.pump(inline=inline)
        self._give_answers()

    def _next_job(self) -> _Job | None:
        write = self.core.take_write()
        if self.core.poisoned or (write is None and not self._lengths and not self._durable):
            return None
        records = chain(write.records if write is not None else (), self._carried, self._lengths)
        buffers, is_new = self.journal.encode(records, self.store.length)
        job = _Job(write, buffers, is_new, self._durable, bool(self._carried))
        self._carried, self._lengths, self._durable = [], [], []
        return job

    def _perform(self, job: _Job) -> None:
        if self._fsync_delay:
            time.sleep(self._fsync_delay)
        self.journal.write(job.buffers, job.is_new)

    def _written(self, job: _Job, _: None, seconds: float, inline: bool) -> None:
        try:
            self._apply(job, seconds)
        except Exception as error:
            # What is durable cannot be taken in: nothing in memory is right any more.
            self._failed(error)
            return
        if not inline:  # the next write starts before the answers go out
            self.pump(inline=False)
            self._after_event()

    def _apply(self, job: _Job, seconds: float) -> None:
        metrics = self.metrics
        metrics.fsync_duration.observe(seconds)
        if job.write is not None:
            metrics.writes += 1
            metrics.written_records += len(job.write.records)
            metrics.written_bytes += job.write.bytes
            self.core.written(job.write)
            if self.store.has_removals or self.store.memory_bytes > self._unflushed_bytes_max // 2:
                self._flush_due.set()
        for future in job.done:
            if not future.done():
                future.set_result(None)
        if job.is_new and len(self.journal.numbers) > 1:
            self._flush_due.set()

    def _failed(self, error: BaseException) -> None:
        if not self.core.poisoned:
            logger.critical("a write failed, the node stops cause=%r", error, exc_info=error)
        self.core.write_failed()
        self._on_fatal(error)

    def _give_answers(self) -> None:
        for cause, outcome in self.core.take_answers():
            if isinstance(outcome, ReadPlan):
                assert isinstance(cause, _ReadCause)
                self._fetch(cause.reply, outcome)
            else:
                reply = cause.reply if isinstance(cause, _ReadCause) else cause
                assert callable(reply)
                reply(outcome)
        due_ms = self.core.due_ms()
        if due_ms is not None and (self._timer is None or due_ms < self._timer_ms):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = due_ms
            delay = max(due_ms - self._now_ms(), 0) / 1000
            self._timer = self._loop.call_later(delay, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.core.expire(self._now_ms())
        self._give_answers()
        self._after_event()

    # ---- reads

    def _fetch(self, reply: ReadReply, plan: ReadPlan) -> None:
        if plan.found is not Found.HERE:
            reply(BlocksFound(plan.found, plan.durable_block, []))
            return
        pieces = self.store.collect(plan.key, plan.first, plan.end, plan.bytes_max)
        data = [piece for piece in pieces if not isinstance(piece, Extent)]
        if len(data) == len(pieces):
            self.metrics.read_bytes += sum(map(len, data))
            reply(BlocksFound(Found.HERE, plan.durable_block, data))
        elif not self._stopping:
            self._tasks.spawn(self._fetch_files(reply, plan, pieces))

    async def _fetch_files(
        self, reply: ReadReply, plan: ReadPlan, pieces: list[Buffer | Extent]
    ) -> None:
        extents = [piece for piece in pieces if isinstance(piece, Extent)]
        try:
            read = iter(await self.run(self.store.read_extents, plan.key, extents))
        except OSError as error:
            logger.error("a read failed segment=%s cause=%r", plan.key, error)
            read = iter([None] * len(extents))
        data: list[Buffer] = []
        for piece in pieces:
            found = next(read) if isinstance(piece, Extent) else piece
            if found is None:
                assert isinstance(piece, Extent)
                self._lost(plan.key, piece.block)
                break
            data.append(found)
        self.metrics.read_bytes += sum(map(len, data))
        outcome = Found.HERE if data else Found.UNKNOWN
        reply(BlocksFound(outcome, plan.durable_block, data))
        self._after_event()

    def _lost(self, key: SegmentKey, block: int) -> None:
        logger.error("a block is damaged segment=%s block=%d", key, block)
        self.metrics.damaged_blocks += 1
        if self.store.is_here(key):
            self.store.lost(key, block)
            self.core.lost(key, block)

    # ---- flushes

    async def _flush_loop(self) -> None:
        while True:
            await self._flush_due.wait()
            self._flush_due.clear()
            await self.flush()

    async def flush(self) -> None:
        """Bring all blocks into files, then drop the journals that held them."""
        below = self.journal.number
        waiting = self.store.unflushed()
        for first in range(0, len(waiting), FLUSH_PARTS):
            work = []
            for key in waiting[first : first + FLUSH_PARTS]:
                if not self.store.is_here(key):
                    await self._load_index(key)
                taken = self.store.take_flush(key)
                if taken is not None:
                    work.append((key, *taken))
            for done in await self.run(self.store.flush_all, work):
                if not isinstance(done, Flushed):
                    self._set_aside(done.key, done.error)
                    continue
                self._take_back(done.key)
                length = self.store.flushed(done)
                if length is not None:
                    self._lengths.append(length)
            if not self.is_full:
                self._on_drained()
        if not self.is_full:  # also if a trim was what made room
            self._on_drained()
        if self._is_drop_due(below):
            self._carried += [r for key in self.store.aside for r in self.store.held(key)]
            durable: asyncio.Future[None] = self._loop.create_future()
            self._durable.append(durable)
            self.pump()
            self._after_event()
            await durable
            state, lengths = self.core.snapshot(), self.store.lengths()
            await self.run(self.journal.drop_below, below, state, lengths)
        if self.store.has_removals:
            removed, left = await self.run(self.store.remove_dropped)
            self.metrics.removed_files += removed
            for key, error in left:
                logger.error("a file cannot be removed segment=%s cause=%r", key, error)
                self._problems[key] = f"it was given up, and its file cannot be removed: {error}"

    def _is_drop_due(self, below: int) -> bool:
        """Whether files of the journal can go, and are worth what has to be written for that."""
        count = sum(number < below for number in self.journal.numbers)
        if not count or self.store.needs_journals:
            return False
        return count * self._journal_bytes >= CARRY_FACTOR * self.store.aside_bytes

    async def _note_loop(self) -> None:
        while True:
            await asyncio.sleep(NOTE_DELAY_MS / 2000)
            self._close_surplus()
            if not self._commit.is_quiet() or not self.core.is_idle or self.core.poisoned:
                continue
            note = self.journal.encode_note()
            if note is not None:
                self._commit.write_apart(_Job(None, note, False, []))


def _name(key: SegmentKey) -> str:
    part = " (index)" if key.part else ""
    return f"segment {key.segment}{part} of log {key.log}"
