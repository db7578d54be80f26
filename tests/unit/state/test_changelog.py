"""Payloads of change entries do what the changes do, cut or whole; other bytes are refused."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from state_actions import ACTIONS, TAKE, contents, do, make_store

from penstock.errors import BadFormat, TooLarge
from penstock.limits import PAYLOAD_BYTES_MAX
from penstock.state.api import Change
from penstock.state.changelog import KINDS, decode_changes, encode_changes


def _batch(count: int, text: str = "x") -> pa.RecordBatch:
    return pa.record_batch({"k": np.arange(count), "s": pa.array([text] * count, pa.string())})


@settings(max_examples=150)
@given(actions=ACTIONS, bytes_max=st.sampled_from([1000, 1400, 5000, PAYLOAD_BYTES_MAX]))
def test_applying_what_was_decoded_does_what_the_changes_did(
    actions: list[Any], bytes_max: int
) -> None:
    store, copy = make_store(), make_store()
    for number, action in enumerate([*actions, TAKE]):
        do(store, action, number)
        if action == TAKE:
            payloads = encode_changes(store.state.take_log(), bytes_max)
            assert all(len(payload) <= bytes_max for payload in payloads)
            for payload in payloads:
                copy.state.apply(decode_changes(payload))
            assert contents(copy) == contents(store)


def test_the_changes_of_a_commit_are_one_payload_and_come_back_as_they_were() -> None:
    changes = [Change(f"op/{kind}", kind, _batch(3)) for kind in KINDS]

    (payload,) = encode_changes(changes)

    assert decode_changes(payload) == changes
    assert decode_changes(memoryview(payload)) == changes


def test_no_changes_are_no_payloads() -> None:
    assert encode_changes([]) == []


def test_a_row_without_columns_stays_a_row() -> None:
    rows = pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))

    (payload,) = encode_changes([Change("one", "delete", rows)])

    assert decode_changes(payload)[0].rows.num_rows == 1


def test_a_change_that_is_cut_keeps_name_kind_order_and_rows() -> None:
    changes = [
        Change("a", "evict", _batch(1)),
        Change("a", "add", _batch(5000)),
        Change("b", "delete", _batch(10)),
        Change("b", "put", _batch(900)),
    ]

    payloads = encode_changes(changes, 4096)

    assert len(payloads) > 10
    assert max(map(len, payloads)) <= 4096
    decoded = [change for payload in payloads for change in decode_changes(payload)]
    order = [(c.name, c.kind) for c in decoded]
    assert list(dict.fromkeys(order)) == [(c.name, c.kind) for c in changes]
    assert order == sorted(order, key=list(dict.fromkeys(order)).index)
    for change in changes:
        parts = [f.rows for f in decoded if (f.name, f.kind) == (change.name, change.kind)]
        assert pa.concat_batches(parts).equals(change.rows)


def test_a_row_that_fits_into_no_payload_is_refused() -> None:
    with pytest.raises(
        TooLarge, match=r"a change of op/t: row 0 takes .* bytes, a payload at most"
    ):
        encode_changes([Change("op/t", "put", _batch(1, "x" * 5000))], 4096)


def test_bytes_that_were_never_ours_are_bad_format_even_with_a_checksum_that_matches() -> None:
    """Damage under a right checksum: BadFormat, or rows that are safe to read."""
    (payload,) = encode_changes([Change("op/t", "put", _batch(20))])
    rng = random.Random(4)
    refused = 0
    for _ in range(3000):
        body = bytearray(payload[4:])
        for _ in range(rng.randrange(1, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        if rng.random() < 0.2:
            del body[rng.randrange(len(body)) :]
        try:
            changes = decode_changes(crc32c(body).to_bytes(4, "little") + body)
        except BadFormat:
            refused += 1
        else:
            assert all(len(x.to_pylist()) == len(x) for c in changes for x in c.rows.columns)
    assert refused > 500


@given(payload=st.binary(max_size=200))
def test_arbitrary_bytes_are_bad_format(payload: bytes) -> None:
    with pytest.raises(BadFormat):
        decode_changes(payload)


def test_bytes_after_the_last_change_are_bad_format() -> None:
    (payload,) = encode_changes([Change("op/t", "put", _batch(1))])
    body = payload[4:] + bytes(8)

    with pytest.raises(BadFormat, match="8 bytes after the last change"):
        decode_changes(crc32c(body).to_bytes(4, "little") + body)


def test_a_version_that_is_not_ours_is_refused() -> None:
    (payload,) = encode_changes([Change("op/t", "put", _batch(1))])
    body = b"\x02" + payload[5:]

    with pytest.raises(BadFormat, match="changes of version 2, this is 1"):
        decode_changes(crc32c(body).to_bytes(4, "little") + body)
