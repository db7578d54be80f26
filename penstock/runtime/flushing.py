"""What a coordinator puts among the input of tasks, and the markers that it waits for.

Owns two requests. A flush asks tasks to commit all that they have by then. A cut asks them to end
there: each commits at exactly that position, so that no row is on its way from one to another
(succession.py). Stages are asked in turn, those that read sources first. Law: both wait for
whoever runs the tasks, however often they get another place; who waits says when to give up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.log.client.appender import AsyncAppender
from penstock.log.client.client import AsyncLog
from penstock.log.records import Kind, NewEntry
from penstock.protocol.markers import decode_marker
from penstock.protocol.names import TaskId, flush_tag
from penstock.runtime.layout import cut_payload
from penstock.runtime.spec import QuerySpec
from penstock.runtime.succession import Last, levels


async def flush_tasks(log: AsyncLog, spec: QuerySpec) -> None:
    """Returns when everything that was in the sources is processed, committed, visible."""
    for stage in [id for id in spec.running_stages for _ in range(_turns(spec, id))]:
        tag = flush_tag(spec.name, spec.version, stage)
        asked = await log.append([NewEntry(b"", (tag,), Kind.CONTROL)])
        waiting = set(spec.tasks_of(stage))
        tags = [task.marker_tag for task in sorted(waiting)]
        async with log.tail(tags, start=asked.first_lsn) as reader:
            while waiting:
                batch = await reader.__anext__()
                for entry in batch.entries:
                    marker = decode_marker(entry.payload)
                    if marker.position > asked.first_lsn:
                        waiting -= {task for task in waiting if str(task) == marker.task}


async def cut_tasks(
    log: AsyncLog,
    voice: AsyncAppender,
    spec: QuerySpec,
    look: Callable[[], Awaitable[None]],
    look_seconds: float,
) -> dict[TaskId, Last]:
    """Let all tasks end where they are; `look` is asked again and again while they have not."""
    lasts = dict[TaskId, Last]()
    cut = (voice.instance, spec.layout.version)
    for stages in levels(spec):
        tags = tuple(flush_tag(spec.name, spec.version, stage) for stage in stages)
        cutting = NewEntry(cut_payload(spec.layout.version), tags, Kind.CONTROL)
        asked = await voice.append([cutting])
        tasks = {str(task): task for stage in stages for task in spec.tasks_of(stage)}
        marker_tags = [task.marker_tag for task in tasks.values()]
        async with log.tail(marker_tags, start=asked.first_lsn) as reader:
            while not lasts.keys() >= set(tasks.values()):
                reading = asyncio.ensure_future(reader.__anext__())
                try:
                    while not (await asyncio.wait({reading}, timeout=look_seconds))[0]:
                        await look()
                finally:
                    reading.cancel()
                for entry in reading.result().entries:
                    marker = decode_marker(entry.payload)
                    if marker.cut == cut:
                        lasts[tasks[marker.task]] = Last(entry.lsn, marker)
    return lasts


def _turns(spec: QuerySpec, stage: int) -> int:
    """How often a stage is asked to commit, until all that it knows by then has come of it.

    Where tasks share a source, the first commits tell its time, and the second that all have looked
    beyond those; whoever hears that knows the time: the next stage, or these tasks themselves.
    """
    if spec.shared_within(stage):
        return 3
    return 2 if spec.tells_looked(stage) else 1
