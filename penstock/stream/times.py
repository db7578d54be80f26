"""Moments of the log, which are whole milliseconds since 1970, and Python's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def to_time_ms(time: datetime) -> int:
    """Milliseconds since 1970, rounded up: append times are whole ones, and none before counts."""
    aware = time if time.utcoffset() is not None else time.replace(tzinfo=UTC)
    return max(-((_EPOCH - aware) // _MILLISECOND), 0)


def from_time_ms(time_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=time_ms)


def time_text(time_ms: int) -> str:
    """A moment, as people and programs read it and `parse_position` takes it."""
    return from_time_ms(time_ms).strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}Z"
