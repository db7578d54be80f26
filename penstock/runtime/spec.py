"""What runs: a query with everything that its tasks must agree on, shipped to every worker.

Owns how many tasks a stage gets; which virtual nodes and lanes each has, its layout says
(layout.py). Law: for every stage, each virtual node belongs to one task; each source entry is taken
in by one task of a stage that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import pyarrow as pa

from penstock.ids import Lsn
from penstock.ops.chain import outer_inputs
from penstock.plan import nodes as n
from penstock.plan.changes import has_rows, kept_static
from penstock.plan.nodes import StageInput
from penstock.plan.row_order import stages_in_order
from penstock.plan.stages import Query, Stage, sits_where_needed
from penstock.protocol.names import TaskId, naming_tag
from penstock.runtime.commit_protocol import MARKERS, CommitProtocol
from penstock.runtime.layout import Layout, Share, first_layout
from penstock.state.keys import VIRTUAL_NODES
from penstock.stream.lanes import Lanes, lane_tag
from penstock.stream.registration import stream_tag


@dataclass(frozen=True, slots=True)
class Source:
    """A stream that is read: as it is registered, and from where on."""

    schema: pa.Schema
    start: Lsn
    lanes: int = 1


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
    #: Bytes of state that a worker keeps mapped in, the rest is on disk; None: all is in memory.
    state_memory: int | None = None
    #: Copies of each task's state that other workers keep, ready to take over.
    replicas: int = 0
    #: How commits become durable and visible; no user's choice, others are there to be measured.
    protocol: CommitProtocol = MARKERS
    #: Whether stages with one task each run in one; asked when a query is registered.
    joins_stages: bool = True


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
    #: Tasks of each stage; 0: it runs in the tasks of the stage that reads it (ops/chain.py).
    tasks: tuple[int, ...]
    settings: Settings = Settings()
    #: Whether its tasks share sources by lanes, and tell time and order together; those of queries
    #: from before there was such a thing do not.
    shares_sources: bool = True
    #: Of the streams that it writes; one that is not here has a single lane.
    lanes: Mapping[str, Lanes] = field(default_factory=dict)
    #: None: as it was registered.
    layout_now: Layout | None = None

    @property
    def layout(self) -> Layout:
        return self.layout_now or first_layout(self.tasks)

    def under(self, layout: Layout) -> QuerySpec:
        """The same query with other tasks."""
        return replace(self, tasks=layout.tasks, layout_now=layout)

    @property
    def task_ids(self) -> tuple[TaskId, ...]:
        stages = range(len(self.tasks))
        return tuple(task for stage in stages for task in self.tasks_of(stage))

    def tasks_of(self, stage: int) -> tuple[TaskId, ...]:
        shares = self.layout.stages[stage]
        return tuple(TaskId(self.name, self.version, stage, share.index) for share in shares)

    @property
    def running_stages(self) -> tuple[int, ...]:
        """The stages that have tasks."""
        return tuple(id for id, count in enumerate(self.tasks) if count)

    def running(self, stage: int) -> tuple[Stage, ...]:
        """The stages that run in a task of this one, which is the last of them."""
        ids = {stage}
        for id in range(stage - 1, -1, -1):
            if self.tasks[id] == 0 and not ids.isdisjoint(readers_of(self.query, id)):
                ids.add(id)
        return tuple(self.query.stages[id] for id in sorted(ids))

    def inputs(self, stage: int) -> tuple[n.Scan | StageInput, ...]:
        """What a task of this stage reads from the log."""
        return outer_inputs(self.running(stage))

    def owned(self, task: TaskId) -> frozenset[int]:
        """The virtual nodes of a task, in every keyed stream that its stage reads."""
        return self.layout.share(task.stage, task.index).nodes

    def holds(self, task: TaskId) -> frozenset[int]:
        """The virtual nodes that its state may have rows of.

        Where stages run together because of the lanes of their source, rows are placed by the key
        of the source, which may be a part of the key that they are kept under.
        """
        is_together = len(self.running(task.stage)) > 1
        return frozenset(range(VIRTUAL_NODES)) if is_together else self.owned(task)

    def source_tags(self, task: TaskId, stream: str) -> tuple[str, ...]:
        """What a task reads of a source: its lanes, or all if there are none to share."""
        if not self._in_lanes(task, stream):
            return (stream_tag(stream),)
        own = Lanes(stream, self.sources[stream].lanes).of_nodes(self.owned(task))
        return (*(lane_tag(stream, lane) for lane in own), naming_tag(stream))

    def lanes_read(self, stage: int) -> dict[str, int]:
        """The streams that its tasks share by lanes, and how many these have."""
        if not self._shares(stage):
            return {}
        streams = [leaf.stream for leaf in self.inputs(stage) if isinstance(leaf, n.Scan)]
        counts = {stream: self.sources[stream].lanes for stream in streams}
        return {stream: count for stream, count in counts.items() if count > 1}

    def takes(self, task: TaskId, stream: str, lsn: int) -> bool:
        """Whether the task takes in a source entry that it reads."""
        if self._in_lanes(task, stream):
            return True
        rank = self.layout.rank(task.stage, task.index)
        return share_of(lsn, self.tasks[task.stage]) == rank

    def _in_lanes(self, task: TaskId, stream: str) -> bool:
        """Whether the task reads lanes of its own: or else all, and takes its share by LSN."""
        return self._shares(task.stage) and self.sources[stream].lanes > 1

    def _shares(self, stage: int) -> bool:
        can = self.shares_sources and self.settings.protocol.shares_sources
        return can and self.tasks[stage] > 1

    def tells_time(self, stage: int) -> bool:
        """Whether the markers of this stage's tasks carry a watermark."""
        return any(
            isinstance(node, n.Watermark)
            or (isinstance(node, StageInput) and self.tells_time(node.stage))
            for node in self.query.stages[stage].root.walk()
        )

    def shares_time(self, stage: int) -> bool:
        """Whether the tasks of this stage tell one time together (protocol/shared_time.py)."""
        return self._shares(stage) and _can_share_time(self.query.stages[stage])

    def orders(self, stage: int) -> bool:
        """Whether its tasks share sources and say of each row where it stands (row_merge.py)."""
        if not self._shares(stage) or not _reads_sources_alone(self.query.stages[stage]):
            return False
        return stage in stages_in_order([stage.root for stage in self.query.stages])

    def shared_within(self, stage: int) -> tuple[int, ...]:
        """The stages within its tasks whose source they share, and tell the time of together."""
        if self.tasks[stage] < 2:
            return ()
        return tuple(one.id for one in self.running(stage)[:-1] if self.tells_time(one.id))

    def tells_looked(self, stage: int) -> bool:
        """Whether those that read it wait for how far all of its tasks have looked."""
        return self.shares_time(stage) or self.orders(stage)

    def readers(self, stage: int) -> int:
        """How many tasks share the virtual nodes of the keyed stream that a stage writes."""
        return len(self.reading(stage))

    def reading(self, stage: int) -> tuple[Share, ...]:
        """Those tasks."""
        readers = readers_of(self.query, stage)
        assert readers, f"nobody reads stage {stage}"
        return self.shares_at(min(readers))

    def shares_at(self, stage: int) -> tuple[Share, ...]:
        """The tasks of the stage, or of the one in whose tasks it runs."""
        return self.layout.stages[self.home_of(stage)]

    def home_of(self, stage: int) -> int:
        """The stage in whose tasks it runs; most run in their own."""
        while self.tasks[stage] == 0:
            stage = min(readers_of(self.query, stage))
        return stage


def count_tasks(
    query: Query,
    workers: int,
    lanes: Mapping[str, int] = MappingProxyType({}),
    protocol: CommitProtocol = MARKERS,
) -> tuple[int, ...]:
    """Tasks per stage: one per worker, but no more than a source has lanes.

    One alone where rows of an earlier stage must be handed on in order (plan/row_order.py), and
    where a source's rows tell the time beside something else: what tasks that share a source tell
    is one time, of one source.
    """
    ordered = stages_in_order([stage.root for stage in query.stages])
    single = {
        id
        for id in ordered
        if not (protocol.shares_sources and _reads_sources_alone(query.stages[id]))
    }
    timed = [stage for stage in query.stages if _tells_time(stage)]
    single |= {s.id for s in timed if not (protocol.shares_sources and _can_share_time(s))}
    most = [min(_sources_lanes(stage, lanes), workers, VIRTUAL_NODES) for stage in query.stages]
    for id in single:
        most[id] = 1
    readers_of_each = [readers_of(query, stage.id) for stage in query.stages[:-1]]
    for readers in readers_of_each * len(most):  # of a stage have equally many tasks
        fewest = min(most[id] for id in readers)
        for id in readers:
            most[id] = fewest
    return tuple(most)


def join_stages(
    query: Query, tasks: Sequence[int], lanes: Mapping[str, Lanes] = MappingProxyType({})
) -> tuple[int, ...]:
    """The same tasks, but a stage runs in those of its reader (0) if no row changes its owner.

    That is so if both have one task, or if the stage reads a stream whose lanes are by the keys
    that the reader needs. A stage runs with its readers if those run together.
    """
    #: By stage, the stage in whose tasks it runs.
    homes = list(range(len(tasks)))
    for id in range(len(tasks) - 2, -1, -1):
        readers = readers_of(query, id)
        at = {homes[reader] for reader in readers}
        if len(at) == 1 and tasks[id] == tasks[min(at)]:
            alone = tasks[id] == 1
            if alone or (at == readers and _reads_its_lanes(query, id, min(at), tasks[id], lanes)):
                homes[id] = min(at)
    return tuple(count if homes[id] == id else 0 for id, count in enumerate(tasks))


def rescaled_tasks(spec: QuerySpec, workers: int) -> tuple[int, ...]:
    """The tasks that the query gets with so many workers.

    Stages that have tasks of their own keep some, and stages that run together are set apart when
    their tasks become others: rows and state go by virtual node then, wherever they were. What
    cannot be taken over stays as it is: of other commit protocols, and of queries from before tasks
    shared sources.
    """
    if spec.settings.protocol.name != MARKERS.name or not spec.shares_sources:
        return spec.tasks
    lanes = {name: source.lanes for name, source in spec.sources.items()}
    counts = count_tasks(spec.query, workers, lanes, spec.settings.protocol)
    return tuple(
        0 if was == 0 and spec.tasks[(home := spec.home_of(id))] == counts[home] else counts[id]
        for id, was in enumerate(spec.tasks)
    )


def _reads_its_lanes(
    query: Query, id: int, reader: int, tasks: int, lanes: Mapping[str, Lanes]
) -> bool:
    """Whether the rows of a keyed source are read by the task that its reader needs them in.

    Lane and owner are both remainders of the virtual node: they agree if the lanes are a multiple
    of the tasks.
    """
    stage = query.stages[id]
    if len(stage.inputs) != 1 or not isinstance(stage.inputs[0], n.Scan) or stage.changing:
        return False
    source = lanes.get(stage.inputs[0].stream)
    if source is None or not source.key or source.count % tasks:
        return False
    exact = len(query.stages[reader].inputs) > 1 or _places_static_rows(query.stages[reader])
    return sits_where_needed(stage, {source.stream: source.key}, exact=exact)


def _places_static_rows(stage: Stage) -> bool:
    """Whether rows that no lane holds go to the owners of their keys: static ones."""
    return any(
        node.initial is not None
        if isinstance(node, n.TransformWithState)
        else isinstance(node, n.Join) and kept_static(node) is not None
        for node in stage.root.walk()
    )


def readers_of(query: Query, stage: int) -> frozenset[int]:
    """The stages that read this one."""
    return frozenset(
        reader.id
        for reader in query.stages
        for leaf in reader.inputs
        if isinstance(leaf, StageInput) and leaf.stage == stage
    )


def _sources_lanes(stage: Stage, lanes: Mapping[str, int]) -> int:
    """As many tasks can share its sources. One that has a single lane is shared by LSN."""
    scans = [leaf for leaf in stage.inputs if isinstance(leaf, n.Scan)]
    counts = [lanes.get(scan.stream, 1) for scan in scans]
    return min((count for count in counts if count > 1), default=VIRTUAL_NODES)


def _tells_time(stage: Stage) -> bool:
    reads_source = any(isinstance(leaf, n.Scan) for leaf in stage.inputs)
    return reads_source and any(isinstance(node, n.Watermark) for node in stage.root.walk())


def _reads_sources_alone(stage: Stage) -> bool:
    if _shows_static(stage):
        return False
    return all(isinstance(leaf, n.Scan) for leaf in stage.inputs) and not stage.changing


def _shows_static(stage: Stage) -> bool:
    """Whether rows of a static table are among those that it hands on: they are in no source."""
    unions = (node for node in stage.root.walk() if isinstance(node, n.Union))
    return any(has_rows(child) for union in unions for child in union.inputs)


def _can_share_time(stage: Stage) -> bool:
    """One source, which tells the time once: then the latest that a task tells is the source's."""
    inputs = stage.inputs
    if _shows_static(stage):
        return False
    marks = [node for node in stage.root.walk() if isinstance(node, n.Watermark)]
    return len(inputs) == len(marks) == 1 and isinstance(inputs[0], n.Scan)


def share_of(lsn: int, tasks: int) -> int:
    """Which of the tasks takes in the source entry at this LSN: evenly, whatever lies between."""
    mixed = (lsn + 1) * 0x9E3779B97F4A7C15 & 0xFFFF_FFFF_FFFF_FFFF
    mixed = (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & 0xFFFF_FFFF_FFFF_FFFF
    return (mixed >> 32) % tasks
