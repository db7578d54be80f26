"""Bytes and messages that are nearly right. All draws come from the caller's seed."""

from __future__ import annotations

import dataclasses
import random
import struct
from collections.abc import Sequence
from typing import Any, TypeVar

M = TypeVar("M")
#: Where widths end.
_EDGES = (
    0,
    1,
    127,
    128,
    255,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**62,
    2**63,
    2**64 - 1,
)
_WORDS = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f", b"\x80" * 5)


def mutate(draw: random.Random, data: bytes, words: Sequence[bytes] = _WORDS) -> bytes:
    """Some of its bytes set, cut out, doubled, or put in. `words`: what the protocol is made of."""
    out = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(out) + 1)
        match draw.randrange(6):
            case 0 if at < len(out):
                out[at] = draw.randrange(256)
            case 1 if at < len(out):
                out[at] ^= 1 << draw.randrange(8)
            case 2:
                del out[at : at + draw.randint(1, 8)]
            case 3:
                out[at:at] = draw.randbytes(draw.randint(1, 8))
            case 4:
                out[at:at] = out[at : at + draw.randint(1, 40)]
            case _:
                word = draw.choice(words)
                out[at : at + draw.choice((0, len(word)))] = word
    return bytes(out)


def odd_message(draw: random.Random, message: M) -> M:
    """A well-formed message whose fields say strange things."""
    fields = [field.name for field in dataclasses.fields(message)]  # type: ignore[arg-type]
    if not fields:
        return message
    chosen = draw.sample(fields, draw.randint(1, len(fields)))
    changes = {name: odd_value(draw, getattr(message, name)) for name in chosen}
    return dataclasses.replace(message, **changes)  # type: ignore[type-var]


def odd_value(draw: random.Random, value: Any) -> Any:
    """Of the same type."""
    match value:
        case bool():
            return draw.random() < 0.5
        case int():
            return draw.choice((*_EDGES, value + 1, max(value - 1, 0), draw.getrandbits(32)))
        case str():
            return draw.choice(("", value * 2, value + "\0", "\x1b[31m", "é" * 300, value[1:]))
        case bytes():
            return draw.choice((b"", mutate(draw, value or b"x"), draw.randbytes(32), value * 3))
        case tuple() if hasattr(value, "_fields"):
            return type(value)(*(odd_value(draw, each) for each in value))
        case tuple():
            return draw.choice((value[1:], value * 3, (*value, *value[:1])))
    if dataclasses.is_dataclass(value):
        return odd_message(draw, value)
    return value


#: What encoding raises for a value that has no room.
UNFIT = (struct.error, OverflowError, ValueError, TypeError)
