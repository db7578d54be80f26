"""What counts is planned once, whichever way: from a window or from markers, by size or by node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connector import partitions as partitions_module
from penstock.connector.items import (
    ITEM_OVERHEAD_BYTES,
    Division,
    Item,
    ItemReader,
    ItemSource,
    ItemWindow,
)
from penstock.connector.partitions import (
    CARRIED_BYTES_MAX,
    GAP_LSNS_MAX,
    PARTITION_LSNS_MAX,
    Partition,
    PartitionFilter,
    Span,
    intervals_of,
    merge_ranges,
    plan_items,
    plan_range,
    tags_of,
)
from penstock.errors import BadRequest
from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.protocol.markers import Marker, Range, decode_marker, encode_marker

A = ItemSource("a")
#: (entry's LSN, where it counts, stream)
Counted = Counter[tuple[int, int, str]]


def entry(
    lsn: int, kind: Kind, tags: Iterable[str], *, rows: int = 1, payload: bytes | None = None
) -> Entry:
    bytes_ = b"%d" % lsn if payload is None else payload
    return Entry(Lsn(lsn), kind, tuple(tags), f"p{lsn}", 1, 0, 1000 + lsn, rows, bytes_)


def data(lsn: int, stream: str = "a", *nodes: int, rows: int = 1, size: int = 0) -> Entry:
    tags = [f"s/{stream}", *(f"s/{stream}/{node}" for node in nodes)]
    payload = b"%d" % lsn
    return entry(lsn, Kind.DATA, tags, rows=rows, payload=payload.ljust(size))


def staged(lsn: int, stream: str = "a", *nodes: int, rows: int = 1, size: int = 0) -> Entry:
    return data(lsn, stream, *nodes, rows=rows, size=size)._replace(kind=Kind.STAGED)


def marker(lsn: int, ranges: Iterable[tuple[int, int]], *streams: str) -> Entry:
    found = tuple(Range(Lsn(first), count) for first, count in ranges)
    bytes_ = encode_marker(Marker("q.1/0/0", 1, 0, Lsn(0), 0, ranges=found))
    names = streams or ("a",)
    tags = [f"s/{name}" for name in names] + [f"M/{name}" for name in names if found]
    return entry(lsn, Kind.MARKER, tags, rows=0, payload=bytes_)


def fetch_from(log: list[Entry], sources: Iterable[ItemSource]):  # type: ignore[no-untyped-def]
    tags = {f"s/{source.name}" for source in sources}

    def fetch(named: Range) -> list[Entry]:
        return [
            one
            for one in log
            if named.first_lsn <= one.lsn < named.end and not tags.isdisjoint(one.tags)
        ]

    return fetch


def items_of(
    log: list[Entry], sources: tuple[ItemSource, ...], start: int = 0, **options: int
) -> list[Item]:
    """As a follower makes them that begins at `start`."""
    reader = ItemReader(sources, start, by=Division.NODE, **options)
    fetch = fetch_from(log, sources)
    tags = {f"s/{source.name}" for source in sources}
    shown = [one for one in log if one.lsn >= start and not tags.isdisjoint(one.tags)]
    taken = [reader.take(one, fetch) for one in shown]
    return [item for item in taken if item is not None]


def window_of(found: Iterable[Item], start: int = 0) -> ItemWindow:
    window = ItemWindow(start)
    for item in found:
        window.append(item)
    return window


def expected(log: list[Entry], sources: tuple[ItemSource, ...], start: int, end: int) -> Counted:
    """From the definition alone (protocol/committed.py)."""
    counted: Counted = Counter()
    for one in log:
        if not start <= one.lsn < end:
            continue
        for source in sources:
            tag = f"s/{source.name}"
            if tag not in one.tags or one.lsn < source.start_lsn:
                continue
            if one.kind is Kind.DATA:
                counted[one.lsn, one.lsn, source.name] += 1
            elif one.kind is Kind.MARKER:
                for named in decode_marker(one.payload).ranges:
                    for other in log:
                        inside = named.first_lsn <= other.lsn < named.end
                        if inside and other.kind is Kind.STAGED and tag in other.tags:
                            counted[other.lsn, one.lsn, source.name] += 1
    return counted


def read(log: list[Entry], parts: Iterable[Partition]) -> Counted:
    """As tasks do."""
    counted: Counted = Counter()
    for part in parts:
        for carried in part.carried:
            counted[int(carried.payload), carried.place.lsn, carried.stream] += 1
        finder, tags = PartitionFilter(part), set(tags_of(part))
        for interval in intervals_of(part):
            for one in log:
                if interval.first <= one.lsn < interval.end and not tags.isdisjoint(one.tags):
                    for row in finder.rows_of(one):
                        counted[one.lsn, row.place.lsn, row.stream] += 1
    return counted


# ---- any log, planned in any way

LOGS = st.lists(
    st.one_of(
        st.none(),
        st.builds(
            lambda kind, streams, node: (kind, tuple(streams), node),
            st.sampled_from([Kind.DATA, Kind.STAGED, Kind.STAGED, Kind.CHANGE]),
            st.sets(st.sampled_from("abc"), min_size=1, max_size=2).map(sorted),
            st.none() | st.integers(0, 9),
        ),
        st.builds(
            lambda streams, ranges: (Kind.MARKER, tuple(streams), ranges),
            st.sets(st.sampled_from("abc"), min_size=1).map(sorted),
            st.lists(st.tuples(st.integers(1, 12), st.integers(1, 6)), max_size=3),
        ),
    ),
    max_size=40,
)


def build(drawn: list[object]) -> list[Entry]:
    """Markers name what stands some LSNs before them; None is an entry of no stream of ours."""
    log: list[Entry] = []
    for lsn, one in enumerate(drawn):
        if one is None:
            continue
        kind, streams, more = one  # type: ignore[misc]
        if kind is Kind.MARKER:
            ranges = [(max(lsn - back, 0), min(count, back)) for back, count in more]
            log.append(marker(lsn, [one for one in ranges if sum(one) <= lsn], *streams))
        else:
            tags = [f"s/{name}" for name in streams]
            nodes = [] if more is None else [f"s/{name}/{more}" for name in streams]
            log.append(entry(lsn, kind, tags + nodes))
    return log


@given(
    drawn=LOGS,
    starts=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    bounds=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    partitions=st.none() | st.integers(1, 5),
    by_node=st.booleans(),
    carried_max=st.sampled_from([0, CARRIED_BYTES_MAX]),
    staged_max=st.sampled_from([2, 1000]),
)
def test_parts_hold_what_counts_and_nothing_else(
    drawn: list[object],
    starts: tuple[int, int],
    bounds: tuple[int, int],
    partitions: int | None,
    by_node: bool,
    carried_max: int,
    staged_max: int,
) -> None:
    log = build(drawn)
    start, end = sorted(bounds)
    sources = (ItemSource("a", Lsn(starts[0])), ItemSource("b", Lsn(starts[1])))
    counts = expected(log, sources, start, end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitions_module, "CARRIED_BYTES_MAX", carried_max)
        patch.setattr(partitions_module, "PARTITION_BYTES_MIN", 4)
        patch.setattr(partitions_module, "PARTITION_LSNS_MIN", 4)
        how = {"partitions": partitions, "processors": 3, "by": Division.NODE if by_node else None}

        found = window_of(items_of(log, sources, start, staged_max=staged_max), start)
        from_window = plan_items(found.items(start, end), sources, **how)
        named = [one for one in log if start <= one.lsn < end and "M/" in str(one.tags)]
        from_markers = plan_range(Span(start, end), named, sources, **how)

    assert read(log, from_window) == counts
    assert read(log, from_markers) == counts
    if by_node:
        for parts in (from_window, from_markers):
            assert all(part.nodes is not None for part in parts)


@given(
    amounts=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 50)), max_size=30),
    rows_max=st.none() | st.integers(1, 10),
    bytes_max=st.none() | st.integers(1, 100),
    below=st.none() | st.integers(0, 70),
    forgotten=st.integers(0, 70),
)
def test_triggers_take_each_item_once_and_keep_their_limits(
    amounts: list[tuple[int, int]],
    rows_max: int | None,
    bytes_max: int | None,
    below: int | None,
    forgotten: int,
) -> None:
    log = [data(2 * at, rows=rows, size=size) for at, (rows, size) in enumerate(amounts)]
    window = window_of(items_of(log, (A,)))
    start, seen = 0, []
    while True:
        end = window.cut(start, rows_max=rows_max, bytes_max=bytes_max, below=below)
        if end == start:
            break
        taken = window.items(start, end)
        assert end == taken[-1].place.lsn + 1
        if len(taken) > 1:
            assert rows_max is None or sum(max(one.rows, 1) for one in taken) <= rows_max
            assert bytes_max is None or sum(one.size for one in taken) <= bytes_max
        seen += [one.place.lsn for one in taken]
        if end > forgotten:
            window.forget(end)  # as a commit does, now and then
        start = end
    assert seen == [one.lsn for one in log if below is None or one.lsn < below]


# ---- the same, by example


def plan(log: list[Entry], **how: Any) -> list[Partition]:
    how = {"partitions": None, "processors": 1, "by": None, **how}
    return plan_items(items_of(log, (A,)), (A,), **how)


def plan_span(first: int, end: int, *markers: Entry, **how: Any) -> list[Partition]:
    how = {"partitions": None, "processors": 1, "by": None, **how}
    return plan_range(Span(first, end), markers, (A,), **how)


def test_a_cut_takes_as_much_as_is_allowed() -> None:
    window = window_of(items_of([data(lsn, rows=10, size=100) for lsn in range(10)], (A,)))
    assert window.cut(0, rows_max=None, bytes_max=None) == 10
    assert window.cut(0, rows_max=30, bytes_max=None) == 3
    assert window.cut(0, rows_max=39, bytes_max=None) == 3
    assert window.cut(2, rows_max=30, bytes_max=None) == 5
    assert window.cut(2, rows_max=30, bytes_max=200) == 4
    assert window.cut(2, rows_max=30, bytes_max=200, below=3) == 3
    assert window.cut(2, rows_max=30, bytes_max=200, below=2) == 2
    assert window.cut(10, rows_max=30, bytes_max=200) == 10


def test_a_commit_is_never_divided_however_large() -> None:
    log = [staged(lsn, rows=100, size=1000) for lsn in range(5)] + [marker(5, [(0, 5)]), data(6)]
    window = window_of(items_of(log, (A,)))
    assert window.cut(0, rows_max=1, bytes_max=1) == 6
    (item,) = window.items(0, 6)
    assert (item.rows, item.size, item.place.lsn) == (500, 5000, 5)


def test_an_entry_that_does_not_say_its_rows_counts_as_one() -> None:
    window = window_of(items_of([data(lsn, rows=0) for lsn in range(5)], (A,)))
    assert window.cut(0, rows_max=2, bytes_max=None) == 2


def test_staged_entries_tell_where_when_and_by_whom_they_were_committed() -> None:
    (part,) = plan([staged(0), staged(1), marker(7, [(0, 2)])], processors=2)
    for carried in part.carried:
        place = carried.place
        assert (place.lsn, place.time_ms, place.producer) == (7, 1007, "p7")


def test_a_small_batch_travels_and_a_large_one_is_read_by_several() -> None:
    (part,) = plan([data(lsn, size=1000) for lsn in range(4)], processors=4)
    assert len(part.carried) == 4 and not intervals_of(part)

    parts = plan([data(lsn, size=1 << 20) for lsn in range(8)], processors=4)
    spans = [Span(first, first + 2) for first in (0, 2, 4, 6)]
    assert [intervals_of(part) for part in parts] == [[span] for span in spans]
    assert not any(part.carried for part in parts)


def test_as_many_parts_as_were_asked_for() -> None:
    parts = plan([data(lsn) for lsn in range(10)], partitions=3)
    assert sorted(len(part.carried) for part in parts) == [3, 3, 4]


def test_a_range_below_the_start_is_read_for_what_is_named_in_it_only() -> None:
    """Between the named entries and the start nothing is read: it may be long."""
    parts = plan_span(5000, 5010, marker(5005, [(100, 4)]))
    assert [intervals_of(part) for part in parts] == [[Span(100, 104), Span(5000, 5010)]]


def test_each_lsn_is_read_by_one_part() -> None:
    named = [marker(500 + at, [(100 + 20 * at, 10)]) for at in range(5)]
    parts = plan_span(400, 600, *named, partitions=4)
    lsns = Counter(
        lsn
        for part in parts
        for one in (*part.data, *part.named)
        for lsn in range(one.first, one.end)
    )
    assert len(parts) == 4
    assert max(lsns.values()) == 1 and len(lsns) == 250


def test_a_large_range_has_more_parts_than_processors_unless_the_user_says() -> None:
    named = [marker(9000 + at, [(100 + 20 * at, 10)]) for at in range(5)]

    def sizes(partitions: int | None) -> list[int]:
        parts = plan_span(5000, 15_001, *named, partitions=partitions, processors=2)
        spans = [(*part.data, *part.named) for part in parts]
        return [sum(one.end - one.first for one in found) for found in spans]

    assert sum(sizes(None)) == 10_051 and len(sizes(None)) == 6
    assert max(sizes(None)) <= PARTITION_LSNS_MAX
    assert len(sizes(3)) == 3


def test_near_spans_are_read_at_once_and_far_ones_apart() -> None:
    """What lies between is mostly of other streams: the server does not send it."""
    assert GAP_LSNS_MAX >= 1000
    near, far = GAP_LSNS_MAX, GAP_LSNS_MAX + 1
    spans = (Span(0, 2), Span(2 + near, 5000), Span(5000 + far, 8000))
    assert intervals_of(Partition((A,), spans)) == [Span(0, 5000), Span(5000 + far, 8000)]


def test_what_two_markers_name_counts_at_both() -> None:
    log = [staged(0, size=2 << 20), marker(1, [(0, 1)]), marker(2, [(0, 1)])]
    parts = plan(log, partitions=1)
    assert read([log[0]], parts) == Counter({(0, 1, "a"): 1, (0, 2, "a"): 1})


@pytest.mark.parametrize(
    ("ranges", "merged"),
    [
        ([(0, 3), (2, 2), (2, 2)], [(0, 3), (2, 2), (2, 2)]),
        ([(5, 2), (0, 3), (3, 2), (9, 1)], [(0, 7), (9, 1)]),
    ],
    ids=["those that overlap stay apart", "those side by side are one"],
)
def test_ranges_are_merged(ranges: list[tuple[int, int]], merged: list[tuple[int, int]]) -> None:
    found = merge_ranges([Range(Lsn(first), count) for first, count in ranges])
    assert [(one.first_lsn, one.count) for one in found] == merged


def test_only_what_was_not_shown_is_fetched() -> None:
    asked: list[Range] = []
    reader = ItemReader((A,), 5)

    def fetch(named: Range) -> list[Entry]:
        asked.append(named)
        return [staged(3), staged(4), data(4)._replace(lsn=Lsn(4), kind=Kind.DATA)]

    assert reader.take(staged(5), fetch) is None
    item = reader.take(marker(6, [(5, 1)]), fetch)
    assert item is not None and not asked
    item = reader.take(marker(7, [(3, 2)]), fetch)
    assert asked == [Range(Lsn(3), 2)]
    assert item is not None and [piece.lsn for run in item.runs for piece in run] == [3, 4]


def test_payloads_are_kept_up_to_a_bound_the_newest() -> None:
    reader = ItemReader((A,), 0, kept_bytes_max=250)
    found = [reader.take(data(lsn, size=100), lambda _: ()) for lsn in range(4)]
    held = [item.runs[0][0].payload is not None for item in found if item is not None]
    assert held == [False, False, True, True]


def test_staged_entries_of_writers_that_died_are_forgotten_in_the_end() -> None:
    reader = ItemReader((A,), 0, staged_max=10)
    for lsn in range(100):
        reader.take(staged(lsn), lambda _: ())
        assert len(reader._committed._kept) <= 10
    assert reader._committed._from > 80
    fetched: list[Range] = []
    reader.take(marker(200, [(80, 20)]), lambda named: fetched.append(named) or [])
    assert fetched, "some of it is not known any more"


def test_many_small_items_weigh_more_than_their_bytes() -> None:
    window = window_of(items_of([data(lsn, size=1) for lsn in range(10)], (A,)))
    assert window.weight(0) >= 10 * ITEM_OVERHEAD_BYTES
    assert window.weight(10) == 0


# ---- by virtual node


def test_a_node_is_read_by_one_part_through_its_own_tags() -> None:
    log = [data(lsn, "a", lsn % 6, size=1 << 20) for lsn in range(12)]
    parts = plan(log, partitions=4, by=Division.NODE)
    assert len(parts) == 4
    for part in parts:
        assert part.nodes is not None and not part.nodes.takes_unkeyed
        assert "s/a" not in tags_of(part)
        assert f"s/a/{part.nodes.index}" in tags_of(part)
        assert all(lsn % 6 % 4 == part.nodes.index for lsn, _, _ in read(log, [part]))
    assert read(log, parts).total() == 12


def test_entries_without_a_node_go_to_the_first_part() -> None:
    log = [data(0, "a", 1, size=1 << 20), data(1, "a", size=1 << 20), data(2, "a", 5)]
    how = {"partitions": 2, "by": Division.NODE}
    for parts in (plan(log, **how), plan_span(0, 3, **how)):
        by_part = {part.nodes.index: read(log, [part]) for part in parts if part.nodes}
        assert by_part == {0: {(1, 1, "a"): 1}, 1: {(0, 0, "a"): 1, (2, 2, "a"): 1}}


def test_an_entry_of_several_nodes_is_refused_and_says_what_to_do() -> None:
    log = [data(0, "a", 1, 2)]
    with pytest.raises(BadRequest, match="partitionBy=size"):
        plan(log, partitions=2, by=Division.NODE)
    with pytest.raises(BadRequest, match="partitionBy=size"):
        read(log, plan_span(0, 1, partitions=2, by=Division.NODE))
    plan(log, partitions=2)
