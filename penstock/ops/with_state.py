"""transformWithState: the user's unchanged StatefulProcessor, row by row or over pandas.

Per batch, rows are grouped by key, and handleInputRows is called once per key, in the order in
which keys first appear. Event-time timers expire when the watermark reaches them, processing-time
timers when the pipeline tells the time. Each time one pass is made over what has expired: a timer
that a handler registers for the past waits for the next. At the end of all streams every event-time
timer expires once.

Each task has a processor of its own, a copy of the one in the plan that lives as long as the task:
what it keeps in attributes is lost when the task moves, only state survives. Time is never asked
for, `now_ms` is given. A replay after a failure may see another processing time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.types import Row, StructField, StructType
from pyspark.worker import RunnerConf

from penstock.errors import EvaluationFailed, PenstockError
from penstock.ops.aggregate import partition_positions
from penstock.ops.api import END_MS, Delta, OnLate, Operator
from penstock.ops.processor_handle import Handle
from penstock.ops.processor_state import Round
from penstock.ops.python_eval import fit, user_errors, with_zone, zone_of
from penstock.ops.watermarks import LateFilter
from penstock.plan import nodes as n
from penstock.state.api import State
from penstock.state.event_time import event_times
from penstock.state.keys import hash_columns, key_objects, normalise_floats
from penstock.state.memory import MemoryState

_PANDAS: Final = frozenset({211, 212})


class TransformWithStateOperator(Operator):
    """A processor at work."""

    def __init__(
        self,
        node: n.TransformWithState,
        state: State,
        on_late: OnLate,
        now_ms: Callable[[], int],
        initial: pa.Table | None = None,
    ) -> None:
        self._node = node
        self._initial = initial
        self._state = state
        self._now_ms = now_ms
        self._name = type(node.processor).__name__
        names = [key.name for key in node.keys]
        placed = partition_positions(node.child, names)
        schema = pa.schema([(key.name, key.type) for key in node.keys])
        self._round = Round(schema, placed)
        self._key_at = [node.child.schema.get_field_index(name) for name in names]
        self._form: _Rows | _Frames = _Frames(node) if node.kind in _PANDAS else _Rows(node)
        self._watermark_ms: int | None = None
        self._late: LateFilter | None = None
        if node.time_mode == "eventtime" and node.event_time is not None:
            time_at = node.child.schema.get_field_index(node.event_time)
            self._late = LateFilter("transformWithState", time_at, on_late)
        self._processor = cast(Any, copy.deepcopy(node.processor))
        self._handle = Handle(state, self._round, node.time_mode)
        with user_errors(f"{self._name}.init"):
            self._processor.init(self._handle)
        self._handle.close_variables()

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        assert delta.weights is None
        if self._late is not None:
            delta = self._late.keep(delta)
        if not len(delta):
            return []
        keys = [normalise_floats(delta.batch.column(index)) for index in self._key_at]
        groups = _group(keys, len(delta))
        self._begin(keys, groups)
        times = self._timer_values()
        out: list[object] = []
        with user_errors(f"{self._name}.handleInputRows"):
            # The processor is a function of one key's rows, written in Python.
            for key, rows in self._form.groups(delta.batch, self._key_at, groups):
                out += self._processor.handleInputRows(key, rows, times)
                self._round.place += 1
        return self._emit(out)

    def _begin(self, keys: list[pa.Array], groups: list[list[int]]) -> None:
        firsts = pa.array([rows[0] for rows in groups], pa.int64())
        self._round.begin([key.take(firsts) for key in keys], self._now_ms())

    def on_start(self) -> list[Delta]:
        """Before the first row of a new query: what the state begins with."""
        if self._initial is not None:
            for batch in self._initial.combine_chunks().to_batches():
                self._begin_state(batch)
        return []

    def _begin_state(self, batch: pa.RecordBatch) -> None:
        """Every task is given all rows, and takes those of its own keys."""
        count = len(self._node.keys)
        keys = [normalise_floats(column) for column in batch.columns[:count]]
        placed = [keys[position] for position in self._round.placed]
        owned = pa.array(self._state.owns(hash_columns(placed, batch.num_rows)))
        batch = batch.filter(owned)
        keys = [key.filter(owned) for key in keys]
        if not batch.num_rows:
            return
        groups = _group(keys, batch.num_rows)
        self._begin(keys, groups)
        times = self._timer_values()
        data, key_at = _without_repeats(batch, self._node)
        with user_errors(f"{self._name}.handleInitialState"):
            for key, parts in self._form.groups(data, key_at, groups):
                for part in parts:
                    self._processor.handleInitialState(key, part, times)
                self._round.place += 1
        self._handle.flush()

    def on_watermark(self, watermark_ms: int) -> list[Delta]:
        self._watermark_ms = watermark_ms
        if self._late is not None:
            self._late.watermark_ms = watermark_ms
        return self._expire(watermark_ms) if self._node.time_mode == "eventtime" else []

    def on_time(self) -> list[Delta]:
        if self._node.time_mode != "processingtime":
            return []
        now_ms = self._now_ms()
        self._handle.sweep(now_ms)
        return self._expire(now_ms)

    def _expire(self, time_ms: int) -> list[Delta]:
        keys, expiries = self._handle.timers.expired(time_ms)
        if not expiries:
            return []
        groups = _group(keys, len(expiries))
        self._begin(keys, groups)
        times = self._timer_values()
        key_of = {row: place for place, rows in enumerate(groups) for row in rows}
        named = list(zip(*(key.to_pylist() for key in keys), strict=True))
        out: list[object] = []
        with user_errors(f"{self._name}.handleExpiredTimer"):
            for row, expiry_ms in enumerate(expiries):
                self._round.place = key_of[row]
                out += self._processor.handleExpiredTimer(
                    key=named[row],
                    timerValues=times,
                    expiredTimerInfo=ExpiredTimerInfo(expiry_ms),
                )
                self._handle.timers.remove(expiry_ms)
        return self._emit(out)

    def _timer_values(self) -> TimerValues:
        watermark_ms = self._watermark_ms
        match self._node.time_mode:
            case "none":
                return TimerValues(-1, -1)
            case "processingtime":
                return TimerValues(self._round.now_ms, -1 if watermark_ms is None else watermark_ms)
            case "eventtime":
                # Spark's watermark begins at 1970, and never goes back.
                return TimerValues(self._round.now_ms, max(watermark_ms or 0, 0))

    def _emit(self, results: list[object]) -> list[Delta]:
        self._handle.flush()
        if not results:
            return []
        with user_errors(f"the result of {self._name}"):
            columns = self._form.columns(results)
        fitted = [fit(c, f.type) for c, f in zip(columns, self._node.schema, strict=True)]
        batch = pa.RecordBatch.from_arrays(fitted, schema=self._node.schema)
        self._check_output_time(batch)
        return [Delta(batch)] if batch.num_rows else []

    def _check_output_time(self, batch: pa.RecordBatch) -> None:
        name, bound = self._node.output_time, self._watermark_ms
        if name is None or bound is None or bound == END_MS:
            return
        older = pc.less(event_times(batch.column(name)), bound * 1000)
        if pc.any(older).as_py():
            raise EvaluationFailed(
                "EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED",
                f"{self._name} emitted a row whose {name} is before the watermark",
            )


class _Rows:
    """transformWithState: one Row at a time, with the values that Arrow gives."""

    def __init__(self, node: n.TransformWithState) -> None:
        self._zone = zone_of(dict(node.settings))
        self._output = node.output_schema

    def groups(
        self, batch: pa.RecordBatch, key_at: list[int], groups: list[list[int]]
    ) -> Iterator[tuple[tuple[object, ...], Iterator[Any]]]:
        """Every group's key and rows."""
        kind = Row(*_user_names(batch))
        shown = _in_zone(batch, self._zone)
        rows = [kind(*values) for values in zip(*(c.to_pylist() for c in shown), strict=True)]
        for group in groups:
            first = rows[group[0]]
            yield tuple(first[column] for column in key_at), iter([rows[row] for row in group])

    def columns(self, results: list[Any]) -> list[pa.Array]:
        """The rows that a processor returned, as columns."""
        dictionaries = [row.asDict(True) for row in results]
        return list(pa.RecordBatch.from_pylist(dictionaries, schema=self._output).columns)


class _Frames:
    """transformWithStateInPandas: one DataFrame per key and batch."""

    def __init__(self, node: n.TransformWithState) -> None:
        self._conf = RunnerConf(dict(node.settings))
        self._zone = zone_of(dict(node.settings))
        result = from_arrow_schema(node.output_schema)
        self._output = StructType([StructField("_0", result)])

    def groups(
        self, batch: pa.RecordBatch, key_at: list[int], groups: list[list[int]]
    ) -> Iterator[tuple[tuple[object, ...], Iterator[Any]]]:
        """Every group's key and rows. The detour over tuples is Spark's, and shows in dtypes."""
        import pandas as pd  # type: ignore[import-untyped]

        named = pa.RecordBatch.from_arrays(_in_zone(batch, self._zone), _user_names(batch))
        series = ArrowBatchTransformer.to_pandas(
            named,
            timezone=self._zone,
            prefer_int_ext_dtype=self._conf.prefer_int_ext_dtype,
        )
        rows = list(pd.concat(series, axis=1).itertuples(index=False))
        for group in groups:
            first = rows[group[0]]
            frame = pd.DataFrame([rows[row] for row in group])
            yield tuple(first[column] for column in key_at), iter([frame])

    def columns(self, results: list[Any]) -> list[pa.Array]:
        """The DataFrames that a processor returned, as columns."""
        batches = [
            PandasToArrowConversion.convert(
                [result],
                self._output,
                timezone=self._conf.timezone,
                safecheck=self._conf.safecheck,
                arrow_cast=True,
                assign_cols_by_name=self._conf.assign_cols_by_name,
                int_to_decimal_coercion_enabled=self._conf.int_to_decimal_coercion_enabled,
            )
            for result in results
        ]
        return list(pa.concat_arrays([batch.column(0) for batch in batches]).flatten())


def judge_processor(node: n.TransformWithState) -> str | None:
    """Why the processor cannot run, or None; its init is called, as Spark does when planning."""
    name = type(node.processor).__name__
    if not node.keys:
        return f"the processor {name} over rows without a key"
    try:
        operator = TransformWithStateOperator(node, MemoryState(), lambda *_: None, lambda: 0)
        operator._processor.close()
    except PenstockError as error:
        return f"the processor {name}: {error}"
    return None


def _group(keys: list[pa.Array], rows: int) -> list[list[int]]:
    """The rows of each key, keys in order of first appearance."""
    groups: dict[object, list[int]] = {}
    for row, key in enumerate(key_objects(keys, rows)):
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def _without_repeats(
    batch: pa.RecordBatch, node: n.TransformWithState
) -> tuple[pa.RecordBatch, list[int]]:
    """Initial rows without the keys that Spark put before them, and where the keys are."""
    assert node.initial is not None
    unique = node.initial.schema.names
    count = len(node.keys)
    leading = [i for i in range(count) if unique[i] not in unique[count:]]
    kept = [*leading, *range(count, len(unique))]
    names = [unique[i] for i in kept]
    data = pa.RecordBatch.from_arrays([batch.column(i) for i in kept], names)
    return data, [names.index(name) for name in unique[:count]]


def _user_names(batch: pa.RecordBatch) -> list[str]:
    """The user's names of a batch's columns: `name#id` without the id."""
    return [name.rpartition("#")[0] for name in batch.schema.names]


def _in_zone(batch: pa.RecordBatch, zone: str) -> list[pa.Array]:
    schema = with_zone(batch.schema, zone)
    return [fit(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
