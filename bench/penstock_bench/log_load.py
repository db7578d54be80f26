"""What the benchmarks of the log do to one: appends one by one, at a rate or in a pipeline; reads.

Law: an append is timed from when it was sent, and a load that fell behind its schedule says so
(`late_ms`), for then the times are too good.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.limits import MIB
from penstock.log.client.appender import AsyncAppender
from penstock.log.client.client import AsyncLog
from penstock.log.local_cluster import ClusterProcess
from penstock.log.records import Appended, NewEntry
from penstock_bench.measure import percentile


@dataclass(slots=True)
class Times:
    """Seconds of each append, and how late the schedule was at worst."""

    seconds: list[float]
    late_ms: float = 0.0

    def p(self, percent: float) -> float:
        return percentile(self.seconds, percent)


def server_process(directory: Path, *options: str) -> ClusterProcess:
    """The server of one machine, for a new directory."""
    directory.mkdir(mode=0o700)
    return ClusterProcess(
        "one machine",
        "penstock.log.server",
        ["--data-dir", str(directory), *options],
        directory / "server.json",
        directory.with_suffix(".out"),
    )


async def append_one_by_one(appender: AsyncAppender, data: bytes, count: int) -> Times:
    seconds = []
    entries = [NewEntry(data, ("bench",))]
    for _ in range(count):
        started = time.perf_counter()
        await appender.append(entries)
        seconds.append(time.perf_counter() - started)
    return Times(seconds)


async def append_at_rate(
    appenders: Sequence[AsyncAppender], data: bytes, *, rate: float, seconds: float
) -> Times:
    """Open loop: append `i` is due at i / rate, on the appenders in turn, whoever waits."""
    count = int(rate * seconds)
    entries = [NewEntry(data, ("bench",))]
    times = Times([])

    def settled(sent_at: float, _: asyncio.Future[Appended]) -> None:
        times.seconds.append(time.perf_counter() - sent_at)

    waiting: list[asyncio.Future[Appended]] = []
    started = time.perf_counter()
    sent = 0
    while sent < count:
        now = time.perf_counter()
        due = min(count, int((now - started) * rate) + 1)
        times.late_ms = max(times.late_ms, ((now - started) - sent / rate) * 1000)
        for number in range(sent, due):
            sent_at = time.perf_counter()
            future = appenders[number % len(appenders)].append_nowait(entries)
            future.add_done_callback(partial(settled, sent_at))
            waiting.append(future)
        sent = due
        await asyncio.sleep(max(0.0, started + sent / rate - time.perf_counter()))
    await asyncio.gather(*waiting)
    return times


async def append_pipelined(log: AsyncLog, data: bytes, count: int) -> None:
    """Each entry is an append of its own; up to 8 MiB are on their way."""
    entries = [NewEntry(data, ("bench",))]
    window = max(64, min(4096, 8 * MIB // len(data)))
    await _append_all(log, (entries for _ in range(count)), window)


async def append_tagged(
    log: AsyncLog, data: bytes, count: int, *, tags: int, pending_bytes: int = 4 * MIB
) -> None:
    """Entries whose tags take turns, in groups of ten: neighbours never share a tag."""
    groups = (
        [NewEntry(data, (f"t/{number % tags}",)) for number in range(first, min(first + 10, count))]
        for first in range(0, count, 10)
    )
    await _append_all(log, groups, max(16, pending_bytes // (10 * len(data))))


async def _append_all(log: AsyncLog, groups: Iterable[list[NewEntry]], window: int) -> None:
    """As fast as it goes, with so many groups on their way."""
    appender = await log.own_appender()
    waiting: deque[asyncio.Future[Appended]] = deque()
    for group in groups:
        waiting.append(appender.append_nowait(group))
        if len(waiting) >= window:
            await waiting.popleft()
    await appender.drained()


async def count_entries(
    log: AsyncLog, tags: list[str] | None, *, start: int = 0, end: int | None = None
) -> int:
    """Up to `end`, or to what is the end now."""
    count = 0
    end = (await log.bounds()).tail if end is None else end
    async with log.tail(tags, start=start, end=end) as reader:
        async for batch in reader:
            count += len(batch.entries)
    return count
