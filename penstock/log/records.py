"""What a log is made of: entries, their kinds, and what is asked of an append.

Owns the value types that cross every seam of the log; knows no bytes (group_format.py) and no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from penstock.errors import BadRequest, TooLarge
from penstock.ids import Lsn
from penstock.limits import (
    FLUSH_MS_MAX,
    KEY_BYTES_MAX,
    POSITION_MAX,
    TAG_BYTES_MAX,
    VALUE_BYTES_MAX,
)


class Kind(IntEnum):
    """What an entry is for. The numbers are on disk: never change or reuse one."""

    DATA = 1
    MARKER = 2
    CHANGE = 3
    CONTROL = 4
    META = 5
    #: Data that counts once a marker names it (protocol/committed.py).
    STAGED = 6


class Entry(NamedTuple):
    """One entry as a reader sees it.

    A NamedTuple, not a frozen dataclass: readers make one per entry, and this is four times
    cheaper.
    """

    lsn: Lsn
    kind: Kind
    tags: tuple[str, ...]
    producer: str
    instance: int
    seq: int
    time_ms: int
    rows: int
    payload: bytes


class NewEntry(NamedTuple):
    """One entry as a writer gives it; the rest is added when it is ordered."""

    payload: bytes
    tags: tuple[str, ...] = ()
    kind: Kind = Kind.DATA
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Guard:
    """The group is ordered only if metadata `key` holds `expected`; None means: is absent."""

    key: str
    expected: bytes | None


@dataclass(frozen=True, slots=True)
class SetKey:
    """Give metadata `key` a new value, in the same step as the group; None removes it."""

    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Appended:
    """A group is durable and visible at LSNs [first_lsn, first_lsn + count)."""

    first_lsn: Lsn
    count: int
    #: True if an earlier attempt had already appended it (same producer, same first seq).
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Value:
    """A metadata value and the LSN of the entry that set it."""

    data: bytes
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class Flush:
    """When a group is made durable; it is fsynced before it is acknowledged in either case.

    `delay_ms == 0`: as soon as the previous fsync has returned (lowest latency). Above 0: the group
    may wait that long for others to share one fsync (DistributedLog II-D, periodic flush).
    """

    delay_ms: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.delay_ms <= FLUSH_MS_MAX:
            raise BadRequest(f"flush delay of {self.delay_ms} ms: 0 to {FLUSH_MS_MAX} allowed")


IMMEDIATE = Flush(0)

#: Tags of metadata entries; `watch(key)` is a tail of this tag.
META_TAG_PREFIX = "m/"


def meta_tag(key: str) -> str:
    return META_TAG_PREFIX + key


def check_tag(tag: str) -> None:
    """Tags are 1 to 256 bytes of UTF-8 without control characters: they are shown to people."""
    size = len(tag.encode("utf-8", "surrogatepass"))
    if not 0 < size <= TAG_BYTES_MAX:
        raise TooLarge(f"tag of {size} bytes: a tag has 1 to {TAG_BYTES_MAX}")
    if not tag.isprintable():
        raise BadRequest(f"tag {tag!r} holds a character that cannot be printed")


def check_position(position: int) -> None:
    """An LSN or a time that a caller gives, before it is put into a message."""
    if not 0 <= position <= POSITION_MAX:
        raise BadRequest(f"{position} is no LSN or time: 0 to {POSITION_MAX} allowed")


def check_key(key: str) -> None:
    size = len(key.encode("utf-8", "surrogatepass"))
    if not 0 < size <= KEY_BYTES_MAX:
        raise TooLarge(f"metadata key of {size} bytes: a key has 1 to {KEY_BYTES_MAX}")
    if not key.isprintable():
        raise BadRequest(f"metadata key {key!r} holds a character that cannot be printed")


def check_sets(sets: Sequence[SetKey]) -> None:
    if len({change.key for change in sets}) != len(sets):
        raise BadRequest("a metadata key is set twice in one group")
    for change in sets:
        check_key(change.key)
        if change.value is not None and len(change.value) > VALUE_BYTES_MAX:
            raise TooLarge(
                f"value of metadata key {change.key} has {len(change.value)} bytes: "
                f"the limit is {VALUE_BYTES_MAX}"
            )
