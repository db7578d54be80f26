"""Rows on their way, addresses, and who has a target's seat."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.delivery.remote.address import HostAddress, TargetAddress, is_remote, parse_target
from penstock.delivery.remote.row_parts import PART_BYTES_MAX, decode_rows, encode_rows
from penstock.delivery.remote.seat import Seat, check_seat, loss_of_seat
from penstock.errors import BadFormat, Fenced, Refused, Unavailable
from penstock.stream.batches import ARRAY_LENGTH_MAX

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
EMPTY = pa.RecordBatch.from_pylist([], schema=SCHEMA)


def rows(*keys: int, text: str = "x") -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"k": list(keys), "v": [text] * len(keys)}, SCHEMA)


@pytest.mark.parametrize(
    ("batches", "parts"),
    [
        ([], 0),
        ([rows(1)], 1),
        ([rows(key) for key in range(1000)], 1),
        ([rows(*range(100)).slice(40, 3)], 1),
        ([rows(*range(10), text="x" * 500_000)], 4),
        ([rows(key, text="x" * 1_000_000) for key in range(5)], 3),
    ],
)
def test_joined_again_the_parts_are_the_rows(batches: list[pa.RecordBatch], parts: int) -> None:
    encoded = encode_rows(batches)

    assert len(encoded) == parts
    assert all(len(part) <= PART_BYTES_MAX for part in encoded)
    found = decode_rows(encoded, EMPTY)
    assert found.to_pylist() == [row for batch in batches for row in batch.to_pylist()]
    assert found.schema == SCHEMA


def test_what_a_small_part_claims_is_bounded() -> None:
    void = pa.schema([("nothing", pa.null())])
    many = pa.RecordBatch.from_arrays([pa.nulls(ARRAY_LENGTH_MAX + 1)], schema=void)
    empty = pa.RecordBatch.from_pylist([], schema=void)

    with pytest.raises(BadFormat, match="more than"):
        decode_rows([memoryview(many.serialize()).cast("B")], empty)
    assert decode_rows(encode_rows([many]), empty).num_rows == ARRAY_LENGTH_MAX + 1


def test_an_address_names_host_number_and_files() -> None:
    assert parse_target("target://127.0.0.1:9/3?token_file=/a/b") == TargetAddress(
        HostAddress("target", "127.0.0.1", 9, token_file="/a/b"), 3
    )
    assert parse_target("grpc://localhost") == TargetAddress(
        HostAddress("grpc", "localhost", 7076), 0
    )
    far = parse_target("target://db.example/1?tls_ca=ca.pem&token_file=t").host
    assert far == HostAddress("target", "db.example", 7075, "t", "ca.pem")
    assert str(parse_target("grpc://[::1]:5/2")) == "grpc://[::1]:5/2"
    assert is_remote("grpc://x") and is_remote("target://x")
    assert not is_remote("sqlite:///target")


OLD, NEW = Seat("d", 0, term=4, connection=1), Seat("d", 0, term=5, connection=1)
OTHER = Seat("e", 0, term=9, connection=1)


def test_the_newest_opening_has_the_seat_unless_a_newer_player_sits_there() -> None:
    check_seat(None, OLD, is_connected=False)
    check_seat(OLD, OLD, is_connected=True)
    check_seat(OLD, NEW, is_connected=True)
    for is_connected in (True, False):
        with pytest.raises(Fenced, match="instance 5, which is newer than 4"):
            check_seat(NEW, OLD, is_connected=is_connected)


def test_another_delivery_gets_the_seat_when_it_is_left() -> None:
    check_seat(OLD, OTHER, is_connected=False)
    with pytest.raises(Refused, match="in use by shard 0 of delivery d"):
        check_seat(OLD, OTHER, is_connected=True)


def test_another_shard_of_the_delivery_tries_again_until_the_seat_is_left() -> None:
    """The target was left and is given again: the old shard may have rows to give away."""
    with pytest.raises(Unavailable, match="in use by shard 0 of delivery d"):
        check_seat(OLD, Seat("d", 1, term=4, connection=1), is_connected=True)


def test_who_loses_the_seat_is_told_whether_to_come_back() -> None:
    assert isinstance(loss_of_seat(OLD, NEW), Fenced)
    assert isinstance(loss_of_seat(OLD, OLD), Unavailable)
