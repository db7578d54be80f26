"""Stages that run in one task: rows go from one to the next in memory, not through the log.

Where stages have one task each, no row changes its owner between them. They are the same stages,
and each keeps its state under a name of its own.

Law: a chain gives what its stages give one after the other with an exchange in between: rows that
came of one push reach their readers together, and what a stage emits because time passed reaches
them before they are told of that time. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from penstock.ops.api import Delta, OnLate, batch_of, ignore_late, join_deltas, no_clock, renaming
from penstock.ops.pipeline import OnBad, Pipeline
from penstock.plan.nodes import Scan, StageInput
from penstock.plan.stages import Stage, required_keys
from penstock.state.api import State
from penstock.state.memory import MemoryState

Leaf = Scan | StageInput


def outer_inputs(stages: Sequence[Stage]) -> tuple[Leaf, ...]:
    """The leaves of stages that run together which are fed from outside, stage by stage."""
    ids = {stage.id for stage in stages}
    return tuple(leaf for stage in stages for leaf in stage.inputs if not _is_within(leaf, ids))


def _is_within(leaf: Leaf, ids: set[int]) -> bool:
    return isinstance(leaf, StageInput) and leaf.stage in ids


class NothingDone(Exception):
    """Rows failed in a stage that keeps nothing: it is as if they had never come."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def keeps_state(stage: Stage) -> bool:
    wanted = (keys for node in stage.root.walk() for keys in required_keys(node) or ())
    return any(keys is not None for keys in wanted)


class _Named:
    """Rows of a stage under the names that one of its readers has for the columns."""

    def __init__(self, given: pa.Schema, schema: pa.Schema) -> None:
        self._given = given
        self._schema = schema
        self._names = renaming(given, schema)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._names is not None and batch.schema.equals(self._given, check_metadata=True):
            return batch.rename_columns(self._names)
        return batch_of(batch.columns, self._schema, batch.num_rows)


class Chain:
    """Stages in an order in which each reads only earlier ones; the output is that of the last."""

    def __init__(
        self,
        stages: Sequence[Stage],
        state: State,
        statics: Mapping[int, pa.Table],
        on_late: OnLate = ignore_late,
        now_ms: Callable[[], int] = no_clock,
        on_bad: OnBad | None = None,
    ) -> None:
        self._stages = stages
        self._last = stages[-1].id
        self._changing = {stage.id: stage.changing for stage in stages}
        ids = {stage.id for stage in stages}
        self._statics = statics
        #: Elsewhere nothing comes of a batch in which a row fails.
        self._stateful = {stage.id for stage in stages if keeps_state(stage)}
        self._pipelines = {
            stage.id: Pipeline(
                stage.root, self._state_of(stage, state), statics, on_late, now_ms,
                on_bad if stage.id in self._stateful else None,
            )
            for stage in stages
        }  # fmt: skip
        #: Of each outer input, the stage that it belongs to, and which of its leaves it is.
        self._outer: list[tuple[int, int]] = []
        #: Per stage: the leaves that read it, of stages in here.
        self._readers: dict[int, list[tuple[int, int, _Named]]] = {id: [] for id in ids}
        roots = {stage.id: stage.root.schema for stage in stages}
        for stage in stages:
            for position, leaf in enumerate(stage.inputs):
                if isinstance(leaf, StageInput) and leaf.stage in ids:
                    named = _Named(roots[leaf.stage], leaf.schema)
                    self._readers[leaf.stage].append((stage.id, position, named))
                else:
                    self._outer.append((stage.id, position))
        self._out: list[Delta] = []

    def _state_of(self, stage: Stage, state: State) -> State:
        return state if stage.id == self._last else state.within(f"stage-{stage.id}")

    @property
    def watermark_ms(self) -> int | None:
        """What the output may still bring; None if nothing in it tells the time."""
        return self._pipelines[self._last].watermark_ms

    @property
    def is_idle(self) -> bool:
        """Whether all leaves have stepped aside."""
        return self._pipelines[self._last].is_idle

    def start(self) -> list[Delta]:
        """The output before any input; once in a query's life. Readers first, as in a pipeline."""
        self._out = []
        for stage in reversed(self._stages):
            self._hand_on(stage.id, self._pipelines[stage.id].start())
        return self._out

    def push(self, leaf: int, delta: Delta) -> list[Delta]:
        """Rows for an outer input, by its position; returns the output of the last stage.

        Raises NothingDone if they fail before any of them has reached a state.
        """
        self._out = []
        stage, position = self._outer[leaf]
        try:
            out = self._pipelines[stage].push(position, delta)
        except Exception as error:
            if stage in self._stateful:
                raise
            raise NothingDone(error) from error
        self._hand_on(stage, out)
        return self._out

    def try_rows(self, leaf: int, delta: Delta) -> None:
        """Raise what these rows fail with in the stage that they enter, and change nothing."""
        id, position = self._outer[leaf]
        root = next(stage.root for stage in self._stages if stage.id == id)
        Pipeline(root, MemoryState(), self._statics).push(position, Delta(delta.batch))

    def own_time(self, id: int) -> tuple[int | None, bool]:
        """What the rows of one stage here have told, and whether it has stepped aside."""
        pipeline = self._pipelines[id]
        return pipeline.watermark_ms, pipeline.is_idle

    def advance(
        self,
        watermarks: Mapping[int, int | None],
        idle: frozenset[int] = frozenset(),
        shared: Mapping[int, tuple[int | None, bool]] = MappingProxyType({}),
    ) -> list[Delta]:
        """Time passed at the outer inputs; see Pipeline.advance.

        `shared`: by stage whose source others read as well, the time that all tell together.
        """
        self._out = []
        marks: dict[int, dict[int, int | None]] = {stage.id: {} for stage in self._stages}
        quiet: dict[int, set[int]] = {stage.id: set() for stage in self._stages}
        for outer, (id, position) in enumerate(self._outer):
            marks[id][position] = watermarks.get(outer)
            if outer in idle:
                quiet[id].add(position)
        for stage in self._stages:
            pipeline = self._pipelines[stage.id]
            self._hand_on(stage.id, pipeline.advance(marks[stage.id], frozenset(quiet[stage.id])))
            told_ms, is_idle = shared.get(stage.id) or self.own_time(stage.id)
            for reader, position, _ in self._readers[stage.id]:
                marks[reader][position] = told_ms
                if is_idle:
                    quiet[reader].add(position)
        return self._out

    def _hand_on(self, id: int, deltas: list[Delta]) -> None:
        if id == self._last:
            self._out += deltas
            return
        deltas = [delta for delta in deltas if len(delta)]
        if not deltas:
            return
        delta = join_deltas(deltas)
        if not self._changing[id]:
            delta = delta.once_each()
        for reader, position, named in self._readers[id]:
            rows = Delta(named.rows(delta.batch), delta.weights)
            out = self._pipelines[reader].push(position, rows)
            self._hand_on(reader, out)
