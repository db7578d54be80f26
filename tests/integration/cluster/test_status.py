"""What `penstock cluster status` says of a cluster that is not well, and when it says that it is.

The page is made of what real nodes and proxies answer; the metadata is in memory.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness.in_process_cluster import InProcessCluster, in_process_cluster
from harness.waiting import until

from penstock.cli.cluster_facts import find_facts
from penstock.cli.cluster_status import page
from penstock.cli.cluster_target import Cluster
from penstock.log.client.client import AsyncLog
from penstock.log.meta.open import ClusterAddress
from penstock.log.node.client import NetworkNodes
from penstock.log.proxy import auditor, owned_log
from penstock.log.proxy.open_log import Replication
from penstock.log.records import NewEntry
from penstock.log.replication import manifest


async def ask_status(cluster: InProcessCluster) -> dict[str, Any]:
    store = await cluster.open_store()
    token, node_token = (
        (cluster.directory / name).read_text().strip() for name in ("token", "node-token")
    )
    nodes = NetworkNodes(store, token=node_token)
    await nodes.start()
    try:
        address = ClusterAddress(("memory:1",), "/memory")
        return await find_facts(Cluster(address, store, token, nodes, None, 20.0))
    finally:
        await nodes.close()


async def fill(log: AsyncLog, entries: int) -> None:
    """Two of them are a segment."""
    for _ in range(entries):
        await log.append([NewEntry(bytes(40_000))])


async def test_a_full_manifest_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "MANIFEST_ROLL_BYTES_MAX", 450)
    async with in_process_cluster(tmp_path) as cluster:
        log = await cluster.connect()
        filling = asyncio.ensure_future(fill(log, 40))
        ((proxy, _),) = cluster.proxies
        await until(lambda: proxy.work.logs.owned["main"].stalled)

        found = await ask_status(cluster)

        (known,) = found["logs"]
        (line,) = (line for line in page(found) if "appends wait" in line)
        assert line.startswith("! log main: appends wait: the log has ")
        assert "trim it (penstock log trim), or let segments be larger (--segment-" in line
        assert known["stalled"] in line

        while not filling.done():
            await log.trim((await log.bounds()).tail)
            await asyncio.sleep(0.05)
        await filling
        await until(lambda: not proxy.work.logs.owned["main"].stalled)
        assert not any("appends wait" in words for words in (await ask_status(cluster))["problems"])
        await log.close()


def lacking(found: dict[str, Any]) -> tuple[int | None, str]:
    """What is told of the log, and what stands in its line."""
    (line,) = (line for line in page(found) if line.startswith("main "))
    (known,) = found["logs"]
    told: int | None = known["lacking_blocks"]
    return told, line.split()[-1]


async def test_a_restarted_node_lacks_blocks_until_it_has_got_what_it_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next node may be taken when it says 0: the segment is open all the time."""
    monkeypatch.setattr(owned_log, "AUDITED_SECONDS", 0.0)
    one_segment = Replication()
    async with in_process_cluster(tmp_path, replication=one_segment) as cluster:
        log = await cluster.connect()
        await fill(log, 2)
        await until(lambda: _is(cluster, 0))
        await cluster.stop_node("n0")
        await fill(log, 5)

        found = await ask_status(cluster)
        told, shown = lacking(found)
        assert told is not None and told >= 5 and shown == str(told)
        assert f"log main: {told} blocks lack a copy" in found["problems"]

        await cluster.start_node("n0")
        await until(lambda: _is(cluster, 0))
        (segment,) = cluster.manifest().segments
        assert not segment.sealed and len(segment.ensembles) == 1
        await cluster.stop_node("n1")  # what only n1 and n2 had would be on one disk now
        await fill(log, 1)
        await log.close()


async def _is(cluster: InProcessCluster, wanted: int | None) -> bool:
    return lacking(await ask_status(cluster))[0] == wanted


async def test_what_was_sealed_is_not_called_whole_before_an_audit_saw_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after a log was opened nobody knows what its last owner left."""
    monkeypatch.setattr(auditor, "ROUND_SECONDS", 3600.0)
    async with in_process_cluster(tmp_path) as cluster:
        log = await cluster.connect()
        await fill(log, 1)
        assert lacking(await ask_status(cluster)) == (None, "-")
        await log.close()
