"""Connections that die without a word: nothing passes any more, one way or both, nobody is told.

Goal: readers go on, and requests are answered, on the next connection; each entry comes once.
Method: a proxy swallows everything on the connection that is there. New ones are whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from harness.async_tests import async_fixture
from harness.served_log import served
from harness.tcp_proxy import Fault, TcpProxy, Way

from penstock.config import ServerConfig
from penstock.log.client import client as client_module
from penstock.log.client.client import AsyncLog, Endpoint
from penstock.log.client.reader import AsyncReader
from penstock.log.embedded import directory_endpoint
from penstock.log.records import NewEntry
from penstock.log.serving.directory import read_address

#: How much faster than in earnest it goes here.
HASTE = 25
DEAD = Fault(drop_after=0)
WAYS = [(Way.TO_SERVER, Way.TO_CLIENT), (Way.TO_CLIENT,), (Way.TO_SERVER,)]


@dataclass(frozen=True, slots=True)
class Rig:
    """A client whose bytes pass through a proxy, and one whose bytes do not."""

    proxy: TcpProxy
    log: AsyncLog
    direct: AsyncLog
    #: How many connections there were at each kill. Those after the first one have their time.
    kills: list[int]

    def kill(self, ways: Sequence[Way]) -> None:
        self.kills.append(self.proxy.counts.connections)
        for way in ways:
            self.proxy.arm(way, DEAD)

    def check_one_more(self) -> None:
        """One connection has followed the dead one, and was good enough."""
        assert [self.proxy.counts.connections - 1] == self.kills


@async_fixture
async def on(tmp_path: Path) -> AsyncIterator[Rig]:
    found = directory_endpoint(tmp_path, start=False)
    kills: list[int] = []
    async with (
        served(ServerConfig(data_dir=tmp_path, port=0)) as beside,
        TcpProxy(lambda: read_address(tmp_path)) as proxy,
        await beside.connect() as direct,
    ):

        async def resolve() -> Endpoint:
            endpoint = await found()
            pulse = endpoint.pulse_seconds / (1 if kills else HASTE)
            return replace(endpoint, port=proxy.address.port, pulse_seconds=pulse)

        async with await AsyncLog.connect(resolve) as log:
            yield Rig(proxy, log, direct, kills)


async def take(reader: AsyncReader, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += [entry.payload for entry in (await anext(reader)).entries]
    return found


@pytest.mark.parametrize("ways", WAYS[:2], ids=str)
async def test_a_tail_goes_on_after_its_connection_died_without_a_word(
    on: Rig, ways: Sequence[Way]
) -> None:
    async with on.log.tail(["t"], start=0) as reader:
        await on.direct.append([NewEntry(b"before", ("t",))])
        assert await take(reader, 1) == [b"before"]

        on.kill(ways)
        await on.direct.append([NewEntry(b"1", ("t",)), NewEntry(b"2", ("t",))])
        await on.direct.append([NewEntry(b"3", ("t",))])

        assert await take(reader, 3) == [b"1", b"2", b"3"]
    on.check_one_more()


@pytest.mark.parametrize("ways", WAYS, ids=str)
async def test_an_append_into_a_dead_connection_is_sent_again_and_there_once(
    on: Rig, ways: Sequence[Way]
) -> None:
    appender = await on.log.appender("p")
    on.kill(ways)

    async with asyncio.timeout(20):
        await appender.append([NewEntry(b"once", ("t",))])

    assert [entry.payload for entry in await on.direct.read(["t"])] == [b"once"]
    await appender.close()


async def test_a_server_that_sends_but_does_not_hear_us_is_left(
    on: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deliveries come all the time: there is no silence, and no request is ever answered."""
    monkeypatch.setattr(client_module, "DEAF_SECONDS", client_module.DEAF_SECONDS / HASTE)
    seen: list[bytes] = []
    async with on.log.tail(["t"], start=0) as reader:

        async def follow() -> None:
            async for batch in reader:
                seen.extend(entry.payload for entry in batch.entries)

        async def feed() -> None:
            for number in range(10_000):
                await on.direct.append([NewEntry(b"%d" % number, ("t",))])
                await asyncio.sleep(0.02)

        following = [asyncio.ensure_future(work) for work in (follow(), feed())]
        while len(seen) < 3:
            await asyncio.sleep(0.01)
        on.kill([Way.TO_SERVER])

        async with asyncio.timeout(20):
            assert (await on.log.bounds()).tail >= 3
        before = len(seen)
        while len(seen) < before + 3:
            await asyncio.sleep(0.01)
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    assert seen == [b"%d" % number for number in range(len(seen))]
    on.check_one_more()


async def test_a_client_that_waits_for_nothing_asks_nothing(on: Rig) -> None:
    asked = on.proxy.counts.forwarded_bytes[Way.TO_SERVER]
    await asyncio.sleep(5 * client_module.PULSE_SECONDS / HASTE)

    assert on.proxy.counts.forwarded_bytes[Way.TO_SERVER] == asked
