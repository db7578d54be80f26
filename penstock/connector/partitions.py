"""What counts in a batch, cut into partitions: one for each Spark task. Pure.

A partition is LSN spans of data entries, LSN spans of staged entries that markers name, or, if it
is little, the entries themselves.
Law: the partitions of [start, end) hold each entry as often as it counts in [start, end), normally
once, and no other entry. The same rows, whichever way they are planned: from the items of a window,
or from the markers of a range alone.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.connector.items import (
    SEVERAL_NODES,
    Division,
    Item,
    ItemPlace,
    ItemSource,
    Piece,
    node_of,
    place_of,
    times_counted,
)
from penstock.errors import BadRequest
from penstock.limits import MIB
from penstock.log.records import Entry, Kind
from penstock.protocol.markers import Range, decode_marker
from penstock.protocol.names import stream_node_tag
from penstock.state.keys import VIRTUAL_NODES
from penstock.stream.lanes import lane_tag
from penstock.stream.registration import stream_tag

#: A batch up to this size travels inside its partitions: its tasks need not ask the log.
CARRIED_BYTES_MAX: Final = 1 * MIB
#: Below it, another Spark task costs more than it saves.
PARTITION_BYTES_MIN: Final = 1 * MIB
#: The same where only LSNs are known, and no sizes.
PARTITION_LSNS_MIN: Final = 16
#: And no more than this, unless the user says how many there are: a task that fails, or is
#: slow, is then a small partition of a large range.
PARTITION_LSNS_MAX: Final = 2000
#: Spans this near are read as one: another request costs more than what lies between, of which the
#: server sends only what has the streams' tags.
GAP_LSNS_MAX: Final = 1000


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
    place: ItemPlace


@dataclass(frozen=True, slots=True)
class Carried:
    """An entry's rows, inside the partition."""

    place: ItemPlace
    stream: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class NodeShare:
    """The virtual nodes, or lanes, index, index + count, index + 2 * count, …"""

    index: int
    count: int
    #: Whether entries without a node belong to it, and it must look for them.
    takes_unkeyed: bool
    by: Division = Division.NODE


@dataclass(frozen=True, slots=True)
class Partition:
    """What one Spark task reads."""

    sources: tuple[ItemSource, ...]
    #: Disjoint, in order.
    data: tuple[Span, ...] = ()
    #: Disjoint, in order.
    named: tuple[NamedSpan, ...] = ()
    nodes: NodeShare | None = None
    carried: tuple[Carried, ...] = ()


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


def tags_of(partition: Partition) -> list[str]:
    """What the partition's task reads in the log."""
    share = partition.nodes
    if share is None or share.takes_unkeyed:
        return [stream_tag(source.name) for source in partition.sources]
    nodes = range(share.index, VIRTUAL_NODES, share.count)
    tag = stream_node_tag if share.by is Division.NODE else lane_tag
    return [tag(source.name, node) for source in partition.sources for node in nodes]


def intervals_of(partition: Partition) -> list[Span]:
    """What the partition's task reads in the log: its spans, near ones as one, in order."""
    merged: list[Span] = []
    for first, end in _ends(partition):
        if merged and first <= merged[-1].end + GAP_LSNS_MAX:
            first, end = merged[-1].first, max(end, merged.pop().end)
        merged.append(Span(first, end))
    return merged


class PartitionFilter:
    """Which entries a partition holds, of those that its intervals and tags give."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._data = partition.data
        self._data_firsts = [span.first for span in partition.data]
        self._named = partition.named
        self._named_firsts = [span.first for span in partition.named]

    def rows_of(self, entry: Entry) -> Iterator[Carried]:
        partition = self._partition
        place = self._place(entry)
        if place is None:
            return
        if partition.nodes is not None:
            node = node_of(entry.tags, partition.sources, partition.nodes.by)
            check_node(node, entry.lsn)
            if not is_of(partition.nodes, node):
                return
        for name in place.streams:
            if stream_tag(name) in entry.tags:
                yield Carried(place, name, entry.payload)

    def _place(self, entry: Entry) -> ItemPlace | None:
        """Where the entry counts; None: not in this partition."""
        if entry.kind is Kind.DATA:
            index = bisect_right(self._data_firsts, entry.lsn) - 1
            inside = index >= 0 and entry.lsn < self._data[index].end
            return place_of(entry, self._partition.sources) if inside else None
        if entry.kind is Kind.STAGED:
            index = bisect_right(self._named_firsts, entry.lsn) - 1
            if index >= 0 and entry.lsn < self._named[index].end:
                return self._named[index].place
        return None


def _ends(partition: Partition) -> list[tuple[int, int]]:
    spans: list[Span | NamedSpan] = [*partition.data, *partition.named]
    return sorted((span.first, span.end) for span in spans)


# ---- partitions from items


def plan_items(
    items: Sequence[Item],
    sources: tuple[ItemSource, ...],
    *,
    partitions: int | None,
    processors: int,
    by: Division | None,
) -> list[Partition]:
    """The partitions of these items: `partitions` of them, or as many as their size is worth."""
    size = sum(item.size for item in items)
    pieces = [
        _Planned(item, number, piece)
        for item in items
        for number, run in enumerate(item.runs)
        for piece in run
    ]
    small = size <= CARRIED_BYTES_MAX and all(
        planned.piece.payload is not None for planned in pieces
    )
    shares: list[tuple[NodeShare | None, list[_Planned]]]
    if by is not None:
        shares = _node_shares(pieces, min(partitions or processors, VIRTUAL_NODES), by)
    else:
        worth = 1 if small else min(processors, -(-size // PARTITION_BYTES_MIN))
        chunks = _chunks(pieces, size, max(partitions or worth, 1))
        shares = [(None, chunk) for chunk in chunks]
    planned: list[Partition] = []
    for nodes, chunk in shares:
        if small:
            planned.append(Partition(sources, nodes=nodes, carried=_carry(chunk)))
        else:
            planned += _spans(chunk, sources, nodes)
    return planned


class _Planned(NamedTuple):
    item: Item
    #: Of the item's runs.
    run: int
    piece: Piece


def _chunks(pieces: list[_Planned], size: int, count: int) -> list[list[_Planned]]:
    """In order, about equal in bytes; none is empty."""
    chunks: list[list[_Planned]] = [[] for _ in range(count)]
    before = 0
    for number, planned in enumerate(pieces):
        place = before * count // size if size else number * count // len(pieces)
        chunks[min(place, count - 1)].append(planned)
        before += planned.piece.size * times_counted(planned.piece, planned.item.place)
    return [chunk for chunk in chunks if chunk]


def _node_shares(
    pieces: list[_Planned], count: int, by: Division
) -> list[tuple[NodeShare | None, list[_Planned]]]:
    chunks: list[list[_Planned]] = [[] for _ in range(count)]
    unkeyed = False
    for planned in pieces:
        node = planned.piece.node
        check_node(node, planned.piece.lsn)
        unkeyed = unkeyed or node is None
        chunks[(node or 0) % count].append(planned)
    return [
        (NodeShare(index, count, unkeyed and index == 0, by), chunk)
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
    chunk: list[_Planned], sources: tuple[ItemSource, ...], nodes: NodeShare | None
) -> list[Partition]:
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
    sources: tuple[ItemSource, ...],
    data: tuple[Span, ...],
    named: Iterable[NamedSpan],
    nodes: NodeShare | None,
) -> list[Partition]:
    """One partition; more if spans overlap, since what two markers name counts at both."""
    layers: list[list[NamedSpan]] = [[]]
    for span in sorted(named, key=lambda span: (span.first, span.end, span.place.lsn)):
        for layer in layers:
            if not layer or layer[-1].end <= span.first:
                layer.append(span)
                break
        else:
            layers.append([span])
    first = Partition(sources, data, tuple(layers[0]), nodes)
    return [first, *(Partition(sources, (), tuple(layer), nodes) for layer in layers[1:])]


# ---- partitions from the markers of a range


def plan_range(
    span: Span,
    markers: Iterable[Entry],
    sources: tuple[ItemSource, ...],
    *,
    partitions: int | None,
    processors: int,
    by: Division | None,
) -> list[Partition]:
    """The partitions of what counts in the span, given its markers that name staged entries."""
    named: list[NamedSpan] = []
    for entry in markers:
        place = place_of(entry, sources)
        if place is None or entry.kind is not Kind.MARKER:
            continue
        merged = merge_ranges(decode_marker(entry.payload).ranges)
        named += [NamedSpan(joined.first_lsn, joined.end, place) for joined in merged]
    if span.first >= span.end:
        return []
    planned: list[Partition] = []
    for whole in _layered(sources, (span,), named, None):
        if by is not None:
            count = min(partitions or processors, VIRTUAL_NODES)
            shares = [NodeShare(index, count, index == 0, by) for index in range(count)]
            planned += [Partition(sources, whole.data, whole.named, share) for share in shares]
        else:
            planned += _cut_range(whole, partitions, processors)
    return planned


def _cut_range(whole: Partition, partitions: int | None, processors: int) -> list[Partition]:
    """In equal numbers of LSNs; those between spans, which nobody reads, are not counted."""
    regions = _union(whole)
    lsns = sum(region.end - region.first for region in regions)
    worth = max(min(processors, -(-lsns // PARTITION_LSNS_MIN)), -(-lsns // PARTITION_LSNS_MAX))
    count = max(partitions or worth, 1)
    named_ends = [one.end for one in whole.named]  # disjoint, in order: so are their ends
    cuts = [lsns * number // count for number in range(count + 1)]
    planned: list[Partition] = []
    for low, high in itertools.pairwise(cuts):
        pieces = _slice(regions, low, high)
        data = [both for piece in pieces for span in whole.data if (both := _both(span, piece))]
        named = _named_within(whole.named, named_ends, pieces)
        if data or named:
            planned.append(Partition(whole.sources, tuple(data), tuple(named)))
    return planned


def _union(whole: Partition) -> list[Span]:
    merged: list[Span] = []
    for first, end in _ends(whole):
        if merged and first <= merged[-1].end:
            first, end = merged[-1].first, max(end, merged.pop().end)
        merged.append(Span(first, end))
    return merged


def _slice(regions: Iterable[Span], low: int, high: int) -> list[Span]:
    """The LSNs of the regions whose numbers, counted over all regions, are in [low, high)."""
    slices: list[Span] = []
    before = 0
    for region in regions:
        first = region.first + max(low - before, 0)
        end = min(region.end, region.first + high - before)
        if first < end:
            slices.append(Span(first, end))
        before += region.end - region.first
    return slices


def _both(span: Span | NamedSpan, other: Span) -> Span | None:
    first, end = max(span.first, other.first), min(span.end, other.end)
    return Span(first, end) if first < end else None


def _named_within(
    named: Sequence[NamedSpan], ends: Sequence[int], pieces: Iterable[Span]
) -> list[NamedSpan]:
    within: list[NamedSpan] = []
    for piece in pieces:
        index = bisect_right(ends, piece.first)
        while index < len(named) and named[index].first < piece.end:
            both = _both(named[index], piece)
            assert both is not None
            within.append(NamedSpan(both.first, both.end, named[index].place))
            index += 1
    return within


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """By LSN, adjacent ones as one; those that overlap stay apart: they count once each."""
    merged: list[Range] = []
    for named in sorted(ranges, key=lambda named: (named.first_lsn, named.count)):
        if merged and merged[-1].end == named.first_lsn:
            named = Range(merged[-1].first_lsn, merged.pop().count + named.count)
        merged.append(named)
    return merged
