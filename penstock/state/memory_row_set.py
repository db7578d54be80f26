"""Rows by key in memory: sorted runs, merged when they have grown alike.

A run is a batch and an index of it, sorted by the hash of its keys. New rows become a run; while
the last run is at least as large as half the one before, the two are merged, so that there are few
runs and each row is merged a logarithmic number of times. Merging appends rows and merges indexes:
rows may be wide, and gathering them would cost more than all the rest. Looking up keys is a binary
search per run, all keys at once. Taking rows back adds them with negative weight; merging strikes
out what cancels.

Law: the multiset of rows is the sum of all weights ever inserted, minus what was evicted. Equal
hashes are never taken for equal keys: fetch compares the keys themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.state.api import Change
from penstock.state.keys import Hashes, canonical_ints, hash_columns, key_objects

Ints = npt.NDArray[np.int64]
_WEIGHT = "weight"


@dataclass(slots=True)
class _Run:
    #: Sorted hashes of keys, and the place of each one's row.
    hashes: Hashes
    places: Ints
    rows: pa.RecordBatch
    #: By place.
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
        self._runs.append(self._index(rows, weights))
        while len(self._runs) > 1 and 2 * len(self._runs[-1]) >= len(self._runs[-2]):
            newer = self._runs.pop()
            merged = self._merge(self._runs.pop(), newer)
            if len(merged):
                self._runs.append(merged)

    def _index(self, rows: pa.RecordBatch, weights: Ints) -> _Run:
        hashes = hash_columns([rows.column(index) for index in self._keys], rows.num_rows)
        places = np.argsort(hashes, kind="stable")
        return _Run(hashes[places], places, rows, weights, self._earliest(rows))

    def _merge(self, older: _Run, newer: _Run) -> _Run:
        rows = pa.concat_batches([older.rows, newer.rows])
        weights = np.concatenate([older.weights, newer.weights])
        hashes = np.concatenate([older.hashes, newer.hashes])
        places = np.concatenate([older.places, newer.places + len(older)])
        if (weights < 0).any():
            by_place = np.empty_like(hashes)
            by_place[places] = hashes
            kept, weights = _strike_out(by_place, rows, weights)
            rows, hashes, places = rows.take(pa.array(kept)), by_place[kept], np.arange(len(kept))
        order = np.argsort(hashes, kind="stable")
        times = [t for t in (older.earliest_us, newer.earliest_us) if t is not None]
        return _Run(hashes[order], places[order], rows, weights, min(times, default=None))

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
            places = run.places[np.arange(total) - np.repeat(starts - low, lengths)]
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
            kept, weight = _strike_out(probe, rows, weight)
            probe, rows = probe[kept], rows.take(pa.array(kept))
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
                kept.append(self._index(run.rows.filter(pa.array(alive)), run.weights[alive]))
        self._runs = kept
        return changed

    def _alive(self, run: _Run, bound_us: int) -> npt.NDArray[np.bool_]:
        """Rows without an event time stay."""
        alive = pc.fill_null(pc.greater(self._times(run.rows), bound_us), True)
        return alive.to_numpy(zero_copy_only=False)

    def expired(self, bound_us: int) -> tuple[pa.RecordBatch, Ints]:
        parts: list[pa.RecordBatch] = []
        weights: list[Ints] = []
        for run in self._runs:
            if run.earliest_us is not None and run.earliest_us <= bound_us:
                gone = ~self._alive(run, bound_us)
                parts.append(run.rows.filter(pa.array(gone)))
                weights.append(run.weights[gone])
        return self._whole(parts, weights)

    def rows(self) -> tuple[pa.RecordBatch, Ints]:
        return self._whole([run.rows for run in self._runs], [run.weights for run in self._runs])

    def _whole(
        self, parts: list[pa.RecordBatch], weights: list[Ints]
    ) -> tuple[pa.RecordBatch, Ints]:
        if not parts:
            return self._empty(), np.zeros(0, np.int64)
        return add_up(pa.concat_batches(parts), np.concatenate(weights))

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


def add_up(rows: pa.RecordBatch, weights: Ints) -> tuple[pa.RecordBatch, Ints]:
    """Equal rows become one with the sum of their weights; those that cancel vanish."""
    if not (weights < 0).any():
        return rows, weights
    kept, weights = _strike_out(np.zeros(len(weights), np.int64), rows, weights)
    return rows.take(pa.array(kept)), weights


def _strike_out(
    groups: npt.NDArray[np.generic], rows: pa.RecordBatch, weights: Ints
) -> tuple[Ints, Ints]:
    """Equal rows of equal groups become one; which rows remain, and their weights.

    Only groups with a negative weight are looked at.
    """
    touched = np.flatnonzero(np.isin(groups, groups[weights < 0]))
    columns = rows.take(pa.array(touched)).columns
    first = first_equal([pa.array(groups[touched]), *columns], len(touched))
    totals = np.zeros(len(touched), np.int64)
    np.add.at(totals, first, weights[touched])
    weights = weights.copy()
    weights[touched] = totals
    kept = np.flatnonzero(weights)
    return kept, weights[kept]


def first_equal(columns: Sequence[pa.Array], count: int) -> Ints:
    """For each row, the first row that equals it, as grouping has it.

    Every row is compared with the first one of its hash; only those of a hash that unequal rows
    share are compared as objects, one by one.
    """
    codes, leaders = _group(_hash_apart(columns, count))
    if len(leaders) == count:
        return leaders
    first = leaders[codes]
    followers = np.flatnonzero(first != np.arange(count))
    one, two = pa.array(followers), pa.array(first[followers])
    equal = np.ones(len(followers), bool)
    for column in columns:
        equal &= _same(column.take(one), column.take(two))
    if not equal.all():
        rows = np.flatnonzero(np.isin(codes, codes[followers[~equal]]))
        seen: dict[object, int] = {}
        objects = key_objects([column.take(pa.array(rows)) for column in columns], len(rows))
        first[rows] = [
            seen.setdefault(key, row) for key, row in zip(objects, rows.tolist(), strict=True)
        ]
    return first


def _group(hashes: Hashes) -> tuple[Ints, Ints]:
    """Hashes numbered in order of appearance, and the first row of each."""
    codes = pa.array(hashes).dictionary_encode().indices.to_numpy().astype(np.int64)
    leaders = np.empty(int(codes.max(initial=-1)) + 1, np.int64)
    leaders[codes[::-1]] = np.arange(len(codes))[::-1]  # the first one is written last
    return codes, leaders


def _hash_apart(columns: Sequence[pa.Array], count: int) -> Hashes:
    """Hashes that tell rows apart; long values count only where the short ones are alike."""
    short = [c for c in columns if _is_short(c.type)]
    long = [c for c in columns if not _is_short(c.type)]
    hashes = hash_columns(short, count)
    if not long:
        return hashes
    codes, _ = _group(hashes)
    alike = np.flatnonzero(np.bincount(codes)[codes] > 1)
    if len(alike):
        values = [pa.array(hashes[alike]), *(c.take(pa.array(alike)) for c in long)]
        hashes[alike] = hash_columns(values, len(alike))
    return hashes


def _is_short(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(_is_short(kind.field(position).type) for position in range(kind.num_fields))
    return bool(pa.types.is_primitive(kind))


def _same(one: pa.Array, two: pa.Array) -> npt.NDArray[np.bool_]:
    """Where two key columns are equal as grouping has it: nulls alike, NaNs alike."""
    kind = one.type
    if pa.types.is_struct(kind):
        equal = _same(one.is_null(), two.is_null())
        for left, right in zip(one.flatten(), two.flatten(), strict=True):
            equal = equal & _same(left, right)
        return equal
    if pa.types.is_floating(kind):
        one, two = (pa.array(canonical_ints(c), mask=_missing(c)) for c in (one, two))
    elif pa.types.is_nested(kind) or pa.types.is_null(kind):
        # Lists and maps are rare as keys; their objects are compared one by one.
        pairs = zip(key_objects([one], len(one)), key_objects([two], len(two)), strict=True)
        return np.fromiter((a == b for a, b in pairs), bool, len(one))
    equal = pc.equal(one, two)
    if equal.null_count:
        both = pc.and_(one.is_null(), two.is_null())
        equal = pc.or_(pc.fill_null(equal, False), both)
    mask: npt.NDArray[np.bool_] = equal.to_numpy(zero_copy_only=False)
    return mask


def _missing(column: pa.Array) -> npt.NDArray[np.bool_]:
    missing: npt.NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return missing
