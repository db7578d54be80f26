"""Where a stream that was trimmed begins: after the last commit that has lost rows.

A trim, by hand or by age, may fall between staged rows and the marker that names them. Such a
commit counts where its marker stands, and can never be read whole again.

    staged 3..5    trim point 5    data 7    marker 9 names 3..5    data 11
                   |                                                |
                   what is left of the log                          and of the stream

Law: all that counts at or after the position that is found is whole, and nothing below it could be
added without a commit that is not. It is one position, so that whoever begins there (a tail, a
query, each of its restarts) reads the same; what is passed over, whole or not, is said once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.errors import Trimmed
from penstock.ids import Lsn
from penstock.log.records import Kind
from penstock.protocol.markers import Range, decode_marker
from penstock.protocol.names import naming_tag

if TYPE_CHECKING:
    from penstock.log.client.client import AsyncLog

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Earliest:
    """Where what is left of some streams begins."""

    lsn: Lsn
    trim_point: Lsn
    #: Commits between the two that have lost entries, and how many.
    commits: int = 0
    entries: int = 0


@dataclass(slots=True)
class _Seen:
    """What markers name, by where they stand, and how far was looked."""

    markers: dict[Lsn, tuple[Range, ...]] = field(default_factory=dict)
    looked_up_to: Lsn = Lsn(0)


async def find_earliest(log: AsyncLog, streams: Sequence[str], beginning: Lsn) -> Earliest:
    """Of these streams together; what counts below `beginning` is none of theirs.

    The log may be trimmed meanwhile, again and again: what was seen of it need not be read twice.
    """
    seen = _Seen()
    looked_at: Lsn | None = None
    while True:
        bounds = await log.bounds()
        start = Lsn(max(bounds.trim_point, beginning))
        if not bounds.trim_point or start >= bounds.tail:
            return Earliest(start, bounds.trim_point)
        if bounds.trim_point == looked_at or seen.looked_up_to >= bounds.tail:
            return choose_earliest(seen.markers, start, bounds.trim_point)
        try:
            await _look(log, streams, start, bounds.tail, seen)
            looked_at = bounds.trim_point
        except Trimmed:
            continue


async def _look(log: AsyncLog, streams: Sequence[str], start: Lsn, end: Lsn, seen: _Seen) -> None:
    tags = [naming_tag(stream) for stream in streams]
    async with log.tail(tags, start=max(start, seen.looked_up_to), end=end) as reader:
        async for batch in reader:
            for entry in batch.entries:
                if entry.kind is Kind.MARKER:
                    seen.markers[entry.lsn] = decode_marker(entry.payload).ranges
            seen.looked_up_to = batch.looked_up_to
    seen.looked_up_to = end


def choose_earliest(
    markers: Mapping[Lsn, tuple[Range, ...]], start: Lsn, trim_point: Lsn
) -> Earliest:
    """After the last of these markers, from `start` on, that names what is gone."""
    first, commits, entries = start, 0, 0
    for lsn, ranges in markers.items():
        lost = sum(max(min(named.end, trim_point) - named.first_lsn, 0) for named in ranges)
        if lost and lsn >= start:
            first, commits, entries = Lsn(max(first, lsn + 1)), commits + 1, entries + lost
    return Earliest(first, trim_point, commits, entries)


def tell(found: Earliest, streams: Sequence[str]) -> None:
    """Say what is passed over, if anything is."""
    if found.commits:
        logger.warning(
            'stream=%s "earliest" is LSN %d, not the trim point %d: commits=%d between them have '
            "lost entries=%d to a trim. What else counts there is passed over with them; to read "
            "it, give a start and an end that leave them out",
            ", ".join(streams), found.lsn, found.trim_point, found.commits, found.entries,
        )  # fmt: skip
