"""What a reader needs of a log and of a segment, wherever their bytes lie: files or nodes.

reader.py works on these interfaces only. Law: `durable_lsn` bounds every read; a view shows one
segment as it was when it was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.ids import Lsn, SegmentId
from penstock.log.core.tag_index import TagIndex


class SegmentPlace(Protocol):
    """Which LSNs a segment holds; the last three mean something once it is sealed."""

    @property
    def id(self) -> SegmentId: ...

    @property
    def base_lsn(self) -> Lsn: ...

    @property
    def sealed(self) -> bool: ...

    @property
    def end_lsn(self) -> Lsn: ...

    @property
    def last_ms(self) -> int: ...


class NotHere(Exception):
    """A read needs what must be fetched first; what it found before that may be handed out."""


class Bytes(Protocol):
    """The records of a segment, one after the other. May raise NotHere."""

    def read_at(self, position: int, size: int) -> bytes:
        """At most `size` bytes; fewer only at the end, or where a piece of it ends."""


@dataclass(frozen=True, slots=True)
class SegmentView:
    """What a reader needs of one segment: where it is, and its index."""

    info: SegmentPlace
    end_lsn: Lsn
    file: Bytes
    index: TagIndex
    log_mark: int


class ReadableLog(Protocol):
    """What can be read of a log now: [trim_point, durable_lsn)."""

    @property
    def durable_lsn(self) -> Lsn: ...

    @property
    def trim_point(self) -> Lsn: ...

    @property
    def segments(self) -> Sequence[SegmentPlace]:
        """In order."""

    def segment_at(self, lsn: int) -> SegmentView:
        """The segment that holds `lsn`, which lies in [trim point, tail)."""
