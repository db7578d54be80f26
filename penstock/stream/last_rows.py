"""Where the last rows of a stream, or of some of its lanes, count.

The last entry under a tag need not be it: a staged entry counts where a marker names it, if one
does, and a marker may name nothing of this lane, or nothing at all. So it is looked for from the
end: the last entry first, then stretches that grow. Law: it is what a reader of these tags is given
last, of all that was durable when it was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import Trimmed
from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.protocol.committed import is_named
from penstock.protocol.markers import Range, decode_marker

if TYPE_CHECKING:
    from penstock.log.client.client import AsyncLog

#: LSNs that are looked at at once: at first, how many times as many then, and at most.
_FIRST: Final = 64
_GROWTH: Final = 4
_MOST: Final = 1 << 16


#: An entry, and what it names.
_Seen = tuple[Entry, Sequence[Range]]


class LastRows(NamedTuple):
    """Rows that count at one place."""

    lsn: Lsn
    rows: int


async def find_last_rows(
    log: AsyncLog, tags: Sequence[str], *, beginning: int = 0
) -> LastRows | None:
    """None: nothing that is left counts at or after `beginning`."""
    end: int | None = None
    size = _FIRST
    while True:
        lasts = [await log.read_last(tag, end=end) for tag in tags]
        last = max((each for each in lasts if each is not None), key=_lsn, default=None)
        if last is None or last.lsn < beginning:
            return None
        if last.kind is Kind.DATA:
            return LastRows(last.lsn, last.rows)
        start = max(beginning, last.lsn + 1 - size)
        try:
            seen = await _see(log, tags, start, last.lsn + 1)
        except Trimmed:  # meanwhile
            beginning = max(beginning, (await log.bounds()).trim_point)
            continue
        for entry, ranges in reversed(seen):
            try:
                rows = entry.rows if entry.kind is Kind.DATA else await _count(log, tags, ranges)
            except Trimmed:
                return None  # what is left of the stream begins behind it (earliest.py)
            if rows:
                return LastRows(entry.lsn, rows)
        end, size = start, min(size * _GROWTH, _MOST)


async def _see(log: AsyncLog, tags: Sequence[str], start: int, end: int) -> list[_Seen]:
    """What may be the last there, in order: the last data, and markers with what they name."""
    seen: list[_Seen] = []
    async with log.tail(tags, start=start, end=end) as reader:
        async for batch in reader:
            for entry in batch.entries:
                if entry.kind is Kind.DATA:
                    seen = [(entry, ())]
                elif entry.kind is Kind.MARKER:
                    seen.append((entry, decode_marker(entry.payload).ranges))
    return seen


async def _count(log: AsyncLog, tags: Sequence[str], ranges: Sequence[Range]) -> int:
    """Rows of what a marker names, under these tags."""
    rows = 0
    for named in ranges:
        for entry in await log.read(tags, start=named.first_lsn, end=named.end):
            rows += entry.rows if is_named(entry, named) else 0
    return rows


def _lsn(entry: Entry) -> int:
    return entry.lsn
