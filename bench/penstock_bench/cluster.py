"""`penstock bench cluster`: the replicated log beside the log of one machine, in one run.

Owns the scenarios and their bars. Everything is a process: ZooKeeper, three nodes, a proxy that
writes, one that only reads, and a one-machine server on the same disk. What is compared takes turns
within the run (one machine, cluster, …; healthy, slow, …), since a shared machine drifts. All nodes
share one disk and its cores here: a real cluster would not.

appends   1 KiB, one in flight, then at a rate; three nodes (write quorum 3, ack quorum 2)
slow      the same rate on an ensemble of which one node's fsyncs take longer, beside a healthy one
tails     what nodes must send when many follow a log through one read proxy, beside a single one
logs      one rate spread over ever more logs of one proxy
failover  the owner is killed: until the next acknowledged append, and until its session ended
catch-up  a cold read proxy reads all of a log, and one tag of ten
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import uvloop

from penstock.limits import KIB, MIB
from penstock.log.client.appender import AsyncAppender
from penstock.log.client.client import AsyncLog
from penstock.log.embedded import directory_endpoint
from penstock.log.local_cluster import LocalCluster
from penstock_bench.cluster_load import Clients, Tails
from penstock_bench.log_load import (
    Times,
    append_at_rate,
    append_one_by_one,
    append_tagged,
    count_entries,
    server_process,
)
from penstock_bench.measure import scratch, summary
from penstock_bench.report import Check, Report, Say

ONE_MACHINE_BAR: Final = 3.0
SLOW_NODE_BAR: Final = 1.3
TAILS_BAR: Final = 2.0
SLOW_MS: Final = 50.0
TAILS: Final = 40
_SLOW_NODE: Final = "n3"
_READER: Final = "r0"
_TAGS: Final = 10
#: Names that are tried until one log has the slow node and one has not; each is as likely as 3:1.
_NAMES_MAX: Final = 40


@dataclass(frozen=True, slots=True)
class ClusterBenchSizes:
    """How much of everything; QUICK is for tests of the bench itself."""

    rounds: int = 5
    latency_appends: int = 600
    #: Of the load that does not wait for answers. At 2,000 a second these processes keep two
    #: cores busy, and what is measured is the wait for one of them (docs/benchmarks.md).
    rate: int = 500
    rate_seconds: float = 3.0
    slow_rounds: int = 8
    slow_seconds: float = 3.0
    tail_rounds: int = 3
    tail_entries: int = 2_000
    #: Logs of one proxy, and the appends a second that they share. Appends to different logs have
    #: nothing in common: each is a block of its own on three nodes, and all of it on these cores.
    logs: tuple[int, ...] = (1, 100, 1_000)
    logs_rate: int = 300
    logs_seconds: float = 5.0
    failovers: int = 3
    catch_up_entries: int = 100_000
    catch_up_rounds: int = 3


FULL: Final = ClusterBenchSizes()
QUICK: Final = ClusterBenchSizes(
    rounds=1,
    latency_appends=50,
    rate=200,
    rate_seconds=0.5,
    slow_rounds=1,
    slow_seconds=0.5,
    tail_rounds=1,
    tail_entries=100,
    logs=(1, 5),
    logs_rate=50,
    logs_seconds=0.5,
    failovers=1,
    catch_up_entries=1_000,
    catch_up_rounds=1,
)


def run_bench(*, directory: Path | None, plan: ClusterBenchSizes, say: Say) -> Report:
    with scratch("penstock-bench-", directory) as root:
        report = Report("cluster", parameters={"plan": repr(plan), "quick": plan == QUICK})
        machine = server_process(root / "one")
        with LocalCluster(root / "cluster") as cluster:
            try:
                say("starting ZooKeeper, 3 nodes, 2 proxies, and the server of one machine")
                machine.launch()
                cluster.start(proxies=1, read_proxies=1)
                machine.wait_ready()
                bench = _Bench(root, cluster, Clients(cluster), plan, report, say)
                uvloop.run(bench.run())
            finally:
                machine.stop()
    return report


@dataclass(slots=True)
class _Bench:
    """All scenarios, on a cluster that runs."""

    root: Path
    cluster: LocalCluster
    clients: Clients
    plan: ClusterBenchSizes
    report: Report
    say: Say
    data: bytes = field(default_factory=lambda: os.urandom(KIB))

    async def run(self) -> None:
        try:
            await self._appends()
            await self._tails()
            await self._catch_up()
            await self._slow_node()
            await self._many_logs()
            await self._failover()
        finally:
            await self.clients.close()

    def _check(self, name: str, value: float, bar: float, detail: str) -> None:
        self.report.judge(Check(name, value, bar, "at most", "×", detail), self.say)

    async def _at_rate(self, appender: AsyncAppender, seconds: float | None = None) -> Times:
        plan = self.plan
        duration = plan.rate_seconds if seconds is None else seconds
        return await append_at_rate([appender], self.data, rate=plan.rate, seconds=duration)

    # ---- appends, beside one machine

    async def _appends(self) -> None:
        plan = self.plan
        self.say(f"1 KiB appends, one in flight and {plan.rate:,}/s, beside one machine")
        times: dict[str, list[tuple[Times, Times]]] = {"one": [], "cluster": []}
        async with await AsyncLog.connect(
            directory_endpoint(self.root / "one", start=False)
        ) as machine:
            cluster = await self.clients.connect("main")
            appenders = {
                "one": await machine.own_appender(),
                "cluster": await cluster.own_appender(),
            }
            for appender in appenders.values():
                await append_one_by_one(appender, self.data, plan.latency_appends // 3)
                await self._at_rate(appender, plan.rate_seconds / 3)
            for _ in range(plan.rounds):
                for name, appender in appenders.items():
                    single = await append_one_by_one(appender, self.data, plan.latency_appends)
                    times[name].append((single, await self._at_rate(appender)))
        for place, load in enumerate(("one_in_flight", "at_rate")):
            figures: dict[str, Any] = {}
            for name, rounds in times.items():
                figures[name] = _pooled([both[place] for both in rounds])
            ratios = _ratios(
                [both[place] for both in times["cluster"]],
                [both[place] for both in times["one"]],
                50,
            )
            figures["p50_ratio_rounds"] = _rounded(ratios)
            self.report.figures[f"append_us_{load}"] = figures
            self._check(
                f"append_p50_over_one_machine_{load}",
                statistics.median(ratios),
                ONE_MACHINE_BAR,
                "3 nodes, acknowledged by 2 fsyncs, over one machine; median of rounds",
            )

    # ---- one slow node

    async def _slow_node(self) -> None:
        plan = self.plan
        self.say(f"one of three nodes with fsyncs slower by {SLOW_MS:g} ms, {plan.rate:,}/s")
        process = self.cluster.add_node(_SLOW_NODE, {"fsync-delay-ms": SLOW_MS})
        await asyncio.to_thread(process.wait_ready)
        healthy, slow = await self._two_ensembles()
        appenders = {"healthy": await healthy.own_appender(), "slow": await slow.own_appender()}
        times: dict[str, list[Times]] = {"healthy": [], "slow": []}
        for appender in appenders.values():
            await self._at_rate(appender, plan.slow_seconds)
        before = await self.clients.node_counters(_SLOW_NODE)
        for _ in range(plan.slow_rounds):
            for name, appender in appenders.items():
                times[name].append(await self._at_rate(appender, plan.slow_seconds))
                await self._until_quiet()
        after = await self.clients.node_counters(_SLOW_NODE)
        written = "penstock_node_written_records_total"
        blocks = int(after[written] - before[written])
        if blocks == 0:
            raise RuntimeError("the slow node took no block: nothing was measured")
        fsync = "penstock_node_fsync_duration_seconds"
        fsyncs = after[f"{fsync}_count"] - before[f"{fsync}_count"]
        spent = after[f"{fsync}_sum"] - before[f"{fsync}_sum"]
        ratios = _ratios(times["slow"], times["healthy"], 99)
        self.report.figures["slow_node_us"] = {
            **{name: _pooled(rounds) for name, rounds in times.items()},
            "p50_ratio_rounds": _rounded(_ratios(times["slow"], times["healthy"], 50)),
            "p99_ratio_rounds": _rounded(ratios),
            "blocks_on_slow_node": blocks,
            "fsync_ms_of_slow_node": round(1000 * spent / max(fsyncs, 1), 1),
        }
        self._check(
            "slow_node_append_p99_over_healthy",
            statistics.median(ratios),
            SLOW_NODE_BAR,
            f"with one of three fsyncs slower by {SLOW_MS:g} ms; median of rounds",
        )
        await self.clients.close([healthy, slow])
        await asyncio.to_thread(process.stop)
        del self.cluster.nodes[_SLOW_NODE]

    async def _two_ensembles(self) -> tuple[AsyncLog, AsyncLog]:
        """A log without the slow node, and one with it: where a log lies depends on its name."""
        logs: dict[bool, AsyncLog] = {}
        for number in range(_NAMES_MAX):
            name = f"slow-{number}"
            log = await self.clients.connect(name)
            is_slow = _SLOW_NODE in await self.clients.nodes_of(name)
            if is_slow in logs:
                await self.clients.close([log])
            logs.setdefault(is_slow, log)
            if len(logs) == 2:
                return logs[False], logs[True]
        raise RuntimeError(f"{_NAMES_MAX} logs, and all with or all without the slow node")

    async def _until_quiet(self) -> None:
        """Until nodes have nothing left to write: what one round left must not burden the next."""
        written, last = "penstock_node_written_records_total", -1.0
        for _ in range(50):
            await asyncio.sleep(0.15)
            counters = [await self.clients.node_counters(name) for name in self.cluster.nodes]
            now = sum(of_node[written] for of_node in counters)
            if now == last:
                return
            last = now

    # ---- tails

    async def _tails(self) -> None:
        plan = self.plan
        self.say(f"{TAILS} tails of one log through one read proxy, beside a single one")
        log = await self.clients.connect("tails")
        appender = await log.own_appender()
        per_count: dict[int, list[int]] = {1: [], TAILS: []}
        for number in range(plan.tail_rounds + 1):
            for count in per_count:
                size = await self._tail_once(log, appender, count)
                if number:  # the first round only warms up
                    per_count[count].append(size)
        appended = plan.tail_entries * len(self.data)
        self.report.figures["tails_node_bytes_over_appended"] = {
            f"{count} tails": _rounded([size / appended for size in sizes])
            for count, sizes in per_count.items()
        }
        self._check(
            f"node_bytes_of_{TAILS}_tails_over_one",
            sum(per_count[TAILS]) / sum(per_count[1]),
            TAILS_BAR,
            "bytes that all nodes sent to readers while the same data was appended",
        )
        await self.clients.close([log])

    async def _tail_once(self, log: AsyncLog, appender: AsyncAppender, count: int) -> int:
        """Bytes that nodes sent while some tails followed an append load."""
        plan = self.plan
        readers = await self.clients.connect_all(["tails"] * count)
        start = (await log.bounds()).tail
        tails = Tails(readers, start)
        try:
            await append_one_by_one(appender, self.data, 5)
            await tails.reach((await log.bounds()).tail)
            before = await self.clients.read_bytes()
            fetched = await self.clients.fetched_bytes(_READER)
            rate = plan.rate
            seconds = plan.tail_entries / rate
            await append_at_rate([appender], self.data, rate=rate, seconds=seconds)
            await tails.reach((await log.bounds()).tail)
            appended = int(rate * seconds) * len(self.data)
            if await self.clients.fetched_bytes(_READER) - fetched < appended:
                raise RuntimeError("another proxy has served the tails: nothing was measured")
            return await self.clients.read_bytes() - before
        finally:
            await tails.stop()
            await self.clients.close(readers)

    # ---- many logs

    async def _many_logs(self) -> None:
        plan = self.plan
        self.say(f"{plan.logs_rate:,} appends/s over {plan.logs} logs of one proxy")
        figures: dict[str, Any] = {}
        logs: list[AsyncLog] = []
        appenders: list[AsyncAppender] = []
        seconds = 0.0
        for count in plan.logs:
            names = [f"many-{number}" for number in range(len(logs), count)]
            started = time.perf_counter()
            logs += await self.clients.connect_all(names)
            seconds += time.perf_counter() - started
            for log in logs[len(appenders) :]:
                appenders.append(await log.own_appender())
            await append_at_rate(appenders, self.data, rate=plan.logs_rate, seconds=1.0)
            times = await append_at_rate(
                appenders, self.data, rate=plan.logs_rate, seconds=plan.logs_seconds
            )
            figures[f"{count} logs"] = _pooled([times])
            self.say(f"{count} logs: {figures[f'{count} logs']}")
        figures["seconds_to_open_all"] = round(seconds, 2)
        self.report.figures["many_logs_us"] = figures
        await self.clients.close(logs)

    # ---- failover

    async def _failover(self) -> None:
        plan = self.plan
        self.say("kill -9 of the owner, until the next acknowledged append")
        other = self.cluster.add_proxy("p1")
        await asyncio.to_thread(other.wait_ready)
        log = await self.clients.connect("failover")
        appender = await log.own_appender()
        rounds = []
        for _ in range(plan.failovers):
            await append_one_by_one(appender, self.data, 20)
            rounds.append(await self._fail_over_once(appender))
        await self.clients.close([log])
        self.report.figures["failover_seconds"] = {
            "kill_to_next_ack": [round(total, 3) for total, _ in rounds],
            "session_end_to_next_ack": [round(rest, 3) for _, rest in rounds],
        }

    async def _fail_over_once(self, appender: AsyncAppender) -> tuple[float, float]:
        """Seconds from the kill to the next ack, and from the end of the owner's session."""
        async with self._watched_owner("failover") as (port, gone):
            owner = next(
                process
                for name, process in self.cluster.proxies.items()
                if json.loads((self.cluster.directory / f"{name}.json").read_text())["port"] == port
            )
            killed_at = time.perf_counter()
            owner.kill()
            await append_one_by_one(appender, self.data, 1)
            acked_at = time.perf_counter()
            gone_at = await gone
        await asyncio.to_thread(owner.start)
        return acked_at - killed_at, acked_at - gone_at

    @contextlib.asynccontextmanager
    async def _watched_owner(self, log: str) -> AsyncIterator[tuple[int, asyncio.Future[float]]]:
        """Port of the log's owner, and when it was gone from the metadata."""
        store = await self.clients.open_store()
        try:
            path = f"/owners/{log}"
            value = await store.get(path)
            if value is None:
                raise RuntimeError(f"log {log} has no owner")
            first = value.data

            async def watch() -> float:
                changed = asyncio.Event()
                end = store.watch(path, changed.set)
                try:
                    while True:
                        changed.clear()
                        now = await store.get(path)
                        if now is None or now.data != first:
                            return time.perf_counter()
                        await changed.wait()
                finally:
                    end()

            yield int(json.loads(first)["port"]), asyncio.ensure_future(watch())
        finally:
            await store.close()

    # ---- catching up

    async def _catch_up(self) -> None:
        plan = self.plan
        self.say(f"a cold read proxy reads {plan.catch_up_entries:,} entries, and a tag of ten")
        log = await self.clients.connect("catch-up")
        started = time.perf_counter()
        entries, pending = plan.catch_up_entries, 2 * MIB
        await append_tagged(log, self.data, entries, tags=_TAGS, pending_bytes=pending)
        seconds = time.perf_counter() - started
        end = (await log.bounds()).tail
        figures: dict[str, Any] = {
            "append_mb_per_second": round(_megabytes(plan.catch_up_entries) / seconds, 1),
            "full_mb_per_second": [],
            "tag_mb_per_second": [],
        }
        for _ in range(plan.catch_up_rounds):
            for name, tags, share in (("full", None, 1), ("tag", ["t/3"], _TAGS)):
                count, seconds = await self._read_cold(tags, end)
                if count < plan.catch_up_entries // share:
                    raise RuntimeError(f"read {count} entries of {plan.catch_up_entries // share}")
                figures[f"{name}_mb_per_second"].append(round(_megabytes(count) / seconds, 1))
        self.report.figures["catch_up"] = figures
        await self.clients.close([log])

    async def _read_cold(self, tags: list[str] | None, end: int) -> tuple[int, float]:
        """Entries, and seconds until all were read, through a read proxy that has nothing yet."""
        proxy = self.cluster.proxies[_READER]
        await asyncio.to_thread(proxy.stop)
        await asyncio.to_thread(proxy.start)
        self.clients.look_again()
        reader = await self.clients.connect("catch-up")
        await count_entries(reader, ["nothing"], start=end - 1, end=end)  # it is connected
        started = time.perf_counter()
        count = await count_entries(reader, tags, start=0, end=end)
        seconds = time.perf_counter() - started
        if await self.clients.fetched_bytes(_READER) < self.plan.catch_up_entries * KIB:
            raise RuntimeError("another proxy has served the reader: nothing was measured")
        await self.clients.close([reader])
        return count, seconds


def _megabytes(entries: int) -> float:
    return entries * KIB / 1e6


def _ratios(ours: list[Times], theirs: list[Times], percent: float) -> list[float]:
    return [a.p(percent) / b.p(percent) for a, b in zip(ours, theirs, strict=True)]


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 2) for value in values]


def _pooled(rounds: list[Times]) -> dict[str, float]:
    seconds = [value for times in rounds for value in times.seconds]
    late_ms = max(times.late_ms for times in rounds)
    return {**summary(seconds, scale=1e6), "schedule_late_ms": round(late_ms, 1)}
