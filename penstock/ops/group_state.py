"""applyInPandasWithState: the user's unchanged function, and a GroupState over our tables.

Per batch, rows are grouped by key, and the function is called once per key, in the order in which
keys first appear, with pyspark's own GroupState. What it keeps, and when the key times out, is one
row of a table. Values are kept as java_values.py makes them, which is what Spark would have kept of
them, and are never pickled.

A key times out when the watermark, or processing time, has passed its timeout; the function is then
called once, without rows. As with Spark, a call with rows that sets no timeout and leaves the value
alone leaves the timeout, too; one that changes the value and sets none clears it. After a call for
a timeout that sets no new one there is none: Spark would call the function in every trigger.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import StructField, StructType
from pyspark.worker import RunnerConf

from penstock.errors import EvaluationFailed
from penstock.ops.aggregate import partition_positions
from penstock.ops.api import END_MS, Delta, OnLate, Operator
from penstock.ops.processor_handle import Codec
from penstock.ops.processor_state import VALUE
from penstock.ops.python_eval import exactly, fit, user_errors, with_zone, zone_of
from penstock.ops.watermarks import Expiry, LateFilter
from penstock.plan import nodes as n
from penstock.state.api import State
from penstock.state.equal_rows import group_rows
from penstock.state.event_time import NEVER_US
from penstock.state.keys import normalise_floats

_TIMEOUT: Final = "timeout_ms"


class GroupStateOperator(Operator):
    """Such a function at work."""

    def __init__(
        self,
        node: n.GroupedMapWithState,
        state: State,
        on_late: OnLate,
        now_ms: Callable[[], int],
    ) -> None:
        self._node = node
        self._now_ms = now_ms
        schema = node.child.schema
        names = [key.name for key in node.keys]
        self._key_at = [schema.get_field_index(name) for name in names]
        self._value_type = StructType.fromJson(json.loads(node.state_type))
        self._codec = Codec(self._value_type)
        self._table = state.table(
            "groups",
            pa.schema([(key.name, key.type) for key in node.keys]),
            {VALUE: self._codec.type, _TIMEOUT: pa.int64()},
            partition_positions(node.child, names),
        )
        self._expiry = Expiry(self._table, _TIMEOUT)
        self._frames = _Frames(node)
        #: The last watermark before the end of the input.
        self._watermark_ms = 0
        self._late: LateFilter | None = None
        if node.timeout == "EventTimeTimeout" and node.event_time is not None:
            self._late = LateFilter(node.name, schema.get_field_index(node.event_time), on_late)

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        assert delta.weights is None
        if self._late is not None:
            delta = self._late.keep(delta)
        if not len(delta):
            return []
        keys = [normalise_floats(delta.batch.column(at)) for at in self._key_at]
        first, groups = group_rows(keys, len(delta))
        keys = [key.take(pa.array(first)) for key in keys]
        return self._call(keys, self._frames.cut(delta.batch, groups), has_timed_out=False)

    def on_watermark(self, watermark_ms: int) -> list[Delta]:
        if watermark_ms != END_MS:
            self._watermark_ms = max(self._watermark_ms, watermark_ms)
        if self._late is not None:
            self._late.watermark_ms = watermark_ms
        if self._node.timeout != "EventTimeTimeout":
            return []
        return self._time_out(watermark_ms)

    def on_time(self) -> list[Delta]:
        if self._node.timeout != "ProcessingTimeTimeout":
            return []
        return self._time_out(self._now_ms())

    def _time_out(self, time_ms: int) -> list[Delta]:
        slots = self._expiry.passed(time_ms - 1)
        if not len(slots):
            return []
        keys = self._table.keys(slots)
        frames = self._frames.without_rows(keys, self._key_at)
        return self._call(keys, frames, has_timed_out=True)

    def _call(
        self, keys: list[pa.Array], frames: Iterator[tuple[Any, Any]], *, has_timed_out: bool
    ) -> list[Delta]:
        """Call the function for distinct keys, and keep what it asks for."""
        slots = self._table.find(keys)
        kept = [None] * len(slots)
        there = np.flatnonzero(slots >= 0)
        for place, value in zip(there.tolist(), self._table.read(VALUE, slots[there]), strict=True):
            kept[place] = value
        now_ms = self._now_ms()
        states = [self._state_of(value, now_ms, has_timed_out) for value in kept]
        out: list[Any] = []
        with user_errors(self._node.name):
            # The function is one of a single key's rows, written in Python.
            for state, (key, frame) in zip(states, frames, strict=True):
                out += _checked(self._node, self._node.function(key, iter([frame]), state))
            values = [self._codec.keep(state._value) if state.exists else None for state in states]
        self._keep(keys, slots, states, values, has_timed_out)
        return self._emit(out)

    def _state_of(self, kept: Any, now_ms: int, has_timed_out: bool) -> GroupState:
        has_watermark = self._node.event_time is not None
        value: Any = None if kept is None else self._codec.show(kept)
        return GroupState(
            optionalValue=value,
            batchProcessingTimeMs=now_ms,
            eventTimeWatermarkMs=self._watermark_ms if has_watermark else GroupState.NO_TIMESTAMP,
            timeoutConf=self._node.timeout,
            hasTimedOut=has_timed_out,
            watermarkPresent=has_watermark,
            defined=kept is not None,
            updated=False,
            removed=False,
            timeoutTimestamp=GroupState.NO_TIMESTAMP,
            keyAsUnsafe=b"",
            valueSchema=self._value_type,
        )

    def _keep(
        self,
        keys: list[pa.Array],
        slots: Any,
        states: list[GroupState],
        values: list[Any],
        has_timed_out: bool,
    ) -> None:
        timeouts = [int(state._timeout_timestamp) for state in states]
        is_set = [timeout != GroupState.NO_TIMESTAMP for timeout in timeouts]
        gone = [
            place
            for place, state in enumerate(states)
            if state._removed and not is_set[place] and slots[place] >= 0
        ]
        written = [
            place
            for place, state in enumerate(states)
            if (is_set[place] or state._updated or has_timed_out)
            and not (state._removed and not is_set[place])
        ]
        self._table.delete(slots[gone])
        if not written:
            return
        places = pa.array(written, pa.int64())
        own, _ = self._table.locate([key.take(places) for key in keys])
        chosen = [values[place] for place in written]
        self._table.write(VALUE, own, np.fromiter(chosen, object, len(chosen)))
        times = [timeouts[place] if is_set[place] else NEVER_US for place in written]
        self._expiry.note(own, np.array(times, np.int64))
        self._table.touch(own)

    def _emit(self, frames: list[Any]) -> list[Delta]:
        frames = [frame for frame in frames if len(frame)]
        if not frames:
            return []
        with user_errors(f"the result of {self._node.name}"):
            columns = self._frames.columns(frames)
        fitted = [fit(c, f.type) for c, f in zip(columns, self._node.schema, strict=True)]
        return [Delta(pa.RecordBatch.from_arrays(fitted, schema=self._node.schema))]


def _checked(node: n.GroupedMapWithState, results: Any) -> Iterator[Any]:
    """The DataFrames that a function gave, if that is what it gave."""
    import pandas as pd  # type: ignore[import-untyped]

    if isinstance(results, pd.DataFrame):
        raise TypeError(f"{node.name} returned a DataFrame, not an iterable of them")
    for frame in results:
        if not isinstance(frame, pd.DataFrame):
            raise TypeError(f"{node.name} gave {type(frame).__name__}, not a pandas.DataFrame")
        declared = len(node.output_schema)
        if len(frame.columns) != declared and not (frame.empty and not len(frame.columns)):
            raise EvaluationFailed(
                "PYTHON_EXCEPTION",
                f"{node.name} gave {len(frame.columns)} columns, {declared} were declared",
            )
        yield frame


class _Frames:
    """Rows as the function sees them, and what it returns, converted as pyspark's worker does."""

    def __init__(self, node: n.GroupedMapWithState) -> None:
        self._node = node
        self._conf = RunnerConf(dict(node.settings))
        self._zone = zone_of(dict(node.settings))
        self._schema = with_zone(node.input_schema, self._zone)
        self._key_at = [node.child.schema.get_field_index(key.name) for key in node.keys]
        self._output = StructType([StructField("_0", from_arrow_schema(node.output_schema))])

    def cut(self, batch: pa.RecordBatch, groups: Any) -> Iterator[tuple[Any, Any]]:
        """Every group's key and rows."""
        order = groups.argsort(kind="stable")
        rows = batch.take(pa.array(order))
        bounds = np.flatnonzero(np.diff(groups[order], prepend=-1, append=-1))
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            series = self._series(rows.slice(begin, end - begin).columns)
            yield self._key(series), self._frame(series)

    def without_rows(self, keys: list[pa.Array], key_at: list[int]) -> Iterator[tuple[Any, Any]]:
        """Every key, and a DataFrame with the columns alone."""
        import pandas as pd

        for place in range(len(keys[0])):
            columns = [pa.nulls(1, field.type) for field in self._schema]
            for at, key in zip(key_at, keys, strict=True):
                columns[at] = key.slice(place, 1)
            series = self._series(columns)
            yield self._key(series), pd.DataFrame(columns=self._frame(series).columns)

    def _series(self, columns: list[pa.Array]) -> list[Any]:
        arrays = [exactly(c, f.type) for c, f in zip(columns, self._schema, strict=True)]
        return ArrowBatchTransformer.to_pandas(
            pa.RecordBatch.from_arrays(arrays, schema=self._schema),
            timezone=self._zone,
            struct_in_pandas="dict",
            ndarray_as_list=False,
            prefer_int_ext_dtype=self._conf.prefer_int_ext_dtype,
            df_for_struct=False,
        )

    def _key(self, series: list[Any]) -> tuple[Any, ...]:
        return tuple(series[at][0] for at in self._key_at)

    def _frame(self, series: list[Any]) -> Any:
        import pandas as pd

        return pd.concat([series[at] for at in self._node.values], axis=1)

    def columns(self, frames: list[Any]) -> list[pa.Array]:
        """The DataFrames that a function returned, as columns."""
        import pandas as pd

        batch = PandasToArrowConversion.convert(
            [pd.concat(frames, ignore_index=True)],
            self._output,
            timezone=self._conf.timezone,
            safecheck=self._conf.safecheck,
            arrow_cast=True,
            assign_cols_by_name=self._conf.assign_cols_by_name,
            int_to_decimal_coercion_enabled=self._conf.int_to_decimal_coercion_enabled,
        )
        return list(batch.column(0).flatten())
