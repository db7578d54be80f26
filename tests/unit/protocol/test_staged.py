"""Staged entries that a reader keeps: what is found is what a fetch would give, or nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.protocol.markers import Range
from penstock.protocol.staged import StagedEntries


def entry(lsn: int, kind: Kind = Kind.STAGED, size: int = 10) -> Entry:
    return Entry(Lsn(lsn), kind, ("s/x",), "p", 1, 0, 0, 1, bytes(size))


@given(
    st.lists(st.sampled_from([Kind.STAGED, Kind.DATA, None]), max_size=40),
    st.integers(0, 20),
    st.integers(0, 200),
    st.integers(0, 40),
    st.integers(0, 10),
)
def test_what_is_found_is_what_a_fetch_would_give(
    kinds: list[Kind | None], start: int, bytes_max: int, first: int, count: int
) -> None:
    """None: an entry of that LSN is not under the reader's tags."""
    log = [entry(lsn, kind) for lsn, kind in enumerate(kinds) if kind is not None]
    kept = StagedEntries(Lsn(start), bytes_max)
    for one in log:
        if one.lsn >= start:
            kept.show(one)
    named = Range(Lsn(first), count)
    found = kept.find(named)
    if found is not None:
        assert found == [
            one for one in log if one.kind is Kind.STAGED and first <= one.lsn < first + count
        ]


def test_what_was_shown_need_not_be_fetched() -> None:
    kept = StagedEntries(Lsn(3))
    for lsn in (3, 4, 6):
        kept.show(entry(lsn))
    assert kept.find(Range(Lsn(4), 3)) == [entry(4), entry(6)]
    assert kept.find(Range(Lsn(2), 2)) is None


def test_old_entries_make_room() -> None:
    kept = StagedEntries(Lsn(0), bytes_max=25)
    for lsn in range(4):
        kept.show(entry(lsn))
    assert kept.find(Range(Lsn(1), 2)) is None
    assert kept.find(Range(Lsn(2), 2)) == [entry(2), entry(3)]


def test_a_range_that_claims_to_be_endless_is_left_to_the_log() -> None:
    """The count is somebody's bytes: looking through it would take for ever."""
    kept = StagedEntries(Lsn(0))
    kept.show(entry(5))
    assert kept.find(Range(Lsn(5), 10**15)) is None
