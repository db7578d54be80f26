"""Flink's aligned checkpoints, a task's side: what Impeller's markers are compared with.

Data between stages counts as soon as it is in the log; results are staged. When the barriers of a
checkpoint have come through all inputs (alignment.py), the task passes the barrier on, writes its
whole state to the checkpoint store beside its next work, and tells the coordinator. That commits
the checkpoint for all tasks at once (aligned_core.py), and with it the results up to the cut.

Law: a part is told only when it, and every result before it, is durable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Coroutine
from dataclasses import replace
from typing import Any, Final, Protocol

from penstock.log.records import Appended, Kind, NewEntry
from penstock.protocol.markers import encode_marker, join_ranges
from penstock.protocol.names import TaskId, control_tag, keyed_tag, with_naming
from penstock.runtime.alignment import barrier_entry
from penstock.runtime.commit import Commit
from penstock.runtime.commit_protocol import Appends, all_of, range_of
from penstock.runtime.control import Part, encode_message
from penstock.runtime.outputs import pack_groups
from penstock.runtime.spec import QuerySpec
from penstock.state.checkpoint_store import CheckpointRef, CheckpointStore

#: Groups on their way to the log at which a task waits before it captures more.
WAITING_MAX: Final = 64
_STREAM: Final = "s/"


class PartStore(Protocol):
    """Where a task puts its parts of checkpoints."""

    async def write(self, commit: Commit) -> CheckpointRef:
        """The whole state; durable when it returns."""

    async def sweep(self, keep_from: int) -> None:
        """Delete those that were taken at positions below."""


class PartFiles:
    """In a checkpoint store, on threads."""

    def __init__(
        self, store: CheckpointStore, spec: QuerySpec, task: TaskId, instance: int
    ) -> None:
        self._store = store
        self._spec = spec
        self._task = task
        self._instance = instance

    async def write(self, commit: Commit) -> CheckpointRef:
        assert commit.frozen is not None
        return await asyncio.to_thread(
            self._store.write,
            str(self._task),
            marker_lsn=commit.marker.position,
            instance=self._instance,
            fingerprint=self._spec.fingerprint,
            changes=commit.frozen,
        )

    async def sweep(self, keep_from: int) -> None:
        await asyncio.to_thread(self._store.sweep, str(self._task), keep_from)


class AlignedProtocol:
    """Of one instance of one task."""

    def __init__(
        self,
        appender: Appends,
        spec: QuerySpec,
        task: TaskId,
        instance: int,
        parts: PartStore,
    ) -> None:
        self._appender = appender
        self._spec = spec
        self._task = task
        self._instance = instance
        self._parts = parts
        self._is_last = spec.query.stages[task.stage].keys is None
        self._waiting: deque[Awaitable[Appended]] = deque()
        #: Since the last part: groups with staged entries, and the streams of these.
        self._staged: list[Awaitable[Appended]] = []
        self._streams: dict[str, None] = {}
        #: Where the last part was taken; it is complete once the next one is asked for.
        self._complete_from: int | None = None

    async def settle(self) -> None:
        pass  # a checkpoint is complete or it is not there

    async def finish(self) -> None:
        pass  # what no checkpoint has committed is done again

    async def commit(self, commit: Commit) -> None:
        self._append(commit, [])
        while len(self._waiting) > WAITING_MAX:
            await self._waiting.popleft()

    def _append(self, commit: Commit, barrier: list[NewEntry]) -> None:
        """Submitted at once: nothing is captured in between."""
        entries = []
        for entry in commit.data:
            is_result = entry.tags[0].startswith(_STREAM)
            entries.append(entry._replace(kind=Kind.STAGED) if is_result else entry)
            if is_result:
                self._streams[entry.tags[0]] = None
        if not commit.unmarked and not self._is_last:
            entries.append(commit.marker_entry())
        for group in pack_groups([*entries, *barrier]):
            done = self._appender.append_nowait(group)
            self._waiting.append(done)
            if any(entry.kind is Kind.STAGED for entry in group):
                self._staged.append(done)

    def pass_on(self, commit: Commit, number: int) -> Coroutine[Any, Any, Commit]:
        """Pass the barrier on, at once; what is returned makes the part durable and tells."""
        spec, task = self._spec, self._task
        tags = (keyed_tag(spec.name, spec.version, task.stage),)
        self._append(commit, [] if self._is_last else [barrier_entry(number, tags)])
        staged, self._staged = self._staged, []
        streams, self._streams = tuple(self._streams), {}
        return self._tell(commit, number, staged, streams)

    async def _tell(
        self,
        commit: Commit,
        number: int,
        staged: list[Awaitable[Appended]],
        streams: tuple[str, ...],
    ) -> Commit:
        ranges = join_ranges([range_of(done) for done in await all_of(staged)])
        reference = await self._parts.write(commit)
        marker = replace(commit.marker, ranges=ranges, checkpoints=(reference.to_json(),))
        text = encode_marker(marker).decode()
        tags = [self._task.marker_tag, *(with_naming(streams) if ranges else streams)]
        told = Part(str(self._task), self._instance, number, {"tags": tags, "marker": text})
        control = (control_tag(self._spec.name),)
        await self._appender.append_nowait([NewEntry(encode_message(told), control, Kind.CONTROL)])
        await self._sweep(commit.marker.position)
        return replace(commit, marker=marker)

    async def _sweep(self, position: int) -> None:
        """Delete what the last complete checkpoint, the one before this, no longer needs.

        A barrier comes only after the checkpoint before it is complete, or after all tasks were
        claimed again. So only an instance that told its part, which the log refuses a zombie,
        knows that the one before was complete.
        """
        complete_from, self._complete_from = self._complete_from, position
        if complete_from is not None:
            await self._parts.sweep(complete_from)
