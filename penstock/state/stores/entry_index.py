"""From keys to the newest entry of each: a hash table in NumPy over packed entries. Pure.

Entries come in the order in which they were written; of one key, the last counts. A whole directory
is taken in at once, with a few passes over arrays: a million entries take less than 0.2 s, where a
dictionary of Python's takes more and four times the memory. Entries of small commits wait in a
dictionary until there are enough of them for such a pass.

Law: `find` gives, of each digest, the entry that was added last, or -1 if there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.state.stores.commit_format import DELETED, DIGEST_BYTES, ENTRY, Entries

Rows = npt.NDArray[np.int64]
#: Entries that wait before the table takes them in.
WAITING_MAX: Final = 4096
_PLACES_MIN: Final = 4096
#: Places per row: at most so full, a search seldom goes further than one place.
_SPARSE: Final = 2
_FREE: Final = -1


class EntryIndex:
    """Rows are numbers of entries; those that do not count any more are dropped now and then."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """No key has an entry."""
        self._entries = np.zeros(_PLACES_MIN, ENTRY)
        self._low = np.zeros(_PLACES_MIN, np.uint64)
        self._segments = np.zeros(_PLACES_MIN, np.int32)
        self._counts = np.zeros(_PLACES_MIN, bool)
        self._places = np.full(_PLACES_MIN, _FREE, np.int32)
        #: Rows so far; and how many of them are in the table: the others wait.
        self._rows = self._settled = 0
        self._waiting: dict[bytes, int] = {}

    def load(self, directories: Sequence[tuple[int, Entries]]) -> None:
        """Segments and their entries, the oldest first: what there is to begin with."""
        self.clear()
        self._make_room(sum(len(entries) for _, entries in directories))
        for segment, entries in directories:
            self._append(segment, entries)
        self.settle()

    def _append(self, segment: int, entries: Entries) -> int:
        start, end = self._rows, self._rows + len(entries)
        self._make_room(end)
        self._entries[start:end] = entries
        self._low[start:end] = entries["low"]
        self._segments[start:end] = segment
        self._counts[start:end] = True
        self._rows = end
        return start

    def add(self, segment: int, entries: Entries, digests: Sequence[bytes]) -> None:
        """Entries of a commit and their digests; they may wait."""
        start = self._append(segment, entries)
        for row, one in enumerate(digests, start):  # of one commit, each comes as Python's bytes
            before = self._waiting.get(one)
            if before is not None:
                self._counts[before] = False
            self._waiting[one] = row
        if self._rows - self._settled > WAITING_MAX:
            self.settle()

    def find(self, digests: Sequence[bytes]) -> Rows:
        """The row of each, -1 where there is none."""
        found = np.array([self._waiting.get(one, _FREE) for one in digests], np.int64)
        missing = np.flatnonzero(found < 0)
        if len(missing) and self._settled:
            wanted = (
                digests if len(missing) == len(digests) else [digests[n] for n in missing.tolist()]
            )
            halves = np.frombuffer(b"".join(wanted), "<u8").reshape(-1, DIGEST_BYTES // 8)
            found[missing] = self._find(halves[:, 0], halves[:, 1])
        return found

    def live(self) -> Rows:
        """All rows that count, deletions too, oldest first."""
        self.settle()
        return np.flatnonzero(self._counts[: self._rows])

    def starting(self, prefix: bytes) -> Rows:
        """Rows that count, without deletions, whose keys begin so; at most four bytes."""
        rows = self.live()
        if prefix:
            number = int.from_bytes(prefix.ljust(4, b"\0"), "big")
            shift = np.uint32(32 - 8 * len(prefix))
            starts = self._entries["prefix"][rows] >> shift
            rows = rows[starts == np.uint32(number) >> shift]
        return rows[self._entries["value"][rows] != DELETED]

    def entries(self, rows: Rows) -> Entries:
        """Theirs."""
        return self._entries[rows]

    def segments(self, rows: Rows) -> npt.NDArray[np.int32]:
        """Where they lie."""
        return self._segments[rows]

    def drop(self, rows: Rows) -> None:
        """Entries of deletions that nothing is left to delete of."""
        assert (self._entries["value"][rows] == DELETED).all()
        self._counts[rows] = False
        self.compact()

    def compact(self) -> None:
        """Forget what does not count; rows get new numbers."""
        self.settle()
        kept = np.flatnonzero(self._counts[: self._rows])
        entries, segments = self._entries[kept], self._segments[kept]
        self.load([(0, entries)])
        self._segments[: len(kept)] = segments

    @property
    def dead(self) -> int:
        """Rows that do not count; those that wait may hide some more."""
        return self._rows - int(np.count_nonzero(self._counts[: self._rows]))

    def _make_room(self, rows: int) -> None:
        if rows > len(self._entries):
            size = max(rows, 2 * len(self._entries))
            for name in ("_entries", "_low", "_segments", "_counts"):
                old = getattr(self, name)
                new = np.zeros(size, old.dtype)
                new[: self._rows] = old[: self._rows]
                setattr(self, name, new)

    def settle(self) -> None:
        """Take in what waits."""
        self._waiting = {}
        if self._settled == self._rows:
            return
        if self._rows * _SPARSE > len(self._places):
            places = len(self._places)
            while self._rows * _SPARSE > places:
                places *= 2
            self._places = np.full(places, _FREE, np.int32)
            self._settled = 0
        rows = np.flatnonzero(self._counts[self._settled : self._rows]) + self._settled
        is_empty, self._settled = self._settled == 0, self._rows
        self._settle(rows, is_empty)

    def _settle(self, rows: Rows, is_empty: bool) -> None:
        """Rows of one key search the same places, so they meet: the last of them stays.

        Numbers rise, so of several that are written to one place, the last stays (NumPy says so).
        `is_empty`: the table, so that nobody need look.
        """
        low, high, table = self._low, self._entries["high"], self._places
        mask = len(table) - 1
        places = self._home(low[rows])
        while len(rows):
            if is_empty:
                table[places] = rows
                is_empty = False
            else:
                free = table[places] < 0
                table[places[free]] = rows[free]
            lost = np.flatnonzero(table[places] != rows)
            rows, places = rows[lost], places[lost]
            there = table[places].astype(np.int64)
            same = low[there] == low[rows]
            same[same] = high[there[same]] == high[rows[same]]
            self._counts[rows[same & (there > rows)]] = False
            newer = same & (there < rows)  # what is there is from before
            if newer.any():
                self._counts[there[newer]] = False
                table[places[newer]] = rows[newer]
                older = table[places[newer]] != rows[newer]
                self._counts[rows[newer][older]] = False
            rows, places = rows[~same], (places[~same] + 1) & mask

    def _find(self, low: npt.NDArray[np.uint64], high: npt.NDArray[np.uint64]) -> Rows:
        found = np.full(len(low), _FREE, np.int64)
        pending = np.arange(len(low))
        places, mask = self._home(low), len(self._places) - 1
        highs = self._entries["high"]
        while len(pending):
            there = self._places[places[pending]].astype(np.int64)
            same = (there >= 0) & (self._low[there] == low[pending])
            same &= highs[there] == high[pending]
            found[pending[same]] = there[same]
            pending = pending[(there >= 0) & ~same]
            places[pending] = (places[pending] + 1) & mask
        return found

    def _home(self, low: npt.NDArray[np.uint64]) -> Rows:
        """Digests are even: their lower bits will do."""
        return (low & np.uint64(len(self._places) - 1)).astype(np.int64)
