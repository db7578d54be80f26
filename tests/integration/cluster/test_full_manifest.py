"""A log whose manifest is full: appends wait for a trim, and nothing that leads to one waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.in_process_cluster import in_process_cluster
from harness.waiting import until

from penstock.log.client.client import AsyncLog
from penstock.log.records import NewEntry
from penstock.log.replication import manifest
from penstock.runtime.trim import trim_consumed


@pytest.fixture(autouse=True)
def small_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "MANIFEST_ROLL_BYTES_MAX", 450)
    monkeypatch.setattr(manifest, "MANIFEST_BYTES_MAX", 650)


@asynccontextmanager
async def full_log(tmp_path: Path) -> AsyncIterator[AsyncLog]:
    """Another client's appends wait until something is trimmed."""

    async def fill(log: AsyncLog) -> None:
        for _ in range(30):
            await log.append([NewEntry(bytes(60_000))])

    async with in_process_cluster(tmp_path) as cluster:
        writer, log = await cluster.connect(timeout=40), await cluster.connect(timeout=40)
        await log.compare_and_set("known", expected=None, value=b"before")
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
        await trim_consumed(log)
        value = await log.get("known")
        assert value is not None and value.data == b"before"


async def test_a_trim_waits_behind_no_question(tmp_path: Path) -> None:
    async with full_log(tmp_path) as log, asyncio.timeout(30):
        asks = [asyncio.create_task(log.get(f"key{number}")) for number in range(8)]
        await log.trim((await log.bounds()).tail)
        await asyncio.gather(*asks)
