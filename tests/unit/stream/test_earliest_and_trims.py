"""Where what is left of a stream begins, of a log that is trimmed while we look."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from penstock.errors import Trimmed
from penstock.ids import Lsn
from penstock.log.api import Bounds, ReadBatch
from penstock.log.client.client import AsyncLog
from penstock.log.records import Entry, Kind
from penstock.protocol.markers import Marker, Range, encode_marker
from penstock.stream.earliest import Earliest, choose_earliest, find_earliest

TAIL = 1000
#: Every tenth entry is a marker that names the eight before the one before it.
MARKERS = {Lsn(lsn): (Range(Lsn(lsn - 9), 8),) for lsn in range(9, TAIL, 10)}


class TrimmedLog:
    """A long log: a look at its markers takes longer than it takes until the next trim."""

    def __init__(self, step: int, *, grows: bool = False, breaks: bool = False) -> None:
        self.point, self.end, self.read = 1, TAIL, 0
        self._step, self._grows, self._breaks = step, grows, breaks

    async def bounds(self) -> Bounds:
        return Bounds(Lsn(self.point), Lsn(self.end))

    @asynccontextmanager
    async def tail(self, tags: Sequence[str], *, start: int, end: int) -> AsyncIterator[Any]:
        yield self._batches(start, end)
        self.end += self._grows

    async def _batches(self, start: int, end: int) -> AsyncIterator[ReadBatch]:
        """A hundred entries at a time, and a trim between any two."""
        for first in range(start, end, 100):
            if self._breaks and first < self.point:
                raise Trimmed("it is gone")
            upto = min(first + 100, end)
            self.read += upto - first
            found = [_entry(lsn, ranges) for lsn, ranges in MARKERS.items() if first <= lsn < upto]
            yield ReadBatch(found, Lsn(upto))
            self.point += self._step


def _entry(lsn: Lsn, ranges: tuple[Range, ...]) -> Entry:
    marker = Marker("spark/a", 0, 0, ranges[0].first_lsn, 0, ranges=ranges)
    return Entry(lsn, Kind.MARKER, (), "p", 1, 0, 0, 0, encode_marker(marker))


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("step", [0, 7, 60])
def test_earliest_ends_however_often_the_log_is_trimmed(
    step: int, grows: bool, breaks: bool
) -> None:
    log = TrimmedLog(step, grows=grows, breaks=breaks)

    async def work() -> Earliest:
        async with asyncio.timeout(60):
            return await find_earliest(cast(AsyncLog, log), ["s"], Lsn(0))

    found = asyncio.run(work())

    assert found == choose_earliest(MARKERS, found.trim_point, found.trim_point)
    assert log.read <= log.end  # nothing is read twice
    assert found.trim_point <= log.point


def test_earliest_is_after_the_last_marker_that_names_what_is_gone() -> None:
    assert choose_earliest(MARKERS, Lsn(100), Lsn(100)) == Earliest(Lsn(100), Lsn(100))
    assert choose_earliest(MARKERS, Lsn(104), Lsn(104)) == Earliest(Lsn(110), Lsn(104), 1, 4)
    assert choose_earliest(MARKERS, Lsn(109), Lsn(109)) == Earliest(Lsn(110), Lsn(109), 1, 8)
    assert choose_earliest(MARKERS, Lsn(300), Lsn(104)) == Earliest(Lsn(300), Lsn(104))
