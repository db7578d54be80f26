"""The server is killed a hundred times under load, and every acknowledged entry survives.

A killed process keeps its page cache, so this says nothing about fsync (that is the business of the
crash-state tests). It says that recovery, retry, reconnection and resumed readers fit together.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvloop
from fault_workload import TAGS, Writer, clients, count_up, follow, read_final, settle
from harness.history import History, Outcome, check_counter
from harness.server_process import ServerProcess
from harness.soak import fresh_seeds
from harness.waiting import until

from penstock.limits import KIB
from penstock.log.storage.disk import RealDisk
from penstock.log.storage.manifest import FileManifestStore, Manifest
from penstock.log.storage.verify import verify_log

SEED = 20260601
#: Small, so that rolls, index files and snapshots happen between the kills.
SEGMENT_BYTES = 256 * KIB


@dataclass(slots=True)
class Kills:
    """What the killer did."""

    serving: int = 0
    recovering: int = 0

    @property
    def total(self) -> int:
        return self.serving + self.recovering


def kill_often(server: ServerProcess, rng: random.Random, count: int) -> Kills:
    """Kill a running server `count` times, about a third of them while it recovers."""
    kills = Kills()
    while kills.total < count:
        if rng.random() < 0.35:
            server.wait_recovering()
            time.sleep(rng.random() * 0.02)
        else:
            server.wait_ready()
            time.sleep(rng.uniform(0.05, 0.5))
        if server.is_ready:
            kills.serving += 1
        else:
            kills.recovering += 1
        server.kill()
        server.launch()
    server.wait_ready()
    return kills


def read_manifest(server: ServerProcess) -> Manifest:
    manifest = FileManifestStore(RealDisk(server.data_dir / "log")).read()
    assert manifest is not None
    return manifest


async def run_under_load(server: ServerProcess, seed: int, count: int) -> tuple[History, Kills]:
    """Writers, rival counters and tails run on while the killer is at work; returns the history.

    All problems that the history shows are asserted here.
    """
    history = History()
    rng = random.Random(seed)
    stop = asyncio.Event()
    async with clients(server.endpoint(), 4) as logs:
        work = [
            asyncio.create_task(
                Writer(
                    logs[n % 3],
                    history,
                    f"writer-{n}",
                    random.Random(rng.random()),
                    outstanding=16,
                    pause_seconds=0.001,
                ).run(stop)
            )
            for n in range(4)
        ]
        work += [
            asyncio.create_task(count_up(logs[n], history, f"counter-{n}", "count", stop))
            for n in range(2)
        ]
        readings = [
            history.reading("everything", None),
            history.reading("one tag", TAGS[:1]),
            history.reading("three tags", TAGS[2:5]),
        ]
        tails = [asyncio.create_task(follow(logs[3], reading)) for reading in readings]

        kills = await asyncio.to_thread(kill_often, server, rng, count)
        # A busy machine does less between two kills: some of it comes after the last one.
        await until(lambda: history.count(Outcome.OK) >= 20 * count, seconds=120)
        await until(lambda: len(read_manifest(server).segments) > count // 10, seconds=120)
        stop.set()
        await asyncio.gather(*work)

        final, by_tag = await read_final(logs[0])
        await settle(readings, tails, final[-1].lsn + 1)
    assert history.check(final, by_tag) == []
    counted = [append for append in history.appends if append.client.startswith("counter-")]
    ok = sum(append.outcome is Outcome.OK for append in counted)
    unknown = sum(append.outcome is Outcome.UNKNOWN for append in counted)
    assert check_counter(final, "count", ok=ok, unknown=unknown) == []
    return history, kills


def kill_and_check(tmp_path: Path, seed: int, count: int) -> None:
    print(f"seed {seed}")
    with ServerProcess(tmp_path / "data", segment_bytes=SEGMENT_BYTES) as server:
        history, kills = uvloop.run(run_under_load(server, seed, count))

        manifest = read_manifest(server)
        print(
            f"{kills}, {history.count(Outcome.OK)} appends ok, "
            f"{history.count(Outcome.REFUSED)} refused, {history.count(Outcome.UNKNOWN)} unknown, "
            f"{len(manifest.segments)} segments, epoch {manifest.epoch}"
        )
        # Each of these happened, or the test proves less than it says.
        assert kills.total == count
        assert kills.recovering >= count // 20
        names = RealDisk(server.data_dir / "log").names()
        assert any(name.endswith(".idx") for name in names)
        assert any(name.startswith("snap-") for name in names)
        assert server.stop() == 0
        assert verify_log(RealDisk(server.data_dir / "log")).findings == []


@pytest.mark.timeout(240)
def test_a_hundred_kills_under_load_lose_double_and_reorder_nothing(tmp_path: Path) -> None:
    kill_and_check(tmp_path, SEED, 100)


@pytest.mark.soak
def test_kills_under_load_with_fresh_seeds(tmp_path: Path) -> None:
    for seed in fresh_seeds():
        kill_and_check(tmp_path / str(seed), seed, 300)
