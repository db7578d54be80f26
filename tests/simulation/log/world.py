"""A whole system in one thread: a server, its disk and clock, its clients, the network between.

Owns the two phases: *safety* (the faults that the seed drew strike; nothing wrong may ever be
observed) and *liveness* (all is healed; everybody must finish within a bounded number of steps).
Server and clients are those that ship; time, disk and network are simulated (kernel/, machine.py).
Law (I21): the same seed gives the same trace, bit for bit.

    World(7).run()      # raises on the first thing that is wrong; then the checkers have their say
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from harness.disk import SimDisk

from penstock.errors import Trimmed
from penstock.log.client.reader import decode_records
from penstock.log.records import Entry
from penstock.log.storage.log_storage import LogStorage
from penstock.log.storage.manifest import MANIFEST_FILE, FileManifestStore
from penstock.log.storage.reader import find_time, read_last, read_piece
from penstock.log.storage.recover import recover
from penstock.log.storage.verify import verify_log
from simulation.checkers import Violation, check_all
from simulation.checkers.evidence import is_retirement
from simulation.kernel import Network, NetworkOdds, Stuck, WallClock, seeded_secrets
from simulation.kernel.network import Connection
from simulation.kernel.seeded import SeededWorld, collected_at_the_end
from simulation.log.clients import Client
from simulation.log.crowd import Crowd
from simulation.log.lives import ServerLives
from simulation.log.machine import CrashPoint, MachineDisk, MemoryColdStore
from simulation.log.readers import Follower, Scanner, Trimmer
from simulation.log.registers import Counter, Lock
from simulation.log.story import FinalLog, Story
from simulation.log.swarm import Fault, Swarm, draw_swarm, small_limits
from simulation.log.taps import taps
from simulation.log.writers import TAGS, Writer

#: After healing, everybody finishes within this much virtual time, or is stuck.
LIVENESS_SECONDS_MAX = 60.0
STEPS_MAX = 1_000_000
#: Appends of a client that accepts no delay take no longer than this while nothing is broken.
PROMPT_MS = 1000
_RESTART_SECONDS = (0.001, 0.4)
#: Clock jumps: small ones that NTP makes, and those of an operator's typing error.
_JUMPS_MS = (5, 50, 1000, 3_600_000, 40 * 86_400_000)
#: How often the last requests of a connection that its client closes arrive late.
_LATE_ODDS = 0.7
_OVERLOAD_SECONDS = 0.03
_SLOW_SECONDS = 0.2


class World(SeededWorld[Fault]):
    """See the module's docstring. `swarm` overrides what the seed would draw."""

    def __init__(self, seed: int, *, swarm: Swarm | None = None) -> None:
        super().__init__(seed, Random(seed))
        self.swarm = draw_swarm(self.random) if swarm is None else swarm
        self.network = Network(self.scheduler, NetworkOdds(late_odds=_LATE_ODDS), self.count)
        self.story = Story()
        self.clock = WallClock(self.scheduler)
        self.disk = SimDisk(allocate_bytes=self.swarm.allocate_bytes)
        self.cold = None if self.swarm.local_bytes_max is None else MemoryColdStore()
        #: Until these virtual times appends are refused now and then, and fsyncs take long.
        self._overloaded_until = 0.0
        self.slow_until = 0.0
        self.server = ServerLives(self)
        has_crowd = Fault.CROWD in self.swarm.mean_ms
        #: Each client may have a connection and a dead one.
        self.crowd = Crowd(self, 2 * self.swarm.clients_max + 3) if has_crowd else None
        self._armed_point: CrashPoint | None = None
        self._armed_sync: int | None = None
        self._clients: dict[str, Client] = {}
        self._writers: list[Writer | Counter | Lock] = []
        self._followers: list[Follower] = []

    def until(self, happened: Callable[[], bool]) -> None:
        """Go on until something has happened; for scenarios that play without the phases."""
        self.scheduler.run_until(happened, seconds=LIVENESS_SECONDS_MAX)

    # ---- the run

    @contextmanager
    def running(self) -> Iterator[None]:
        """The limits, secrets and taps of this world are in force."""
        with small_limits(self.swarm), seeded_secrets(self.random), taps(self):
            try:
                with collected_at_the_end():
                    yield
                self.scheduler.check()
            finally:
                self.scheduler.close()

    def run(self) -> None:
        with self.running():
            self._populate()
            self.server.start()
            for kind, mean_ms in self.swarm.mean_ms.items():
                self.fault_later(kind, mean_ms / 1000)
            self.scheduler.run_for(self.swarm.safety_ms / 1000)
            self._heal()
            self._finish()
            self._check_prompt()
            final = self.read_final()
        self._count_retirements(final)
        check_all(self.story, final)

    def _heal(self) -> None:
        self.note("heal")
        self.is_broken = False
        self.slow_until = self._overloaded_until = 0.0
        self._armed_point = self._armed_sync = None
        self.network.heal()
        disk = self.server.disk
        disk.crash_point = disk.fail_sync_after = None
        disk.fail_read = False

    def _finish(self) -> None:
        try:
            self.scheduler.run_until(
                self._is_finished, seconds=LIVENESS_SECONDS_MAX, steps=STEPS_MAX
            )
        except Stuck as error:
            raise Stuck(f"{error}, {self._unfinished()}") from None

    @property
    def _is_prompt(self) -> bool:
        """Nothing is broken that makes anybody wait: the server is up, and the network is whole."""
        return set(self.swarm.mean_ms) <= {Fault.CLOCK, Fault.READ_ERROR, Fault.CROWD}

    def got_in(self, client: str, seconds: float) -> None:
        """A client that has the token is let in, whoever else wants to be (I20)."""
        if self._is_prompt and seconds > PROMPT_MS / 1000:
            raise Stuck(f"{client} was let in after {seconds} s")

    def _check_prompt(self) -> None:
        """If nothing was broken but the clock, who accepts no delay has seen none (I16)."""
        if not self._is_prompt:
            return
        lazy = {op.client for op in self.story.appends if op.flush_ms > PROMPT_MS // 2}
        for op in self.story.appends:
            waited_us = self.now_us if op.ended_us is None else op.ended_us - op.asked_us
            if op.client not in lazy and waited_us > PROMPT_MS * 1000:
                raise Stuck(f"{waited_us} us is too long: {op}")

    def _is_finished(self) -> bool:
        if not all(writer.is_done for writer in self._writers):
            return False
        owner = self.server.owner
        if owner is None or not owner.sequencer.is_idle:
            return False
        tail = owner.durable_lsn
        return all(follower.looked_up_to >= tail for follower in self._followers)

    def _unfinished(self) -> str:
        writers = [type(w).__name__ for w in self._writers if not w.is_done]
        lags = [f.looked_up_to for f in self._followers]
        return f"server up={self.server.is_up} writers={writers} followers={lags}"

    def _count_retirements(self, final: FinalLog) -> None:
        if any(is_retirement(entry) for entry in final.entries):
            self.count("retired")

    # ---- who is there

    def _populate(self) -> None:
        swarm, random = self.swarm, self.random
        self._archive = self._follow("archive", None, slow=False)
        for number in range(swarm.named):
            self._write(f"w{number}", name=f"name-{number}")
        for number in range(swarm.zombies):
            name = f"name-{number % max(swarm.named, 1)}"
            # At once: two processes race for the same instance. Later: the first is a zombie.
            delay_ms = random.choice((0, random.randint(0, swarm.safety_ms)))
            self._write(f"z{number}", name=name, delay_ms=delay_ms)
        for number in range(swarm.anonymous):
            self._write(f"anon{number}", name=None)
        for number in range(swarm.counters):
            client = self.client(f"count{number}")
            self._start(
                client, Counter(self, client, key="counter", operations=swarm.operations // 2)
            )
        for number in range(swarm.locks):
            client = self.client(f"lock{number}")
            self._start(client, Lock(self, client, key="lock", operations=swarm.operations))
        for number in range(swarm.readers):
            count = random.randint(1, 3)
            tags = tuple(random.sample(TAGS, count)) if random.random() < 0.8 else None
            # Some share the connection of a writer, as in a program that does both.
            name = "w0" if random.random() < 0.3 else f"r{number}"
            follower = self._follow(name, tags, slow=random.random() < 0.3)
            self.client(name).spawn(follower.leave(random.random()))
        for number in range(swarm.scanners):
            client = self.client(f"s{number}")
            client.spawn(Scanner(self, client, tags=(*TAGS, "m/counter", "none")).run())
        for number in range(swarm.trimmers):
            client = self.client(f"t{number}")
            client.spawn(Trimmer(self, client, limit=self._trim_limit).run())

    def client(self, name: str) -> Client:
        """The process of this name."""
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = Client(self, name)
        return client

    def _write(self, process: str, *, name: str | None, delay_ms: int = 0) -> None:
        client = self.client(process)
        stubborn = self.random.random() < 0.3
        operations = self.swarm.operations
        writer = Writer(self, client, name=name, operations=operations, stubborn=stubborn)
        self._start(client, writer, delay_ms)

    def _start(self, client: Client, writer: Writer | Counter | Lock, delay_ms: int = 0) -> None:
        self._writers.append(writer)
        self.scheduler.after(delay_ms / 1000, lambda: client.spawn(writer.run()))

    def _follow(self, name: str, tags: tuple[str, ...] | None, *, slow: bool) -> Follower:
        client = self.client(name)
        follower = Follower(self, client, tags=tags, slow=slow)
        self._followers.append(follower)
        client.spawn(follower.run())
        return follower

    def _trim_limit(self) -> int:
        return self.story.known_lsn if self.swarm.trim_freely else self._archive.looked_up_to

    # ---- faults

    def strike(self, kind: Fault) -> bool:
        self.note(f"fault {kind}")
        server, random = self.server, self.random
        if kind in (Fault.CUT, Fault.LATE):
            return self._cut_one(late=kind is Fault.LATE)
        if kind is Fault.HALF_OPEN:
            return self._half_open_one()
        if kind is Fault.CROWD:
            return self.crowd is not None and self.crowd.come()
        if kind is Fault.CLOCK:
            self.clock.jump(random.choice((-1, 1)) * random.choice(_JUMPS_MS))
            return True
        if not server.is_up:
            return False
        match kind:
            case Fault.KILL | Fault.POWER_CUT:
                server.crash(power_cut=kind is Fault.POWER_CUT)
            case Fault.CRASH_POINT:
                self._armed_point = self._crash_point(25)
                self.arm(server.disk)
            case Fault.FSYNC:
                self._armed_sync = random.randint(0, 8)
                self.arm(server.disk)
            case Fault.OVERLOAD:
                self._overloaded_until = self.now + _OVERLOAD_SECONDS
            case Fault.SLOW_DISK:
                self.slow_until = self.now + _SLOW_SECONDS
            case Fault.CLEAN_STOP:
                server.stop()
            case Fault.READ_ERROR:
                server.disk.fail_read = True
        return True

    def _cut_one(self, *, late: bool) -> bool:
        victims = self._victims()
        if victims:
            self.random.choice(victims).reset(late=late)
        return bool(victims)

    def _half_open_one(self) -> bool:
        victims = self._victims()
        if victims:
            to_server, to_client = self.random.choice(((True, True), (True, False), (False, True)))
            victim = self.random.choice(victims)
            victim.half_open(to_server=to_server, to_client=to_client)
        return bool(victims)

    def _victims(self) -> list[Connection]:
        """The live connections, or those of the unlucky client if it has any."""
        victims = list(self.network.connections.values())
        return [each for each in victims if each.client == self.swarm.unlucky] or victims

    def is_overloaded(self) -> bool:
        """Whether the server refuses the append that just arrived."""
        return self.now < self._overloaded_until and self.random.random() < 0.5

    def _crash_point(self, after_max: int) -> CrashPoint:
        random = self.random
        return CrashPoint(
            random.randint(0, after_max), random.random() < 0.6, done=random.random() < 0.5
        )

    def arm(self, disk: MachineDisk) -> None:
        """Hand what is armed to the disk of the process that lives now."""
        disk.crash_point, self._armed_point = self._armed_point, None
        disk.fail_sync_after, self._armed_sync = self._armed_sync, None

    def server_died(self, power_cut: bool) -> None:
        disk = self.server.disk
        if disk.sync_failed:
            self.count("fsync failed")
        # What did not strike yet strikes the next process, and a crash is often followed by another
        # one in recovery.
        self._armed_point, self._armed_sync = disk.crash_point, disk.fail_sync_after
        if self.is_broken and self._armed_point is None and self.random.random() < 0.3:
            if Fault.CRASH_POINT in self.swarm.mean_ms:
                self._armed_point = self._crash_point(10)
        if power_cut:
            self.count("unsynced at power cut" if self.disk.has_unsynced else "power cut")
            self.disk = self.disk.crash(self.random, self.swarm.odds)
            _check_undamaged(self.disk)
        else:
            self.disk.kill()
        self._restart()

    def server_stopped(self) -> None:
        self.disk.kill()
        self._restart()

    def _restart(self) -> None:
        self.scheduler.after(self.random.uniform(*_RESTART_SECONDS), self.server.start)

    # ---- the end

    def read_final(self) -> FinalLog:
        """Cut the power once more, recover, and read the log by every way there is."""
        self.note("final power cut")
        disk = self.disk.crash(self.random)
        _check_undamaged(disk)
        store = FileManifestStore(disk)
        recovered = recover(disk, store)
        storage = LogStorage(disk, store, recovered, cold=self.cold, now_ms=self.clock.wall_ms)
        for segment in storage.unfinished():
            if self.random.random() < 0.5:
                storage.finish_sealed(segment)
        _check_undamaged(disk)
        _check_trimmed(storage)
        piece_bytes = self.random.choice((2000, 20_000))
        entries = _read_all(storage, None, piece_bytes)
        tags = sorted({tag for entry in entries for tag in entry.tags} | {"none"})
        times = sorted({entry.time_ms + delta for entry in entries for delta in (0, 1)})
        times = self.random.sample(times, min(len(times), 20))
        return FinalLog(
            trim_point=storage.manifest.trim_point,
            tail=storage.durable_lsn,
            entries=entries,
            by_tag={tag: _read_all(storage, frozenset([tag]), piece_bytes) for tag in tags},
            last_by_tag={tag: _read_newest(storage, tag) for tag in tags},
            by_time={time_ms: find_time(storage, time_ms) for time_ms in times},
            metadata=dict(recovered.state.metadata),
        )


def _check_undamaged(disk: SimDisk) -> None:
    """No crash looks like damage to whoever checks the files before they are opened again."""
    findings = verify_log(disk).findings if disk.exists(MANIFEST_FILE) else []
    for finding in findings:
        if finding.severity == "damage":
            raise Violation("I17", f"taken for damage: {finding}")


def _check_trimmed(storage: LogStorage) -> None:
    """What was given up cannot be read, even where its bytes are still there."""
    lsn = storage.manifest.trim_point - 1
    if lsn >= 0:
        try:
            read_piece(storage, None, lsn, lsn + 1, 1000)
        except Trimmed:
            return
        raise Violation("trim", f"lsn {lsn} is below the trim point and can be read")


def _read_all(storage: LogStorage, tags: frozenset[str] | None, piece_bytes: int) -> list[Entry]:
    entries: list[Entry] = []
    lsn: int = storage.manifest.trim_point
    while lsn < storage.durable_lsn:
        piece = read_piece(storage, tags, lsn, storage.durable_lsn, piece_bytes)
        assert piece.looked_up_to > lsn, f"a read at {lsn} makes no progress"
        entries += decode_records(memoryview(b"".join(piece.records)))
        lsn = piece.looked_up_to
    return entries


def _read_newest(storage: LogStorage, tag: str) -> Entry | None:
    record = read_last(storage, tag, storage.durable_lsn)
    return next(iter(decode_records(memoryview(record)))) if record else None
