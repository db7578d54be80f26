"""How what a task captured becomes durable and visible: one interface, so that protocols compare.

    marker       one append: data, changes and marker in one group (Impeller 3.3)
    transaction  transactions.py: two phases, a coordinator and its stream (Kafka Streams)
    aligned      aligned.py: data flows uncommitted; barriers, snapshots, one commit for all (Flink)
    unsafe       data alone; a failure loses or repeats

Everything else is the same for all of them: reading, operators, state, the log, workers. Law: a
protocol decides nothing about content; it appends what the Commit holds, once, in order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from penstock.ids import Lsn
from penstock.log.records import Appended, Entry, NewEntry
from penstock.protocol.markers import Range
from penstock.runtime.commit import Commit

T = TypeVar("T")


class Appends(Protocol):
    """The task's producer, as its current instance."""

    def append_nowait(self, entries: Sequence[NewEntry]) -> Awaitable[Appended]:
        """Submit; what is submitted first is ordered first."""


class Reads(Protocol):
    """What a protocol asks the log before its task resumes."""

    async def read_last(self, tag: str) -> Entry | None: ...

    async def read(self, tags: Sequence[str], *, start: int, end: int) -> list[Entry]: ...

    async def bounds(self) -> Any: ...


#: Told once a commit is visible to readers: where its marker stands.
Visible = Callable[[Commit, Lsn], None]


class CommitProtocol(Protocol):
    """Of one instance of one task."""

    async def settle(self) -> None:
        """Finish what an older instance left half done; before the last marker is read."""

    async def commit(self, commit: Commit) -> None:
        """Returns when the next commit may be captured; visible is told through `Visible`."""

    async def finish(self) -> None:
        """Returns when nothing is on its way any more."""


async def all_of(awaitables: Sequence[Awaitable[T]]) -> list[T]:
    """All results, in order; the first error once all are done. On any event loop."""
    results: list[T] = []
    error: Exception | None = None
    for one in awaitables:
        try:
            results.append(await one)
        except Exception as found:
            error = error or found
    if error is not None:
        raise error
    return results


def range_of(done: Appended) -> Range:
    return Range(done.first_lsn, done.count)


class MarkerProtocol:
    """One append per commit, unless it is too large: then what goes ahead is named by it."""

    def __init__(self, appender: Appends, visible: Visible) -> None:
        self._appender = appender
        self._visible = visible

    async def settle(self) -> None:
        pass  # one append is there or not

    async def commit(self, commit: Commit) -> None:
        cut = commit.cut()
        ranges = [range_of(await self._appender.append_nowait(flush)) for flush in cut.flushes]
        done = await self._appender.append_nowait(cut.group(ranges))
        self._visible(commit, Lsn(done.first_lsn + done.count - 1))

    async def finish(self) -> None:
        pass


class UnsafeProtocol:
    """Appends and does not look back."""

    def __init__(self, appender: Appends, visible: Visible) -> None:
        self._appender = appender
        self._visible = visible

    async def settle(self) -> None:
        pass

    async def commit(self, commit: Commit) -> None:
        cut = commit.cut(staged=False)
        groups = [group for group in (*cut.flushes, cut.group([])) if group]
        for number, group in enumerate(groups, 1):
            future: Any = self._appender.append_nowait(group)
            told = commit if number == len(groups) else None
            future.add_done_callback(lambda done, told=told: self._note(told, done))

    async def finish(self) -> None:
        pass

    def _note(self, commit: Commit | None, done: Any) -> None:
        if not done.cancelled() and done.exception() is None and commit is not None:
            appended: Appended = done.result()
            self._visible(commit, Lsn(appended.first_lsn + appended.count - 1))
