"""The interface of a log; one machine and the cluster implement it, one conformance suite tests it.

Positions, drawn:

      trimmed            readable              being written
    ├─────────────┤├──────────────────────┤├─ ─ ─ ─ ─ ─ ─ ─ ─
    0             ▲                        ▲
                  trim_point               tail = first LSN that is not durable

Edges: an empty log has trim_point == tail == 0. A read at the tail waits (tail) or is empty (read).
A read below the trim point raises Trimmed. A subscription may start above the tail: it waits for
it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.ids import Lsn
from penstock.log.records import Appended, Entry, Flush, Guard, NewEntry, SetKey, Value


@dataclass(frozen=True, slots=True)
class Bounds:
    """What can be read now: [trim_point, tail)."""

    trim_point: Lsn
    tail: Lsn


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Entries in LSN order; all of the reader's entries below `looked_up_to` have now been seen.

    `entries` may be empty: the batch then only says that there was nothing.
    """

    entries: list[Entry]
    looked_up_to: Lsn


class Appender(Protocol):
    """One producer's appends, in order, each once however often it is retried."""

    @property
    def producer(self) -> str: ...

    @property
    def instance(self) -> int: ...

    @property
    def next_seq(self) -> int:
        """Seq of the next entry; entries of this producer so far, over all its instances."""

    async def append(
        self,
        entries: Sequence[NewEntry],
        *,
        guards: Sequence[Guard] = (),
        sets: Sequence[SetKey] = (),
        flush: Flush = ...,
    ) -> Appended:
        """Append a group atomically. Returns when it is durable and visible.

        Raises GuardFailed, Fenced, SeqGap, TooLarge, BadRequest: never visible. Unknown: see its
        class.
        """

    async def close(self) -> None: ...


class Log(Protocol):
    """A log as a client sees it."""

    async def bounds(self) -> Bounds: ...

    async def appender(self, producer: str | None = None) -> Appender:
        """Open a producer: fences all its older instances. None: a new one, forgotten on close."""

    async def append(
        self,
        entries: Sequence[NewEntry],
        *,
        guards: Sequence[Guard] = (),
        sets: Sequence[SetKey] = (),
        flush: Flush = ...,
    ) -> Appended:
        """Append through this client's own producer."""

    def tail(
        self,
        tags: Sequence[str] | None = None,
        *,
        start: int,
        end: int | None = None,
    ) -> AsyncIterator[ReadBatch]:
        """Follow entries with any of the tags (None: all) from `start`, for ever or to `end`."""

    async def read(
        self, tags: Sequence[str] | None = None, *, start: int = 0, end: int | None = None
    ) -> list[Entry]:
        """The entries in [start, end) now; end None means the tail now."""

    async def read_last(self, tag: str, *, end: int | None = None) -> Entry | None:
        """The newest entry with the tag (below `end`)."""

    async def find_time(self, time_ms: int) -> Lsn:
        """First LSN appended at or after the time; the tail if all is older."""

    async def trim(self, lsn: int) -> Lsn:
        """Give up everything below `lsn`; returns the trim point, which never goes back."""

    async def get(self, key: str) -> Value | None: ...

    async def list_metadata(self, prefix: str = "") -> dict[str, Value]: ...

    async def compare_and_set(
        self, key: str, *, expected: bytes | None, value: bytes | None
    ) -> Lsn:
        """Set the key if it holds `expected` (None: absent); raises GuardFailed otherwise."""

    def watch(self, key: str, *, start: int) -> AsyncIterator[Value | None]:
        """Every value that the key is given from LSN `start` on, in order; None is a removal."""

    async def close(self) -> None: ...
