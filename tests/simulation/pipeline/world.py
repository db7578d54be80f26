"""A query at work in one thread: shipped tasks, workers, coordinators, clients and log server.

Owns the two phases, as log/world.py: *safety* (the faults that the seed drew strike; the laws must
hold) and *liveness* (all is healed; the query must catch up, and stop when it is told to, within
bounded time). Every process has an event loop of its own on one virtual time (kernel/); between
them there is a network of byte streams. Law (I21): the same seed gives the same trace.

    PipelineWorld(7).run()      # raises on the first thing that is wrong
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from random import Random

from penstock_bench.protocols.choosing import ProtocolName, with_protocol

from penstock.errors import Unavailable
from penstock.ids import Lsn
from penstock.log.client.client import AsyncLog
from penstock.log.records import Entry, Kind, NewEntry
from penstock.protocol.committed import Marked, is_named, read_entries
from penstock.protocol.markers import decode_marker
from penstock.protocol.names import control_tag, coordinator_producer, query_key
from penstock.runtime.control import Beat, encode_message
from penstock.runtime.registry import RegisteredQuery, encode_query
from penstock.runtime.spec import Settings
from penstock.stream.batches import encode_batch
from penstock.stream.lanes import Lanes
from penstock.stream.registration import stream_tag
from simulation.checkers.evidence import Violation
from simulation.kernel import (
    Network,
    NetworkOdds,
    Process,
    seeded_secrets,
)
from simulation.kernel.seeded import SeededWorld
from simulation.kernel.shipped import overheard
from simulation.pipeline.laws import Evidence, check_all
from simulation.pipeline.lineage import count_layouts
from simulation.pipeline.log import SimLog
from simulation.pipeline.newcomer import trim_and_read
from simulation.pipeline.queries import KEYS_OF, Inputs, make_entries, make_spec
from simulation.pipeline.report_law import strange_reports
from simulation.pipeline.spark import SimDriver, draw_rates
from simulation.pipeline.store import SimFolder
from simulation.pipeline.story import PipelineStory
from simulation.pipeline.swarm import Fault, Swarm, draw_swarm, small_limits
from simulation.pipeline.taps import taps

#: After healing, the query has caught up within this much virtual time, or is stuck.
LIVENESS_SECONDS_MAX = 5.0
#: A query that is told to stop has stopped within this much virtual time.
STOP_SECONDS_MAX = 60.0
STEPS_MAX = 1_000_000
#: Time between two requests of all clients together, about: what odds per request mean in time.
_REQUEST_SECONDS = 0.003
#: A request without an answer fails after so long.
_PATIENCE_SECONDS = 3600.0


class PipelineWorld(SeededWorld[Fault]):
    """See the module's docstring. `swarm` overrides what the seed would draw."""

    def __init__(
        self, seed: int, *, swarm: Swarm | None = None, protocol: ProtocolName = "marker"
    ) -> None:
        super().__init__(seed, Random(seed))
        drawn = draw_swarm(self.random, protocol)
        self.swarm = drawn if swarm is None else swarm
        settings = Settings(
            commit_interval_ms=self.swarm.commit_interval_ms,
            checkpoints="memory" if self.swarm.checkpoints else None,
            checkpoint_interval_ms=self.swarm.checkpoint_interval_ms,
            replicas=self.swarm.replicas,
        )
        self.spec = make_spec(
            self.swarm.shape,
            with_protocol(self.swarm.protocol, settings),
            lanes=self.swarm.lanes,
            workers=self.swarm.tasks,
            keyed=self.swarm.keyed,
        )
        self.network = Network(self.scheduler, self._network_odds(), self._count_network)
        self.story = PipelineStory()
        self.is_stopping = False
        self.drivers: list[SimDriver] = []
        self._processes: list[Process] = []
        self._on_death: dict[Process, Callable[[], None]] = {}
        self._producing = 0
        self.shown_upto = Lsn(0)
        self.log = SimLog(self.scheduler, fsync_seconds_max=self.swarm.fsync_us_max / 1e6)
        self.folder = SimFolder(lambda: self.log.tail, self._does_store_fail)

    def _network_odds(self) -> NetworkOdds:
        return NetworkOdds(
            slow_odds=self.swarm.slow_odds,
            slow_seconds=(0.001, 0.015),
            late_odds=0.5 if Fault.LATE in self.swarm.odds else 0.0,
            late_seconds_max=0.4,
            notice_seconds_max=0.02,
        )

    def _count_network(self, what: str) -> None:
        names = {"late request": Fault.LATE, "lost in flight": Fault.LOST}
        if what in names:
            self.count(f"fault {names[what]}")

    # -- processes

    def start_process(self, name: str) -> Process:
        process = self.scheduler.process(name)
        random, seconds = self.random, self.swarm.checkpoint_us_max / 1e6
        process.job_seconds = lambda: random.uniform(0.0001, seconds)
        self._processes.append(process)
        return process

    def on_death(self, process: Process, then: Callable[[], None]) -> None:
        """What the operating system does when a process is gone."""
        self._on_death[process] = then

    def kill(self, process: Process) -> None:
        """As kill -9 does: nothing of it runs any more; what it sent is on its way, or lost."""
        if process.dead:
            return
        self.note(f"{process.name} is killed")
        process.kill(lose=self.is_broken and self.random.random() < 0.3)
        then = self._on_death.pop(process, None)
        if then is not None:
            then()

    def kill_soon(self, process: Process) -> None:
        """It has ended by itself."""
        self.scheduler.after(0.0, self.kill, process)

    # -- for the shells

    def _does_store_fail(self) -> bool:
        odds = self.swarm.odds.get(Fault.STORE, 0.0) if self.is_broken else 0.0
        fails = odds > 0 and self.random.random() < odds
        if fails:
            self.count(f"fault {Fault.STORE}")
        return fails

    def check_kept(self, tags: Sequence[str], marked: Marked[Entry]) -> None:
        """What a reader kept of what a marker names is what it would fetch."""
        for named in marked.marker.ranges:
            kept = marked.run(named)
            if kept is None:
                self.count("staged fetched")
                continue
            there = self.log.entries[named.first_lsn : named.end]
            wanted = [
                entry for entry in there if is_named(entry, named) and {*tags} & {*entry.tags}
            ]
            if kept != wanted:
                raise Violation("I10", f"of {named} a reader kept {kept}, not {wanted}")
            self.count("staged kept")

    # -- the run

    def run(self) -> None:
        with self.open():
            self.populate()
            for kind in self.swarm.mean_ms:
                self.fault_later(kind, self.swarm.mean_ms[kind] / 1000)
            for kind in (Fault.LOST, Fault.LATE):
                if kind in self.swarm.odds:
                    self.fault_later(kind, _REQUEST_SECONDS / self.swarm.odds[kind])
            self.run_for(self.swarm.safety_ms / 1000)
            self.heal()
            self.catch_up()
            self.stop()
            evidence = Evidence(self)
            self._count_log(evidence)
            check_all(self, evidence)
            if self.swarm.protocol == "marker":
                self._trim_by_hand()

    def _trim_by_hand(self) -> None:
        """When all is over: no query is promised anything by it."""
        newcomer = self.start_process("newcomer")
        reading = newcomer.spawn(self._read_what_is_left())
        self.run_until(reading.done, LIVENESS_SECONDS_MAX)

    async def _read_what_is_left(self) -> None:
        log = await self.connect("newcomer")
        await trim_and_read(log, self.log.entries, self.spec.to, self.random, self.count)
        await log.close()

    def _count_log(self, evidence: Evidence) -> None:
        """What the log shows of what happened."""
        self.count(f"shape {self.swarm.shape}")
        self.counts["trimmed"] += sum(point > 0 for _, point in self.log.trims)
        own = f"@{self.spec.name}.{self.spec.version}/"
        for placed in (one for records in evidence.records.values() for one in records):
            if placed.entry.producer.startswith(own):
                self.counts["flushed early"] += len(placed.marker.ranges)
            elif self.swarm.protocol == "aligned":
                self.count("aligned checkpoint")
        for what in count_layouts(evidence):
            self.count(what)

    @contextmanager
    def open(self) -> Iterator[None]:
        """The world's laws of nature hold, until everything in it is let go."""
        with ExitStack() as stack:
            gc.disable()  # when it lets go of a failed future hangs on no seed
            stack.callback(gc.enable)
            stack.enter_context(seeded_secrets(self.random))
            stack.enter_context(small_limits(self.swarm))
            stack.enter_context(taps(self))
            # Nothing is broken here of what a server or a coordinator could report as an error.
            stack.enter_context(overheard(self.scheduler, lambda record: False))
            stack.enter_context(self.log.recording())
            stack.callback(self.scheduler.close)
            self.log.start()
            yield
            self.scheduler.check()

    def run_until(self, happened: Callable[[], bool], seconds: float) -> None:
        self.scheduler.run_until(happened, seconds=seconds, steps=STEPS_MAX)

    def run_for(self, seconds: float) -> None:
        end = self.now + seconds
        self.scheduler.after(seconds, lambda: None)
        self.run_until(lambda: self.now >= end, seconds + 1.0)

    def populate(self) -> None:
        inputs = make_entries(self.spec, self.random, self.swarm.entries, self.swarm.rows_max)
        user = self.start_process("user")
        registering = user.spawn(self._register())
        self.run_until(registering.done, 10.0)
        self.start_driver()
        self.produce(inputs)
        follower = self.start_process("follower")
        follower.spawn(self._follow())

    def heal(self) -> None:
        self.note("heal")
        self.is_broken = False
        self.network.odds = NetworkOdds(slow_odds=0.0)
        self.network.heal()
        for process in self._processes:
            if process.paused and not process.dead:
                process.resume()
        self.running_driver()

    def catch_up(self) -> None:
        """Until every task has committed all input, and the reader was shown all results."""
        deadline = self.now + LIVENESS_SECONDS_MAX

        def wait(happened: Callable[[], bool]) -> None:
            self.run_until(happened, deadline - self.now)

        wait(lambda: self._producing == 0)
        while not self._flush(wait):
            pass
        tail = self.log.tail
        wait(lambda: self.shown_upto >= tail)

    def _flush(self, wait: Callable[[Callable[[], bool]], None]) -> bool:
        """All input is committed, by a run in which every slot serves; False if the run is over."""
        driver = self._started_driver(wait)
        flushing = driver.process.create_task(driver.coordinator.flush())
        flushing.add_done_callback(asyncio.Future.exception)  # it is looked at below, or over
        wait(lambda: flushing.done() or driver.is_over)
        if driver.is_over or isinstance(flushing.exception(), Unavailable):
            wait(lambda: driver.is_over)  # its log was closed before it could say so
            return False
        flushing.result()
        members = driver.coordinator.core.members
        wait(lambda: len(members) == driver.wanted or driver.is_over)
        return not driver.is_over

    def _started_driver(self, wait: Callable[[Callable[[], bool]], None]) -> SimDriver:
        """One that has claimed the query; whoever slept before may come after it."""
        driver = self.running_driver()
        wait(lambda: driver.is_started or driver.is_over)
        return self._started_driver(wait) if driver.is_over else driver

    def stop(self) -> None:
        """The query is told to stop, and all that belongs to it ends by itself."""
        driver = self._started_driver(lambda it: self.run_until(it, LIVENESS_SECONDS_MAX))
        self.is_stopping = True
        driver.process.spawn(driver.coordinator.finish())
        processes = [driver.process, *(one.process for one in driver.workers.values())]
        self.run_until(lambda: all(process.dead for process in processes), STOP_SECONDS_MAX)
        tail = self.log.tail
        self.run_until(lambda: self.shown_upto >= tail, LIVENESS_SECONDS_MAX)

    # -- who is there

    def start_driver(self) -> SimDriver:
        self.drivers.append(SimDriver(self, len(self.drivers)))
        return self.drivers[-1]

    def running_driver(self) -> SimDriver:
        """The newest that still runs the query; it need not be the one that was started last."""
        running = [driver for driver in self.drivers if driver.is_running]
        return running[-1] if running else self.start_driver()

    def newest_run(self) -> int:
        """The instance of the coordinator that claimed the query last."""
        voice = coordinator_producer(self.spec.name)
        return max((one.instance for one in self.log.claims if one.producer == voice), default=0)

    async def connect(self, name: str) -> AsyncLog:
        return await AsyncLog.connect(self.log.resolve(), name=name, timeout=_PATIENCE_SECONDS)

    async def _register(self) -> None:
        """What `penstock.start` notes before a query runs."""
        spec = self.spec
        query = RegisteredQuery(
            name=spec.name, id="sim", version=spec.version, plan="", mode="", to=spec.to,
            starts=dict.fromkeys(spec.query.streams, 0), tasks=list(spec.tasks), created_ms=0,
            checkpoints=None, protocol=spec.settings.protocol.name,
        )  # fmt: skip
        log = await self.connect("user")
        await log.compare_and_set(query_key(spec.name), expected=None, value=encode_query(query))
        await log.close()

    def produce(self, inputs: Inputs) -> None:
        """Plain producers, one for every stream."""
        for stream, batches in inputs.items():
            key = KEYS_OF[self.swarm.shape] if self.swarm.keyed else ()
            lanes = Lanes(stream, self.swarm.lanes, key)
            entries = [
                NewEntry(encode_batch(piece), tags, rows=piece.num_rows)
                for turn, batch in enumerate(batches)
                for piece, tags in lanes.split(batch, turn)
            ]
            process = self.start_process(f"producer-{stream}")
            self._producing += 1
            process.spawn(self._produce(process.name, entries))

    async def _produce(self, name: str, entries: list[NewEntry]) -> None:
        log = await self.connect(name)
        pause = self.swarm.safety_ms / 1000 / len(entries)
        for entry in entries:
            await log.append([entry])
            await asyncio.sleep(self.random.uniform(0, 2 * pause))
        self._producing -= 1
        await log.close()

    async def _follow(self) -> None:
        """A reader of the result, as stream/tail.py reads."""
        log = await self.connect("follower")
        tags = [stream_tag(self.spec.to)]
        committed = read_entries(0, self.swarm.kept_bytes)
        async with log.tail(tags, start=0) as reader:
            async for batch in reader:
                for entry in batch.entries:
                    counted = committed.take(entry)
                    if isinstance(counted, Marked):
                        self.check_kept(tags, counted)
                        for named in counted.missing:
                            fetched = await log.read(tags, start=named.first_lsn, end=named.end)
                            counted.supply(named, fetched)
                        self.story.shown += [(entry.lsn, one.payload) for one in counted.entries]
                    elif counted is not None:
                        self.story.shown.append((entry.lsn, counted.payload))
                self.shown_upto = batch.looked_up_to

    # -- faults

    def strike(self, kind: Fault) -> bool:
        random = self.random
        driver = self.drivers[-1]
        workers = [one.process for one in driver.workers.values() if not one.process.dead]
        self.note(f"fault {kind}")
        match kind:
            case Fault.LOST | Fault.LATE:
                if self.network.connections:
                    number = random.choice(list(self.network.connections))
                    self.network.connections[number].reset(late=kind is Fault.LATE)
                return False
            case Fault.KILL if workers:
                self.kill(random.choice(workers))
            case Fault.PAUSE if workers:
                self._pause(random.choice(workers))
            case Fault.DRIVER if driver.is_running:
                self.kill(driver.process)
                self.scheduler.after(random.uniform(0, 0.15), self._replace, driver)
            case Fault.DRIVER_PAUSE if driver.is_running:
                self._pause(driver.process)
                self.scheduler.after(random.uniform(0, 0.05), self._replace, driver)
            case Fault.LOG if self.log.is_up:
                self.log.restart(random.uniform(0.001, 0.1))
            case Fault.MOVE if driver.is_running and driver.is_started:
                members = sorted(driver.coordinator.core.members)
                if not members:
                    return False
                tasks = list(driver.coordinator.core.tasks)
                task, worker = random.choice(tasks), random.choice(members)
                driver.process.spawn(driver.move(task, worker))
            case Fault.RESCALE if driver.is_running and driver.is_started:
                count = random.randint(1 + self.swarm.replicas, 4)
                driver.process.spawn(driver.rescale(count))
            case Fault.VACATE if driver.is_running and driver.is_started:
                slots = sorted(one.slot for one in driver.coordinator.core.members.values())
                if not slots:
                    return False
                driver.process.spawn(driver.vacate(random.choice(slots)))
            case Fault.BALANCE if driver.is_running and driver.is_started:
                spec = driver.coordinator.spec
                driver.process.spawn(driver.balance(draw_rates(spec, random)))
            case Fault.SUSPEND if driver.is_running and driver.is_started:
                seconds, count = random.uniform(0.01, 0.15), random.randint(1, 3)
                driver.process.spawn(driver.suspend(seconds, count + self.swarm.replicas))
            case Fault.REPORT if driver.is_running and driver.is_started:
                members = sorted(driver.coordinator.core.members)
                if not members:
                    return False
                self.start_process("stranger").spawn(self._report_nonsense(random.choice(members)))
            case Fault.CHECKPOINT:
                return self.folder.damage(random, self._named()) is not None
            case _:
                return False
        return True

    async def _report_nonsense(self, worker: str) -> None:
        """As if the worker had said it: in the log, a beat is a beat."""
        spec, random = self.spec, self.random
        tasks = [str(task) for task in self.drivers[-1].coordinator.core.tasks]
        told = [strange_reports(random, spec.name, spec.version, tasks) for _ in range(3)]
        log = await self.connect("stranger")
        beat = encode_message(Beat(worker, *told))
        await log.append([NewEntry(beat, (control_tag(spec.name),), Kind.CONTROL)])
        await log.close()

    def _replace(self, driver: SimDriver) -> None:
        if self.drivers[-1] is driver:
            self.start_driver()

    def _pause(self, process: Process) -> None:
        lease_seconds = self.swarm.pulse_us / 1e6 * self.swarm.pulses_missed_max
        times = self.random.choice((0.5, 1.5, 5.0))
        process.pause()
        self.scheduler.after(lease_seconds * times, process.resume)

    def _named(self) -> dict[str, list[str]]:
        """By task, the checkpoints that its last marker names."""
        paths = {}
        for entry in self.log.entries:
            if entry.kind is Kind.MARKER:
                marker = decode_marker(entry.payload)
                paths[marker.task] = [str(one["path"]) for one in marker.checkpoints]
        return paths
