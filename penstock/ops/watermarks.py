"""Event time: where watermarks come from, which rows come too late, and which may be forgotten.

The watermark of a stream is the largest event time seen, in whole milliseconds, minus the delay. It
moves between batches only: a row is late by the watermark that earlier batches made, which is also
Spark's rule for its micro-batches. Late rows are counted and handed to whoever asks for them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.api import END_MS, START_MS, Delta, OnLate, Operator
from penstock.plan import nodes as n
from penstock.state.api import Slots, State, Table
from penstock.state.event_time import NEVER_US, event_times, event_times_us


class WatermarkOperator(Operator):
    """Passes rows through and remembers the largest event time, once they have come through."""

    def __init__(self, node: n.Watermark, state: State) -> None:
        self._index = node.child.schema.get_field_index(node.column)
        self._delay_ms = node.delay_ms
        self._largest = state.value("largest_ms", is_largest=True)
        #: Of rows that are still on their way to the root.
        self._passing: int | None = None

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
                millis = largest // 1000
                if self._passing is None or millis > self._passing:
                    self._passing = millis
        return [delta]

    def settle(self, *, is_done: bool) -> None:
        """The rows that passed have reached the root; or one of them failed, and none has."""
        passed, self._passing = self._passing, None
        if is_done and passed is not None:
            seen = self._largest.get()
            if seen is None or passed > seen:
                self._largest.set(passed)


#: Slots of a block: as many times as a few pages have.
_BLOCK_SLOTS = 2048


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


class Expiry:
    """When rows of a table may be forgotten, in one of its columns.

    Slots are looked at in blocks: only in those with a row whose time may have passed. Rows that
    came together stand together, so time moves on through few blocks at once. After a restart
    nothing is known of them, and the first look is at all.
    """

    def __init__(self, table: Table, column: str) -> None:
        self._table = table
        self._column = column
        #: By block, no row of it expires before; None: not known.
        self._earliest_us: npt.NDArray[np.int64] | None = None

    def note(self, slots: Slots, times_us: npt.NDArray[np.int64]) -> None:
        """Note when these rows expire; their slots must be distinct."""
        self._table.write(self._column, slots, times_us)
        if self._earliest_us is not None:
            self._note(self._earliest_us, slots, times_us)

    def _note(
        self, earliest_us: npt.NDArray[np.int64], slots: Slots, times_us: npt.NDArray[np.int64]
    ) -> None:
        blocks = slots // _BLOCK_SLOTS
        needed = int(blocks.max(initial=-1)) + 1
        if needed > len(earliest_us):
            more = np.full(max(needed, 2 * len(earliest_us)), NEVER_US)
            more[: len(earliest_us)] = earliest_us
            self._earliest_us = earliest_us = more
        np.minimum.at(earliest_us, blocks, times_us)

    def passed(self, bound_us: int) -> Slots:
        """The rows that expire at or before the bound. The caller deletes them."""
        slots = self._to_look_at(bound_us)
        if not len(slots):
            return slots
        times = self._table.read(self._column, slots).astype(np.int64)
        gone = times <= bound_us
        assert self._earliest_us is not None
        self._note(self._earliest_us, slots[~gone], times[~gone])
        return slots[gone]

    def _to_look_at(self, bound_us: int) -> Slots:
        """The rows of blocks that may have one; their blocks are not known of afterwards."""
        if self._earliest_us is None:
            self._earliest_us = np.full(1, NEVER_US)
            return self._table.slots()
        due = np.flatnonzero(self._earliest_us <= bound_us)
        self._earliest_us[due] = NEVER_US
        within = due[:, None] * _BLOCK_SLOTS + np.arange(_BLOCK_SLOTS)
        return self._table.slots(within.reshape(-1)) if len(due) else due
