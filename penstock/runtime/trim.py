"""What of a log may be trimmed: below everything that any query or delivery may still read.

Owns who is asked (I15): all tasks of all registered queries, by their last markers; of what
trim_rule.py makes of them, the smallest counts; and the images of their results, which need what
came after them (protocol/images.py). All registered deliveries, by their last acks: they
hold back, but where there is no query they cause no trim. Writers of Spark's own engine consume
nothing here, but what they staged is spared: until its marker comes, and as long as that marker is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Final

from penstock.errors import GuardFailed
from penstock.ids import Lsn
from penstock.log.client.client import AsyncLog
from penstock.log.records import Value
from penstock.protocol import deliveries
from penstock.protocol.batch_commit import decode_committed
from penstock.protocol.deliveries import decode_delivered, decode_delivery
from penstock.protocol.images import decode_image, image_key
from penstock.protocol.markers import Marker, decode_marker
from penstock.protocol.names import (
    BATCH_PREFIX,
    BATCH_WRITES_TAG,
    DELIVER_PREFIX,
    DELIVERED_PREFIX,
    QUERY_PREFIX,
    STAGING_PREFIX,
    TaskId,
    batch_writer,
    delivered_key,
    layout_key,
)
from penstock.protocol.reservations import reserved_from
from penstock.protocol.trims import TRIM_KEY, encode_trim, told_trim
from penstock.runtime.commit_protocol import MARKERS, CommitProtocol
from penstock.runtime.layout import Layout, first_layout, read_layout
from penstock.runtime.registry import RegisteredQuery, decode_query
from penstock.runtime.trim_rule import below_named, needed_from

logger = logging.getLogger(__name__)

#: A log that is full takes no append until it is trimmed: then it is trimmed all the same.
TELL_SECONDS: Final = 5.0


async def find_trim_point(log: AsyncLog, protocol: CommitProtocol = MARKERS) -> Lsn:
    """Nothing below it is needed by any query or delivery; the trim point of now without queries.

    If a query commits by neither markers nor this protocol, nothing is known of what it needs.
    """
    protocols = {MARKERS.name: MARKERS, protocol.name: protocol}
    bounds = await log.bounds()
    needed: list[Lsn] = []
    #: Who wrote markers: under each tag, each commit names groups after those of the one before.
    writers: list[list[str]] = []
    for key, value in (await log.list_metadata(QUERY_PREFIX)).items():
        query = decode_query(key.removeprefix(QUERY_PREFIX), value.data)
        layout = await _layout_of(log, query)
        current = [(stage, one.index) for stage, of in enumerate(layout.stages) for one in of]
        retired = [(one.stage, one.index) for one in layout.retired]
        for stage, index in (*current, *retired):
            task = TaskId(query.name, query.version, stage, index)
            commits = protocols.get(query.protocol)
            naming = () if commits is None else commits.naming_tags(task)
            if not naming:
                logger.warning(
                    "nothing is trimmed: query=%s commits by %s", query.name, query.protocol
                )
                return bounds.trim_point
            writers.append(list(naming))
            if (stage, index) in current:
                needed.append(await _needed_by(log, query, task))
        needed += await _needed_by_result(log, query)
    point = min(needed, default=bounds.trim_point)
    point = min([point, *await _needed_by_deliveries(log)])
    if point > bounds.trim_point:
        # In this order: whoever commits in between is seen to stage, or to have committed.
        reservations = await log.list_metadata(STAGING_PREFIX)
        last = {
            key.removeprefix(BATCH_PREFIX): decode_committed(value.data).number
            for key, value in (await log.list_metadata(BATCH_PREFIX)).items()
        }
        writers += [[f"T/{batch_writer(id)}"] for id in last]
        writes = await _batch_writes(log, bounds.trim_point) if reservations else []
        written = {marker.task.removeprefix("spark/") for marker in writes}
        point = _below_staged(point, reservations, last, written)
    while point > bounds.trim_point:
        markers = [marker for tags in writers for marker in await _first_markers(log, tags, point)]
        markers += await _batch_writes(log, point)
        lower = min([point, *(below_named(point, marker) for marker in markers)])
        if lower == point:
            break
        point = lower
    return point


async def _layout_of(log: AsyncLog, query: RegisteredQuery) -> Layout:
    value = await log.get(layout_key(query.name))
    found = None if value is None else read_layout(value.data, query.version)
    return found or first_layout(query.tasks)


async def _first_markers(log: AsyncLog, tags: list[str], start: Lsn) -> list[Marker]:
    """Of the writer's first commit at or after `start`: one, or its commit records."""
    markers: list[Marker] = []
    async for marker in _markers(log, tags, start):
        if markers and marker.number != markers[0].number:
            break
        markers.append(marker)
    return markers


async def _batch_writes(log: AsyncLog, start: Lsn) -> list[Marker]:
    """All of them: each is of a writer of its own."""
    return [marker async for marker in _markers(log, [BATCH_WRITES_TAG], start)]


async def _markers(log: AsyncLog, tags: list[str], start: Lsn) -> AsyncIterator[Marker]:
    tail = (await log.bounds()).tail
    async with log.tail(tags, start=start, end=tail) as reader:
        async for batch in reader:
            for entry in batch.entries:
                yield decode_marker(entry.payload)


def _below_staged(
    point: Lsn, reservations: Mapping[str, Value], last: Mapping[str, int], written: set[str]
) -> Lsn:
    """A trim point that spares what was staged and has no marker yet.

    A task that lost against another attempt may leave its reservation after the commit of its
    batch: that is seen by the last batch of its query, or by the batch writes that have a marker.
    """
    for key, reservation in reservations.items():
        first = reserved_from(reservation)
        id, _, batch = key.removeprefix(STAGING_PREFIX).rpartition(".")
        is_decided = batch.isdecimal() and last.get(id, -1) >= int(batch)
        if first < point and not is_decided and id not in written:
            logger.warning(
                "trimming stops at lsn=%d: writer=%s batch=%s is not committed", first, id, batch
            )
            point = first
    return point


async def _needed_by(log: AsyncLog, query: RegisteredQuery, task: TaskId) -> Lsn:
    last = await log.read_last(task.marker_tag)
    marker = None if last is None else decode_marker(last.payload)
    return needed_from(marker, Lsn(min(query.starts.values(), default=0)))


async def _needed_by_result(log: AsyncLog, query: RegisteredQuery) -> list[Lsn]:
    value = await log.get(image_key(query.name))
    image = None if value is None else decode_image(query.name, value.data)
    is_own = image is not None and image.version == query.version
    return [Lsn(image.position)] if image is not None and is_own else []


async def _needed_by_deliveries(log: AsyncLog) -> list[Lsn]:
    # In this order: acks are never of an earlier life than the delivery that they are taken for.
    registered = await log.list_metadata(DELIVER_PREFIX)
    acks = await log.list_metadata(DELIVERED_PREFIX)
    needed = []
    for key, value in registered.items():
        name = key.removeprefix(DELIVER_PREFIX)
        ack = acks.get(delivered_key(name))
        delivered = None if ack is None else decode_delivered(name, ack.data)
        found = decode_delivery(name, value.data, value.lsn)
        needed.append(deliveries.needed_from(found, delivered))
    return needed


async def trim_consumed(log: AsyncLog, protocol: CommitProtocol = MARKERS) -> Lsn:
    """Trim what nobody needs; returns the trim point."""
    bounds = await log.bounds()
    point = await find_trim_point(log, protocol)
    if point <= bounds.trim_point:
        return bounds.trim_point
    if await log.list_metadata(DELIVER_PREFIX):
        try:
            async with asyncio.timeout(TELL_SECONDS):
                await _tell(log, point)
        except TimeoutError:
            logger.warning("nobody could be told of the trim at lsn=%d: appends wait", point)
    if min(await _needed_by_deliveries(log), default=point) < point:
        return bounds.trim_point  # one needs more since: the next trim takes that into account
    return await log.trim(point)


async def _tell(log: AsyncLog, point: Lsn) -> None:
    """From now on nobody relies on rows below it who did not say so before (trims.py)."""
    while True:
        value = await log.get(TRIM_KEY)
        told = None if value is None else value.data
        if told_trim(told, (await log.bounds()).tail) >= point:
            return
        try:
            await log.compare_and_set(TRIM_KEY, expected=told, value=encode_trim(point))
        except GuardFailed:
            continue  # another trims, too
        return
