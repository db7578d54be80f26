"""What counts in streams, and cutting it: into triggers, into parts for tasks. Pure.

An item is what counts at one LSN: a data entry, or all that a marker names. A window keeps the
items of streams in order, and a trigger takes some of the first. A part is what one task reads:
LSN spans of data entries, LSN spans of staged entries that markers name, or, if it is little, the
entries themselves.

Law: the parts of [start, end) hold each entry as often as it counts in [start, end), normally once,
and no other entry; no cut divides an item between triggers. The same rows, whichever way they are
planned: from a window, or from the markers of a range alone.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.errors import BadRequest
from penstock.ids import Lsn
from penstock.limits import KIB, MIB
from penstock.log.records import Entry, Kind
from penstock.protocol.committed import CommittedReader, Marked
from penstock.protocol.markers import Range, decode_marker
from penstock.protocol.names import stream_node_tag
from penstock.state.keys import VIRTUAL_NODES
from penstock.stream.registration import stream_tag

#: A batch up to this size travels inside its parts: its tasks need not ask the log.
CARRIED_BYTES_MAX: Final = 1 * MIB
#: Below it, another Spark task costs more than it saves.
PART_BYTES_MIN: Final = 1 * MIB
#: The same where only LSNs are known, and no sizes.
PART_LSNS_MIN: Final = 16
#: And no more than this, unless the user says how many parts there are: a task that fails, or is
#: slow, is then a small part of a large range.
PART_LSNS_MAX: Final = 2000
#: Spans this near are read as one: another request costs more than what lies between, of which the
#: server sends only what has the streams' tags.
GAP_LSNS_MAX: Final = 1000
#: Payloads that a window keeps.
KEPT_BYTES_MAX: Final = 8 * MIB
#: Staged entries that a reader remembers, without their payloads.
STAGED_ENTRIES_MAX: Final = 1 << 16
#: What an item costs in memory beyond its payload, when it is weighed.
ITEM_OVERHEAD_BYTES: Final = 2 * KIB
#: An entry with tags of more than one virtual node.
SEVERAL_NODES: Final = -1


@dataclass(frozen=True, slots=True)
class Source:
    """A stream that is read; what counts below `start_lsn` belongs to an earlier life of it."""

    name: str
    start_lsn: Lsn = Lsn(0)


@dataclass(frozen=True, slots=True)
class Place:
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
    #: None: its tags name no virtual node.
    node: int | None
    rows: int
    size: int
    payload: bytes | None


@dataclass(frozen=True, slots=True)
class Item:
    """What counts at one LSN; it is read whole or not at all."""

    place: Place
    #: Whether a marker names the pieces, or the one piece is the data entry itself.
    staged: bool
    #: By LSN; those of each range that the marker names, adjacent ranges as one.
    runs: tuple[tuple[Piece, ...], ...]
    rows: int
    #: Of the payloads, in bytes.
    size: int


@dataclass(frozen=True, slots=True)
class Span:
    """LSNs [first, end)."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class NamedSpan:
    """Staged entries in [first, end) count at `place`."""

    first: int
    end: int
    place: Place


@dataclass(frozen=True, slots=True)
class Carried:
    """An entry's rows, inside the part."""

    place: Place
    stream: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class NodeShare:
    """The virtual nodes index, index + count, index + 2 * count, …"""

    index: int
    count: int
    #: Whether entries without a node belong to it, and it must look for them.
    takes_unkeyed: bool


@dataclass(frozen=True, slots=True)
class Part:
    """What one task reads."""

    sources: tuple[Source, ...]
    #: Disjoint, in order.
    data: tuple[Span, ...] = ()
    #: Disjoint, in order.
    named: tuple[NamedSpan, ...] = ()
    nodes: NodeShare | None = None
    carried: tuple[Carried, ...] = ()


class Window:
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
        at = bisect_left(self._lsns, start)
        rows, size = self._rows[-1] - self._rows[at], self._bytes[-1] - self._bytes[at]
        return len(self._lsns) - at, rows, size

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
        sources: tuple[Source, ...],
        start: int,
        by_node: bool = False,
        *,
        kept_bytes_max: int = KEPT_BYTES_MAX,
        staged_max: int = STAGED_ENTRIES_MAX,
    ) -> None:
        self._sources = sources
        self._by_node = by_node
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
        node = node_of(entry.tags, self._sources) if self._by_node else None
        size = len(entry.payload)
        piece = Piece(entry.lsn, names, node, entry.rows, size, entry.payload)
        self._kept.append(piece)
        self._kept_bytes += size
        while self._kept_bytes > self._kept_bytes_max:
            oldest = self._kept.popleft()
            oldest.payload = None
            self._kept_bytes -= oldest.size
        return piece


def _item(place: Place, runs: tuple[tuple[Piece, ...], ...], *, is_staged: bool) -> Item | None:
    """None: nothing counts there."""
    if not runs:
        return None
    weighed = [(_times(piece, place), piece) for run in runs for piece in run]
    rows = sum(times * piece.rows for times, piece in weighed)
    size = sum(times * piece.size for times, piece in weighed)
    return Item(place, is_staged, runs, rows, size)


def _counted_runs(marked: Marked[Piece], place: Place) -> tuple[tuple[Piece, ...], ...]:
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


def place_of(entry: Entry, sources: Iterable[Source]) -> Place | None:
    """Where the rows of a data entry, or those that a marker names, count; None: nowhere."""
    names = tuple(
        source.name
        for source in sources
        if stream_tag(source.name) in entry.tags and entry.lsn >= source.start_lsn
    )
    return Place(entry.lsn, entry.time_ms, entry.producer, names) if names else None


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """By LSN, adjacent ones as one; those that overlap stay apart: they count once each."""
    merged: list[Range] = []
    for one in sorted(ranges, key=lambda named: (named.first_lsn, named.count)):
        if merged and merged[-1].end == one.first_lsn:
            one = Range(merged[-1].first_lsn, merged.pop().count + one.count)
        merged.append(one)
    return merged


def node_of(tags: Sequence[str], sources: Iterable[Source]) -> int | None:
    """The virtual node that an entry's tags name; None: none; SEVERAL_NODES: more than one."""
    nodes: set[int] = set()
    for source in sources:
        prefix = stream_tag(source.name) + "/"
        nodes.update(int(tag[len(prefix) :]) for tag in tags if tag.startswith(prefix))
    if not nodes:
        return None
    return nodes.pop() if len(nodes) == 1 else SEVERAL_NODES


def check_node(node: int | None, lsn: int) -> None:
    if node == SEVERAL_NODES:
        raise BadRequest(
            f"the entry at LSN {lsn} holds rows of several virtual nodes, which only its writer "
            "can tell apart: read the stream with partitionBy=size"
        )


def is_of(share: NodeShare, node: int | None) -> bool:
    """Whether an entry of this node belongs to the share."""
    if node is None:
        return share.takes_unkeyed
    return node % share.count == share.index


def tags_of(part: Part) -> list[str]:
    """What the part's task reads in the log."""
    share = part.nodes
    if share is None or share.takes_unkeyed:
        return [stream_tag(source.name) for source in part.sources]
    nodes = range(share.index, VIRTUAL_NODES, share.count)
    return [stream_node_tag(source.name, node) for source in part.sources for node in nodes]


def intervals_of(part: Part) -> list[Span]:
    """What the part's task reads in the log: its spans, near ones as one, in order."""
    merged: list[Span] = []
    for first, end in _ends(part):
        if merged and first <= merged[-1].end + GAP_LSNS_MAX:
            first, end = merged[-1].first, max(end, merged.pop().end)
        merged.append(Span(first, end))
    return merged


class Finder:
    """Which entries a part wants, of those that its intervals and tags give."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._data = part.data
        self._data_firsts = [span.first for span in part.data]
        self._named = part.named
        self._named_firsts = [span.first for span in part.named]

    def rows_of(self, entry: Entry) -> Iterator[Carried]:
        part = self._part
        place = self._place(entry)
        if place is None:
            return
        if part.nodes is not None:
            node = node_of(entry.tags, part.sources)
            check_node(node, entry.lsn)
            if not is_of(part.nodes, node):
                return
        for name in place.streams:
            if stream_tag(name) in entry.tags:
                yield Carried(place, name, entry.payload)

    def _place(self, entry: Entry) -> Place | None:
        """Where the entry counts; None: not in this part."""
        if entry.kind is Kind.DATA:
            at = bisect_right(self._data_firsts, entry.lsn) - 1
            inside = at >= 0 and entry.lsn < self._data[at].end
            return place_of(entry, self._part.sources) if inside else None
        if entry.kind is Kind.STAGED:
            at = bisect_right(self._named_firsts, entry.lsn) - 1
            if at >= 0 and entry.lsn < self._named[at].end:
                return self._named[at].place
        return None


def _ends(part: Part) -> list[tuple[int, int]]:
    data = [(one.first, one.end) for one in part.data]
    return sorted([*data, *((one.first, one.end) for one in part.named)])


# ---- parts from items


def plan_items(
    items: Sequence[Item],
    sources: tuple[Source, ...],
    *,
    partitions: int | None,
    processors: int,
    by_node: bool,
) -> list[Part]:
    """The parts of these items: `partitions` of them, or as many as their size is worth."""
    size = sum(item.size for item in items)
    pieces = [
        _Planned(item, number, piece)
        for item in items
        for number, run in enumerate(item.runs)
        for piece in run
    ]
    small = size <= CARRIED_BYTES_MAX and all(one.piece.payload is not None for one in pieces)
    shares: list[tuple[NodeShare | None, list[_Planned]]]
    if by_node:
        shares = _node_shares(pieces, min(partitions or processors, VIRTUAL_NODES))
    else:
        worth = 1 if small else min(processors, -(-size // PART_BYTES_MIN))
        chunks = _chunks(pieces, size, max(partitions or worth, 1))
        shares = [(None, chunk) for chunk in chunks]
    parts: list[Part] = []
    for nodes, chunk in shares:
        if small:
            parts.append(Part(sources, nodes=nodes, carried=_carry(chunk)))
        else:
            parts += _spans(chunk, sources, nodes)
    return parts


def _times(piece: Piece, place: Place) -> int:
    """How often an entry counts at a place: once in each stream that both are of."""
    return sum(name in piece.streams for name in place.streams)


class _Planned(NamedTuple):
    item: Item
    #: Of the item's runs.
    run: int
    piece: Piece


def _chunks(pieces: list[_Planned], size: int, count: int) -> list[list[_Planned]]:
    """In order, about equal in bytes; none is empty."""
    chunks: list[list[_Planned]] = [[] for _ in range(count)]
    before = 0
    for number, one in enumerate(pieces):
        place = before * count // size if size else number * count // len(pieces)
        chunks[min(place, count - 1)].append(one)
        before += one.piece.size * _times(one.piece, one.item.place)
    return [chunk for chunk in chunks if chunk]


def _node_shares(
    pieces: list[_Planned], count: int
) -> list[tuple[NodeShare | None, list[_Planned]]]:
    chunks: list[list[_Planned]] = [[] for _ in range(count)]
    unkeyed = False
    for one in pieces:
        node = one.piece.node
        check_node(node, one.piece.lsn)
        unkeyed = unkeyed or node is None
        chunks[(node or 0) % count].append(one)
    return [
        (NodeShare(index, count, unkeyed and index == 0), chunk)
        for index, chunk in enumerate(chunks)
        if chunk
    ]


def _carry(chunk: list[_Planned]) -> tuple[Carried, ...]:
    return tuple(
        Carried(item.place, name, piece.payload)
        for item, _, piece in chunk
        for name in item.place.streams
        if name in piece.streams and piece.payload is not None
    )


def _spans(
    chunk: list[_Planned], sources: tuple[Source, ...], nodes: NodeShare | None
) -> list[Part]:
    """A chunk as LSN spans. What counts between the first and last data entry of it is in it, and
    so is what counts between two pieces of one run."""
    lsns = [piece.lsn for item, _, piece in chunk if not item.staged]
    data = (Span(lsns[0], lsns[-1] + 1),) if lsns else ()
    named: list[NamedSpan] = []
    last: tuple[int, int] | None = None
    for item, number, piece in chunk:
        run = (item.place.lsn, number) if item.staged else None
        if run is not None:
            first = named.pop().first if run == last else piece.lsn
            named.append(NamedSpan(first, piece.lsn + 1, item.place))
        last = run
    return _layered(sources, data, named, nodes)


def _layered(
    sources: tuple[Source, ...],
    data: tuple[Span, ...],
    named: Iterable[NamedSpan],
    nodes: NodeShare | None,
) -> list[Part]:
    """One part; more if spans overlap, since what two markers name counts at both."""
    layers: list[list[NamedSpan]] = [[]]
    for span in sorted(named, key=lambda one: (one.first, one.end, one.place.lsn)):
        for layer in layers:
            if not layer or layer[-1].end <= span.first:
                layer.append(span)
                break
        else:
            layers.append([span])
    first = Part(sources, data, tuple(layers[0]), nodes)
    return [first, *(Part(sources, (), tuple(layer), nodes) for layer in layers[1:])]


# ---- parts from the markers of a range


def plan_range(
    span: Span,
    markers: Iterable[Entry],
    sources: tuple[Source, ...],
    *,
    partitions: int | None,
    processors: int,
    by_node: bool,
) -> list[Part]:
    """The parts of what counts in the span, given the markers in it that name staged entries."""
    named: list[NamedSpan] = []
    for entry in markers:
        place = place_of(entry, sources)
        if place is None or entry.kind is not Kind.MARKER:
            continue
        merged = merge_ranges(decode_marker(entry.payload).ranges)
        named += [NamedSpan(one.first_lsn, one.end, place) for one in merged]
    if span.first >= span.end:
        return []
    planned: list[Part] = []
    for whole in _layered(sources, (span,), named, None):
        if by_node:
            count = min(partitions or processors, VIRTUAL_NODES)
            shares = [NodeShare(index, count, index == 0) for index in range(count)]
            planned += [Part(sources, whole.data, whole.named, share) for share in shares]
        else:
            planned += _cut_range(whole, partitions, processors)
    return planned


def _cut_range(whole: Part, partitions: int | None, processors: int) -> list[Part]:
    """In equal numbers of LSNs; those between spans, which nobody reads, are not counted."""
    regions = _union(whole)
    lsns = sum(region.end - region.first for region in regions)
    worth = max(min(processors, -(-lsns // PART_LSNS_MIN)), -(-lsns // PART_LSNS_MAX))
    count = max(partitions or worth, 1)
    named_ends = [one.end for one in whole.named]  # disjoint, in order: so are their ends
    cuts = [lsns * number // count for number in range(count + 1)]
    parts: list[Part] = []
    for low, high in itertools.pairwise(cuts):
        pieces = _slice(regions, low, high)
        data = [both for piece in pieces for one in whole.data if (both := _both(one, piece))]
        named = _named_within(whole.named, named_ends, pieces)
        if data or named:
            parts.append(Part(whole.sources, tuple(data), tuple(named)))
    return parts


def _union(whole: Part) -> list[Span]:
    merged: list[Span] = []
    for first, end in _ends(whole):
        if merged and first <= merged[-1].end:
            first, end = merged[-1].first, max(end, merged.pop().end)
        merged.append(Span(first, end))
    return merged


def _slice(regions: Iterable[Span], low: int, high: int) -> list[Span]:
    """The LSNs of the regions whose numbers, counted over all regions, are in [low, high)."""
    found: list[Span] = []
    before = 0
    for region in regions:
        first = region.first + max(low - before, 0)
        end = min(region.end, region.first + high - before)
        if first < end:
            found.append(Span(first, end))
        before += region.end - region.first
    return found


def _both(one: Span | NamedSpan, other: Span) -> Span | None:
    first, end = max(one.first, other.first), min(one.end, other.end)
    return Span(first, end) if first < end else None


def _named_within(
    named: Sequence[NamedSpan], ends: Sequence[int], pieces: Iterable[Span]
) -> list[NamedSpan]:
    found: list[NamedSpan] = []
    for piece in pieces:
        at = bisect_right(ends, piece.first)
        while at < len(named) and named[at].first < piece.end:
            both = _both(named[at], piece)
            assert both is not None
            found.append(NamedSpan(both.first, both.end, named[at].place))
            at += 1
    return found
