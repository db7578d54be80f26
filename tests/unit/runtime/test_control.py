"""Control messages read back as they were said; other bytes are refused, newer kinds not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadFormat
from penstock.runtime.control import (
    Assign,
    Beat,
    Ended,
    Finish,
    Goodbye,
    Hello,
    Message,
    Move,
    Place,
    Pulse,
    Stop,
    Yield,
    Yielded,
    decode_message,
    encode_message,
)

TEXT = st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)
REPORTS = st.dictionaries(TEXT, JSON, max_size=3)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Hello, TEXT, st.integers(), TEXT, st.integers(), st.integers(), TEXT),
    st.builds(Beat, TEXT, *[st.dictionaries(TEXT, REPORTS, max_size=3)] * 3),
    st.builds(Ended, TEXT, TEXT, st.integers(), st.booleans(), TEXT, TEXT),
    st.builds(Goodbye, TEXT),
    st.builds(
        Assign,
        st.integers(),
        st.dictionaries(TEXT, st.tuples(TEXT, st.integers()).map(list), max_size=3),
        st.dictionaries(TEXT, st.lists(TEXT, max_size=2), max_size=3),
        REPORTS,
        REPORTS,
        st.dictionaries(TEXT, TEXT, max_size=3),
    ),
    st.builds(Pulse, st.none() | REPORTS),
    st.just(Finish()),
    st.builds(Stop, TEXT),
    st.builds(Move, TEXT, TEXT, TEXT),
    st.builds(Yield, TEXT, st.integers()),
    st.builds(Yielded, TEXT, TEXT, st.integers()),
)
KINDS = [
    Hello("w", 0, "h", 1), Beat("w", {}), Ended("w", "t", 1, True, "m"), Goodbye("w"),
    Assign(1, {}), Pulse(), Finish(), Stop(), Move("t", "w"), Yield("t", 1), Yielded("w", "t", 1),
]  # fmt: skip


@given(MESSAGES)
def test_a_message_reads_back_as_it_was_said(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_bytes_that_are_no_message_are_refused(payload: bytes) -> None:
    with pytest.raises(BadFormat):
        decode_message(payload)


FIELDS = [
    (message, name)
    for message in KINDS
    for name in json.loads(encode_message(message))
    if name != "kind"
]


@given(st.sampled_from(FIELDS), JSON)
def test_a_field_of_another_kind_is_refused_or_kept(field: tuple[Message, str], value: Any) -> None:
    message, name = field
    found = {**json.loads(encode_message(message)), name: value}
    try:
        decoded = decode_message(json.dumps(found).encode())
    except BadFormat:
        assert value != json.loads(encode_message(message))[name]
        return
    assert decoded is not None
    assert type(getattr(decoded, name)) is type(value)
    if isinstance(decoded, Assign):
        decoded.places()
    if isinstance(decoded, Beat):
        assert all(isinstance(report, dict) for report in decoded.tasks.values())


@pytest.mark.parametrize(
    "found",
    [
        {"kind": "hello", "worker": "w", "slot": "0", "host": "h", "pid": 1},
        {"kind": "hello", "worker": "w", "slot": True, "host": "h", "pid": 1},
        {"kind": "hello", "worker": "w"},
        {"kind": "beat", "worker": "w", "tasks": {"t": 1}},
        {"kind": "assign", "number": 1, "tasks": {"t": ["w"]}},
        {"kind": "assign", "number": 1, "tasks": {"t": ["w", "1"]}},
        {"kind": "pulse", "progress": 3},
        {"kind": ["beat"]},
        {},
    ],
    ids=str,
)
def test_a_message_of_another_shape_is_refused(found: dict[str, Any]) -> None:
    with pytest.raises(BadFormat, match="no control message"):
        decode_message(json.dumps(found).encode())


def test_bytes_nested_too_deeply_are_refused() -> None:
    with pytest.raises(BadFormat):
        decode_message(b'{"kind":' + b"[" * 100_000)


def test_what_a_newer_program_says_is_passed_over() -> None:
    assert decode_message(b'{"kind":"dance"}') is None
    found = {**json.loads(encode_message(Goodbye("w"))), "mood": "fine"}
    assert decode_message(json.dumps(found).encode()) == Goodbye("w")


def test_an_assignment_says_where_each_task_runs() -> None:
    assert Assign(1, {"q.1/0/0": ["w", 3]}).places() == {"q.1/0/0": Place("w", 3)}
