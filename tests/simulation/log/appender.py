"""An open producer in the simulation: the real AppenderCore with a virtual network around it.

Mirrors penstock/log/client/appender.py: claims with a nonce, sends again after a reconnection,
gives up after the client's timeout, retires an anonymous producer. Decisions are the core's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, StaleInstance
from penstock.ids import Lsn
from penstock.log.client.appender_core import (
    AppenderCore,
    Reconnect,
    Send,
    Settle,
    check_submission,
    retire_body,
)
from penstock.log.group_format import CLAIM, encode_body, meta_entry
from penstock.log.records import Appended, Flush, Guard, Kind, NewEntry, SetKey
from penstock.wire import messages as m
from simulation.log.link import Answer, Link
from simulation.log.story import AppendOp, ClaimOp

if TYPE_CHECKING:
    from simulation.log.world import World

#: Called once: with the open appender, or with what went wrong.
Opened = Callable[["SimAppender | PenstockError"], None]


class Claim:
    """appender.py `claim_producer`, as a chain of calls."""

    def __init__(self, link: Link, producer: str, *, retires: bool, opened: Opened) -> None:
        self._link = link
        self._world = link.world
        self._producer = producer
        self._retires = retires
        self._opened = opened
        self._op: ClaimOp | None = None
        self._start()

    def _start(self) -> None:
        self._link.call(m.GetProducer(self._producer), self._known)

    def _known(self, message: m.Message | PenstockError, _: bytes) -> None:
        if isinstance(message, PenstockError):
            self._opened(message)
            return
        assert isinstance(message, m.Producer)
        nonce = self._world.random.randbytes(8)
        instance = message.instance + 1
        self._op = ClaimOp(
            self._link.name,
            self._world.now_us,
            self._world.story.known_lsn,
            producer=self._producer,
            instance=instance,
            nonce=nonce,
        )
        self._world.story.claims.append(self._op)
        body = encode_body(
            producer=self._producer,
            instance=instance,
            first_seq=message.next_seq,
            entries=[NewEntry(nonce, (), Kind.CONTROL)],
            flags=CLAIM,
        )
        self._link.call(m.Append((), 0), self._claimed, body)

    def _claimed(self, message: m.Message | PenstockError, _: bytes) -> None:
        assert self._op is not None
        self._op.ended_us = self._world.now_us
        if isinstance(message, StaleInstance):
            self._world.count("claim lost to a rival")
            self._start()
            return
        if isinstance(message, PenstockError):
            self._opened(message)
            return
        assert isinstance(message, m.AppendDone)
        self._op.won = True
        self._world.story.know(message.first_lsn + message.count)
        self._link.call(m.GetProducer(self._producer), self._known_again)

    def _known_again(self, message: m.Message | PenstockError, _: bytes) -> None:
        assert self._op is not None
        if isinstance(message, PenstockError):
            self._opened(message)
            return
        assert isinstance(message, m.Producer)
        if message.instance != self._op.instance:
            self._start()
            return
        core = AppenderCore(
            producer=self._producer, instance=message.instance, next_seq=message.next_seq
        )
        self._opened(SimAppender(self._link, core, retires=self._retires))


class SimAppender:
    """appender.py `AsyncAppender`."""

    def __init__(self, link: Link, core: AppenderCore, *, retires: bool) -> None:
        self._link = link
        self._world: World = link.world
        self.core = core
        self._retires = retires
        self._settled_us = 0
        self._timer_set = False
        self._pump_due = False
        self._ended: dict[AppendOp, Callable[[AppendOp], None]] = {}
        self._closed: Callable[[], None] | None = None
        link.join(self)

    def append(
        self,
        entries: Sequence[NewEntry],
        ended: Callable[[AppendOp], None],
        *,
        guards: Sequence[Guard] = (),
        sets: Sequence[SetKey] = (),
        flush_ms: int = 0,
    ) -> AppendOp:
        """Submit; `ended` is called once with the operation and its outcome."""
        if sets:
            entries = [*entries, meta_entry(sets)]
        check_submission(entries, guards)
        op = AppendOp(
            self._link.name,
            self._world.now_us,
            self._world.story.known_lsn,
            producer=self.core.producer,
            instance=self.core.instance,
            entries=tuple(entries),
            guards=tuple(guards),
            flush_ms=flush_ms,
        )
        self._world.story.appends.append(op)
        self._ended[op] = ended
        self._settle(self.core.submit(op, entries, guards=guards, flush=Flush(flush_ms)))
        if self.core.in_flight == 0:
            self._pump()
        elif not self._pump_due:
            self._pump_due = True
            self._world.after(self._world.random.randint(0, 500), "pump", self._pump)
        return op

    def _pump(self) -> None:
        self._pump_due = False
        self._watch()
        if self._link.connection is None:
            return
        for send in self.core.take_sends():
            request = self._link.next_request()
            message = m.Append(send.guards, send.flush.delay_ms)
            self._link.send(request, message, self._answer_to(send), send.body)
        self.core.check()

    def _answer_to(self, send: Send) -> Answer:
        connection = self._link.connection

        def answer(message: m.Message | PenstockError, _: bytes) -> None:
            if isinstance(message, m.AppendDone):
                done = Appended(Lsn(message.first_lsn), message.count, message.duplicate)
                self._settle(self.core.answered(send.seq, done))
            elif isinstance(message, PenstockError):
                if self._link.connection is not connection:
                    return  # the connection ended: `disconnected` sends it again
                self._settle(self.core.answered(send.seq, message))
            self._pump()

        return answer

    def connected(self) -> None:
        self._pump()

    def disconnected(self) -> None:
        self.core.disconnected()

    def _watch(self) -> None:
        if not self._timer_set and not self.core.is_idle:
            self._settled_us = self._world.now_us
            self._look_later()

    def _look_later(self) -> None:
        self._timer_set = True
        self._world.after(self._world.swarm.timeout_ms * 250, "look", self._look)

    def _look(self) -> None:
        self._timer_set = False
        if self.core.is_idle:
            return
        if self._world.now_us - self._settled_us >= self._world.swarm.timeout_ms * 1000:
            self._world.count("gave up")
            self._settle(self.core.give_up("nothing was settled in time"))
        else:
            self._look_later()

    def _settle(self, effects: Iterable[Settle | Reconnect]) -> None:
        for effect in effects:
            if isinstance(effect, Reconnect):
                self._link.reconnect()
                continue
            op = effect.ticket
            assert isinstance(op, AppendOp)
            self._settled_us = self._world.now_us
            assert op.outcome is None, f"settled twice: {op}"
            op.outcome = effect.outcome
            op.ended_us = self._world.now_us
            if isinstance(effect.outcome, Appended):
                self._world.story.know(effect.outcome.first_lsn + effect.outcome.count)
            self._world.note(f"{self._link.name} told {effect.outcome!r}")
            self._ended.pop(op)(op)
        if self._closed is not None and self.core.is_idle:
            closed, self._closed = self._closed, None
            self._retire(closed)

    def close(self, closed: Callable[[], None]) -> None:
        """Wait for what was submitted; an anonymous producer retires."""
        if self.core.is_idle:
            self._retire(closed)
        else:
            self._closed = closed

    def _retire(self, closed: Callable[[], None]) -> None:
        self._link.leave(self)
        if not self._retires or self.core.broken is not None or self._link.connection is None:
            closed()
            return

        def answered(message: m.Message | PenstockError, _: bytes) -> None:
            # Refused: a retry after it took effect. Unavailable: one row stays in the table.
            self._world.count("retired" if isinstance(message, m.AppendDone) else "not retired")
            closed()

        core = self.core
        body = retire_body(core.producer, core.instance, core.next_seq)
        self._link.call(m.Append((), 0), answered, body)
