"""The owner of a log dies or falls asleep under load: another goes on, and nothing is lost.

Method: ZooKeeper, three nodes and two proxies as processes; writers, counters, doubters and tails
go on while the owner is killed or stopped. What is measured is the time from the end of the owner's
session to the first acknowledged append.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_workload import ClusterHistory, Load, Watcher, endpoint_of, route, wait_state, watching
from harness.history import Outcome
from harness.in_process_cluster import in_process_cluster
from harness.waiting import best_below, until, until_refused

from penstock.errors import PenstockError, Retryable, Unavailable
from penstock.limits import KIB
from penstock.log.client.client import AsyncLog, Endpoint, Resolve
from penstock.log.local_cluster import LocalCluster
from penstock.log.meta.api import MetadataStore
from penstock.log.meta.memory import MemorySession
from penstock.log.proxy.config import ProxyConfig
from penstock.log.proxy.server import ProxyServer
from penstock.log.records import NewEntry, SetKey
from penstock.log.replication.routing import ProxyInfo
from penstock.log.serving.directory import read_token

SEED = 20261116
SESSION_SECONDS = 1.0
#: From the end of the owner's session to the first acknowledged append.
FAILOVER_SECONDS = 1.0
KILLS = 5
#: What only a cluster that hangs would need.
GUARD_SECONDS = 30.0
QUIET_SECONDS = 40.0
#: What a proxy says that was itself asleep for too long: then the next owner is in its right.
SESSION_LOST = "the session with the metadata was lost"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory: Path = tmp_path_factory.mktemp("failover")
    with LocalCluster(directory) as started:
        started.start(
            proxy_options={"session-seconds": SESSION_SECONDS, "segment-bytes": 256 * KIB}
        )
        yield started


async def kill_owner(cluster: LocalCluster, watcher: Watcher, load: Load) -> float:
    """Returns how long nobody was answered, counted from the end of the owner's session."""
    name, id = await watcher.owner()
    await load.next_answer(GUARD_SECONDS)
    cluster.proxies[name].kill()
    ended = await watcher.left(id, GUARD_SECONDS)
    answered = await load.next_answer(GUARD_SECONDS, after=ended)
    await asyncio.to_thread(cluster.proxies[name].start)
    return answered - ended


@pytest.mark.timeout(120)
async def test_a_killed_owner_is_replaced_within_a_second_of_its_session(
    cluster: LocalCluster,
) -> None:
    print(f"seed {SEED}")

    history = ClusterHistory()
    async with (
        watching(cluster, "killed") as watcher,
        Load(lambda: route(cluster, "killed"), history, SEED) as load,
    ):
        load.start()
        seconds = []
        for _ in range(KILLS):
            seconds.append(
                await best_below(FAILOVER_SECONDS, lambda: kill_owner(cluster, watcher, load))
            )
            await asyncio.sleep(0.3)
        while history.count(Outcome.OK) <= 100 * KILLS:
            await load.next_answer(GUARD_SECONDS)
        await load.quiet(QUIET_SECONDS)
        final = await load.check(GUARD_SECONDS)
        manifest = await watcher.manifest()
    print(
        f"{history.count(Outcome.OK)} appends ok, {history.count(Outcome.UNKNOWN)} unknown, "
        f"{len(final)} entries, {len(manifest.segments)} segments, epoch {manifest.epoch}"
    )
    assert manifest.epoch > KILLS
    print(
        f"session end to first ack: median {statistics.median(seconds):.3f} s, "
        f"max {max(seconds):.3f} s, all {[round(s, 3) for s in seconds]}"
    )


async def test_an_owner_that_is_cut_off_from_the_metadata_tells_nothing_old(tmp_path: Path) -> None:
    """Its session has ended and it does not know; a moment ago a quorum took its block."""

    async with in_process_cluster(tmp_path, proxies=2) as cluster:
        token = read_token(tmp_path / "token")
        (old, _), (new, _) = cluster.proxies
        clients = []
        for proxy in (old, new):
            clients.append(AsyncLog(pinned(proxy.info, token), name="test", timeout=30.0))
            clients[-1]._start()
            if proxy is old:
                await clients[0].append([NewEntry(b"one", ("t",))], sets=[SetKey("key", b"1")])
                session = old._session.store
                assert isinstance(session, MemorySession)
                session.expire(told=False)
        done = await clients[1].append([NewEntry(b"two", ("t",))], sets=[SetKey("key", b"2")])
        clients[0].timeout = 1.0
        questions = [clients[0].bounds(), clients[0].get("key"), clients[0].read_last("t")]
        answers = await asyncio.gather(*questions, return_exceptions=True)
        print(f"appended at {done.first_lsn}; the old owner says {answers}")
        assert all(isinstance(answer, Retryable) for answer in answers)
        for client in clients:
            client.abandon()
            await client.close()


async def test_a_proxy_that_is_starting_refuses_clients_and_lives_on(tmp_path: Path) -> None:
    """Whoever knows its address from a former life may come before it has all that it needs."""

    async with in_process_cluster(tmp_path, proxies=0) as cluster:
        may_start = asyncio.Event()
        ready = asyncio.Event()

        async def open_store() -> MetadataStore:
            await may_start.wait()
            return await cluster.open_store()

        config = ProxyConfig("memory", cluster._token("token"), cluster._token("node-token"))
        server = ProxyServer(config, open_store, lambda _: ready.set())
        running = asyncio.create_task(server.run())
        while not hasattr(server, "info"):
            await asyncio.sleep(0.01)
        resolve = pinned(server.info, read_token(tmp_path / "token"))
        await until_refused(lambda: AsyncLog.connect(resolve, timeout=0.3), Unavailable, "starting")

        may_start.set()
        await ready.wait()
        async with await AsyncLog.connect(resolve) as log:
            assert (await log.append([NewEntry(b"one", ("t",))])).count == 1
        server.stop()
        await running


def pinned(info: ProxyInfo, token: str) -> Resolve:
    async def resolve() -> Endpoint:
        return Endpoint(info.host, info.port, token, log="main")

    return resolve


async def outcome_of(work: asyncio.Task[object]) -> object:
    try:
        return await work
    except PenstockError as error:
        return error


@pytest.mark.timeout(120)
async def test_an_owner_that_slept_past_its_session_writes_nothing_and_tells_nothing_old(
    cluster: LocalCluster,
) -> None:
    """R01. Clients that only know the sleeper ask it while it sleeps: after it woke, it must
    neither acknowledge nor show what it last knew as the newest.
    """

    history = ClusterHistory()
    async with (
        watching(cluster, "slept") as watcher,
        Load(lambda: route(cluster, "slept"), history, SEED) as load,
    ):
        load.start()
        await load.next_answer(GUARD_SECONDS)
        name, id = await watcher.owner()
        sleeper = cluster.proxies[name]
        pinned = [
            await AsyncLog.connect(endpoint_of(cluster, name, "slept"), timeout=4.0)
            for _ in range(3)
        ]
        zombie = await pinned[0].appender("zombie")
        early = history.invoke("zombie", [NewEntry(b"while it was the owner", ("t",))])
        history.ok(early, await zombie.append(early.entries))

        sleeper.signal(signal.SIGSTOP)
        await asyncio.to_thread(wait_state, sleeper.pid, "T")
        ended = await watcher.left(id, GUARD_SECONDS)
        answered = await load.next_answer(GUARD_SECONDS, after=ended)
        print(f"asleep: first ack {answered - ended:.3f} s after the end of the session")
        new_name, new_id = await watcher.owner()
        assert new_id != id
        successor = cluster.proxies[new_name].output
        lost_before = successor.read_text().count(SESSION_LOST)
        await load.next_answer(GUARD_SECONDS)

        known, epoch = history.known_lsn, (await watcher.manifest()).epoch
        of_zombie = history.invoke("zombie", [NewEntry(b"of a zombie", ("t",))])
        late = asyncio.create_task(zombie.append(of_zombie.entries))
        bounds = asyncio.create_task(pinned[1].bounds())
        got = asyncio.create_task(pinned[2].get("count"))
        await asyncio.sleep(0.1)
        sleeper.signal(signal.SIGCONT)

        outcomes = [await outcome_of(task) for task in (late, bounds, got)]  # type: ignore
        print(f"after it woke: {outcomes}")
        assert isinstance(outcomes[0], PenstockError), "the zombie acknowledged"
        history.failed(of_zombie, outcomes[0])
        for client in pinned:
            client.abandon()
            await client.close()
        owner_now, epoch_now = (await watcher.owner())[1], (await watcher.manifest()).epoch
        if (owner_now, epoch_now) != (new_id, epoch):
            await until(
                lambda: successor.read_text().count(SESSION_LOST) > lost_before,
                "it took the log back",
            )
        await load.next_answer(GUARD_SECONDS)
        await load.quiet(QUIET_SECONDS)
        final = await load.check(GUARD_SECONDS)
    assert isinstance(outcomes[1], PenstockError) or outcomes[1].tail >= known  # type: ignore
    assert isinstance(outcomes[2], PenstockError), "only the owner has the counter"
    assert b"of a zombie" not in {entry.payload for entry in final}
    output = cluster.proxies[name].output
    await until(lambda: "letting a log go log=slept" in output.read_text())
