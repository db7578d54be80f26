"""What protocols share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.ids import Lsn
from penstock.limits import GROUP_ENTRIES_MAX
from penstock.protocol.markers import Range, join_ranges


def lsns(ranges: Sequence[Range]) -> list[int]:
    return [lsn for one in ranges for lsn in range(one.first_lsn, one.end)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5))))
def test_joined_ranges_name_the_same_entries(parts: list[tuple[int, int]]) -> None:
    ranges, at = [], 0
    for gap, count in parts:
        ranges.append(Range(Lsn(at + gap), count))
        at += gap + count
    joined = join_ranges(ranges)
    assert lsns(joined) == lsns(ranges)
    assert all(one.end < other.first_lsn for one, other in pairwise(joined))


def test_a_joined_range_is_no_larger_than_a_group() -> None:
    half = GROUP_ENTRIES_MAX // 2 + 1
    ranges = [Range(Lsn(0), half), Range(Lsn(half), half)]
    assert join_ranges(ranges) == tuple(ranges)
