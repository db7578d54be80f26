"""Run a whole query in this process, from lists of batches: no log, no tasks, no time of its own.

The real stages, operators, state and payloads; only moving them between stages is a function
call. Every stage may be run by several tasks, which own disjoint sets of virtual nodes, to show
that placement does not matter; or all of them joined in one task, without payloads. What stands
between two calls is exactly what a snapshot holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.ops.api import END_MS, START_MS, Delta, OnLate, ignore_late, no_clock
from penstock.ops.chain import Chain, Leaf, NothingDone, outer_inputs
from penstock.ops.expressions import compile_expr
from penstock.ops.functions.alignment import as_array
from penstock.ops.payloads import decode_delta, encode_delta
from penstock.ops.sink import read_new, read_result
from penstock.plan import nodes as n
from penstock.plan.nodes import StageInput
from penstock.plan.stages import Query, Stage
from penstock.plan.supply import PRESENT, TIME
from penstock.state.api import Change, Changes
from penstock.state.keys import VIRTUAL_NODES, hash_columns, virtual_nodes
from penstock.state.memory import OF_TASK, MemoryState


@dataclass(slots=True)
class _Task:
    pipeline: Chain
    state: MemoryState


@dataclass(frozen=True, slots=True)
class DriverSnapshot:
    """All that a query has kept, or what changed in it: by stage with tasks, by task, as steps."""

    states: tuple[tuple[tuple[Changes, ...], ...], ...]

    def then(self, later: DriverSnapshot) -> DriverSnapshot:
        """This snapshot with later changes added to it."""
        pairs = zip(self.states, later.states, strict=True)
        return DriverSnapshot(
            tuple(
                tuple(earlier + changes for earlier, changes in zip(row, other, strict=True))
                for row, other in pairs
            )
        )

    def spread(self, tasks: int) -> DriverSnapshot:
        """The same for another number of tasks: virtual nodes move, whole, to their new owners.

        What a task evicted is struck everywhere; of its values, state/api.py says what remains.
        """
        spread = []
        for row in self.states:
            steps = [_without_values(step) for old in row for step in old]
            values: Changes = {OF_TASK: _smallest_values(row)}
            spread.append(
                tuple(
                    (*(_owned_by(task, tasks, step) for step in steps), values)
                    for task in range(tasks)
                )
            )
        return DriverSnapshot(tuple(spread))


def _owned_by(task: int, tasks: int, step: Changes) -> Changes:
    return {
        node: changes for node, changes in step.items() if node == OF_TASK or node % tasks == task
    }


def _without_values(step: Changes) -> Changes:
    others = tuple(change for change in step.get(OF_TASK, ()) if change.kind != "set")
    return {**step, OF_TASK: others}


def _smallest_values(row: tuple[tuple[Changes, ...], ...]) -> tuple[Change, ...]:
    """Of every value that all tasks of a stage have, the smallest."""
    per_task: list[dict[str, Change]] = [
        {
            change.name: change
            for step in steps
            for change in step.get(OF_TASK, ())
            if change.kind == "set"
        }
        for steps in row
    ]
    names = set[str].intersection(*(set(values) for values in per_task))
    return tuple(
        min(
            (values[name] for values in per_task),
            key=lambda change: change.rows.column(0)[0].as_py(),
        )
        for name in sorted(names)
    )


class Driver:
    """A query at work. Feed it, then read `outputs`, or fold them with `result`."""

    def __init__(
        self,
        query: Query,
        statics: Mapping[int, pa.Table],
        *,
        tasks: int = 1,
        joined: bool = False,
        on_late: OnLate = ignore_late,
        now_ms: Callable[[], int] = no_clock,
        resume: DriverSnapshot | None = None,
    ) -> None:
        assert tasks == 1 or not joined, "what is joined has one task"
        self.query = query
        self._now_ms = now_ms
        self.outputs: list[Delta] = []
        #: How many rows came late, by operator; `on_late` is handed the rows.
        self.late: Counter[str] = Counter()
        #: How many of the outputs a reader has seen.
        self._shown = 0
        #: What runs together, by the last stage of it.
        groups = [query.stages] if joined else [(stage,) for stage in query.stages]
        self._groups = {group[-1].id: group for group in groups}
        self._tasks: dict[int, list[_Task]] = {}
        self._routes = {id: _compile_route(query.stages[id], tasks) for id in self._groups}

        def note_late(operator: str, rows: Delta) -> None:
            self.late[operator] += len(rows)
            on_late(operator, rows)

        for place, (id, group) in enumerate(self._groups.items()):
            row = []
            for index in range(tasks):
                owned = frozenset(range(index, VIRTUAL_NODES, tasks))
                state = MemoryState(owned)
                if resume is not None:
                    for step in resume.states[place][index]:
                        state.restore(step)
                row.append(_Task(Chain(group, state, statics, note_late, now_ms), state))
            self._tasks[id] = row
        #: Source streams that have stepped aside: they hold back no watermark.
        self.idle: set[str] = set()
        self._inputs = {id: outer_inputs(group) for id, group in self._groups.items()}
        self._readers = _find_readers(self._inputs)
        self._next_task = 0
        if resume is None:
            for id in reversed(self._groups):  # a task starts before it reads
                for task in self._tasks[id]:
                    self._pass_on(id, task.pipeline.start())
        self._tick(START_MS)

    def feed(self, stream: str, batch: pa.RecordBatch) -> None:
        """A batch of a source stream; columns are found by the stream's own names."""
        for id, inputs in self._inputs.items():
            for position, leaf in enumerate(inputs):
                if isinstance(leaf, n.Scan) and leaf.stream == stream and batch.num_rows:
                    columns = [self._column(batch, name) for name in leaf.columns]
                    rows = pa.RecordBatch.from_arrays(columns, schema=leaf.schema)
                    task = self._tasks[id][self._next_task % len(self._tasks[id])]
                    self._push(id, task, position, Delta(rows))
        self._next_task += 1
        self._tick(START_MS)

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        """A column of a source; when rows were appended is told by the clock, if not by them."""
        if name == TIME and name not in batch.schema.names:
            now = pa.scalar(self._now_ms() * 1000, PRESENT.type)
            return pa.repeat(now, batch.num_rows)
        return batch.column(name)

    def finish(self) -> None:
        """All streams have ended: every window closes."""
        self.idle.clear()
        self._tick(END_MS)

    def _pass_on(self, stage_id: int, deltas: list[Delta]) -> None:
        """Deliver a stage's output to whoever reads it."""
        if stage_id == self.query.stages[-1].id:
            self.outputs += deltas
            return
        stage = self.query.stages[stage_id]
        for delta in deltas:
            for task_id, part in self._routes[stage_id](delta):
                payload = encode_delta(part, changing=stage.changing)
                for reader, position in self._readers[stage_id]:
                    # Readers of one stage have names of their own for its columns.
                    schema = self._inputs[reader][position].schema
                    read = decode_delta(payload, schema, changing=stage.changing)
                    self._push(reader, self._tasks[reader][task_id], position, read)

    def _push(self, id: int, task: _Task, position: int, rows: Delta) -> None:
        try:
            out = task.pipeline.push(position, rows)
        except NothingDone as error:
            raise error.cause from error.cause.__cause__  # nobody sets rows aside here
        self._pass_on(id, out)

    def _tick(self, source_ms: int) -> None:
        """Tell every stage the time, in order; sources tell nothing but their end."""
        for id, inputs in self._inputs.items():
            marks: dict[int, int | None] = {}
            for position, leaf in enumerate(inputs):
                if isinstance(leaf, StageInput):
                    watermarks = [t.pipeline.watermark_ms for t in self._tasks[leaf.stage]]
                    told = [mark for mark in watermarks if mark is not None]
                    marks[position] = min(told) if told else None
                else:
                    marks[position] = END_MS if source_ms == END_MS else None
            leaves = enumerate(inputs)
            idle = frozenset(position for position, leaf in leaves if self._is_idle(leaf))
            for task in self._tasks[id]:
                self._pass_on(id, task.pipeline.advance(marks, idle))

    def rows_kept(self) -> int:
        """Rows of state, over all stages and tasks."""
        return sum(task.state.rows_kept() for row in self._tasks.values() for task in row)

    def _is_idle(self, leaf: n.Scan | StageInput) -> bool:
        if isinstance(leaf, n.Scan):
            return leaf.stream in self.idle
        return all(task.pipeline.is_idle for task in self._tasks[leaf.stage])

    def snapshot(self) -> DriverSnapshot:
        """Everything that the query has kept."""
        return DriverSnapshot(
            tuple(tuple((task.state.snapshot(),) for task in row) for row in self._tasks.values())
        )

    def take_changes(self) -> DriverSnapshot:
        """What changed since the last call."""
        return DriverSnapshot(
            tuple(
                tuple((task.state.take_changes(),) for task in row) for row in self._tasks.values()
            )
        )

    def result(self) -> pa.Table:
        """The outputs so far, added up: rows that were taken back are gone. User's names."""
        return read_result(self.query, self.outputs)

    def read_new(self) -> pa.Table:
        """What the query's mode shows since the last call."""
        new = self.outputs[self._shown :]
        self._shown = len(self.outputs)
        return read_new(self.query, new, self.outputs)


def _find_readers(inputs: Mapping[int, tuple[Leaf, ...]]) -> dict[int, list[tuple[int, int]]]:
    readers: dict[int, list[tuple[int, int]]] = {id: [] for id in inputs}
    for id, leaves in inputs.items():
        for position, leaf in enumerate(leaves):
            if isinstance(leaf, StageInput):
                readers[leaf.stage].append((id, position))
    return readers


def _compile_route(stage: Stage, tasks: int) -> Callable[[Delta], list[tuple[int, Delta]]]:
    """Where rows of a stage's output go: to the task that owns their virtual node."""
    if stage.keys is None:
        return lambda delta: []
    keys = [compile_expr(key, stage.root.schema) for key in stage.keys]

    def route(delta: Delta) -> list[tuple[int, Delta]]:
        if tasks == 1:
            return [(0, delta)]
        values = [as_array(key(delta.batch), len(delta)) for key in keys]
        owner = virtual_nodes(hash_columns(values, len(delta))) % tasks
        return [(int(task), delta.where(owner == task)) for task in np.unique(owner)]

    return route
