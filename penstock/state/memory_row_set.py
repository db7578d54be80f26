"""Rows by key in memory: sorted runs, merged when they have grown alike.

A run is a batch sorted by the hash of its keys. New rows become a run; while the last run is at
least as large as half the one before, the two are merged, so that there are few runs and each row
is merged a logarithmic number of times. Looking up keys is a binary search per run, all keys at
once. Taking rows back adds them with negative weight; merging strikes out what cancels.

Law: the multiset of rows is the sum of all weights ever inserted, minus what was evicted. Equal
hashes are never taken for equal keys: fetch compares the keys themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.state.api import Change
from penstock.state.keys import Hashes, hash_columns, key_objects

Ints = npt.NDArray[np.int64]
_WEIGHT = "weight"


@dataclass(slots=True)
class _Run:
    hashes: Hashes
    rows: pa.RecordBatch
    weights: Ints
    #: Smallest event time, in microseconds; None if rows have none.
    earliest_us: int | None

    def __len__(self) -> int:
        return len(self.hashes)


class MemoryRowSet:
    """See api.RowSet."""

    def __init__(
        self,
        rows: pa.Schema,
        keys: tuple[int, ...],
        event_time: int | None,
        partition: tuple[int, ...],
    ) -> None:
        self.partition = partition
        self._schema = rows
        self._keys = keys
        self._event_time = event_time
        self._runs: list[_Run] = []
        self._log: list[Change] = []

    def __len__(self) -> int:
        return sum(int(run.weights.sum()) for run in self._runs)

    def insert(self, rows: pa.RecordBatch, weights: Ints | None) -> None:
        if not rows.num_rows:
            return
        if weights is None:
            weights = np.ones(rows.num_rows, np.int64)
        self._log.append(Change("", "add", _with_weights(rows, weights)))
        self._insert(rows, weights)

    def _insert(self, rows: pa.RecordBatch, weights: Ints) -> None:
        hashes = hash_columns([rows.column(index) for index in self._keys], rows.num_rows)
        order = np.argsort(hashes, kind="stable")
        run = _Run(hashes[order], rows.take(pa.array(order)), weights[order], None)
        run.earliest_us = self._earliest(run.rows)
        self._runs.append(run)
        while len(self._runs) > 1 and 2 * len(self._runs[-1]) >= len(self._runs[-2]):
            newer = self._runs.pop()
            merged = self._merge(self._runs.pop(), newer)
            if len(merged):
                self._runs.append(merged)

    def _merge(self, older: _Run, newer: _Run) -> _Run:
        hashes = np.concatenate([older.hashes, newer.hashes])
        order = np.argsort(hashes, kind="stable")
        rows = pa.concat_batches([older.rows, newer.rows]).take(pa.array(order))
        weights = np.concatenate([older.weights, newer.weights])[order]
        hashes = hashes[order]
        if (weights < 0).any():
            hashes, rows, weights = _consolidate(hashes, rows, weights)
        return _Run(hashes, rows, weights, self._earliest(rows))

    def fetch(self, keys: Sequence[pa.Array]) -> tuple[Ints, pa.RecordBatch, Ints]:
        count = len(keys[0]) if keys else 1
        hashes = hash_columns(keys, count)
        probes: list[Ints] = []
        found: list[pa.RecordBatch] = []
        weights: list[Ints] = []
        for run in self._runs:
            low = np.searchsorted(run.hashes, hashes, "left")
            high = np.searchsorted(run.hashes, hashes, "right")
            lengths = high - low
            total = int(lengths.sum())
            if not total:
                continue
            probe = np.repeat(np.arange(count), lengths)
            starts = np.cumsum(lengths) - lengths
            places = np.arange(total) - np.repeat(starts - low, lengths)
            rows = run.rows.take(pa.array(places))
            equal = self._equal(keys, probe, rows)
            if not equal.all():
                probe, places = probe[equal], places[equal]
                rows = rows.filter(pa.array(equal))
            probes.append(probe)
            found.append(rows)
            weights.append(run.weights[places])
        return self._gather(probes, found, weights)

    def _equal(
        self, keys: Sequence[pa.Array], probe: Ints, rows: pa.RecordBatch
    ) -> npt.NDArray[np.bool_]:
        equal = np.ones(len(probe), bool)
        places = pa.array(probe)
        for key, index in zip(keys, self._keys, strict=True):
            equal &= _same(key.take(places), rows.column(index))
        return equal

    def _gather(
        self, probes: list[Ints], found: list[pa.RecordBatch], weights: list[Ints]
    ) -> tuple[Ints, pa.RecordBatch, Ints]:
        if not found:
            return np.zeros(0, np.int64), self._empty(), np.zeros(0, np.int64)
        if len(found) == 1:
            probe, rows, weight = probes[0], found[0], weights[0]
        else:
            probe = np.concatenate(probes)
            order = np.argsort(probe, kind="stable")
            probe = probe[order]
            rows = pa.concat_batches(found).take(pa.array(order))
            weight = np.concatenate(weights)[order]
        if (weight < 0).any():
            probe, rows, weight = _consolidate(probe, rows, weight)
        return probe, rows, weight

    def _empty(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema=self._schema)

    # -- event time

    def _earliest(self, rows: pa.RecordBatch) -> int | None:
        if self._event_time is None or not rows.num_rows:
            return None
        return pc.min(self._times(rows)).as_py()

    def _times(self, rows: pa.RecordBatch) -> pa.Array:
        assert self._event_time is not None
        column = rows.column(self._event_time)
        if pa.types.is_struct(column.type):
            column = pc.struct_field(column, "end")
        return column.cast(pa.int64())

    def evict(self, bound_us: int) -> None:
        if self._evict(bound_us):
            bound = pa.record_batch([[bound_us]], schema=pa.schema([("bound_us", pa.int64())]))
            self._log.append(Change("", "evict", bound))

    def _evict(self, bound_us: int) -> bool:
        changed = False
        kept: list[_Run] = []
        for run in self._runs:
            if run.earliest_us is None or run.earliest_us > bound_us:
                kept.append(run)
                continue
            changed = True
            alive = self._alive(run, bound_us)
            if alive.any():
                rows = run.rows.filter(pa.array(alive))
                kept.append(_Run(run.hashes[alive], rows, run.weights[alive], self._earliest(rows)))
        self._runs = kept
        return changed

    def _alive(self, run: _Run, bound_us: int) -> npt.NDArray[np.bool_]:
        """Rows without an event time stay."""
        alive = pc.fill_null(pc.greater(self._times(run.rows), bound_us), True)
        return alive.to_numpy(zero_copy_only=False)

    def expired(self, bound_us: int) -> tuple[pa.RecordBatch, Ints]:
        parts: list[pa.RecordBatch] = []
        weights: list[Ints] = []
        hashes: list[Hashes] = []
        for run in self._runs:
            if run.earliest_us is not None and run.earliest_us <= bound_us:
                gone = ~self._alive(run, bound_us)
                parts.append(run.rows.filter(pa.array(gone)))
                weights.append(run.weights[gone])
                hashes.append(run.hashes[gone])
        return self._whole(hashes, parts, weights)

    def rows(self) -> tuple[pa.RecordBatch, Ints]:
        return self._whole(
            [run.hashes for run in self._runs],
            [run.rows for run in self._runs],
            [run.weights for run in self._runs],
        )

    def _whole(
        self, hashes: list[Hashes], parts: list[pa.RecordBatch], weights: list[Ints]
    ) -> tuple[pa.RecordBatch, Ints]:
        if not parts:
            return self._empty(), np.zeros(0, np.int64)
        _, rows, weight = _consolidate(
            np.concatenate(hashes), pa.concat_batches(parts), np.concatenate(weights)
        )
        return rows, weight

    # -- snapshots and changes

    def export(self, name: str) -> list[Change]:
        rows, weights = self.rows()
        return [Change(name, "add", _with_weights(rows, weights))] if rows.num_rows else []

    def take_changes(self, name: str) -> list[Change]:
        log, self._log = self._log, []
        return [Change(name, change.kind, change.rows) for change in log]

    def apply(self, change: Change) -> None:
        if change.kind == "evict":
            self._evict(change.rows.column(0)[0].as_py())
            return
        weights = change.rows.column(len(self._schema)).to_numpy()
        rows = pa.RecordBatch.from_arrays(change.rows.columns[:-1], schema=self._schema)
        self._insert(rows, weights)


def _with_weights(rows: pa.RecordBatch, weights: Ints) -> pa.RecordBatch:
    return rows.append_column(pa.field(_WEIGHT, pa.int64()), pa.array(weights))


def _same(one: pa.Array, two: pa.Array) -> npt.NDArray[np.bool_]:
    """Where two key columns are equal as grouping has it: nulls alike, NaNs alike."""
    kind = one.type
    if pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind):
        # Nested keys are rare; their objects are compared one by one.
        pairs = zip(key_objects([one], len(one)), key_objects([two], len(two)), strict=True)
        return np.fromiter((a == b for a, b in pairs), bool, len(one))
    equal = pc.equal(one, two)
    if equal.null_count:
        both = pc.and_(one.is_null(), two.is_null())
        equal = pc.fill_null(equal, False)
        equal = pc.or_(equal, both)
    return equal.to_numpy(zero_copy_only=False)


def _consolidate(
    groups: npt.NDArray[Any], rows: pa.RecordBatch, weights: Ints
) -> tuple[npt.NDArray[Any], pa.RecordBatch, Ints]:
    """Equal rows of equal groups become one with the sum of weights; zeros vanish.

    Rows are compared as objects: only streams that take rows back come here.
    """
    if not (weights < 0).any():
        return groups, rows, weights
    objects = list(zip(groups.tolist(), key_objects(rows.columns, rows.num_rows), strict=True))
    first: dict[object, int] = {}
    place = np.fromiter(
        (first.setdefault(key, position) for position, key in enumerate(objects)),
        np.int64,
        len(objects),
    )
    totals = np.zeros(len(objects), np.int64)
    np.add.at(totals, place, weights)
    kept = np.flatnonzero(totals)
    return groups[kept], rows.take(pa.array(kept)), totals[kept]
