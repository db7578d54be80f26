"""From dispatch to receipt: a player's batches on their way to targets in other processes.

Owns the scenario of LogPlayer 6.3 and its bars. Transactions come at a fixed rate, and each touches
half of the targets, with 1 KiB for each. Over frames the targets are on 4 hosts, and one message
has the batches of all targets of a host; over gRPC each target is a process. The two take turns
within the run, since a shared machine drifts.

Dispatch is when the player hands the first batch of a transaction to a host, receipt when a target
is called with its batch. Targets do nothing with it: what is measured is the way there.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from penstock.limits import KIB
from penstock_bench.deliver_load import Dispatcher, HostProcess
from penstock_bench.measure import percentile, summary
from penstock_bench.report import Check, Report, Say

#: LogPlayer, figure 9(a): the median and the 99th percentile, for up to 20 targets.
FRAMES_P50_MS: Final = 0.32
FRAMES_P99_MS: Final = 0.78
GRPC_P50_MS: Final = 1.6
_FRAMES_HOSTS: Final = 4
_WARM_UP: Final = 20


@dataclass(frozen=True, slots=True)
class HostSizes:
    """How much of it."""

    rounds: int = 5
    transactions: int = 800
    rate: int = 200
    row_bytes: int = KIB
    targets: tuple[int, ...] = (1, 5, 10, 20)


def measure_hosts(root: Path, sizes: HostSizes, report: Report, say: Say) -> None:
    """All numbers of targets; the bars are for the largest."""
    figures: dict[str, Any] = {}
    for count in sizes.targets:
        rounds: dict[str, list[list[float]]] = {"frames": [], "grpc": []}
        with (
            _hosts("target", count, min(_FRAMES_HOSTS, count), root) as frames,
            _hosts("grpc", count, count, root) as grpc,
        ):
            for _ in range(sizes.rounds):
                rounds["frames"].append(_round(frames, sizes, root))
                rounds["grpc"].append(_round(grpc, sizes, root))
        figures[f"{count} targets"] = {name: _figures(found) for name, found in rounds.items()}
        for name, found in rounds.items():
            say(f"{count} targets over {name}: {_figures(found)['ms']}")
    report.figures["dispatch_to_receipt"] = figures
    largest = figures[f"{sizes.targets[-1]} targets"]
    touched = max(1, sizes.targets[-1] // 2)
    detail = f"{touched} of {sizes.targets[-1]} targets in a transaction; median of rounds"
    for name, percent, bar in (
        ("frames", "p50", FRAMES_P50_MS),
        ("frames", "p99", FRAMES_P99_MS),
        ("grpc", "p50", GRPC_P50_MS),
    ):
        value = statistics.median(largest[name][f"{percent}_ms_rounds"])
        check = Check(f"{name}_receipt_{percent}", value, bar, "at most", "ms", detail)
        report.judge(check, say)


def _figures(rounds: list[list[float]]) -> dict[str, Any]:
    return {
        "ms": summary([value for found in rounds for value in found], digits=3),
        "p50_ms_rounds": [round(percentile(found, 50), 3) for found in rounds],
        "p99_ms_rounds": [round(percentile(found, 99), 3) for found in rounds],
    }


@contextlib.contextmanager
def _hosts(protocol: str, targets: int, processes: int, root: Path) -> Iterator[list[HostProcess]]:
    """So many targets, by turns over so many processes."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                HostProcess(protocol, range(number, targets, processes), root / "token")
            )
            for number in range(processes)
        ]


def _round(hosts: list[HostProcess], sizes: HostSizes, root: Path) -> list[float]:
    """Milliseconds from dispatch to receipt, of every batch."""
    sent = uvloop.run(_dispatch(hosts, sizes, root))
    return [
        (received - sent[shard, upto]) / 1e6
        for host in hosts
        for shard, upto, received in host.receipts()
        if upto > _WARM_UP
    ]


async def _dispatch(
    hosts: list[HostProcess], sizes: HostSizes, root: Path
) -> dict[tuple[int, int], int]:
    """When each batch was dispatched, by shard and its end."""
    chance = random.Random(1)
    shards = [shard for host in hosts for shard in host.shards]
    sent: dict[tuple[int, int], int] = {}
    async with Dispatcher(hosts, root / "token", row_bytes=sizes.row_bytes) as dispatcher:
        start = time.monotonic()
        for number in range(sizes.transactions + _WARM_UP):
            touched = chance.sample(shards, max(1, len(shards) // 2))
            batches = dispatcher.make(sorted(touched))
            await asyncio.sleep(max(0.0, start + number / sizes.rate - time.monotonic()))
            now = time.monotonic_ns()
            dispatcher.dispatch(batches)
            sent |= {(batch.shard, batch.upto): now for batch in batches}
        await dispatcher.wait_acked()
    return sent
