"""The shell of one task: resume from the log, read, work, append, and say how it stands.

Owns two loops over one core: one takes entries in and works on them, the other commits, again as
soon as its committer (commit_protocol.py) is ready for it. They share an event loop, so what a
commit captures is what was worked on, whole. Ends by raising: Fenced (another instance owns the
task), Retryable or Unknown (another instance may do better), anything else (the query cannot go
on).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Self

from penstock.errors import Retryable, Trimmed
from penstock.ids import Lsn
from penstock.log.client.appender import AsyncAppender
from penstock.log.client.client import AsyncLog
from penstock.log.records import Entry
from penstock.protocol.committed import Marked, read_entries
from penstock.protocol.markers import Marker, decode_marker
from penstock.protocol.names import TaskId
from penstock.runtime.checkpoint_counts import CheckpointCounts
from penstock.runtime.checkpointer import Checkpointer
from penstock.runtime.commit import Commit
from penstock.runtime.commit_protocol import Cohort, Committer
from penstock.runtime.histogram import Buckets, RecentHistogram
from penstock.runtime.host import THIS_PROCESS, Host
from penstock.runtime.meter import Meter
from penstock.runtime.spec import QuerySpec
from penstock.runtime.standby import ROWS_BESIDE, Standby, StateCopy
from penstock.runtime.task_core import Poisoned, TaskCore, check_marker
from penstock.state.api import Change
from penstock.state.checkpoint_store import CheckpointRef, CheckpointStore
from penstock.state.memory_table import MemoryTable
from penstock.state.stores.api import StateStore
from penstock.state.unread import Unread, UnreadLost

logger = logging.getLogger(__name__)

#: How often operators are told the time while no input comes.
TICK_SECONDS = 0.1
#: How often a task without work says how far it has looked, so that the log can be trimmed.
REFRESH_SECONDS = 10.0
#: Commits on their way whose beginning is remembered.
CAPTURED_MAX = 256


class Task:
    """One instance of one task, from `run` to its end. Make one with `Task.open`."""

    def __init__(
        self,
        log: AsyncLog,
        spec: QuerySpec,
        task: TaskId,
        instance: int,
        *,
        appender: AsyncAppender,
        store: StateStore | None,
        cohort: Cohort | None,
        host: Host,
        standby: Standby | None = None,
    ) -> None:
        self.log = log
        self.spec = spec
        self.cohort = cohort
        self.host = host
        self.task = task
        self.instance = instance
        self.appender = appender
        self._store = store
        self._standby = standby
        #: When the core was made; a task that looks for rows to blame gets another.
        self._began = self._now()
        self.core = self._make_core()
        self._committer: Committer = spec.settings.protocol.committer(self)
        self._due = asyncio.Event()
        self._committed = asyncio.Event()
        #: Ends the pause between two commits.
        self._hurry = asyncio.Event()
        self._is_draining = False
        self._is_halting = False
        self.last_marker: Marker | None = None
        self.checkpoint_counts = CheckpointCounts()
        self.checkpointer = (
            None if store is None else Checkpointer(self, store, spec.fingerprint, self._due.set)
        )
        self._is_appending = False
        #: When a commit was captured, by its number, until it is visible.
        self._captured: dict[int, float] = {}
        #: Pieces of commits on their way beside the loops; one that fails ends the task.
        self._running_beside: set[asyncio.Future[None]] = set()
        self._failures_beside: asyncio.Queue[BaseException] = asyncio.Queue()
        #: Whether rows of its checkpoint may be left in files until they are wanted.
        self._is_lazy = True
        #: Whether its state was there when it was asked to run.
        self.is_from_standby = False
        self.commit_ms = RecentHistogram()
        self.visible_ms = RecentHistogram()
        #: The same since the instance began.
        self._visible = Buckets()
        self._committed_at_ms: int | None = None
        self.resume_ms = 0.0
        self.meter = Meter(host.monotonic)

    @classmethod
    async def open(
        cls,
        log: AsyncLog,
        spec: QuerySpec,
        task: TaskId,
        instance: int,
        cohort: Cohort | None = None,
        host: Host = THIS_PROCESS,
        standby: Standby | None = None,
    ) -> Self:
        """Adopt an instance that was claimed; whatever is wrong with the plan is told here.

        With a standby of the task that was kept here, it begins with that one's state.
        """
        appender = await log.adopt(task.producer, instance)
        try:
            uri = spec.settings.checkpoints
            store = None if uri is None else host.open_checkpoints(uri, log.log_id)
            return cls(
                log, spec, task, instance,
                appender=appender, store=store, cohort=cohort, host=host, standby=standby,
            )  # fmt: skip
        except BaseException:
            log.dismiss(appender)
            raise

    def _make_core(self) -> TaskCore:
        room = self.host.room(self.spec.settings.state_memory)
        core = TaskCore(self.spec, self.task, self.instance, self.host.now_ms, room)
        core.run = None if self.cohort is None else self.cohort.run
        return core

    async def run(self) -> None:
        """Until `drain` has been obeyed, or an error."""
        careful_upto: Lsn | None = None
        try:
            while True:
                try:
                    await self._resume(careful_upto)
                    if not self.core.is_cut:
                        await self._run_loops()
                    return
                except UnreadLost as lost:
                    self._read_all_first(lost)
                except Poisoned as poison:
                    if isinstance(poison.cause, UnreadLost):
                        self._read_all_first(poison.cause)
                        continue
                    if not self._can_bury(poison, careful_upto):
                        raise poison.cause from poison.cause.__cause__  # a user's traceback
                    careful_upto = poison.lsn
                    self._begin_anew()
        finally:
            self.meter.is_running = False
            if self.checkpointer is not None:
                self.checkpointer.close()
            if self._store is not None:
                self._store.close()  # the next instance, here or elsewhere, opens its own
            for work in list(self._running_beside):
                work.cancel()
            self.log.dismiss(self.appender)

    def _read_all_first(self, lost: UnreadLost) -> None:
        """Rows that were left unread cannot be read: begin again, with all read before.

        That finds what is damaged, and uses another checkpoint, or the log.
        """
        assert self._is_lazy, "nothing was left unread"
        logger.warning("task=%s resumes again cause=%s", self.task, lost)
        self._is_lazy = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        """With another core; which names no checkpoint before it has read those that are named."""
        if self.checkpointer is not None:
            self.checkpointer.close()
        self._began = self._now()
        self.core = self._make_core()

    def _can_bury(self, poison: Poisoned, careful_upto: Lsn | None) -> bool:
        """Whether looking for the rows to blame may help: asked to, and not tried there yet."""
        if self.spec.settings.dead_letter is None or poison.lsn is None:
            return False
        if not self.spec.settings.protocol.logs_changes:
            return False  # it cannot resume alone
        if isinstance(poison.cause, Retryable):
            return False  # no row is to blame for a disk that is full
        return careful_upto is None or poison.lsn > careful_upto

    def _now(self) -> float:
        """Seconds, on the event loop's clock."""
        return asyncio.get_running_loop().time()

    def drain(self) -> None:
        """Take nothing more in, commit what was worked on, and end."""
        self._is_draining = True
        self._due.set()
        self._hurry.set()

    # -- resume

    async def _resume(self, careful_upto: Lsn | None) -> None:
        """State and position of the last marker. The claim came before: no other can follow."""
        await self._committer.settle()
        last = await self.log.read_last(self.task.marker_tag)
        marker: Marker | None = None
        if last is not None:
            marker = decode_marker(last.payload)
            check_marker(marker, self.task)
            is_restored = await self._committer.restore(marker)
            if marker.has_state and not is_restored:
                # If it has none, even its first markers may have been trimmed.
                await self._restore(last)
        if self._standby is not None:
            self._standby.close()  # there is no state to take
            self._standby = None
        self.last_marker = marker
        if self.checkpointer is not None:
            self.checkpointer.begin(None if last is None else last.lsn)
        self.core.begin(marker, careful_upto=careful_upto)
        self.resume_ms = (self._now() - self._began) * 1000
        logger.info(
            "task=%s instance=%d resumed position=%d ms=%.1f",
            self.task, self.instance, self.core.position, self.resume_ms,
        )  # fmt: skip

    async def _restore(self, last: Entry) -> None:
        """The state at the last marker: the standby's, or from checkpoint and changes."""
        standby, self._standby = self._standby, None
        core = None if standby is None else await standby.take(last)
        self.is_from_standby = core is not None
        if core is not None:
            core.instance, core.run = self.instance, self.core.run
            self.core = core
        else:
            lazy = self.core.state if self._is_lazy else None
            await StateCopy(self.log, self.core, self._store, lazy=lazy).restore(last)

    # -- run

    async def _run_loops(self) -> None:
        self.meter.is_running = True
        self._is_halting = False
        self.meter.unblock()
        reading = asyncio.ensure_future(self._read())
        committing = asyncio.ensure_future(self._commit_again_and_again())
        ticking = asyncio.ensure_future(self._tick())
        watching = asyncio.ensure_future(self._watch_beside())
        bringing = asyncio.ensure_future(self._bring_rows())
        loops = {reading, committing, ticking, watching, bringing}
        try:
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for loop in done:
                if not loop.cancelled():
                    loop.exception()  # it is raised below, once it is known what was appended
            # What was captured is appended to its end: its outcome must be known before this
            # instance resumes, for nothing would fence it.
            self._is_halting = True
            self._due.set()
            self._hurry.set()
            await asyncio.wait({committing})
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
        for loop in (committing, watching, bringing, reading, ticking):
            if loop.done() and not loop.cancelled():
                loop.result()

    async def _watch_beside(self) -> None:
        """What fails beside the loops ends the task as a failure of theirs does."""
        raise await self._failures_beside.get()

    async def _bring_rows(self) -> None:
        """What was left in the files of the checkpoint."""
        try:
            for table in self.core.state.tables_unread():
                assert table.unread is not None
                await self._bring_rows_of(table, table.unread)
        except BaseException:
            self._is_halting = True  # rows may be here in part: nothing is captured of them
            raise
        await asyncio.Event().wait()

    async def _bring_rows_of(self, table: MemoryTable, unread: Unread) -> None:
        """Read by a thread, one virtual node after the other, and brought in in turns.

        A turn is as long as the task's longest step since the last one: batches that read files
        take long, and would take ever as long if there were but few rows between two of them.
        """
        table.expect(unread, await asyncio.to_thread(table.make_places, unread))
        for node in unread.nodes:
            rows = await asyncio.to_thread(unread.read_node, node)
            first, count = 0, 0 if rows is None else rows.num_rows
            while first < count:
                assert rows is not None
                began, seconds = self._now(), self.meter.take_longest()
                self.meter.begin()
                while first < count:
                    table.bring(unread, rows.slice(first, ROWS_BESIDE))
                    first += ROWS_BESIDE
                    if self._now() - began >= seconds:
                        break
                self.meter.end()
                self.meter.take_longest()  # that was this turn
                await asyncio.sleep(self._now() - began)  # half of the time is for batches
            table.brought(unread, node)

    async def _read(self) -> None:
        core = self.core
        self._due.set()
        committed = read_entries(core.read_from)
        async with self.log.tail(core.tags, start=core.read_from) as reader:
            async for batch in reader:
                if self._is_draining:
                    await asyncio.Event().wait()
                self.meter.begin()
                for entry in batch.entries:
                    counted = committed.take(entry)
                    if isinstance(counted, Marked):
                        if not core.is_input(entry):
                            counted.leave_out()
                        await self._fetch(counted)
                    if self._committer.admits(entry, counted):
                        core.take(entry, counted)
                    if core.is_cut:
                        core.work()
                        self.drain()
                        self.meter.end()
                        await asyncio.Event().wait()
                core.looked(batch.looked_up_to)
                if not batch.entries:
                    self.meter.end()
                    continue
                core.work()
                if core.has_work:
                    self._due.set()
                self.meter.end()
                while core.is_full:
                    self._hurry.set()
                    self._committed.clear()
                    self.meter.block()
                    await self._committed.wait()
                    self.meter.unblock()

    async def _fetch(self, marked: Marked[Entry]) -> None:
        tags = self.core.tags
        for named in marked.missing:
            self.meter.end()  # of the batch that is being taken in
            try:
                entries = await self.log.read(tags, start=named.first_lsn, end=named.end)
            except Trimmed as error:
                raise Trimmed(
                    f"the commit at LSN {marked.lsn} has lost rows from LSN {named.first_lsn} on "
                    f"to a trim: {error}; start the query with restart=True and "
                    "fail_on_data_loss=False, which begins after it"
                ) from error
            self.meter.begin()
            marked.supply(named, entries)

    async def _tick(self) -> None:
        refreshed = self._now()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self._is_draining:
                continue
            self.meter.begin()
            self.core.work()
            self.meter.end()
            if self.core.has_work:
                self._due.set()
            if self._now() - refreshed > REFRESH_SECONDS:
                refreshed = self._now()
                self.core.refresh()
                self._due.set()

    # -- commit

    async def _commit_again_and_again(self) -> None:
        interval = self.spec.settings.commit_interval_ms / 1000
        while True:
            await self._due.wait()
            self._due.clear()
            self._hurry.clear()
            if self._is_halting:
                await self._committer.finish()
                return
            started = self._now()
            self.meter.begin()
            commit = self.core.take_commit()
            self.meter.end()
            if commit is not None:
                self._remember_captured(commit, started)
                self._is_appending = True
                await self._committer.commit(commit)
                self._is_appending = False
            self._committed.set()
            if self._is_draining and not self.core.has_work:
                await self._committer.finish()
                return
            if self.core.has_work:
                self._due.set()
            if interval and commit is not None and not self._is_draining:
                await self._pause(started + interval - self._now())

    async def _pause(self, seconds: float) -> None:
        """The floor between two commits; cut short if the task is to end or holds too much."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._hurry.wait()
        except TimeoutError:
            pass

    def _remember_captured(self, commit: Commit, started: float) -> None:
        self._captured[commit.marker.number] = started
        while len(self._captured) > CAPTURED_MAX:  # not every protocol tells what is visible when
            del self._captured[next(iter(self._captured))]

    # -- for the committer

    def durable(self, commit: Commit) -> None:
        """The commit is in the log, and will be visible."""
        self.last_marker = commit.marker
        started = self._captured.pop(commit.marker.number, None)
        if started is not None:
            self.commit_ms.add((self._now() - started) * 1000)

    def visible(self, commit: Commit, lsn: Lsn) -> None:
        """Readers see what the commit holds."""
        self.durable(commit)
        self._committed_at_ms = now_ms = self.host.now_ms()
        if commit.marker.origin_ms is not None:
            ms = max(0, now_ms - commit.marker.origin_ms)
            self.visible_ms.add(ms)
            self._visible.add(ms)
        if self.checkpointer is not None:
            self.checkpointer.committed(commit, lsn)

    def capture_all(self, position: Lsn) -> Commit | None:
        commit = self.core.take_all(position)
        if commit is not None:
            self._remember_captured(commit, self._now())
        return commit

    def beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        future = asyncio.ensure_future(work)

        def ended(done: asyncio.Future[None]) -> None:
            self._running_beside.discard(done)
            error = None if done.cancelled() else done.exception()
            if error is not None:
                self._failures_beside.put_nowait(error)

        self._running_beside.add(future)
        future.add_done_callback(ended)
        return future

    async def write_state(self, commit: Commit, lsn: Lsn) -> CheckpointRef:
        assert isinstance(self._store, CheckpointStore) and commit.frozen is not None
        return await asyncio.to_thread(
            self._store.write,
            str(self.task),
            marker_lsn=lsn,
            instance=self.instance,
            fingerprint=self.spec.fingerprint,
            parts=self.core.state.parts(),
            changes=commit.frozen,
        )

    async def read_state(self, reference: CheckpointRef) -> Sequence[Change]:
        assert isinstance(self._store, CheckpointStore)
        return await asyncio.to_thread(self._store.read, reference)

    async def sweep_states(self, keep_from: Lsn) -> None:
        assert isinstance(self._store, CheckpointStore)
        await asyncio.to_thread(self._store.sweep_before, str(self.task), keep_from)

    # -- report

    def _settled_position(self) -> int | None:
        """Nothing below is left to do: what a marker says, or how far was looked if that is all."""
        if self.last_marker is None:
            return None
        is_appending = self._is_appending or bool(self._running_beside)
        is_idle = not is_appending and not self.core.has_work
        return self.core.position if is_idle else self.last_marker.position

    def report(self) -> dict[str, Any]:
        """How it stands, for the worker's next beat."""
        core, marker = self.core, self.last_marker
        state_rows, state_bytes = core.state.size()
        is_last = self.spec.query.stages[self.task.stage].keys is None
        return {
            "instance": self.instance,
            "reported_at_ms": self.host.now_ms(),
            "position": core.position,
            "committed_position": None if marker is None else marker.position,
            "settled_position": self._settled_position(),
            "commits_ever": -1 if marker is None else marker.number,
            "committed_at_ms": self._committed_at_ms,
            "watermark_ms": None if marker is None else marker.watermark_ms,
            "rows_in": 0 if marker is None else marker.rows_in,
            "rows_out": 0 if marker is None else marker.rows_out,
            "rows_late": core.stats.rows_late,
            "rows_waiting": core.rows_waiting,
            "source_bytes": core.stats.source_bytes,
            "dead_letters": core.stats.dead_letters,
            "virtual_nodes": len(self.spec.owned(self.task)),
            "inputs": core.report_inputs(),
            **core.report_nodes(),
            "state_rows": state_rows,
            "state_bytes": state_bytes,
            "state_rows_unread": core.state.rows_unread(),
            **core.state.room.report(),
            "checkpoint_lsn": core.checkpoint_lsn,
            **self.checkpoint_counts.report(),
            "resume_ms": round(self.resume_ms, 1),
            "from_standby": self.is_from_standby,
            "commit_ms": self.commit_ms.recent(self._now()).to_json(),
            "visible_ms": self.visible_ms.recent(self._now()).to_json(),
            **(self._tell_visible() if is_last else {}),
            **self.meter.report(),
        }

    def _tell_visible(self) -> dict[str, Any]:
        """Of the stage whose commits readers of the result see."""
        visible = self._visible
        return {
            "visible_counts": list(visible.counts),
            "visible_sum_ms": round(visible.sum_ms, 3),
        }
