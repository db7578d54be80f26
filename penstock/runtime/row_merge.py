"""Rows of a source that several tasks hand on, in the order in which they stand in the log. Pure.

Each row comes with its source's place in the log. Rows wait until all tasks that share the source
have looked beyond their place; then they are let go together, in order. So whoever depends on the
order of rows takes those of a key in log order, however many tasks there are.

What waits is not kept in the state: it stands in the log, and a marker says from where on it must
be read again (`Marker.reread_from`). Law: all rows below the last place that was let go have been
let go, once, and none above it: the place alone says which rows of an entry that is read again
still count.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.ids import Lsn
from penstock.ops.api import Delta, join_deltas

#: Rows of several entries may count at one LSN, where a marker names them: these bits say which of
#: them an entry is. Beyond so many they are not told apart.
_BITS: Final = 20
_RANK_MAX: Final = (1 << _BITS) - 1

Places = npt.NDArray[np.int64]


def place_of(counts_at: Lsn, rank: int) -> int:
    """Of the rows of the entry of this rank among those that count there: larger is later."""
    return (counts_at << _BITS) | min(rank, _RANK_MAX)


@dataclass(slots=True)
class _Held:
    """Rows of one entry between stages, which stands at `entry_lsn`."""

    lsn: Lsn
    delta: Delta
    places: Places
    entry_lsn: Lsn


class RowMerge:
    """Of one input of a task. `released`: all rows of the source below it were let go before."""

    def __init__(self, released: Lsn) -> None:
        self._released = released
        self._held: list[_Held] = []

    def add(self, lsn: Lsn, delta: Delta, places: Places, entry_lsn: Lsn) -> None:
        """Rows that are found again from `lsn` on; those that were let go before are left out."""
        waits = places >= self._released << _BITS
        if waits.any():
            self._held.append(_Held(lsn, delta.where(waits), places[waits], entry_lsn))

    def release(self, looked: Lsn, *, apart: bool = False) -> list[tuple[Lsn, Delta]]:
        """The rows below `looked`, up to which all tasks have looked, in order.

        All together, with the entry of the first; or `apart`, those of each entry with its own.
        """
        if looked <= self._released:
            return []
        self._released = looked
        limit = self._released << _BITS
        ready: list[_Held] = []
        waiting: list[_Held] = []
        for held in self._held:
            if held.places[0] >= limit:  # they ascend
                waiting.append(held)
                continue
            is_ready = held.places < limit
            ready += _part_of(held, is_ready)
            waiting += _part_of(held, ~is_ready)
        self._held = waiting
        return _in_order(ready, apart=apart) if ready else []

    def __len__(self) -> int:
        """How many rows wait, in memory."""
        return sum(len(held.places) for held in self._held)

    @property
    def held_from(self) -> Lsn | None:
        """From where on all rows that wait are found again; None: none waits."""
        return min((held.lsn for held in self._held), default=None)


def _part_of(held: _Held, chosen: npt.NDArray[np.bool_]) -> list[_Held]:
    if not chosen.any():
        return []
    return [_Held(held.lsn, held.delta.where(chosen), held.places[chosen], held.entry_lsn)]


def _in_order(ready: list[_Held], *, apart: bool) -> list[tuple[Lsn, Delta]]:
    places = np.concatenate([held.places for held in ready])
    delta = sorted_rows(join_deltas([held.delta for held in ready]), places)
    if not apart:
        return [(ready[0].entry_lsn, delta)]
    lsns = np.repeat([held.entry_lsn for held in ready], [len(held.places) for held in ready])
    lsns = lsns[np.argsort(places, kind="stable")]
    starts = [0, *(np.flatnonzero(np.diff(lsns)) + 1).tolist(), len(lsns)]
    return [
        (Lsn(int(lsns[first])), delta.take(np.arange(first, end)))
        for first, end in itertools.pairwise(starts)
    ]


def sorted_rows(delta: Delta, places: Places) -> Delta:
    """Rows of one place stay as they are to each other."""
    if (places[1:] >= places[:-1]).all():
        return delta
    return delta.take(np.argsort(places, kind="stable"))
