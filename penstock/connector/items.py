"""What counts in the streams of a source, as items; and cutting items into triggers. Pure.

An item is what counts at one LSN: a data entry, or all that a marker names. A window keeps the
items of streams in order, and a trigger takes some of the first.
Law: no cut divides an item between triggers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.ids import Lsn
from penstock.limits import KIB, MIB
from penstock.log.records import Entry
from penstock.protocol.committed import CommittedReader, Marked
from penstock.protocol.markers import Range
from penstock.stream.registration import stream_tag

#: Payloads that a window keeps.
KEPT_BYTES_MAX: Final = 8 * MIB
#: Staged entries that a reader remembers, without their payloads.
STAGED_ENTRIES_MAX: Final = 1 << 16
#: What an item costs in memory beyond its payload, when it is weighed.
ITEM_OVERHEAD_BYTES: Final = 2 * KIB
#: An entry with tags of more than one virtual node.
SEVERAL_NODES: Final = -1


class Division(Enum):
    """By what entries go to partitions, as their tags say: the letter before the stream's name."""

    #: The virtual node of a key that a sink wrote by.
    NODE = "s"
    #: The lane that each entry of a stream is in.
    LANE = "l"


@dataclass(frozen=True, slots=True)
class ItemSource:
    """A stream that is read; what counts below `start_lsn` belongs to an earlier life of it."""

    name: str
    start_lsn: Lsn = Lsn(0)


@dataclass(frozen=True, slots=True)
class ItemPlace:
    """Where rows count, and so what the metadata columns say of them: a data entry or a marker."""

    lsn: Lsn
    time_ms: int
    producer: str
    #: Of the sources, those in which the rows may count.
    streams: tuple[str, ...]


@dataclass(slots=True)
class Piece:
    """An entry that holds rows. Its payload is dropped when others need the room."""

    lsn: Lsn
    streams: tuple[str, ...]
    #: Or its lane, if that is asked for; None: its tags name none.
    node: int | None
    rows: int
    size: int
    payload: bytes | None


@dataclass(frozen=True, slots=True)
class Item:
    """What counts at one LSN; it is read whole or not at all."""

    place: ItemPlace
    #: Whether a marker names the pieces, or the one piece is the data entry itself.
    staged: bool
    #: By LSN; those of each range that the marker names, adjacent ranges as one.
    runs: tuple[tuple[Piece, ...], ...]
    rows: int
    #: Of the payloads, in bytes.
    size: int


class ItemWindow:
    """The items of [start, …) in order, and cutting them into triggers."""

    def __init__(self, start: int) -> None:
        #: Everything that counts from here on is in.
        self.start = start
        self._items: list[Item] = []
        self._lsns: list[int] = []
        #: Sums up to each item, over the window's whole life; at 0 those of what was forgotten.
        self._rows = [0]
        self._bytes = [0]

    @property
    def end(self) -> int:
        """After the last item; the start if there is none."""
        return self._lsns[-1] + 1 if self._lsns else self.start

    def append(self, item: Item) -> None:
        lsn = item.place.lsn
        assert lsn >= self.end, f"an item at {lsn} after {self.end}"
        self._items.append(item)
        self._lsns.append(lsn)
        # An entry whose writer did not say how many rows it holds counts as one.
        self._rows.append(self._rows[-1] + max(item.rows, 1))
        self._bytes.append(self._bytes[-1] + item.size)

    def amount(self, start: int) -> tuple[int, int, int]:
        """Items, rows and bytes from `start` on."""
        first = bisect_left(self._lsns, start)
        rows, size = self._rows[-1] - self._rows[first], self._bytes[-1] - self._bytes[first]
        return len(self._lsns) - first, rows, size

    def weight(self, start: int) -> int:
        """What the items from `start` on stand for, and cost to remember, in bytes."""
        items, _, size = self.amount(start)
        return size + items * ITEM_OVERHEAD_BYTES

    def cut(
        self, start: int, *, rows_max: int | None, bytes_max: int | None, below: int | None = None
    ) -> int:
        """Where a trigger that begins at `start` ends; `start` if there is nothing.

        At least one item, whatever the limits, but none at or above `below`.
        """
        first = bisect_left(self._lsns, start)
        last = len(self._lsns) if below is None else bisect_left(self._lsns, below)
        if first >= last:
            return start
        end = last
        if rows_max is not None:
            end = min(end, bisect_right(self._rows, self._rows[first] + rows_max) - 1)
        if bytes_max is not None:
            end = min(end, bisect_right(self._bytes, self._bytes[first] + bytes_max) - 1)
        return self._lsns[max(end, first + 1) - 1] + 1

    def items(self, start: int, end: int) -> list[Item]:
        """Those in [start, end), which must not lie below the window's start."""
        assert start >= self.start, f"items from {start} of a window from {self.start}"
        return self._items[bisect_left(self._lsns, start) : bisect_left(self._lsns, end)]

    def forget(self, below: int) -> None:
        """Items below are not asked for again."""
        if below <= self.start:
            return
        gone = bisect_left(self._lsns, below)
        del self._items[:gone], self._lsns[:gone], self._rows[:gone], self._bytes[:gone]
        self.start = below


class ItemReader:
    """The committed reader of a source: entries under its streams' tags in LSN order, to items.

    Of the payloads of all entries it keeps the newest ones, up to a bound.
    """

    def __init__(
        self,
        sources: tuple[ItemSource, ...],
        start: int,
        by: Division | None = None,
        *,
        kept_bytes_max: int = KEPT_BYTES_MAX,
        staged_max: int = STAGED_ENTRIES_MAX,
    ) -> None:
        self._sources = sources
        self._by = by
        self._committed: CommittedReader[Piece] = CommittedReader(
            start, keep=self._keep, weigh=lambda _: 1, weight_max=staged_max
        )
        self._kept: deque[Piece] = deque()
        self._kept_bytes = 0
        self._kept_bytes_max = kept_bytes_max

    def take(self, entry: Entry, fetch: Callable[[Range], Iterable[Entry]]) -> Item | None:
        """What counts at the entry's place; `fetch` is asked for ranges that are not known."""
        counted = self._committed.take(entry)
        place = None if counted is None else place_of(entry, self._sources)
        if place is None:
            return None
        if not isinstance(counted, Marked):
            piece = self._keep(entry)
            return _item(place, ((piece,),), is_staged=False)
        for named in counted.missing:
            counted.supply(named, fetch(named))
        return _item(place, _counted_runs(counted, place), is_staged=True)

    def _keep(self, entry: Entry) -> Piece:
        names = tuple(
            source.name for source in self._sources if stream_tag(source.name) in entry.tags
        )
        node = None if self._by is None else node_of(entry.tags, self._sources, self._by)
        size = len(entry.payload)
        piece = Piece(entry.lsn, names, node, entry.rows, size, entry.payload)
        self._kept.append(piece)
        self._kept_bytes += size
        while self._kept_bytes > self._kept_bytes_max:
            oldest = self._kept.popleft()
            oldest.payload = None
            self._kept_bytes -= oldest.size
        return piece


def _item(place: ItemPlace, runs: tuple[tuple[Piece, ...], ...], *, is_staged: bool) -> Item | None:
    """None: nothing counts there."""
    if not runs:
        return None
    weighed = [(times_counted(piece, place), piece) for run in runs for piece in run]
    rows = sum(times * piece.rows for times, piece in weighed)
    size = sum(times * piece.size for times, piece in weighed)
    return Item(place, is_staged, runs, rows, size)


def _counted_runs(marked: Marked[Piece], place: ItemPlace) -> tuple[tuple[Piece, ...], ...]:
    """By LSN; adjacent ranges as one."""
    streams = set(place.streams)
    runs: list[list[Piece]] = []
    end = -1
    for named in sorted(marked.marker.ranges, key=lambda named: (named.first_lsn, named.count)):
        run = marked.run(named)
        assert run is not None
        if named.first_lsn != end:
            runs.append([])
        runs[-1] += [piece for piece in run if not streams.isdisjoint(piece.streams)]
        end = named.end
    return tuple(tuple(run) for run in runs if run)


def place_of(entry: Entry, sources: Iterable[ItemSource]) -> ItemPlace | None:
    """Where the rows of a data entry, or those that a marker names, count; None: nowhere."""
    names = tuple(
        source.name
        for source in sources
        if stream_tag(source.name) in entry.tags and entry.lsn >= source.start_lsn
    )
    return ItemPlace(entry.lsn, entry.time_ms, entry.producer, names) if names else None


def times_counted(piece: Piece, place: ItemPlace) -> int:
    """How often an entry counts at a place: once in each stream that both are of."""
    return sum(name in piece.streams for name in place.streams)


def node_of(tags: Sequence[str], sources: Iterable[ItemSource], by: Division) -> int | None:
    """The node or lane that an entry's tags name; None: none; SEVERAL_NODES: more than one."""
    nodes: set[int] = set()
    for source in sources:
        prefix = f"{by.value}/{source.name}/"
        nodes.update(int(tag[len(prefix) :]) for tag in tags if tag.startswith(prefix))
    if not nodes:
        return None
    return nodes.pop() if len(nodes) == 1 else SEVERAL_NODES
