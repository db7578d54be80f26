"""What the log knows of a query reads back; a plan that changed is shown as people compare it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadFormat
from penstock.runtime.registry import (
    RegisteredQuery,
    decode_query,
    describe_change,
    encode_query,
)

TEXT = st.text(max_size=8)
COUNTS = st.integers(0, 2**63)
QUERIES = st.builds(
    RegisteredQuery,
    name=TEXT,
    id=TEXT,
    version=COUNTS,
    plan=TEXT,
    mode=TEXT,
    to=TEXT,
    starts=st.dictionaries(TEXT, COUNTS, max_size=3),
    tasks=st.lists(COUNTS, max_size=3),
    created_ms=COUNTS,
    checkpoints=st.none() | TEXT,
    fixed_tables=st.dictionaries(TEXT, TEXT, max_size=2),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)
QUERY = RegisteredQuery("q", "id", 1, "scan\n  filter", "append", "out", {"in": 4}, [1, 2], 5)


@given(QUERIES)
def test_a_query_reads_back_as_it_was_registered(query: RegisteredQuery) -> None:
    assert decode_query(query.name, encode_query(query)) == query


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_bytes_that_are_no_query_are_refused(payload: bytes) -> None:
    with pytest.raises(BadFormat, match="query q"):
        decode_query("q", payload)


@given(st.sampled_from(sorted(json.loads(encode_query(QUERY)))), JSON)
def test_a_field_of_another_kind_is_refused_or_kept(name: str, value: Any) -> None:
    found = {**json.loads(encode_query(QUERY)), name: value}
    try:
        query = decode_query("q", json.dumps(found).encode())
    except BadFormat:
        return
    assert decode_query("q", encode_query(query)) == query
    assert all(type(count) is int for count in [*query.starts.values(), *query.tasks])
    assert type(query.checkpoints) in (str, type(None))


def test_bytes_nested_too_deeply_are_refused() -> None:
    with pytest.raises(BadFormat):
        decode_query("q", b"[" * 100_000)


def test_a_query_under_another_name_is_refused() -> None:
    with pytest.raises(BadFormat, match="query other"):
        decode_query("other", encode_query(QUERY))


def test_a_query_of_a_newer_program_says_so() -> None:
    found = {**json.loads(encode_query(QUERY)), "format": 5}
    with pytest.raises(BadFormat, match="by a newer program: use that one"):
        decode_query("q", json.dumps(found).encode())


def test_the_fingerprint_is_of_what_state_rests_on() -> None:
    same = replace(QUERY, version=9, id="x", starts={}, tasks=[7], created_ms=1, checkpoints="c")
    assert same.fingerprint == QUERY.fingerprint
    others = [replace(QUERY, plan="x"), replace(QUERY, mode="update"), replace(QUERY, to="x")]
    assert QUERY.fingerprint not in [one.fingerprint for one in others]


def test_a_plan_that_is_the_same_has_no_difference() -> None:
    assert describe_change(QUERY, replace(QUERY, created_ms=9, tasks=[4])) is None


def test_a_plan_that_changed_is_shown_as_a_difference() -> None:
    new = replace(QUERY, plan="scan\n  project", mode="update", to="out2")
    assert (describe_change(QUERY, new) or "").splitlines() == [
        "mode: was append, is update",
        "result stream: was out, is out2",
        "--- the plan so far",
        "+++ this plan",
        "@@ -1,2 +1,2 @@",
        " scan",
        "-  filter",
        "+  project",
    ]


def test_a_query_goes_on_only_with_the_protocol_that_it_began_with() -> None:
    changed = describe_change(QUERY, replace(QUERY, protocol="aligned"))
    assert changed == "commit protocol: was marker, is aligned"


def test_a_query_of_before_there_were_protocols_commits_by_markers() -> None:
    found = json.loads(encode_query(QUERY))
    del found["protocol"]
    assert decode_query("q", json.dumps(found).encode()) == QUERY


def test_programs_from_before_there_were_protocols_refuse_a_query_of_another_one() -> None:
    assert json.loads(encode_query(QUERY))["format"] == 1
    other = replace(QUERY, protocol="transaction")
    assert json.loads(encode_query(other))["format"] == 2
    assert decode_query("q", encode_query(other)) == other


def test_a_query_from_before_sources_were_shared_goes_on_as_it_was() -> None:
    shared = replace(QUERY, shares_sources=True)
    assert json.loads(encode_query(shared))["format"] == 3, "programs from before refuse it"
    assert decode_query("q", encode_query(shared)) == shared
    old = json.loads(encode_query(QUERY))
    del old["shares_sources"]
    assert not decode_query("q", json.dumps(old).encode()).shares_sources


def test_aligned_checkpoints_do_not_move() -> None:
    old = replace(QUERY, protocol="aligned", checkpoints="here")
    assert "were in here" in (describe_change(old, replace(old, checkpoints="there")) or "")
    assert describe_change(old, replace(old, created_ms=1)) is None


def test_a_static_table_with_other_rows_is_a_change_where_its_rows_are_needed_again() -> None:
    before = replace(QUERY, fixed_tables={"0: id, item": "a"})
    assert describe_change(before, replace(QUERY, fixed_tables={"0: id, item": "a"})) is None
    assert describe_change(QUERY, before) is None, "registered by a program that kept no digests"

    said = describe_change(before, replace(QUERY, fixed_tables={"0: id, item": "b"}))

    assert said is not None and said.startswith("static table 0: id, item: its rows are others")
