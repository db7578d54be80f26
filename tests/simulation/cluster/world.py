"""A whole cluster in one thread: nodes, proxies, metadata, clients, and the network between them.

Owns the two phases: *safety* (the faults that the seed drew strike; nothing wrong may ever be seen)
and *liveness* (all is healed, or all but one node; everybody must finish within a bounded time).
Then the power of all nodes is cut once more, the log is taken over and read by every way there is,
and the checkers have their say. The real code of proxies and nodes runs here; simulated are time,
network, disks and what the metadata store does to its sessions.
Law (I21): the same seed gives the same trace, bit for bit.

    ClusterWorld(7).run()
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as Counts
from collections.abc import Callable
from contextlib import contextmanager
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, NoReturn

from penstock.errors import Trimmed
from penstock.ids import NodeId
from penstock.log.client.reader import decode_records
from penstock.log.core.tails import Deliver
from penstock.log.meta.memory import MemoryMetadata, MemorySession
from penstock.log.proxy.manifest_register import manifest_path
from penstock.log.proxy.owned_log import OwnedLog
from penstock.log.records import Appended, Entry
from penstock.log.replication.manifest import SegmentKey, decode_log_manifest
from penstock.log.replication.node_api import NodeInfo
from penstock.log.replication.node_core import Record
from penstock.log.storage.reader import find_time, read_last, read_piece
from simulation.checkers import Violation, check_all
from simulation.cluster.checkers import Ledger
from simulation.cluster.clients import (
    TAGS,
    Counter,
    Follower,
    LogClient,
    Scanner,
    Trimmer,
    Writer,
)
from simulation.cluster.network import Connection
from simulation.cluster.nodes import SimNode
from simulation.cluster.proxies import LOG, SimProxy
from simulation.cluster.swarm import ClusterSwarm, Fault, draw_swarm, small_limits
from simulation.kernel import Process, Scheduler
from simulation.log.story import FinalLog, Story

if TYPE_CHECKING:
    from collections.abc import Iterator

_START_MS = 1_700_000_000_000
#: After healing, everybody finishes within so many sessions, or is stuck.
LIVENESS_SECONDS_MAX = 60.0
STEPS_MAX = 300_000
_STEPS_AT_ONCE = 20
_JUMPS_MS = (5, 1000, 3_600_000)


class Stuck(AssertionError):
    """After healing, somebody did not finish: a liveness violation (I16)."""


class Unforeseen(AssertionError):
    """An exception that nothing in the world can explain."""


class _Metadata(MemoryMetadata):
    """Tells of every manifest."""

    def __init__(self, changed: Callable[[bytes], None]) -> None:
        super().__init__()
        self._changed = changed

    def _create(self, path: str, data: bytes, owner: MemorySession | None) -> int:
        version = super()._create(path, data, owner)
        if path == manifest_path(LOG):
            self._changed(data)
        return version

    def _set(self, path: str, data: bytes, version: int) -> int:
        found = super()._set(path, data, version)
        if path == manifest_path(LOG):
            self._changed(data)
        return found


class ClusterWorld:
    """See the module's docstring. `swarm` overrides what the seed would draw."""

    def __init__(self, seed: int, *, swarm: ClusterSwarm | None = None) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.swarm = draw_swarm(self.random) if swarm is None else swarm
        self.scheduler = Scheduler()
        #: Faults still strike.
        self.is_broken = True
        #: Only the log itself is read any more: nothing takes long.
        self._is_over = False
        self.story = Story()
        self.counts: Counts[str] = Counts()
        self.trace: list[str] = []
        self._digest = blake2b(digest_size=16)
        self._problem: BaseException | None = None
        self._unique = 0
        self._clock_ms = 0
        self.connections: dict[Connection, None] = {}
        #: Ways (from, to) on which nothing goes through now.
        self.cuts: dict[tuple[str, str], int] = {}
        self.metadata_cuts: dict[str, None] = {}
        self.registry: dict[NodeId, NodeInfo] = {}
        self._lost: set[tuple[SegmentKey, int, str]] = set()
        self.metadata = _Metadata(self._manifest_changed)
        self.regions = [f"r{number}" for number in range(self.swarm.regions)]
        self._outside = self.scheduler.process("world")
        self.clients = self.scheduler.process("clients")
        self.nodes: dict[str, SimNode] = {}
        for number in range(self.swarm.nodes):
            region = self.regions[number % len(self.regions)]
            self.nodes[f"n{number}"] = SimNode(
                self, f"n{number}", region=region, rack=f"k{number % 2}"
            )
        names = list(self.nodes)
        self.expendable = self.random.sample(names, min(self.swarm.expendable, len(names)))
        self.proxies = {f"p{n}": SimProxy(self, f"p{n}") for n in range(self.swarm.proxies)}
        self._skew_ms = {name: self.random.choice((0, 0, 5000, -5000)) for name in self.proxies}
        self.ledger = Ledger(
            self.swarm.replication, {node.name: node.region for node in self.nodes.values()}
        )
        self._writers: list[Writer | Counter] = []
        self._followers: list[Follower] = []

    # ---- time and trace

    @property
    def now(self) -> float:
        return self.scheduler.now

    @property
    def now_us(self) -> int:
        return int(self.scheduler.now * 1_000_000)

    @property
    def steps(self) -> int:
        return self.scheduler.steps

    @property
    def trace_hash(self) -> str:
        return self._digest.hexdigest()

    def wall_ms(self, proxy: str) -> int:
        """The clocks of proxies differ, and jump."""
        skew_ms = self._skew_ms.get(proxy, 0)
        return _START_MS + self._clock_ms + skew_ms + int(self.now * 1000)

    def note(self, text: str) -> None:
        line = f"{self.now:.6f} {text}"
        self.trace.append(line)
        self._digest.update(line.encode())

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def unique(self) -> int:
        self._unique += 1
        return self._unique

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._outside.call_later(seconds, action)

    def fail(self, what: str, error: BaseException | None = None) -> None:
        """The world is broken in a way that nothing explains."""
        if self._problem is None:
            self.note(f"failed: {what}")
            if isinstance(error, Violation):
                self._problem = error
            else:
                self._problem = Unforeseen(what)
                self._problem.__cause__ = error

    def delay(self) -> float:
        """Of one message: mostly short, sometimes not."""
        if self._is_over:
            return 0.0001
        drawn = self.random.random()
        most = self.swarm.network_seconds
        return drawn * most if drawn < 0.97 else drawn * most * 10

    def disk_delay(self, node: SimNode) -> float:
        if self._is_over:
            return 0.0001
        slow = 40 if self.now < node.slow_until else 1
        return self.random.random() * self.swarm.disk_seconds * slow

    # ---- what the parts tell

    def wrote(self, node: SimNode, records: tuple[Record, ...]) -> None:
        self.note(f"{node.name} wrote {len(records)}")
        try:
            self.ledger.wrote(node.name, records)
        except Violation as error:
            self.fail(str(error), error)

    def acknowledged(self, outcome: Appended) -> None:
        self._told(outcome.first_lsn + outcome.count, "acknowledged")

    def delivered(self, what: Deliver) -> None:
        self._told(what.looked_up_to, "delivered")

    def _told(self, end_lsn: int, what: str) -> None:
        try:
            self.ledger.told(end_lsn, what)
        except Violation as error:
            self.fail(str(error), error)

    def _manifest_changed(self, data: bytes) -> None:
        manifest = decode_log_manifest(data)
        opens = [segment.id for segment in manifest.open_segments]
        self.note(f"manifest of {manifest.owner}, epoch {manifest.epoch}, open {opens}")
        try:
            self.ledger.manifest_is(manifest)
        except Violation as error:
            self.fail(str(error), error)

    # ---- nodes come and go

    def node_started(self, node: SimNode) -> None:
        self.note(f"{node.name} started as {node.id}")
        self.after(self.random.random() * 0.05, lambda: self._register(node))

    def _register(self, node: SimNode) -> None:
        if node.is_up:
            for id in [id for id, info in self.registry.items() if info.name == node.name]:
                del self.registry[id]
            self.registry[node.id] = node.info
            self._registry_changed()

    def node_stopped(self, node: SimNode, process: Process) -> None:
        self.note(f"{node.name} stopped")
        self.server_died(node.name)
        id = node.id

        def expire() -> None:
            if id in self.registry and (not node.is_up or node.id != id):
                del self.registry[id]
                self._registry_changed()

        self.after(self.random.random() * self.swarm.session_seconds, expire)
        if self.is_broken:
            # The same life ends only once: it is started again unless somebody does it before.
            self.after(self.random.uniform(0.01, 1.5), node.start)

    def _registry_changed(self) -> None:
        for proxy in self.proxies.values():
            if proxy.process is not None:
                proxy.process.call_later(self.random.random() * 0.1, self._refresh, proxy)

    def _refresh(self, proxy: SimProxy) -> None:
        if proxy.name not in self.metadata_cuts:
            proxy.nodes.refresh()

    def server_died(self, name: str) -> None:
        """Its connections are reset, as far as that gets through."""
        for connection in list(self.connections):
            if connection.server == name:
                connection.reset_if_dead()

    def lost_disk(self, node: SimNode) -> None:
        for key, blocks in node.store.parts.items():
            self._lost |= {(key, block, node.name) for block in blocks}

    # ---- sessions

    def open_session(self, proxy: SimProxy) -> MemorySession:
        session = self.metadata.session()
        most = self.swarm.metadata_seconds

        async def delay() -> None:
            await asyncio.sleep(self.random.random() * most)

        session.delay = delay
        return session

    def expire_later(self, session: MemorySession, seconds: float) -> None:
        self.after(seconds, lambda: session.expire(told=False))

    def _session_age(self) -> float:
        """How long after it was last heard of a session ends: heartbeats come thrice as often."""
        return self.swarm.session_seconds * self.random.uniform(0.7, 1.0)

    # ---- the run

    def run(self) -> None:
        """Both phases, then the checkers. Raises on any violation."""
        with self._inside():
            self.begin()
            for kind in self.swarm.mean_seconds:
                self._fault_later(kind)
            for _ in range(self.swarm.rivals):
                at = self.random.random() * self.swarm.safety_seconds
                self.after(at, self._rival)
            self.run_until(lambda: self.now >= self.swarm.safety_seconds)
            self.heal()
            self._finish()
            final = self.read_final()
            self.ledger.check_copies(self._lost)
        check_all(self.story, final)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)  # warnings of broken nodes, thousands of them
        try:
            with small_limits(self.swarm):
                yield
        finally:
            self.scheduler.close()
            logging.disable(level)

    def begin(self) -> None:
        """Start everybody."""
        for node in self.nodes.values():
            node.start()
        self.registry = {node.id: node.info for node in self.nodes.values()}
        for proxy in self.proxies.values():
            proxy.start()
        self.clients.call_soon(self._populate)
        self.after(0.3, self._collect_garbage)

    def run_until(self, happened: Callable[[], bool], *, seconds: float = 1e9) -> None:
        """Go on until something has happened; it is looked for now and then."""
        deadline = self.now + seconds
        scheduler, step = self.scheduler, self.scheduler.step
        while not happened():
            for _ in range(_STEPS_AT_ONCE):
                if not step():
                    raise Stuck("nothing is left to do")
                if scheduler.errors or self._problem is not None:
                    self._give_up()
            if scheduler.now > deadline or scheduler.steps > STEPS_MAX:
                raise Stuck(f"after {self.now:.1f} s, {self.steps} steps: {self._unfinished()}")

    def _give_up(self) -> NoReturn:
        if self._problem is None:
            self.fail("; ".join(self.scheduler.errors))
        assert self._problem is not None
        raise self._problem

    def heal(self) -> None:
        self.note("heal")
        self.is_broken = False
        self.cuts.clear()
        for connection in list(self.connections):
            connection.flush()
        for name in list(self.metadata_cuts):
            self._mend_metadata(name)
        away = self.expendable[0] if self.swarm.leave_down and self.expendable else None
        for node in self.nodes.values():
            node.slow_until, node.fail_next_write = 0.0, False
            if node.name == away:
                node.stop(keep=1.0)
                continue
            if node.process is not None:
                node.process.resume()
            node.start()
        for proxy in self.proxies.values():
            self._resume(proxy)
            proxy.start()
            if self.swarm.rivals and proxy.session is not None:
                # Only a session tells an owner that nobody writes to that it is one no more.
                proxy.session.expire()

    def _finish(self) -> None:
        self.run_until(self._is_finished, seconds=LIVENESS_SECONDS_MAX)

    def _is_finished(self) -> bool:
        tail = self.story.known_lsn
        return all(writer.is_done for writer in self._writers) and all(
            follower.looked_up_to >= tail for follower in self._followers
        )

    def _unfinished(self) -> str:
        writers = [w._client.name for w in self._writers if not w.is_done]
        lags = {f.reading.client: f.looked_up_to for f in self._followers}
        return f"unfinished {writers}, tail {self.story.known_lsn}, readers {lags}"

    def _populate(self) -> None:
        swarm, random = self.swarm, self.random
        archive = Follower(self, self._client("archive", reads=True), tags=None, slow=False)
        self._followers.append(archive)
        for number in range(swarm.writers):
            self._writer(f"w{number}", f"name-{number}", 0.0)
        for number in range(swarm.zombies):
            delay = random.choice((0.0, random.random() * swarm.safety_seconds))
            self._writer(f"z{number}", f"name-{number}", delay)
        for number in range(swarm.counters):
            client = self._client(f"count{number}", reads=False)
            operations = swarm.operations // 2
            self._writers.append(Counter(self, client, key="counter", operations=operations))
        for number in range(swarm.readers):
            tags = None if random.random() < 0.3 else tuple(random.sample(TAGS, 3))
            client = self._client(f"r{number}", reads=random.random() < 0.8)
            self._followers.append(Follower(self, client, tags=tags, slow=random.random() < 0.3))
        for number in range(swarm.scanners):
            Scanner(self, self._client(f"scan{number}", reads=False))
        for number in range(swarm.trimmers):
            Trimmer(self, self._client(f"trim{number}", reads=False), limit=self._trim_limit)

    def _trim_limit(self) -> int:
        archive = self._followers[0]
        return self.story.known_lsn if self.swarm.trim_freely else archive.looked_up_to

    def _client(self, name: str, *, reads: bool) -> LogClient:
        return LogClient(self, name, reads=reads)

    def _writer(self, client: str, name: str, delay: float) -> None:
        operations = self.swarm.operations
        made = self._client(client, reads=False)
        self._writers.append(Writer(self, made, name=name, operations=operations, delay=delay))

    def _collect_garbage(self) -> None:
        """A node reads the manifest now and then, and gives up what the manifest has given up."""
        if self.ledger.manifest is not None:
            node = self.random.choice(list(self.nodes.values()))
            if node.process is not None:
                first = self.ledger.manifest.first_segment
                node.process.call_soon(node.trim, LOG, first)
        if self.is_broken:
            self.after(self.random.random() * 0.6, self._collect_garbage)

    # ---- faults

    def _fault_later(self, kind: Fault) -> None:
        wait = self.random.expovariate(1 / self.swarm.mean_seconds[kind])

        def strike() -> None:
            if self.is_broken:
                self.strike(kind)
                self._fault_later(kind)

        self.after(wait, strike)

    def strike(self, kind: Fault) -> None:
        """One fault, somewhere."""
        random = self.random
        node = random.choice(list(self.nodes.values()))
        proxy = random.choice(list(self.proxies.values()))
        happened = True
        match kind:
            case Fault.BREAK:
                happened = self._break_one()
            case Fault.CUT | Fault.ONE_WAY:
                self._cut_some(kind, node, proxy)
            case Fault.NODE_KILL:
                happened = node.is_up
                node.stop(keep=1.0)
            case Fault.NODE_POWER:
                happened = node.is_up
                node.stop(keep=random.choice((0.0, random.random())))
            case Fault.ALL_POWER:
                for each in self.nodes.values():
                    each.stop(keep=random.choice((0.0, random.random())))
            case Fault.NODE_PAUSE:
                happened = self._pause_node(node)
            case Fault.NODE_SLOW:
                node.slow_until = self.now + random.uniform(0.2, 3.0)
            case Fault.NODE_FSYNC:
                node.fail_next_write = True
            case Fault.NODE_WIPE | Fault.NODE_DAMAGE:
                happened = self._lose_disk(kind)
            case Fault.PROXY_KILL:
                happened = proxy.process is not None
                proxy.kill()
                self.after(random.uniform(0.05, 2.0), proxy.start)
            case Fault.PROXY_PAUSE:
                happened = self._pause_proxy(proxy)
            case Fault.PROXY_STOP:
                happened = proxy.process is not None and proxy.owned is not None
                if happened and proxy.process is not None:
                    proxy.process.call_soon(lambda: proxy._spawn(proxy.stop_clean()))
            case Fault.CLOCK:
                self._clock_ms += random.choice((-1, 1)) * random.choice(_JUMPS_MS)
            case _:
                happened = self._strike_metadata(kind, proxy)
        if happened:
            self.note(f"fault {kind}: {node.name} {proxy.name}")
            self.count(f"fault {kind}")

    def _break_one(self) -> bool:
        if not self.connections:
            return False
        self.random.choice(list(self.connections)).break_off()
        return True

    def _cut_some(self, kind: Fault, node: SimNode, proxy: SimProxy) -> None:
        """Between two machines, or around one of them; both ways or one way."""
        random = self.random
        around = random.choice(("pair", "pair", "node", "proxy"))

        def is_cut(p: str, n: str) -> bool:
            if around == "pair":
                return (p, n) == (proxy.name, node.name)
            return n == node.name if around == "node" else p == proxy.name

        pairs = [(p, n) for p in self.proxies for n in self.nodes if is_cut(p, n)]
        ways = random.choice(((0,), (1,))) if kind is Fault.ONE_WAY else (0, 1)
        cut = [((p, n), (n, p))[way] for p, n in pairs for way in ways]
        for way in cut:
            self.cuts[way] = self.cuts.get(way, 0) + 1
        self.after(random.uniform(0.05, 3.0), lambda: self._mend(cut))

    def _mend(self, ways: list[tuple[str, str]]) -> None:
        for way in ways:
            left = self.cuts.pop(way, 0) - 1
            if left > 0:
                self.cuts[way] = left
        for connection in list(self.connections):
            connection.flush()

    def _pause_node(self, node: SimNode) -> bool:
        process = node.process
        if process is None or process.paused:
            return False
        process.pause()
        self.after(self.random.uniform(0.05, 2.5), process.resume)
        return True

    def _lose_disk(self, kind: Fault) -> bool:
        if not self.expendable:
            return False
        node = self.nodes[self.random.choice(self.expendable)]
        if kind is Fault.NODE_WIPE:
            was_up = node.is_up
            node.wipe()
            if not was_up:
                self.after(0.1, node.start)
            return True
        parts = [(key, block) for key, blocks in node.store.parts.items() for block in blocks]
        if not parts or not node.is_up:
            return False
        key, block = self.random.choice(parts)
        node.lose_block(key, block)
        self._lost.add((key, block, node.name))
        return True

    def _pause_proxy(self, proxy: SimProxy) -> bool:
        process, session = proxy.process, proxy.session
        if process is None or process.paused:
            return False
        process.pause()
        seconds = self.random.uniform(0.1, 3 * self.swarm.session_seconds)
        if session is not None:
            self.after(self._session_age(), lambda: self._miss(process, session))
        self.after(seconds, lambda: self._resume(proxy))
        return True

    def _miss(self, process: Process, session: MemorySession) -> None:
        """The metadata store has not heard of a session for too long."""
        if process.paused and not process.dead:
            self.count("session expired in a pause")
            session.expire(told=False)

    def _resume(self, proxy: SimProxy) -> None:
        process, session = proxy.process, proxy.session
        if process is None or not process.paused:
            return
        process.resume()
        if session is not None and session.is_ended:
            # It learns of it when it speaks to the store again.
            process.call_later(self.random.random() * 0.1, session.tell_lost)

    def _strike_metadata(self, kind: Fault, proxy: SimProxy) -> bool:
        session = proxy.session
        if session is None or session.is_ended:
            return False
        match kind:
            case Fault.META_REPLY:
                session.lose_replies()
            case Fault.META_REQUEST:
                session.lose_requests()
            case Fault.META_EXPIRE:
                session.expire()
            case Fault.META_CUT:
                if proxy.name in self.metadata_cuts:
                    return False
                self.metadata_cuts[proxy.name] = None
                session.is_unavailable = True
                seconds = self.random.uniform(0.05, 3 * self.swarm.session_seconds)
                age = self._session_age()
                if seconds > age:
                    self.after(age, session.expire)
                self.after(seconds, lambda: self._mend_metadata(proxy.name))
        return True

    def _mend_metadata(self, name: str) -> None:
        self.metadata_cuts.pop(name, None)
        session = self.proxies[name].session
        if session is not None:
            session.is_unavailable = False
        process = self.proxies[name].process
        if process is not None:
            process.call_later(self.delay(), self._refresh, self.proxies[name])

    def _rival(self) -> None:
        proxy = self.random.choice(list(self.proxies.values()))
        process = proxy.process
        if self.is_broken and process is not None:
            self.note(f"{proxy.id} takes the log without asking")
            process.call_soon(lambda: proxy._spawn(proxy.rival()))

    # ---- the end

    def read_final(self) -> FinalLog:
        """Cut the power of all nodes, take the log over, and read it by every way there is."""
        self.note("final power cut")
        self._is_over = True
        self.clients.kill()
        for proxy in self.proxies.values():
            proxy.kill()
        for node in self.nodes.values():
            was_up = node.is_up
            node.stop(keep=self.random.random())
            if was_up:
                node.start()
        self.registry = {node.id: node.info for node in self.nodes.values() if node.is_up}
        reader = SimProxy(self, "final")
        self.proxies["final"] = reader
        reader.start()
        found: list[FinalLog] = []

        async def read() -> None:
            owned = await reader.open_log()
            found.append(await self._read_by_every_way(owned))
            await owned.stop(clean=True)

        assert reader.process is not None
        reader.process.call_later(0.1, lambda: reader._spawn(read()))
        self.run_until(lambda: bool(found), seconds=30.0)
        return found[0]

    async def _read_by_every_way(self, owned: OwnedLog) -> FinalLog:
        view = owned.view
        entries = await _read_all(owned, None)
        tags = sorted({tag for entry in entries for tag in entry.tags} | {"none"})
        if len(tags) > 8:
            tags = self.random.sample(tags, 8)
        times = sorted({entry.time_ms + delta for entry in entries for delta in (0, 1)})
        times = self.random.sample(times, min(len(times), 5))
        point = owned.trim_point
        if point > 0:
            try:
                await view.read(read_piece, None, point - 1, point, 1000)
            except Trimmed:
                pass
            else:
                raise Violation("I15", f"lsn {point - 1} is trimmed and can be read")
        last: dict[str, Entry | None] = {}
        for tag in tags:
            record = await view.read(read_last, tag, owned.durable_lsn)
            last[tag] = next(iter(decode_records(memoryview(record)))) if record else None
        return FinalLog(
            trim_point=point,
            tail=owned.durable_lsn,
            entries=entries,
            by_tag={tag: await _read_all(owned, frozenset([tag])) for tag in tags},
            last_by_tag=last,
            by_time={time_ms: await view.read(find_time, time_ms) for time_ms in times},
            metadata=dict(owned.sequencer.state.metadata),
        )


async def _read_all(owned: OwnedLog, tags: frozenset[str] | None) -> list[Entry]:
    entries: list[Entry] = []
    lsn: int = owned.trim_point
    while lsn < owned.durable_lsn:
        piece = await owned.view.read(read_piece, tags, lsn, owned.durable_lsn, 2000)
        assert piece.looked_up_to > lsn, f"a read at {lsn} makes no progress"
        entries += decode_records(memoryview(b"".join(piece.records)))
        lsn = piece.looked_up_to
    return entries
