"""The player at work: the shell of player_core.py on a log and on hosts of targets.

Owns one life of a delivery: it claims the delivery's name in the log (claim.py), reads, sends,
writes acks and dead letters, and ends. Time and tasks come from the running event loop. Ends by
raising: Fenced (a newer player has the name), NotFound (the delivery was removed), PlanChanged (the
stream begins anew), Trimmed or another Refused (no target is left), Damaged (rows that cannot be
read). While the log is away it waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from penstock.delivery.acks import ACK_SECONDS, Acks
from penstock.delivery.claim import Claim
from penstock.delivery.host import NoHost, TargetHost
from penstock.delivery.letters import letter_entry
from penstock.delivery.messages import Ack, Apply, At, Bye, FromTarget, Hello, ToTarget
from penstock.delivery.metrics import DeliveryMetrics, player_text
from penstock.delivery.moves import Moves
from penstock.delivery.player_core import (
    Answers,
    Drained,
    End,
    Event,
    FlushAsked,
    Follow,
    Limits,
    Opened,
    PlayerCore,
    Read,
    ReadDone,
    ReadFailed,
    Resharded,
    SetAside,
    Started,
    Tailed,
    TailTrimmed,
    Ticked,
    WasSetAside,
)
from penstock.delivery.routing import Commit, Router
from penstock.delivery.source import Reading, Source
from penstock.delivery.status import Clock, describe, words
from penstock.errors import Fenced, GuardFailed, NotFound, PenstockError, Refused, Trimmed
from penstock.ids import Lsn
from penstock.limits import MIB
from penstock.log.client.client import AsyncLog
from penstock.log.records import Kind, NewEntry
from penstock.protocol.deliveries import Delivered, RegisteredDelivery, needed_from
from penstock.protocol.names import deliver_key, delivery_flush_tag
from penstock.runtime.lag import Lag
from penstock.stream.registration import Registration, decode_registration, stream_key

logger = logging.getLogger(__name__)

#: What a target's own read brings at a time; the last piece may be beyond it. What is read for one
#: is worked on in one go, and the others wait for that.
READ_BYTES: Final = 1 * MIB
READ_COMMITS: Final = 64
#: Rows in the queues of all targets together, as long as each can hold a few batches.
QUEUES_BYTES: Final = 64 * MIB
QUEUE_BYTES_MIN: Final = 4 * MIB
#: How long the end may take beyond the time that was given to what is in flight.
CLOSE_SECONDS: Final = 5.0


#: Makes the host of a shard that this player was not given a target for; may raise.
MakeHost = Callable[[RegisteredDelivery, int], TargetHost]


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class _Flush:
    """Somebody waits until all targets are at an LSN."""

    lsn: Lsn
    done: asyncio.Future[None]


class Player:
    """One life. Make one with `Player.open`, then `run` it."""

    def __init__(
        self,
        claim: Claim,
        source: Source,
        delivery: RegisteredDelivery,
        hosts: Sequence[TargetHost | None],
        *,
        make_host: MakeHost | None,
        letters: Registration | None,
        before: Delivered | None,
        now_ms: Callable[[], int],
    ) -> None:
        self.delivery = delivery
        self._layout = delivery.layout
        self._claim = claim
        self._source = source
        self._moves = Moves(source)
        self._make_host = make_host
        retired = _retired(delivery, before)
        given = [*hosts, *[None] * (delivery.shards - len(hosts))]
        #: One for each shard; several may be the same.
        self._hosts = [
            NoHost(_no_target(delivery, shard))
            if shard in retired
            else host or self._host(delivery, shard)
            for shard, host in enumerate(given)
        ]
        self._letters = letters
        self._now_ms = now_ms
        #: By route.
        self._routers: dict[tuple[int, ...], Router] = {}
        queue_bytes_max = max(QUEUES_BYTES // delivery.shards, QUEUE_BYTES_MIN)
        window = min(host.window for host in self._hosts)
        self.core = PlayerCore(
            delivery.shards,
            term=claim.term,
            limits=Limits(queue_bytes_max, window=window),
            sets_aside=letters is not None,
            layout=self._layout,
            retired=retired,
        )
        self._acks = Acks(claim.term, before)
        self.metrics = DeliveryMetrics()
        self._loop = asyncio.get_running_loop()
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Set while the shared tail should be read on.
        self._room = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._begun = asyncio.Event()
        self._ending = asyncio.Event()
        #: Set with every event: who waits for something looks again.
        self._changed = asyncio.Event()
        self._is_over = False
        self._deadline: float | None = None
        #: What ended it, if that was an error.
        self.error: PenstockError | None = None
        #: Own reads of targets that have not come to their end.
        self._readings: dict[int, Reading] = {}
        self._flushes: list[_Flush] = []
        #: Acks that came in this turn of the loop.
        self._acked: list[Ack] = []
        #: By shard, when batches were sent that have no answer yet.
        self._sent: dict[int, deque[float]] = {}

    @classmethod
    async def open(
        cls,
        log: AsyncLog,
        delivery: RegisteredDelivery,
        hosts: Sequence[TargetHost | None],
        *,
        make_host: MakeHost | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> Self:
        """Claim the delivery's name: from now on the log refuses every earlier player.

        `hosts`: of each shard, if this player was given it; `make_host` makes those of others.
        """
        stream = await _registration(log, delivery.stream)
        letters = None
        if delivery.dead_letter is not None:
            letters = await _registration(log, delivery.dead_letter)
        own = "" if delivery.query is None else f"@{delivery.query}.{delivery.version}/"
        source = Source(log, stream, beginning=Lsn(delivery.start), own=own)
        claim = await Claim.open(log, delivery)
        before = await claim.last_ack()
        return cls(
            claim,
            source,
            claim.delivery,
            hosts,
            make_host=make_host,
            letters=letters,
            before=before,
            now_ms=now_ms,
        )

    # ---- life

    async def run(self) -> None:
        """Deliver until `stop`. Raises what ended it before that."""
        try:
            async with self._group:
                self._spawn(self._claim.watch_log())
                self._spawn(self._begin())
                await self._ending.wait()
                if self.error is None:
                    await self._drain()
                self._is_over = True
                for task in list(self._tasks):
                    task.cancel()
        except* PenstockError as group:
            self.error = self.error or _first_of(group)
        finally:
            self._is_over = True
            await self._close()
        if self.error is not None:
            raise self.error

    async def _begin(self) -> None:
        """Say the first word in the log, however long it is away, and greet the targets."""
        first = await self._claim.write(self._ack())
        for host in self._different_hosts():
            host.start(self._hear)
        self._spawn(self._claim.watch(Lsn(first.first_lsn + first.count)))
        self._spawn(self._write_acks())
        self._tell(Started())
        self._begun.set()

    def stop(self, timeout: float) -> None:
        """End: what is in flight is waited for, for so many seconds. Idempotent."""
        if self._deadline is None:
            self._deadline = self._loop.time() + timeout
        self._ending.set()

    async def _drain(self) -> None:
        """Until it has begun and every batch has its answer, or the deadline comes."""
        try:
            async with asyncio.timeout_at(self._deadline):
                await self._begun.wait()
                self._tell(Drained())
                while not self.core.is_drained:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            logger.warning("delivery=%s ends before all was answered", self.delivery.name)

    async def _close(self) -> None:
        """Let go of everything and say a last word in the log, within a deadline."""
        if self._timer is not None:
            self._timer.cancel()
        for flush in self._flushes:
            if not flush.done.done():
                flush.done.set_exception(self._over())
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                for reading in self._readings.values():
                    await reading.close()
                if not isinstance(self.error, Fenced | NotFound):
                    await self._say_the_last_word()
                await self._claim.close()
        except (TimeoutError, PenstockError) as error:
            logger.warning("delivery=%s: no last word in the log: %s", self.delivery.name, error)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(*(host.close() for host in self._different_hosts()))
        except TimeoutError:
            logger.warning("delivery=%s: a target does not let go", self.delivery.name)

    async def _say_the_last_word(self) -> None:
        """A delivery that was refused before any target took it is forgotten.

        Otherwise every mistyped address or password would hold back the trimming of the log.
        """
        ack = self._ack(is_running=False)
        if isinstance(self.error, Refused) and all(at is None for at in ack.positions):
            await self._claim.forget()
        else:
            await self._claim.write(ack)

    def _different_hosts(self) -> list[TargetHost]:
        return list(dict.fromkeys(self._hosts))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._is_over = True  # the group ends: it takes no more tasks
        if isinstance(error, PenstockError):
            self.error = self.error or error

    # ---- the core

    def _hear(self, message: FromTarget) -> None:
        """A host's answer."""
        if self._is_over:
            return
        match message:
            case At():
                self._spawn(self._opened(message))
                return
            case Ack():
                if sent := self._sent.get(message.shard):
                    self.metrics.apply_duration.observe(self._loop.time() - sent.popleft())
                if not self._acked:
                    self._loop.call_soon(self._take_acks)
                self._acked.append(message)
                return
            case _:
                name, shard = self.delivery.name, message.shard
                logger.info("delivery=%s target=%d failed: %s", name, shard, message.error)
        self._tell(message)

    async def _opened(self, message: At) -> None:
        bounds = await self._claim.patiently(self._source.log.bounds)
        # After the target's word: a cut that it is past was registered before.
        self._reshard(await self._claim.look())
        self._tell(Opened(message.shard, message.connection, message.position, bounds.tail))

    def _take_acks(self) -> None:
        """All of a turn at once: after each event all targets are looked at for what is due."""
        acks, self._acked = self._acked, []
        if acks:
            self._tell(Answers(acks))

    def _tell(self, event: Event) -> None:
        """Let the core decide, and do what it says."""
        self._take_acks()  # they came before
        if self._is_over:
            return
        effects = self.core.handle(event, self._loop.time())
        messages: dict[TargetHost, list[ToTarget]] = {}
        for effect in effects:
            match effect:
                case Hello() | Apply() | Bye():
                    self._count(effect)
                    messages.setdefault(self._hosts[effect.shard], []).append(effect)
                case Follow(start):
                    self._spawn(self._follow(start))
                case Read():
                    self._spawn(self._read(effect))
                case SetAside():
                    self._spawn(self._set_aside(effect))
                case End(error):
                    self.error = error
                    self._ending.set()
        for host, batch in messages.items():
            host.send(batch)
        if self.core.wants_tail:
            self._room.set()
        else:
            self._room.clear()
        self._set_timer()
        self._changed.set()
        if self._flushes:
            self._settle_flushes()
        if self._moves.cut is not None and self.core.is_past(self._moves.cut):
            self._moves.forget()

    # ---- other shards

    def _reshard(self, delivery: RegisteredDelivery) -> None:
        """From a cut on there are these."""
        if delivery.epoch == self.delivery.epoch or self._is_over:
            return
        self.delivery, self._layout = delivery, delivery.layout
        for shard in range(len(self._hosts), delivery.shards):
            host = self._host(delivery, shard)
            host.start(self._hear)
            self._hosts.append(host)
        self._tell(Resharded(self._layout))

    def _host(self, delivery: RegisteredDelivery, shard: int) -> TargetHost:
        """Of a target that the delivery was given in the log."""
        try:
            if self._make_host is None:
                raise _no_target(delivery, shard)
            return self._make_host(delivery, shard)
        except PenstockError as error:
            return NoHost(error)

    def _router(self, lsn: Lsn) -> Router:
        """For what counts from `lsn` on. Beyond a cut it is right for whom that does not concern,
        and others do not read beyond it."""
        route = self._layout.route_at(lsn)
        if route not in self._routers:
            self._routers[route] = Router(self._source.schema, self.delivery.key, route)
        return self._routers[route]

    def _count(self, message: ToTarget) -> None:
        match message:
            case Hello():
                self.metrics.connections += 1
            case Apply():
                self._sent.setdefault(message.shard, deque()).append(self._loop.time())
                self.metrics.batches += 1
                self.metrics.rows += message.rows
                self.metrics.bytes += message.bytes
            case Bye():
                self._sent.pop(message.shard, None)

    def _set_timer(self) -> None:
        due = None if self._ending.is_set() else self.core.due
        if self._timer is not None:
            if due == self._timer_at:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer, self._timer_at = self._loop.call_at(due, self._tick), due

    def _tick(self) -> None:
        self._timer = None
        self._tell(Ticked())

    # ---- reading

    async def _follow(self, start: Lsn) -> None:
        """The shared tail."""
        name = self.delivery.name
        tags = [delivery_flush_tag(name)]
        reading = self._source.read(start, tags=tags, watched=deliver_key(name))
        try:
            while True:
                await self._room.wait()
                after = reading.position
                commits = await reading.next()
                assert commits is not None, "a tail without an end has ended"
                if reading.changes:
                    self._reshard(await self._claim.look())
                if reading.position > after:
                    upto = reading.position
                    self._tell(Tailed(self._router(after).route(commits, after=after, upto=upto)))
        except Trimmed as error:
            self._tell(TailTrimmed(error))
        finally:
            await reading.close()

    async def _read(self, wanted: Read) -> None:
        """A part of a target's own read; the reader is kept for the next."""
        shard = wanted.shard
        if self._layout.next_cut(shard, wanted.start) == wanted.start:
            await self._read_moves(wanted)
            return
        reading = self._readings.pop(shard, None)
        if reading is not None and (reading.position, reading.end) != (wanted.start, wanted.end):
            await reading.close()
            reading = None
        reading = reading or self._source.read(wanted.start, wanted.end)
        commits: list[Commit] = []
        size = 0
        is_kept = False
        try:
            while (
                size < READ_BYTES and len(commits) < READ_COMMITS and reading.position < wanted.end
            ):
                found = await reading.next()
                assert found is not None, "a read has ended before its end"
                commits += found
                size += sum(commit.bytes for commit in found)
            is_kept = reading.position < wanted.end and shard not in self._readings
        except Trimmed as error:
            self._tell(ReadFailed(shard, wanted.connection, error))
            return
        finally:
            if is_kept:
                self._readings[shard] = reading
            else:
                await reading.close()
        upto = reading.position
        router = self._router(wanted.start)
        span = router.route(commits, after=wanted.start, upto=upto, only=shard)
        self._tell(ReadDone(shard, wanted.connection, span))

    async def _read_moves(self, wanted: Read) -> None:
        """Rows that come to a target at a cut, or go."""
        shard, cut = wanted.shard, wanted.start
        try:
            span = await self._moves.at(self.delivery, shard, cut)
        except Trimmed as error:
            self._tell(ReadFailed(shard, wanted.connection, error))
            return
        self._tell(ReadDone(shard, wanted.connection, span))

    # ---- writing

    async def _write_acks(self) -> None:
        while True:
            await asyncio.sleep(ACK_SECONDS / 4)
            due = self._acks.due(self.core.facts(), self._loop.time(), self._now_ms())
            if due is not None:
                await self._claim.write(due)

    def _ack(self, *, is_running: bool = True) -> Delivered:
        error = None if self.error is None else str(self.error)
        return self._acks.make(
            self.core.facts(), self._now_ms(), is_running=is_running, error=error
        )

    async def _set_aside(self, aside: SetAside) -> None:
        assert self._letters is not None
        entry, guard, change = letter_entry(aside, self.delivery, self._letters)
        try:
            await self._claim.append([entry], guards=[guard], sets=[change])
            self.metrics.dead_letters += 1
        except GuardFailed:
            logger.info("delivery=%s: a row was set aside before", self.delivery.name)
        self._tell(WasSetAside(aside.shard, aside.connection))

    # ---- for whoever holds it

    async def flush(self) -> None:
        """Wait until all that counts now is applied.

        Raises what stopped a target, or the player.
        """
        if self._is_over or self._ending.is_set():
            raise self._over()
        entry = NewEntry(b"", (delivery_flush_tag(self.delivery.name),), Kind.CONTROL)
        done = await self._claim.append([entry])
        flush = _Flush(Lsn(done.first_lsn + 1), self._loop.create_future())
        self._flushes.append(flush)
        if self._is_over:
            raise self._over()
        self._tell(FlushAsked(flush.lsn))
        await flush.done

    def _settle_flushes(self) -> None:
        errors = self.core.errors
        positions = self.core.positions
        for flush in self._flushes:
            if flush.done.done():
                continue
            if errors:
                flush.done.set_exception(type(errors[0])(str(errors[0])))
            elif all(at is not None and at >= flush.lsn for at in positions):
                flush.done.set_result(None)
        self._flushes = [flush for flush in self._flushes if not flush.done.done()]

    def _over(self) -> PenstockError:
        if self.error is not None:
            return type(self.error)(str(self.error))
        return Refused(f"delivery {self.delivery.name} was stopped: start it again for more")

    @property
    def term(self) -> int:
        return self._claim.term

    def status(self) -> dict[str, Any]:
        """How it stands, for people and for JSON."""
        clock = Clock(self._loop.time(), self._now_ms())
        facts = self.core.facts()
        away = self._claim.away_since
        if away is not None:
            message = f"Waiting for the log, which has not answered since {clock.text(away)}"
        else:
            message = words(facts, has_tail=self.core.tail is not None, now=clock.now)
        return describe(self.delivery, self._ack(), facts, message=message, clock=clock)

    def metrics_text(self, lag: Lag | None) -> str:
        """What it counts, as OpenMetrics text."""
        facts = self.core.facts()
        position = needed_from(self.delivery, self._ack())
        return player_text(self.metrics, facts, position=position, now=self._loop.time(), lag=lag)


def _first_of(group: BaseExceptionGroup[PenstockError]) -> PenstockError:
    error = group.exceptions[0]
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _retired(delivery: RegisteredDelivery, before: Delivered | None) -> list[int]:
    """Shards that are over, by the last ack."""
    told = [] if before is None else before.positions
    return [
        shard
        for shard, at in enumerate(told[: delivery.shards])
        if at is not None and delivery.layout.is_over(shard, at)
    ]


def _no_target(delivery: RegisteredDelivery, shard: int) -> Refused:
    return Refused(
        f"this player was given no target {delivery.targets[shard]}: start the delivery again"
    )


async def _registration(log: AsyncLog, stream: str) -> Registration:
    value = await log.get(stream_key(stream))
    if value is None:
        raise NotFound(f"no stream {stream}")
    return decode_registration(stream, value.data)
