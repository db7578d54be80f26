"""A log as connections use it: readers of all kinds, and the appends of one that is sequenced here.

Owns what a server of one log and a proxy of many have in common: subscriptions on real time, reads
from wherever the bytes lie, and, for a log that is sequenced in this process, the pure sequencer
with its answers and its timer. Where groups are written is up to the classes below:
server/owner.py (files), proxy/owned_log.py (nodes). All methods are for the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.errors import (
    Damaged,
    NotFound,
    PenstockError,
    StaleInstance,
    Trimmed,
    Unavailable,
    Unknown,
)
from penstock.ids import Lsn
from penstock.log.core.owners import revoked_key
from penstock.log.core.sequencer import OldDuplicate, Sequencer, decide_duplicate
from penstock.log.core.state import LogState
from penstock.log.core.tails import Deliver, Effect, ReadBehind, SubscriptionId, Tails
from penstock.log.group_format import Body
from penstock.log.records import Appended, Flush, Guard, Value
from penstock.log.serving.log_metrics import LogMetrics
from penstock.log.serving.task_set import TaskSet
from penstock.log.storage.reader import ReadPiece, find_group, find_time, read_last, read_piece
from penstock.wire import messages as m

logger = logging.getLogger(__name__)

#: How often quiet readers are told how far was looked.
PROGRESS_MS = 10

T = TypeVar("T")
Outcome = Appended | PenstockError
#: Called once with the outcome, on the event loop.
Reply = Callable[[Outcome], None]


def wall_ms() -> int:
    """It may jump: append times never follow it back, and nothing waits for it to catch up."""
    return time.time_ns() // 1_000_000


def log_status(log_id: bytes, epoch: int, segments: list[dict[str, Any]]) -> dict[str, object]:
    """What the status of every log says of its segments."""
    return {
        "log_id": log_id.hex(),
        "epoch": epoch,
        "segments": segments,
        "bytes": sum(segment["bytes"] for segment in segments),
    }


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a log needs of the server that it is part of."""

    metrics: LogMetrics
    deliver: Callable[[Deliver], None]
    fail_subscription: Callable[[SubscriptionId, PenstockError], None]
    #: Something happened: write, answer and send, once all that arrived together was handled.
    after_event: Callable[[], None]
    #: ... by a log that has just been pumped: only send what it answered.
    after_pump: Callable[[], None]
    #: This log cannot go on.
    on_fatal: Callable[[BaseException], None]
    wall_ms: Callable[[], int] = wall_ms


class ServedLog(ABC):
    """A log that can be read here."""

    def __init__(self, around: Surroundings, durable_lsn: Lsn) -> None:
        self.metrics = around.metrics
        self.around = around
        self.tails = Tails(durable_lsn, progress_ms=PROGRESS_MS)
        self._loop = asyncio.get_running_loop()
        self._stopping = False
        self._tasks = TaskSet(self._task_failed)

    # ---- what the classes below say

    @abstractmethod
    def status(self) -> dict[str, object]:
        """For people and tools."""

    @abstractmethod
    def welcome(self) -> m.Welcome: ...

    @property
    @abstractmethod
    def trim_point(self) -> Lsn: ...

    @property
    @abstractmethod
    def durable_lsn(self) -> Lsn: ...

    @abstractmethod
    def append(self, reply: Reply, body: Body, guards: tuple[Guard, ...], flush: Flush) -> None: ...

    @abstractmethod
    def is_revoked(self, id: str) -> bool | None:
        """Whether the token of this id was revoked in this log; None: that is not known yet."""

    @property
    def is_sure(self) -> bool:
        """Whether what is known here is surely the newest: nobody else can have gone on."""
        return True

    async def make_sure(self) -> None:
        """Returns when it is; raises Unavailable if it never will be."""
        return None

    @abstractmethod
    async def get_metadata(
        self, keys: Callable[[dict[str, Value]], list[tuple[str, Value]]]
    ) -> list[tuple[str, Value]]: ...

    @abstractmethod
    async def get_producer(self, producer: str) -> m.Producer: ...

    @abstractmethod
    async def trim(self, lsn: int) -> Lsn: ...

    @abstractmethod
    def pump(self) -> None:
        """Once per turn of the server's loop, after all that arrived together is in."""

    def after_turn(self) -> None:
        """The turn's answers went out: what nobody waits for can be done now."""
        return None

    @abstractmethod
    def _read(self, function: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """Run `function(readable log, *arguments)`, off the loop if it may take long."""

    # ---- reads

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                self.metrics.delivered_bytes += sum(map(len, effect.records))
                self.around.deliver(effect)
            else:
                self._read_behind(effect)

    def _read_behind(self, effect: ReadBehind) -> None:
        if self._stopping:
            return  # nothing more is read
        future = self._read(read_piece, effect.tags, effect.start, effect.end, effect.bytes_max)
        future.add_done_callback(lambda done: self._piece_read(effect, done))

    def _piece_read(self, read: ReadBehind, done: asyncio.Future[ReadPiece]) -> None:
        error = None if done.cancelled() else done.exception()
        if done.cancelled() or self._stopping:
            return
        if error is not None:
            if not isinstance(error, PenstockError):
                logger.error("a read failed cause=%r", error)
                error = Unavailable(f"the read failed: {error}")
            is_here, effects = self.tails.read_failed(read)
            if is_here:
                self.around.fail_subscription(read.id, error)
        else:
            piece = done.result()
            effects = self.tails.piece_read(read, piece.records, piece.looked_up_to, self.now_ms())
        self.perform(effects)
        self.around.after_event()

    async def read_last(self, tag: str, end: int) -> bytes | None:
        return await self._read(read_last, tag, end)

    async def find_time(self, time_ms: int) -> Lsn:
        return await self._read(find_time, time_ms)

    def tick(self) -> None:
        """Tell quiet readers how far was looked; every PROGRESS_MS."""
        if self.tails.count:
            self.perform(self.tails.tick(self.now_ms()))
            self.around.after_event()

    # ---- tasks

    def _task_failed(self, error: BaseException) -> None:
        """A task that nobody foresaw to fail ends the log here: half of one must not go on."""
        if not self._stopping:
            logger.critical("a task failed, the log stops cause=%r", error, exc_info=error)
            self.around.on_fatal(error)

    async def _cancel_tasks(self) -> None:
        self._stopping = True
        await self._tasks.cancel()


class SequencedLog(ServedLog):
    """A log whose order is decided in this process."""

    def __init__(self, around: Surroundings, sequencer: Sequencer) -> None:
        super().__init__(around, sequencer.durable_lsn)
        self.sequencer = sequencer
        #: Fires at `_timer_at` of the loop's clock, when a write that waits for company is due.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        #: Who waits to be told something of the state; True: all that it rests on is durable.
        self._asking: dict[asyncio.Future[bool], None] = {}

    @property
    def durable_lsn(self) -> Lsn:
        return self.sequencer.durable_lsn

    def status(self) -> dict[str, object]:
        state = self.sequencer.state
        return {
            "trim_point": self.trim_point,
            "tail": self.durable_lsn,
            "time_ms": state.time_ms,
            "metadata_keys": len(state.metadata),
            "producers": len(state.producers),
            "subscriptions": self.tails.count,
            "subscriptions_behind": self.tails.behind,
        }

    def append(self, reply: Reply, body: Body, guards: tuple[Guard, ...], flush: Flush) -> None:
        """Order a group; `pump` must follow once all that arrived together is in."""
        if self._stopping:
            reply(Unavailable("the server is stopping"))
            return
        started = time.monotonic()

        def answered(outcome: Outcome) -> None:
            self.metrics.append_duration.observe(time.monotonic() - started)
            reply(outcome)

        now_ms = self.around.wall_ms()
        self.sequencer.append(answered, body, guards=guards, flush=flush, now_ms=now_ms)

    def is_revoked(self, id: str) -> bool:
        return revoked_key(id) in self.sequencer.state.metadata

    async def get_metadata(
        self, keys: Callable[[dict[str, Value]], list[tuple[str, Value]]]
    ) -> list[tuple[str, Value]]:
        return await self._ask(lambda state: keys(state.metadata))

    async def get_producer(self, producer: str) -> m.Producer:
        def choose(state: LogState) -> m.Producer:
            known = state.producers.get(producer)
            return m.Producer(known.instance, known.next_seq) if known else m.Producer(0, 0)

        return await self._ask(choose)

    async def _ask(self, choose: Callable[[LogState], T]) -> T:
        """A linearizable read: chosen now, told once everything it rests on is durable."""
        while True:
            if not self.is_sure:
                await self.make_sure()
            settled = self._settled
            if settled is not None:
                found = choose(settled)
                await self.make_sure()  # by what is sent now, after all that this rests on
                return found
            found = choose(self.sequencer.state)
            if await self._is_durable():
                return found

    @property
    def _settled(self) -> LogState | None:
        """Not None: what was ordered after this state was made may wait for ever."""
        return None

    async def _is_durable(self) -> bool:
        """Returns when all that is ordered now is; False: that may take for ever, ask again."""
        future: asyncio.Future[bool] = self._loop.create_future()

        def answered(_: Outcome) -> None:
            if not future.done():
                future.set_result(True)

        self._asking[future] = None
        try:
            self.sequencer.ask(answered)
            self.pump()
            return await future
        finally:
            del self._asking[future]

    def _wake_when_due(self) -> None:
        """Pump again when the next write is due; a shorter delay does not wait for a longer one."""
        due_ms = self.sequencer.due_ms()
        if due_ms is None:
            return
        due_at = self._loop.time() + max(due_ms - self.around.wall_ms(), 0) / 1000
        if self._timer is not None:
            if self._timer_at <= due_at:
                return
            self._timer.cancel()
        self._timer_at = due_at
        self._timer = self._loop.call_at(due_at, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.pump()
        self.around.after_pump()

    def _give_answers(self) -> None:
        for answer in self.sequencer.take_answers():
            outcome = answer.outcome
            reply = answer.cause
            assert callable(reply)
            if isinstance(outcome, OldDuplicate):
                self._tasks.spawn(self._answer_old(reply, outcome))
                continue
            self._tell(reply, outcome)

    def _tell(self, reply: Reply, outcome: Outcome) -> None:
        if isinstance(outcome, Appended):
            self.metrics.duplicates_dropped += outcome.duplicate
        elif isinstance(outcome, StaleInstance):
            self.metrics.fenced_appends += 1
        else:
            self.metrics.refused_appends += 1
        reply(outcome)

    async def _answer_old(self, reply: Reply, old: OldDuplicate) -> None:
        """A retry of a group that the producer table has forgotten: find it in the log."""
        try:
            group = await self._read(find_group, old.producer, old.first_seq)
            outcome: Outcome = decide_duplicate(old.instance, old.count, group)
        except (NotFound, Trimmed, Damaged) as error:
            # It was durable once, so no refusal: readers may have seen it.
            outcome = Unknown(f"{error}; it may have been trimmed")
        except PenstockError as error:
            outcome = error
        except OSError as error:
            outcome = Unavailable(f"the request failed: {error}")
        self._tell(reply, outcome)
        self.around.after_event()
