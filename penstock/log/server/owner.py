"""The owner of one log's files: runs the pure cores on real time, real files and real readers.

Owns the threads: the event loop (all decisions), one writer (serving/group_commit.py), and a small
pool for reads and housekeeping. Order is sequencer.py's, delivery is tails.py's, files are
storage/'s.
Law: a failed write ends the owner: what was in flight is never answered, hence unknown to its
client.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from penstock.errors import BadRequest, Damaged, PenstockError
from penstock.ids import Lsn
from penstock.log.core.sequencer import Sequencer, Write
from penstock.log.core.tails import DurableGroup
from penstock.log.serving.group_commit import (
    INLINE_BYTES,
    NOTE_DELAY_MS,
    Apart,
    GroupCommit,
    WriterThread,
)
from penstock.log.serving.served_log import (
    PROGRESS_MS,
    SequencedLog,
    Surroundings,
    log_status,
)
from penstock.log.storage.log_storage import LogStorage
from penstock.wire import messages as m

logger = logging.getLogger(__name__)

#: How often sealed segments are finished, TTL is applied and local copies are dropped.
HOUSEKEEPING_SECONDS = 0.5
READ_THREADS = 4

T = TypeVar("T")


class LogOwner(SequencedLog):
    """Appends, reads and housekeeping of one open log. All methods are for the event loop."""

    def __init__(
        self,
        storage: LogStorage,
        sequencer: Sequencer,
        around: Surroundings,
        *,
        ttl_seconds: float = 0.0,
        local_bytes_max: int | None = None,
        apart: Apart | None = None,
        pool: Executor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`apart`, `pool`, `clock`: where a simulation writes and reads, and what measures it."""
        super().__init__(around, sequencer)
        self.storage = storage
        self._ttl_seconds = ttl_seconds
        self._local_bytes_max = local_bytes_max
        self._pool = pool or ThreadPoolExecutor(READ_THREADS, thread_name_prefix="log-reader")
        #: None stands for a note that vouches for all before it.
        self._commit: GroupCommit[Write | None, list[DurableGroup]] = GroupCommit(
            take=self._take_write,
            is_small=_is_small,
            perform=self._perform_write,
            written=self._written,
            failed=self._failed,
            apart=WriterThread("log-writer") if apart is None else apart,
            clock=clock,
        )

    def start(self) -> None:
        self._tasks.spawn(self._progress_loop())
        self._tasks.spawn(self._note_loop())
        self._tasks.spawn(self._housekeeping_loop())

    async def stop(self, *, clean: bool) -> None:
        """Finish what is in flight and close the files; or, if not clean, just let go."""
        await self._cancel_tasks()
        while clean and not self.sequencer.poisoned and not self.sequencer.is_idle:
            self.pump()
            await asyncio.sleep(0.001)
        await self._commit.close()
        await asyncio.to_thread(self._pool.shutdown, wait=True)
        if clean:
            await asyncio.to_thread(self.storage.close)
        else:
            self.storage.abandon()

    def welcome(self) -> m.Welcome:
        manifest = self.storage.manifest
        return m.Welcome(manifest.log_id, manifest.epoch, self.durable_lsn, manifest.trim_point)

    def status(self) -> dict[str, object]:
        manifest = self.storage.manifest
        segments = [
            {
                "id": info.id,
                "base_lsn": info.base_lsn,
                "end_lsn": info.end_lsn if info.sealed else self.durable_lsn,
                "bytes": info.bytes if info.sealed else self.storage.open_bytes,
                "sealed": info.sealed,
                "copies": [place for place in ("local", "cold") if getattr(info, place)],
            }
            for info in manifest.segments
        ]
        return super().status() | log_status(manifest.log_id, manifest.epoch, segments)

    @property
    def trim_point(self) -> Lsn:
        return self.storage.manifest.trim_point

    # ---- writes

    def pump(self, *, inline: bool = True) -> None:
        """Start the next write if one is due, and give the answers that are ready."""
        self._commit.pump(inline=inline)
        if not self._commit.is_busy:
            self._wake_when_due()
        self._give_answers()

    def after_turn(self) -> None:
        self.storage.index_written()

    def _take_write(self) -> Write | None:
        # A log that stops waits for nobody's company.
        return self.sequencer.take_write(2**62 if self._stopping else self.around.wall_ms())

    def _perform_write(self, write: Write | None) -> list[DurableGroup]:
        if write is not None:
            return self.storage.write(write)
        self.storage.note()
        return []

    def _written(
        self, write: Write | None, groups: list[DurableGroup], seconds: float, inline: bool
    ) -> None:
        if write is None:
            self.pump()  # what arrived meanwhile
            self.around.after_pump()
            return
        metrics = self.metrics
        metrics.fsync_duration.observe(seconds)
        metrics.appended_groups += len(groups)
        metrics.appended_bytes += write.bytes
        metrics.appended_entries += write.end_lsn - write.groups[0].first_lsn
        self.sequencer.written(write)
        if inline:
            self._give_answers()
            self.perform(self.tails.durable(groups, self.now_ms()))
        else:
            # The next write starts before the answers go out; on its thread, for done here it would
            # reach the readers before this one does.
            self.pump(inline=False)
            self.perform(self.tails.durable(groups, self.now_ms()))
            self.around.after_pump()

    def _failed(self, error: BaseException) -> None:
        logger.critical("a write failed, the log stops cause=%r", error)
        self.sequencer.write_failed()
        self.around.on_fatal(error)

    # ---- reads

    def _read(self, function: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        return self._loop.run_in_executor(self._pool, function, self.storage, *arguments)

    async def _run(self, function: Callable[..., T], *arguments: object) -> T:
        return await self._loop.run_in_executor(self._pool, function, *arguments)

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
            self.tick()

    async def _note_loop(self) -> None:
        while True:
            await asyncio.sleep(NOTE_DELAY_MS / 2000)
            if self._commit.is_quiet() and self.sequencer.is_idle and self.storage.wants_note:
                self._commit.write_apart(None)

    async def _housekeeping_loop(self) -> None:
        """Apart from the notes, which must not wait for a slow upload."""
        while True:
            await self._keep_house()
            await asyncio.sleep(HOUSEKEEPING_SECONDS)

    async def _keep_house(self) -> None:
        try:
            for segment in self.storage.unfinished():
                try:
                    await self._run(self.storage.finish_sealed, segment)
                except Damaged as error:
                    # The later ones must still get their snapshots, and the TTL its turn.
                    logger.error("cannot finish a segment segment=%d cause=%s", segment, error)
            if self._ttl_seconds:
                before_ms = self.around.wall_ms() - int(self._ttl_seconds * 1000)
                lsn = self.storage.expired_lsn(before_ms)
                if lsn > self.storage.manifest.trim_point:
                    await self.trim(lsn)
            if self._local_bytes_max is not None:
                await self._run(self.storage.cool, self._local_bytes_max)
        except (PenstockError, OSError) as error:
            # Nothing acknowledged depends on housekeeping: say so and try again.
            logger.error("housekeeping failed, will be tried again cause=%r", error)


def _is_small(write: Write | None) -> bool:
    return write is not None and write.bytes <= INLINE_BYTES
