"""A cluster whose parts die, sleep and lose each other on request; every fault is counted.

    proxies ──TcpProxy per node──► nodes          everybody ──TcpProxy each──► ZooKeeper

Owns the links between the processes and the faults themselves. Law: a fault counts when it was seen
to strike (the process was gone, stopped; the link was cut, stalled, or swallowed bytes), and when
a fault returns, what it broke is whole again.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from cluster_workload import Watcher, wait_state
from harness.tcp_proxy import NO_FAULT, Fault, TcpProxy, Way
from harness.waiting import TRIES

from penstock.errors import Unavailable
from penstock.limits import KIB
from penstock.log.local_cluster import NAMESPACE, ClusterProcess, LocalCluster
from penstock.log.serving.directory import Address

SESSION_SECONDS = 1.0
STARTS_MAX = 10
ENSEMBLE = 3
STALL = Fault(stall_after=0)
SWALLOW = Fault(drop_after=0)


class FireCluster:
    """Made by `fire_cluster`: processes, and the links between them."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        #: In front of each node.
        self.links: dict[str, TcpProxy] = {}
        #: Of each node and proxy to ZooKeeper.
        self.metadata_links: dict[str, TcpProxy] = {}

    def node_address(self, name: str) -> Address | None:
        """Where the node itself listens; None while it does not."""
        try:
            found = json.loads((self.cluster.directory / name / "node.json").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return Address(found["host"], found["port"])

    def zookeeper_address(self) -> Address:
        assert self.cluster.zookeeper is not None
        return Address("127.0.0.1", self.cluster.zookeeper.port)

    async def start(self, stack: AsyncExitStack, nodes: int, proxies: int) -> None:
        cluster = self.cluster
        await asyncio.to_thread(cluster.start_metadata)
        started = []
        for name in [f"n{number}" for number in range(nodes)]:
            link = TcpProxy(lambda name=name: self.node_address(name))  # type: ignore[misc]
            self.links[name] = await stack.enter_async_context(link)
            settings = {
                "metadata": await self._metadata(stack, name),
                "advertised-port": link.address.port,
            }
            started.append(cluster.add_node(name, settings))
        for name in [f"p{number}" for number in range(proxies)]:
            settings = {
                "metadata": await self._metadata(stack, name),
                "session-seconds": SESSION_SECONDS,
                "segment-bytes": 256 * KIB,
            }
            started.append(cluster.add_proxy(name, settings))
        for process in started:
            await asyncio.to_thread(process.wait_ready)

    async def _metadata(self, stack: AsyncExitStack, name: str) -> str:
        link = await stack.enter_async_context(TcpProxy(self.zookeeper_address))
        self.metadata_links[name] = link
        return f"penstock://127.0.0.1:{link.address.port}/{NAMESPACE}"


@asynccontextmanager
async def fire_cluster(directory: Path, *, nodes: int, proxies: int) -> AsyncIterator[FireCluster]:
    """Started; at the end every process has ended."""
    fire = FireCluster(LocalCluster(directory))
    async with AsyncExitStack() as stack:
        try:
            await fire.start(stack, nodes, proxies)
            yield fire
        finally:
            # Before the links: what says goodbye to ZooKeeper ends sooner.
            await asyncio.to_thread(fire.cluster.stop)


@contextmanager
def busy_processor(count: int) -> Iterator[None]:
    """So many processes that want a processor each, all the time."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


Strike = Callable[[], Awaitable[None]]


class Nemesis:
    """The faults. Each heals itself; `fired` counts those that really struck."""

    def __init__(self, fire: FireCluster, watcher: Watcher, rng: random.Random) -> None:
        self._fire = fire
        self._watcher = watcher
        self._rng = rng
        self.fired: Counter[str] = Counter()
        self._decks: dict[str, list[str]] = {}
        #: Bytes of each node's link so far, when one was last chosen.
        self._forwarded: dict[str, int] = {}
        #: One fault at a time for each process.
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    # ---- lanes: each strikes one thing at a time, all of them at once

    def node_faults(self) -> dict[str, Strike]:
        return {
            "kill node": lambda: self._kill("kill node", self._node()),
            "node gone": lambda: self._kill("node gone", self._node(), 1.5, 2.5),
            "pause node": lambda: self._pause("pause node", self._node(), 0.05, 0.6),
            "pause node long": lambda: self._pause("pause node long", self._node(), 1.0, 2.0),
            "cut node": lambda: self._cut("cut node", self._link()),
            "node unreachable": lambda: self._stall("node unreachable", self._link(), list(Way)),
            "acks late": lambda: self._stall("acks late", self._link(), [Way.TO_CLIENT]),
            "adds late": lambda: self._stall("adds late", self._link(), [Way.TO_SERVER]),
            "acks lost": lambda: self._swallow("acks lost", self._link(), Way.TO_CLIENT),
            "adds lost": lambda: self._swallow("adds lost", self._link(), Way.TO_SERVER),
        }

    def proxy_faults(self) -> dict[str, Strike]:
        session = SESSION_SECONDS

        async def kill_owner() -> None:
            await self._kill("kill owner", await self._owner())

        async def kill_other() -> None:
            await self._kill("kill other proxy", await self._other())

        async def pause_owner() -> None:
            await self._pause("pause owner", await self._owner(), 0.05, 0.5)

        async def owner_sleeps() -> None:
            await self._pause("owner sleeps", await self._owner(), 1.5 * session, 2.5 * session)

        async def owner_and_node_die() -> None:
            """What a quorum without the node took must be found by who recovers with the node."""
            owner, node = await self._owner(), self._node()
            async with self._locks[owner.name], self._locks[node.name]:
                node.kill()
                await asyncio.sleep(self._rng.uniform(0.02, 0.1))
                owner.kill()
                self.fired["owner and node die"] += not (owner.is_running or node.is_running)
                await self._start(node)
                await asyncio.sleep(session)
                await self._start(owner)

        return {
            "kill owner": kill_owner,
            "owner and node die": owner_and_node_die,
            "kill other proxy": kill_other,
            "pause owner": pause_owner,
            "owner sleeps": owner_sleeps,
        }

    def metadata_faults(self) -> dict[str, Strike]:
        async def cut_owner() -> None:
            owner = await self._owner()
            await self._cut("cut owner's metadata", self._fire.metadata_links[owner.name])

        async def lose_session() -> None:
            link = self._fire.metadata_links[(await self._owner()).name]
            await self._stall(
                "lose owner's session",
                link,
                list(Way),
                1.5 * SESSION_SECONDS,
                2.0 * SESSION_SECONDS,
            )

        async def cut_node() -> None:
            await self._cut("cut node's metadata", self._fire.metadata_links[self._node().name])

        return {
            "cut owner's metadata": cut_owner,
            "lose owner's session": lose_session,
            "cut node's metadata": cut_node,
            "pause zookeeper": self._pause_zookeeper,
            "kill zookeeper": self._kill_zookeeper,
        }

    async def strike(self, faults: dict[str, Strike], count: int) -> None:
        """So many cycles of these faults, each kind as often as any other."""
        key = "/".join(faults)
        for _ in range(count):
            deck = self._decks.setdefault(key, [])
            if not deck:
                deck += self._rng.sample(list(faults), len(faults))
            kind = deck.pop()
            for _ in range(TRIES):  # where nothing was on its way, nothing was struck
                before = self.fired[kind]
                await faults[kind]()
                await asyncio.sleep(self._rng.uniform(0.02, 0.25))
                if self.fired[kind] > before:
                    break

    # ---- whom

    def _node(self) -> ClusterProcess:
        return self._rng.choice(list(self._fire.cluster.nodes.values()))

    def _link(self) -> TcpProxy:
        """One of an ensemble's nodes: those had most to do since the last time."""
        links, before = self._fire.links, self._forwarded
        self._forwarded = {
            n: sum(link.counts.forwarded_bytes.values()) for n, link in links.items()
        }
        busiest = sorted(links, key=lambda n: self._forwarded[n] - before.get(n, 0))[-ENSEMBLE:]
        return links[self._rng.choice(busiest)]

    async def _owner(self) -> ClusterProcess:
        name, _ = await self._watcher.owner()
        return self._fire.cluster.proxies[name]

    async def _other(self) -> ClusterProcess:
        name, _ = await self._watcher.owner()
        others = [p for p in self._fire.cluster.proxies.values() if p.name != name]
        return self._rng.choice(others)

    # ---- what

    async def _kill(
        self, kind: str, process: ClusterProcess, least: float = 0.0, most: float = 0.3
    ) -> None:
        async with self._locks[process.name]:
            process.kill()
            self.fired[kind] += not process.is_running
            await asyncio.sleep(self._rng.uniform(least, most))
            await self._start(process)

    async def _start(self, process: ClusterProcess) -> None:
        for _ in range(STARTS_MAX):
            try:
                await asyncio.to_thread(process.start)
                return
            except Unavailable:  # ZooKeeper is away, too: whoever runs it starts it again
                process.kill()
        raise AssertionError(f"{process.name} does not start: {process.last_line()}")

    async def _pause(self, kind: str, process: ClusterProcess, least: float, most: float) -> None:
        async with self._locks[process.name]:
            process.signal(signal.SIGSTOP)
            try:
                await asyncio.to_thread(wait_state, process.pid, "T")
                self.fired[kind] += 1
                await asyncio.sleep(self._rng.uniform(least, most))
            finally:
                process.signal(signal.SIGCONT)

    async def _cut(self, kind: str, link: TcpProxy) -> None:
        before = link.counts.cuts
        link.cut_all()
        self.fired[kind] += link.counts.cuts > before

    async def _stall(
        self, kind: str, link: TcpProxy, ways: list[Way], least: float = 0.1, most: float = 1.2
    ) -> None:
        """Nothing passes for a while; then everything does, late."""
        before = link.counts.stalls
        self._arm(link, ways, STALL)
        await asyncio.sleep(self._rng.uniform(least, most))
        self.fired[kind] += link.counts.stalls > before
        self._arm(link, ways, NO_FAULT)

    async def _swallow(self, kind: str, link: TcpProxy, way: Way) -> None:
        """What is sent is lost; then so is the connection."""
        before = link.counts.dropped_bytes
        self._arm(link, [way], SWALLOW)
        await asyncio.sleep(self._rng.uniform(0.1, 0.6))
        self.fired[kind] += link.counts.dropped_bytes > before
        # First the connections: nothing may pass behind what is missing.
        link.cut_all()
        self._arm(link, [way], NO_FAULT)

    def _arm(self, link: TcpProxy, ways: list[Way], fault: Fault) -> None:
        for way in ways:
            link.faults[way] = fault
            link.arm(way, fault)

    async def _pause_zookeeper(self) -> None:
        server = self._fire.cluster.zookeeper
        assert server is not None
        server.signal(signal.SIGSTOP)
        try:
            await asyncio.to_thread(wait_state, server.pid, "T")
            self.fired["pause zookeeper"] += 1
            await asyncio.sleep(self._rng.uniform(0.1, 0.8))
        finally:
            server.signal(signal.SIGCONT)

    async def _kill_zookeeper(self) -> None:
        server = self._fire.cluster.zookeeper
        assert server is not None
        server.kill()
        self.fired["kill zookeeper"] += not server.is_running
        await asyncio.to_thread(server.start)
