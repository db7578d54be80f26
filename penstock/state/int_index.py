"""From whole numbers to slots: a hash table in NumPy, for tables with narrow keys.

A key is a row of one or more words of 64 bits. Looking up a thousand keys costs a few passes over
arrays: a third of what a dictionary of Python's integers takes once it is larger than the
processor's cache. Collisions go to the next place; the table is at most a quarter full, so nearly
all keys are found in the first pass. Places of forgotten keys stay marked until it is rebuilt.

Law: at most one slot per key; a slot is handed out again only after its key was forgotten.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.state.equal_rows import group_numbers

Ints = npt.NDArray[np.int64]
_EMPTY: Final = -1
_GONE: Final = -2
_PLACES_MIN: Final = 4096
_FULL: Final = 4
_U = np.uint64
_FACTOR: Final = _U(0x9E3779B97F4A7C15)
_MIX: Final = np.int64(0x2545F4914F6CDD1D)


class IntIndex:
    """Slots of keys of `width` words; slots are dense, small, and reused."""

    def __init__(self, width: int = 1) -> None:
        self._width = width
        #: Places, as (hash, slot); the slot may be _EMPTY or _GONE.
        self._places = _make_places(_PLACES_MIN)
        #: Places that are not _EMPTY.
        self._used = 0
        self._words = np.zeros((0, width), np.int64)
        self._alive = np.zeros(0, bool)
        self._free: list[int] = []
        self.next = 0

    def __len__(self) -> int:
        return self.next - len(self._free)

    def find(self, words: Ints) -> Ints:
        """The slot of each key, -1 where there is none."""
        return self._find(words, self._hash(words))

    def _find(self, words: Ints, hashes: Ints) -> Ints:
        places = self._home(hashes)
        entries = self._places[places]
        slots = entries[:, 1].copy()
        settled = self._is_same(entries, hashes, words) | (slots == _EMPTY)
        pending = np.flatnonzero(~settled)
        mask = len(self._places) - 1
        while len(pending):
            places[pending] = (places[pending] + 1) & mask
            entries = self._places[places[pending]]
            slots[pending] = entries[:, 1]
            same = self._is_same(entries, hashes[pending], words[pending])
            pending = pending[~(same | (entries[:, 1] == _EMPTY))]
        return slots

    def _is_same(self, entries: Ints, hashes: Ints, words: Ints) -> npt.NDArray[np.bool_]:
        """Whether the place holds the key; a hash of one word is the word itself."""
        same = (entries[:, 0] == hashes) & (entries[:, 1] >= 0)
        if self._width > 1:
            rows = np.flatnonzero(same)
            kept, sought = self._words[entries[rows, 1]], words[rows]
            equal = kept[:, 0] == sought[:, 0]
            for word in range(1, self._width):  # all(axis=1) over so few columns is far slower
                equal &= kept[:, word] == sought[:, word]
            same[rows] = equal
        return same

    def locate(self, words: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """The slot of each key, and whether it was made just now."""
        hashes = self._hash(words)
        slots = self._find(words, hashes)
        is_new = slots < 0
        if is_new.any():
            fresh, of_fresh = words[is_new], hashes[is_new]
            first, places = _distinct(fresh, of_fresh)
            made = np.empty(len(first), np.int64)
            made[np.argsort(first, kind="stable")] = self._take(len(first))
            self._insert(fresh[first], of_fresh[first], made)
            slots[is_new] = made[places]
        return slots, is_new

    def _take(self, count: int) -> list[int]:
        reused = [self._free.pop() for _ in range(min(count, len(self._free)))]
        start = self.next
        self.next += count - len(reused)
        if self.next > len(self._words):
            more = max(len(self._words), self.next - len(self._words), 1024)
            self._words = np.concatenate([self._words, np.zeros((more, self._width), np.int64)])
            self._alive = np.concatenate([self._alive, np.zeros(more, bool)])
        return [*reused, *range(start, self.next)]

    def _insert(self, words: Ints, hashes: Ints, slots: Ints) -> None:
        self._words[slots] = words
        self._alive[slots] = True
        if (self._used + len(slots)) * _FULL > len(self._places):
            self._rebuild()
        else:
            self._put(hashes, slots)

    def _rebuild(self) -> None:
        """Makes room, and drops the marks of deleted places."""
        slots = self.slots()
        places = _PLACES_MIN
        while len(slots) * 2 * _FULL > places:
            places *= 2
        self._places = _make_places(places)
        self._used = 0
        self._put(self._hash(self._words[slots]), slots)

    def _put(self, hashes: Ints, slots: Ints) -> None:
        self._used += len(hashes)
        mask = len(self._places) - 1
        places = self._home(hashes)
        waiting = np.arange(len(hashes))
        while len(waiting):
            free = self._places[places[waiting], 1] == _EMPTY
            trying = waiting[free]
            self._places[places[trying], 0] = hashes[trying]
            self._places[places[trying], 1] = slots[trying]
            # Of several that tried one place, the last stays; the others go on.
            settled = np.zeros(len(waiting), bool)
            settled[free] = self._places[places[trying], 1] == slots[trying]
            waiting = waiting[~settled]
            places[waiting] = (places[waiting] + 1) & mask

    def forget(self, slots: Ints) -> None:
        """Free these slots, which must be distinct and in use."""
        places = self._home(self._hash(self._words[slots]))
        pending = np.arange(len(slots))
        mask = len(self._places) - 1
        while len(pending):
            here = self._places[places[pending], 1] == slots[pending]
            self._places[places[pending[here]], 1] = _GONE
            pending = pending[~here]
            places[pending] = (places[pending] + 1) & mask
        self._alive[slots] = False
        self._free += slots.tolist()

    def slots(self) -> Ints:
        """All slots in use."""
        return np.flatnonzero(self._alive[: self.next])

    def words(self, slots: Ints) -> Ints:
        """The keys of these slots."""
        return self._words[slots]

    def is_alive(self, slots: Ints) -> npt.NDArray[np.bool_]:
        """Which of these slots are in use."""
        return self._alive[slots]

    def _hash(self, words: Ints) -> Ints:
        """One number per key, equal for equal keys."""
        hashes = words[:, 0]
        for word in range(1, self._width):  # arrays wrap around without a warning
            hashes = (hashes * _MIX) ^ (hashes >> np.int64(29)) ^ words[:, word]
        return hashes

    def _home(self, hashes: Ints) -> Ints:
        """The place where the search begins: the upper bits of a product."""
        shift = _U(65 - len(self._places).bit_length())
        return ((hashes.view(_U) * _FACTOR) >> shift).astype(np.int64)


def _distinct(words: Ints, hashes: Ints) -> tuple[Ints, Ints]:
    """The first row of each distinct key, and each row's place among those."""
    places, first = group_numbers(hashes)
    if (words == words[first[places]]).all():
        return first, places
    # Different keys share a hash.
    _, first, places = np.unique(words, axis=0, return_index=True, return_inverse=True)
    return first, places.reshape(-1)


def _make_places(count: int) -> npt.NDArray[np.int64]:
    places = np.zeros((count, 2), np.int64)
    places[:, 1] = _EMPTY
    return places
