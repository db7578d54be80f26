"""Dozens of faults on a replicated log under load: nothing acknowledged is lost, doubled or moved.

Method: rounds. In each, three lanes of faults (nodes, proxies, metadata) strike at the same time
while clients go on; then everything heals, clients must get on within a bounded time (I16), and
the whole history is checked against the whole log. Every other round runs beside a busy processor.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import uvloop
from cluster_nemesis import FireCluster, Nemesis, busy_processor, fire_cluster
from cluster_workload import ClusterHistory, Load, Watcher, route, watching
from fault_workload import TAGS
from harness.history import Outcome
from harness.soak import fresh_seeds
from harness.waiting import until

from penstock.log.replication.manifest import LogManifest

SEED = 20261117
LOG = "main"
#: Faults of one round, per lane; the lanes take about the same time.
NODE_CYCLES, PROXY_CYCLES, METADATA_CYCLES = 10, 5, 6
ROUND_CYCLES = NODE_CYCLES + PROXY_CYCLES + METADATA_CYCLES
ROUNDS = 3
#: Each campaign has a cluster of its own: the whole log is read after every round.
SOAK_ROUNDS = 10
#: After the last fault: until an append is acknowledged, and until tails have seen everything.
HEAL_SECONDS = 20.0
QUIET_SECONDS = 45.0
#: A node that stays away is replaced after about a second, unless its segment ends before.
REPLACE_SECONDS = 60.0


async def round_of_faults(nemesis: Nemesis, load: Load, tags: Sequence[str]) -> str:
    """Strike, heal, check; returns how it went."""
    history = load.history
    acked = history.count(Outcome.OK)
    started = time.monotonic()
    load.start()
    await asyncio.gather(
        nemesis.strike(nemesis.node_faults(), NODE_CYCLES),
        nemesis.strike(nemesis.proxy_faults(), PROXY_CYCLES),
        nemesis.strike(nemesis.metadata_faults(), METADATA_CYCLES),
    )
    healed = time.monotonic()
    answered = await load.next_answer(HEAL_SECONDS)
    # However little was done meanwhile on a busy machine.
    await until(lambda: history.count(Outcome.OK) - acked >= 5 * ROUND_CYCLES, seconds=60)
    await load.quiet(QUIET_SECONDS)
    quiet = time.monotonic()
    final = await load.check(HEAL_SECONDS, tags)
    return (
        f"{history.count(Outcome.OK) - acked} appends ok, {len(final)} entries; "
        f"struck for {healed - started:.1f} s, first ack after {answered - healed:.2f} s, "
        f"quiet after {quiet - healed:.1f} s, checked after {time.monotonic() - quiet:.1f} s"
    )


async def lose_a_node(fire: FireCluster, watcher: Watcher, load: Load) -> None:
    """Under load one node after the other stays away, until another has taken a place.

    Chance alone may not do it: owners die, and segments end, before a node has been gone for long.
    """
    load.start()
    async with asyncio.timeout(REPLACE_SECONDS):
        while not replaced_nodes(await watcher.manifest()):
            segment = (await watcher.manifest()).segments[-1]
            node = fire.cluster.nodes[segment.ensembles[-1].nodes[0].partition(":")[0]]
            node.kill()
            while segment.id == (newest := (await watcher.manifest()).segments[-1]).id:
                if len(newest.ensembles) > 1:
                    break
                await asyncio.sleep(0.05)
            await asyncio.to_thread(node.start)
    await load.quiet(QUIET_SECONDS)


def replaced_nodes(manifest: LogManifest) -> int:
    return sum(len(segment.ensembles) - 1 for segment in manifest.segments)


async def campaign(directory: Path, seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    history = ClusterHistory()
    async with fire_cluster(directory, nodes=4, proxies=2) as fire:
        cluster = fire.cluster
        async with (
            watching(cluster, LOG) as watcher,
            Load(lambda: route(cluster, LOG), history, seed, pause_seconds=0.01) as load,
        ):
            nemesis = Nemesis(fire, watcher, rng)
            for number in range(rounds):
                busy = busy_processor(os.cpu_count() or 1) if number % 2 else nullcontext()
                # By tag, the whole log is read as often as there are tags: all of them at the end.
                tags = (TAGS[number % len(TAGS)],)
                with busy:
                    print(f"round {number}: {await round_of_faults(nemesis, load, tags)}")
            await lose_a_node(fire, watcher, load)
            await load.check(HEAL_SECONDS)
            manifest = await watcher.manifest()
            kinds = [*nemesis.node_faults(), *nemesis.proxy_faults(), *nemesis.metadata_faults()]
    fired = nemesis.fired
    replaced = replaced_nodes(manifest)
    print(
        f"{sum(fired.values())} faults struck: {dict(fired)}; "
        f"{history.count(Outcome.OK)} appends ok, {history.count(Outcome.REFUSED)} refused, "
        f"{history.count(Outcome.UNKNOWN)} unknown, epoch {manifest.epoch}, "
        f"{len(manifest.segments)} segments, {replaced} replaced nodes"
    )
    # Each of these happened, or the test proves less than it says.
    assert [kind for kind in kinds if not fired[kind]] == []
    assert sum(fired.values()) >= 0.75 * rounds * ROUND_CYCLES
    assert history.count(Outcome.OK) >= 5 * rounds * ROUND_CYCLES
    assert manifest.epoch > rounds and replaced > 0


@contextmanager
def told(directory: Path) -> Iterator[None]:
    """If it fails: what the processes said last."""
    try:
        yield
    except BaseException:
        for output in sorted(directory.glob("*.out")):
            print(f"--- {output.name}\n" + "\n".join(output.read_text().splitlines()[-15:]))
        raise


@pytest.mark.timeout(280)
def test_dozens_of_faults_lose_double_and_reorder_nothing(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    with told(tmp_path):
        uvloop.run(campaign(tmp_path, SEED, ROUNDS))


@pytest.mark.soak
def test_campaigns_of_faults_with_fresh_seeds(tmp_path: Path) -> None:
    for seed in fresh_seeds():
        directory = tmp_path / str(seed)
        with told(directory):
            uvloop.run(campaign(directory, seed, SOAK_ROUNDS))
