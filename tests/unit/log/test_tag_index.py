"""Both indexes of a segment answer alike: which entries carry a tag, where groups lie, when."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from crc32c import crc32c
from sample_groups import LOG_MARK, claim, group, retire

from penstock.errors import BadFormat, ChecksumMismatch, Damaged
from penstock.ids import Lsn
from penstock.log.core.tag_index import (
    GroupSpan,
    OpenIndex,
    SealedIndex,
    TagIndex,
    producer_tag,
    tag_hash,
)
from penstock.log.records import NewEntry

ALL = 2**62
BASE = 100

GROUPS = [
    claim("p"),
    group("p", 0, [NewEntry(b"", ("a",)), NewEntry(b"", ("a", "b")), NewEntry(b"")]),
    group("q", 0, [NewEntry(b"", ("b", "é"))]),
    retire("q", seq=1),
    group("p", 3, [NewEntry(b"", ("c",)), NewEntry(b"", ("a",))]),
]
FIRST_LSNS = [100, 101, 104, 105, 106]
TIMES = [1000, 1000, 1005, 1010, 1020]


def open_index() -> OpenIndex:
    index = OpenIndex(BASE)
    for at, body in enumerate(GROUPS):
        index.add(
            body,
            first_lsn=FIRST_LSNS[at],
            time_ms=TIMES[at],
            start=64 + 100 * at,
            end=64 + 100 * (at + 1),
        )
    return index


def sealed_index() -> SealedIndex:
    data = open_index().encode(log_mark=LOG_MARK, segment=7, end_lsn=108)
    return SealedIndex(data, log_mark=LOG_MARK, segment=7)


@pytest.fixture(params=[open_index, sealed_index], ids=["open", "sealed"])
def index(request: pytest.FixtureRequest) -> TagIndex:
    make: Callable[[], TagIndex] = request.param
    return make()


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["a"], [101, 102, 107]),
        (["b"], [102, 104]),
        (["a", "b"], [101, 102, 104, 107]),
        (["b", "a", "b"], [101, 102, 104, 107]),
        (["é", "c"], [104, 106]),
        (["none"], []),
        ([], []),
        ([producer_tag("p")], [101, 106]),
        ([producer_tag("q")], [104]),
    ],
    ids=str,
)
def test_an_entry_with_several_wanted_tags_is_found_once(
    index: TagIndex, tags: list[str], expected: list[int]
) -> None:
    """Law I3. Claims and retirements take no seq, hence are not indexed by producer."""
    assert index.entries(tags, 0, ALL, 100).tolist() == expected


@pytest.mark.parametrize(
    ("tag", "end", "expected"),
    [("a", ALL, 107), ("a", 107, 102), ("a", 101, None), ("a", 0, None), ("x", ALL, None)],
)
def test_the_last_entry_of_a_tag_is_found(
    index: TagIndex, tag: str, end: int, expected: int | None
) -> None:
    """Impeller 3.3.2: a task finds its newest marker by reading the tail of its task log."""
    assert index.last(tag, end) == expected


def test_every_lsn_lies_in_its_group(index: TagIndex) -> None:
    spans = {lsn: index.span(lsn) for lsn in range(100, 108)}

    assert spans[100] == GroupSpan(Lsn(100), 64, 164)
    assert spans[101] == spans[102] == spans[103] == GroupSpan(Lsn(101), 164, 264)
    assert spans[104] == GroupSpan(Lsn(104), 264, 364)
    assert spans[106] == spans[107] == GroupSpan(Lsn(106), 464, 564)


@pytest.mark.parametrize(
    ("time_ms", "lsn"),
    [(0, 100), (1000, 100), (1001, 104), (1005, 104), (1020, 106), (1021, None), (2**60, None)],
)
def test_a_time_finds_the_first_group_at_or_after_it(
    index: TagIndex, time_ms: int, lsn: int | None
) -> None:
    assert index.at_time(time_ms) == lsn


def test_an_empty_segment_has_an_index_too() -> None:
    empty = OpenIndex(5)

    sealed = SealedIndex(empty.encode(log_mark=1, segment=0, end_lsn=5), log_mark=1, segment=0)

    for index in (empty, sealed):
        assert index.entries(["a"], 0, ALL, 9).tolist() == []
        assert index.last("a", ALL) is None
        assert index.at_time(0) is None


def test_two_tags_with_one_hash_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.log.core.tag_index.tag_hash", lambda tag: 42)

    sealed = sealed_index()

    assert sealed.entries(["a"], 0, ALL, 9).tolist() == [101, 102, 107]
    assert sealed.entries(["b"], 0, ALL, 9).tolist() == [102, 104]
    assert sealed.entries(["zz"], 0, ALL, 9).tolist() == []


def test_the_hash_of_a_tag_is_part_of_the_format() -> None:
    assert tag_hash("a") == 0x2F42665B399EF840
    assert tag_hash("é") == 0x2F19F3EF8BBF1ACB


@pytest.mark.parametrize("field", range(3), ids=["groups", "tags", "postings"])
@pytest.mark.parametrize("value", [0, 10**9, 2**32 - 1])
def test_counts_that_do_not_add_up_are_noticed_behind_a_good_crc(field: int, value: int) -> None:
    data = bytearray(open_index().encode(log_mark=LOG_MARK, segment=7, end_lsn=108))
    struct.pack_into("<I", data, 64 + 4 * field, value)
    data[4:8] = crc32c(data[8:]).to_bytes(4, "little")

    with pytest.raises(Damaged):
        SealedIndex(data, log_mark=LOG_MARK, segment=7)


@pytest.mark.parametrize(("at", "value"), [(32, 109), (32, 2**63), (40, 99), (40, 2**64 - 1)])
def test_lsns_that_cannot_be_are_noticed_behind_a_good_crc(at: int, value: int) -> None:
    data = bytearray(open_index().encode(log_mark=LOG_MARK, segment=7, end_lsn=108))
    struct.pack_into("<Q", data, at, value)
    data[4:8] = crc32c(data[8:]).to_bytes(4, "little")

    with pytest.raises(Damaged):
        SealedIndex(data, log_mark=LOG_MARK, segment=7)


def test_an_index_of_another_segment_or_log_is_refused() -> None:
    data = open_index().encode(log_mark=LOG_MARK, segment=7, end_lsn=108)

    with pytest.raises(BadFormat):
        SealedIndex(data, log_mark=LOG_MARK, segment=8)
    with pytest.raises(BadFormat):
        SealedIndex(data, log_mark=LOG_MARK + 1, segment=7)
    with pytest.raises(ChecksumMismatch):
        SealedIndex(data[:-1] + b"\xff", log_mark=LOG_MARK, segment=7)
