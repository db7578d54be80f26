"""The messages of the log protocol: what a client may ask and a server may say.

Owns one dataclass per message and their bytes; docs/formats.md lists them. Field types decide the
encoding: int = u64, bool = u8, str and bytes = u32 length + bytes, tuple[X, ...] = u32 count +
items, X | None = u8 + X.
Law: decode(encode(m)) == m; trailing, missing or oversized bytes raise BadFormat.
"""

from __future__ import annotations

import struct
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar

from penstock.errors import BadFormat
from penstock.log.records import Guard

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

Encoder = Callable[[Any, list[bytes]], None]
Decoder = Callable[[bytes, int], tuple[Any, int]]


@dataclass(frozen=True, slots=True)
class Hello:
    """After the challenge. The frame's body proves the token (proof.py).

    `session` is the same on all connections of one client object: the newest silences the others.
    `log` names one of a proxy's logs; a server of one log has no names. `reads`: only reads will
    follow, so that a proxy which does not own the log can serve them.
    """

    KIND: ClassVar = 1
    client: str
    session: str = ""
    log: str = ""
    reads: bool = False


@dataclass(frozen=True, slots=True)
class Welcome:
    KIND: ClassVar = 2
    log_id: bytes
    epoch: int
    tail: int
    trim_point: int


@dataclass(frozen=True, slots=True)
class Append:
    """The frame's body is the group's body."""

    KIND: ClassVar = 3
    guards: tuple[Guard, ...]
    flush_ms: int


@dataclass(frozen=True, slots=True)
class AppendDone:
    KIND: ClassVar = 4
    first_lsn: int
    count: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer to any request that was not done; for a subscription, it ends it."""

    KIND: ClassVar = 5
    code: int
    message: str


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Tags None: all entries. `credit` bytes may be sent before more credit comes."""

    KIND: ClassVar = 6
    subscription: int
    tags: tuple[str, ...] | None
    start: int
    end: int
    credit: int


@dataclass(frozen=True, slots=True)
class Credit:
    KIND: ClassVar = 7
    subscription: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    KIND: ClassVar = 8
    subscription: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """The frame's body is records, one after the other."""

    KIND: ClassVar = 9
    subscription: int
    looked_up_to: int
    done: bool


@dataclass(frozen=True, slots=True)
class ReadLast:
    KIND: ClassVar = 10
    tag: str
    end: int


@dataclass(frozen=True, slots=True)
class LastEntry:
    """The frame's body is one record, or empty if no entry has the tag."""

    KIND: ClassVar = 11


@dataclass(frozen=True, slots=True)
class FindTime:
    KIND: ClassVar = 12
    time_ms: int


@dataclass(frozen=True, slots=True)
class Position:
    KIND: ClassVar = 13
    lsn: int


@dataclass(frozen=True, slots=True)
class Trim:
    KIND: ClassVar = 14
    lsn: int


@dataclass(frozen=True, slots=True)
class GetMetadata:
    """Keys that start with `prefix`, those after `after`; or, if `exact`, that very key."""

    KIND: ClassVar = 15
    prefix: str
    exact: bool
    after: str = ""


@dataclass(frozen=True, slots=True)
class MetadataValue:
    key: str
    data: bytes
    lsn: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """`more`: the answer was cut here, ask again after the last key."""

    KIND: ClassVar = 16
    values: tuple[MetadataValue, ...]
    more: bool = False


@dataclass(frozen=True, slots=True)
class GetProducer:
    KIND: ClassVar = 17
    producer: str


@dataclass(frozen=True, slots=True)
class Producer:
    """Instance 0: the producer is not known."""

    KIND: ClassVar = 18
    instance: int
    next_seq: int


@dataclass(frozen=True, slots=True)
class GetStatus:
    KIND: ClassVar = 19


@dataclass(frozen=True, slots=True)
class Status:
    """JSON for people and tools; not part of the protocol's guarantees."""

    KIND: ClassVar = 20
    json: str


@dataclass(frozen=True, slots=True)
class GetBounds:
    KIND: ClassVar = 21


@dataclass(frozen=True, slots=True)
class LogBounds:
    KIND: ClassVar = 22
    trim_point: int
    tail: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there? Costs a server nothing, however much it has to do."""

    KIND: ClassVar = 23


@dataclass(frozen=True, slots=True)
class Pong:
    KIND: ClassVar = 24


@dataclass(frozen=True, slots=True)
class Meet:
    """First on every connection, to a log server, a proxy or a node; see proof.py."""

    KIND: ClassVar = 25
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Challenge:
    """The answer to `Meet`: the server's nonce, and its proof that it knows the token."""

    KIND: ClassVar = 26
    nonce: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class GetMetrics:
    """After a `Hello`; or instead of one, so that no log is opened: then the body is the proof."""

    KIND: ClassVar = 27


@dataclass(frozen=True, slots=True)
class MetricsText:
    """What `GET /metrics` answers. Nothing else may be asked on this connection."""

    KIND: ClassVar = 28
    text: str


@dataclass(frozen=True, slots=True)
class MeetAs:
    """`Meet` of who has a narrowed token: the chain of that (token.py), which is no secret.

    Both sides then prove its mac instead of the root token.
    """

    KIND: ClassVar = 29
    nonce: bytes
    chain: str


Message = (
    Hello
    | Welcome
    | Append
    | AppendDone
    | Failed
    | Subscribe
    | Credit
    | Unsubscribe
    | Delivery
    | ReadLast
    | LastEntry
    | FindTime
    | Position
    | Trim
    | GetMetadata
    | Metadata
    | GetProducer
    | Producer
    | GetStatus
    | Status
    | GetBounds
    | LogBounds
    | Ping
    | Pong
    | Meet
    | Challenge
    | GetMetrics
    | MetricsText
    | MeetAs
)

MESSAGES: dict[int, type[Message]] = {cls.KIND: cls for cls in typing.get_args(Message)}


def encode_message(message: Message) -> bytes:
    return encode_as(type(message), message)


def decode_message(kind: int, head: bytes) -> Message:
    cls = MESSAGES.get(kind)
    if cls is None:
        raise BadFormat(f"message kind {kind} is not known")
    return typing.cast(Message, decode_as(cls, head))


def encode_as(kind: Any, message: object) -> bytes:
    """The bytes of a message of this class, whichever protocol it belongs to."""
    parts: list[bytes] = []
    _codec(kind)[0](message, parts)
    return b"".join(parts)


def decode_as(cls: Any, head: bytes) -> object:
    try:
        message, at = _codec(cls)[1](head, 0)
    except (struct.error, UnicodeDecodeError, IndexError):
        raise BadFormat(f"message {cls.__name__} is cut or holds no UTF-8") from None
    if at != len(head):
        raise BadFormat(f"message {cls.__name__} has {len(head) - at} bytes too many")
    return message


@cache
def _codec(kind: Any) -> tuple[Encoder, Decoder]:
    """Encoder and decoder of a type, built once from its annotations."""
    simple = {int: _INT, bool: _BOOL, str: _STR, bytes: _BYTES}
    if kind in simple:
        return simple[kind]
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return _tuple_codec(*_codec(args[0]))
    if origin in (types.UnionType, typing.Union):
        return _optional_codec(*_codec(args[0]))
    return _class_codec(kind)


def _class_codec(cls: Any) -> tuple[Encoder, Decoder]:
    hints = typing.get_type_hints(cls)
    items = [(field.name, *_codec(hints[field.name])) for field in fields(cls)]

    def encode(value: Any, parts: list[bytes]) -> None:
        for name, encode_field, _ in items:
            encode_field(getattr(value, name), parts)

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        values = []
        for _, _, decode_field in items:
            value, at = decode_field(data, at)
            values.append(value)
        return cls(*values), at

    return encode, decode


def _tuple_codec(encode_item: Encoder, decode_item: Decoder) -> tuple[Encoder, Decoder]:
    def encode(value: Any, parts: list[bytes]) -> None:
        parts.append(_U32.pack(len(value)))
        for item in value:
            encode_item(item, parts)

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        (count,) = _U32.unpack_from(data, at)
        at += 4
        if count > len(data) - at:  # every item takes at least one byte
            raise BadFormat(f"a list of {count} items in {len(data) - at} bytes")
        items = []
        for _ in range(count):
            item, at = decode_item(data, at)
            items.append(item)
        return tuple(items), at

    return encode, decode


def _optional_codec(encode_item: Encoder, decode_item: Decoder) -> tuple[Encoder, Decoder]:
    def encode(value: Any, parts: list[bytes]) -> None:
        parts.append(b"\x00" if value is None else b"\x01")
        if value is not None:
            encode_item(value, parts)

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        if data[at] > 1:
            raise BadFormat("a flag is neither 0 nor 1")
        return decode_item(data, at + 1) if data[at] else (None, at + 1)

    return encode, decode


def _encode_bytes(value: bytes, parts: list[bytes]) -> None:
    parts += (_U32.pack(len(value)), value)


def _decode_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _U32.unpack_from(data, at)
    at += 4
    if size > len(data) - at:
        raise BadFormat(f"a field of {size} bytes in {len(data) - at}")
    return data[at : at + size], at + size


def _decode_str(data: bytes, at: int) -> tuple[str, int]:
    text, at = _decode_bytes(data, at)
    return text.decode(), at


def _decode_bool(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise BadFormat("a flag is neither 0 nor 1")
    return bool(data[at]), at + 1


_INT: tuple[Encoder, Decoder] = (
    lambda value, parts: parts.append(_U64.pack(value)),
    lambda data, at: (_U64.unpack_from(data, at)[0], at + 8),
)
_BOOL: tuple[Encoder, Decoder] = (
    lambda value, parts: parts.append(b"\x01" if value else b"\x00"),
    _decode_bool,
)
_STR: tuple[Encoder, Decoder] = (
    lambda value, parts: _encode_bytes(value.encode(), parts),
    _decode_str,
)
_BYTES: tuple[Encoder, Decoder] = (_encode_bytes, _decode_bytes)
