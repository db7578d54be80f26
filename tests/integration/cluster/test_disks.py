"""Disks are lost, wiped and damaged: what was acknowledged is read back, byte for byte (I1, I17).

Method: ZooKeeper, nodes and proxies as processes; some megabytes in small segments; then disks are
taken away or bits of their files flipped, and a fresh proxy, which has nothing in memory, reads
everything. A read may refuse. It may not return other bytes.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import combinations
from pathlib import Path

import pytest
from cluster_workload import Watcher, route, wait_state, watching
from harness.waiting import until

from penstock.errors import PenstockError, Retryable, Unavailable
from penstock.limits import BLOCK_BYTES_MAX, KIB, MIB, SEGMENT_BYTES_MIN
from penstock.log.client.client import AsyncLog
from penstock.log.local_cluster import LocalCluster
from penstock.log.node.client import NetworkNodes
from penstock.log.records import Entry, NewEntry
from penstock.log.replication.manifest import SegmentKey
from penstock.log.replication.placement import machine_of
from penstock.log.replication.quorum import replicas
from penstock.log.serving.directory import read_token

SEED = 20261118
LOG = "main"
TAGS = ("red", "green", "blue")
WRITTEN_BYTES = 3 * MIB
#: The least: with more than that written, some of it lies in segment files.
JOURNAL_BYTES = BLOCK_BYTES_MAX
#: Until a wiped node has everything again.
REFILL_SECONDS = 60.0
SESSION_SECONDS = 1.0


def start(directory: Path, *, nodes: int = 3, ack_quorum: int = 2) -> LocalCluster:
    """Every block goes to all nodes."""
    cluster = LocalCluster(directory)
    try:
        cluster.start_metadata()
        for number in range(nodes):
            cluster.add_node(f"n{number}", {"journal-bytes": JOURNAL_BYTES})
        options = {
            "session-seconds": SESSION_SECONDS,
            "segment-bytes": SEGMENT_BYTES_MIN,
            "ensemble": nodes,
            "write-quorum": nodes,
            "ack-quorum": ack_quorum,
        }
        cluster.add_proxy("p0", options)
        for process in [*cluster.nodes.values(), *cluster.proxies.values()]:
            process.wait_ready()
    except BaseException:
        cluster.stop()
        raise
    return cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with start(tmp_path / "cluster") as started:
        yield started


@asynccontextmanager
async def connected(cluster: LocalCluster, timeout: float = 30.0) -> AsyncIterator[AsyncLog]:
    log = await AsyncLog.connect(route(cluster, LOG), timeout=timeout)
    try:
        yield log
    finally:
        log.abandon()
        await log.close()


async def write(cluster: LocalCluster, size: int = WRITTEN_BYTES) -> dict[int, bytes]:
    """Some megabytes, many appends on their way at once; what lies at which LSN."""
    rng = random.Random(SEED)
    written: dict[int, bytes] = {}

    async def append(log: AsyncLog) -> None:
        payload = rng.randbytes(rng.randrange(1, 16 * KIB))
        tag = TAGS[len(payload) % len(TAGS)]
        written[(await log.append([NewEntry(payload, (tag,))])).first_lsn] = payload

    async with connected(cluster) as log:
        while sum(map(len, written.values())) < size:
            await asyncio.gather(*(append(log) for _ in range(16)))
    return written


def check_equal(found: list[Entry], written: dict[int, bytes]) -> None:
    payloads = {entry.lsn: entry.payload for entry in found}
    wrong = [lsn for lsn, payload in written.items() if payloads.get(lsn) != payload]
    assert wrong == [], f"{len(wrong)} of {len(written)} entries are lost or changed: {wrong[:20]}"


async def read_back(cluster: LocalCluster, written: dict[int, bytes]) -> None:
    """Everything, as one log and by tag, with equal bytes."""
    async with connected(cluster) as log:
        entries = await log.read()
        check_equal(entries, written)
        for tag in TAGS:
            assert await log.read([tag]) == [entry for entry in entries if tag in entry.tags]


def restart_proxies(cluster: LocalCluster) -> None:
    """All of them are fresh then, with nothing in memory."""
    for proxy in cluster.proxies.values():
        proxy.kill()
    for proxy in cluster.proxies.values():
        proxy.start()


# ---- lost disks


@pytest.mark.parametrize(
    ("nodes", "ack_quorum", "choices", "tried"),
    [(3, 2, 3, 3), (5, 3, 10, 3), pytest.param(5, 3, 10, 10, marks=pytest.mark.soak)],
)
async def test_everything_is_read_without_any_nodes_that_a_write_quorum_can_miss(
    tmp_path: Path, nodes: int, ack_quorum: int, choices: int, tried: int
) -> None:
    """Choices of as many disks as the write quorum is larger than the ack quorum."""
    with start(tmp_path / "cluster", nodes=nodes, ack_quorum=ack_quorum) as cluster:
        written = await write(cluster)
        chosen_ones = list(combinations(cluster.nodes, nodes - ack_quorum))
        assert len(chosen_ones) == choices
        for chosen in chosen_ones[:: choices // tried]:
            for name in chosen:
                cluster.nodes[name].kill()
                (cluster.directory / name).rename(cluster.directory / f"{name}.gone")
            restart_proxies(cluster)
            await read_back(cluster, written)
            for name in chosen:
                # As it was: the next choice finds all others whole.
                (cluster.directory / f"{name}.gone").rename(cluster.directory / name)
                cluster.nodes[name].start()


async def collect(log: AsyncLog, seen: list[bytes]) -> None:
    async with log.tail(start=0) as reader:
        async for batch in reader:
            seen += [entry.payload for entry in batch.entries]


async def test_nothing_is_acknowledged_or_shown_below_the_ack_quorum(cluster: LocalCluster) -> None:
    """Two of three nodes sleep and die in their sleep; then the third one's disk is lost, which
    alone must not have been enough. A reader on another proxy sees nothing of it before (R07).
    """
    sleepers = [cluster.nodes["n1"], cluster.nodes["n2"]]
    cluster.add_proxy("r0", {"role": "read", "session-seconds": SESSION_SECONDS}).wait_ready()

    seen: list[bytes] = []
    async with connected(cluster, timeout=90.0) as log:
        reading = asyncio.create_task(collect(log, seen))
        await log.append([NewEntry(b"before", ("t",))])
        await until(lambda: b"before" in seen)
        for node in sleepers:
            node.signal(signal.SIGSTOP)
            await asyncio.to_thread(wait_state, node.pid, "T")
        payloads = [b"%d" % number for number in range(20)]
        appends = [asyncio.create_task(log.append([NewEntry(p)])) for p in payloads]
        done, _ = await asyncio.wait(appends, timeout=1.0)
        early = set(seen) & set(payloads)
        for node in [*sleepers, cluster.nodes["n0"]]:
            node.kill()
        shutil.rmtree(cluster.directory / "n0")
        for node in sleepers:
            await asyncio.to_thread(node.start)
        print(f"{len(done)} appends were acknowledged by one node")
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*appends)
        await until(lambda: set(payloads) <= set(seen))
        reading.cancel()
        assert early == set(), "a reader saw what only one node has"
    written = {answer.first_lsn: p for answer, p in zip(answers, payloads, strict=True)}
    await asyncio.to_thread(restart_proxies, cluster)
    await read_back(cluster, written)


async def test_a_wiped_node_comes_back_as_another_and_is_filled_again(
    cluster: LocalCluster,
) -> None:
    written = await write(cluster)
    async with watching(cluster, LOG, session_seconds=30.0) as watcher:
        before = await ids_in_manifest(watcher)
        cluster.nodes["n1"].kill()
        shutil.rmtree(cluster.directory / "n1")
        await asyncio.to_thread(cluster.nodes["n1"].start)
        nodes = NetworkNodes(watcher.store, token=read_token(cluster.node_token_file))
        await nodes.start()
        try:
            await until(lambda: is_whole(watcher, nodes), seconds=REFILL_SECONDS)
        finally:
            await nodes.close()
        after = await ids_in_manifest(watcher)
        (new,) = after - before
        assert machine_of(new) == "n1"
    # What it was given is right: one of the others is not needed any more.
    cluster.nodes["n0"].kill()
    shutil.rmtree(cluster.directory / "n0")
    await asyncio.to_thread(restart_proxies, cluster)
    await read_back(cluster, written)


async def ids_in_manifest(watcher: Watcher) -> set[str]:
    """Of all nodes in the newest ensembles of sealed segments."""
    sealed = [segment for segment in (await watcher.manifest()).segments if segment.sealed]
    assert sealed
    return {str(node) for segment in sealed for e in segment.ensembles for node in e.nodes}


async def is_whole(watcher: Watcher, nodes: NetworkNodes) -> bool:
    """Every node that the manifest names holds every block that it should."""
    manifest = await watcher.manifest()
    for segment in manifest.segments:
        if not segment.sealed:
            continue
        for part, end in ((0, segment.blocks), (1, segment.index_blocks)):
            key = SegmentKey(LOG, segment.id, part)
            for node in {node for block in range(end) for node in replicas(segment, block, part)}:
                client = nodes.client(node)
                if client is None:
                    return False
                try:
                    has = await client.list_blocks(key, 0, end)
                except Retryable:
                    return False  # it starts, or it is registered under its last life's port
                held = {block for first, last in has for block in range(first, last)}
                wanted = {b for b in range(end) if node in replicas(segment, b, part)}
                if not wanted <= held:
                    return False
    return True


# ---- damaged disks


def flip(path: Path, rng: random.Random, count: int) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(min(count, len(data))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


@pytest.mark.parametrize("part", ["segments", pytest.param("journal", marks=pytest.mark.soak)])
async def test_flipped_bits_of_one_replica_are_never_read(tmp_path: Path, part: str) -> None:
    """Wherever a bit flips on one disk, readers are given the bytes of another replica."""
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    with start(tmp_path / "cluster") as cluster:
        written = await write(cluster, 2 * JOURNAL_BYTES + MIB)
        node = cluster.nodes["n1"]
        node.kill()
        directory = cluster.directory / "n1" / part
        files = [p for p in sorted(directory.iterdir()) if p.stat().st_size > 4 * KIB]
        assert files, f"{part} is empty: {sorted(directory.iterdir())}"
        for path in files:
            flip(path, rng, 1 + path.stat().st_size // (64 * KIB))
        try:
            node.start()
        except PenstockError:
            print(f"the node refuses its disk: {node.last_line()}")
        restart_proxies(cluster)
        await read_back(cluster, written)
        text = node.output.read_text()
        print([line for line in text.splitlines() if "ERROR" in line][:5])
        # With one of the others away, whose bytes are whole: right bytes, or none.
        cluster.nodes["n0"].kill()
        restart_proxies(cluster)
        print(f"without n0: {await read_or_refuse(cluster, written)} reads were refused")
        cluster.nodes["n0"].start()
        await read_back(cluster, written)


async def read_or_refuse(cluster: LocalCluster, written: dict[int, bytes]) -> int:
    """Returns how many reads were refused; of the others none was wrong."""
    refused, asked = 0, list(written)[::20]
    try:
        async with connected(cluster, timeout=4.0) as log:
            for lsn in asked:
                try:
                    entries = await log.read(start=lsn, end=lsn + 1)
                except PenstockError:
                    refused += 1
                    continue
                assert [entry.payload for entry in entries] == [written[lsn]]
    except Unavailable:
        return len(asked)
    return refused
