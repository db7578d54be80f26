"""A delivery at work in one thread (P8): shipped players, their hosts, clients and log server.

Owns the two phases. *Safety*: the faults that the seed drew strike; with every transaction of a
target its table is what counts in the log below its position (tables.py). *Liveness*: all is
healed; within bounded time every target has all of it. Then the laws of acks, trims and dead
letters are checked over the whole log. Players are processes with event loops of their own on one
virtual time (kernel/); targets are tables of ours.

    DeliveryWorld(7).run()      # raises on the first thing that is wrong
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from random import Random

import pyarrow as pa

from penstock.delivery.player import Player
from penstock.delivery.player_core import PlayerCore
from penstock.delivery.resharding import try_reshard
from penstock.delivery.routing import first_route
from penstock.delivery.target_queue import State, TargetQueue
from penstock.errors import Fenced, GuardFailed, Trimmed, Unavailable, Unknown
from penstock.ids import Lsn
from penstock.log.client.client import AsyncLog
from penstock.log.records import Kind
from penstock.protocol.deliveries import (
    Delivered,
    RegisteredDelivery,
    decode_delivered,
    decode_delivery,
    encode_delivery,
)
from penstock.protocol.names import ack_tag, deliver_key, player_producer, query_key
from penstock.runtime.dead_letters import DEAD_LETTER_SCHEMA
from penstock.runtime.registry import RegisteredQuery, encode_query
from penstock.runtime.trim import trim_consumed
from penstock.stream.batches import decode_batch
from penstock.stream.registration import (
    Registration,
    encode_registration,
    stream_key,
    stream_tag,
)
from simulation.checkers.evidence import Violation
from simulation.delivery.players import SimPlayer
from simulation.delivery.rows import CHANGING, DELIVERY, SCHEMA, STREAM, TASK, Oracle, Writer
from simulation.delivery.swarm import Fault, Swarm, draw_swarm, small_limits
from simulation.delivery.tables import Contents, SimTarget, Table
from simulation.kernel import Network, NetworkOdds, Process, seeded_secrets
from simulation.kernel.seeded import SeededWorld, collected_at_the_end
from simulation.kernel.shipped import overheard, tapped, told
from simulation.pipeline.log import SimLog

LETTERS = "refused"
#: After healing, all targets have everything within this much virtual time, or it is stuck.
LIVENESS_SECONDS_MAX = 20.0
STEPS_MAX = 1_000_000
_PATIENCE_SECONDS = 3600.0
_STATES = {State.READING: "own read", State.JOINING: "joined behind a read"}


class DeliveryWorld(SeededWorld[Fault]):
    """See the module's docstring. `swarm` overrides what the seed would draw."""

    def __init__(self, seed: int, *, swarm: Swarm | None = None) -> None:
        super().__init__(seed, Random(seed))
        drawn = draw_swarm(self.random)
        self.swarm = swarm = drawn if swarm is None else swarm
        self.network = Network(self.scheduler, self._network_odds())
        self.log = SimLog(self.scheduler, fsync_seconds_max=swarm.fsync_us_max / 1e6)
        self.schema = CHANGING if swarm.reshards else SCHEMA
        self.oracle = Oracle(
            self.log.entries,
            swarm.shards,
            of_query=swarm.of_query,
            bad_rows=swarm.bad_rows,
            schema=self.schema,
        )
        self.tables = [self._new_table(shard, Lsn(0)) for shard in range(swarm.shards)]
        self.delivery = RegisteredDelivery(
            name=DELIVERY, id="life", stream=STREAM, query=TASK.query if swarm.of_query else None,
            version=TASK.version if swarm.of_query else None, key=["key"],
            route=list(first_route(swarm.shards)), epoch=0, start=0, table=DELIVERY,
            targets=[f"table {shard}" for shard in range(swarm.shards)], strict=False,
            dead_letter=LETTERS if swarm.bad_rows else None, created_ms=0,
        )  # fmt: skip
        self.players: list[SimPlayer] = []
        #: Rows that no target was asked to take.
        self._excused: set[int] = set()
        self._is_writing = False
        self._is_resharding = swarm.reshards

    def _network_odds(self) -> NetworkOdds:
        late = 0.5 if Fault.LATE in self.swarm.mean_ms else 0.0
        return NetworkOdds(late_odds=late, late_seconds_max=0.4, notice_seconds_max=0.02)

    def _new_table(self, shard: int, birth: Lsn) -> Table:
        swarm = self.swarm
        return Table(
            shard, self.oracle, swarm.knows_terms, swarm.bad_rows, self.count,
            changes=swarm.reshards, contents=Contents(birth),
        )  # fmt: skip

    # -- who is there

    def start_process(self, name: str) -> Process:
        process = self.scheduler.process(name)
        process.job_seconds = self._call_seconds
        return process

    def _call_seconds(self) -> float:
        """How long a call of a target takes."""
        if self._meets(Fault.SLOW):
            return self.random.uniform(0.05, 1.0)
        return self.random.uniform(20e-6, self.swarm.call_us_max / 1e6)

    def _meets(self, kind: Fault) -> bool:
        odds = self.swarm.odds.get(kind, 0.0) if self.is_broken else 0.0
        if odds == 0.0 or self.random.random() >= odds:
            return False
        self.count(f"fault {kind}")
        return True

    def targets(self) -> list[SimTarget]:
        """Ways of one player to all tables."""
        return [SimTarget(table, self) for table in self.tables[: self.swarm.shards]]

    def target(self, delivery: RegisteredDelivery, shard: int) -> SimTarget:
        """A way to the table of a shard that is new."""
        layout = delivery.layout
        for each in range(len(self.tables), layout.count):
            self.tables.append(self._new_table(each, layout.birth(each, Lsn(0))))
        return SimTarget(self.tables[shard], self)

    def before_call(self) -> None:
        if self._meets(Fault.ERROR):
            raise Unavailable("it failed")

    def after_call(self) -> None:
        if self._meets(Fault.ANSWER):
            raise Unavailable("the answer is lost")

    def on_the_way(self, apply: Callable[[], object]) -> None:
        seconds = self.random.uniform(0, 0.3)
        if self._meets(Fault.FLIGHT):
            self.scheduler.after(seconds, apply)
            raise Unavailable("the connection is lost")
        if self._meets(Fault.TWICE):
            self.scheduler.after(seconds, apply)

    def broken(self, law: Violation) -> None:
        self.scheduler.fail_all(str(law), law)

    def start_player(self) -> SimPlayer:
        self.players.append(SimPlayer(self, len(self.players)))
        return self.players[-1]

    def running_player(self) -> SimPlayer:
        """The newest that runs; it need not be the one that was started last."""
        running = [player for player in self.players if player.is_running]
        return running[-1] if running else self.start_player()

    async def connect(self, name: str) -> AsyncLog:
        return await AsyncLog.connect(self.log.resolve(), name=name, timeout=_PATIENCE_SECONDS)

    async def _register(self) -> None:
        log = await self.connect("user")
        query = RegisteredQuery(
            name=TASK.query, id="sim", version=TASK.version, plan="", mode="", to=STREAM,
            starts={}, tasks=[1], created_ms=0,
        )  # fmt: skip
        streams = {STREAM: self.schema, LETTERS: DEAD_LETTER_SCHEMA}
        values = {
            query_key(TASK.query): encode_query(query),
            deliver_key(DELIVERY): encode_delivery(self.delivery),
            **{
                stream_key(name): encode_registration(Registration(name, schema, 0))
                for name, schema in streams.items()
            },
        }
        for key, value in values.items():
            await log.compare_and_set(key, expected=None, value=value)
        await log.close()

    async def _write(self) -> None:
        log = await self.connect("writer")
        writer = Writer(self.random, self.swarm.rows_max, self.schema)
        await writer.write(log, self.swarm.commits, self.swarm.safety_ms / 1000)
        self._is_writing = False
        await log.close()

    async def _trim(self) -> None:
        """Trims now and then what nobody needs (I15)."""
        log = await self.connect("trimmer")
        point = Lsn(0)
        while True:
            await asyncio.sleep(self.random.expovariate(1 / 0.08))
            before, point = point, await trim_consumed(log)
            if point > before:
                self.count("trimmed")
            for table in self.tables:
                at = table.contents.position
                if self.oracle.layout.is_over(table.shard, at):
                    continue
                if not table.was_restored and point > at:
                    raise Violation("I15", f"trimmed to {point}, shard {table.shard} is at {at}")

    async def _reshard(self) -> None:
        """Gives the delivery other targets now and then."""
        log = await self.connect("resharder")
        while self.is_broken:
            await self._reshard_once(log)
            await asyncio.sleep(self.random.expovariate(1 / 0.15))
        self._is_resharding = False
        await log.close()

    async def _reshard_once(self, log: AsyncLog) -> None:
        value = await log.get(deliver_key(DELIVERY))
        assert value is not None
        before = decode_delivery(DELIVERY, value.data, value.lsn)
        if before.shards > 8:
            return
        live = before.layout.live
        stays = self.random.sample(live, self.random.randint(0, len(live)))
        new = [f"table {before.shards + one}" for one in range(self.random.randint(0, 2))]
        if not stays + new or (sorted(stays) == list(live) and not new):
            return
        try:
            await try_reshard(log, before, value.data, [*stays, *new])
        except (GuardFailed, Unknown):
            return
        except Trimmed:
            self.count("rows that would move are gone")
            return
        self.count("other targets")

    # -- the run

    def run(self) -> None:
        with self.open():
            self.populate()
            for kind in self.swarm.mean_ms:
                self.fault_later(kind, self.swarm.mean_ms[kind] / 1000)
            self.run_for(self.swarm.safety_ms / 1000)
            self.heal()
            self.catch_up()
            self.stop()
            self.check()

    @contextmanager
    def open(self) -> Iterator[None]:
        """The world's laws of nature hold, until everything in it is let go."""
        with ExitStack() as stack:
            stack.enter_context(collected_at_the_end())
            stack.enter_context(seeded_secrets(self.random))
            stack.enter_context(small_limits(self.swarm))
            stack.enter_context(self._taps())
            stack.enter_context(overheard(self.scheduler, lambda record: False))
            stack.enter_context(self.log.recording())
            stack.callback(self.scheduler.close)
            self.log.start()
            yield
            self.scheduler.check()

    def _taps(self) -> AbstractContextManager[None]:
        def became(_: None, queue: TargetQueue, state: State) -> None:
            if state in _STATES:
                self.count(_STATES[state])

        def handled(_: object, core: PlayerCore, event: object, now: float) -> None:
            core.check()
            assert core.due is None or core.due > now, f"{event} leaves undone what is due"

        return tapped(
            [
                (PlayerCore, "handle", told(handled)),
                (TargetQueue, "_become", told(became)),
            ]
        )

    def run_until(self, happened: Callable[[], bool], seconds: float) -> None:
        self.scheduler.run_until(happened, seconds=seconds, steps=STEPS_MAX)

    def run_for(self, seconds: float) -> None:
        end = self.now + seconds
        self.scheduler.after(seconds, lambda: None)
        self.run_until(lambda: self.now >= end, seconds + 1.0)

    def populate(self) -> None:
        registering = self.start_process("user").spawn(self._register())
        self.run_until(registering.done, 10.0)
        self._is_writing = True
        self.start_process("writer").spawn(self._write())
        if self.swarm.trims:
            self.start_process("trimmer").spawn(self._trim())
        if self.swarm.reshards:
            self.start_process("resharder").spawn(self._reshard())
        self.start_player()
        self._back_up()

    def _back_up(self) -> None:
        if self.is_broken:
            self.random.choice(self.tables).back_up()
            self.scheduler.after(self.random.expovariate(1 / 0.1), self._back_up)

    def heal(self) -> None:
        self.note("heal")
        self.is_broken = False
        self.network.odds = NetworkOdds(slow_odds=0.0)
        self.network.heal()
        for table in self.tables:
            table.is_up = True
        for player in self.players:
            if player.process.paused and not player.process.dead:
                player.process.resume()

    def catch_up(self) -> None:
        """Until every target has everything."""
        deadline = self.now + LIVENESS_SECONDS_MAX

        def wait(happened: Callable[[], bool]) -> None:
            self.run_until(happened, deadline - self.now)

        wait(lambda: not self._is_writing and not self._is_resharding)
        while not self._flush(wait):
            pass
        for table in self.tables:
            table.check()
            rows = self._rows_of(table)
            behind = [] if list(table.contents.rows) == rows else rows
            if behind:
                raise Violation("I14", f"shard {table.shard} has everything, but not {behind}")

    def _rows_of(self, table: Table) -> list[int]:
        """All that it has to have now."""
        if table.changes:
            return self.oracle.contents(table.shard, self.log.tail)
        return self.oracle.between(table.shard, 0, self.log.tail)

    def _flush(self, wait: Callable[[Callable[[], bool]], None]) -> bool:
        """All that counts is applied, by a player that is there at the end."""
        player = self.running_player()
        wait(lambda: player.player is not None or player.is_over)
        if player.player is None or player.is_over:
            return False
        flushing = player.process.create_task(player.player.flush())
        flushing.add_done_callback(asyncio.Future.exception)  # it is looked at below, or over
        wait(lambda: flushing.done() or player.is_over)
        error = flushing.exception() if flushing.done() else None
        if isinstance(error, Fenced):
            wait(lambda: player.is_over)
        if player.is_over or isinstance(error, Trimmed):
            self._mend(player.player)
            player.kill()
            return False
        flushing.result()
        return True

    def _mend(self, player: Player) -> None:
        """Give targets that need what was trimmed a newer backup."""
        for table, facts in zip(self.tables, player.core.facts(), strict=False):
            if isinstance(facts.error, Trimmed):
                if not table.was_restored:
                    raise Violation("I15", f"what shard {table.shard} needs is gone: {facts.error}")
                self.count("restored below the trim point")
                tail = self.log.tail
                rows = self._rows_of(table)
                self._excused |= {row for shard, row in self.oracle.bad if shard == table.shard}
                table.restore(Contents(tail, tuple(rows)))
            elif facts.error is not None:
                raise facts.error

    def stop(self) -> None:
        """Players are told to stop, and the last of them says the last word: one that slept may
        claim the delivery only now."""
        while running := [one for one in self.players if one.is_running]:
            self._stop(running[0])
        self.run_for(0.1)
        terms = {one.player.term: one.error for one in self.players if one.player is not None}
        error = terms[max(terms)]
        if error is not None:
            raise error

    def _stop(self, player: SimPlayer) -> None:
        self.run_until(lambda: player.player is not None or player.is_over, LIVENESS_SECONDS_MAX)
        if player.player is not None:
            player.process.call_soon(player.player.stop, 5.0)
        self.run_until(lambda: player.is_over, LIVENESS_SECONDS_MAX)

    # -- laws over the whole log

    def check(self) -> None:
        for table in self.tables:
            table.check()
        self._check_acks()
        self._check_letters()

    def _check_acks(self) -> None:
        """Players' words come in the order of their terms, and are true."""
        term = 0
        last: Delivered | None = None
        for entry in self.log.entries:
            if entry.kind is not Kind.CONTROL or ack_tag(DELIVERY) not in entry.tags:
                continue
            last = decode_delivered(DELIVERY, entry.payload)
            if entry.producer != player_producer(DELIVERY) or entry.instance != last.term:
                raise Violation("R27", f"an ack of term {last.term} by {entry.producer}")
            if last.term < term:
                raise Violation("R27", f"an ack of term {last.term} after one of {term}")
            term = last.term
            # Of before the delivery got other targets, it is of fewer.
            for table, position in zip(self.tables, last.positions, strict=False):
                if position is not None and position not in table.positions:
                    at = f"shard {table.shard} was never at {position}"
                    raise Violation("I14", f"the ack at {entry.lsn}: {at}")
        assert last is not None
        if last.is_running or last.positions != [one.contents.position for one in self.tables]:
            raise Violation("I14", f"the last word is {last}")

    def _check_letters(self) -> None:
        """Rows that targets refuse are in the dead-letter stream, each once."""
        found = []
        for entry in self.log.entries:
            if stream_tag(LETTERS) in entry.tags:
                letters: pa.RecordBatch = decode_batch(entry.payload, DEAD_LETTER_SCHEMA)
                found += [json.loads(row)["row"] for row in letters["row"].to_pylist()]
        self.counts["dead letter"] += len(found)
        bad = sorted(row for _, row in self.oracle.bad)
        if sorted({*found, *self._excused} & {*bad}) != bad or len({*found}) < len(found):
            raise Violation("I22", f"dead letters are {sorted(found)}, not {bad}")

    # -- faults

    def strike(self, kind: Fault) -> bool:
        random, player = self.random, self.players[-1]
        self.note(f"fault {kind}")
        match kind:
            case Fault.LOST | Fault.LATE if self.network.connections:
                number = random.choice(list(self.network.connections))
                self.network.connections[number].reset(late=kind is Fault.LATE)
            case Fault.LOG if self.log.is_up:
                self.log.restart(random.uniform(0.001, 0.1))
            case Fault.KILL if player.is_running:
                player.kill()
                self.scheduler.after(random.uniform(0, 0.1), self._replace, player)
            case Fault.PAUSE if player.is_running:
                player.process.pause()
                self.scheduler.after(random.uniform(0, 0.05), self._replace, player)
                self.scheduler.after(random.uniform(0, 0.3), player.process.resume)
            case Fault.TAKEOVER if player.is_running:
                self.start_player()
            case Fault.CRASH:
                table = random.choice(self.tables)
                table.crash()
                self.scheduler.after(random.uniform(0, 0.2), setattr, table, "is_up", True)
            case Fault.RESTORE:
                table = random.choice(self.tables)
                if self.oracle.layout.is_over(table.shard, table.contents.position):
                    return False
                table.restore(random.choice(table.backups))
            case _:
                return False
        return True

    def _replace(self, player: SimPlayer) -> None:
        if self.players[-1] is player:
            self.start_player()
