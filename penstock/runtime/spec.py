"""What runs: a query with everything that its tasks must agree on, shipped to every worker.

Owns how many tasks a stage has and which virtual nodes each owns. Law: for every stage, each
virtual node belongs to one task; each source entry is taken in by one task of a stage that reads
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.ids import Lsn
from penstock.plan import nodes as n
from penstock.plan.nodes import StageInput
from penstock.plan.stages import Query, Stage
from penstock.protocol.names import TaskId
from penstock.runtime.commit_protocol import MARKERS, CommitProtocol
from penstock.state.keys import VIRTUAL_NODES


@dataclass(frozen=True, slots=True)
class Source:
    """A stream that is read: as it is registered, and from where on."""

    schema: pa.Schema
    start: Lsn


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be chosen; the same for all tasks of a query."""

    #: A floor between two commits of a task; 0: commit again as soon as the last one is durable.
    commit_interval_ms: int = 0
    #: A source without rows for so long steps aside; None: it never does.
    idle_after_ms: int | None = None
    #: Rows that make user code or an expression fail go to this stream; None: they stop the query.
    dead_letter: str | None = None
    #: Where checkpoints go (any pyarrow.fs path); None: state is rebuilt from all of its changes.
    checkpoints: str | None = None
    checkpoint_interval_ms: int = 10_000
    #: How commits become durable and visible; no user's choice, others are there to be measured.
    protocol: CommitProtocol = MARKERS


@dataclass(frozen=True, slots=True)
class QuerySpec:
    """One version of a query."""

    name: str
    version: int
    #: Of the plan, noted in checkpoints; another plan is another version, with tags of its own.
    fingerprint: str
    query: Query
    statics: Mapping[int, pa.Table]
    sources: Mapping[str, Source]
    #: The stream that takes the result, and its schema.
    to: str
    to_schema: pa.Schema
    #: Tasks of each stage.
    tasks: tuple[int, ...]
    settings: Settings = Settings()

    @property
    def task_ids(self) -> tuple[TaskId, ...]:
        return tuple(
            TaskId(self.name, self.version, stage, index)
            for stage, count in enumerate(self.tasks)
            for index in range(count)
        )

    def owned(self, task: TaskId) -> frozenset[int]:
        """The virtual nodes of a task, in every keyed stream that its stage reads."""
        return frozenset(range(task.index, VIRTUAL_NODES, self.tasks[task.stage]))

    def tells_time(self, stage: int) -> bool:
        """Whether the markers of this stage's tasks carry a watermark."""
        return any(
            isinstance(node, n.Watermark)
            or (isinstance(node, StageInput) and self.tells_time(node.stage))
            for node in self.query.stages[stage].root.walk()
        )

    def readers(self, stage: int) -> int:
        """How many tasks share the virtual nodes of the keyed stream that a stage writes."""
        for reader in self.query.stages:
            for leaf in reader.inputs:
                if isinstance(leaf, StageInput) and leaf.stage == stage:
                    return self.tasks[reader.id]
        raise AssertionError(f"nobody reads stage {stage}")


def count_tasks(query: Query, workers: int) -> tuple[int, ...]:
    """Tasks per stage: one per worker; but one alone where a source's rows tell the time.

    Of two tasks that share a source, each knows the time of its own rows only: a share without rows
    would hold back all, and the result would depend on how entries fall. One task reads in log
    order, as batch Spark's answer assumes.
    """
    return tuple(1 if _tells_time(stage) else min(workers, VIRTUAL_NODES) for stage in query.stages)


def _tells_time(stage: Stage) -> bool:
    reads_source = any(isinstance(leaf, n.Scan) for leaf in stage.inputs)
    return reads_source and any(isinstance(node, n.Watermark) for node in stage.root.walk())


def share_of(lsn: int, tasks: int) -> int:
    """Which of the tasks takes in the source entry at this LSN: evenly, whatever lies between."""
    mixed = (lsn + 1) * 0x9E3779B97F4A7C15 & 0xFFFF_FFFF_FFFF_FFFF
    mixed = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & 0xFFFF_FFFF_FFFF_FFFF
    return (mixed >> 32) % tasks
