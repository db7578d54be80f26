"""Sequence numbers of idempotent producers: what is new, what was sent before. Pure.

The log keeps, by stream, producer id and partition, the last few batches: their numbers, and where
they stand. The key is guarded and set in the append of the batch itself, so that whatever gateway a
batch is sent through, and however often, it is there once (as Kafka does, five are remembered, and
a client has no more on their way).

Law: of all batches with one number, one takes effect; no batch takes effect before the one below.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import BadFormat
from penstock.gateway.kafka.errors import Code, KafkaRefused

KEPT: Final = 5
SEQUENCES: Final = 2**31


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch that is in the log."""

    first: int
    last: int
    #: Of its first entry.
    lsn: int


@dataclass(frozen=True, slots=True)
class Sequences:
    """What the log has of one producer in one partition."""

    epoch: int
    sent: tuple[Sent, ...]


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch to append, and what is kept with it."""

    value: bytes


def last_of(first: int, count: int) -> int:
    return (first + count - 1) % SEQUENCES


def decide(
    known: Sequences | None, epoch: int, first: int, count: int, entries: int, now_ms: int = 0
) -> NewBatch | Sent:
    """What to do with a batch that takes `entries` of the log. Raises KafkaRefused."""
    last = last_of(first, count)
    if known is None or epoch > known.epoch:
        if first != 0:
            raise KafkaRefused(
                Code.OUT_OF_ORDER_SEQUENCE_NUMBER, f"sequence {first} is the first: begin at 0"
            )
        return NewBatch(_encode(epoch, (), (first, last, entries), now_ms))
    if epoch < known.epoch:
        raise KafkaRefused(
            Code.INVALID_PRODUCER_EPOCH, f"epoch {epoch} is over, it is {known.epoch} now"
        )
    for sent in known.sent:
        if (sent.first, sent.last) == (first, last):
            return sent
    newest = known.sent[-1]
    if first == (newest.last + 1) % SEQUENCES:
        return NewBatch(_encode(epoch, known.sent[1 - KEPT :], (first, last, entries), now_ms))
    if first <= newest.last and newest.last - first < SEQUENCES // 2:
        raise KafkaRefused(
            Code.DUPLICATE_SEQUENCE_NUMBER, f"sequence {first} was sent, the last is {newest.last}"
        )
    raise KafkaRefused(
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"sequence {first} leaves a gap: the last is {newest.last}",
    )


def _encode(epoch: int, sent: Sequence[Sent], newest: tuple[int, int, int], now_ms: int) -> bytes:
    """The newest says how many entries stand before the one that sets this. When it was set stands
    in it: the log tells no time of what is trimmed away."""
    value = {
        "epoch": epoch,
        "sent": [[each.first, each.last, each.lsn] for each in sent],
        "newest": newest,
        "ms": now_ms,
    }
    return json.dumps(value, separators=(",", ":")).encode()


def decode_sequences(data: bytes, lsn: int) -> Sequences:
    """`lsn`: of the entry that set it."""
    try:
        value: Any = json.loads(data)
        first, last, entries = map(int, value["newest"])
        older = tuple(Sent(int(a), int(b), int(c)) for a, b, c in value["sent"])
        return Sequences(int(value["epoch"]), (*older, Sent(first, last, lsn - entries)))
    except (ValueError, KeyError, TypeError) as error:
        raise BadFormat(f"bytes that are no sequence numbers: {error}") from None


def set_at_ms(data: bytes) -> int:
    """When sequence numbers were set. Raises BadFormat."""
    try:
        return int(json.loads(data)["ms"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadFormat(f"bytes that are no sequence numbers: {error}") from None
