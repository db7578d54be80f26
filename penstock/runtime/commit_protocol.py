"""How what a task captured becomes durable and visible: the one seam between engine and protocol.

Penstock ships one protocol, markers: data, changes and marker in one group (Impeller 3.3). Others
exist only to be measured beside it, and live with the benchmark that does so
(bench/penstock_bench/protocols). What the engine must know of a protocol, it asks here:

    CommitProtocol  of a query: travels in its spec, and makes the other two
    Committer       of one instance of a task
    Conductor       of one run of the coordinator; markers need none

Everything else is the same for all of them: reading, operators, state, the log, workers. Each
method has the markers' answer as its default. Pure. Law: a protocol decides nothing about content;
it appends what the Commit holds, once, in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from penstock.ids import Lsn
from penstock.log.records import Appended, Entry, NewEntry
from penstock.protocol.committed import Counted
from penstock.protocol.markers import Marker, Range
from penstock.protocol.names import TaskId

if TYPE_CHECKING:  # they use the seam
    from penstock.runtime.commit import Commit
    from penstock.runtime.coordinator_core import CoordinatorCore
    from penstock.runtime.spec import QuerySpec, Settings
    from penstock.runtime.task_core import TaskCore
    from penstock.state.api import Change
    from penstock.state.checkpoint_store import CheckpointRef


@dataclass(frozen=True, slots=True)
class Cohort:
    """The instances of all tasks, as the coordinator announced them."""

    #: Where the announcement stands in the log.
    lsn: Lsn
    #: By task.
    instances: Mapping[str, int]
    #: The coordinator's instance.
    run: int = 0


class Appends(Protocol):
    """The producer of a task or of the coordinator, as its current instance."""

    def append_nowait(self, entries: Sequence[NewEntry]) -> Awaitable[Appended]:
        """Submit; what is submitted first is ordered first."""


class Reads(Protocol):
    """What a protocol asks the log before its task resumes."""

    async def read_last(self, tag: str) -> Entry | None: ...

    async def read(self, tags: Sequence[str], *, start: int, end: int) -> list[Entry]: ...

    async def bounds(self) -> Any: ...


class CommittingTask(Protocol):
    """What a committer may use of its task (task.py)."""

    @property
    def spec(self) -> QuerySpec: ...

    @property
    def task(self) -> TaskId: ...

    @property
    def instance(self) -> int: ...

    @property
    def cohort(self) -> Cohort | None: ...

    @property
    def log(self) -> Reads: ...

    @property
    def appender(self) -> Appends: ...

    @property
    def core(self) -> TaskCore: ...

    def visible(self, commit: Commit, lsn: Lsn) -> None:
        """To be called once readers see the commit; its marker stands at `lsn`."""

    # For protocols that do more than one append per commit:

    def durable(self, commit: Commit) -> None:
        """To be called instead of `visible` if somebody else makes the commit visible later."""

    def capture_all(self, position: Lsn) -> Commit | None:
        """Capture everything up to a position with the whole state; None: the task is failing."""

    def beside(self, work: Coroutine[Any, Any, None]) -> Awaitable[None]:
        """Run a piece of a commit beside the task's loops; its failure ends the task."""

    async def write_state(self, commit: Commit, lsn: Lsn) -> CheckpointRef:
        """Write the state that a commit captured to the checkpoint store, under this LSN."""

    async def read_state(self, reference: CheckpointRef) -> Sequence[Change]: ...

    async def sweep_states(self, keep_from: Lsn) -> None:
        """Delete the task's states that were written under LSNs below this one."""


class ConductedRun(Protocol):
    """What a conductor may use of the coordinator (coordinator.py)."""

    @property
    def spec(self) -> QuerySpec: ...

    @property
    def core(self) -> CoordinatorCore: ...

    @property
    def voice(self) -> Appends: ...


class Committer(ABC):
    """The protocol's side in one instance of one task."""

    @abstractmethod
    async def commit(self, commit: Commit) -> None:
        """Returns when the next commit may be captured."""

    async def settle(self) -> None:
        """Finish what an older instance left half done; called before the last marker is read."""
        return  # one append is there or it is not

    async def finish(self) -> None:
        """Returns when nothing is on its way any more."""
        return

    async def restore(self, marker: Marker) -> bool:
        """Restore the state at the task's last marker. False: from its changes, by the task."""
        return False

    def admits(self, entry: Entry, counted: Counted) -> bool:
        """Whether the task takes an entry of its input in now, with what counts at its place.

        If not, the committer drops it, or keeps it for `TaskCore.take_held`; either way it says
        with `TaskCore.looked` how far the task has come.
        """
        return True


class Conductor:
    """The protocol's side in one run of the coordinator. With markers, tasks commit alone."""

    def loops(self) -> Sequence[Coroutine[Any, Any, None]]:
        """What runs for as long as the coordinator does."""
        return ()

    async def hear(self, entry: Entry) -> None:
        """A control entry that somebody else wrote; if this raises BadFormat, it is ignored."""

    def claiming(self) -> AbstractAsyncContextManager[None]:
        """Entered around the claims of tasks."""
        return nullcontext()


@dataclass(frozen=True)
class CommitProtocol:
    """How a query commits. It travels to the workers in the query's spec, so it can be pickled."""

    #: As the query's definition in the log says it.
    name: ClassVar[str] = "marker"
    #: Whether state is kept in the log, change by change, so that a task can resume by itself.
    logs_changes: ClassVar[bool] = True
    #: Whether tasks share a source by its lanes, and tell its time and order together: what a
    #: task's marker says must count where the marker stands.
    shares_sources: ClassVar[bool] = True
    #: Whether all tasks get new instances when one does.
    restarts_together: ClassVar[bool] = False

    def check(self, settings: Settings) -> None:
        """Raise BadRequest if a query cannot be run with these settings."""

    def committer(self, task: CommittingTask) -> Committer:
        return MarkerCommitter(task)

    def conductor(self, run: ConductedRun) -> Conductor:
        return Conductor()

    def naming_tags(self, task: TaskId) -> tuple[str, ...]:
        """Where the task's markers stand that name entries; empty: trim nothing beside it."""
        return (task.marker_tag,)


MARKERS = CommitProtocol()


class MarkerCommitter(Committer):
    """One append per commit, unless it is too large: then what goes ahead is named by it."""

    def __init__(self, task: CommittingTask) -> None:
        self._task = task

    async def commit(self, commit: Commit) -> None:
        append, cut = self._task.appender.append_nowait, commit.cut()
        ranges = [range_of(await append(group)) for group in cut.ahead]
        done = await append(cut.group(ranges))
        self._task.visible(commit, Lsn(done.first_lsn + done.count - 1))


def range_of(done: Appended) -> Range:
    return Range(done.first_lsn, done.count)
