"""The committed reader: which entries of a stream count, where, and in which order. Pure.

    DATA     counts where it stands: a plain producer's, or in one group with the marker that
             commits it (atomic groups: it is durable if and only if its marker is)
    STAGED   counts nowhere by itself; it is kept for a while, for the marker that may name it
    MARKER   the staged entries that it names count here, at the marker's own place
    other    nothing to a reader of the stream

All readers of streams are shells around it, which only tail the log and fetch:

    for entry in delivery.entries:               # under the reader's tags, in LSN order
        counted = reader.take(entry)             # the data entry itself, a Marked, or None
        for named in counted.missing:            # of a Marked: what the reader does not have
            counted.supply(named, fetch(named.first_lsn, named.end))

Law (I8, I10): what counts is the same for every reader and every replay, in the order of the LSNs
of DATA entries and markers, wherever the reader began and however little it keeps. Nothing is held
back meanwhile: a marker says where its entries are, and they can always be fetched. So a task that
dies between staging and marker delays nobody (pin R26), and a position is one LSN: whoever is done
with what counted at an LSN goes on at the next, with a new reader if need be.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, TypeVar

from penstock.ids import Lsn
from penstock.limits import MIB
from penstock.log.records import Entry, Kind
from penstock.protocol.markers import Marker, Range, decode_marker

#: Payloads of staged entries that a reader keeps.
KEPT_BYTES_MAX: Final = 8 * MIB

#: What a reader keeps of a staged entry.
T = TypeVar("T")


class Marked(Generic[T]):
    """A task committed: what it staged, in the ranges that its marker names, counts here."""

    __slots__ = ("_keep", "_runs", "lsn", "marker")

    def __init__(
        self,
        lsn: Lsn,
        marker: Marker,
        runs: dict[Range, list[T] | None],
        keep: Callable[[Entry], T],
    ) -> None:
        self.lsn = lsn
        self.marker = marker
        #: The staged entries of each range; None: they must be fetched.
        self._runs = runs
        self._keep = keep

    @property
    def first_lsn(self) -> Lsn:
        """Of what the marker names, and of itself: who reads from here on finds all of it."""
        return Lsn(min([self.lsn, *(named.first_lsn for named in self.marker.ranges)]))

    @property
    def missing(self) -> list[Range]:
        """The ranges to fetch, under the reader's tags, before anything of this counts."""
        return [named for named, run in self._runs.items() if run is None]

    def supply(self, named: Range, fetched: Iterable[Entry]) -> None:
        """What the log has of a missing range."""
        keep = self._keep
        self._runs[named] = [keep(entry) for entry in fetched if is_named(entry, named)]

    def leave_out(self) -> None:
        """Nothing of this is the reader's: what is missing need not be there any more."""
        for named in self.missing:
            self._runs[named] = []

    def run(self, named: Range) -> list[T] | None:
        """What counts of one range; None: it is missing."""
        return self._runs[named]

    @property
    def entries(self) -> list[T]:
        """All that counts here, in order, once nothing is missing."""
        entries: list[T] = []
        for named in self.marker.ranges:
            run = self._runs[named]
            assert run is not None, f"{named} of the marker at {self.lsn} was not fetched"
            entries += run
        return entries


#: What counts at an entry's place, to a reader that keeps entries whole.
Counted = Entry | Marked[Entry] | None


class CommittedReader(Generic[T]):
    """Of one tail, which shows it all entries under its tags from `start` on, in LSN order.

    Of each staged entry it keeps what `keep` makes of it, the newest first, up to `weight_max` by
    the sum of `weigh`.
    """

    def __init__(
        self,
        start: int,
        *,
        keep: Callable[[Entry], T],
        weigh: Callable[[Entry], int],
        weight_max: int,
    ) -> None:
        #: Every staged entry from here on is kept.
        self._from = start
        self._keep = keep
        self._weigh = weigh
        self._weight_max = weight_max
        self._weight = 0
        #: Side by side, by LSN.
        self._lsns: list[int] = []
        self._kept: list[T] = []
        self._weights: list[int] = []

    def take(self, entry: Entry) -> Entry | Marked[T] | None:
        """What counts at the entry's place: itself, what it marks, or nothing."""
        kind = entry.kind
        if kind is Kind.DATA:
            return entry
        if kind is Kind.MARKER:
            marker = decode_marker(entry.payload)
            runs = {named: self._find(named, entry.lsn) for named in marker.ranges}
            return Marked(entry.lsn, marker, runs, self._keep)
        if kind is Kind.STAGED:
            self._remember(entry)
        return None

    def _remember(self, entry: Entry) -> None:
        weight = self._weigh(entry)
        self._lsns.append(entry.lsn)
        self._kept.append(self._keep(entry))
        self._weights.append(weight)
        self._weight += weight
        if self._weight > self._weight_max:
            self._evict()

    def _evict(self) -> None:
        """An eighth and more at once: it moves all that stays."""
        gone = 0
        while self._weight > self._weight_max - self._weight_max // 8:
            self._weight -= self._weights[gone]
            gone += 1
        self._from = self._lsns[gone - 1] + 1
        del self._lsns[:gone], self._kept[:gone], self._weights[:gone]

    def _find(self, named: Range, below: Lsn) -> list[T] | None:
        """What a fetch of the range would give; None: that cannot be known.

        Known is what lies between the oldest entry that is kept and the marker itself.
        """
        if named.first_lsn < self._from or named.end > below:
            return None
        first = bisect_left(self._lsns, named.first_lsn)
        return self._kept[first : bisect_left(self._lsns, named.end, first)]


def ranked(marked: Marked[Entry]) -> Iterator[tuple[int, Entry]]:
    """All that counts there, each with its rank among what the marker names, whoever reads it."""
    before = 0
    for named in marked.marker.ranges:
        for entry in marked.run(named) or ():
            yield before + entry.lsn - named.first_lsn, entry
        before += named.count


def read_entries(start: int, bytes_max: int = KEPT_BYTES_MAX) -> CommittedReader[Entry]:
    """A reader that keeps staged entries whole."""
    return CommittedReader(start, keep=_whole, weigh=_payload_bytes, weight_max=bytes_max)


def _whole(entry: Entry) -> Entry:
    return entry


def _payload_bytes(entry: Entry) -> int:
    return len(entry.payload)


def is_named(entry: Entry, named: Range) -> bool:
    """Whether an entry that was fetched for this range of a marker counts."""
    return entry.kind is Kind.STAGED and named.first_lsn <= entry.lsn < named.end
