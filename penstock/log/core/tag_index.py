"""Which entries carry a tag, and where groups start: the index of one segment, open or sealed.

`OpenIndex` grows with the log in memory; `SealedIndex` reads the bytes of an index file. Both
answer the same questions. An index is a cache (reliability rule 6): rebuilt from records whenever
it is in doubt.
Law (I3): entries(tags, start, end) = the LSNs in [start, end) whose entry carries any of the tags.

The producer of a group is indexed like a tag that no client can use, with the group's first LSN, so
that an old retry finds its group whatever its age.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from penstock.errors import BadFormat, ChecksumMismatch
from penstock.ids import Lsn
from penstock.limits import POSITION_MAX
from penstock.log.group_format import CLAIM, RETIRE, Body, Buffer

Lsns = npt.NDArray[np.int64]


def producer_tag(producer: str) -> str:
    """The hidden tag of a producer's groups; the NUL keeps it apart from every legal tag."""
    return "\x00p/" + producer


class GroupSpan(NamedTuple):
    """Where a group's record lies in its segment file: bytes [start, end)."""

    first_lsn: Lsn
    start: int
    end: int


class TagIndex(Protocol):
    """The questions that a reader asks of a segment."""

    def entries(self, tags: Iterable[str], start: int, end: int, limit: int) -> Lsns:
        """The first `limit` LSNs in [start, end) with any of the tags, each once, in order."""

    def last(self, tag: str, end: int) -> Lsn | None:
        """The newest LSN below `end` with the tag."""

    def span(self, lsn: int) -> GroupSpan:
        """The group that holds `lsn`."""

    def starts(self, lsns: Lsns) -> tuple[list[int], list[int]]:
        """For each of these LSNs, first LSN and start position of the group that holds it."""

    def at_time(self, time_ms: int) -> Lsn | None:
        """First LSN of the first group appended at or after `time_ms`; None: all are older."""


class OpenIndex:
    """Index of the open segment: one compact array per tag, grown as groups become durable."""

    def __init__(self, base_lsn: int) -> None:
        self.base_lsn = base_lsn
        #: Per tag, LSN minus base, ascending.
        self._postings: dict[str, array[int]] = {}
        #: Per group: first LSN minus base, start position, append time.
        self._lsns = array("I")
        self._starts = array("I")
        self._times = array("Q")
        self._end = 0

    def add(self, body: Body, *, first_lsn: int, time_ms: int, start: int, end: int) -> None:
        """Take in the next durable group, whose record lies at [start, end) of the file."""
        delta = first_lsn - self.base_lsn
        self._lsns.append(delta)
        self._starts.append(start)
        self._times.append(time_ms)
        self._end = end
        postings = self._postings
        if not body.flags & (CLAIM | RETIRE):
            postings.setdefault(producer_tag(body.producer), array("I")).append(delta)
        for tag, indexes in body.by_tag().items():
            found = postings.get(tag)
            if found is None:
                found = postings[tag] = array("I")
            found.extend([delta + index for index in indexes])

    def entries(self, tags: Iterable[str], start: int, end: int, limit: int) -> Lsns:
        low, high = max(start - self.base_lsn, 0), max(end - self.base_lsn, 0)
        found = []
        for tag in tags:
            deltas = self._postings.get(tag)
            if deltas is not None:
                left = bisect_left(deltas, low)
                right = bisect_left(deltas, high, left)
                found.append(np.array(deltas[left : min(right, left + limit)], np.int64))
        return _merge(found, limit) + self.base_lsn

    def last(self, tag: str, end: int) -> Lsn | None:
        deltas = self._postings.get(tag)
        if deltas is None:
            return None
        at = bisect_left(deltas, max(end - self.base_lsn, 0))
        return Lsn(deltas[at - 1] + self.base_lsn) if at else None

    def span(self, lsn: int) -> GroupSpan:
        at = bisect_right(self._lsns, lsn - self.base_lsn) - 1
        end = self._starts[at + 1] if at + 1 < len(self._starts) else self._end
        return GroupSpan(Lsn(self._lsns[at] + self.base_lsn), self._starts[at], end)

    def starts(self, lsns: Lsns) -> tuple[list[int], list[int]]:
        base = self.base_lsn
        places = [bisect_right(self._lsns, lsn - base) - 1 for lsn in lsns.tolist()]
        return [self._lsns[at] + base for at in places], [self._starts[at] for at in places]

    def at_time(self, time_ms: int) -> Lsn | None:
        at = bisect_left(self._times, time_ms)
        return Lsn(self._lsns[at] + self.base_lsn) if at < len(self._lsns) else None

    def encode(self, *, log_mark: int, segment: int, end_lsn: int) -> bytes:
        """The bytes of the index file (docs/formats.md, "Index file")."""
        tags = sorted((tag_hash(tag), tag) for tag in self._postings)
        texts = [tag.encode() for _, tag in tags]
        counts = [len(self._postings[tag]) for _, tag in tags]
        base_ms = self._times[0] if self._times else 0
        # Clamped, not wrapped, should a clock jump further than a segment may last.
        times = np.minimum(np.array(self._times, "<u8") - np.uint64(base_ms), 2**32 - 1)
        content = b"".join(
            (
                np.array(self._lsns, "<u4").tobytes(),
                np.array(self._starts, "<u4").tobytes(),
                times.astype("<u4").tobytes(),
                np.array([hashed for hashed, _ in tags], "<u8").tobytes(),
                _ends(counts),
                _ends([len(text) for text in texts]),
                *(np.array(self._postings[tag], "<u4").tobytes() for _, tag in tags),
                *texts,
            )
        )
        header = _HEADER.pack(
            INDEX_MAGIC,
            0,
            _HEADER.size + len(content),
            log_mark,
            segment,
            self.base_lsn,
            end_lsn,
            base_ms,
            self._end,
            len(self._lsns),
            len(tags),
            sum(counts),
        )
        crc = crc32c(content, crc32c(header[8:]))
        return header[:4] + crc.to_bytes(4, "little") + header[8:] + content


_HEADER = struct.Struct("<IIQQQQQQQIII4x")
INDEX_MAGIC = 0x31584950  # "PIX1"
assert _HEADER.size == 80


class SealedIndex:
    """Index of a sealed segment, straight over the bytes of its file."""

    base_lsn: int
    end_lsn: int

    def __init__(self, data: Buffer, *, log_mark: int, segment: int) -> None:
        if len(data) < _HEADER.size:
            raise BadFormat("index file is cut")
        (
            magic,
            crc,
            size,
            mark,
            self.segment,
            self.base_lsn,
            self.end_lsn,
            self._base_ms,
            self._end,
            groups,
            tags,
            postings,
        ) = _HEADER.unpack_from(data)
        if magic != INDEX_MAGIC or size != len(data):
            raise BadFormat("index file has a wrong magic number or length")
        if crc32c(memoryview(data)[8:]) != crc:
            raise ChecksumMismatch("index file is damaged")
        if mark != log_mark or self.segment != segment:
            raise BadFormat(f"index file belongs to segment {self.segment} or to another log")
        if not self.base_lsn <= self.end_lsn <= POSITION_MAX:
            raise BadFormat("index file has LSNs that cannot be")
        at = _HEADER.size
        if at + 12 * groups + 16 * tags + 4 * postings > size:
            raise BadFormat("index file has counts beyond its length")

        def take(dtype: str, count: int) -> npt.NDArray[np.uint32]:
            nonlocal at
            values = np.frombuffer(data, dtype, count, at)
            at += values.nbytes
            return values

        self._lsns = take("<u4", groups)
        self._starts = take("<u4", groups)
        self._times = take("<u4", groups)
        self._hashes = take("<u8", tags)
        self._posting_ends = take("<u4", tags)
        self._text_ends = take("<u4", tags)
        self._postings = take("<u4", postings)
        self._texts = memoryview(data)[at:]
        self.bytes = len(data)
        ends = (self._posting_ends[-1], self._text_ends[-1]) if tags else (0, 0)
        if ends != (postings, len(self._texts)):
            raise BadFormat("index file has counts that do not add up")

    def _deltas(self, tag: str) -> npt.NDArray[np.uint32] | None:
        hashed = np.uint64(tag_hash(tag))
        wanted = tag.encode()
        at = int(self._hashes.searchsorted(hashed))
        while at < len(self._hashes) and self._hashes[at] == hashed:
            start = int(self._text_ends[at - 1]) if at else 0
            if self._texts[start : int(self._text_ends[at])] == wanted:
                first = int(self._posting_ends[at - 1]) if at else 0
                return self._postings[first : int(self._posting_ends[at])]
            at += 1
        return None

    def entries(self, tags: Iterable[str], start: int, end: int, limit: int) -> Lsns:
        low, high = max(start - self.base_lsn, 0), max(end - self.base_lsn, 0)
        found = []
        for tag in tags:
            deltas = self._deltas(tag)
            if deltas is not None:
                left, right = deltas.searchsorted((low, high))
                found.append(deltas[left : min(right, left + limit)].astype(np.int64))
        return _merge(found, limit) + self.base_lsn

    def last(self, tag: str, end: int) -> Lsn | None:
        deltas = self._deltas(tag)
        if deltas is None:
            return None
        at = int(deltas.searchsorted(max(end - self.base_lsn, 0)))
        return Lsn(int(deltas[at - 1]) + self.base_lsn) if at else None

    def span(self, lsn: int) -> GroupSpan:
        at = int(self._lsns.searchsorted(lsn - self.base_lsn, "right")) - 1
        end = int(self._starts[at + 1]) if at + 1 < len(self._starts) else self._end
        return GroupSpan(Lsn(int(self._lsns[at]) + self.base_lsn), int(self._starts[at]), end)

    def starts(self, lsns: Lsns) -> tuple[list[int], list[int]]:
        places = self._lsns.searchsorted(lsns - self.base_lsn, "right") - 1
        firsts = self._lsns[places].astype(np.int64) + self.base_lsn
        return firsts.tolist(), self._starts[places].tolist()

    def at_time(self, time_ms: int) -> Lsn | None:
        at = int(self._times.searchsorted(max(time_ms - self._base_ms, 0)))
        return Lsn(int(self._lsns[at]) + self.base_lsn) if at < len(self._lsns) else None


@lru_cache(maxsize=4096)  # readers ask for the same tags, piece by piece and segment by segment
def tag_hash(tag: str) -> int:
    return int.from_bytes(hashlib.blake2b(tag.encode(), digest_size=8).digest(), "little")


def _ends(sizes: list[int]) -> bytes:
    return np.cumsum(np.array(sizes, np.uint64)).astype("<u4").tobytes()


def _merge(found: list[Lsns], limit: int) -> Lsns:
    if not found:
        return np.empty(0, np.int64)
    if len(found) == 1:
        return found[0]
    merged: Lsns = np.unique(np.concatenate(found)).astype(np.int64, copy=False)
    return merged[:limit]
