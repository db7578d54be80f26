"""What of a log may be trimmed: below everything that any query may still read.

Owns who is asked (I15): all tasks of all registered queries, by their last markers; of what
trim_rule.py makes of them, the smallest counts.
"""

from __future__ import annotations

import logging

from penstock.ids import Lsn
from penstock.log.client.client import AsyncLog
from penstock.protocol.markers import Marker, decode_marker
from penstock.protocol.names import QUERY_PREFIX, TaskId
from penstock.runtime.registry import RegisteredQuery, decode_query
from penstock.runtime.trim_rule import below_named, needed_from

logger = logging.getLogger(__name__)


async def find_trim_point(log: AsyncLog) -> Lsn:
    """Nothing below it is needed by any query; the trim point of now without queries."""
    bounds = await log.bounds()
    needed: list[Lsn] = []
    tasks: list[TaskId] = []
    for key, value in (await log.list_metadata(QUERY_PREFIX)).items():
        query = decode_query(key.removeprefix(QUERY_PREFIX), value.data)
        if query.protocol == "aligned":
            # trim_rule.below_named does not hold for it.
            logger.warning(
                "nothing is trimmed: query=%s commits by aligned checkpoints", query.name
            )
            return bounds.trim_point
        for stage, count in enumerate(query.tasks):
            for index in range(count):
                tasks.append(TaskId(query.name, query.version, stage, index))
                needed.append(await _needed_by(log, query, tasks[-1]))
    point = min(needed, default=bounds.trim_point)
    while point > bounds.trim_point:
        markers = [one for task in tasks for one in await _first_markers(log, task, point)]
        lower = min([point, *(below_named(point, marker) for marker in markers)])
        if lower == point:
            break
        point = lower
    return point


async def _first_markers(log: AsyncLog, task: TaskId, start: Lsn) -> list[Marker]:
    """Of the task's first commit at or after `start`: one, or its commit records."""
    tail = (await log.bounds()).tail
    found: list[Marker] = []
    tags = [task.marker_tag, task.commit_record_tag]
    async with log.tail(tags, start=start, end=tail) as reader:
        async for batch in reader:
            for entry in batch.entries:
                marker = decode_marker(entry.payload)
                if found and marker.number != found[0].number:
                    return found
                found.append(marker)
    return found


async def _needed_by(log: AsyncLog, query: RegisteredQuery, task: TaskId) -> Lsn:
    last = await log.read_last(task.marker_tag)
    marker = None if last is None else decode_marker(last.payload)
    return needed_from(marker, Lsn(min(query.starts.values(), default=0)))


async def trim_consumed(log: AsyncLog) -> Lsn:
    """Trim what nobody needs; returns the trim point."""
    bounds = await log.bounds()
    point = await find_trim_point(log)
    return await log.trim(point) if point > bounds.trim_point else bounds.trim_point
