"""What the log knows of a delivery: bytes there and back, and what it needs of the log."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from penstock.errors import BadFormat, BadRequest
from penstock.protocol.deliveries import (
    Delivered,
    PastRoute,
    RegisteredDelivery,
    decode_delivered,
    decode_delivery,
    encode_delivered,
    encode_delivery,
    needed_from,
)
from penstock.protocol.images import Image, encode_image
from penstock.protocol.names import aside_key, check_delivery_name

DELIVERY = RegisteredDelivery(
    name="d", id="i", stream="s", query="q", version=2, key=["k"], route=[0, 1] * 32, epoch=0,
    start=5, table="t", targets=["sqlite:///a", "sqlite:///b"], strict=True, dead_letter="dead",
    created_ms=1,
)  # fmt: skip
ACK = Delivered(
    term=3, positions=[9, 7], problems=[None, "away"], rows=[4, 0], is_running=True, error=None,
    time_ms=2,
)  # fmt: skip


@pytest.mark.parametrize("delivery", [DELIVERY, replace(DELIVERY, query=None, version=None)])
def test_a_delivery_is_read_as_it_was_written(delivery: RegisteredDelivery) -> None:
    assert decode_delivery("d", encode_delivery(delivery), 9) == delivery


def test_an_ack_is_read_as_it_was_written() -> None:
    assert decode_delivered("d", encode_delivered(ACK)) == ACK


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"stream": 3},
        {"version": None},
        {"start": -1},
        {"start": True},
        {"route": [2]},
        {"targets": []},
        {"strict": 1},
        {"key": None},
        {"format": 3},
        {"past": [{"route": [0], "cut": -1, "image": None}]},
        {"past": [{"route": [0] * 64, "cut": None}]},
        {"past": [{"route": [7] * 64, "cut": 1, "image": None}]},
        {"past": [{"route": [0] * 64, "cut": 1, "image": "no image"}]},
    ],
)
def test_other_bytes_are_no_delivery(change: dict[str, Any]) -> None:
    values = {**json.loads(encode_delivery(DELIVERY)), **change}

    with pytest.raises(BadFormat, match="delivery d"):
        decode_delivery("d", json.dumps(values).encode(), 9)


@pytest.mark.parametrize(
    "change",
    [
        {"positions": [1]},
        {"positions": ["1", 2]},
        {"problems": [1, 2]},
        {"term": -1},
        {"format": 9},
    ],
)
def test_other_bytes_are_no_ack(change: dict[str, Any]) -> None:
    values = {**json.loads(encode_delivered(ACK)), **change}

    with pytest.raises(BadFormat, match="acks of delivery d"):
        decode_delivered("d", json.dumps(values).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_garbage_is_neither(data: bytes) -> None:
    with pytest.raises(BadFormat):
        decode_delivery("d", data, 9)
    with pytest.raises(BadFormat):
        decode_delivered("d", data)


def test_fields_of_later_programs_are_passed_over() -> None:
    values = {**json.loads(encode_delivery(DELIVERY)), "color": "red"}

    assert decode_delivery("d", json.dumps(values).encode(), 9) == DELIVERY


def test_the_slowest_shard_says_what_is_needed() -> None:
    assert needed_from(DELIVERY, ACK) == 7
    assert needed_from(DELIVERY, replace(ACK, positions=[9, None])) == 5
    assert needed_from(DELIVERY, None) == 5


def test_an_ack_of_fewer_shards_says_nothing() -> None:
    ack = replace(ACK, positions=[9], problems=[None], rows=[1])

    assert needed_from(DELIVERY, ack) == 5


@pytest.mark.parametrize("name", ["", "1a", "a/b", "a b", "é", "x" * 101])
def test_a_name_that_cannot_be_a_key_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="delivery name"):
        check_delivery_name(name)


def test_rows_that_are_set_aside_have_keys_of_their_own() -> None:
    check_delivery_name("hot-postgresql.shop_1")
    places = list(itertools.product((1, 11), repeat=3))

    assert len({aside_key("d", *place) for place in places}) == len(places)


def test_a_cut_is_where_the_value_stands_that_was_written_first_with_it() -> None:
    """Only the log knows that place. Later values have it in words."""
    route = [0] * len(DELIVERY.route)
    planned = replace(DELIVERY, epoch=1, past=[PastRoute(route, None)])

    found = decode_delivery("d", encode_delivery(planned), 77)
    later = decode_delivery("d", encode_delivery(found), 99)

    assert found.layout.cuts == (77,)
    assert later == found
    assert json.loads(encode_delivery(found))["format"] == 2


def test_rows_that_are_to_move_are_spared_until_every_target_is_past_the_cut() -> None:
    """Shard 1 ends at 70. What moves there is read from the beginning of the delivery, 5."""
    route = [node % 2 for node in range(64)]
    before = replace(DELIVERY, targets=["a", "b"], route=route, start=5)
    image = encode_image(Image(version=2, position=30)).decode()
    ended = replace(before, epoch=1, route=[0] * 64, past=[PastRoute(route, 70)])
    with_image = replace(ended, past=[PastRoute(route, 70, image)])

    def needed(delivery: RegisteredDelivery, *positions: int | None) -> int:
        ack = Delivered(1, list(positions), [None] * 2, [0] * 2, True, None, 0)
        return needed_from(delivery, ack)

    assert needed(ended, 60, 60) == 5
    assert needed(ended, 90, 70) == 5
    assert needed(ended, 90, 71) == 90
    assert needed(ended, None, 71) == 5
    assert needed(with_image, 70, 71) == 30
    assert needed(with_image, 20, 71) == 20
    assert needed_from(with_image, None) == 5
