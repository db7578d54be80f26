"""What the simulated programs ask of a log, through the real client: all of it is in the story.

The functions raise what the client raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.errors import Damaged, Defect, PenstockError
from penstock.log.client.appender import AsyncAppender
from penstock.log.client.client import AsyncLog
from penstock.log.group_format import meta_entry
from penstock.log.records import Appended, Flush, Guard, NewEntry, SetKey, Value
from simulation.log.story import AppendOp, BoundsOp, GetOp, LastOp, Story, TrimOp


class Witness(Protocol):
    """A world with a story."""

    story: Story

    @property
    def now_us(self) -> int: ...

    def count(self, what: str) -> None: ...

    def note(self, text: str) -> None: ...


def append(
    world: Witness,
    client: str,
    appender: AsyncAppender,
    entries: Sequence[NewEntry],
    settled: Callable[[AppendOp], None],
    *,
    guards: Sequence[Guard] = (),
    sets: Sequence[SetKey] = (),
    flush_ms: int = 0,
) -> AppendOp:
    """Submit a group; `settled` is called once, when its outcome is known."""
    op = AppendOp(
        client,
        world.now_us,
        world.story.known_lsn,
        producer=appender.producer,
        instance=appender.instance,
        entries=(*entries, meta_entry(sets)) if sets else tuple(entries),
        guards=tuple(guards),
        flush_ms=flush_ms,
    )
    world.story.appends.append(op)

    def done(future: asyncio.Future[Appended]) -> None:
        error = future.exception()
        if error is None:
            op.outcome = future.result()
            world.story.know(op.outcome.first_lsn + op.outcome.count)
        else:
            # Nothing that happens to a log makes it fail like this.
            assert not isinstance(error, Defect | Damaged), f"{op}: {error!r}"
            assert isinstance(error, PenstockError), f"{op}: {error!r}"
            op.outcome = error
            world.count(f"told {type(error).__name__}")
        op.ended_us = world.now_us
        settled(op)
        world.note(f"{client} told {op.outcome!r}")

    future = appender.append_nowait(entries, guards=guards, sets=sets, flush=Flush(flush_ms))
    future.add_done_callback(done)
    return op


async def get(world: Witness, client: str, log: AsyncLog, key: str) -> Value | None:
    op = GetOp(client, world.now_us, world.story.known_lsn, key=key)
    op.found = await log.get(key)
    op.ended_us = world.now_us
    if op.found is not None:
        world.story.know(op.found.lsn + 1)
    world.story.gets.append(op)
    return op.found


async def read_last(world: Witness, client: str, log: AsyncLog, tag: str) -> None:
    op = LastOp(client, world.now_us, world.story.known_lsn, tag=tag)
    op.found = await log.read_last(tag)
    op.ended_us = world.now_us
    if op.found is not None:
        world.story.know(op.found.lsn + 1)
    world.story.lasts.append(op)


async def bounds(world: Witness, client: str, log: AsyncLog) -> BoundsOp:
    op = BoundsOp(client, world.now_us, world.story.known_lsn)
    found = await log.bounds()
    op.ended_us = world.now_us
    op.trim_point, op.tail = found.trim_point, found.tail
    world.story.bounds.append(op)
    world.story.know(op.tail)
    return op


async def trim(world: Witness, client: str, log: AsyncLog, lsn: int) -> None:
    op = TrimOp(client, world.now_us, world.story.known_lsn, lsn=lsn)
    world.story.trims.append(op)
    op.point = await log.trim(lsn)
    op.ended_us = world.now_us
