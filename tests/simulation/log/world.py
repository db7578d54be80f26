"""A whole system in one thread: a server, its disk and clock, its clients, the network between.

Owns virtual time, the one source of randomness, and the two phases: *safety* (the faults that the
seed drew strike; nothing wrong may ever be observed) and *liveness* (all is healed; everybody must
finish within a bounded number of steps). Drives the real cores and the real storage code; only
their shells are simulated (sim/). Law (I21): the same seed gives the same trace, bit for bit.

    World(7).run()      # raises on the first thing that is wrong; then the checkers have their say
"""

from __future__ import annotations

import heapq
from collections import Counter as Counts
from collections.abc import Callable
from hashlib import blake2b
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
from simulation.log.link import Link
from simulation.log.machine import Clock, CrashPoint, MachineDisk, MemoryColdStore
from simulation.log.network import Network
from simulation.log.readers import Follower, Scanner, Trimmer
from simulation.log.registers import Counter, Lock
from simulation.log.server import SimServer
from simulation.log.story import FinalLog, Story, TrimOp
from simulation.log.swarm import Fault, Swarm, draw_swarm, small_limits
from simulation.log.writers import TAGS, Writer

#: Some time in the past, so that jumps in both directions stay in range.
_START_MS = 1_700_000_000_000
#: After healing, everybody finishes within this much virtual time, or is stuck.
LIVENESS_MS_MAX = 60_000
STEPS_MAX = 400_000
#: Appends of a client that accepts no delay take no longer than this while nothing is broken.
PROMPT_MS = 1000
_RESTART_US = (1000, 400_000)
#: Clock jumps: small ones that NTP makes, and those of an operator's typing error.
_JUMPS_MS = (5, 50, 1000, 3_600_000, 40 * 86_400_000)


class Stuck(AssertionError):
    """After healing, somebody did not finish: a liveness violation (I16)."""


class World:
    """See the module's docstring. `swarm` overrides what the seed would draw."""

    def __init__(self, seed: int, *, swarm: Swarm | None = None) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.swarm = draw_swarm(self.random) if swarm is None else swarm
        self.now_us = 0
        #: Faults still strike.
        self.is_broken = True
        self.story = Story()
        self.counts: Counts[str] = Counts()
        self.clock = Clock(_START_MS)
        self.disk = SimDisk(allocate_bytes=self.swarm.allocate_bytes)
        self.cold = None if self.swarm.local_bytes_max is None else MemoryColdStore()
        #: Until these virtual times appends are refused now and then, and fsyncs take long.
        self._overloaded_until_us = 0
        self.slow_until_us = 0
        self.network = Network(self)
        self.server = SimServer(self)
        self.trace: list[str] = []
        self._digest = blake2b(digest_size=16)
        self._heap: list[tuple[int, int, str, bool, Callable[[], None]]] = []
        self._pushed = 0
        self._unique = 0
        self._armed_point: CrashPoint | None = None
        self._armed_sync: int | None = None
        self._links: dict[str, Link] = {}
        self._writers: list[Writer | Counter | Lock] = []
        self._followers: list[Follower] = []
        self.steps = 0

    # ---- time and trace

    def after(
        self, delay_us: int, label: str, action: Callable[[], None], *, quiet: bool = False
    ) -> None:
        """Do `action` later. `quiet`: it says itself what happens."""
        self._pushed += 1
        heapq.heappush(self._heap, (self.now_us + delay_us, self._pushed, label, quiet, action))

    def until(self, happened: Callable[[], bool]) -> None:
        """Go on until something has happened; for scenarios that play without the phases."""
        while not happened():
            self._step()

    def _step(self) -> None:
        at, _, label, quiet, action = heapq.heappop(self._heap)
        self.now_us = at
        self.steps += 1
        if not quiet:
            self.note(label)
        action()

    def note(self, text: str) -> None:
        """One line of the trace."""
        line = f"{self.now_us} {text}"
        self.trace.append(line)
        self._digest.update(line.encode())

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def unique(self) -> int:
        self._unique += 1
        return self._unique

    def wall_ms(self) -> int:
        return self.clock.wall_ms(self.now_us)

    @property
    def monotonic_ms(self) -> int:
        return self.now_us // 1000

    @property
    def trace_hash(self) -> str:
        return self._digest.hexdigest()

    # ---- the run

    def run(self) -> None:
        """Both phases, then the checkers. Raises on any violation."""
        with small_limits(self.swarm):
            self._populate()
            self.server.start()
            for kind in self.swarm.mean_ms:
                self._fault_later(kind)
            while self._heap and self._heap[0][0] < self.swarm.safety_ms * 1000:
                self._step()
            self._heal()
            self._finish()
            self._check_prompt()
            final = self.read_final()
        check_all(self.story, final)

    def _heal(self) -> None:
        self.note("heal")
        self.is_broken = False
        self._overloaded_until_us = self.slow_until_us = 0
        self._armed_point = self._armed_sync = None
        self.server.disk.crash_point = self.server.disk.fail_sync_after = None
        self.server.owner.fail_read = False

    def _finish(self) -> None:
        deadline_us = self.now_us + LIVENESS_MS_MAX * 1000
        while not self._is_finished():
            if not self._heap or self.now_us > deadline_us or self.steps > STEPS_MAX:
                raise Stuck(f"not finished {self.now_us // 1000} ms, {self._unfinished()}")
            self._step()

    def _check_prompt(self) -> None:
        """If nothing was broken but the clock, who accepts no delay has seen none (I16)."""
        if not set(self.swarm.mean_ms) <= {Fault.CLOCK, Fault.READ_ERROR}:
            return
        lazy = {op.client for op in self.story.appends if op.flush_ms > PROMPT_MS // 2}
        for op in self.story.appends:
            waited_us = self.now_us if op.ended_us is None else op.ended_us - op.asked_us
            if op.client not in lazy and waited_us > PROMPT_MS * 1000:
                raise Stuck(f"{waited_us} us is too long: {op}")

    def _is_finished(self) -> bool:
        if not self.server.up or not all(writer.is_done for writer in self._writers):
            return False
        sequencer = self.server.owner.sequencer
        tail = sequencer.durable_lsn
        return sequencer.is_idle and all(
            follower.looked_up_to >= tail for follower in self._followers
        )

    def _unfinished(self) -> str:
        writers = [type(w).__name__ for w in self._writers if not w.is_done]
        lags = [f.looked_up_to for f in self._followers]
        return f"server up={self.server.up} writers={writers} followers={lags}"

    # ---- who is there

    def _populate(self) -> None:
        swarm = self.swarm
        self._archive = self._follower("archive", None, slow=False)
        for number in range(swarm.named):
            self._writer(f"w{number}", name=f"name-{number}")
        for number in range(swarm.zombies):
            name = f"name-{number % max(swarm.named, 1)}"
            # At once: two processes race for the same instance. Later: the first is a zombie.
            delay_ms = self.random.choice((0, self.random.randint(0, swarm.safety_ms)))
            self._writer(f"z{number}", name=name, delay_ms=delay_ms)
        for number in range(swarm.anonymous):
            self._writer(f"anon{number}", name=None)
        for number in range(swarm.counters):
            link = self._link(f"count{number}")
            self._start(Counter(self, link, key="counter", operations=swarm.operations // 2))
        for number in range(swarm.locks):
            link = self._link(f"lock{number}")
            self._start(Lock(self, link, key="lock", operations=swarm.operations))
        for number in range(swarm.readers):
            count = self.random.randint(1, 3)
            tags = tuple(self.random.sample(TAGS, count)) if self.random.random() < 0.8 else None
            # Some share the connection of a writer, as in a program that does both.
            name = "w0" if self.random.random() < 0.3 else f"r{number}"
            follower = self._follower(name, tags, slow=self.random.random() < 0.3)
            self.after(self.random.randint(0, 10**6), "leave", follower.leave_and_return)
        for number in range(swarm.scanners):
            Scanner(self, self._link(f"s{number}"), tags=(*TAGS, "m/counter", "none")).start()
        for number in range(swarm.trimmers):
            Trimmer(self, self._link(f"t{number}"), limit=self._trim_limit).start()

    def _link(self, name: str) -> Link:
        link = self._links.get(name)
        if link is None:
            link = self._links[name] = Link(self, name)
            link.dial()
        return link

    def _writer(self, process: str, *, name: str | None, delay_ms: int = 0) -> None:
        stubborn = self.random.random() < 0.3
        writer = Writer(
            self,
            self._link(process),
            name=name,
            operations=self.swarm.operations,
            stubborn=stubborn,
        )
        self._start(writer, delay_ms)

    def _start(self, writer: Writer | Counter | Lock, delay_ms: int = 0) -> None:
        self._writers.append(writer)
        self.after(delay_ms * 1000, "start", writer.start)

    def _follower(self, name: str, tags: tuple[str, ...] | None, *, slow: bool) -> Follower:
        follower = Follower(self, self._link(name), tags=tags, start=0, slow=slow)
        self._followers.append(follower)
        follower.start()
        return follower

    def _trim_limit(self) -> int:
        return self.story.known_lsn if self.swarm.trim_freely else self._archive.looked_up_to

    # ---- faults

    def _fault_later(self, kind: Fault) -> None:
        mean_us = self.swarm.mean_ms[kind] * 1000
        self.after(int(self.random.expovariate(1 / mean_us)), f"fault {kind}", self._striker(kind))

    def _striker(self, kind: Fault) -> Callable[[], None]:
        def strike() -> None:
            if self.is_broken:
                if self._strike(kind):
                    self.count(f"fault {kind}")
                self._fault_later(kind)

        return strike

    def _strike(self, kind: Fault) -> bool:
        """Let one fault happen; False if there was nothing to break."""
        server, random = self.server, self.random
        if kind in (Fault.CUT, Fault.LATE):
            return self.network.cut_one(late=kind is Fault.LATE)
        if kind is Fault.CLOCK:
            self.clock.jump(random.choice((-1, 1)) * random.choice(_JUMPS_MS))
            return True
        if not server.up:
            return False
        match kind:
            case Fault.KILL | Fault.POWER_CUT:
                server.owner.crash(power_cut=kind is Fault.POWER_CUT)
            case Fault.CRASH_POINT:
                self._armed_point = self._crash_point(25)
                self.arm(server.disk)
            case Fault.FSYNC:
                self._armed_sync = random.randint(0, 8)
                self.arm(server.disk)
            case Fault.OVERLOAD:
                self._overloaded_until_us = self.now_us + 30_000
            case Fault.SLOW_DISK:
                self.slow_until_us = self.now_us + 200_000
            case Fault.CLEAN_STOP:
                if server.owner.is_stopping:
                    return False
                server.stop()
            case Fault.READ_ERROR:
                server.owner.fail_read = True
        return True

    def _crash_point(self, after_max: int) -> CrashPoint:
        random = self.random
        return CrashPoint(
            random.randint(0, after_max), random.random() < 0.6, done=random.random() < 0.5
        )

    def is_overloaded(self) -> bool:
        """Whether the server refuses the append that just arrived."""
        return self.now_us < self._overloaded_until_us and self.random.random() < 0.5

    def arm(self, disk: MachineDisk) -> None:
        """Hand what is armed to the disk of the process that lives now."""
        disk.crash_point, self._armed_point = self._armed_point, None
        disk.fail_sync_after, self._armed_sync = self._armed_sync, None

    def server_died(self, *, power_cut: bool) -> None:
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
        self.after(self.random.randint(*_RESTART_US), "restart", self.server.start)

    def trimmed_by_age(self, lsn: int) -> None:
        self.count("trimmed by age")
        self.story.trims.append(TrimOp("ttl", self.now_us, self.story.known_lsn, lsn=lsn))

    # ---- the end

    def read_final(self) -> FinalLog:
        """Cut the power once more, recover, and read the log by every way there is."""
        self.note("final power cut")
        disk = self.disk.crash(self.random)
        _check_undamaged(disk)
        store = FileManifestStore(disk)
        recovered = recover(disk, store)
        storage = LogStorage(disk, store, recovered, cold=self.cold, now_ms=self.wall_ms)
        for segment in storage.unfinished():
            if self.random.random() < 0.5:
                storage.finish_sealed(segment)
        _check_undamaged(disk)
        _check_trimmed(storage)
        entries = _read_all(storage, None)
        tags = sorted({tag for entry in entries for tag in entry.tags} | {"none"})
        times = sorted({entry.time_ms + delta for entry in entries for delta in (0, 1)})
        times = self.random.sample(times, min(len(times), 20))
        return FinalLog(
            trim_point=storage.manifest.trim_point,
            tail=storage.durable_lsn,
            entries=entries,
            by_tag={tag: _read_all(storage, frozenset([tag])) for tag in tags},
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


def _read_all(storage: LogStorage, tags: frozenset[str] | None) -> list[Entry]:
    entries: list[Entry] = []
    lsn: int = storage.manifest.trim_point
    while lsn < storage.durable_lsn:
        piece = read_piece(storage, tags, lsn, storage.durable_lsn, 2000)
        assert piece.looked_up_to > lsn, f"a read at {lsn} makes no progress"
        entries += decode_records(memoryview(b"".join(piece.records)))
        lsn = piece.looked_up_to
    return entries


def _read_newest(storage: LogStorage, tag: str) -> Entry | None:
    record = read_last(storage, tag, storage.durable_lsn)
    return next(iter(decode_records(memoryview(record)))) if record else None
