"""Large groups and a large state meet the limits between an owner and its nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harness.in_process_cluster import in_process_cluster

from penstock.limits import GROUP_BYTES_MAX, MIB
from penstock.log.node import client as node_client
from penstock.log.proxy import owned_log
from penstock.log.proxy.open_log import Replication
from penstock.log.records import NewEntry, SetKey

LARGE = Replication(segment_bytes=64 * MIB)
#: Four entries of it are nearly a group.
_PAYLOAD = bytes(GROUP_BYTES_MAX // 4 - 50_000)


@pytest.mark.timeout(240)
async def test_three_clients_with_four_large_groups_each_finish(tmp_path: Path) -> None:
    """48 MB are more than a connection to a node holds, and the disks are slow enough for that."""
    async with in_process_cluster(tmp_path, nodes=0, proxies=0, replication=LARGE) as cluster:
        for number in range(3):
            await cluster.start_node(f"n{number}", fsync_delay_ms=300.0)
        await cluster.start_proxy()
        logs = [await cluster.connect(timeout=180.0) for _ in range(3)]
        try:
            appenders = [await log.appender() for log in logs]
            group = [NewEntry(_PAYLOAD)] * 4
            # From all at once, none of them waits for its own.
            await asyncio.gather(*(a.append_nowait(group) for _ in range(4) for a in appenders))
            assert (await logs[0].bounds()).tail >= 3 * 4 * 4
        finally:
            for log in logs:
                await log.close()


@pytest.mark.timeout(240)
async def test_a_state_above_the_window_of_a_connection_is_durable_and_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 MiB of state through windows of 256 KiB, by two owners."""
    monkeypatch.setattr(node_client, "INFLIGHT_BYTES_MAX", MIB // 4)
    monkeypatch.setattr(owned_log, "PIECE_BYTES", MIB // 16)

    async with in_process_cluster(tmp_path, proxies=2) as cluster:
        log = await cluster.connect(timeout=120.0)
        try:
            for key in range(8):
                await log.append([NewEntry(b"")], sets=[SetKey(f"key/{key}", bytes(MIB // 4))])
            for _ in range(2):
                (owner,) = [p for p in cluster.proxies if "main" in p[0].work.logs.owned]
                await cluster.stop_proxy(owner[0])
                await cluster.start_proxy()
                for key in range(8):
                    value = await log.get(f"key/{key}")
                    assert value is not None and len(value.data) == MIB // 4
                await log.append([NewEntry(b"after")])
        finally:
            await log.close()
