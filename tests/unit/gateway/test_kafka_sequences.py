"""Sequence numbers of idempotent producers, as Kafka's clients use them."""

from __future__ import annotations

import pytest

from penstock.gateway.kafka.errors import Code, KafkaRefused
from penstock.gateway.kafka.sequences import (
    SEQUENCES,
    NewBatch,
    Sent,
    Sequences,
    decide,
    decode_sequences,
)


def after(*batches: tuple[int, int], epoch: int = 0) -> Sequences | None:
    """What the log has after batches of (first, count), one entry each, at LSNs 10, 20, …"""
    known: Sequences | None = None
    for at, (first, count) in enumerate(batches, 1):
        step = decide(known, epoch, first, count, 1)
        assert isinstance(step, NewBatch)
        known = decode_sequences(step.value, 10 * at + 1)
    return known


def refused(known: Sequences | None, epoch: int, first: int, count: int = 1) -> Code:
    with pytest.raises(KafkaRefused) as caught:
        decide(known, epoch, first, count, 1)
    return caught.value.code


def test_the_last_five_are_known_again_with_their_places() -> None:
    known = after(*((3 * at, 3) for at in range(7)))
    for at in range(2, 7):
        assert decide(known, 0, 3 * at, 3, 1) == Sent(3 * at, 3 * at + 2, 10 * (at + 1))
    assert refused(known, 0, 0, 3) is Code.DUPLICATE_SEQUENCE_NUMBER
    assert refused(known, 0, 18, 2) is Code.DUPLICATE_SEQUENCE_NUMBER


def test_gaps_and_old_epochs_are_refused() -> None:
    assert refused(None, 0, 1) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    known = after((0, 3), epoch=2)
    assert refused(known, 2, 4) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(known, 1, 3) is Code.INVALID_PRODUCER_EPOCH
    assert refused(known, 3, 3) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert isinstance(decide(known, 3, 0, 1, 1), NewBatch)


def test_numbers_begin_anew_after_the_last() -> None:
    known = Sequences(0, (Sent(SEQUENCES - 2, SEQUENCES - 1, 5),))
    step = decide(known, 0, 0, 2, 1)
    assert isinstance(step, NewBatch)
    again = decode_sequences(step.value, 9)
    assert decide(again, 0, 0, 2, 1) == Sent(0, 1, 8)
    assert isinstance(decide(again, 0, 2, 1, 1), NewBatch)
