"""Event time: where watermarks come from, and which rows come too late.

The watermark of a stream is the largest event time seen, in whole milliseconds, minus the delay. It
moves between batches only: a row is late by the watermark that earlier batches made, which is also
Spark's rule for its micro-batches. Late rows are counted and handed to whoever asks for them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.api import END_MS, START_MS, Delta, OnLate
from penstock.plan import nodes as n
from penstock.state.api import State
from penstock.state.event_time import event_times, event_times_us


class WatermarkOperator:
    """Passes rows through and remembers the largest event time."""

    def __init__(self, node: n.Watermark, state: State) -> None:
        self._index = node.child.schema.get_field_index(node.column)
        self._delay_ms = node.delay_ms
        self._largest = state.value("largest_ms")

    def advance(self, upstream_ms: int | None) -> int:
        """The watermark now. The end of the input is passed on."""
        if upstream_ms == END_MS:
            return END_MS
        largest = self._largest.get()
        return START_MS if largest is None else largest - self._delay_ms

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        times = delta.batch.column(self._index)
        if len(times):
            largest = pc.max(event_times(times)).as_py()
            if largest is not None:
                seen = self._largest.get()
                millis = largest // 1000
                if seen is None or millis > seen:
                    self._largest.set(millis)
        return [delta]

    def on_watermark(self, watermark_ms: int) -> list[Delta]:
        return []


class LateFilter:
    """Keeps rows whose event time lies above the watermark; a null event time is never late."""

    def __init__(self, name: str, index: int, on_late: OnLate) -> None:
        self._name = name
        self._index = index
        self._on_late = on_late
        self.watermark_ms: int | None = None

    def keep(self, delta: Delta) -> Delta:
        if self.watermark_ms is None or not len(delta):
            return delta
        late = self.is_late(delta.batch.column(self._index))
        if not late.any():
            return delta
        self._on_late(self._name, delta.where(late))
        return delta.where(~late)

    def is_late(self, column: pa.Array) -> npt.NDArray[np.bool_]:
        assert self.watermark_ms is not None
        return event_times_us(column) <= self.watermark_ms * 1000
