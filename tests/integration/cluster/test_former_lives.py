"""What a node shows that lost a piece of its journal: what is left, and no denial (R05, R46)."""

from __future__ import annotations

from pathlib import Path

from harness.files import zero
from harness.in_process_cluster import InProcessCluster
from harness.waiting import until

from penstock.errors import PenstockError
from penstock.ids import NodeId
from penstock.log.node.client import NetworkNodes
from penstock.log.node.journal_format import find_format
from penstock.log.records import NewEntry
from penstock.log.replication.manifest import SegmentKey
from penstock.log.replication.node_api import Found
from penstock.log.serving.directory import read_token


def lose_a_piece(directory: Path) -> None:
    """A block and what repeats its head, in the oldest third of a journal, which more follows."""
    journal = max((directory / "journal").glob("*"), key=lambda path: path.stat().st_size)
    data = journal.read_bytes().rstrip(b"\0")
    key = find_format(data).mark
    end = start = data.index(key, len(data) // 3)
    while end < start + 2000:
        end = data.index(key, end + 1)
    zero(journal, start, end + 100)


async def test_a_damaged_node_serves_what_it_has_under_its_former_cookie(
    tmp_path: Path, cluster: InProcessCluster
) -> None:
    async def outcomes(nodes: NetworkNodes, node: NodeId) -> set[Found]:
        """Of blocks that are there, and of one that never was."""
        client = nodes.client(node)
        assert client is not None
        found = set()
        for block in (0, 1, 2, 20, 1000):
            try:
                answer = await client.read(SegmentKey("main", 0), block, durable_block=2000)
            except PenstockError:
                continue
            found.add(answer.found)
        return found

    async with await cluster.connect() as log:
        for number in range(30):
            await log.append([NewEntry(bytes([number]) * 2000, ("t",))])
    node = cluster.nodes["n0"][0].info.id
    await cluster.stop_node("n0")
    lose_a_piece(tmp_path / "n0")
    await cluster.start_node("n0")
    assert cluster.nodes["n0"][0].info.id != node

    store = await cluster.open_store()
    nodes = NetworkNodes(store, token=read_token(tmp_path / "node-token"))
    await nodes.start()
    try:
        await until(lambda: cluster.nodes["n0"][0].info.id in nodes.alive())
        assert node not in nodes.alive()
        assert await outcomes(nodes, node) >= {Found.HERE, Found.UNKNOWN}
        assert Found.ABSENT not in await outcomes(nodes, node)
    finally:
        await nodes.close()
        await store.close()
