"""Rows by key in memory: runs of rows (run.py), merged when they have grown alike.

New rows wait until somebody asks for one of their keys; then they become a run. As many of the
newest runs as are together not much smaller than the one before are merged with it, so that there
are few runs and each row is merged a logarithmic number of times. Taking rows back adds them with
negative weight; merging strikes out what cancels. Who has just fetched a row takes it back by its
place instead.

Law: the multiset of rows is the sum of all weights ever inserted, minus what was evicted. Equal
hashes are never taken for equal keys, unless they cannot differ: keys themselves are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.api import Change
from penstock.state.equal_rows import add_up, equal_at, hash_keys, strike_out
from penstock.state.event_time import NEVER_US, event_times_us
from penstock.state.kept_rows import ArrowHits, Hits, gather, keep_rows
from penstock.state.keys import WORDS, Hashes, words_column
from penstock.state.parts import ROW_SET, Part
from penstock.state.room import MEMORY, Room
from penstock.state.run import Rows, Run, merge

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_WEIGHT_FIELD = pa.field("weight", pa.int64())
#: A run is merged with the newer ones if it has at most so many times their rows. Fewer times make
#: more runs to ask; more were measured, for batches of 50 rows, and cost as much in copies.
_ALIKE: Final = 4
#: Runs that are together no larger than this are merged in any case: each costs more than its rows.
_SHORT_ROWS: Final = 256
#: Where memory is short, runs are merged up to so many rows: what is done to all rows of one takes
#: about 50 bytes for each while it is done.
_MERGED_ROWS_MAX: Final = 1 << 21
_ANY_ROWS: Final = 1 << 62
#: Rows that wait at most.
_WAITING_ROWS_MAX: Final = 4096
#: Pairs of rows that wait and keys that are sought, compared at most: more cost what a run does.
_COMPARED_MAX: Final = 1 << 14
#: A run, and what it found: which of the keys, and where the row is.
_Hits: TypeAlias = tuple[Run, Ints, Ints]
_NO_HASHES: Final[Hashes] = np.zeros(0, np.uint64)
_NO_PLACES: Final[Ints] = np.zeros(0, np.int64)
_Number = TypeVar("_Number", np.int64, np.uint64)
_BOUND_SCHEMA = pa.schema([("bound_us", pa.int64())])


def _hits(rows: pa.RecordBatch) -> Hits:
    """All rows of a batch."""
    return ArrowHits([(rows, np.arange(rows.num_rows))])


@dataclass(frozen=True, slots=True)
class Found:
    """See api.Found."""

    probe: Ints
    weights: Ints
    _rows: Hits

    def columns(self, wanted: Sequence[int]) -> list[pa.Array]:
        return self._rows.columns(wanted)

    def take(self, places: Ints | None) -> pa.RecordBatch:
        return self._rows.take(places)

    def order(self) -> Ints | None:
        if (self.probe[1:] >= self.probe[:-1]).all():
            return None
        order: Ints = self.probe.argsort(kind="stable")
        return order


class MemoryRowSet:
    """See api.RowSet."""

    def __init__(
        self,
        rows: pa.Schema,
        keys: tuple[int, ...],
        event_time: int | None,
        partition: tuple[int, ...],
        room: Room = MEMORY,
    ) -> None:
        self.partition = partition
        self._room = room
        self._merged_rows_max = _MERGED_ROWS_MAX if room.is_bounded else _ANY_ROWS
        self._schema = rows
        self._keys = keys
        self._event_time = event_time
        self._no_rows = pa.RecordBatch.from_pylist([], schema=rows)
        self._nothing = Found(_NO_PLACES, _NO_PLACES, _hits(self._no_rows))
        #: Whether keys are single words, none of them null: then equal hashes say all (hash_keys).
        self._is_word = len(keys) == 1 and rows.field(keys[0]).type.id in WORDS
        self._runs: list[Run] = []
        #: Rows and weights that are in no run yet.
        self._waiting: list[tuple[pa.RecordBatch, Ints]] = []
        self._waiting_rows = 0
        #: The hashes of their keys, of as many of them as somebody has asked for.
        self._waiting_hashes = _NO_HASHES
        self._hashed = 0
        #: The earliest of their event times, likewise.
        self._waiting_us = NEVER_US
        self._timed = 0
        #: What the last fetch found in which run, and the order in which it was given; None if it
        #: was not given as it is there.
        self._fetched: tuple[list[_Hits], Ints | None] | None = None
        #: Rows and weights that were added, or the bound of an eviction.
        self._log: list[tuple[pa.RecordBatch, Ints] | int] = []

    def __len__(self) -> int:
        self._compact()
        return sum(int(run.weights.sum()) for run in self._runs)

    def size(self) -> tuple[int, int]:
        """Rows and bytes, hidden ones included: what is evicted leaves when runs are merged.

        To report it changes nothing, and needs no room: rows that wait count as if all were words.
        """
        waiting = self._waiting_rows
        rows = waiting + sum(len(run) for run in self._runs)
        size = sum(run.rows.nbytes + 40 * len(run) for run in self._runs)
        return rows, size + waiting * (8 * len(self._schema) + 40)

    def _compact(self) -> None:
        self._settle()
        self._runs = [run.compact() for run in self._runs]

    def insert(self, rows: pa.RecordBatch, weights: Ints | None) -> None:
        if not rows.num_rows:
            return
        if weights is None:
            weights = np.ones(rows.num_rows, np.int64)
        self._log.append((rows, weights))
        self._insert(rows, weights)

    def _insert(self, rows: pa.RecordBatch, weights: Ints) -> None:
        self._waiting.append((rows, weights))
        self._waiting_rows += rows.num_rows
        if self._waiting_rows > _WAITING_ROWS_MAX:
            self._settle()

    def _settle(self) -> None:
        """What waits becomes part of the newest run, or a new one."""
        if not self._waiting:
            return
        rows, weights = _together(self._waiting)
        hashes = self._hash_waiting()
        start, size = len(self._runs), rows.num_rows
        while start and self._are_alike(len(self._runs[start - 1]), size):
            start -= 1
            size += len(self._runs[start])
        added = Rows(keep_rows(rows), weights, self._times(rows), hashes)
        merged = merge([*(run.alive() for run in self._runs[start:]), added], self._room)
        self._runs[start:] = [Run(merged, self._room)] if len(merged) else []
        # Not before: if there was no room, everything is where it was.
        self._waiting, self._waiting_rows = [], 0
        self._waiting_hashes, self._hashed = _NO_HASHES, 0
        self._waiting_us, self._timed = NEVER_US, 0

    def _hash_waiting(self) -> Hashes:
        """The hashes of all rows that wait."""
        new = self._waiting[self._hashed :]
        if new:
            keys = [[rows.column(place) for place in self._keys] for rows, _ in new]
            hashes = [hash_keys(key, len(w)) for key, (_, w) in zip(keys, new, strict=True)]
            self._is_word = self._is_word and not any(key[0].null_count for key in keys)
            if self._hashed:
                hashes.insert(0, self._waiting_hashes)
            self._waiting_hashes = _concat(hashes)
            self._hashed = len(self._waiting)
        return self._waiting_hashes

    def _may_wait(self, sought: Hashes) -> bool:
        """Whether a row that waits may have one of these hashes."""
        if not self._waiting:
            return False
        if self._waiting_rows * len(sought) > _COMPARED_MAX:
            return True
        return bool((self._hash_waiting()[:, None] == sought).any())

    def _are_alike(self, older: int, newer: int) -> bool:
        if older + newer > self._merged_rows_max:
            return False
        return _ALIKE * newer >= older or older + newer <= _SHORT_ROWS

    def _times(self, rows: pa.RecordBatch) -> Ints | None:
        return None if self._event_time is None else event_times_us(rows.column(self._event_time))

    def find(self, keys: Sequence[pa.Array]) -> Found:
        self._fetched = None
        hashes = hash_keys(keys, len(keys[0]) if keys else 1)
        if self._may_wait(hashes):
            self._settle()
        found = [(run, *run.find(hashes)) for run in self._runs]
        found = [hits for hits in found if len(hits[1])]
        if not found:
            return self._nothing
        probe = _concat([probe for _, probe, _ in found])
        weights = _concat([run.weights[places] for run, _, places in found])
        if self._room.is_bounded:
            for run, _, places in found:
                run.rows.expect(places, self._room)
        hits = gather([(run.rows, places) for run, _, places in found])
        order: Ints | None = None
        if not (self._is_word and not keys[0].null_count):
            equal = self._equal(keys, probe, hits)
            if not equal.all():
                order = equal.nonzero()[0]
                probe, weights, hits = probe[order], weights[order], _hits(hits.take(order))
        if len(weights) and weights.min() < 0:
            batch = hits.take(None)
            kept, weights = strike_out(probe, batch, weights)
            return Found(probe[kept], weights, _hits(batch.take(words_column(kept))))
        self._fetched = (found, order)
        return Found(probe, weights, hits)

    def fetch(
        self, keys: Sequence[pa.Array], *, in_order: bool = True
    ) -> tuple[Ints, pa.RecordBatch, Ints]:
        found = self.find(keys)
        if found is self._nothing:
            return _NO_PLACES, self._no_rows, _NO_PLACES
        order = found.order() if in_order else None
        if order is None:
            return found.probe, found.take(None), found.weights
        if self._fetched is not None:
            runs, places = self._fetched
            self._fetched = (runs, order if places is None else places[order])
        return found.probe[order], found.take(order), found.weights[order]

    def drop(self, rows: pa.RecordBatch, places: Ints, weights: Ints) -> None:
        if not len(places):
            return
        self._log.append((rows, -weights))
        if self._fetched is None:
            self._insert(rows, -weights)
            return
        found, order = self._fetched
        self._fetched = None
        if order is not None:
            places = order[places]
        for run, probe, where in found:
            # Places of the next run begin where those of this one end.
            own = ((places >= 0) & (places < len(probe))).nonzero()[0]
            if len(own):
                smaller = run.drop(where[places[own]], weights[own])
                self._runs[self._runs.index(run)] = smaller
            places = places - len(probe)

    def _equal(self, keys: Sequence[pa.Array], probe: Ints, hits: Hits) -> Mask:
        equal = np.ones(len(probe), bool)
        for key, kept in zip(keys, hits.columns(self._keys), strict=True):
            equal &= equal_at(key, probe, kept)
        return equal

    # -- event time

    def evict(self, bound_us: int) -> None:
        if self._evict(bound_us):
            self._log.append(bound_us)

    def _earliest_waiting(self) -> int:
        """The earliest event time of rows that wait."""
        for rows, _ in self._waiting[self._timed :]:
            times = self._times(rows)
            if times is not None:
                self._waiting_us = min(self._waiting_us, int(times.min()))
        self._timed = len(self._waiting)
        return self._waiting_us

    def _evict(self, bound_us: int) -> bool:
        if self._earliest_waiting() <= bound_us:
            self._settle()
        self._fetched = None
        changed = False
        kept: list[Run] = []
        for run in self._runs:
            smaller: Run | None = run
            if run.earliest_us <= bound_us:
                changed = True
                smaller = run.evict(bound_us)
            if smaller is not None:
                kept.append(smaller)
        self._runs = kept
        return changed

    def strike(self, change: Change, which: Callable[[pa.RecordBatch], Mask]) -> None:
        """Apply an eviction to the rows that `which` chooses."""
        bound_us = _bound_of(change)
        if self._earliest_waiting() <= bound_us:
            self._settle()
        self._fetched = None
        for number, run in enumerate(self._runs):
            places = run.expired(bound_us)
            if len(places):
                places = places[which(run.rows.take(places).batch())]
                self._runs[number] = run.drop(places, run.weights[places])

    def expired(self, bound_us: int) -> tuple[pa.RecordBatch, Ints]:
        self._settle()
        found = [(run, places) for run in self._runs if len(places := run.expired(bound_us))]
        parts = [run.rows.take(places).batch() for run, places in found]
        return self._whole(parts, [run.weights[places] for run, places in found])

    def rows(self) -> tuple[pa.RecordBatch, Ints]:
        self._compact()
        parts = [run.rows.batch() for run in self._runs]
        return self._whole(parts, [run.weights for run in self._runs])

    def _whole(
        self, parts: list[pa.RecordBatch], weights: list[Ints]
    ) -> tuple[pa.RecordBatch, Ints]:
        if not parts:
            return self._no_rows, np.zeros(0, np.int64)
        return add_up(pa.concat_batches(parts), np.concatenate(weights))

    # -- snapshots and changes

    def describe(self) -> Part:
        return Part(ROW_SET, self._schema, self._keys, self.partition, self._event_time)

    def export(self, name: str) -> list[Change]:
        rows, weights = self.rows()
        return [Change(name, "add", _with_weights(rows, weights))] if rows.num_rows else []

    def freeze(self, name: str) -> list[Change]:
        """Everything, a change per run: of what runs consist of, only weights are written to.

        Rows that cancel each other may be among them; adding them cancels them again.
        """
        self._settle()
        alive = [run.alive() for run in self._runs]
        return [Change(name, "add", _with_weights(r.rows.batch(), r.weights.copy())) for r in alive]

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
            self._evict(_bound_of(change))
            return
        weights = change.rows.column(len(self._schema)).to_numpy()
        rows = change.rows.select(list(range(len(self._schema))))
        self._insert(rows, weights)


def _bound_of(eviction: Change) -> int:
    bound_us: int = eviction.rows.column(0)[0].as_py()
    return bound_us


def _together(added: list[tuple[pa.RecordBatch, Ints]]) -> tuple[pa.RecordBatch, Ints]:
    if len(added) == 1:
        return added[0]
    rows = pa.concat_batches([rows for rows, _ in added])
    return rows, np.concatenate([weights for _, weights in added])


def _concat(parts: list[npt.NDArray[_Number]]) -> npt.NDArray[_Number]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _with_weights(rows: pa.RecordBatch, weights: Ints) -> pa.RecordBatch:
    return rows.append_column(_WEIGHT_FIELD, words_column(weights))
