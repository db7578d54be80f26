"""The messages between players and hosts of targets, as frames; kinds 96 and up.

A connection begins as one to a log server does: `messages.Meet`, `Challenge` (proof.py). One frame
carries batches of several targets, and one frame their acks: what a batch costs beyond its rows is
the 32 bytes of its `Part`. Nothing is paired: all frames have request 0, and answers name the
target and the connection that they belong to.

Failures of a whole connection are `messages.Failed`, with the same codes as a log server's.
Law: decode(encode(m)) == m; whatever else is there raises BadFormat.
"""

from __future__ import annotations

import struct
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from penstock.errors import BadFormat
from penstock.wire.messages import Challenge, Failed, Meet, Ping, Pong, decode_as, encode_as

_PART = struct.Struct("<IIQQII")  # target, connection, after, upto, bytes, flags
_ACK = struct.Struct("<IIQ")  # target, connection, position
_LAST = 1


@dataclass(frozen=True, slots=True)
class TargetHello:
    """`player` is for people. The frame's body proves the token."""

    KIND: ClassVar = 96
    player: str


@dataclass(frozen=True, slots=True)
class TargetWelcome:
    """The host has so many targets, numbered from 0."""

    KIND: ClassVar = 97
    targets: int


@dataclass(frozen=True, slots=True)
class OpenTarget:
    """Open a target for a shard of a delivery (delivery/api.py). Answered by 101 or 103.

    `connection` is the player's number for this opening; it is repeated in all that follows.
    `schema` is the stream's, `_weight` included if it is changing: an Arrow IPC schema message.
    """

    KIND: ClassVar = 98
    target: int
    connection: int
    term: int
    delivery: str
    shard: int
    shards: int
    start: int
    schema: bytes
    changing: bool
    key: tuple[str, ...]
    table: str
    strict: bool


class Part(NamedTuple):
    """A batch, or a part of one; the parts of one batch follow each other, without any between."""

    target: int
    connection: int
    after: int
    upto: int
    #: Of its rows, in the frame's body.
    bytes: int
    #: Whether the batch is complete with it.
    is_last: bool


@dataclass(frozen=True, slots=True)
class ApplyParts:
    """The frame's body is the rows of all parts, one after the other.

    Those of a part are one Arrow record-batch message, or nothing. Each batch is answered by 102
    or 103; after a 103, none of that connection is.
    """

    KIND: ClassVar = 99
    #: `encode_parts`
    parts: bytes


@dataclass(frozen=True, slots=True)
class CloseTarget:
    """Let go of it. Not answered."""

    KIND: ClassVar = 100
    target: int
    connection: int


@dataclass(frozen=True, slots=True)
class TargetAt:
    """It is open, and stands at this position."""

    KIND: ClassVar = 101
    target: int
    connection: int
    position: int


class TargetAck(NamedTuple):
    """A batch was done with: the target's position now."""

    target: int
    connection: int
    position: int


@dataclass(frozen=True, slots=True)
class TargetAcks:
    """One for each batch, in their order."""

    KIND: ClassVar = 102
    #: `encode_acks`
    acks: bytes


@dataclass(frozen=True, slots=True)
class TargetFailed:
    """It could not be opened, or a batch not be applied, or another player has opened it since."""

    KIND: ClassVar = 103
    target: int
    connection: int
    code: int
    message: str
    #: Of a BadRow: its index in the batch, if it is known.
    row: int | None


TargetMessage = (
    TargetHello
    | TargetWelcome
    | OpenTarget
    | ApplyParts
    | CloseTarget
    | TargetAt
    | TargetAcks
    | TargetFailed
    | Failed
    | Meet
    | Challenge
    | Ping
    | Pong
)

TARGET_MESSAGES: dict[int, type[TargetMessage]] = {
    cls.KIND: cls for cls in typing.get_args(TargetMessage)
}


def encode_target_message(message: TargetMessage) -> bytes:
    return encode_as(type(message), message)


def decode_target_message(kind: int, head: bytes) -> TargetMessage:
    cls = TARGET_MESSAGES.get(kind)
    if cls is None:
        raise BadFormat(f"message kind {kind} is not known")
    return typing.cast(TargetMessage, decode_as(cls, head))


def encode_parts(parts: Iterable[Part]) -> bytes:
    return b"".join(_PART.pack(*part) for part in parts)


def decode_parts(data: bytes) -> list[Part]:
    if len(data) % _PART.size:
        raise BadFormat(f"parts of {_PART.size} bytes each in {len(data)} bytes")
    parts = [Part(*fields) for fields in _PART.iter_unpack(data)]
    if any(part.is_last not in (0, _LAST) for part in parts):
        raise BadFormat("a part with a flag that is not known")
    return parts


def encode_acks(acks: Iterable[TargetAck]) -> bytes:
    return b"".join(_ACK.pack(*ack) for ack in acks)


def decode_acks(data: bytes) -> list[TargetAck]:
    if len(data) % _ACK.size:
        raise BadFormat(f"acks of {_ACK.size} bytes each in {len(data)} bytes")
    return [TargetAck(*fields) for fields in _ACK.iter_unpack(data)]
