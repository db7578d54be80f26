"""The owner of one log: runs the pure cores on real time, real files and real readers.

Owns the threads: the event loop (all decisions), one writer thread (write + fsync, one at a time,
so that the next group collects meanwhile), and a small pool for reads and housekeeping. A small
write on a fast disk is done on the loop itself: two thread switches would cost more than the
fsync. Order is sequencer.py's, delivery is tails.py's, files are storage/'s.
Law: a failed write ends the owner: what was in flight is never answered, hence unknown to its
client.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from penstock.errors import (
    BadRequest,
    Damaged,
    NotFound,
    PenstockError,
    StaleInstance,
    Trimmed,
    Unavailable,
    Unknown,
)
from penstock.ids import Lsn
from penstock.limits import KIB
from penstock.log.core.sequencer import OldDuplicate, Sequencer, Write, decide_duplicate
from penstock.log.core.tails import Deliver, DurableGroup, Effect, ReadBehind, SubscriptionId, Tails
from penstock.log.group_format import Body
from penstock.log.records import Appended, Flush, Guard, Value
from penstock.log.server.metrics import ServerMetrics
from penstock.log.storage.log_storage import LogStorage
from penstock.log.storage.reader import ReadPiece, find_group, find_time, read_last, read_piece

logger = logging.getLogger(__name__)

#: After this much quiet, a note vouches for the last write (see segment_file.py).
NOTE_DELAY_MS = 100
#: How often quiet readers are told how far was looked.
PROGRESS_MS = 10
#: How often sealed segments are finished, TTL is applied and local copies are dropped.
HOUSEKEEPING_SECONDS = 0.5
READ_THREADS = 4
#: Writes up to this size are done on the event loop while fsyncs take less than INLINE_SECONDS;
#: a slow disk must not stall readers, a fast one should not pay for a thread (docs/decisions/0003).
INLINE_BYTES = 32 * KIB
INLINE_SECONDS = 0.0005

T = TypeVar("T")
Outcome = Appended | PenstockError
#: Called once with the outcome, on the event loop.
Reply = Callable[[Outcome], None]


def wall_ms() -> int:
    """It may jump: append times never follow it back, and nothing waits for it to catch up."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class LogOwner:
    """Appends, reads and housekeeping of one open log. All methods are for the event loop."""

    def __init__(
        self,
        storage: LogStorage,
        sequencer: Sequencer,
        *,
        metrics: ServerMetrics,
        deliver: Callable[[Deliver], None],
        fail_subscription: Callable[[SubscriptionId, PenstockError], None],
        after_event: Callable[[], None],
        on_fatal: Callable[[BaseException], None],
        ttl_seconds: float = 0.0,
        local_bytes_max: int | None = None,
    ) -> None:
        self.storage = storage
        self.sequencer = sequencer
        self.tails = Tails(sequencer.durable_lsn, progress_ms=PROGRESS_MS)
        self.metrics = metrics
        self._deliver = deliver
        self._fail_subscription = fail_subscription
        self._after_event = after_event
        self._on_fatal = on_fatal
        self._ttl_seconds = ttl_seconds
        self._local_bytes_max = local_bytes_max
        self._loop = asyncio.get_running_loop()
        self._writes: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_loop, name="log-writer", daemon=True)
        self._pool = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="log-reader")
        #: Fires at `_timer_at` of the loop's clock, when a write that waits for company is due.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._quiet_since = time.monotonic()
        #: Recent duration of a write with its fsync, smoothed.
        self._fsync_seconds = 0.0
        self._stopping = False
        self._note_lock = threading.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._writer.start()
        self._spawn(self._progress_loop())
        self._spawn(self._note_loop())
        self._spawn(self._housekeeping_loop())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that nobody foresaw to fail ends the owner: half of one must not go on."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.critical("a task failed, the log stops cause=%r", error, exc_info=error)
            self._on_fatal(error)

    async def stop(self, *, clean: bool) -> None:
        """Finish what is in flight and close the files; or, if not clean, just let go."""
        self._stopping = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while clean and not self.sequencer.poisoned and not self.sequencer.is_idle:
            self.pump(flush=True)
            await asyncio.sleep(0.001)
        self._writes.put(None)
        await asyncio.to_thread(self._writer.join)
        await asyncio.to_thread(self._pool.shutdown, wait=True)
        if clean:
            await asyncio.to_thread(self.storage.close)
        else:
            self.storage.abandon()

    # ---- appends

    def append(self, reply: Reply, body: Body, guards: tuple[Guard, ...], flush: Flush) -> None:
        """Order a group; `pump` must follow once all that arrived together is in."""
        if self._stopping:
            reply(Unavailable("the server is stopping"))
            return
        started = time.monotonic()

        def answered(outcome: Outcome) -> None:
            self.metrics.append_duration.observe(time.monotonic() - started)
            reply(outcome)

        self.sequencer.append(answered, body, guards=guards, flush=flush, now_ms=wall_ms())

    def get_metadata(
        self, keys: Callable[[dict[str, Value]], list[tuple[str, Value]]]
    ) -> asyncio.Future[list[tuple[str, Value]]]:
        """A linearizable read: chosen now, told once everything it rests on is durable."""
        found = keys(self.sequencer.state.metadata)
        future: asyncio.Future[list[tuple[str, Value]]] = self._loop.create_future()

        def answered(_: Outcome) -> None:
            if not future.done():
                future.set_result(found)

        self.sequencer.ask(answered)
        self.pump()
        return future

    def pump(self, *, flush: bool = False, inline: bool = True) -> None:
        """Start the next write if one is due, and give the answers that are ready."""
        now_ms = wall_ms()
        write = self.sequencer.take_write(2**62 if flush else now_ms)
        while write is not None:
            slow = write.bytes > INLINE_BYTES or self._fsync_seconds > INLINE_SECONDS
            if slow or not inline:
                self._writes.put(write)
                break
            self._write_inline(write)
            write = self.sequencer.take_write(2**62 if flush else now_ms)
        due_ms = self.sequencer.due_ms()
        if due_ms is not None and write is None:
            self._wake_at(due_ms, now_ms)
        self._give_answers()

    def _wake_at(self, due_ms: int, now_ms: int) -> None:
        """Pump again when the next write is due; a shorter delay does not wait for a longer one."""
        due_at = self._loop.time() + max(due_ms - now_ms, 0) / 1000
        if self._timer is not None:
            if self._timer_at <= due_at:
                return
            self._timer.cancel()
        self._timer_at = due_at
        self._timer = self._loop.call_at(due_at, self._timer_fired)

    def _give_answers(self) -> None:
        for answer in self.sequencer.take_answers():
            outcome = answer.outcome
            reply = answer.cause
            assert callable(reply)
            if isinstance(outcome, OldDuplicate):
                self._spawn(self._answer_old(reply, outcome))
                continue
            self._count(outcome)
            reply(outcome)

    def _timer_fired(self) -> None:
        self._timer = None
        self.pump()
        self._after_event()

    def _count(self, outcome: Outcome) -> None:
        if isinstance(outcome, Appended):
            self.metrics.duplicates_dropped += outcome.duplicate
        elif isinstance(outcome, StaleInstance):
            self.metrics.fenced_appends += 1
        else:
            self.metrics.refused_appends += 1

    async def _answer_old(self, reply: Reply, old: OldDuplicate) -> None:
        """A retry of a group that the producer table has forgotten: find it in the log."""
        try:
            group = await self._run(find_group, self.storage, old.producer, old.first_seq)
            outcome: Outcome = decide_duplicate(old.instance, old.count, group)
        except (NotFound, Trimmed, Damaged) as error:
            # It was durable once, so no refusal: readers may have seen it.
            outcome = Unknown(f"{error}; it may have been trimmed")
        except PenstockError as error:
            outcome = error
        except OSError as error:
            outcome = Unavailable(f"the request failed: {error}")
        self._count(outcome)
        reply(outcome)
        self._after_event()

    def _write_loop(self) -> None:
        while (write := self._writes.get()) is not None:
            started = time.monotonic()
            try:
                with self._note_lock:
                    groups = self.storage.write(write)
            except BaseException as error:
                self._loop.call_soon_threadsafe(self._failed, error)
                return
            seconds = time.monotonic() - started
            self._loop.call_soon_threadsafe(self._written, write, groups, seconds)

    def _write_inline(self, write: Write) -> None:
        started = time.monotonic()
        try:
            with self._note_lock:
                groups = self.storage.write(write)
        except BaseException as error:
            self._failed(error)
            return
        self._take_in(write, groups, time.monotonic() - started)
        self._give_answers()
        self.perform(self.tails.durable(groups, monotonic_ms()))

    def _written(self, write: Write, groups: list[DurableGroup], seconds: float) -> None:
        """The writer thread is done."""
        self._take_in(write, groups, seconds)
        # The next write starts before the answers go out; on its thread, for done here it would
        # reach the readers before this one does.
        self.pump(inline=False)
        self.perform(self.tails.durable(groups, monotonic_ms()))
        self._after_event()

    def _take_in(self, write: Write, groups: list[DurableGroup], seconds: float) -> None:
        metrics = self.metrics
        metrics.fsync_duration.observe(seconds)
        metrics.appended_groups += len(groups)
        metrics.appended_bytes += write.bytes
        metrics.appended_entries += write.end_lsn - write.groups[0].first_lsn
        self._fsync_seconds = 0.8 * self._fsync_seconds + 0.2 * seconds
        self._quiet_since = time.monotonic()
        self.sequencer.written(write)

    def _failed(self, error: BaseException) -> None:
        logger.critical("a write failed, the log stops cause=%r", error)
        self.sequencer.write_failed()
        self._on_fatal(error)

    # ---- reads

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                self.metrics.delivered_bytes += sum(map(len, effect.records))
                self._deliver(effect)
            else:
                self._read_behind(effect)

    def _read_behind(self, effect: ReadBehind) -> None:
        if self._stopping:
            return  # the pool takes nothing more
        future = self._loop.run_in_executor(
            self._pool,
            read_piece,
            self.storage,
            effect.tags,
            effect.start,
            effect.end,
            effect.bytes_max,
        )
        future.add_done_callback(lambda done: self._piece_read(effect.id, done))

    def _piece_read(self, id: SubscriptionId, done: asyncio.Future[ReadPiece]) -> None:
        if done.cancelled() or self._stopping:
            return
        error = done.exception()
        if error is not None:
            self.tails.unsubscribe(id)
            if not isinstance(error, PenstockError):
                logger.error("a read failed cause=%r", error)
                error = Unavailable(f"the read failed: {error}")
            self._fail_subscription(id, error)
        else:
            piece = done.result()
            effects = self.tails.piece_read(id, piece.records, piece.looked_up_to, monotonic_ms())
            self.perform(effects)
        self._after_event()

    async def _run(self, function: Callable[..., T], *arguments: object) -> T:
        return await self._loop.run_in_executor(self._pool, function, *arguments)

    async def read_last(self, tag: str, end: int) -> bytes | None:
        return await self._run(read_last, self.storage, tag, end)

    async def find_time(self, time_ms: int) -> Lsn:
        return await self._run(find_time, self.storage, time_ms)

    async def trim(self, lsn: int) -> Lsn:
        if lsn > self.sequencer.durable_lsn:
            raise BadRequest(f"cannot trim at {lsn}: the tail is {self.sequencer.durable_lsn}")
        point = await self._run(self.storage.trim, lsn)
        logger.info("trimmed trim_point=%d", point)
        return point

    # ---- time

    async def _progress_loop(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_MS / 1000)
            if self.tails.count:
                self.perform(self.tails.tick(monotonic_ms()))
                self._after_event()

    async def _note_loop(self) -> None:
        while True:
            await asyncio.sleep(NOTE_DELAY_MS / 2000)
            quiet = time.monotonic() - self._quiet_since
            if quiet * 1000 >= NOTE_DELAY_MS and self.sequencer.is_idle:
                await self._run(self._note)

    async def _housekeeping_loop(self) -> None:
        """Apart from the notes, which must not wait for a slow upload."""
        while True:
            await self._keep_house()
            await asyncio.sleep(HOUSEKEEPING_SECONDS)

    def _note(self) -> None:
        with self._note_lock:
            try:
                self.storage.note()
            except PenstockError:
                pass
            except OSError as error:
                self._loop.call_soon_threadsafe(self._failed, error)

    async def _keep_house(self) -> None:
        try:
            for segment in self.storage.unfinished():
                try:
                    await self._run(self.storage.finish_sealed, segment)
                except Damaged as error:
                    # The later ones must still get their snapshots, and the TTL its turn.
                    logger.error("cannot finish a segment segment=%d cause=%s", segment, error)
            if self._ttl_seconds:
                before_ms = wall_ms() - int(self._ttl_seconds * 1000)
                lsn = self.storage.expired_lsn(before_ms)
                if lsn > self.storage.manifest.trim_point:
                    await self.trim(lsn)
            if self._local_bytes_max is not None:
                await self._run(self.storage.cool, self._local_bytes_max)
        except (PenstockError, OSError) as error:
            # Nothing acknowledged depends on housekeeping: say so and try again.
            logger.error("housekeeping failed, will be tried again cause=%r", error)
