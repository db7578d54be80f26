"""From one whole number to a slot: a hash table in NumPy, for tables with a single narrow key.

Looking up a thousand numbers costs a few passes over arrays: a third of what a dictionary of
Python's integers takes once it is larger than the processor's cache. Collisions go to the next
place; the table is at most a quarter full, so nearly all keys are found in the first pass. Places
of forgotten numbers stay marked until the table is rebuilt.

Law: at most one slot per number; a slot is handed out again only after its number was forgotten.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
_EMPTY: Final = -1
_GONE: Final = -2
_PLACES_MIN: Final = 4096
_FULL: Final = 4
_U = np.uint64
_FACTOR: Final = _U(0x9E3779B97F4A7C15)


class IntIndex:
    """Slots of numbers; slots are dense, small, and reused."""

    def __init__(self) -> None:
        #: Places, as (number, slot); the slot may be _EMPTY or _GONE.
        self._places = _make_places(_PLACES_MIN)
        #: Places that are not _EMPTY.
        self._used = 0
        self._numbers = np.zeros(0, np.int64)
        self._alive = np.zeros(0, bool)
        self._free: list[int] = []
        self.next = 0

    def __len__(self) -> int:
        return self.next - len(self._free)

    def find(self, numbers: Ints) -> Ints:
        """The slot of each number, -1 where there is none."""
        at = self._home(numbers)
        found = self._places[at]
        slots = found[:, 1].copy()
        open_ = ((found[:, 0] != numbers) & (slots != _EMPTY)) | (slots == _GONE)
        pending = np.flatnonzero(open_)
        mask = len(self._places) - 1
        while len(pending):
            at[pending] = (at[pending] + 1) & mask
            found = self._places[at[pending]]
            slots[pending] = found[:, 1]
            open_ = (found[:, 0] != numbers[pending]) & (found[:, 1] != _EMPTY)
            pending = pending[open_ | (found[:, 1] == _GONE)]
        return slots

    def locate(self, numbers: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """The slot of each number, and whether it was made just now."""
        slots = self.find(numbers)
        is_new = slots < 0
        if is_new.any():
            fresh, first, places = np.unique(
                numbers[is_new], return_index=True, return_inverse=True
            )
            made = np.empty(len(fresh), np.int64)
            made[np.argsort(first, kind="stable")] = self._take(len(fresh))
            self._insert(fresh, made)
            slots[is_new] = made[places]
        return slots, is_new

    def _take(self, count: int) -> list[int]:
        reused = [self._free.pop() for _ in range(min(count, len(self._free)))]
        start = self.next
        self.next += count - len(reused)
        if self.next > len(self._numbers):
            capacity = max(2 * len(self._numbers), self.next, 1024)
            self._numbers = np.resize(self._numbers, capacity)
            self._alive = np.concatenate([self._alive, np.zeros(capacity - len(self._alive), bool)])
        return [*reused, *range(start, self.next)]

    def _insert(self, numbers: Ints, slots: Ints) -> None:
        self._numbers[slots] = numbers
        self._alive[slots] = True
        if (self._used + len(numbers)) * _FULL > len(self._places):
            self._rebuild()
        else:
            self._put(numbers, slots)

    def _rebuild(self) -> None:
        """Makes room, and drops the marks of deleted places."""
        slots = self.slots()
        places = _PLACES_MIN
        while len(slots) * 2 * _FULL > places:
            places *= 2
        self._places = _make_places(places)
        self._used = 0
        self._put(self._numbers[slots], slots)

    def _put(self, numbers: Ints, slots: Ints) -> None:
        self._used += len(numbers)
        mask = len(self._places) - 1
        at = self._home(numbers)
        waiting = np.arange(len(numbers))
        while len(waiting):
            free = self._places[at[waiting], 1] == _EMPTY
            trying = waiting[free]
            self._places[at[trying], 0] = numbers[trying]
            self._places[at[trying], 1] = slots[trying]
            # Of several that tried one place, the last stays; the others go on.
            settled = np.zeros(len(waiting), bool)
            settled[free] = self._places[at[trying], 1] == slots[trying]
            waiting = waiting[~settled]
            at[waiting] = (at[waiting] + 1) & mask

    def forget(self, slots: Ints) -> None:
        """Free these slots, which must be distinct and in use."""
        numbers = self._numbers[slots]
        at = self._home(numbers)
        pending = np.arange(len(slots))
        mask = len(self._places) - 1
        while len(pending):
            here = self._places[at[pending], 1] == slots[pending]
            self._places[at[pending[here]], 1] = _GONE
            pending = pending[~here]
            at[pending] = (at[pending] + 1) & mask
        self._alive[slots] = False
        self._free += slots.tolist()

    def slots(self) -> Ints:
        """All slots in use."""
        return np.flatnonzero(self._alive[: self.next])

    def numbers(self, slots: Ints) -> Ints:
        """The numbers of these slots."""
        return self._numbers[slots]

    def is_alive(self, slots: Ints) -> npt.NDArray[np.bool_]:
        """Which of these slots are in use."""
        return self._alive[slots]

    def _home(self, numbers: Ints) -> Ints:
        """The place where the search for each number begins: the upper bits of a product."""
        shift = _U(65 - len(self._places).bit_length())
        with np.errstate(over="ignore"):
            return ((numbers.view(_U) * _FACTOR) >> shift).astype(np.int64)


def _make_places(count: int) -> npt.NDArray[np.int64]:
    places = np.zeros((count, 2), np.int64)
    places[:, 1] = _EMPTY
    return places
