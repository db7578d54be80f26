"""The load of `penstock bench realtime`: bids at a fixed rate, from a process of its own.

Owns what an event is and when it is appended. Event `i` of a phase is created at `start + i / rate`
by the wall clock, carries that time in `ts`, and is appended by the first tick after it; the
schedule never waits for the log or for a query, so a slow reader cannot slow the load down and hide
its own delay. Law: the events of a phase depend on their numbers alone, so every variant gets the
same ones, and what must come out is known (`kept`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import uvloop

from penstock.errors import Unavailable
from penstock.limits import LANES_DEFAULT
from penstock.log.client.appender import AsyncAppender
from penstock.log.client.client import AsyncLog
from penstock.log.embedded import directory_endpoint
from penstock.log.records import NewEntry
from penstock.stream.batches import encode_batch
from penstock.stream.lanes import Lanes
from penstock_bench.child import Child
from penstock_bench.measure import SECOND_US, next_second, now_us

BIDS: Final = "auction long, bidder long, price long, channel string, ts timestamp"
AUCTIONS: Final = 1_000
PRICE_MAX: Final = 1_000
#: The stateless query keeps bids from this price on: half of them.
PRICE_KEPT: Final = 500
#: No divisor of a second: the ends of windows, at whole seconds, meet all phases of the ticks. With
#: 5 ms, all windows of a run waited a whole tick, or none did.
TICK_US: Final = 4_700

_CHANNELS: Final = pa.array(["apple", "google", "baidu", "facebook"])
#: Fibonacci hashing: neighbours get values that have nothing to do with each other.
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
#: Entries of a burst: their rows, and how many travel in a group.
_BURST_ROWS: Final = 1_000
_BURST_GROUP: Final = 20
_BURST_WAITING: Final = 8


@dataclass(frozen=True, slots=True)
class Live:
    """Append `count` events, `rate` a second of the wall clock from `start_us` on."""

    stream: str
    start_us: int
    rate: int
    count: int


@dataclass(frozen=True, slots=True)
class Burst:
    """Append `count` events as fast as the log takes them, `rate` a second by their `ts`.

    After them comes one more, whose `ts` is ten seconds later, so that all windows close.
    """

    stream: str
    start_us: int
    rate: int
    count: int

    @property
    def closing(self) -> int:
        """Number of the event that closes the windows."""
        return self.count + 10 * self.rate

    @property
    def after_us(self) -> int:
        """A whole second after everything in this burst."""
        return next_second(self.start_us + (self.closing + 1) * SECOND_US // self.rate)


@dataclass(frozen=True, slots=True)
class Sent:
    """When the first append was sent, when the last was acknowledged, how late a tick was."""

    first_us: int
    acked_us: int
    late_us_max: int


def make_bids(first: int, count: int, *, start_us: int, rate: int) -> pa.RecordBatch:
    """Events first … first + count - 1 of a load that starts at `start_us`."""
    numbers = np.arange(first, first + count, dtype=np.int64)
    drawn = _draw(numbers)
    times = pa.array(start_us + numbers * SECOND_US // rate)
    return pa.record_batch(
        {
            "auction": pa.array((drawn >> np.uint64(40)).astype(np.int64) % AUCTIONS),
            "bidder": pa.array((drawn >> np.uint64(24)).astype(np.int64) % 100_000),
            "price": pa.array(_prices(drawn)),
            "channel": _CHANNELS.take(pa.array(numbers % len(_CHANNELS))),
            "ts": times.cast(pa.timestamp("us", tz="UTC")),
        }
    )


def kept(first: int, count: int) -> int:
    """How many of these events the stateless query keeps."""
    prices = _prices(_draw(np.arange(first, first + count, dtype=np.int64)))
    return int((prices >= PRICE_KEPT).sum())


def _draw(numbers: Any) -> Any:
    return numbers.astype(np.uint64) * _GOLDEN


def _prices(drawn: Any) -> Any:
    return (drawn >> np.uint64(33)).astype(np.int64) % PRICE_MAX


def start_load(directory: Path) -> Child:
    """The generator's process: it is sent a `Live` or a `Burst`, and answers with `Sent`."""
    return Child("the load", _serve, directory)


def _serve(directory: Path, commands: Connection) -> None:
    async def main() -> None:
        async with await AsyncLog.connect(directory_endpoint(directory)) as log:
            appender = await log.own_appender()
            while True:
                command = await asyncio.to_thread(commands.recv)
                work = _run_live if isinstance(command, Live) else _run_burst
                commands.send(await work(appender, command))

    try:
        uvloop.run(main())
    except (EOFError, OSError, KeyboardInterrupt):
        pass  # the bench ended, or the whole terminal was interrupted; the bench says so
    except Exception as error:
        commands.send(Unavailable(f"the load failed: {type(error).__name__}: {error}"))


async def _run_live(appender: AsyncAppender, command: Live) -> Sent:
    sent = late_us = 0
    first_us = tick_us = command.start_us
    while sent < command.count:
        tick_us += TICK_US
        await asyncio.sleep(max(0.0, (tick_us - now_us()) / SECOND_US))
        now = now_us()
        late_us = max(late_us, now - tick_us)
        due = min(command.count, (now - command.start_us) * command.rate // SECOND_US + 1)
        if due > sent:
            appender.append_nowait([_entry(command, sent, due - sent)])
            sent = due
    await appender.drained()
    return Sent(first_us, now_us(), late_us)


async def _run_burst(appender: AsyncAppender, command: Burst) -> Sent:
    entries = [
        _entry(command, first, min(_BURST_ROWS, command.count - first))
        for first in range(0, command.count, _BURST_ROWS)
    ]
    entries.append(_entry(command, command.closing, 1))
    waiting: deque[asyncio.Future[Any]] = deque()
    first_us = now_us()
    for start in range(0, len(entries), _BURST_GROUP):
        waiting.append(appender.append_nowait(entries[start : start + _BURST_GROUP]))
        if len(waiting) > _BURST_WAITING:
            await waiting.popleft()
    await appender.drained()
    return Sent(first_us, now_us(), 0)


def _entry(command: Live | Burst, first: int, count: int) -> NewEntry:
    bids = make_bids(first, count, start_us=command.start_us, rate=command.rate)
    lane = first // max(count, 1) % LANES_DEFAULT
    tags = Lanes(command.stream, LANES_DEFAULT).tags(lane)
    return NewEntry(encode_batch(bids), tags, rows=count)
