"""An open producer on asyncio: submits to the pure core, sends what it says, settles futures.

Owns opening (a claim that fences older instances) and closing (an anonymous producer retires, so
that the producer table does not grow by every program that ever ran). Decisions are
appender_core.py's.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.errors import (
    PenstockError,
    Refused,
    Retryable,
    StaleInstance,
    Unavailable,
    Unknown,
)
from penstock.ids import Lsn
from penstock.limits import MIB
from penstock.log.client.appender_core import (
    AppenderCore,
    Reconnect,
    SendGroup,
    Settle,
    check_submission,
    retire_body,
)
from penstock.log.client.connection import ClientAnswer
from penstock.log.group_format import CLAIM, encode_body, meta_entry
from penstock.log.records import (
    IMMEDIATE,
    Appended,
    Flush,
    Guard,
    Kind,
    NewEntry,
    SetKey,
    check_key,
    check_sets,
)
from penstock.wire import messages as m

if TYPE_CHECKING:
    from penstock.log.client.client import AsyncLog

#: Bytes submitted and not settled at which `append` waits before it takes more.
PENDING_BYTES_MAX = 16 * MIB


async def claim_producer(
    log: AsyncLog, name: str | None, guards: tuple[Guard, ...] = ()
) -> AppenderCore:
    """Open a producer as its next instance. Data is sent only after the claim was acknowledged.

    With guards, the claim is refused (GuardFailed) unless they hold when it is ordered.
    Unknown: the older instances may be fenced, or not.
    """
    producer = name or f"{log.anonymous_prefix}{uuid.uuid4().hex}"
    while True:
        known, _ = await log.call(m.GetProducer(producer), m.Producer)
        instance = known.instance + 1
        body = encode_body(
            producer=producer,
            instance=instance,
            first_seq=known.next_seq,
            entries=[NewEntry(secrets.token_bytes(8), (), Kind.CONTROL)],
            flags=CLAIM,
        )
        try:
            # A claim may be sent again: its nonce tells ours from a rival's.
            await log.call(m.Append(guards, 0), m.AppendDone, body)
        except StaleInstance:
            continue  # a rival was faster: take over from it, as its caller would from us
        try:
            # Only now do the older instances write no more: read how far they came.
            known, _ = await log.call(m.GetProducer(producer), m.Producer)
        except Retryable as error:
            raise Unknown(f"producer {producer} was claimed, but not opened: {error}") from error
        if known.instance != instance:
            continue
        return AppenderCore(producer=producer, instance=instance, next_seq=known.next_seq)


async def adopt_producer(log: AsyncLog, name: str, instance: int) -> AppenderCore:
    """Append as an instance that somebody claimed for us; StaleInstance if there is a newer one.

    For one adopter: two that append as one instance would take each other's seqs.
    """
    known, _ = await log.call(m.GetProducer(name), m.Producer)
    if known.instance != instance:
        raise StaleInstance(f"producer {name} is at instance {known.instance}, not {instance}")
    return AppenderCore(producer=name, instance=instance, next_seq=known.next_seq)


class AsyncAppender:
    """A `penstock.log.api.Appender`."""

    def __init__(self, log: AsyncLog, core: AppenderCore, *, retire_on_close: bool) -> None:
        self._log = log
        self.core = core
        self._retire = retire_on_close
        self._loop = asyncio.get_running_loop()
        self._pump_due = False
        self._room = asyncio.Event()
        self._room.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        #: When something was settled last, while anything waits; and the timer that looks at it.
        self._settled_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def producer(self) -> str:
        return self.core.producer

    @property
    def instance(self) -> int:
        return self.core.instance

    @property
    def next_seq(self) -> int:
        return self.core.next_seq

    async def append(
        self,
        entries: Sequence[NewEntry],
        *,
        guards: Sequence[Guard] = (),
        sets: Sequence[SetKey] = (),
        flush: Flush = IMMEDIATE,
    ) -> Appended:
        if not self._room.is_set():
            await self._room.wait()
        return await self.append_nowait(entries, guards=guards, sets=sets, flush=flush)

    def append_nowait(
        self,
        entries: Sequence[NewEntry],
        *,
        guards: Sequence[Guard] = (),
        sets: Sequence[SetKey] = (),
        flush: Flush = IMMEDIATE,
    ) -> asyncio.Future[Appended]:
        """Submit without waiting for room; the caller bounds how much it has unsettled."""
        if self._closed:
            raise Unavailable(f"producer {self.producer} is closed")
        if sets:
            check_sets(sets)
            entries = [*entries, meta_entry(sets)]
        for guard in guards:
            check_key(guard.key)
        check_submission(entries, guards)
        future: asyncio.Future[Appended] = self._loop.create_future()
        self._idle.clear()  # before: a producer that is broken settles at once, and is idle again
        self._settle(self.core.submit(future, entries, guards=guards, flush=flush))
        if self.core.pending_bytes > PENDING_BYTES_MAX:
            self._room.clear()
        if self.core.in_flight == 0:
            self.pump()
        elif not self._pump_due:
            # At the end of this turn of the loop, so that appends made together travel together.
            self._pump_due = True
            self._loop.call_soon(self.pump)
        return future

    async def drained(self) -> None:
        """Wait until everything submitted is settled."""
        await self._idle.wait()

    def pump(self) -> None:
        """Send what the core says is due, if there is a connection."""
        self._pump_due = False
        connection = self._log.connection
        self._watch()
        if connection is None:
            return
        for send in self.core.take_sends():
            try:
                connection.send(
                    self._log.next_request(),
                    m.Append(send.guards, send.flush.delay_ms),
                    self._answer_to(send),
                    send.body,
                )
            except Unavailable:
                self.core.disconnected()
                return
        connection.flush()

    def _answer_to(self, send: SendGroup) -> ClientAnswer:
        connection = self._log.connection

        def answer(message: m.Message | PenstockError, _: memoryview) -> None:
            if isinstance(message, m.AppendDone):
                done = Appended(Lsn(message.first_lsn), message.count, message.duplicate)
                self._settle(self.core.answered(send.seq, done))
            elif isinstance(message, PenstockError):
                if connection is not None and connection.closed.done():
                    return  # the connection ended: `disconnected` sends it again
                self._settle(self.core.answered(send.seq, message))
            if not self.core.is_idle:
                self.pump()

        return answer

    def disconnected(self) -> None:
        self.core.disconnected()

    def give_up(self, cause: str) -> None:
        """Settle everything: unknown, or never sent."""
        self._settle(self.core.give_up(cause))

    def _watch(self) -> None:
        """Give up when nothing was settled for the client's timeout; looked at now and then."""
        if self._timer is None and not self.core.is_idle:
            self._settled_at = self._loop.time()
            self._timer = self._loop.call_later(self._log.timeout / 4, self._look)

    def _look(self) -> None:
        self._timer = None
        quiet = self._loop.time() - self._settled_at
        if self.core.is_idle:
            return
        if quiet >= self._log.timeout:
            self.give_up(f"nothing was settled for {quiet:.1f} s")
        else:
            self._timer = self._loop.call_later(self._log.timeout / 4, self._look)

    def _settle(self, effects: Iterable[Settle | Reconnect]) -> None:
        for effect in effects:
            if isinstance(effect, Reconnect):
                self._log.reconnect()
                continue
            future = effect.ticket
            assert isinstance(future, asyncio.Future)
            self._settled_at = self._loop.time()
            if future.done():
                continue
            if isinstance(effect.outcome, PenstockError):
                # One error may settle many futures; each gets a copy, so tracebacks do not grow.
                future.set_exception(type(effect.outcome)(str(effect.outcome)))
            else:
                future.set_result(effect.outcome)
        if self.core.pending_bytes <= PENDING_BYTES_MAX:
            self._room.set()
        if self.core.is_idle:
            self._idle.set()

    async def close(self) -> None:
        """Wait for what was submitted; an anonymous producer retires. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self.drained()
        if self._timer is not None:
            self._timer.cancel()
        self._log.dismiss(self)
        if self._retire and self.core.broken is None and self._log.connection is not None:
            body = retire_body(self.producer, self.instance, self.next_seq)
            try:
                await self._log.call(m.Append((), 0), m.AppendDone, body)
            except (Refused, Retryable, Unknown):
                pass  # a retry after it took effect, or no server: one row stays in the table

    async def __aenter__(self) -> AsyncAppender:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
