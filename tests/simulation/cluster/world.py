"""A whole cluster in one thread: nodes, proxies, metadata, clients, and the network between them.

Owns the two phases: *safety* (the faults that the seed drew strike; nothing wrong may ever be seen)
and *liveness* (all is healed, or all but one node; everybody must finish within a bounded time).
Then the power of all nodes is cut once more, the log is taken over and read by every way there is,
and the checkers have their say. The shipped servers and clients run here; simulated are time,
network, disks and what the metadata store does to its sessions.
Law (I21): the same seed gives the same trace, bit for bit.

    ClusterWorld(7).run()
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING

from penstock.errors import Trimmed
from penstock.log.client.reader import decode_records
from penstock.log.core.tails import Deliver
from penstock.log.meta.memory import MemorySession
from penstock.log.node.journal import RecoveredJournal
from penstock.log.proxy.owned_log import OwnedLog
from penstock.log.records import Appended, Entry
from penstock.log.replication.manifest import SegmentKey, decode_log_manifest
from penstock.log.replication.node_core import AddRecord, Record
from penstock.log.replication.quorum import replicas
from penstock.log.storage.reader import find_time, read_last, read_piece
from simulation.checkers import Violation, check_all
from simulation.cluster import clients
from simulation.cluster.checkers import Ledger
from simulation.cluster.clients import (
    TAGS,
    Counter,
    Follower,
    Scanner,
    Trimmer,
    Writer,
)
from simulation.cluster.metadata import SimMetadata
from simulation.cluster.nodes import Place, SimNode
from simulation.cluster.observers import observed
from simulation.cluster.proxies import SimProxy
from simulation.cluster.swarm import ClusterSwarm, Fault, draw_swarm, small_limits
from simulation.kernel import (
    Network,
    NetworkOdds,
    Process,
    Stuck,
    WallClock,
    seeded_secrets,
)
from simulation.kernel.seeded import SeededWorld, collected_at_the_end
from simulation.log.story import FinalLog, Story

if TYPE_CHECKING:
    from collections.abc import Iterator

#: After healing, everybody finishes within so many seconds, or is stuck.
LIVENESS_SECONDS_MAX = 60.0
STEPS_MAX = 600_000
_STEPS_AT_ONCE = 20
_JUMPS_MS = (5, 1000, 3_600_000)
#: How long a request takes once only the log itself is read any more.
_QUICK_SECONDS = 0.0001


class ClusterWorld(SeededWorld[Fault]):
    """See the module's docstring. `swarm` overrides what the seed would draw."""

    def __init__(self, seed: int, *, swarm: ClusterSwarm | None = None) -> None:
        super().__init__(seed, Random(seed))
        self.swarm = draw_swarm(self.random) if swarm is None else swarm
        most = self.swarm.network_seconds
        odds = NetworkOdds(
            delay_seconds=(0.0, most),
            slow_seconds=(0.0, most * 10),
            late_odds=self.swarm.late_odds,
            late_seconds_max=4.0,
        )
        self.network = Network(self.scheduler, odds, self.count)
        #: Only the log itself is read any more: nothing takes long.
        self._is_over = False
        self.story = Story()
        self._lost: set[tuple[SegmentKey, int, str]] = set()
        self.metadata = SimMetadata(self, self._manifest_changed)
        self.regions = [f"r{number}" for number in range(self.swarm.regions)]
        self.clients = self.scheduler.process("clients", clients.MACHINE)
        self.nodes: dict[str, SimNode] = {}
        for number in range(self.swarm.nodes):
            region = self.regions[number % len(self.regions)]
            node = SimNode(self, number, region=region, rack=f"k{number % 2}")
            self.nodes[node.name] = node
        self._node_names = {node.machine: node.name for node in self.nodes.values()}
        names = list(self.nodes)
        self.expendable = self.random.sample(names, min(self.swarm.expendable, len(names)))
        self.proxies: dict[str, SimProxy] = {}
        self._clocks: dict[str, WallClock] = {}
        for number in range(self.swarm.proxies):
            proxy = SimProxy(self, number, region=self.regions[0])
            self.proxies[proxy.name] = proxy
            clock = self._clocks[proxy.name] = WallClock(self.scheduler)
            clock.jump(self.random.choice((0, 0, 5000, -5000)))
        self.ledger = Ledger(
            self.swarm.replication, {node.name: node.region for node in self.nodes.values()}
        )
        self._writers: list[Writer | Counter] = []
        self._followers: list[Follower] = []

    def wall_ms(self, proxy: str) -> int:
        """The clocks of proxies differ, and jump."""
        return self._clocks[proxy].wall_ms()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.scheduler.after(seconds, action)

    def fail(self, what: str, error: BaseException | None = None) -> None:
        """The world is broken in a way that nothing explains."""
        self.note(f"failed: {what}")
        self.scheduler.fail_all(what, error)

    def disk_delay(self, node: SimNode) -> float:
        if self._is_over:
            return _QUICK_SECONDS
        slow = 40 if self.now < node.slow_until else 1
        return self.random.random() * self.swarm.disk_seconds * slow

    # ---- what the parts tell

    @contextmanager
    def _judged(self) -> Iterator[None]:
        """A broken law ends the world; the code that broke it goes on, and cannot hide it."""
        try:
            yield
        except Violation as error:
            self.fail(str(error), error)

    def wrote(self, machine: str, records: tuple[Record, ...]) -> None:
        name = self._node_names[machine]
        self.note(f"{name} wrote {len(records)}")
        for record in records:
            if isinstance(record, AddRecord):
                self._lost.discard((record.key, record.block, name))
        with self._judged():
            self.ledger.wrote(name, records)

    def acknowledged(self, outcome: Appended) -> None:
        self._told(outcome.first_lsn + outcome.count, "acknowledged")

    def delivered(self, what: Deliver) -> None:
        self._told(what.looked_up_to, "delivered")

    def _told(self, end_lsn: int, what: str) -> None:
        with self._judged():
            self.ledger.told(end_lsn, what)

    def _manifest_changed(self, data: bytes) -> None:
        manifest = decode_log_manifest(data)
        if self.ledger.manifest is None or self.ledger.manifest.epoch != manifest.epoch:
            self.count("log opened")
        opens = [segment.id for segment in manifest.open_segments]
        self.note(f"manifest of {manifest.owner}, epoch {manifest.epoch}, open {opens}")
        with self._judged():
            self.ledger.manifest_is(manifest)

    # ---- nodes come and go

    def node_died(self, node: SimNode) -> None:
        self.metadata.process_died(node.machine, self.random.random() * self.swarm.session_seconds)
        if self.is_broken:
            # It is started again, unless somebody does it before.
            self.after(self.random.uniform(0.01, 1.5), node.start)

    def journal_recovered(self, machine: str, journal: RecoveredJournal) -> None:
        """R46, R48: no power cut looks like damage, and no failed fsync does."""
        node = self.nodes[self._node_names[machine]]
        self.wrote(machine, tuple(journal.adds))
        if journal.lost:
            self.count("block lost in a journal")
        for key, block in journal.lost:
            if (key, block, node.name) not in self._lost:
                self.fail(f"{node.name} takes a power cut for damage of block {block} of {key}")
        if journal.torn_bytes:
            self.count("journal torn")
        if journal.damage:
            self.fail(f"{node.name} takes a power cut for damage: {journal.damage}")

    def lost_block(self, node: SimNode, key: SegmentKey, block: int) -> None:
        self._lost.add((key, block, node.name))

    def _lost_disk(self, node: SimNode) -> None:
        for (key, block), names in self.ledger.copies.items():
            if node.name in names:
                self._lost.add((key, block, node.name))

    def _session_age(self) -> float:
        """How long after it was last heard of a session ends: heartbeats come thrice as often."""
        return self.swarm.session_seconds * self.random.uniform(0.7, 1.0)

    # ---- the run

    def run(self) -> None:
        """Both phases, then the checkers. Raises on any violation."""
        with self._inside():
            self.begin()
            for kind in self.swarm.mean_seconds:
                self.fault_later(kind, self.swarm.mean_seconds[kind])
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
        try:
            with small_limits(self.swarm), seeded_secrets(self.random), observed(self):
                with collected_at_the_end():
                    yield
                self.scheduler.check()
        finally:
            self.scheduler.close()

    def begin(self) -> None:
        """Start everybody."""
        for node in self.nodes.values():
            node.start()
        for proxy in self.proxies.values():
            proxy.start()
        self.clients.call_soon(self._populate)

    def is_started(self) -> bool:
        """All proxies serve, and know all nodes."""
        return all(proxy.nodes_count == len(self.nodes) for proxy in self.proxies.values())

    def run_until(self, happened: Callable[[], bool], *, seconds: float = 1e9) -> None:
        """Go on until something has happened; it is looked for now and then."""
        left = STEPS_MAX - self.scheduler.steps
        try:
            self.scheduler.run_until(happened, seconds=seconds, steps=left, at_once=_STEPS_AT_ONCE)
        except Stuck as error:
            raise Stuck(f"{error}: {self._unfinished()}") from None

    def heal(self) -> None:
        self.note("heal")
        self.is_broken = False
        self.network.heal()
        for machine in list(self.metadata.cuts):
            self.metadata.mend(machine)
        away = self.expendable[0] if self.swarm.leave_down and self.expendable else None
        for node in self.nodes.values():
            node.stop_failing()
            if node.name == away:
                node.stop(power_cut=False)
                if self.swarm.nodes == self.swarm.replication.ensemble:
                    # Without it no segment can be opened: it comes back, but late.
                    self.after(3 * self.swarm.session_seconds, node.start)
                continue
            self._resume(node)
            node.start()
        for proxy in self.proxies.values():
            self._resume(proxy)
            proxy.start()
            session = self.metadata.current(proxy.machine)
            if self.swarm.rivals and session is not None:
                # Only a session tells an owner that nobody writes to that it is one no more.
                session.expire()

    def _finish(self) -> None:
        self.run_until(self._is_finished, seconds=LIVENESS_SECONDS_MAX)

    def _is_finished(self) -> bool:
        tail = self.story.known_lsn
        return all(writer.is_done for writer in self._writers) and all(
            follower.looked_up_to >= tail for follower in self._followers
        )

    def _unfinished(self) -> str:
        writers = [writer.name for writer in self._writers if not writer.is_done]
        lags = {f.reading.client: f.looked_up_to for f in self._followers}
        return f"unfinished {writers}, tail {self.story.known_lsn}, readers {lags}"

    def _populate(self) -> None:
        swarm, random = self.swarm, self.random
        if swarm.has_archive:
            self._followers.append(Follower(self, "archive", reads=True, tags=None, slow=False))
        for number in range(swarm.writers):
            self._writer(f"w{number}", f"name-{number}", 0.0)
        for number in range(swarm.zombies):
            delay = random.choice((0.0, random.random() * swarm.safety_seconds))
            self._writer(f"z{number}", f"name-{number}", delay)
        for number in range(swarm.counters):
            operations = swarm.operations // 2
            counter = Counter(self, f"count{number}", key="counter", operations=operations)
            self._writers.append(counter)
        for number in range(swarm.readers):
            tags = None if random.random() < 0.3 else tuple(random.sample(TAGS, 3))
            reads, slow = random.random() < 0.8, random.random() < 0.3
            self._followers.append(Follower(self, f"r{number}", reads=reads, tags=tags, slow=slow))
        for number in range(swarm.scanners):
            Scanner(self, f"scan{number}")
        for number in range(swarm.trimmers):
            Trimmer(self, f"trim{number}", limit=self._trim_limit)

    def _trim_limit(self) -> int:
        archive = self._followers[0]
        return self.story.known_lsn if self.swarm.trim_freely else archive.looked_up_to

    def _writer(self, name: str, producer: str, delay: float) -> None:
        operations = self.swarm.operations
        writer = Writer(self, name, producer=producer, operations=operations, delay=delay)
        self._writers.append(writer)

    # ---- faults

    def strike(self, kind: Fault) -> bool:
        """One fault, somewhere."""
        random = self.random
        node = random.choice(list(self.nodes.values()))
        proxy = random.choice(list(self.proxies.values()))
        happened = True
        match kind:
            case Fault.BREAK:
                happened = self._break_one()
            case Fault.HALF_OPEN:
                happened = self._half_open_one()
            case Fault.CUT | Fault.ONE_WAY:
                self._cut_some(kind, node, proxy)
            case Fault.NODE_KILL:
                happened = node.is_up
                node.stop(power_cut=False)
            case Fault.NODE_POWER:
                happened = node.is_up
                if random.random() < 0.3:
                    node.stop(power_cut=True)
                else:
                    node.cut_power_soon()
            case Fault.ALL_POWER:
                for each in self.nodes.values():
                    each.stop(power_cut=True)
            case Fault.NODE_PAUSE:
                happened = self._pause(node, 2.5)
            case Fault.NODE_SLOW:
                node.slow_until = self.now + random.uniform(0.2, 3.0)
            case Fault.NODE_FSYNC:
                happened = node.is_up
                node.fail_sync_soon()
            case Fault.NODE_WIPE | Fault.NODE_DAMAGE:
                happened = self._lose_disk(kind)
            case Fault.TWO_FLIPS:
                happened = self._flip_two()
            case Fault.FILE_GONE:
                happened = self._lose_file(node)
            case Fault.PROXY_KILL:
                happened = proxy.process is not None
                proxy.kill()
                self.after(random.uniform(0.05, 2.0), proxy.start)
            case Fault.PROXY_PAUSE:
                happened = self._pause(proxy, 3 * self.swarm.session_seconds)
            case Fault.PROXY_STOP:
                happened = proxy.process is not None and proxy.owned is not None
                if happened and proxy.process is not None:
                    proxy.process.spawn(proxy.let_go())
            case Fault.CLOCK:
                jump_ms = random.choice((-1, 1)) * random.choice(_JUMPS_MS)
                for clock in self._clocks.values():
                    clock.jump(jump_ms)
            case _:
                happened = self._strike_metadata(kind, random.choice((proxy, proxy, node)).machine)
        if happened:
            self.note(f"fault {kind}: {node.name} {proxy.name}")
        return happened

    def _break_one(self) -> bool:
        if not self.network.connections:
            return False
        late = self.random.random() < self.swarm.late_odds
        self.random.choice(list(self.network.connections.values())).reset(late=late)
        return True

    def _half_open_one(self) -> bool:
        """Between a client and a proxy, or a proxy and a node: it stays so, whatever is mended."""
        if not self.network.connections:
            return False
        to_server, to_client = self.random.choice(((True, True), (True, False), (False, True)))
        victim = self.random.choice(list(self.network.connections.values()))
        victim.half_open(to_server=to_server, to_client=to_client)
        return True

    def _cut_some(self, kind: Fault, node: SimNode, proxy: SimProxy) -> None:
        """Between two machines, or around one of them; both ways or one way."""
        random = self.random
        around = random.choice(("pair", "pair", "node", "proxy"))
        proxies = [proxy] if around != "node" else list(self.proxies.values())
        nodes = [node] if around != "proxy" else list(self.nodes.values())
        ways = random.choice(((0,), (1,))) if kind is Fault.ONE_WAY else (0, 1)
        cuts = [
            ((p.machine, n.machine), (n.machine, p.machine))[way]
            for p in proxies
            for n in nodes
            for way in ways
        ]
        for cut in cuts:
            self.network.cut(*cut)
        self.after(random.uniform(0.05, 3.0), lambda: self._mend(cuts))

    def _mend(self, cuts: list[tuple[str, str]]) -> None:
        for cut in cuts:
            self.network.mend(*cut)

    def _lose_disk(self, kind: Fault) -> bool:
        if not self.expendable:
            return False
        node = self.nodes[self.random.choice(self.expendable)]
        if kind is Fault.NODE_DAMAGE:
            return node.damage_block()
        was_up = node.is_up
        node.wipe()
        self._lost_disk(node)
        if not was_up:
            self.after(0.1, node.start)
        return True

    def _may_lose(self, node: SimNode, key: SegmentKey, block: int) -> bool:
        """Another node that may not lose its disk has a good copy, and readers know of it."""
        manifest = self.ledger.manifest
        segment = None if manifest is None else manifest.find(key.segment)
        if segment is None:
            return False
        holders = self.ledger.copies.get((key, block), set())
        for member in replicas(segment, block, key.part):
            other = self.nodes[member.partition(":")[0]]
            is_good = (key, block, other.name) not in self._lost
            if other is node or other.name in self.expendable or other.name not in holders:
                continue
            if is_good:
                return True
        return False

    def _flip_two(self) -> bool:
        """A bit of a block on one node, and of another block of the segment on another node."""
        places = [
            (node, place)
            for node in self.nodes.values()
            for place in node.places_in_files() + node.places_in_journals()
            if self._may_lose(node, place.key, place.block)
        ]
        by_key: dict[SegmentKey, list[tuple[SimNode, Place]]] = {}
        for node, place in places:
            by_key.setdefault(place.key, []).append((node, place))
        pairs = [
            ((one, first), (two, second))
            for one, first in places
            for two, second in by_key[first.key]
            if one is not two and first.block != second.block
        ]
        if not pairs:
            return False
        for node, place in self.random.choice(pairs):
            node.flip_bit(place)
            self.count("bit flipped in a " + ("journal" if "journal" in place.name else "file"))
        return True

    def _lose_file(self, node: SimNode) -> bool:
        held: dict[SegmentKey, list[int]] = {}
        for (key, block), names in self.ledger.copies.items():
            if node.name in names:
                held.setdefault(key, []).append(block)
        keys = [
            key
            for key in node.files()
            if key in held and all(self._may_lose(node, key, block) for block in held[key])
        ]
        if not keys:
            return False
        key = self.random.choice(keys)
        for block in held[key]:
            self.lost_block(node, key, block)
        node.lose_file(key)
        return True

    def _pause(self, paused: SimNode | SimProxy, seconds_max: float) -> bool:
        process, session = paused.process, self.metadata.current(paused.machine)
        if process is None or process.paused:
            return False
        process.pause()
        if session is not None:
            self.after(self._session_age(), lambda: self._miss(process, session))
        self.after(self.random.uniform(0.05, seconds_max), lambda: self._resume(paused))
        return True

    def _miss(self, process: Process, session: MemorySession) -> None:
        """The metadata store has not heard of a session for too long."""
        if process.paused and not process.dead:
            self.count("session expired in a pause")
            session.expire(told=False)

    def _resume(self, paused: SimNode | SimProxy) -> None:
        process, session = paused.process, self.metadata.sessions.get(paused.machine)
        if process is None or not process.paused:
            return
        process.resume()
        if session is not None and session.is_ended:
            # It learns of it when it speaks to the store again.
            process.call_later(self.random.random() * 0.1, session.tell_lost)

    def _strike_metadata(self, kind: Fault, machine: str) -> bool:
        session = self.metadata.current(machine)
        if session is None:
            return False
        match kind:
            case Fault.META_REPLY:
                session.lose_replies()
            case Fault.META_REQUEST:
                session.lose_requests()
            case Fault.META_EXPIRE:
                session.expire()
            case Fault.META_CUT:
                if machine in self.metadata.cuts:
                    return False
                self.metadata.cut(machine)
                seconds = self.random.uniform(0.05, 3 * self.swarm.session_seconds)
                age = self._session_age()
                if seconds > age:
                    self.after(age, session.expire)
                self.after(seconds, lambda: self.metadata.mend(machine))
        return True

    def _rival(self) -> None:
        proxy = self.random.choice(list(self.proxies.values()))
        process = proxy.process
        if self.is_broken and process is not None and proxy.work is not None:
            self.note(f"{proxy.id} takes the log without asking")
            process.spawn(proxy.rival())

    # ---- the end

    def read_final(self) -> FinalLog:
        """Cut the power of all nodes, take the log over, and read it by every way there is."""
        self.scheduler.check()
        self.note("final power cut")
        self._is_over = True
        self.network.odds.delay_seconds = self.network.odds.slow_seconds = (0.0, _QUICK_SECONDS)
        self.clients.kill()
        for proxy in self.proxies.values():
            proxy.kill()
        for node in self.nodes.values():
            was_up = node.is_up
            node.stop(power_cut=True)
            if was_up:
                node.start()
        ready = [node for node in self.nodes.values() if node.is_up]
        self.run_until(lambda: all(node.is_registered for node in ready), seconds=30.0)
        number = len(self.proxies)
        reader = SimProxy(self, number, region=self.regions[0])
        self._clocks[reader.name] = WallClock(self.scheduler)
        reader.start()
        self.run_until(lambda: reader.work is not None, seconds=30.0)
        finals: list[FinalLog] = []

        async def read() -> None:
            owned = await reader.take()
            finals.append(await self._read_by_every_way(owned))

        assert reader.process is not None
        reader.process.spawn(read())
        self.run_until(lambda: bool(finals), seconds=30.0)
        return finals[0]

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
