"""dropDuplicates: the first row of each key passes, later ones do not.

State per key: nothing but the key, and when it may be forgotten.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.ops.aggregate import partition_positions
from penstock.ops.api import Delta, OnLate, Operator
from penstock.ops.watermarks import Expiry, LateFilter
from penstock.plan import nodes as n
from penstock.state.api import State
from penstock.state.event_time import NEVER_US, event_times
from penstock.state.keys import normalise_floats

_EXPIRES = "expires_us"


class DeduplicateOperator(Operator):
    """Over append-only rows; changing ones are counted by an Aggregate instead."""

    def __init__(self, node: n.Deduplicate, state: State, on_late: OnLate) -> None:
        schema = node.child.schema
        self._key_at = [schema.get_field_index(key.name) for key in node.keys]
        self._time_at: int | None = None
        self._extra_us = (node.within_ms or 0) * 1000
        self._late: LateFilter | None = None
        if node.event_time is not None:
            self._time_at = schema.get_field_index(node.event_time)
            self._late = LateFilter("deduplicate", self._time_at, on_late)
        keys = pa.schema([(key.name, key.type) for key in node.keys])
        placed = partition_positions(node.child, [key.name for key in node.keys])
        columns = {} if self._late is None else {_EXPIRES: pa.int64()}
        self._table = state.table("seen", keys, columns, placed, is_by_key=self._late is None)
        self._expiry = Expiry(self._table, _EXPIRES)

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        if self._late is not None:
            delta = self._late.keep(delta)
        if not len(delta):
            return []
        assert delta.weights is None
        keys = [normalise_floats(delta.batch.column(index)) for index in self._key_at]
        slots, is_new = self._table.locate(keys)
        fresh = np.flatnonzero(is_new) if keys else np.arange(int(is_new[0]))
        if not len(fresh):
            return []
        if not keys:
            slots = np.zeros(len(delta), np.int64)
        _, first = np.unique(slots[fresh], return_index=True)
        passed = fresh[np.sort(first)]
        self._table.touch(slots[passed])
        if self._time_at is not None:
            times = event_times(delta.batch.column(self._time_at)).take(pa.array(passed))
            expires = times.fill_null(NEVER_US - self._extra_us).to_numpy() + self._extra_us
            self._expiry.note(slots[passed], expires)
        return [delta.take(passed)]

    def on_watermark(self, watermark_ms: int) -> list[Delta]:
        if self._late is None:
            return []
        self._late.watermark_ms = watermark_ms
        self._table.delete(self._expiry.passed(watermark_ms * 1000))
        return []
