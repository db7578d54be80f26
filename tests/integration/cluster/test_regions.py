"""A cluster over regions and racks: where blocks lie, who serves them, what a lost region costs.

The distance between regions is simulated in the proxy (`region_delay_ms`); nodes, sockets and the
protocol are real.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.async_tests import async_fixture
from harness.in_process_cluster import InProcessCluster
from harness.waiting import best_below, until, until_refused

from penstock.errors import DeadlineExceeded, PenstockError, Unavailable
from penstock.ids import NodeId
from penstock.log.client.client import AsyncLog
from penstock.log.proxy import block_source
from penstock.log.proxy.open_log import Replication
from penstock.log.records import NewEntry
from penstock.log.replication.manifest import LogManifest
from penstock.log.replication.node_api import NodeInfo
from penstock.log.replication.placement import check_placement

REGIONS = ("east", "north", "west")
RACKS = ("r1", "r2")
RULE = Replication(segment_bytes=64 * 1024, min_regions=2)
DELAY_MS = 60.0
SECONDS = 60.0
#: What a read would wait for a node that does not answer, if it waited.
WAIT_SECONDS = block_source.DEADLINE_MS / 1000


class World:
    """A cluster with one node in each rack of each region, and all nodes that it ever had."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self.cluster = cluster
        self.seen: dict[NodeId, NodeInfo] = {}

    async def add(self, region: str, rack: str, name: str = "") -> None:
        name = name or f"{region}-{rack}"
        server = await self.cluster.start_node(name, region=region, rack=rack, trim_seconds=0.2)
        await server.wait_registered()
        self.seen[server.info.id] = server.info

    async def stop(self, names: Iterable[str]) -> None:
        await asyncio.gather(*(self.cluster.stop_node(name) for name in names))

    def of(self, region: str) -> list[str]:
        return [name for name in self.cluster.nodes if name.startswith(region)]

    def problems(self, min_regions: int = 2) -> list[str]:
        """What is wrong with any ensemble of any segment."""
        return [
            f"segment {segment.id}: {problem}"
            for segment in self.cluster.manifest().segments
            for ensemble in segment.ensembles
            for problem in check_placement(
                ensemble.nodes,
                self.seen,
                write_quorum=segment.write_quorum,
                ack_quorum=segment.ack_quorum,
                min_regions=min_regions,
            )
        ]

    def read_bytes(self) -> dict[str, int]:
        return {name: server.metrics.read_bytes for name, (server, _) in self.cluster.nodes.items()}


@asynccontextmanager
async def world(
    directory: Path,
    *,
    regions: Iterable[str] = REGIONS,
    racks: Iterable[str] = RACKS,
    rule: Replication = RULE,
) -> AsyncIterator[World]:
    found = World(InProcessCluster(directory, rule))
    try:
        for region in regions:
            for rack in racks:
                await found.add(region, rack)
        yield found
    finally:
        await found.cluster.stop()


async def append(log: AsyncLog, count: int, size: int = 1000) -> None:
    async with asyncio.timeout(SECONDS):
        for number in range(count):
            await log.append([NewEntry(b"%06d" % number + bytes(size), ("t",))])


@async_fixture
async def here(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as here:
        yield here


# ---- R50: placement


async def test_every_ack_quorum_spans_two_regions_also_after_a_node_was_replaced(
    here: World,
) -> None:
    await here.cluster.start_proxy(region="east")
    async with await here.cluster.connect() as log:
        await append(log, 150)
        before = here.cluster.manifest()
        assert len(before.segments) >= 2
        assert here.problems() == []

        for _ in range(2):
            members = here.cluster.manifest().segments[-1].ensembles[-1].nodes
            lost = here.seen[members[0]]
            await here.stop([lost.name])
            await append(log, 5)
            await until(
                lambda gone=lost.id: gone not in _members(here.cluster.manifest()),
                f"{lost.id} was not replaced",
            )
            assert here.problems() == []
            await append(log, 100)
            assert here.problems() == []
            await here.add(lost.region, lost.rack, lost.name)
        ensembles = [s for s in here.cluster.manifest().segments if len(s.ensembles) > 1]
        assert ensembles, "no ensemble was changed"
        assert len([entry async for entry in _all(log)]) == 150 + 2 * 105


def _members(manifest: LogManifest) -> set[NodeId]:
    """Who takes new blocks."""
    return set(manifest.segments[-1].ensembles[-1].nodes)


async def _all(log: AsyncLog) -> AsyncIterator[bytes]:
    end = (await log.bounds()).tail
    async with log.tail(["t"], start=0, end=end) as reader:
        async for batch in reader:
            for entry in batch.entries:
                yield entry.payload


async def test_a_replacement_that_would_break_the_rule_is_not_made(tmp_path: Path) -> None:
    """Two nodes in the west, none left elsewhere: the place of the lost one stays empty."""
    async with world(tmp_path, racks=["r1"]) as here:
        await here.cluster.start_proxy(region="east")
        async with await here.cluster.connect() as log:
            await append(log, 10)
            await here.add("west", "r2")
            await here.stop(["east-r1"])
            await append(log, 10)  # north and west: two regions
            await asyncio.sleep(1.5)  # longer than a lost node is waited for
            await append(log, 10)
            assert here.problems() == []
            assert "west-r2" not in {
                node.rpartition(":")[0] for node in _members(here.cluster.manifest())
            }


# ---- a whole region


async def test_a_lost_region_stops_nobody_while_two_are_left(here: World) -> None:
    await here.cluster.start_proxy(region="west")
    async with await here.cluster.connect() as log:
        await append(log, 20)
        await here.stop(here.of("east"))
        await append(log, 100)  # over the end of a segment
        assert len(here.cluster.manifest().segments) >= 2
        assert here.problems() == []
        assert len([entry async for entry in _all(log)]) == 120


async def test_with_one_region_left_nothing_is_acknowledged_and_it_is_said_why(
    caplog: pytest.LogCaptureFixture, here: World
) -> None:
    await here.cluster.start_proxy(region="west")
    async with await here.cluster.connect() as log:
        await append(log, 20)
        await here.stop([*here.of("east"), *here.of("north")])
        lost = asyncio.create_task(log.append([NewEntry(b"lost?", ("t",))]))
        await until(lambda: any("span 2 regions" in line for line in caplog.messages))
        done, _ = await asyncio.wait([lost], timeout=1.0)
        assert not done or isinstance(lost.exception(), Unavailable | DeadlineExceeded)
        lost.cancel()
        await asyncio.gather(lost, return_exceptions=True)

        await until_refused(
            lambda: here.cluster.connect("another", timeout=1.5), PenstockError, "span 2 regions"
        )

        # The others come back, and so does the log.
        for region in ("east", "north"):
            for rack in RACKS:
                await here.add(region, rack)
        await append(log, 20)
        assert here.problems() == []


# ---- reads

#: Every node has every block, so that who serves it is the reader's choice alone.
EVERYWHERE = Replication(
    ensemble=6, write_quorum=6, ack_quorum=4, min_regions=2, segment_bytes=64 * 1024
)
ENTRIES = 300


@async_fixture
async def written(tmp_path: Path) -> AsyncIterator[World]:
    """300 entries, all of them on all nodes."""
    async with world(tmp_path, rule=EVERYWHERE) as here:
        await here.cluster.start_proxy(region="north")
        async with await here.cluster.connect() as log:
            await append(log, ENTRIES)
        assert here.problems() == [] and len(here.cluster.manifest().segments) > 3
        yield here


async def read_in_the_east(here: World) -> tuple[dict[str, int], float, int]:
    """A new read proxy reads everything: bytes by node, seconds, reads that asked one more."""
    proxy = await here.cluster.start_proxy(
        role="read", region="east", rack="r1", region_delay_ms=DELAY_MS
    )
    before = here.read_bytes()
    async with asyncio.timeout(SECONDS), await here.cluster.connect(region="east") as log:
        await log.bounds()
        started = time.monotonic()
        assert len([entry async for entry in _all(log)]) == ENTRIES
        seconds = time.monotonic() - started
    await here.cluster.stop_proxy(proxy)
    spent = {name: size - before[name] for name, size in here.read_bytes().items()}
    assert sum(spent.values()) > ENTRIES * 1000, "somebody else has served the reader"
    gauge = next(
        x for x in proxy.metrics_text().splitlines() if x.startswith("penstock_speculative_reads ")
    )
    return spent, seconds, int(gauge.split()[-1])


def share(spent: dict[str, int], *names: str) -> float:
    return sum(size for name, size in spent.items() if name in names) / sum(spent.values())


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is slow for a moment is waited for, as one that hangs would be: 10 s."""
    for name in ("SPECULATE_MS", "POLL_SPECULATE_MS"):
        monkeypatch.setattr(block_source, name, block_source.DEADLINE_MS)


@pytest.mark.usefixtures("patient")
async def test_reads_are_served_by_the_nearest_replica(written: World) -> None:
    spent, _, _ = await read_in_the_east(written)
    # At the tail a second node may be asked as well, and show the newest block again.
    assert share(spent, "east-r1") > 0.95, spent
    assert share(spent, *written.of("north"), *written.of("west")) < 0.02, spent


@pytest.mark.usefixtures("patient")
async def test_without_the_nearest_node_the_next_rack_serves_then_another_region(
    written: World,
) -> None:
    await written.stop(["east-r1"])
    spent, seconds, _ = await read_in_the_east(written)
    assert share(spent, "east-r2") > 0.95, spent
    assert seconds < WAIT_SECONDS

    await written.stop(["east-r2"])
    spent, seconds, _ = await read_in_the_east(written)
    assert share(spent, *written.of("north"), *written.of("west")) == 1.0
    # A round trip to another region for each request, of which there are some in each
    # segment; but no request waits for a node that is gone.
    assert seconds < WAIT_SECONDS


async def test_a_node_that_hangs_is_passed_over_after_a_delay_and_then_not_asked_first(
    written: World,
) -> None:
    _, healthy, _ = await read_in_the_east(written)
    server, _ = written.cluster.nodes["east-r1"]
    asked = []
    server.owner.read = lambda reply, read, trusted: asked.append(read)  # type: ignore

    async def seconds_at_worst() -> float:
        """How long it took, if nobody else was slow, too."""
        asked.clear()
        spent, seconds, speculated = await read_in_the_east(written)
        assert asked, "it was never asked"
        print(f"{seconds:.2f} s, healthy {healthy:.2f} s, speculated {speculated}, {len(asked)=}")
        # The first reads wait for it, the others know better.
        is_calm = share(spent, "east-r2") > 0.9 and speculated <= 8 and len(asked) <= 8
        return seconds if is_calm else math.inf

    await best_below(healthy + 3.0, seconds_at_worst)
