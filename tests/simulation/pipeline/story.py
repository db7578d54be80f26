"""What happened in a world of tasks, for the checkers: recoveries, trims, what a reader was shown.

Owns copies only; nothing in the world reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from penstock.ids import Lsn
from penstock.protocol.names import TaskId
from penstock.runtime.spec import QuerySpec
from penstock.runtime.task_core import TaskCore
from penstock.state.memory import MemoryState
from simulation.pipeline.log import SimLog
from simulation.pipeline.store import SimStore

#: By part and kind of change, its rows, sorted: two equal states have equal contents.
Contents = dict[tuple[str, str], list[tuple[str, ...]]]


class Resumed(Protocol):
    """An instance of a task that has found its state."""

    task: TaskId
    instance: int
    core: TaskCore
    #: LSN of the marker of the checkpoint that was used, and of the changes applied after it.
    base: Lsn | None
    replayed: list[Lsn]


@dataclass(frozen=True, slots=True)
class Recovery:
    """An instance found its state, at its task's last marker."""

    task: TaskId
    instance: int
    marker_lsn: Lsn
    base: Lsn | None
    replayed: list[Lsn]
    contents: Contents


@dataclass(slots=True)
class PipelineStory:
    """One world's."""

    recoveries: list[Recovery] = field(default_factory=list)
    #: Instances that began to run, by task.
    instances: dict[TaskId, list[int]] = field(default_factory=dict)
    #: By producer and instance: the run of the query that claimed it.
    claims: dict[tuple[str, int], int] = field(default_factory=dict)
    #: (tail of the log when it was trimmed, trim point).
    trims: list[tuple[Lsn, Lsn]] = field(default_factory=list)
    #: What a reader of the result was shown: LSN at which it counted, payload.
    shown: list[tuple[Lsn, bytes]] = field(default_factory=list)

    def resumed(self, task: Resumed, marker_lsn: Lsn | None) -> None:
        self.instances.setdefault(task.task, []).append(task.instance)
        if marker_lsn is not None:
            contents = contents_of(task.core.state)
            found = Recovery(
                task.task, task.instance, marker_lsn, task.base, task.replayed, contents
            )
            self.recoveries.append(found)


class Witness(Protocol):
    """What the laws are asked about: a world, or a bench."""

    spec: QuerySpec
    log: SimLog
    store: SimStore
    story: PipelineStory


def contents_of(state: MemoryState) -> Contents:
    found: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    for node, changes in state.snapshot().items():
        for change in changes:
            rows = found.setdefault((change.name, change.kind), [])
            rows += [(str(node), *map(str, row.values())) for row in change.rows.to_pylist()]
    return {name: sorted(rows) for name, rows in sorted(found.items()) if rows}
