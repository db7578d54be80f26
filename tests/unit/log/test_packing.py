"""Groups hold every entry once and in order, fit the log's limits, and are as few as can be."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.limits import (
    GROUP_ENTRIES_MAX,
    GROUP_TAGS_MAX,
    KEY_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    PRODUCER_BYTES_MAX,
)
from penstock.log.client import packing
from penstock.log.client.appender_core import check_submission
from penstock.log.client.packing import group_bytes, pack
from penstock.log.group_format import encode_body
from penstock.log.records import Kind, NewEntry

#: What may be added to any group: a key that is set with it, the longest one.
MORE = NewEntry(bytes(256), (f"m/{'k' * KEY_BYTES_MAX}",), Kind.META)
SMALL = NewEntry(b"", ("t",))


def check(entries: list[NewEntry], groups: list[list[NewEntry]]) -> None:
    assert [entry for group in groups for entry in group] == entries
    for group in groups:
        check_submission([*group, MORE], [])
        encode_body(
            producer="x" * PRODUCER_BYTES_MAX, instance=1, first_seq=0, entries=[*group, MORE]
        )
    for group, after in itertools.pairwise(groups):
        assert list(pack([*group, after[0]])) == [group, after[:1]], "it was full"


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 1000, 200_000, PAYLOAD_BYTES_MAX - 1, PAYLOAD_BYTES_MAX]),
            st.integers(0, 64),
        ),
        max_size=40,
    )
)
def test_any_entries_are_packed_within_the_limits(sizes: list[tuple[int, int]]) -> None:
    tags = tuple("ä" * 100 + str(number) for number in range(64))
    entries = [NewEntry(bytes(size), tags[:count]) for size, count in sizes]
    check(entries, list(pack(entries)))


@pytest.mark.parametrize("count", [GROUP_ENTRIES_MAX - 1, GROUP_ENTRIES_MAX, 25_000])
def test_many_small_entries_are_packed_within_the_limits(count: int) -> None:
    groups = list(pack([SMALL] * count))
    check([SMALL] * count, groups)
    assert len(groups) == -(-count // (GROUP_ENTRIES_MAX - 1))


def test_many_tags_are_packed_within_the_limits() -> None:
    entries = [
        NewEntry(b"", tuple(f"{number}/{tag}" for tag in range(64)))
        for number in range(2 * GROUP_TAGS_MAX // 64)
    ]
    groups = list(pack(entries))
    check(entries, groups)
    assert len(groups) == 3


@given(st.lists(st.integers(0, 30), max_size=30), st.integers(100, 200), st.integers(1, 5))
def test_groups_are_as_few_as_any_cut_gives(
    sizes: list[int], bytes_max: int, entries_max: int
) -> None:
    """Of all cuts of a sequence, none has fewer pieces than the one that fills each in turn."""
    entries = [NewEntry(bytes(size), ()) for size in sizes]
    fewest = [0]
    for end in range(1, len(entries) + 1):
        starts = [
            start
            for start in range(max(0, end - entries_max), end)
            if group_bytes(entries[start:end]) <= bytes_max
        ]
        fewest.append(min(fewest[start] for start in starts) + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "GROUP_BYTES", bytes_max)
        patch.setattr(packing, "GROUP_ENTRIES", entries_max)
        groups = list(pack(entries))
    assert len(groups) == fewest[-1]


def test_a_group_comes_as_soon_as_it_is_full() -> None:
    def endless() -> object:
        while True:
            yield SMALL

    assert len(next(pack(endless()))) == GROUP_ENTRIES_MAX - 1  # type: ignore[arg-type]


def test_nothing_is_no_group() -> None:
    assert list(pack([])) == []
