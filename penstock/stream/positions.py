"""Positions as users say them: earliest, latest, an LSN or a time; and the LSN that they mean.

Law: ranges are [start, end) whatever way their ends are said. A time means the first entry appended
at or after it; a time that has not come yet means the tail now. "earliest" in streams means where
what is left of them can be read from (earliest.py); without streams it is the log's trim point.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from penstock.errors import BadRequest
from penstock.ids import Lsn
from penstock.log.core.tails import FOREVER
from penstock.stream.earliest import find_earliest, tell
from penstock.stream.times import to_time_ms

if TYPE_CHECKING:
    from penstock.log.client.blocking import BlockingLog
    from penstock.log.client.client import AsyncLog

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

#: "earliest", "latest", an LSN, or a datetime (UTC if it has no zone).
Position = str | int | datetime


def resolve_position(
    client: BlockingLog,
    position: Position,
    streams: Sequence[str] = (),
    *,
    beginning: int = 0,
) -> Lsn:
    """The LSN that the position means now. Raises BadRequest for anything that is no position.

    With streams, which have nothing below `beginning`, "earliest" also says what is passed over.
    """
    return client.run(lambda log: find_position(log, position, streams, beginning=beginning))


async def find_position(
    log: AsyncLog, position: Position, streams: Sequence[str] = (), *, beginning: int = 0
) -> Lsn:
    """resolve_position for who has a loop."""
    if position == EARLIEST:
        if not streams:
            return (await log.bounds()).trim_point
        found = await find_earliest(log, streams, Lsn(beginning))
        tell(found, streams)
        return found.lsn
    if position == LATEST:
        return (await log.bounds()).tail
    if isinstance(position, datetime):
        return await log.find_time(to_time_ms(position))
    if isinstance(position, int) and not isinstance(position, bool) and 0 <= position <= FOREVER:
        return Lsn(position)
    raise _no_position(position)


def parse_position(text: str) -> Position:
    """A position as it is typed: earliest, latest, digits for an LSN, or an ISO time."""
    if text in (EARLIEST, LATEST):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise _no_position(text) from None


def _no_position(given: object) -> BadRequest:
    return BadRequest(
        f"{given!r} is no position: use earliest, latest, an LSN (0 or more) or a time "
        "like 2026-11-15T08:00:00Z"
    )
