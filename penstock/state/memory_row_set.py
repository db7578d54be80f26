"""Rows by key in memory: runs of rows in hash buckets, merged when they have grown alike.

A run is a batch and an index of it: places in order of their keys' buckets, so that finding the
rows of many keys is a few array lookups per run. New rows become a run. As many of the newest runs
as are together at least as large as the one before are merged with it, so that there are few runs
and each row is merged a logarithmic number of times. Taking rows back adds them with negative
weight; merging strikes out what cancels. Evicted rows are hidden at once and dropped when they are
half of a run, or when it is merged: to gather what remains whenever time moves would cost more than
all the rest.

Law: the multiset of rows is the sum of all weights ever inserted, minus what was evicted. Equal
hashes are never taken for equal keys: fetch compares the keys themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.api import Change
from penstock.state.equal_rows import equal_at, first_equal, hash_keys
from penstock.state.event_time import NEVER_US, event_times_us
from penstock.state.keys import Hashes

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_WEIGHT = "weight"
_BITS_MIN: Final = 8
#: NumPy sorts integers of so many bits by counting, in linear time.
_RADIX_BITS: Final = 16
_BOUND_SCHEMA = pa.schema([("bound_us", pa.int64())])


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows; all arrays are by row."""

    rows: pa.RecordBatch
    weights: Ints
    #: Event times in microseconds; None if nothing is ever evicted.
    times: Ints | None
    hashes: Hashes

    def take(self, kept: Ints, weights: Ints) -> _Rows:
        """The rows at these places, with these weights."""
        times = None if self.times is None else self.times[kept]
        return _Rows(self.rows.take(pa.array(kept)), weights, times, self.hashes[kept])


@dataclass(slots=True)
class _Run:
    """Rows and their index; all arrays but `starts` and `places` are by row."""

    rows: pa.RecordBatch
    weights: Ints
    times: Ints | None
    hashes: Hashes
    #: The places of bucket b's rows are places[starts[b]:starts[b + 1]].
    starts: Ints
    places: Ints
    #: Rows at or below are evicted.
    bound_us: int | None = None
    #: The smallest event time of the others.
    earliest_us: int = NEVER_US

    def __len__(self) -> int:
        return len(self.hashes)

    def find(self, hashes: Hashes) -> tuple[Ints, Ints]:
        """Rows with one of these hashes: (which hash, row), hashes in order."""
        buckets = _buckets(hashes, len(self.starts) - 1)
        low = self.starts[buckets]
        lengths = self.starts[buckets + 1] - low
        met = np.flatnonzero(lengths)
        if not len(met):
            return met, met
        lengths = lengths[met]
        probe = np.repeat(met, lengths)
        ends = np.cumsum(lengths)
        places = self.places[np.arange(len(probe)) + np.repeat(low[met] - ends + lengths, lengths)]
        is_equal = self.hashes[places] == hashes[probe]
        if self.times is not None and self.bound_us is not None:
            is_equal &= self.times[places] > self.bound_us
        return probe[is_equal], places[is_equal]


def _index(of: _Rows) -> _Run:
    hashes, times = of.hashes, of.times
    bits = max(len(hashes).bit_length(), _BITS_MIN)
    buckets = _buckets(hashes, 1 << bits)
    # Least significant digit first; sorting is stable.
    places = np.argsort((buckets & (1 << _RADIX_BITS) - 1).astype(np.uint16), kind="stable")
    for digit in range(_RADIX_BITS, bits, _RADIX_BITS):
        digits = (buckets[places] >> digit).astype(np.uint16)
        places = places[np.argsort(digits, kind="stable")]
    starts = np.zeros((1 << bits) + 1, np.int64)
    np.cumsum(np.bincount(buckets, minlength=1 << bits), out=starts[1:])
    earliest = NEVER_US if times is None else int(times.min(initial=NEVER_US))
    return _Run(of.rows, of.weights, times, hashes, starts, places, earliest_us=earliest)


def _buckets(hashes: Hashes, count: int) -> Ints:
    """The upper bits; `count` is a power of two."""
    return (hashes >> np.uint64(65 - count.bit_length())).astype(np.int64)


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
        self._no_rows = pa.RecordBatch.from_pylist([], schema=rows)
        self._runs: list[_Run] = []
        #: Rows and weights that were added, or the bound of an eviction.
        self._log: list[tuple[pa.RecordBatch, Ints] | int] = []

    def __len__(self) -> int:
        self._compact()
        return sum(int(run.weights.sum()) for run in self._runs)

    def size(self) -> tuple[int, int]:
        """Rows and bytes, hidden ones included: what is evicted leaves when runs are merged."""
        rows = sum(len(run) for run in self._runs)
        return rows, sum(int(run.rows.nbytes) + 40 * len(run) for run in self._runs)

    def _compact(self) -> None:
        self._runs = [_compact(run) for run in self._runs]

    def insert(self, rows: pa.RecordBatch, weights: Ints | None) -> None:
        if not rows.num_rows:
            return
        if weights is None:
            weights = np.ones(rows.num_rows, np.int64)
        self._log.append((rows, weights))
        self._insert(rows, weights)

    def _insert(self, rows: pa.RecordBatch, weights: Ints) -> None:
        start, size = len(self._runs), rows.num_rows
        while start and size >= len(self._runs[start - 1]):
            start -= 1
            size += len(self._runs[start])
        hashes = hash_keys([rows.column(index) for index in self._keys], rows.num_rows)
        added = _Rows(rows, weights, self._times(rows), hashes)
        merged = _merge([*map(_alive, self._runs[start:]), added])
        self._runs[start:] = [_index(merged)] if len(merged.hashes) else []

    def _times(self, rows: pa.RecordBatch) -> Ints | None:
        return None if self._event_time is None else event_times_us(rows.column(self._event_time))

    def fetch(self, keys: Sequence[pa.Array]) -> tuple[Ints, pa.RecordBatch, Ints]:
        hashes = hash_keys(keys, len(keys[0]) if keys else 1)
        probes: list[Ints] = []
        batches: list[pa.RecordBatch] = []
        weights: list[Ints] = []
        for run in self._runs:
            probe, places = run.find(hashes)
            if len(probe):
                probes.append(probe)
                batches.append(run.rows.take(pa.array(places)))
                weights.append(run.weights[places])
        if not batches:
            return np.zeros(0, np.int64), self._no_rows, np.zeros(0, np.int64)
        return self._gather(keys, probes, batches, weights)

    def _gather(
        self,
        keys: Sequence[pa.Array],
        probes: list[Ints],
        batches: list[pa.RecordBatch],
        weights: list[Ints],
    ) -> tuple[Ints, pa.RecordBatch, Ints]:
        """What several runs gave, in order of the keys, without rows of other keys."""
        probe, weight = np.concatenate(probes), np.concatenate(weights)
        rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        equal = self._equal(keys, probe, rows)
        if len(batches) > 1 or not equal.all():
            order = np.argsort(probe, kind="stable")
            order = order[equal[order]]
            probe, rows, weight = probe[order], rows.take(pa.array(order)), weight[order]
        if (weight < 0).any():
            kept, weight = strike_out(probe, rows, weight)
            probe, rows = probe[kept], rows.take(pa.array(kept))
        return probe, rows, weight

    def _equal(self, keys: Sequence[pa.Array], probe: Ints, rows: pa.RecordBatch) -> Mask:
        equal = np.ones(len(probe), bool)
        for key, index in zip(keys, self._keys, strict=True):
            equal &= equal_at(key, probe, rows.column(index))
        return equal

    # -- event time

    def evict(self, bound_us: int) -> None:
        if self._evict(bound_us):
            self._log.append(bound_us)

    def _evict(self, bound_us: int) -> bool:
        changed = False
        kept: list[_Run] = []
        for run in self._runs:
            if run.times is None or run.earliest_us > bound_us:
                kept.append(run)
                continue
            changed = True
            run.bound_us = bound_us
            alive = run.times > bound_us
            count = np.count_nonzero(alive)
            if 2 * count > len(run):
                run.earliest_us = int(run.times[alive].min())
                kept.append(run)
            elif count:
                kept.append(_compact(run))
        self._runs = kept
        return changed

    def expired(self, bound_us: int) -> tuple[pa.RecordBatch, Ints]:
        parts: list[pa.RecordBatch] = []
        weights: list[Ints] = []
        for run in self._runs:
            if run.earliest_us <= bound_us and run.times is not None:
                gone = run.times <= bound_us
                if run.bound_us is not None:
                    gone &= run.times > run.bound_us
                if gone.any():
                    parts.append(run.rows.filter(pa.array(gone)))
                    weights.append(run.weights[gone])
        return self._whole(parts, weights)

    def rows(self) -> tuple[pa.RecordBatch, Ints]:
        self._compact()
        return self._whole([run.rows for run in self._runs], [run.weights for run in self._runs])

    def _whole(
        self, parts: list[pa.RecordBatch], weights: list[Ints]
    ) -> tuple[pa.RecordBatch, Ints]:
        if not parts:
            return self._no_rows, np.zeros(0, np.int64)
        return add_up(pa.concat_batches(parts), np.concatenate(weights))

    # -- snapshots and changes

    def export(self, name: str) -> list[Change]:
        rows, weights = self.rows()
        return [Change(name, "add", _with_weights(rows, weights))] if rows.num_rows else []

    def freeze(self, name: str) -> list[Change]:
        """Everything, a change per run: what runs consist of is never written to again.

        Rows that cancel each other may be among them; adding them cancels them again.
        """
        alive = map(_alive, self._runs)
        return [Change(name, "add", _with_weights(part.rows, part.weights)) for part in alive]

    def take_changes(self, name: str) -> list[Change]:
        """One eviction, then one addition, either of which may be missing.

        Nothing of a row set but event times decides about evictions, so they may strike what was
        there before all additions, if these are given without what was evicted after them.
        """
        log, self._log = self._log, []
        bound_us: int | None = None
        added: list[tuple[pa.RecordBatch, Ints]] = []
        for entry in reversed(log):
            if isinstance(entry, int):
                bound_us = entry if bound_us is None else max(entry, bound_us)
            else:
                added.append(entry if bound_us is None else self._later(bound_us, *entry))
        changes = []
        if bound_us is not None:
            bounds = pa.record_batch([[bound_us]], schema=_BOUND_SCHEMA)
            changes.append(Change(name, "evict", bounds))
        added = [(rows, weights) for rows, weights in reversed(added) if rows.num_rows]
        if added:
            changes.append(Change(name, "add", _with_weights(*_together(added))))
        return changes

    def forget_changes(self) -> None:
        self._log = []

    def _later(
        self, bound_us: int, rows: pa.RecordBatch, weights: Ints
    ) -> tuple[pa.RecordBatch, Ints]:
        times = self._times(rows)
        assert times is not None, "rows without event time are never evicted"
        kept = times > bound_us
        return rows.filter(pa.array(kept)), weights[kept]

    def apply(self, change: Change) -> None:
        if change.kind == "evict":
            self._evict(change.rows.column(0)[0].as_py())
            return
        weights = change.rows.column(len(self._schema)).to_numpy()
        rows = change.rows.select(list(range(len(self._schema))))
        self._insert(rows, weights)


def _together(added: list[tuple[pa.RecordBatch, Ints]]) -> tuple[pa.RecordBatch, Ints]:
    if len(added) == 1:
        return added[0]
    rows = pa.concat_batches([rows for rows, _ in added])
    return rows, np.concatenate([weights for _, weights in added])


def _alive(run: _Run) -> _Rows:
    """The rows of a run that were not evicted."""
    rows = _Rows(run.rows, run.weights, run.times, run.hashes)
    if run.times is None or run.bound_us is None:
        return rows
    kept = np.flatnonzero(run.times > run.bound_us)
    return rows if len(kept) == len(run) else rows.take(kept, run.weights[kept])


def _merge(parts: list[_Rows]) -> _Rows:
    if len(parts) == 1:
        return parts[0]
    times = [part.times for part in parts if part.times is not None]
    merged = _Rows(
        pa.concat_batches([part.rows for part in parts]),
        np.concatenate([part.weights for part in parts]),
        np.concatenate(times) if times else None,
        np.concatenate([part.hashes for part in parts]),
    )
    if not (merged.weights < 0).any():
        return merged
    return merged.take(*strike_out(merged.hashes, merged.rows, merged.weights))


def _compact(run: _Run) -> _Run:
    """The run without rows that were evicted."""
    return run if run.bound_us is None else _index(_alive(run))


def _with_weights(rows: pa.RecordBatch, weights: Ints) -> pa.RecordBatch:
    return rows.append_column(pa.field(_WEIGHT, pa.int64()), pa.array(weights))


def add_up(rows: pa.RecordBatch, weights: Ints) -> tuple[pa.RecordBatch, Ints]:
    """Equal rows become one with the sum of their weights; those that cancel vanish."""
    if not (weights < 0).any():
        return rows, weights
    kept, weights = strike_out(np.zeros(len(weights), np.int64), rows, weights)
    return rows.take(pa.array(kept)), weights


def strike_out(
    groups: npt.NDArray[np.generic], rows: pa.RecordBatch, weights: Ints
) -> tuple[Ints, Ints]:
    """Equal rows of equal groups become one; which rows remain, and their weights.

    Only groups with a negative weight are looked at.
    """
    touched = np.flatnonzero(np.isin(groups, groups[weights < 0]))
    first = touched[first_equal([pa.array(groups), *rows.columns], len(weights), touched)]
    totals = weights.copy()
    totals[touched] = 0
    np.add.at(totals, first, weights[touched])
    kept = np.flatnonzero(totals)
    return kept, totals[kept]
