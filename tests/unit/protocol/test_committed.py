"""Data counts where it stands, staged data at the marker that names it, nothing else.

Whatever a reader keeps, and wherever it begins: what counts is the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.protocol import committed
from penstock.protocol.committed import Marked, is_named, ranked, read_entries
from penstock.protocol.markers import Marker, Range, decode_marker, encode_marker

MARKER = Marker("q.1/0/0", 1, 0, Lsn(4), 0, ranges=(Range(Lsn(5), 2),))
#: Of every staged entry here.
SIZE = 10
#: The LSN of a data entry or marker, and those of the entries that count there.
Counts = list[tuple[int, list[int]]]


def entry(lsn: int, kind: Kind, payload: bytes = bytes(SIZE)) -> Entry:
    return Entry(Lsn(lsn), kind, ("s/out",), "p", 1, 0, 0, 0, payload)


@cache
def marker(lsn: int, ranges: tuple[Range, ...]) -> Entry:
    return entry(lsn, Kind.MARKER, encode_marker(Marker("q.1/0/0", 1, 0, Lsn(0), 0, ranges=ranges)))


#: The same markers come over and over.
decode_cached = cache(decode_marker)


def named(first: int, count: int) -> Range:
    return Range(Lsn(first), count)


def read(log: list[Entry], start: int = 0, bytes_max: int = 10**6) -> tuple[Counts, list[Range]]:
    """As a shell does: what counts, and which ranges it had to fetch."""
    reader = read_entries(start, bytes_max)
    counts: Counts = []
    fetched: list[Range] = []
    for one in log:
        if one.lsn < start:
            continue
        taken = reader.take(one)
        if isinstance(taken, Marked):
            for missing in taken.missing:
                fetched.append(missing)
                taken.supply(missing, log)
            counts.append((taken.lsn, [staged.lsn for staged in taken.entries]))
        elif taken is not None:
            counts.append((one.lsn, [taken.lsn]))
    return counts, fetched


def expected(log: list[Entry], start: int) -> Counts:
    """From the definition alone."""
    counts: Counts = []
    for one in log:
        if one.lsn >= start and one.kind is Kind.DATA:
            counts.append((one.lsn, [one.lsn]))
        elif one.lsn >= start and one.kind is Kind.MARKER:
            ranges = decode_cached(one.payload).ranges
            lsns = [staged.lsn for named in ranges for staged in log if is_named(staged, named)]
            counts.append((one.lsn, lsns))
    return counts


# ---- what an entry means


def test_data_counts_where_it_stands() -> None:
    data = entry(3, Kind.DATA)
    assert read_entries(0).take(data) is data


def test_a_marker_is_told_with_its_place() -> None:
    taken = read_entries(0).take(entry(9, Kind.MARKER, encode_marker(MARKER)))
    assert isinstance(taken, Marked)
    assert (taken.lsn, taken.marker) == (9, MARKER)


@pytest.mark.parametrize("kind", [Kind.STAGED, Kind.CHANGE, Kind.CONTROL, Kind.META])
def test_nothing_else_counts(kind: Kind) -> None:
    assert read_entries(0).take(entry(3, kind)) is None


def test_a_marker_that_cannot_be_read_stops_the_reader() -> None:
    with pytest.raises(BadFormat):
        read_entries(0).take(entry(9, Kind.MARKER, b"{}"))


def test_of_a_range_that_was_fetched_the_staged_entries_count() -> None:
    counted = [lsn for lsn in range(10) if is_named(entry(lsn, Kind.STAGED), MARKER.ranges[0])]
    assert counted == [5, 6]
    assert not is_named(entry(5, Kind.DATA), MARKER.ranges[0]), "it counted where it stands"
    assert not is_named(entry(5, Kind.CHANGE), MARKER.ranges[0])


# ---- what is kept, and what must be fetched


def staged(*lsns: int) -> list[Entry]:
    return [entry(lsn, Kind.STAGED) for lsn in lsns]


def test_what_was_shown_need_not_be_fetched() -> None:
    log = [*staged(2, 3, 4, 6), marker(7, (named(4, 3),)), marker(8, (named(2, 2),))]
    assert read(log, start=3) == ([(7, [4, 6]), (8, [2, 3])], [named(2, 2)])


def test_old_entries_make_room() -> None:
    log = [*staged(0, 1, 2, 3), marker(4, (named(1, 2),)), marker(5, (named(2, 2),))]
    assert read(log, bytes_max=25) == ([(4, [1, 2]), (5, [2, 3])], [named(1, 2)])


def test_what_is_kept_stays_within_its_bound() -> None:
    reader = read_entries(0, bytes_max=5 * SIZE)
    for lsn in range(1000):
        reader.take(entry(lsn, Kind.STAGED))
        assert len(reader._kept) == len(reader._lsns) == len(reader._weights) <= 5
    assert len(reader._kept) >= 4


def test_what_was_not_fetched_does_not_count() -> None:
    taken = read_entries(3).take(marker(4, (named(2, 1),)))
    assert isinstance(taken, Marked)
    with pytest.raises(AssertionError, match="was not fetched"):
        _ = taken.entries


def test_a_range_that_claims_to_be_endless_is_left_to_the_log() -> None:
    """The count is somebody's bytes: the reader knows only what stands before the marker."""
    log = [*staged(5), marker(6, (named(5, 10**15),))]
    assert read(log) == ([(6, [5])], [named(5, 10**15)])


# ---- all short histories


def histories() -> Iterator[list[Entry]]:
    """Of three LSNs: data, staged, not under the reader's tags, or a marker; then a last marker.

    Markers name at most one range, the last one at most two.
    """

    def markers(lsn: int) -> list[Entry]:
        before = [named(a, b - a) for a, b in itertools.combinations(range(lsn + 1), 2)]
        pairs = itertools.combinations_with_replacement(before, 2) if lsn == 3 else ()
        return [marker(lsn, ranges) for ranges in ((), *((one,) for one in before), *pairs)]

    def choices(lsn: int) -> list[Entry | None]:
        return [None, entry(lsn, Kind.DATA), *staged(lsn), *markers(lsn)]

    for log in itertools.product(*map(choices, range(3)), markers(3)):
        yield [one for one in log if one is not None]


def test_every_short_history_counts_alike_however_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(committed, "decode_marker", decode_cached)
    count = 0
    for log in histories():
        for start in range(4):
            right = expected(log, start)
            for bytes_max in (0, SIZE, 4 * SIZE):
                counts, fetched = read(log, start, bytes_max)
                assert counts == right, (log, start, bytes_max)
                needed = [missing for missing in fetched if missing.first_lsn >= start]
                assert bytes_max < 4 * SIZE or not needed, (log, start, fetched)
        count += 1
    assert count == 4 * 5 * 7 * 28


@given(
    st.lists(
        st.sampled_from([Kind.STAGED, Kind.DATA, None])
        | st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), max_size=3),
        max_size=40,
    ),
    st.integers(0, 20),
    st.integers(0, 200),
)
def test_long_histories_count_alike_too(
    drawn: list[Kind | list[tuple[int, int]] | None], start: int, bytes_max: int
) -> None:
    """None: an entry of that LSN is not under the reader's tags; numbers: a marker's ranges."""
    log: list[Entry] = []
    for lsn, one in enumerate(drawn):
        if isinstance(one, list):
            ranges = [(max(lsn - back, 0), count) for back, count in one]
            log.append(marker(lsn, tuple(named(a, min(n, lsn - a)) for a, n in ranges)))
        elif one is not None:
            log.append(entry(lsn, one))
    assert read(log, start, bytes_max)[0] == expected(log, start)


def test_what_counts_is_ranked_among_all_that_the_marker_names() -> None:
    """Also by readers that see only a part of it."""
    reader = read_entries(0)
    for lsn in (3, 5, 6):
        reader.take(entry(lsn, Kind.STAGED))
    counted = reader.take(marker(8, (named(5, 2), named(1, 3))))
    assert isinstance(counted, Marked)
    assert [(rank, one.lsn) for rank, one in ranked(counted)] == [(0, 5), (1, 6), (4, 3)]
