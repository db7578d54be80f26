"""A marker reads back as it was written; any other bytes are refused, never misread."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.protocol.markers import Heard, Marker, Range, decode_marker, encode_marker

COUNTS = st.integers(0, 2**63)
LSNS = COUNTS.map(Lsn)
MAYBE_MS = st.none() | st.integers(-(2**62), 2**62)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
MARKERS = st.builds(
    Marker,
    task=st.text(),
    instance=COUNTS,
    number=COUNTS,
    position=LSNS,
    inline=COUNTS,
    ranges=st.lists(st.builds(Range, LSNS, COUNTS), max_size=3).map(tuple),
    watermark_ms=MAYBE_MS,
    is_idle=st.booleans(),
    heard=st.dictionaries(st.text(), st.builds(Heard, LSNS, MAYBE_MS, st.booleans()), max_size=3),
    checkpoints=st.lists(
        st.dictionaries(st.text(), st.integers() | st.text(), max_size=2), max_size=2
    ).map(tuple),
    has_state=st.booleans(),
    rows_in=COUNTS,
    rows_out=COUNTS,
    origin_ms=MAYBE_MS,
)
MARKER = Marker("q.1/0/0", instance=4, number=0, position=Lsn(7), inline=2)


@given(MARKERS)
def test_a_marker_reads_back_as_it_was_written(marker: Marker) -> None:
    assert decode_marker(encode_marker(marker)) == marker


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_bytes_that_are_no_marker_are_refused(payload: bytes) -> None:
    with pytest.raises(BadFormat):
        decode_marker(payload)


FIELDS = sorted(json.loads(encode_marker(MARKER)))


@given(st.sampled_from(FIELDS), JSON)
def test_a_field_of_another_kind_is_refused_or_kept(name: str, value: Any) -> None:
    found = {**json.loads(encode_marker(MARKER)), name: value}
    try:
        marker = decode_marker(json.dumps(found).encode())
    except BadFormat:
        return
    assert decode_marker(encode_marker(marker)) == marker


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_is_missing_is_noticed(name: str) -> None:
    found = json.loads(encode_marker(MARKER))
    del found[name]
    with pytest.raises(BadFormat, match=name):
        decode_marker(json.dumps(found).encode())


@pytest.mark.parametrize(
    ("name", "value"),
    [("number", -1), ("number", True), ("position", 1.0), ("is_idle", 0), ("ranges", [[1, -2]])],
)
def test_numbers_that_no_task_writes_are_refused(name: str, value: Any) -> None:
    found = {**json.loads(encode_marker(MARKER)), name: value}
    with pytest.raises(BadFormat, match="no marker"):
        decode_marker(json.dumps(found).encode())


def test_bytes_nested_too_deeply_are_refused() -> None:
    with pytest.raises(BadFormat):
        decode_marker(b"[" * 100_000)


def test_a_marker_of_a_newer_program_says_so() -> None:
    found = {**json.loads(encode_marker(MARKER)), "version": 4}
    with pytest.raises(BadFormat, match="version 4, this program reads up to 3: use a newer one"):
        decode_marker(json.dumps(found).encode())


def test_what_an_upstream_task_may_still_name_is_needed() -> None:
    assert MARKER.needs_from == 7
    heard = {"q.1/0/0": Heard(Lsn(9), None, False), "q.1/0/1": Heard(Lsn(5), 3, True)}
    assert replace(MARKER, heard=heard).needs_from == 5


def test_a_range_ends_behind_its_last_entry() -> None:
    assert Range(Lsn(3), 2).end == 5
