"""A log whose manifest is full: appends wait for a trim, and nothing that leads to one waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.in_process_cluster import in_process_cluster
from harness.waiting import until

from penstock.ids import Lsn
from penstock.log.client.client import AsyncLog
from penstock.log.records import NewEntry
from penstock.log.replication import manifest
from penstock.protocol.deliveries import RegisteredDelivery, encode_delivery
from penstock.protocol.names import deliver_key
from penstock.runtime import trim

#: It begins so late that it holds no trim back.
DELIVERY = RegisteredDelivery(
    name="d", id="i", stream="s", query=None, version=None, key=[], route=[0] * 64, epoch=0,
    start=1_000_000, table="t", targets=["a"], strict=False, dead_letter=None, created_ms=1,
)  # fmt: skip


@pytest.fixture(autouse=True)
def small_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "MANIFEST_ROLL_BYTES_MAX", 450)
    monkeypatch.setattr(manifest, "MANIFEST_BYTES_MAX", 650)


@asynccontextmanager
async def full_log(
    tmp_path: Path, known: Mapping[str, bytes] | None = None
) -> AsyncIterator[AsyncLog]:
    """Another client's appends wait until something is trimmed."""

    async def fill(log: AsyncLog) -> None:
        for _ in range(30):
            await log.append([NewEntry(bytes(60_000))])

    async with in_process_cluster(tmp_path) as cluster:
        writer, log = await cluster.connect(timeout=40), await cluster.connect(timeout=40)
        for key, value in {"known": b"before", **(known or {})}.items():
            await log.compare_and_set(key, expected=None, value=value)
        filling = asyncio.create_task(fill(writer))
        ((proxy, _),) = cluster.proxies
        await until(lambda: proxy.work.logs.owned["main"].stalled)
        try:
            yield log
        finally:
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)
            writer.abandon()
            log.abandon()


async def test_what_is_consumed_can_be_trimmed_of_a_full_log(tmp_path: Path) -> None:
    """It asks for metadata first, which must not wait for the appends that wait for the trim."""
    async with full_log(tmp_path) as log, asyncio.timeout(30):
        await trim.trim_consumed(log)
        value = await log.get("known")
        assert value is not None and value.data == b"before"


async def test_nobody_needs_to_be_told_of_a_trim_of_a_full_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find(log: AsyncLog, protocol: object) -> Lsn:
        return point

    monkeypatch.setattr(trim, "find_trim_point", find)
    monkeypatch.setattr(trim, "TELL_SECONDS", 0.2)
    async with full_log(tmp_path, {deliver_key("d"): encode_delivery(DELIVERY)}) as log:
        point = (await log.bounds()).tail
        async with asyncio.timeout(30):
            assert await trim.trim_consumed(log) == point


async def test_a_trim_waits_behind_no_question(tmp_path: Path) -> None:
    async with full_log(tmp_path) as log, asyncio.timeout(30):
        asks = [asyncio.create_task(log.get(f"key{number}")) for number in range(8)]
        await log.trim((await log.bounds()).tail)
        await asyncio.gather(*asks)
