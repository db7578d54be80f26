"""The storage node as a process: killed, stopped, started wrongly, and on a disk that fails."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path
from random import Random

from node_blocks import make_block
from served_node import NodeProcess, add_all

from penstock.errors import Fenced, PenstockError
from penstock.limits import BLOCK_BYTES_MAX, KIB
from penstock.log.block_format import check_block
from penstock.log.node.client import NetworkNodeClient
from penstock.log.replication.manifest import SegmentKey
from penstock.log.replication.node_api import Found, NodeInfo

KEYS = [SegmentKey(f"log_{number}", 3) for number in range(3)]


def block_of(key: SegmentKey, block: int) -> bytes:
    random = Random(f"{key}{block}")
    return make_block(block, random.randbytes(random.randrange(60 * KIB)), segment=key.segment)


async def write_until_killed(
    node: NodeProcess, info: NodeInfo, first: int, acknowledged: set[tuple[SegmentKey, int]]
) -> int:
    """Pipelined adds; the node is killed in the middle of them. The next block to write.

    The last third is on its way when the node is dead, however quick it was until then.
    """
    client = NetworkNodeClient(info, token=node.token)
    outcomes: list[PenstockError | None] = []
    count = 120
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def send(key: SegmentKey, block: int) -> None:
        def added(error: PenstockError | None) -> None:
            outcomes.append(error)
            if error is None:
                acknowledged.add((key, block))
            if len(outcomes) == count:
                node.kill()
                for later in range(first + 2 * count // 3, first + count):
                    for each in KEYS:
                        loop.call_soon(send, each, later)
            if len(outcomes) == 3 * count:
                ended.set()

        client.add(key, 1, [block_of(key, block)], added)

    for block in range(first, first + 2 * count // 3):
        for key in KEYS:
            send(key, block)
    async with asyncio.timeout(60):
        await ended.wait()
    client.close()
    assert None in outcomes and any(outcomes)
    return first + count


async def check_all(
    node: NodeProcess, info: NodeInfo, acknowledged: set[tuple[SegmentKey, int]]
) -> None:
    client = NetworkNodeClient(info, token=node.token)
    for key in KEYS:
        ranges = await client.list_blocks(key, 0, 10**6)
        here = {block for first, end in ranges for block in range(first, end)}
        wanted = {block for at, block in acknowledged if at == key}
        assert wanted <= here
        for first, end in ranges:
            at = first
            while at < end:
                read = await client.read(key, at, durable_block=end)
                assert read.found is Found.HERE
                data = memoryview(read.data)
                while data:
                    header, _ = check_block(data)
                    assert header.block == at
                    assert bytes(data[: header.block_bytes]) == block_of(key, at)
                    data = data[header.block_bytes :]
                    at += 1
    client.close()


async def test_a_node_killed_again_and_again_keeps_every_acknowledged_block(
    tmp_path: Path, metadata: str
) -> None:
    acknowledged: set[tuple[SegmentKey, int]] = set()

    node = NodeProcess(tmp_path, metadata, "n1", "--journal-bytes", str(BLOCK_BYTES_MAX))
    cookies = set()
    at = 0
    with node:
        node.kill()
        for _ in range(5):
            info = node.start()
            cookies.add(info.cookie)
            await check_all(node, info, acknowledged)
            at = await write_until_killed(node, info, at, acknowledged)
        info = node.start()
        cookies.add(info.cookie)
        await check_all(node, info, acknowledged)
        assert node.stop() == 0
        info = node.start()
        await check_all(node, info, acknowledged)
    assert len(cookies) == 1  # a kill is no damage
    assert len(acknowledged) >= 5 * 120


async def test_a_fence_survives_a_kill(tmp_path: Path, metadata: str) -> None:
    with NodeProcess(tmp_path, metadata) as node:
        info = node.info
        client = NetworkNodeClient(info, token=node.token)
        await client.fence(KEYS[0], 5)
        node.kill()
        client.close()
        info = node.start()
        client = NetworkNodeClient(info, token=node.token)
        (outcome,) = await add_all(client, [(KEYS[0], block_of(KEYS[0], 0))], epoch=4)
        assert isinstance(outcome, Fenced)
        client.close()


def test_a_node_with_the_wrong_directory_does_not_start(tmp_path: Path, metadata: str) -> None:
    with NodeProcess(tmp_path, metadata, "n1") as node:
        assert node.stop() == 0
    (tmp_path / "n1").rename(tmp_path / "n2")
    other = NodeProcess(tmp_path, metadata, "n2")

    assert other.run() == 70
    assert "belongs to node 'n1'" in other.output()


async def test_a_disk_that_refuses_a_write_stops_the_node(tmp_path: Path, metadata: str) -> None:
    """R48: nothing is acknowledged after a failed write; the exit code says why it ended."""
    with NodeProcess(tmp_path, metadata) as node:
        info = node.info
        client = NetworkNodeClient(info, token=node.token)
        assert await add_all(client, [(KEYS[0], block_of(KEYS[0], 0))]) == [None]
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (4096 * KIB, 4096 * KIB))
        blocks = [(KEYS[0], block_of(KEYS[0], block)) for block in range(1, 400)]
        outcomes = await add_all(client, blocks)
        client.close()
        assert node.wait() == 70
        refused = outcomes.index(next(filter(None, outcomes)))
        assert not any(outcomes[:refused]) and all(outcomes[refused:])
        info = node.start()
        client = NetworkNodeClient(info, token=node.token)
        ((first, end),) = await client.list_blocks(KEYS[0], 0, 1000)
        assert first == 0 and end > refused
        client.close()


def test_a_slow_disk_is_announced(tmp_path: Path, metadata: str) -> None:
    with NodeProcess(tmp_path, metadata, "n1", "--fsync-delay-ms", "2") as node:
        assert node.stop() == 0
    assert "fsyncs are slow by 2 ms" in node.output()
