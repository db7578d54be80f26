"""How far a query is behind one of its sources: rows and seconds between its position and the end.

Bounded: at most LAG_BYTES are looked at, so that a query that is far behind is not slowed further.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.errors import Trimmed
from penstock.ids import Lsn
from penstock.limits import MIB
from penstock.log.client.client import AsyncLog
from penstock.log.records import Kind
from penstock.stream.registration import stream_tag

LAG_BYTES: Final = 1 * MIB


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a source's readers are behind its end."""

    records: int
    seconds: float
    #: The records were counted up to a bound; there are more.
    is_lower_bound: bool = False


async def measure_lag(log: AsyncLog, stream: str, position: int, *, now_ms: int) -> Lag:
    """Rows of data entries at or after `position`, and how old the oldest of them is now."""
    try:
        return await _measure(log, stream, position, now_ms)
    except Trimmed:  # the position was reported a moment ago, and others trim
        return Lag(0, 0.0)


async def _measure(log: AsyncLog, stream: str, position: int, now_ms: int) -> Lag:
    bounds = await log.bounds()
    records, size = 0, 0
    oldest_ms: int | None = None
    if position < bounds.trim_point or position >= bounds.tail:
        return Lag(0, 0.0)
    async with log.tail([stream_tag(stream)], start=Lsn(position), end=bounds.tail) as reader:
        async for batch in reader:
            for entry in batch.entries:
                if entry.kind in (Kind.DATA, Kind.STAGED):
                    records += entry.rows
                    size += len(entry.payload)
                    oldest_ms = entry.time_ms if oldest_ms is None else oldest_ms
            if size > LAG_BYTES:
                return Lag(records, _age(oldest_ms, now_ms), is_lower_bound=True)
    return Lag(records, _age(oldest_ms, now_ms))


def _age(time_ms: int | None, now_ms: int) -> float:
    return 0.0 if time_ms is None else max(0.0, (now_ms - time_ms) / 1000)
