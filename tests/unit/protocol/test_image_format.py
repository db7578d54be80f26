"""What the log knows of images of results: its bytes, and when the next one is due."""

from __future__ import annotations

import json

import pytest

from penstock.errors import BadFormat, Damaged
from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.protocol.images import (
    GROWN_MIN,
    GROWN_TIMES,
    QUIET_MIN,
    Image,
    decode_image,
    encode_image,
    is_due,
    payloads_of,
    seal_payload,
)

ID = "0123456789abcdef" * 2
FULL = Image(version=3, position=100, id=ID, first_lsn=101, end_lsn=110, entries=2, rows=7)


@pytest.mark.parametrize("image", [FULL, Image(1, 0)])
def test_an_image_is_read_as_it_was_written(image: Image) -> None:
    assert decode_image("q", encode_image(image)) == image


@pytest.mark.parametrize(
    "change",
    [
        {"position": -1},
        {"position": "1"},
        {"position": True},
        {"id": "zz"},
        {"id": ID[:-2]},
        {"id": None},
        {"entries": None},
        {"format": 2},
        {"more": 1},
    ],
)
def test_anything_else_is_refused_in_words(change: dict[str, object]) -> None:
    data = json.dumps({**json.loads(encode_image(FULL)), **change}).encode()
    with pytest.raises(BadFormat, match="image of query q"):
        decode_image("q", data)


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{}", b"\xff", b"[" * 10_000])
def test_bytes_that_are_no_image_are_refused(data: bytes) -> None:
    with pytest.raises(BadFormat, match="image of query q"):
        decode_image("q", data)


def test_an_image_is_due_when_the_log_has_grown_by_many_times_its_size() -> None:
    small, large = Image(1, 1000), Image(1, 1000, ID, 900, 1000, entries=100)

    assert not is_due(small, 1000 + GROWN_MIN - 1, is_quiet=False)
    assert is_due(small, 1000 + GROWN_MIN, is_quiet=False)
    assert not is_due(large, 1000 + 100 * GROWN_TIMES - 1, is_quiet=False)
    assert is_due(large, 1000 + 100 * GROWN_TIMES, is_quiet=False)


def test_a_quiet_result_gets_one_sooner() -> None:
    assert not is_due(Image(1, 0), QUIET_MIN - 1, is_quiet=True)
    assert is_due(Image(1, 0), QUIET_MIN, is_quiet=True)
    assert not is_due(Image(1, 0), QUIET_MIN, is_quiet=False)


def test_an_image_without_one_of_its_entries_is_damaged() -> None:
    entries = [_entry(101, ID), _entry(102, "ff" * 16), _entry(103, ID)]

    assert payloads_of(FULL, entries) == [b"rows 101", b"rows 103"]
    with pytest.raises(Damaged, match="has 1 entries, expected 2"):
        payloads_of(FULL, entries[1:])


def _entry(lsn: int, id: str) -> Entry:
    payload = seal_payload(id, f"rows {lsn}".encode())
    return Entry(
        lsn=Lsn(lsn), kind=Kind.CHANGE, tags=("R/q.3/0",), producer="@q", instance=1, seq=0,
        time_ms=0, rows=0, payload=payload,
    )  # fmt: skip
