"""Times as reports write them: as Spark does, in UTC. Pure.

Law: every integer can be written. Event time comes from users' rows, and may be before and after
all times that a calendar has.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

#: From the year 1 to the year 9999.
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def is_shown(ms: int) -> bool:
    """Whether it is a time that can be written; the others are before and after all times."""
    return _FIRST_MS <= ms <= _LAST_MS


def time_text(ms: int) -> str:
    """As Spark writes it."""
    moment = _EPOCH + timedelta(milliseconds=min(max(ms, _FIRST_MS), _LAST_MS))
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
