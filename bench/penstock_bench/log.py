"""`penstock bench log`: the shared log on one machine beside the raw disk, in one run.

Owns the scenarios and their bars. Ratios are taken between rounds of the same run that follow each
other (raw, ours, raw, ours, …), since a shared disk drifts by a factor of two within minutes. The
server is a process of its own, as in use; so is the concurrent tail.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

from penstock.config import ServerConfig
from penstock.limits import KIB, MIB
from penstock.log.client.client import AsyncLog
from penstock.log.core.rights import allow_caveat, log_caveat, until_caveat
from penstock.log.embedded import directory_endpoint
from penstock.log.records import NewEntry
from penstock.log.server.server import open_storage
from penstock.log.serving.directory import read_token
from penstock.log.storage.disk import RealDisk
from penstock.wire.token import make_token
from penstock_bench.child import ANSWER_SECONDS, Child
from penstock_bench.log_load import (
    append_one_by_one,
    append_pipelined,
    append_tagged,
    count_entries,
    server_process,
)
from penstock_bench.measure import RawDisk, percentile, resident_bytes, scratch, summary
from penstock_bench.report import Check, Report, Say, Sense

#: By figure: the bar, its sense and unit, and what is compared with what.
_BARS: dict[str, tuple[float, Sense, str, str]] = {
    "append_1kib_p50_over_raw": (
        *(3.0, "at most", "×"),
        "durable append, one in flight, over write+fdatasync; median of rounds",
    ),
    "delivery_p50_over_ack": (
        *(1.2, "at most", "×"),
        "append to arrival at a tail, over append to ack",
    ),
    "append_narrowed_p50_over_root": (
        *(1.05, "at most", "×"),
        "durable append with a narrowed token, over the root token's; they take turns",
    ),
    "append_1kib_pipelined": (
        *(70_000, "at least", "entries/s"),
        "until the last is acknowledged and the tail has read it",
    ),
    "append_128kib_bandwidth_share": (
        *(0.6, "at least", "of raw"),
        "of write+fdatasync of the same bytes; median of rounds",
    ),
    "selective_read_share": (
        *(5.0, "at most", "%"),
        "time to read a tag with 1 % of the entries, over reading all",
    ),
    "open_sealed_segments_seconds": (1.0, "at most", "s", ""),
    # Whatever the log's length: see docs/operations.md.
    "server_memory_peak": (
        *(256.0, "at most", "MiB"),
        "peak resident memory of the server, its own code included",
    ),
}


@dataclass(frozen=True, slots=True)
class LogBenchSizes:
    """How much of everything; `quick` is for tests of the bench itself."""

    rounds: int = 5
    latency_appends: int = 1500
    small_entries: int = 150_000
    large_entries: int = 4_000
    selective_entries: int = 1_000_000
    open_segments: int = 200
    memory_bytes: int = 5_000 * MIB
    memory_tags: int = 100_000


FULL = LogBenchSizes()
QUICK = LogBenchSizes(
    rounds=2,
    latency_appends=100,
    small_entries=5_000,
    large_entries=100,
    selective_entries=20_000,
    open_segments=20,
    memory_bytes=50 * MIB,
    memory_tags=1_000,
)


class Bench:
    """One run in a fresh directory."""

    def __init__(self, root: Path, plan: LogBenchSizes, say: Say) -> None:
        self._root = root
        self._plan = plan
        self._say = say
        self._report = Report("log", parameters={"plan": repr(plan)})
        self._payload = os.urandom(128 * KIB)  # the largest of any scenario

    def run(self) -> Report:
        self._latency()
        self._narrowed()
        self._small()
        self._large()
        self._selective()
        self._opening()
        self._memory()
        return self._report

    def _check(self, name: str, value: float, detail: str = "") -> None:
        bar, sense, unit, usual = _BARS[name]
        self._report.judge(Check(name, value, bar, sense, unit, detail or usual), self._say)

    # ---- one append in flight, and its way to a tail

    def _latency(self) -> None:
        self._say("1 KiB appends, one in flight, beside the raw disk")
        data = self._payload[:KIB]
        raw = RawDisk(self._root)
        rounds: list[tuple[float, float]] = []
        raw_all: list[float] = []
        ours_all: list[float] = []
        acked: list[float] = []
        delivered: list[float] = []

        async def measure(log: AsyncLog) -> None:
            appender = await log.own_appender()
            await append_one_by_one(appender, data, self._plan.latency_appends // 5)
            for _ in range(self._plan.rounds):
                floor = raw.write(data, self._plan.latency_appends)
                times = await append_one_by_one(appender, data, self._plan.latency_appends)
                ours = times.seconds
                rounds.append((percentile(floor, 50), percentile(ours, 50)))
                raw_all.extend(floor)
                ours_all.extend(ours)
            more = await _append_and_tail(log, appender, data, self._plan.latency_appends)
            acked.extend(more[0])
            delivered.extend(more[1])

        with _server(self._root / "latency"):
            _run_with_log(self._root / "latency", measure)
        raw.close()
        ratios = [ours / floor for floor, ours in rounds]
        self._report.figures["append_us"] = summary(ours_all, scale=1e6)
        self._report.figures["raw_us"] = summary(raw_all, scale=1e6)
        self._report.figures["append_ratio_rounds"] = [round(ratio, 2) for ratio in ratios]
        self._report.figures["delivery_us"] = summary(delivered, scale=1e6)
        self._report.figures["acked_us"] = summary(acked, scale=1e6)
        self._check("append_1kib_p50_over_raw", statistics.median(ratios))
        self._check("delivery_p50_over_ack", percentile(delivered, 50) / percentile(acked, 50))

    # ---- the same with a token that allows less

    def _narrowed(self) -> None:
        self._say("1 KiB appends, one in flight, with the root token and a narrowed one in turn")
        directory = self._root / "narrowed"
        data, count = self._payload[:KIB], self._plan.rounds * self._plan.latency_appends
        root_s: list[float] = []
        narrowed_s: list[float] = []

        async def measure(log: AsyncLog) -> None:
            rights = [f"{right}:{name}" for right in ("append", "read") for name in ("bench", "x*")]
            caveats = [log_caveat(log.log_id), until_caveat(2**50), allow_caveat(rights)]
            token = make_token(read_token(directory / "token"), "0123456789abcdef", caveats)
            entries = [NewEntry(data, ("s/bench", "l/bench/3"))]
            other_log = await AsyncLog.connect(directory_endpoint(directory, token=token))
            async with other_log as other:
                pairs = [
                    (await log.own_appender(), root_s),
                    (await other.own_appender(), narrowed_s),
                ]
                for number in range(count):
                    for appender, seconds in pairs if number % 2 else reversed(pairs):
                        started = time.perf_counter()
                        await appender.append(entries)
                        seconds.append(time.perf_counter() - started)

        with _server(directory):
            _run_with_log(directory, measure)
        shutil.rmtree(directory)
        self._report.figures["append_root_us"] = summary(root_s, scale=1e6)
        self._report.figures["append_narrowed_us"] = summary(narrowed_s, scale=1e6)
        ratio = percentile(narrowed_s, 50) / percentile(root_s, 50)
        self._check("append_narrowed_p50_over_root", ratio)

    # ---- pipelined, with a concurrent tail

    def _small(self) -> None:
        self._say("1 KiB entries pipelined, with a concurrent tail")
        rates = self._pipelined("small", self._payload[:KIB], self._plan.small_entries)
        self._report.figures["small_entries_per_second_rounds"] = [round(rate) for rate in rates]
        self._check("append_1kib_pipelined", statistics.median(rates))

    def _large(self) -> None:
        self._say("128 KiB entries pipelined, with a concurrent tail, beside the raw disk")
        data = self._payload[: 128 * KIB]
        shares = []
        figures = []
        for number in range(self._plan.rounds):
            raw = RawDisk(self._root)
            seconds = sum(raw.write(data, self._plan.large_entries))
            raw.close()
            floor = self._plan.large_entries * len(data) / seconds
            (rate,) = self._pipelined(f"large{number}", data, self._plan.large_entries, rounds=1)
            shares.append(rate * len(data) / floor)
            figures.append({"raw_mb": round(floor / 1e6), "ours_mb": round(rate * len(data) / 1e6)})
        self._report.figures["large_mb_per_second_rounds"] = figures
        self._check("append_128kib_bandwidth_share", statistics.median(shares))

    def _pipelined(
        self, name: str, data: bytes, count: int, *, rounds: int | None = None
    ) -> list[float]:
        rates = []
        for number in range(rounds or self._plan.rounds):
            directory = self._root / f"{name}-{number}"
            with _server(directory):
                tail = Child("the tail", _tail_until, directory, count)
                tail.answer(ANSWER_SECONDS)  # it follows
                started: list[float] = []

                async def measure(log: AsyncLog, out: list[float] = started) -> None:
                    await log.own_appender()
                    out.append(time.perf_counter())
                    await append_pipelined(log, data, count)

                _run_with_log(directory, measure)
                # The clock is the system's: both processes read the same.
                rates.append(count / (tail.answer(ANSWER_SECONDS) - started[0]))
                tail.close()
            shutil.rmtree(directory)
        return rates

    # ---- reading 1 %

    def _selective(self) -> None:
        count = self._plan.selective_entries
        self._say(f"reading a tag that holds 1 % of {count:,} entries")
        directory = self._root / "selective"
        times: dict[str, list[float]] = {"all": [], "one": []}

        async def measure(log: AsyncLog) -> None:
            await append_tagged(log, self._payload[:KIB], count, tags=100)
            for _ in range(self._plan.rounds):
                for name, tags, expected in (("one", ["t/7"], count // 100), ("all", None, count)):
                    started = time.perf_counter()
                    read = await count_entries(log, tags)
                    times[name].append(time.perf_counter() - started)
                    if read < expected or (tags and read != expected):
                        raise RuntimeError(f"read {read} entries of {expected}")

        with _server(directory):
            _run_with_log(directory, measure)
        shutil.rmtree(directory)
        self._report.figures["read_all_seconds"] = [round(t, 3) for t in times["all"]]
        self._report.figures["read_one_percent_seconds"] = [round(t, 4) for t in times["one"]]
        share = statistics.median(times["one"]) / statistics.median(times["all"])
        self._check("selective_read_share", 100 * share)

    # ---- opening

    def _opening(self) -> None:
        wanted = self._plan.open_segments
        self._say(f"opening a log of {wanted} sealed segments")
        directory = self._root / "opening"
        config = ServerConfig(directory, port=0, segment_bytes=1 * MIB)

        async def measure(log: AsyncLog) -> None:
            await append_pipelined(log, self._payload[: 64 * KIB], wanted * 17)

        with _server(directory, "--segment-bytes", str(1 * MIB)):
            _run_with_log(directory, measure)
        times = []
        for _ in range(5):
            started = time.perf_counter()
            storage, _ = open_storage(RealDisk(directory / "log"), config)
            times.append(time.perf_counter() - started)
            sealed = len(storage.manifest.segments) - 1
            storage.abandon()
        shutil.rmtree(directory)
        self._report.figures["open_seconds"] = [round(t, 4) for t in times]
        self._report.figures["open_sealed_segments"] = sealed
        if sealed < wanted:
            raise RuntimeError(f"only {sealed} sealed segments were made")
        detail = f"recovery of a log of {sealed} sealed segments"
        self._check("open_sealed_segments_seconds", statistics.median(times), detail)

    # ---- memory

    def _memory(self) -> None:
        plan = self._plan
        self._say(
            f"server memory while {plan.memory_bytes // MIB:,} MiB with {plan.memory_tags:,} tags "
            "are written and read"
        )
        directory = self._root / "memory"
        peaks: dict[str, int] = {}

        async def measure(log: AsyncLog) -> None:
            pid = int(json.loads(await log.status())["pid"])
            peaks["start"] = resident_bytes(pid)[1]
            data = self._payload[: 16 * KIB]
            count = plan.memory_bytes // len(data)
            await append_tagged(log, data, count, tags=plan.memory_tags)
            peaks["written"] = resident_bytes(pid)[1]
            chosen = range(0, plan.memory_tags, 997)
            readers = [count_entries(log, [f"t/{number}"]) for number in chosen]
            await asyncio.gather(count_entries(log, None), *readers)
            peaks["read"] = resident_bytes(pid)[1]

        with _server(directory):
            _run_with_log(directory, measure)
        shutil.rmtree(directory)
        self._report.figures["memory_peak_mib"] = {k: round(v / MIB) for k, v in peaks.items()}
        self._check("server_memory_peak", peaks["read"] / MIB)


def run_bench(*, directory: Path | None, plan: LogBenchSizes, say: Say) -> Report:
    with scratch("penstock-bench-", directory) as root:
        return Bench(root, plan, say).run()


async def _append_and_tail(
    log: AsyncLog, appender: Any, data: bytes, count: int
) -> tuple[list[float], list[float]]:
    """Seconds from append to ack, and from append to arrival at a tail, one after the other."""
    arrived: asyncio.Queue[tuple[int, float]] = asyncio.Queue()
    start = (await log.bounds()).tail

    async def follow() -> None:
        async with log.tail(["delivery"], start=start) as reader:
            async for batch in reader:
                now = time.perf_counter()
                for entry in batch.entries:
                    arrived.put_nowait((entry.lsn, now))

    task = asyncio.create_task(follow())
    acked, delivered = [], []
    entries = [NewEntry(data, ("delivery",))]
    for _ in range(count):
        started = time.perf_counter()
        done = await appender.append(entries)
        acked.append(time.perf_counter() - started)
        lsn, arrived_at = await arrived.get()
        assert lsn == done.first_lsn
        delivered.append(arrived_at - started)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return acked, delivered


@contextlib.contextmanager
def _server(directory: Path, *options: str) -> Iterator[None]:
    """A server process for a directory, stopped at the end."""
    process = server_process(directory, *options)
    process.start()
    try:
        yield
    finally:
        process.stop()


def _tail_until(directory: Path, count: int, times: Connection) -> None:
    """Says when it follows, and when it has read `count` entries."""

    async def main(log: AsyncLog) -> None:
        read = 0
        async with log.tail(["bench"], start=0) as reader:
            times.send(time.perf_counter())
            async for batch in reader:
                read += len(batch.entries)
                if read >= count:
                    times.send(time.perf_counter())
                    return

    _run_with_log(directory, main)


def _run_with_log(directory: Path, work: Callable[[AsyncLog], Any]) -> None:
    async def main() -> None:
        async with await AsyncLog.connect(directory_endpoint(directory, start=False)) as log:
            await work(log)

    uvloop.run(main())
