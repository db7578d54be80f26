"""The newest report of each query of a log that is ordered here, for `/metrics`.

Owns how they are found: in metadata, and by the tags of their pulses. Laws: a scrape waits for no
more than READ_SECONDS; what cannot be read is counted, and never keeps the rest from being told.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from penstock.errors import PenstockError
from penstock.log.record_format import decode_record
from penstock.log.serving.query_metrics import QUERIES_MAX, QueryReport
from penstock.log.serving.served_log import SequencedLog
from penstock.protocol.names import QUERY_PREFIX, pulse_tag
from penstock.protocol.pulses import PULSES_MAX, judge_state, report_of

logger = logging.getLogger(__name__)

READ_SECONDS = 2.0


@dataclass(slots=True)
class Found:
    """Of all logs that were looked at."""

    reports: list[QueryReport] = field(default_factory=list)
    unreadable: int = 0
    left_out: int = 0


async def find_reports(log: SequencedLog, name: str | None, found: Found) -> None:
    """Add those of one log; `name` is what its queries are told with, where there are others."""
    metadata = log.sequencer.state.metadata
    queries = [key.removeprefix(QUERY_PREFIX) for key in metadata if key.startswith(QUERY_PREFIX)]
    room = max(QUERIES_MAX - len(found.reports), 0)
    found.left_out += max(len(queries) - room, 0)
    now_ms = log.around.wall_ms()
    for query in sorted(queries)[:room]:
        try:
            found.reports.append(await _find(log, name, query, now_ms))
        except (PenstockError, OSError) as error:
            logger.debug("query=%s is not told in metrics: %s", query, error)
            found.unreadable += 1
        await asyncio.sleep(0)  # others are served in between


async def _find(log: SequencedLog, name: str | None, query: str, now_ms: int) -> QueryReport:
    tag, end, pulse_ms = pulse_tag(query), int(log.durable_lsn), None
    for _ in range(PULSES_MAX):
        record = await log.read_last(tag, end)
        if record is None:
            break
        header, group = decode_record(record)
        entry = next(iter(group.entries(header.first_lsn, header.time_ms)))
        pulse_ms = entry.time_ms if pulse_ms is None else pulse_ms
        progress = report_of(bytes(entry.payload))
        if progress is not None:
            state = judge_state(pulse_ms, progress, now_ms)
            return QueryReport(query, state.value, pulse_ms, progress, name)
        end = entry.lsn
    return QueryReport(query, judge_state(pulse_ms, None, now_ms).value, pulse_ms, None, name)


async def find_all_reports(logs: list[tuple[str | None, SequencedLog]]) -> Found:
    """Of all of them, as far as there is time."""
    found = Found()
    try:
        async with asyncio.timeout(READ_SECONDS):
            for name, log in logs:
                await find_reports(log, name, found)
    except TimeoutError:
        found.unreadable += 1
    return found
