"""A copy of one task's state, kept up to date from the log: what an instance of it resumes with.

Owns the way from nothing to the state at a marker: the newest checkpoint that can be read, then the
committed changes after it, in log order. A store that is damaged or away stops nobody whose changes
are all in the log. `restore` goes that way once, up to the task's last
marker. A standby goes it while the task runs elsewhere, and then stays beside it by tailing its
changes, so that whoever takes the task over begins at once, however large the state is. The log
carries the changes, whatever the number of copies (Rhino 4.2 has a chain of workers for that).

Law (I11, R33): when a copy has reached a marker, it is the fold of all changes that this marker and
those before it commit, and of nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from penstock.errors import Damaged, PenstockError, StaleInstance, Trimmed, Unavailable
from penstock.ids import Lsn
from penstock.log.client.client import AsyncLog
from penstock.log.records import Entry, Kind
from penstock.protocol.markers import Marker, Origin, decode_marker
from penstock.protocol.names import TaskId
from penstock.protocol.resume import ChangeFold
from penstock.runtime.inheritance import Predecessor, inherited
from penstock.runtime.task_core import TaskCore, check_marker
from penstock.state.api import Change
from penstock.state.changelog import decode_changes
from penstock.state.checkpoint_store import CheckpointStore
from penstock.state.memory import MemoryState
from penstock.state.stores.api import Loaded, Reference, StateStore

logger = logging.getLogger(__name__)

#: Rows of a checkpoint that are applied at once; and of a copy that nobody waits for.
ROWS_AT_ONCE = 32_768
ROWS_BESIDE = 4_096
#: A copy that nobody waits for works so long at once, and then lets others work for as long.
TURN_SECONDS = 0.005
#: How often a standby looks how far its task has committed.
LOOK_SECONDS = 0.25
#: A standby that needed longer than this to catch up with what was committed is not ready.
READY_SECONDS = 1.0
#: How long a task waits for its standby before it goes to the store instead.
REACH_SECONDS = 10.0

#: A task's core, or what an heir needs of a predecessor.
T = TypeVar("T", TaskCore, Predecessor)


class StateCopy(Generic[T]):
    """The state of a task in a core that has not begun. Used once: restored, or followed."""

    def __init__(
        self,
        log: AsyncLog,
        core: T,
        store: StateStore | None,
        ancestors: dict[str, Predecessor] | None = None,
        turn: asyncio.Lock | None = None,
        lazy: MemoryState | None = None,
    ) -> None:
        """`ancestors`: whose states were built already, for the same heir; and if there are several
        who may build them, `turn` is for one at a time. `lazy`: the core's own state, if rows of
        its tables may be left in the files of the checkpoint.
        """
        self._lazy = lazy
        self._log = log
        self.core: T = core
        self._store = store
        self._ancestors = {} if ancestors is None else ancestors
        self._turn = turn
        self._fold = ChangeFold()
        #: The last marker that was reached.
        self.reached: Lsn | None = None
        #: Why a checkpoint could not be looked at: it may be there all the same.
        self._unreached: Unavailable | None = None
        #: Whether somebody waits for it: else it leaves half of the time to tasks that run here.
        self.hurries = True
        self._began = 0.0

    async def keep(self, on_step: Callable[[], None]) -> None:
        """Up to the task's last marker, and from there on beside the task, for ever."""
        self.hurries = False
        last = await self._log.read_last(self.core.task.marker_tag)
        marker = None if last is None else decode_marker(last.payload)
        if marker is not None:
            check_marker(marker, self.core.task)
        await self.follow(await self._begin(last, marker), on_step=on_step)

    async def _begin(self, last: Entry | None, marker: Marker | None) -> Lsn | None:
        """Where it goes on from. A task without state, and without predecessors that had some, may
        have run for days: there is nothing in what it has committed."""
        if last is None or marker is None or marker.has_state:
            return await self.load(marker)
        self.reached = last.lsn
        return last.lsn

    async def restore(self, last: Entry) -> None:
        """Up to the task's last marker."""
        base = await self.load(decode_marker(last.payload))
        await self.follow(base, end=Lsn(last.lsn + 1))
        if self.reached is None:
            # Even the last marker was trimmed since we read it: a later instance has gone on.
            raise StaleInstance(f"task {self.core.task} has a successor of this instance")

    async def _inherit(self, origins: Sequence[Origin]) -> None:
        """Each ancestor is built once: those of a task that was rescaled often share theirs."""
        found = [one for one in origins if one.needs_from is not None]
        async with self._turn or nullcontext():
            for origin in found:
                if origin.task not in self._ancestors:
                    self._ancestors[origin.task] = await self._build(origin)
        predecessors = [self._ancestors[origin.task] for origin in found]
        await self._apply_in_turns(
            inherited(self.core.state, self.core.stages, predecessors), inherits=True
        )

    async def _build(self, origin: Origin) -> Predecessor:
        one = self.core.predecessor(origin)
        tags, start = [one.task.marker_tag], origin.lsn
        try:
            (last,) = await self._log.read(tags, start=start, end=Lsn(start + 1))
            copy = StateCopy(self._log, one, self._store, self._ancestors)
            copy.hurries = self.hurries
            await copy.restore(last)
        except Trimmed as error:
            raise self._lost(f"the state of its predecessor {one.task} was") from error
        return one

    async def load(self, marker: Marker | None) -> Lsn | None:
        """The marker at which the newest readable checkpoint was taken, and its state applied.

        None: whatever became of them, the log is asked for all changes.
        """
        named = () if marker is None or self._store is None else marker.checkpoints
        away: set[object] = set()
        for json in named:
            if "store" in json and json["store"] in away:
                continue  # a store of rows has one state: to ask again is to wait again
            try:
                loaded = await asyncio.to_thread(self._load, json)
            except (Damaged, Unavailable) as error:
                logger.warning("task=%s checkpoint unusable cause=%s", self.core.task, error)
                if isinstance(error, Unavailable):
                    self._unreached = error
                    away.add(json.get("store"))
                continue
            if self._lazy is not None:
                self._lazy.lend(loaded.unread)
            await self._apply_in_turns(loaded.changes)
            self.reached = Lsn(loaded.cut)
            return self.reached
        return None

    def _load(self, reference: Reference) -> Loaded:
        store = self._store
        assert store is not None
        if self._lazy is not None and isinstance(store, CheckpointStore) and store.is_near:
            return store.load_lazily(reference, self._lazy.tables_that_may_wait())
        return store.load(reference, self.core.wanted)

    async def _apply_in_turns(self, changes: Iterable[Change], *, inherits: bool = False) -> None:
        """Other tasks of the process go on meanwhile: a large state takes seconds.

        What is inherited is in no checkpoint of the task yet.
        """
        at_once = ROWS_AT_ONCE if self.hurries else ROWS_BESIDE
        for change in changes:
            for first in range(0, max(1, change.rows.num_rows), at_once):
                piece = change.rows.slice(first, at_once)
                size = piece.nbytes if inherits else 0
                self._began = asyncio.get_running_loop().time()
                self.core.restored([Change(change.name, change.kind, piece)], size)
                await self._rest()

    async def _rest(self) -> None:
        """Let others work."""
        worked = asyncio.get_running_loop().time() - self._began
        await asyncio.sleep(0 if self.hurries else worked)

    async def follow(
        self, base: Lsn | None, end: Lsn | None = None, on_step: Callable[[], None] | None = None
    ) -> None:
        """Apply what was committed after the checkpoint; without an end: for ever."""
        while True:
            start = (await self._log.bounds()).trim_point if base is None else Lsn(base + 1)
            try:
                return await self._follow(base, start, end, on_step)
            except Trimmed:
                if base is not None or self.reached is not None:
                    raise
                self._fold = ChangeFold()  # the log was trimmed as we began: nothing was needed

    async def _follow(
        self, base: Lsn | None, start: Lsn, end: Lsn | None, on_step: Callable[[], None] | None
    ) -> None:
        task = self.core.task
        tags, now = (task.marker_tag, task.change_tag), asyncio.get_running_loop().time
        async with self._log.tail(tags, start=start, end=end) as reader:
            async for batch in reader:
                self._began = now()
                for entry in batch.entries:
                    if base is None and self.reached is None and entry.kind is Kind.MARKER:
                        # Later ones may name no predecessors any more: the first one does.
                        first = decode_marker(entry.payload)
                        await self._inherit(first.origins if first.begins_a_task else ())
                        self._began = now()
                    marker = self._apply(entry)
                    if marker is not None and end is None:
                        self.core.passed(marker)
                    if now() - self._began > TURN_SECONDS:
                        await self._rest()
                        self._began = now()
                if on_step is not None:
                    on_step()

    def _apply(self, entry: Entry) -> Marker | None:
        """The marker that was reached with it."""
        for change in self._fold.step(entry):
            self.core.restored(decode_changes(change.payload), len(change.payload))
        if entry.kind is not Kind.MARKER:
            return None
        marker = self._fold.marker
        assert marker is not None
        if self.reached is None:
            self._check_first(marker)
        self.reached = entry.lsn
        return marker

    def _check_first(self, marker: Marker) -> None:
        if marker.number != 0 and marker.has_state:
            raise self._lost(f"its changes before its marker {marker.number} were")

    def _lost(self, what: str) -> PenstockError:
        """Unknown is not no: while a checkpoint cannot be looked at, nothing is lost."""
        if self._unreached is not None:
            return Unavailable(
                f"task {self.core.task} needs a checkpoint, since {what} trimmed: {self._unreached}"
            )
        return Damaged(
            f"task {self.core.task} has no checkpoint that can be read, and {what} trimmed: start "
            "the query with restart=True, to compute everything again"
        )


class Kept(Protocol):
    """What a standby keeps: the core of a task, and the copies that fill it."""

    @property
    def core(self) -> TaskCore: ...

    @property
    def parts(self) -> Sequence[StateCopy[Any]]: ...

    def goals(self, last: Entry) -> dict[TaskId, Lsn] | None:
        """By task that is followed, the marker at which the copy is the state that the core has at
        its last marker; None: it never is."""

    def finish(self, last: Entry) -> None:
        """All parts are there: what is left to be done before the core begins."""


class TaskCopy:
    """The copy of a task that runs elsewhere: its own changes are all that it needs."""

    def __init__(self, log: AsyncLog, core: TaskCore, store: StateStore | None) -> None:
        self.core = core
        self.parts = (StateCopy(log, core, store),)

    def goals(self, last: Entry) -> dict[TaskId, Lsn] | None:
        return {self.core.task: last.lsn}

    def finish(self, last: Entry) -> None:
        """Nothing."""


class Standby:
    """Stays beside tasks that run, for the one that is to go on with their state, until `take` or
    `close`."""

    def __init__(self, log: AsyncLog, task: TaskId, make_copy: Callable[[], Kept]) -> None:
        self._log = log
        self._task = task
        self._make_copy = make_copy
        self._copy: Kept | None = None
        self._stepped = asyncio.Event()
        #: Since when it catches up with what was committed then; None: it has.
        self._behind_since: float | None = asyncio.get_running_loop().time()
        #: How long the last time took that it caught up; it never has with this copy: infinite.
        self._behind_seconds = inf
        self._following = asyncio.ensure_future(self._follow())
        self._loops = (self._following, asyncio.ensure_future(self._look()))
        for loop in self._loops:
            loop.add_done_callback(self._ended)

    async def _follow(self) -> None:
        """Anew if what it was to read is gone: there is a later checkpoint, or will be."""
        while True:
            self._behind_seconds = inf
            try:
                self._copy = self._make_copy()
                async with asyncio.TaskGroup() as group:
                    for part in self._copy.parts:
                        group.create_task(part.keep(self._stepped.set))
            except* (PenstockError, OSError) as errors:
                logger.info("task=%s standby begins anew: %s", self._task, errors.exceptions[0])
                self._copy = None
                await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            asked, copy = now(), self._copy
            if copy is not None:
                tasks = [part.core.task for part in copy.parts]
                last = await asyncio.gather(*(self._log.read_last(t.marker_tag) for t in tasks))
                found = zip(tasks, last, strict=True)
                self._behind_since = asked
                await self._until({task: one.lsn for task, one in found if one is not None})
                self._behind_since, self._behind_seconds = None, now() - asked
            await asyncio.sleep(LOOK_SECONDS)

    async def _until(self, goals: Mapping[TaskId, Lsn]) -> None:
        while not self._has_reached(goals):
            self._stepped.clear()
            await self._stepped.wait()

    def _has_reached(self, goals: Mapping[TaskId, Lsn]) -> bool:
        if self._copy is None:
            return False
        reached = {part.core.task: part.reached for part in self._copy.parts}
        return all((at := reached[task]) is not None and at >= lsn for task, lsn in goals.items())

    @property
    def has_caught_up(self) -> bool:
        """Whether its copy has been up to date once."""
        return self._behind_seconds < inf and not self._has_ended

    def report(self) -> dict[str, Any]:
        """How far it is behind its task, for the worker's next beat."""
        seconds = self._behind_seconds
        if self._behind_since is not None:
            seconds = max(seconds, asyncio.get_running_loop().time() - self._behind_since)
        rows, size = (0, 0) if self._copy is None else self._copy.core.state.size()
        is_ready = seconds < READY_SECONDS and not self._has_ended
        return {
            "lag_ms": None if seconds == inf else round(seconds * 1000, 1),
            "is_ready": is_ready,
            "state_rows": rows,
            "state_bytes": size,
        }

    @property
    def _has_ended(self) -> bool:
        return any(loop.done() for loop in self._loops)

    async def take(self, last: Entry) -> TaskCore | None:
        """The core, with the state at the task's last marker; None if it cannot get there.

        Nobody commits any more: the task was claimed before its last marker was read, and those
        whose successor it is have ended before there was one.
        """
        copy = self._copy
        goals = None if copy is None else copy.goals(last)
        if copy is None or goals is None:
            self.close()
            return None
        for part in copy.parts:
            part.hurries = True
        waiting = asyncio.ensure_future(self._until(goals))
        try:
            await asyncio.wait(
                {waiting, self._following},
                timeout=REACH_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            copy = self._copy
            if copy is None or not self._has_reached(goals):
                return None
            copy.finish(last)
            return copy.core
        finally:
            waiting.cancel()
            self.close()

    def close(self) -> None:
        for loop in self._loops:
            loop.cancel()
        self._copy = None  # it may be large

    def _ended(self, loop: asyncio.Future[None]) -> None:
        """It is not ready any more; its task does without it."""
        error = None if loop.cancelled() else loop.exception()
        if error is not None:
            self.close()
            unexpected = None if isinstance(error, PenstockError) else error
            logger.warning("task=%s standby ended: %s", self._task, error, exc_info=unexpected)
