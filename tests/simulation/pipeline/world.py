"""A query at work in one thread: tasks, workers, drivers, their log and their store, from one seed.

Owns the two phases, as log/world.py: *safety* (the faults that the seed drew strike; the laws
must hold) and *liveness* (all is healed; the query must catch up within bounded time). Drives the
real cores, formats and sequencer; only the shells are simulated. Law (I21): the same seed gives the
same trace.

    PipelineWorld(7).run()      # raises on the first thing that is wrong
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from penstock_bench.protocols.choosing import ProtocolName, with_protocol

from penstock.ids import Lsn
from penstock.log.records import Entry, Kind, NewEntry
from penstock.protocol.committed import (
    KEPT_BYTES_MAX,
    CommittedReader,
    Marked,
    is_named,
    read_entries,
)
from penstock.protocol.markers import decode_marker
from penstock.protocol.names import TaskId, flush_tag
from penstock.runtime.spec import Settings
from penstock.stream.batches import encode_batch
from penstock.stream.registration import stream_tag
from simulation.checkers.evidence import Violation
from simulation.kernel import Stuck
from simulation.pipeline.client import Client, Network
from simulation.pipeline.drivers import SimDriver
from simulation.pipeline.fibers import Loop, Process
from simulation.pipeline.laws import check_all
from simulation.pipeline.log import SimLog
from simulation.pipeline.queries import Inputs, make_entries, make_spec
from simulation.pipeline.store import SimStore
from simulation.pipeline.story import PipelineStory
from simulation.pipeline.swarm import Fault, Swarm, draw_swarm, small_limits

#: After healing, the query has caught up within this much virtual time, or is stuck.
LIVENESS_MS_MAX = 5000
STEPS_MAX = 300_000


class PipelineWorld:
    """See the module's docstring. `swarm` overrides what the seed would draw."""

    def __init__(
        self, seed: int, *, swarm: Swarm | None = None, protocol: ProtocolName = "marker"
    ) -> None:
        self.seed = seed
        self.loop = Loop(seed)
        drawn = draw_swarm(self.loop.random, protocol)
        self.swarm = drawn if swarm is None else swarm
        settings = Settings(
            commit_interval_ms=self.swarm.commit_interval_ms,
            checkpoints="memory" if self.swarm.checkpoints else None,
            checkpoint_interval_ms=self.swarm.checkpoint_interval_ms,
        )
        self.spec = make_spec(self.swarm.shape, with_protocol(self.swarm.protocol, settings))
        self.log = SimLog(self.loop, self.swarm.fsync_us_max)
        self.network = Network(self.loop, self.log, self.swarm)
        self.store = SimStore()
        self.story = PipelineStory()
        self.counts: Counter[str] = Counter()
        self.is_broken = True
        self.drivers: list[SimDriver] = []
        self._processes: list[Process] = []
        self._names = 0
        self._producing = 0
        self._is_caught_up = False
        self.shown_upto = Lsn(0)

    # -- for the shells

    def start_process(self, name: str) -> Process:
        process = Process(self.loop, name)
        self._processes.append(process)
        return process

    def next_name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def now_ms(self) -> int:
        return self.loop.now_us // 1000

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def does_store_fail(self) -> bool:
        odds = self.swarm.odds.get(Fault.STORE, 0.0) if self.is_broken else 0.0
        fails = odds > 0 and self.loop.random.random() < odds
        if fails:
            self.count(f"fault {Fault.STORE}")
        return fails

    def check_kept(self, tags: Sequence[str], marked: Marked[Entry]) -> None:
        """What a reader kept is what it would fetch."""
        for named in marked.marker.ranges:
            kept = marked.run(named)
            if kept is None:
                continue
            there = self.log.entries[named.first_lsn : named.end]
            wanted = [e for e in there if is_named(e, named) and {*tags} & {*e.tags}]
            if kept != wanted:
                raise Violation("I10", f"of {named} a reader kept {kept}, not {wanted}")
            self.count("staged kept")

    # -- the run

    def run(self) -> None:
        """Both phases, then the checkers. Raises on any violation."""
        try:
            with small_limits(self.swarm):
                self.populate()
                for kind in self.swarm.mean_ms:
                    self._fault_later(kind)
                self.run_until(self.swarm.safety_ms * 1000)
                self.heal()
                self.catch_up()
                check_all(self)
        finally:
            self.close()

    def close(self) -> None:
        """Nothing may happen any more."""
        self.counts["fault late"] += self.network.late
        self.counts["fault lost"] += self.network.lost
        for process in self._processes:
            process.on_death.clear()
            process.kill()

    def populate(self) -> None:
        inputs = make_entries(self.spec, self.loop.random, self.swarm.entries, self.swarm.rows_max)
        self.start_driver()
        self.produce(inputs)
        follower = self.start_process("follower")
        follower.start_main(self._follow(follower))

    def run_until(self, until_us: int) -> None:
        while (at := self.loop.next_us()) is not None and at < until_us:
            self.loop.step()

    def heal(self) -> None:
        self.loop.note("heal")
        self.is_broken = self.network.is_broken = False
        for process in self._processes:
            process.wake()
        if not self._driver_lives():
            self.start_driver()

    def catch_up(self) -> None:
        """Until every task has committed all input, and the reader was shown all results."""
        user = self.start_process("user")
        user.start_main(self._flush(user))
        deadline_us = self.loop.now_us + LIVENESS_MS_MAX * 1000
        while not self._is_caught_up:
            if self.loop.now_us > deadline_us or self.loop.steps > STEPS_MAX:
                raise Stuck(f"not caught up {LIVENESS_MS_MAX} ms after healing")
            self.loop.step()

    # -- who is there

    def start_driver(self) -> SimDriver:
        self.drivers.append(SimDriver(self, len(self.drivers)))
        return self.drivers[-1]

    def _driver_lives(self) -> bool:
        driver = self.drivers[-1]
        return driver.process.is_alive and not driver.is_over

    def produce(self, inputs: Inputs) -> None:
        """Plain producers, one for every stream."""
        for stream, batches in inputs.items():
            entries = [
                NewEntry(encode_batch(batch), (stream_tag(stream),), rows=batch.num_rows)
                for batch in batches
            ]
            process = self.start_process(f"producer-{stream}")
            self._producing += 1
            process.start_main(self._produce(process, entries))

    async def _produce(self, process: Process, entries: list[NewEntry]) -> None:
        client = Client(process, self.log, self.network)
        pause_us = self.swarm.safety_ms * 1000 // len(entries)
        for entry in entries:
            await client.append([entry])
            await process.sleep(self.loop.random.randint(0, 2 * pause_us))
        self._producing -= 1

    async def _follow(self, process: Process) -> None:
        """A reader of the result, as stream/tail.py reads."""
        client = Client(process, self.log, self.network)
        tags = [stream_tag(self.spec.to)]
        reader = client.tail(tags, start=0)
        # An aligned checkpoint names results from before the last one was complete: a reader that
        # has passed them must have kept them, for a trim may take them.
        is_aligned = self.swarm.protocol == "aligned"
        committed = read_entries(0, KEPT_BYTES_MAX if is_aligned else self.swarm.kept_bytes)
        while batch := await reader.next():
            for entry in batch.entries:
                await self._show(client, tags, committed, entry)
            self.shown_upto = batch.looked_up_to

    async def _show(
        self, client: Client, tags: list[str], committed: CommittedReader[Entry], entry: Entry
    ) -> None:
        counted = committed.take(entry)
        if isinstance(counted, Marked):
            self.check_kept(tags, counted)
            for named in counted.missing:
                fetched = await client.read(tags, start=named.first_lsn, end=named.end)
                counted.supply(named, fetched)
            self.story.shown += [(entry.lsn, staged.payload) for staged in counted.entries]
        elif counted is not None:
            self.story.shown.append((entry.lsn, counted.payload))

    async def _flush(self, process: Process) -> None:
        """As Coordinator._flush: everything in the sources is processed, committed, visible."""
        client, spec = Client(process, self.log, self.network), self.spec
        while self._producing:
            await process.sleep(5000)
        for stage, count in enumerate(spec.tasks):
            tag = flush_tag(spec.name, spec.version, stage)
            asked = await client.append([NewEntry(b"", (tag,), Kind.CONTROL)])
            waiting = {str(TaskId(spec.name, spec.version, stage, index)) for index in range(count)}
            tags = [f"T/{task}" for task in sorted(waiting)]
            reader = client.tail(tags, start=asked.first_lsn)
            while waiting:
                batch = await reader.next()
                for entry in batch.entries if batch else ():
                    marker = decode_marker(entry.payload)
                    if marker.position > asked.first_lsn:
                        waiting.discard(marker.task)
        tail = self.log.tail
        while self.shown_upto < tail:
            await process.sleep(5000)
        self._is_caught_up = True

    # -- faults

    def _fault_later(self, kind: Fault) -> None:
        mean_us = self.swarm.mean_ms[kind] * 1000

        def strike() -> None:
            if self.is_broken:
                if self.strike(kind):
                    self.count(f"fault {kind}")
                self._fault_later(kind)

        self.loop.after(int(self.loop.random.expovariate(1 / mean_us)), strike)

    def strike(self, kind: Fault) -> bool:
        """Let one fault happen; False if there was nothing to break."""
        random = self.loop.random
        driver = self.drivers[-1]
        workers = [one.process for one in driver.workers.values() if one.process.is_alive]
        self.loop.note(f"fault {kind}")
        match kind:
            case Fault.KILL if workers:
                random.choice(workers).kill()
            case Fault.PAUSE if workers:
                self._pause(random.choice(workers))
            case Fault.DRIVER if self._driver_lives():
                driver.process.kill()
                self.loop.after(random.randint(0, 150_000), self._replace(driver))
            case Fault.DRIVER_PAUSE if self._driver_lives():
                self._pause(driver.process)
                self.loop.after(random.randint(0, 50_000), self._replace(driver))
            case Fault.LOG if self.log.is_up:
                keeps = random.choice((0.0, 0.5, 1.0))
                self.log.restart(keeps=keeps, away_us=random.randint(1000, 100_000))
            case Fault.CHECKPOINT:
                return self.store.damage(random, self._named()) is not None
            case _:
                return False
        return True

    def _replace(self, driver: SimDriver) -> Callable[[], None]:
        def replace() -> None:
            if self.drivers[-1] is driver:
                self.start_driver()

        return replace

    def _pause(self, process: Process) -> None:
        lease_us = self.swarm.pulse_us * self.swarm.pulses_missed_max
        process.pause()
        times = self.loop.random.choice((0.5, 1.5, 5.0))
        self.loop.after(int(lease_us * times), process.wake)

    def _named(self) -> dict[str, list[str]]:
        """By task, the checkpoints that its last marker names."""
        found = {}
        for task in self.spec.task_ids:
            last = self.log.read_last(task.marker_tag)
            if last is not None:
                marker = decode_marker(last.payload)
                found[str(task)] = [str(one["path"]) for one in marker.checkpoints]
        return found
