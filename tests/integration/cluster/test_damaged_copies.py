"""Bits that flip on two of three nodes, in different blocks of the open segment: the log opens, and
every block is read from whoever has a good copy (I17, R05).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.files import flip_bit
from harness.in_process_cluster import InProcessCluster, in_process_cluster
from harness.waiting import until

from penstock.log.block_format import BLOCK_MAGIC
from penstock.log.node.owner import NodeOwner
from penstock.log.proxy.open_log import Replication
from penstock.log.records import NewEntry

PAYLOADS = [bytes([number]) * 2000 for number in range(30)]
#: All of it is in one segment, which nobody closes.
ONE_SEGMENT = Replication(3, 3, 2)


async def flush(owner: NodeOwner) -> None:
    """Bring the newest blocks into files, too, and drop the journals that hold them."""
    owner.journal._bytes_max = 1
    await owner.flush()
    owner.pump()
    await until(lambda: 0 not in owner.journal.numbers)


#: From the first byte of a block: in its body, its header, the name or head of its record.
_PLACES = {"body": 1000, "header": 40, "name": -2, "head": -40, "magic": -50}


def flip(directory: Path, payload: bytes, place: str) -> None:
    """Somewhere in the block that has this payload, or before it."""
    (path,) = (p for p in directory.iterdir() if p.is_file() and payload in p.read_bytes())
    data = path.read_bytes()
    at = data.index(payload)
    block = data.rindex(BLOCK_MAGIC.to_bytes(4, "little"), 0, at)
    flip_bit(path, block + _PLACES[place])


async def restart_with_flips(cluster: InProcessCluster, where: str, place: str) -> None:
    """All at once; meanwhile bits flip on two nodes."""
    await cluster.stop_nodes()
    await cluster.stop_proxies()
    for node, number in (("n0", 10), ("n1", 20)):
        flip(cluster.directory / node / where, PAYLOADS[number], place)
    for node in ("n0", "n1", "n2"):
        await cluster.start_node(node)
    await cluster.start_proxy()


@pytest.mark.parametrize(
    ("where", "place"),
    [("segments", "header"), ("segments", "body"), *(("journal", place) for place in _PLACES)],
)
async def test_two_damaged_copies_of_different_blocks_hide_nothing(
    tmp_path: Path, where: str, place: str
) -> None:
    async with in_process_cluster(tmp_path, replication=ONE_SEGMENT) as cluster:
        async with await cluster.connect() as log:
            for payload in PAYLOADS:
                await log.append([NewEntry(payload, ("t",))])
        if where == "segments":
            for server, _ in cluster.nodes.values():
                await flush(server.owner)
        ids = {server.info.id for server, _ in cluster.nodes.values()}

        await restart_with_flips(cluster, where, place)

        assert {server.info.id for server, _ in cluster.nodes.values()} == ids
        async with await cluster.connect(timeout=20.0) as log:
            assert [entry.payload for entry in await log.read(["t"])] == PAYLOADS
            await log.append([NewEntry(b"more")])
