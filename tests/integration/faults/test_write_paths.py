"""Writes on the loop and on the writer thread, mixed: one order for everybody."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fault_workload import follow, settle
from harness.async_tests import async_fixture
from harness.history import History
from harness.served_log import ServedLog, served

from penstock.config import ServerConfig
from penstock.errors import InvariantBroken, PenstockError, Unavailable
from penstock.limits import KIB
from penstock.log.core.sequencer import Write
from penstock.log.core.tails import DurableGroup
from penstock.log.records import Flush, NewEntry
from penstock.log.serving import group_commit
from penstock.log.storage.log_storage import LogStorage


@async_fixture
async def log(tmp_path: Path) -> AsyncIterator[ServedLog]:
    async with served(ServerConfig(tmp_path, port=0)) as log:
        yield log


async def test_a_small_write_behind_a_large_one_reaches_readers_after_it(
    monkeypatch: pytest.MonkeyPatch, log: ServedLog
) -> None:
    """Goal: a write done on the loop never overtakes the one that the thread has just finished.

    Method: a large group goes to the thread and is held there until a small one has arrived.
    """
    monkeypatch.setattr(group_commit, "INLINE_SECONDS", 60.0)
    release = threading.Event()
    plain = LogStorage.write

    def write(self: LogStorage, write: Write) -> list[DurableGroup]:
        if write.bytes > group_commit.INLINE_BYTES:
            assert release.wait(60)
        return plain(self, write)

    monkeypatch.setattr(LogStorage, "write", write)

    history = History()
    one, two, three = [await log.connect() for _ in range(3)]
    for client in (one, two):
        await client.own_appender()
    reading = history.reading("tail", None)
    tail = asyncio.create_task(follow(three, reading))
    for round_number in range(5):
        release.clear()
        large = NewEntry(b"%d" % round_number + bytes(64 * KIB), ("large",))
        small = NewEntry(b"%d" % round_number, ("small",))
        appends = [history.invoke("one", [large]), history.invoke("two", [small])]
        first = asyncio.create_task(one.append([large]))
        while log.server.listener.inflight_bytes == 0:
            await asyncio.sleep(0)
        held = log.server.listener.inflight_bytes
        second = asyncio.create_task(two.append([small]))
        while log.server.listener.inflight_bytes == held:
            await asyncio.sleep(0)
        release.set()
        history.ok(appends[0], await first)
        history.ok(appends[1], await second)
    final = await three.read()
    await settle([reading], [tail], final[-1].lsn + 1)
    for client in (one, two, three):
        await client.close()
    assert history.check(final) == []


async def test_a_short_flush_delay_does_not_wait_for_a_longer_one(log: ServedLog) -> None:
    patient, hasty = await log.connect(), await log.connect()
    await patient.append([NewEntry(b"opens the producer")])
    await hasty.append([NewEntry(b"opens the producer")])
    slow = asyncio.create_task(patient.append([NewEntry(b"slow")], flush=Flush(10_000)))
    while log.server.owner.sequencer.is_idle:
        await asyncio.sleep(0)

    started = time.monotonic()
    await hasty.append([NewEntry(b"quick")], flush=Flush(5))
    assert time.monotonic() - started < 9.0

    await slow
    await patient.close()
    await hasty.close()


async def test_a_broken_invariant_stops_the_server_instead_of_serving_on(
    monkeypatch: pytest.MonkeyPatch, log: ServedLog
) -> None:
    def durable(*_: object) -> None:
        raise InvariantBroken("the story")

    client = await log.connect(timeout=1.0)
    monkeypatch.setattr(log.server.owner.tails, "durable", durable)
    with pytest.raises(PenstockError):
        await client.append([NewEntry(b"x")])
    with pytest.raises(Unavailable, match="the story"):
        await log.task
    await client.close()
