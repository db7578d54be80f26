"""Defects that were found by reading: each failed before it was mended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harness.in_process_cluster import InProcessCluster, in_process_cluster
from harness.waiting import until

from penstock.errors import BadConfig, PenstockError, Unavailable
from penstock.log.node import server as node_server
from penstock.log.node.client import NetworkNodeClient
from penstock.log.records import NewEntry
from penstock.log.replication.node_api import NodeInfo


async def test_a_second_node_of_a_name_does_not_lock_out_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: InProcessCluster
) -> None:
    monkeypatch.setattr(node_server, "ALONE_SECONDS", 0.2)

    first = cluster.nodes["n0"]
    (tmp_path / "other").mkdir()
    (tmp_path / "n0").rename(tmp_path / "kept")  # the living one has it open
    with pytest.raises(BadConfig, match="n0 runs at"):
        await cluster.start_node("n0")
    for path in sorted((tmp_path / "n0").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "n0").rmdir()
    (tmp_path / "kept").rename(tmp_path / "n0")
    cluster.nodes["n0"] = first
    await cluster.stop_node("n0")
    assert (await cluster.start_node("n0")).info.id == first[0].info.id


async def test_the_token_is_not_shown_to_a_far_node_without_tls() -> None:
    info = NodeInfo("n0", "cookie", "192.0.2.1", 7071)
    client = NetworkNodeClient(info, token="x" * 64)
    try:
        with pytest.raises(Unavailable, match="must not travel openly"):
            await client.status()
    finally:
        client.close()


async def test_appends_of_a_log_that_was_let_go_are_not_counted_for_ever(
    cluster: InProcessCluster,
) -> None:
    proxy = cluster.proxies[0][0]
    log = await cluster.connect()
    await log.append([NewEntry(b"first")])
    for name in ("n0", "n1"):
        await cluster.stop_node(name)
    waiting = [asyncio.ensure_future(log.append([NewEntry(b"x" * 100_000)])) for _ in range(8)]
    await until(lambda: proxy.listener.inflight_bytes)
    log.abandon()
    await asyncio.gather(*waiting, return_exceptions=True)
    await until(lambda: proxy.listener.inflight_bytes == 0)


async def test_an_owner_that_was_succeeded_does_not_refuse_a_trim_by_its_own_tail(
    tmp_path: Path,
) -> None:
    async with in_process_cluster(tmp_path, proxies=2) as cluster, await cluster.connect() as log:
        await log.append([NewEntry(b"first")])
        proxies = [proxy for proxy, _ in cluster.proxies]
        (owner,) = [proxy for proxy in proxies if "main" in proxy.work.logs.owned]
        (other,) = [proxy for proxy in proxies if proxy is not owner]
        old = owner.work.logs.owned["main"]
        opener = other.work.logs.opener
        new = await opener.open("main", other.service.surroundings(lambda: None, print))
        try:
            with pytest.raises(PenstockError) as refused:
                await old.trim(1000)
            assert isinstance(refused.value, Unavailable)
        finally:
            await new.stop(clean=False)
