"""The messages between players and hosts of targets, and their bytes."""

from __future__ import annotations

import pytest
from damage import peak_bytes

from penstock.errors import BadFormat
from penstock.wire import messages as m
from penstock.wire import node_messages as n
from penstock.wire import target_messages as t

PARTS = [t.Part(0, 1, 0, 2**62, 2**32 - 1, True), t.Part(2**32 - 1, 7, 5, 6, 0, False)]
ACKS = [t.TargetAck(0, 1, 2**62), t.TargetAck(3, 2**32 - 1, 0)]
SAMPLES: list[t.TargetMessage] = [
    t.TargetHello("orders-é"),
    t.TargetWelcome(3),
    t.OpenTarget(1, 2, 3, "d", 0, 4, 5, b"\xffschema", True, ("a", "é"), "t", False),
    t.ApplyParts(t.encode_parts(PARTS)),
    t.CloseTarget(1, 2),
    t.TargetAt(1, 2, 2**62),
    t.TargetAcks(t.encode_acks(ACKS)),
    t.TargetFailed(1, 2, 18, "v is too long", 7),
    t.TargetFailed(1, 2, 1, "", None),
]
SHARED = {m.Failed, m.Meet, m.Challenge, m.Ping, m.Pong}


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_equal(message: t.TargetMessage) -> None:
    assert t.decode_target_message(message.KIND, t.encode_target_message(message)) == message


def test_every_message_has_a_sample_and_a_kind_of_its_own() -> None:
    assert {type(message) for message in SAMPLES} | SHARED == set(t.TARGET_MESSAGES.values())
    own = {kind for kind, cls in t.TARGET_MESSAGES.items() if cls not in SHARED}
    assert sorted(own) == list(range(96, 104))
    assert not own & (set(m.MESSAGES) | set(n.NODE_MESSAGES))


def test_parts_and_acks_come_back_equal() -> None:
    assert t.decode_parts(t.encode_parts(PARTS)) == PARTS
    assert t.decode_acks(t.encode_acks(ACKS)) == ACKS
    assert t.decode_parts(b"") == []
    assert t.decode_acks(b"") == []


def test_the_bytes_of_a_part_and_an_ack_are_those_of_the_format() -> None:
    assert t.encode_parts([t.Part(1, 2, 3, 4, 5, True)]).hex() == (
        "01000000" "02000000" "0300000000000000" "0400000000000000" "05000000" "01000000"
    )  # fmt: skip
    assert t.encode_acks([t.TargetAck(1, 2, 3)]).hex() == "01000000020000000300000000000000"


def test_what_is_cut_or_not_known_is_refused_without_growth() -> None:
    head = t.encode_target_message(SAMPLES[2])
    bad = [(98, head[:size]) for size in range(len(head))] + [(98, head + b"x"), (63, b"")]
    bad += [(99, b"\xff\xff\xff\xff"), (95, b""), (104, b"")]

    def decode_all() -> None:
        for kind, data in bad:
            with pytest.raises(BadFormat):
                t.decode_target_message(kind, data)

    assert peak_bytes(decode_all) < 1_000_000
    for data in (b"x", bytes(31), bytes(33), bytes(28) + b"\x02\x00\x00\x00"):
        with pytest.raises(BadFormat):
            t.decode_parts(data)
    with pytest.raises(BadFormat):
        t.decode_acks(bytes(15))
