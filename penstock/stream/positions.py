"""Positions as users say them: earliest, latest, an LSN or a time; and the LSN that they mean.

Law: ranges are [start, end) whatever way their ends are said. A time means the first entry appended
at or after it; a time that has not come yet means the tail now.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from penstock.errors import BadRequest
from penstock.ids import Lsn
from penstock.log.client.blocking import BlockingLog
from penstock.log.core.tails import FOREVER

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

#: "earliest", "latest", an LSN, or a datetime (UTC if it has no zone).
Position = str | int | datetime

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def resolve_position(client: BlockingLog, position: Position) -> Lsn:
    """The LSN that the position means now. Raises BadRequest for anything that is no position."""
    if position == EARLIEST:
        return client.bounds().trim_point
    if position == LATEST:
        return client.bounds().tail
    if isinstance(position, datetime):
        return client.find_time(to_time_ms(position))
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


def to_time_ms(time: datetime) -> int:
    """Milliseconds since 1970, rounded up: append times are whole ones, and none before counts."""
    aware = time if time.utcoffset() is not None else time.replace(tzinfo=UTC)
    return max(-((_EPOCH - aware) // _MILLISECOND), 0)


def from_time_ms(time_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=time_ms)


def _no_position(given: object) -> BadRequest:
    return BadRequest(
        f"{given!r} is no position: use earliest, latest, an LSN (0 or more) or a time "
        "like 2026-11-15T08:00:00Z"
    )
