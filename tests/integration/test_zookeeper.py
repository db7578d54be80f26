"""ZooKeeper's real failures: cut connections, dead clients, restarts, and who may write.

A real server from PySpark's jars, and a TCP proxy in between where the network is to fail.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.async_tests import async_fixture
from harness.server_process import listening_addresses
from harness.tcp_proxy import NO_FAULT, Fault, TcpProxy, Way
from harness.threads import no_thread_is_left
from harness.waiting import until

from penstock.errors import AlreadyExists, BadConfig, Unauthorized, Unavailable, Unknown
from penstock.log.meta.api import Versioned
from penstock.log.meta.zookeeper import ZooKeeperMetadata, protect_namespace
from penstock.log.meta.zookeeper_server import TICK_MS, ZooKeeperServer, find_jars, jar_places
from penstock.log.serving.directory import Address

#: Of clients that are to lose it; a pause of some seconds, by anybody, does not end it.
SESSION_SECONDS = 5.0
#: Of all others: a busy machine does not make them lose it.
LONG_SECONDS = 30.0
#: What a busy machine may add.
SLACK_SECONDS = 6.0
HOLDER = """
import asyncio, sys
from penstock.log.meta.open import open_metadata

async def main():
    store = await open_metadata(sys.argv[1], session_seconds=float(sys.argv[2]))
    store.on_session_lost(lambda: print("lost", flush=True))
    await store.create("/held", b"", ephemeral=True)
    print("held", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def _no_thread_of_kazoo_is_left_behind() -> Iterator[None]:
    with no_thread_is_left():
        yield


async def connect(hosts: str, name: str, **options: Any) -> ZooKeeperMetadata:
    options.setdefault("session_seconds", LONG_SECONDS)
    return await ZooKeeperMetadata.open(hosts, f"/{name}", **options)


class Network:
    """A proxy to the server that can be taken away."""

    def __init__(self, server: ZooKeeperServer) -> None:
        self._target: Address | None = Address("127.0.0.1", server.port)
        self.proxy = TcpProxy(lambda: self._target)

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.proxy.address.port}"

    def cut(self) -> None:
        """Every connection is reset, and every new one ends at once."""
        self._kept, self._target = self._target, None
        self.proxy.cut_all()

    def heal(self) -> None:
        self._target = self._kept

    def set_faults(self, **faults: Fault) -> None:
        """For live connections and for new ones."""
        for way in Way:
            fault = faults.get(way.name.lower(), NO_FAULT)
            self.proxy.faults[way] = fault
            self.proxy.arm(way, fault)


@async_fixture
async def network(zookeeper: ZooKeeperServer) -> AsyncIterator[Network]:
    network = Network(zookeeper)
    async with network.proxy:
        yield network


@pytest.fixture
def namespace(metadata: str) -> str:
    return metadata.rpartition("/")[2]


@async_fixture
async def other(zookeeper: ZooKeeperServer, namespace: str) -> AsyncIterator[ZooKeeperMetadata]:
    """A client whose network is whole."""
    store = await connect(zookeeper.hosts, namespace)
    yield store
    await store.close()


# ---- the network


async def test_a_client_that_is_cut_off_loses_its_session_and_learns_it_once(
    network: Network, other: ZooKeeperMetadata, namespace: str
) -> None:
    store = await connect(network.hosts, namespace, session_seconds=SESSION_SECONDS)
    told: list[float] = []
    store.on_session_lost(lambda: told.append(time.monotonic()))
    await store.create("/e", b"", ephemeral=True)

    network.cut()
    started = time.monotonic()
    with pytest.raises(Unavailable):
        await store.get("/e")
    with pytest.raises(Unavailable):
        await store.create("/x", b"")
    took = await until(lambda: told)
    gone = await until(lambda: absent(other, "/e"))

    assert told[0] - started < SESSION_SECONDS + SLACK_SECONDS, took
    assert time.monotonic() - started < SESSION_SECONDS + TICK_MS / 1000 + SLACK_SECONDS, gone
    network.heal()
    with pytest.raises(Unavailable):
        await store.get("/e")  # it stays lost: another session must be opened
    await store.close()
    assert len(told) == 1
    assert await other.get("/x") is None


async def absent(store: ZooKeeperMetadata, path: str) -> bool:
    return await store.get(path) is None


async def test_a_short_cut_costs_nothing_but_time_and_watches_catch_up(
    network: Network, other: ZooKeeperMetadata, namespace: str
) -> None:
    store = await connect(network.hosts, namespace)
    told: list[str] = []
    woken = asyncio.Event()
    store.on_session_lost(lambda: told.append("lost"))
    await store.create("/e", b"", ephemeral=True)
    await other.create("/a", b"0")
    store.watch("/a", woken.set)
    store.watch("/p", woken.set)
    await asyncio.sleep(0.1)

    for version in range(3):
        woken.clear()
        network.cut()
        await asyncio.sleep(0.05)
        await other.set("/a", b"", version)
        reading = asyncio.ensure_future(store.get("/a"))
        await asyncio.sleep(0.05)
        network.heal()
        await woken.wait()
        assert await store.get("/a") == Versioned(b"", version + 1)
        assert await reading == Versioned(b"", version + 1)

    woken.clear()
    await other.create("/p/x", b"")
    await woken.wait()
    assert await other.get("/e") is not None
    assert (told, network.proxy.counts.cuts >= 3) == ([], True)
    await store.close()
    assert await other.get("/e") is None


@pytest.mark.parametrize("lost", ["reply", "request"])
async def test_a_change_that_is_not_answered_is_unknown_whether_it_was_made(
    lost: str, network: Network, other: ZooKeeperMetadata, namespace: str
) -> None:
    store = await connect(network.hosts, namespace, session_seconds=SESSION_SECONDS)
    await store.create("/a", b"0")
    swallow = Fault(drop_after=0)
    network.set_faults(**{"to_client" if lost == "reply" else "to_server": swallow})

    started = time.monotonic()
    results = await asyncio.gather(
        store.set("/a", b"1", 0),
        store.create("/b", b""),
        store.create("/e", b"", ephemeral=True),
        return_exceptions=True,
    )

    assert [type(result) for result in results] == [Unknown] * 3
    assert time.monotonic() - started < SESSION_SECONDS + SLACK_SECONDS
    made = lost == "reply"
    assert await other.get("/a") == (Versioned(b"1", 1) if made else Versioned(b"0", 0))
    assert (await other.get("/b") is not None) is made
    # Nothing is repeated behind the caller's back.
    await asyncio.sleep(0.2)
    assert (await other.get("/b") is not None) is made

    started = time.monotonic()
    await store.close()
    assert time.monotonic() - started < 1.0 + SLACK_SECONDS, "close hung on a silent network"


async def test_a_reset_in_the_middle_of_changes_leaves_each_made_or_unknown(
    network: Network, other: ZooKeeperMetadata, namespace: str
) -> None:
    store = await connect(network.hosts, namespace)
    await store.create("/r/x", b"")

    unknown = 0
    for round_number in range(10):
        paths = [f"/r/{round_number}-{number}" for number in range(20)]
        await store.get("/r/x")  # it is connected again: there is something to cut
        network.proxy.arm(Way.TO_CLIENT, Fault(cut_after=100 * round_number))
        results = await asyncio.gather(
            *(store.create(path, b"") for path in paths), return_exceptions=True
        )
        found = await other.children("/r")
        for path, result in zip(paths, results, strict=True):
            if result == 0:
                assert path.removeprefix("/r/") in found
            else:
                assert isinstance(result, Unknown), result
                unknown += 1

    assert unknown > 20
    await store.close()


@pytest.mark.parametrize("is_silent", [False, True])
async def test_closing_while_disconnected_is_quick(
    is_silent: bool, network: Network, namespace: str
) -> None:
    store = await connect(network.hosts, namespace)
    if is_silent:
        network.set_faults(to_client=Fault(drop_after=0), to_server=Fault(drop_after=0))
    else:
        network.cut()
    await asyncio.sleep(0.1)
    waiting = asyncio.ensure_future(store.get("/a"))
    await asyncio.sleep(0.01)

    started = time.monotonic()
    await store.close()

    assert time.monotonic() - started < 1.0 + SLACK_SECONDS
    with pytest.raises(Unavailable):
        await waiting


async def test_a_server_that_is_not_there_is_unavailable_in_bounded_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # it does not even listen
        hosts = f"127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(Unavailable, match=hosts):
            await connect(hosts, "nowhere", session_seconds=0.5)
        assert time.monotonic() - started < 0.5 + SLACK_SECONDS


async def test_a_server_that_answers_nothing_never_blocks_the_event_loop(tmp_path: Path) -> None:
    """More than all buffers take, for a paused server: each call comes back, the loop turns on."""
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        store = await connect(server.hosts, "paused", session_seconds=8.0)
        await store.create("/a", b"")
        large = bytes(200_000)
        gaps: list[float] = []
        #: Of a thread beside the loop: what a busy machine does to both.
        gaps_beside: list[float] = []
        over = threading.Event()

        async def turn() -> None:
            last = time.monotonic()
            while True:
                await asyncio.sleep(0.005)
                gaps.append(time.monotonic() - last)
                last = time.monotonic()

        def turn_beside() -> None:
            last = time.monotonic()
            while not over.wait(0.005):
                gaps_beside.append(time.monotonic() - last)
                last = time.monotonic()

        turning = asyncio.ensure_future(turn())
        beside = threading.Thread(target=turn_beside)
        beside.start()
        server.signal(signal.SIGSTOP)
        try:
            results = await asyncio.gather(
                *(store.get("/a") for _ in range(600)),
                *(store.set("/a", large, 0) for _ in range(600)),
                return_exceptions=True,
            )
            await store.close()
        finally:
            server.signal(signal.SIGCONT)
            over.set()
            beside.join()
        turning.cancel()

        assert {type(result) for result in results} <= {Unavailable, Unknown}
        # A loop that waits for the server stands for as long as the session lasts.
        assert max(gaps) < 4.0 + max(gaps_beside)


# ---- processes


@contextmanager
def holder(metadata: str, session_seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds /held."""
    command = [sys.executable, "-c", HOLDER, metadata, str(session_seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("session_seconds", [SESSION_SECONDS, 7.0])
async def test_a_killed_client_frees_its_node_within_the_session(
    metadata: str, other: ZooKeeperMetadata, session_seconds: float
) -> None:
    with holder(metadata, session_seconds) as process:
        with pytest.raises(AlreadyExists):
            await other.create("/held", b"", ephemeral=True)
        process.kill()
        process.wait()
        took = await until(lambda: absent(other, "/held"))

    assert took < session_seconds + 2 * TICK_MS / 1000 + SLACK_SECONDS


async def test_a_client_that_was_paused_for_too_long_learns_that_it_lost_its_node(
    metadata: str, other: ZooKeeperMetadata
) -> None:
    with holder(metadata, SESSION_SECONDS) as process:
        process.send_signal(signal.SIGSTOP)
        await until(lambda: absent(other, "/held"))
        process.send_signal(signal.SIGCONT)
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"lost\n"


async def test_a_restarted_server_keeps_data_and_sessions(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        store = await connect(server.hosts, "restart", session_seconds=60.0)
        told: list[str] = []
        changes = asyncio.Event()
        store.on_session_lost(lambda: told.append("lost"))
        await store.create("/kept", b"0")
        await store.create("/e", b"", ephemeral=True)
        version = 0
        for end in (server.kill, server.stop):
            version = await store.set("/kept", b"x", version)
            store.watch("/kept", changes.set)

            await asyncio.to_thread(end)
            await asyncio.to_thread(server.start)

            # What was answered before the kill is there after it.
            assert await store.get("/kept") == Versioned(b"x", version)
            assert await store.get("/e") == Versioned(b"", 0)
            await asyncio.sleep(0.1)
            changes.clear()
            version = await store.set("/kept", b"y", version)
            await changes.wait()
        assert told == []
        await store.close()


# ---- who may write


async def test_without_the_digest_nothing_can_be_written(
    zookeeper: ZooKeeperServer, namespace: str
) -> None:
    rights = ("penstock:secret", "penstock:secret", None, "penstock:wrong")
    owner, friend, *strangers = [
        await connect(zookeeper.hosts, namespace, auth=auth) for auth in rights
    ]
    await owner.create("/logs/main", b"0")
    await owner.create("/nodes/n1", b"", ephemeral=True)

    for stranger in strangers:
        for call in (
            stranger.set("/logs/main", b"1", 0),
            stranger.delete("/logs/main"),
            stranger.create("/logs/other", b""),
            stranger.create("/x/y", b""),
            stranger.create("/z", b"", ephemeral=True),
            stranger.delete("/nodes/n1"),
        ):
            with pytest.raises(Unauthorized):
                await call
        assert await stranger.get("/logs/main") == Versioned(b"0", 0)
        assert await stranger.children("/") == ["logs", "nodes"]
        await stranger.close()
    assert await friend.set("/logs/main", b"1", 0) == 1
    assert await owner.get("/logs/main") == Versioned(b"1", 1)
    await friend.close()
    await owner.close()


async def test_what_was_open_to_everybody_gets_the_password(
    zookeeper: ZooKeeperServer, namespace: str
) -> None:
    hosts, auth = zookeeper.hosts, "penstock:secret"
    stranger = await connect(hosts, namespace, auth=None)
    await stranger.create("/logs/main", b"0")
    await stranger.create("/nodes/n1", b"", ephemeral=True)

    await asyncio.to_thread(protect_namespace, hosts, namespace, auth)
    await asyncio.to_thread(protect_namespace, hosts, namespace, auth)

    for call in (
        stranger.set("/logs/main", b"1", 0),
        stranger.create("/proxies/false", b""),
        stranger.create("/nodes/false", b"", ephemeral=True),
        stranger.delete("/nodes/n1"),
    ):
        with pytest.raises(Unauthorized):
            await call
    with pytest.raises(Unauthorized, match="another password"):
        await asyncio.to_thread(protect_namespace, hosts, namespace, "penstock:another")
    owner = await connect(hosts, namespace, auth=auth)
    assert await owner.set("/logs/main", b"1", 0) == 1
    await owner.delete("/nodes/n1")
    await owner.close()
    await stranger.close()


async def test_the_digest_is_shown_again_after_a_reconnect_and_never_logged(
    network: Network, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        auth = "penstock:secret"
        store = await connect(network.hosts, namespace, auth=auth)
        await store.create("/a", b"top-secret-value")
        network.cut()
        await asyncio.sleep(0.05)
        network.heal()
        assert await store.get("/a") is not None
        assert await store.set("/a", b"", 0) == 1
        await store.close()

    assert "secret" not in caplog.text


# ---- the server


def test_a_port_that_is_taken_is_told_with_the_servers_own_words(
    zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    """The other server answers at that port, and must not be taken for ours."""
    second = ZooKeeperServer(tmp_path / "second", port=zookeeper.port)

    with pytest.raises(Unavailable, match="Address already in use"):
        second.start()

    assert not second.is_running


def test_the_server_listens_on_loopback_only_and_answers_no_command_but_one(
    zookeeper: ZooKeeperServer,
) -> None:
    ((host, port),) = listening_addresses(zookeeper.pid)

    assert port == zookeeper.port
    assert host in ("0100007F", "0000000000000000FFFF00000100007F")
    for command in (b"dump", b"envi", b"stat", b"cons"):
        with socket.create_connection(("127.0.0.1", zookeeper.port), timeout=30) as connection:
            connection.sendall(command)
            assert b"not in the whitelist" in connection.recv(4096)


def test_jars_are_found_in_the_first_place_that_has_them(tmp_path: Path) -> None:
    names = {jar.name.rsplit("-", 1)[0] for jar in find_jars()}
    assert {"zookeeper", "zookeeper-jute", "slf4j-api", "log4j-core"} <= names

    empty, system = tmp_path / "empty", tmp_path / "java"
    empty.mkdir()
    system.mkdir()
    for name in ("zookeeper.jar", "zookeeper-jute.jar", "slf4j-api-1.7.jar", "slf4j-api-2.0.jar"):
        (system / name).touch()
    found = find_jars([empty, system])

    assert [jar.name for jar in found] == [
        "zookeeper.jar",
        "zookeeper-jute.jar",
        "slf4j-api-2.0.jar",
    ]
    with pytest.raises(BadConfig, match="no ZooKeeper in"):
        find_jars([empty])
    assert [place.name for place in jar_places()] == ["jars", "java"]
