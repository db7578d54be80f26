"""From whole numbers to slots: a hash table in NumPy, for tables with narrow keys.

A key is a row of one or more words of 64 bits. Looking up a thousand keys costs a few passes over
arrays: a third of what a dictionary of Python's integers takes once it is larger than the
processor's cache. Collisions go to the next place; the table is at most a quarter full, so nearly
all keys are found in the first pass. Places of forgotten keys stay marked until it is rebuilt. Its
place follows from the upper bits of a key, so a rebuild goes through both tables from the beginning
to the end.

Law: at most one slot per key; a slot is handed out again only after its key was forgotten.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.state.equal_rows import group_numbers
from penstock.state.room import MEMORY, Room

Ints = npt.NDArray[np.int64]
_EMPTY: Final = 0
_GONE: Final = -1
_PLACES_MIN: Final = 4096
#: Of so many places one is in use at most; where memory is short, one of two.
_FULL: Final = 4
_FULL_BOUNDED: Final = 2
#: Places that are looked at together when a table is rebuilt.
_REBUILT_PLACES: Final = 1 << 16
_U = np.uint64
_FACTOR: Final = _U(0x9E3779B97F4A7C15)
_MIX: Final = np.int64(0x2545F4914F6CDD1D)


class IntIndex:
    """Slots of keys of `width` words; slots are dense, small, and reused."""

    def __init__(self, width: int = 1, room: Room = MEMORY) -> None:
        self._width = width
        self._room = room
        self._full = _FULL_BOUNDED if room.is_bounded else _FULL
        #: Places, as (hash, slot + 1); instead of that may be _EMPTY or _GONE.
        self._places = room.zeros((_PLACES_MIN, 2), np.int64)
        #: Places that are not _EMPTY.
        self._used = 0
        self._words = room.zeros((0, width), np.int64)
        self._alive = room.zeros(0, np.bool_)
        #: Slots of forgotten keys: so many from the beginning. The last one is taken first.
        self._free = room.zeros(0, np.int64)
        self._free_count = 0
        self.next = 0

    def __len__(self) -> int:
        return self.next - self._free_count

    def make_places(self, count: int) -> Ints:
        """For so many keys: all that takes long of a rebuild, so that a thread may do it before."""
        places = self._room.zeros((self._places_for(count), 2), np.int64)
        if not self._room.is_bounded:
            places[:] = _EMPTY  # else the first to touch a page waits until it is there
        return places

    def expect(self, count: int, places: Ints | None = None) -> None:
        """So many keys will come; `places` is what was made for them."""
        places = self.make_places(count) if places is None else places
        if len(places) > len(self._places):
            self._move_to(places)
        if count > len(self._words):
            self._words = self._room.grown(self._words, count)
            self._alive = self._room.grown(self._alive, count)

    def _places_for(self, count: int) -> int:
        places = _PLACES_MIN
        while count * self._full * 3 // 2 > places:
            places *= 2
        return places

    def find(self, words: Ints) -> Ints:
        """The slot of each key, -1 where there is none."""
        return self._find(words, self._hash(words))

    def _find(self, words: Ints, hashes: Ints) -> Ints:
        places = self._home(hashes)
        self._room.expect(self._places, places)
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
        slots -= 1
        return slots

    def _is_same(self, entries: Ints, hashes: Ints, words: Ints) -> npt.NDArray[np.bool_]:
        """Whether the place holds the key; a hash of one word is the word itself."""
        same = (entries[:, 0] == hashes) & (entries[:, 1] > 0)
        if self._width > 1:
            rows = np.flatnonzero(same)
            kept, sought = self.words(entries[rows, 1] - 1), words[rows]
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

    def _take(self, count: int) -> Ints:
        left = max(self._free_count - count, 0)
        reused = self._free[left : self._free_count][::-1]
        start = self.next
        self.next += count - len(reused)
        if self.next > len(self._words):
            rows = max(2 * len(self._words), self.next, 1024)
            self._words = self._room.grown(self._words, rows)
            self._alive = self._room.grown(self._alive, rows)
        self._free_count = left
        return np.concatenate([reused, np.arange(start, self.next)])

    def _insert(self, words: Ints, hashes: Ints, slots: Ints) -> None:
        self._words[slots] = words
        self._alive[slots] = True
        if (self._used + len(slots)) * self._full > len(self._places):
            self._rebuild()
        self._put(hashes, slots)

    def _rebuild(self) -> None:
        """Makes room for more keys, and drops the marks of deleted places."""
        self._move_to(self._room.zeros((self._places_for(len(self)), 2), np.int64))

    def _move_to(self, places: Ints) -> None:
        old, self._places = self._places, places
        self._used = 0
        for start in range(0, len(old), _REBUILT_PLACES):
            entries = old[start : start + _REBUILT_PLACES]
            entries = entries[entries[:, 1] > 0]
            self._put(entries[:, 0], entries[:, 1] - 1)

    def _put(self, hashes: Ints, slots: Ints) -> None:
        self._used += len(hashes)
        mask = len(self._places) - 1
        places = self._home(hashes)
        entries = np.stack([hashes, slots + 1], axis=1)
        waiting = np.arange(len(hashes))
        while len(waiting):
            free = self._places[places[waiting], 1] == _EMPTY
            trying = waiting[free]
            self._places[places[trying]] = entries[trying]
            # Of several that tried one place, the last stays; the others go on.
            settled = np.zeros(len(waiting), bool)
            settled[free] = self._places[places[trying], 1] == entries[trying, 1]
            waiting = waiting[~settled]
            places[waiting] = (places[waiting] + 1) & mask

    def forget(self, slots: Ints) -> None:
        """Free these slots, which must be distinct and in use."""
        places = self._home(self._hash(self._words[slots]))
        pending = np.arange(len(slots))
        mask = len(self._places) - 1
        while len(pending):
            here = self._places[places[pending], 1] == slots[pending] + 1
            self._places[places[pending[here]], 1] = _GONE
            pending = pending[~here]
            places[pending] = (places[pending] + 1) & mask
        self._alive[slots] = False
        count = self._free_count + len(slots)
        if count > len(self._free):
            self._free = self._room.grown(self._free, max(count, 2 * len(self._free)))
        self._free[self._free_count : count] = slots
        self._free_count = count

    def slots(self) -> Ints:
        """All slots in use."""
        return np.flatnonzero(self._alive[: self.next])

    def words(self, slots: Ints) -> Ints:
        """The keys of these slots."""
        self._room.expect(self._words, slots)
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
