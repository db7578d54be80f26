"""Data counts where it stands, staged data at the marker that names it, nothing else."""

from __future__ import annotations

import pytest

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.protocol.committed import Counts, Marked, is_named, judge
from penstock.protocol.markers import Marker, Range, encode_marker

MARKER = Marker("q.1/0/0", 1, 0, Lsn(4), 0, ranges=(Range(Lsn(5), 2),))


def entry(lsn: int, kind: Kind, payload: bytes = b"") -> Entry:
    return Entry(Lsn(lsn), kind, ("s/out",), "p", 1, 0, 0, 0, payload)


def test_data_counts_where_it_stands() -> None:
    data = entry(3, Kind.DATA)
    assert judge(data) == Counts(data)


def test_a_marker_is_told_with_its_place() -> None:
    assert judge(entry(9, Kind.MARKER, encode_marker(MARKER))) == Marked(Lsn(9), MARKER)


@pytest.mark.parametrize("kind", [Kind.STAGED, Kind.CHANGE, Kind.CONTROL, Kind.META])
def test_nothing_else_counts(kind: Kind) -> None:
    assert judge(entry(3, kind)) is None


def test_a_marker_that_cannot_be_read_stops_the_reader() -> None:
    with pytest.raises(BadFormat):
        judge(entry(9, Kind.MARKER, b"{}"))


def test_of_a_range_that_was_fetched_the_staged_entries_count() -> None:
    named = MARKER.ranges[0]
    counted = [lsn for lsn in range(10) if is_named(entry(lsn, Kind.STAGED), named)]
    assert counted == [5, 6]
    assert not is_named(entry(5, Kind.DATA), named), "it counted where it stands"
    assert not is_named(entry(5, Kind.CHANGE), named)
