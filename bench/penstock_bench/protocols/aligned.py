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
from collections.abc import Awaitable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from penstock.errors import BadRequest
from penstock.ids import Lsn
from penstock.log.client.packing import pack
from penstock.log.records import Appended, Entry, Kind, NewEntry
from penstock.protocol.committed import Counted
from penstock.protocol.markers import Marker, encode_marker, join_ranges
from penstock.protocol.names import TaskId, control_tag, keyed_tag, with_naming
from penstock.runtime.commit import Commit
from penstock.runtime.commit_protocol import (
    CommitProtocol,
    Committer,
    CommittingTask,
    ConductedRun,
    Conductor,
    range_of,
)
from penstock.runtime.spec import Settings
from penstock.state.checkpoint_store import CheckpointRef
from penstock_bench.protocols.aligned_conductor import AlignedConductor
from penstock_bench.protocols.aligned_core import Part, encode_part
from penstock_bench.protocols.alignment import Alignment, Step, barrier_entry
from penstock_bench.protocols.shared import all_of, refuse_dead_letters

#: Groups on their way to the log at which a task waits before it captures more.
WAITING_MAX: Final = 64
_STREAM: Final = "s/"


@dataclass(frozen=True)
class Aligned(CommitProtocol):
    name: ClassVar[str] = "aligned"
    shares_sources: ClassVar[bool] = False
    logs_changes: ClassVar[bool] = False
    restarts_together: ClassVar[bool] = True
    #: Between two checkpoints.
    interval_ms: int = 0

    def check(self, settings: Settings) -> None:
        refuse_dead_letters(self, settings)
        if settings.checkpoints is None:
            raise BadRequest("aligned checkpoints keep state nowhere else: give checkpoints=")

    def committer(self, task: CommittingTask) -> Committer:
        return AlignedCommitter(task)

    def conductor(self, run: ConductedRun) -> Conductor:
        return AlignedConductor(run, self.interval_ms / 1000)

    def naming_tags(self, task: TaskId) -> tuple[str, ...]:
        """None: the next results are staged before the last are committed (trim_rule.py)."""
        return ()


class AlignedCommitter(Committer):
    """Of one instance of one task."""

    def __init__(self, owner: CommittingTask) -> None:
        self._owner = owner
        self._appender = owner.appender
        self._is_last = owner.spec.query.stages[owner.task.stage].keys is None
        self.alignment: Alignment | None = None
        self._waiting: deque[Awaitable[Appended]] = deque()
        #: Since the last part: groups with staged entries, and the streams of these.
        self._staged: list[Awaitable[Appended]] = []
        self._streams: dict[str, None] = {}
        #: Where the last part was taken; it is complete once the next one is asked for.
        self._complete_from: Lsn | None = None

    async def settle(self) -> None:
        """Nothing is half done: a checkpoint is complete or it is not there."""
        cohort, core = self._owner.cohort, self._owner.core
        assert cohort is not None
        self.alignment = Alignment(cohort, core.upstream, core.tags)

    async def restore(self, marker: Marker) -> bool:
        """The task's part of the last complete checkpoint: that one or none."""
        reference = CheckpointRef.from_json(marker.checkpoints[0])
        self._owner.core.restored(await self._owner.read_state(reference), 0)
        return True

    # -- input

    def admits(self, entry: Entry, counted: Counted) -> bool:
        assert self.alignment is not None
        step = self.alignment.step(entry)
        if step is Step.TAKE:
            return True
        self._owner.core.looked(Lsn(entry.lsn + 1))
        if step is Step.HOLD:
            self.alignment.hold(entry, counted)
        elif step is Step.COMPLETE:
            self._take_part(self.alignment)
        return False

    def _take_part(self, alignment: Alignment) -> None:
        """The cut is complete: capture and pass the barrier on, then go on behind it."""
        core, number = self._owner.core, alignment.number
        assert number is not None
        commit = self._owner.capture_all(alignment.source_cut or core.position)
        if commit is None:
            return
        self._owner.beside(self.pass_on(commit, number))
        for entry, counted in alignment.release():
            core.take_held(entry, counted)

    # -- output

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
        if commit.tells_time and not self._is_last:
            # Without the task's own tag: it resumes from checkpoints alone.
            entries.append(commit.marker_entry(tags=commit.tags[1:]))
        for group in pack([*entries, *barrier]):
            done = self._submit(group)
            self._waiting.append(done)
            if any(entry.kind is Kind.STAGED for entry in group):
                self._staged.append(done)

    def _submit(self, group: Sequence[NewEntry]) -> Awaitable[Appended]:
        """Whoever waits for it is told of a failure; if nobody does, nobody need be."""
        done = asyncio.ensure_future(self._appender.append_nowait(group))
        done.add_done_callback(lambda future: future.cancelled() or future.exception())
        return done

    def pass_on(self, commit: Commit, number: int) -> Coroutine[Any, Any, None]:
        """Pass the barrier on, at once; what is returned makes the part durable and tells."""
        spec, task = self._owner.spec, self._owner.task
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
    ) -> None:
        owner = self._owner
        ranges = join_ranges([range_of(done) for done in await all_of(staged)])
        reference = await owner.write_state(commit, commit.marker.position)
        marker = replace(commit.marker, ranges=ranges, checkpoints=(reference.to_json(),))
        text = encode_marker(marker).decode()
        tags = [owner.task.marker_tag, *(with_naming(streams) if ranges else streams)]
        part = Part(str(owner.task), owner.instance, number, {"tags": tags, "marker": text})
        control = (control_tag(owner.spec.name),)
        await self._appender.append_nowait([NewEntry(encode_part(part), control, Kind.CONTROL)])
        owner.durable(replace(commit, marker=marker))
        await self._sweep(commit.marker.position)

    async def _sweep(self, position: Lsn) -> None:
        """Delete what the last complete checkpoint, the one before this, no longer needs.

        A barrier comes only after the checkpoint before it is complete, or after all tasks were
        claimed again. So only an instance that told its part, which the log refuses a zombie,
        knows that the one before was complete.
        """
        complete_from, self._complete_from = self._complete_from, position
        if complete_from is not None:
            await self._owner.sweep_states(complete_from)
