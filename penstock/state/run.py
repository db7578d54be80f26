"""A run of a row set: rows in the order in which they came, found by the hash of their keys.

Rows are indexed when they are first asked for, so that finding the rows of many keys is a few array
lookups: a few of them by their hashes in order, more by the buckets that their hashes fall into.
Rows that were evicted, or that cancelled out, are hidden, and dropped when they are half of the
run, or when it is merged: to gather what remains whenever time moves would cost more than all the
rest.

Law: `find` gives every row with a sought hash that is not hidden, in order, and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.state.equal_rows import strike_out
from penstock.state.event_time import NEVER_US
from penstock.state.kept_rows import KeptRows, join_rows
from penstock.state.keys import Hashes
from penstock.state.room import MEMORY, Room

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_BITS_MIN: Final = 8
#: NumPy sorts integers of so many bits by counting, in linear time.
_RADIX_BITS: Final = 16
#: Rows that are sorted by hash; more are counted into buckets, which takes less time then.
_SORTED_MAX: Final = 1 << 10
#: Rows whose times are told by the earliest and the latest of them.
_BLOCK_ROWS: Final = 1 << 11
_ALL_ROWS: Final = slice(None)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows; all arrays are by row."""

    rows: KeptRows
    weights: Ints
    #: Event times in microseconds; None if nothing is ever evicted.
    times: Ints | None
    hashes: Hashes

    def __len__(self) -> int:
        return len(self.hashes)

    def take(self, kept: Ints, weights: Ints) -> Rows:
        """The rows at these places, with these weights."""
        times = None if self.times is None else self.times[kept]
        return Rows(self.rows.take(kept), weights, times, self.hashes[kept])


class _Sorted:
    """Places in the order of their hashes."""

    #: Whether nothing else is in a range than what is sought.
    is_exact: Final = True

    def __init__(self, hashes: Hashes) -> None:
        self.places = hashes.argsort(kind="stable")
        self._hashes = hashes[self.places]

    def ranges(self, sought: Hashes) -> tuple[Ints, Ints]:
        """By hash, where the places of rows that may have it begin, and how many they are."""
        low = self._hashes.searchsorted(sought)
        return low, self._hashes.searchsorted(sought, "right") - low


class _Buckets:
    """Places in the order of buckets; those of bucket b are places[starts[b]:starts[b + 1]]."""

    is_exact: Final = False

    def __init__(self, hashes: Hashes, room: Room) -> None:
        self._room = room
        bits = max(len(hashes).bit_length(), _BITS_MIN)
        buckets = _buckets(hashes, 1 << bits)
        # Least significant digit first; sorting is stable.
        places = np.argsort((buckets & (1 << _RADIX_BITS) - 1).astype(np.uint16), kind="stable")
        for digit in range(_RADIX_BITS, bits, _RADIX_BITS):
            digits = (buckets[places] >> digit).astype(np.uint16)
            places = places[np.argsort(digits, kind="stable")]
        self.places = room.joined([places]) if room.is_bounded else places
        self._starts = room.zeros((1 << bits) + 1, np.int64)
        np.cumsum(np.bincount(buckets, minlength=1 << bits), out=self._starts[1:])

    def ranges(self, sought: Hashes) -> tuple[Ints, Ints]:
        """See _Sorted."""
        buckets = _buckets(sought, len(self._starts) - 1)
        self._room.expect(self._starts, buckets)
        low = self._starts[buckets]
        return low, self._starts[buckets + 1] - low


class _Blocks:
    """Rows that came together are mostly of one time: few of them are looked at when it passes."""

    def __init__(self, times: Ints) -> None:
        self.times = times
        starts = np.arange(0, len(times), _BLOCK_ROWS)
        self._earliest_us = np.minimum.reduceat(times, starts)
        self._latest_us = np.maximum.reduceat(times, starts)

    def rows(self, after_us: int | None, bound_us: int) -> Ints | slice:
        """The rows of blocks that have one after the first and not after the second time.

        If those are many, all: to gather rows costs more than to look at them.
        """
        chosen = self._earliest_us <= bound_us
        if after_us is not None:
            chosen &= self._latest_us > after_us
        if 4 * np.count_nonzero(chosen) > len(chosen):
            return _ALL_ROWS
        starts = chosen.nonzero()[0][:, None] * _BLOCK_ROWS
        places: Ints = (starts + np.arange(_BLOCK_ROWS)).reshape(-1)
        return places[places < len(self.times)]

    def earliest_after(self, bound_us: int) -> int:
        """The smallest time of blocks whose rows are all later."""
        later = self._earliest_us[self._earliest_us > bound_us]
        return int(later.min(initial=NEVER_US))


class Run:
    """Rows that are found by hash. Only their weights are ever written to."""

    def __init__(self, of: Rows, room: Room = MEMORY) -> None:
        self._room = room
        self.rows = of.rows
        self.weights = of.weights
        self.times = of.times
        self.hashes = of.hashes
        self._index: _Sorted | _Buckets | None = None
        #: Rows at or below are evicted.
        self._bound_us: int | None = None
        #: The smallest event time of the others.
        self.earliest_us = NEVER_US if of.times is None else int(of.times.min(initial=NEVER_US))
        self._blocks: _Blocks | None = None
        #: How many rows are evicted.
        self._evicted = 0
        #: How many rows have weight zero.
        self._gone = 0

    def __len__(self) -> int:
        return len(self.hashes)

    def find(self, hashes: Hashes) -> tuple[Ints, Ints]:
        """Rows with one of these hashes: (which hash, row), hashes in order."""
        probe, places = self._look_up(hashes)
        if not len(probe) or (self._bound_us is None and not self._gone):
            return probe, places
        shown = self._is_alive(places)
        return probe[shown], places[shown]

    def _look_up(self, hashes: Hashes) -> tuple[Ints, Ints]:
        if self._index is None:
            is_short = len(self) <= _SORTED_MAX
            self._index = _Sorted(self.hashes) if is_short else _Buckets(self.hashes, self._room)
        low, lengths = self._index.ranges(hashes)
        met = lengths.nonzero()[0]
        if not len(met):
            return met, met
        low, lengths = low[met], lengths[met]
        self._room.expect(self._index.places, low)
        if lengths.max() == 1:
            probe, places = met, self._index.places[low]
        else:
            probe = met.repeat(lengths)
            steps = (low - lengths.cumsum() + lengths).repeat(lengths)
            places = self._index.places[np.arange(len(probe)) + steps]
        if self._index.is_exact:
            return probe, places
        self._room.expect(self.hashes, places)
        is_equal = self.hashes[places] == hashes[probe]
        return probe[is_equal], places[is_equal]

    def _is_alive(self, places: Ints | slice = slice(None)) -> Mask:
        alive: Mask = self.weights[places] != 0
        if self.times is not None and self._bound_us is not None:
            alive &= self.times[places] > self._bound_us
        return alive

    def alive(self) -> Rows:
        """The rows that are not hidden; their weights are written to as the run's are."""
        rows = Rows(self.rows, self.weights, self.times, self.hashes)
        if self._bound_us is None and not self._gone:
            return rows
        kept = self._is_alive().nonzero()[0]
        return rows if len(kept) == len(self) else rows.take(kept, self.weights[kept])

    def compact(self) -> Run:
        """The run without hidden rows."""
        if self._bound_us is None and not self._gone:
            return self
        alive = self.alive()
        return Run(merge([alive], self._room) if self._room.is_bounded else alive, self._room)

    def evict(self, bound_us: int) -> Run | None:
        """Hide rows whose event time is at or below the bound; None if no other is left."""
        assert self.times is not None
        places = self._to_look_at(bound_us)
        times = self.times[places]
        later = times > bound_us
        passed = ~later if self._bound_us is None else ~later & (times > self._bound_us)
        self._evicted += int(np.count_nonzero(passed))
        self._bound_us = bound_us
        count = len(self) - self._evicted
        if 2 * count > len(self):
            others_us = NEVER_US
            if places is not _ALL_ROWS and self._blocks is not None:
                others_us = self._blocks.earliest_after(bound_us)
            self.earliest_us = int(times[later].min(initial=others_us))
            return self
        return self.compact() if count else None

    def _to_look_at(self, bound_us: int) -> Ints | slice:
        """The rows of blocks in which one may be evicted by this bound, and was not before."""
        assert self.times is not None
        if self._blocks is None:
            if len(self) <= 8 * _BLOCK_ROWS:
                return _ALL_ROWS
            self._blocks = _Blocks(self.times)
        return self._blocks.rows(self._bound_us, bound_us)

    def expired(self, bound_us: int) -> Ints:
        """The rows that are not hidden and whose event time is at or below the bound."""
        if self.times is None or self.earliest_us > bound_us:
            return np.zeros(0, np.int64)
        places = self._to_look_at(bound_us)
        found: Ints = (self._is_alive(places) & (self.times[places] <= bound_us)).nonzero()[0]
        return found if isinstance(places, slice) else places[found]

    def drop(self, places: Ints, weights: Ints) -> Run:
        """Count the rows at these places, which are distinct, so much less often."""
        self.weights[places] -= weights
        self._gone += len(places) - int(np.count_nonzero(self.weights[places]))
        return self.compact() if 2 * self._gone > len(self) else self


def _buckets(hashes: Hashes, count: int) -> Ints:
    """The upper bits; `count` is a power of two."""
    return (hashes >> np.uint64(65 - count.bit_length())).astype(np.int64)


def merge(parts: Sequence[Rows], room: Room = MEMORY) -> Rows:
    """All rows, in order, without those that cancel each other; nothing of it is shared."""
    times = [part.times for part in parts if part.times is not None]
    merged = Rows(
        join_rows([part.rows for part in parts], room),
        room.joined([part.weights for part in parts]),
        room.joined(times) if times else None,
        room.joined([part.hashes for part in parts]),
    )
    if len(parts) == 1 or not len(merged) or merged.weights.min() >= 0:
        return merged
    left = merged.take(*strike_out(merged.hashes, merged.rows.batch(), merged.weights))
    return merge([left], room) if room.is_bounded else left
