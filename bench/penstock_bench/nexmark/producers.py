"""Generators that append on schedule, whatever the log or a query does: a process each.

Owns the processes and their clock; which event is due when, and whether that was held, is pace.py's
matter. Law: a batch is made before it is due and sent when it is due; nobody waits for the log
before sending what is due next, and every event's delay counts from its own scheduled time. Only
when so much waits for acknowledgement that memory is at stake does a generator wait, and then all
that was due meanwhile follows, late by the clock and counted as late.

Events of one generator come in order; those of several are interleaved as the log receives them.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, Final

import pyarrow as pa
import uvloop

from penstock.errors import Unavailable
from penstock.limits import MIB, PAYLOAD_BYTES_MAX
from penstock.log.client.appender import AsyncAppender
from penstock.log.client.client import AsyncLog
from penstock.log.embedded import endpoint
from penstock.log.records import Appended, NewEntry
from penstock.stream.batches import encode_trusted, split_batch
from penstock.stream.lanes import Lanes
from penstock.stream.session import connect
from penstock_bench.child import Child, context
from penstock_bench.measure import SECOND_US, now_us
from penstock_bench.nexmark import model
from penstock_bench.nexmark.draws import Ints
from penstock_bench.nexmark.generator import Generator, Parameters
from penstock_bench.nexmark.pace import HELD_MS, Delays, Schedule, held_ms, judge

#: How far ahead of its time a batch may be made: bridges pauses of the machine.
_AHEAD_US: Final = 60_000
#: Rows made in one go. Many small batches cost more than a large one, but acknowledgements wait
#: for the making of one: this many take about 1.5 ms.
_MAKE_ROWS: Final = 2_000
#: Unacknowledged bytes at which a generator waits for the log.
_PENDING_BYTES_MAX: Final = 256 * MIB
_START_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Sent:
    """What all generators together have sent, and how well they kept to their schedule."""

    events: int
    #: When the first append was sent, and the last acknowledged.
    first_us: int
    acked_us: int
    #: Of the payloads.
    bytes: int
    #: From an event's scheduled time until it was acknowledged: p50, p90, p99, p99.9, max.
    delay_ms: dict[str, float]
    #: The part of it that passed before the event was sent, its wait for the tick included.
    unsent_ms: dict[str, float]
    #: CPU seconds of all generators.
    cpu_s: float
    is_held: bool
    note: str


@dataclass(frozen=True, slots=True)
class _Command:
    schedule: Schedule
    parameters: Parameters


@dataclass(slots=True)
class _Part:
    """What one generator sent."""

    events: int = 0
    first_us: int = 0
    acked_us: int = 0
    bytes: int = 0
    cpu_s: float = 0.0
    delays: Delays = field(default_factory=Delays)
    own: Delays = field(default_factory=Delays)


class Producers:
    """Generator processes of one stream, as a harness holds them: one command at a time.

    Makes the stream if it is not there. Ready when made: the processes run and are connected.
    `parameters` are those of the events; `begin` sets their rate and their base.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | None,
        *,
        stream: str = "events",
        generators: int = 1,
        parameters: Parameters | None = None,
    ) -> None:
        self._parameters = parameters or Parameters()
        with connect(target) as log:
            lanes = log.create_stream(stream, model.EVENT).spread
            where = (log.target, lanes, log.token_file, log.tls_ca)
        self._counters = [context.RawValue("q", 0) for _ in range(generators)]
        self._running = False
        self._bar_ms = HELD_MS
        self._children = [
            Child(f"generator {number}", _serve, *where, self._parameters.seed, counter)
            for number, counter in enumerate(self._counters)
        ]
        try:
            self._collect(_START_SECONDS)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The processes, for whoever measures them."""
        return [child.pid for child in self._children]

    def parameters(self, *, rate: float, base_ms: int) -> Parameters:
        """The parameters of the events that `begin` sends: what the stream must then hold."""
        return replace(self._parameters, events_per_s=rate, base_ms=base_ms)

    def begin(
        self,
        *,
        start_us: int,
        rate: float,
        count: int,
        first: int = 0,
        base_ms: int | None = None,
        flush_us: int = 5_000,
    ) -> None:
        """Send events [first, first + count), `rate` a second of the wall clock from `start_us` on.

        An event's own time is `base_ms + n / rate`; without `base_ms`, it is when it is due.
        """
        assert not self._running, "one command at a time: call finished first"
        if base_ms is None:
            base_ms = (start_us - round(first * SECOND_US / rate)) // 1_000
        self._running = True
        self._bar_ms = held_ms(flush_us)
        for counter in self._counters:
            counter.value = 0
        parameters = self.parameters(rate=rate, base_ms=base_ms)
        for generator, child in enumerate(self._children):
            schedule = Schedule(
                start_us, rate, count, first, generator, len(self._children), flush_us=flush_us
            )
            child.send(_Command(schedule, parameters))

    def sent(self) -> int:
        """Events acknowledged since `begin`. Cheap, at any time."""
        return sum(counter.value for counter in self._counters)

    def finished(self, timeout: float) -> Sent:
        """Wait until all that was begun is acknowledged.

        Raises DeadlineExceeded if it takes longer, Unavailable if a generator failed.
        """
        parts: list[_Part] = self._collect(timeout)
        self._running = False
        delays, own = Delays(), Delays()
        for part in parts:
            delays.merge(part.delays)
            own.merge(part.own)
        is_held, note = judge(delays, own, bar_ms=self._bar_ms)
        return Sent(
            events=sum(part.events for part in parts),
            first_us=min((part.first_us for part in parts if part.events), default=0),
            acked_us=max(part.acked_us for part in parts),
            bytes=sum(part.bytes for part in parts),
            delay_ms=delays.summary_ms(),
            unsent_ms=own.summary_ms(),
            cpu_s=round(sum(part.cpu_s for part in parts), 3),
            is_held=is_held,
            note=note,
        )

    def _collect(self, timeout: float) -> list[Any]:
        """One answer of each process."""
        deadline = time.monotonic() + timeout
        return [child.answer(deadline - time.monotonic()) for child in self._children]

    def close(self) -> None:
        """End the processes, sent or not. Idempotent."""
        for child in self._children:
            child.close(2.0)

    def __enter__(self) -> Producers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(
    target: str | None,
    lanes: Lanes,
    token_file: str | None,
    tls_ca: str | None,
    seed: int,
    counter: Any,
    commands: Connection,
) -> None:
    async def main() -> None:
        resolve = endpoint(target, token_file=token_file, tls_ca=tls_ca)
        async with await AsyncLog.connect(resolve) as log:
            appender = await log.own_appender()
            _warm(seed)
            commands.send("ready")
            while True:
                command = await asyncio.to_thread(commands.recv)
                commands.send(await _Run(appender, lanes, command, counter).run())

    try:
        uvloop.run(main())
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        pass  # the harness ended, or the whole terminal was interrupted; the harness says so
    except Exception as error:
        commands.send(_failed(error))


def _failed(error: Exception) -> Unavailable:
    return Unavailable(f"a generator failed: {type(error).__name__}: {error}")


def _warm(seed: int) -> None:
    """Strings are made and libraries loaded before the first event is due."""
    ids = Schedule(0, 1.0, _MAKE_ROWS).ids(0, _MAKE_ROWS * SECOND_US)
    encode_trusted(Generator(Parameters(seed=seed)).events(ids))
    gc.collect()
    gc.freeze()


@dataclass(frozen=True, slots=True)
class _Due:
    """What a tick sends: made before its time."""

    tick: int
    ids: Ints
    entries: list[NewEntry]
    bytes: int


class _Run:
    """One command in one process."""

    def __init__(
        self, appender: AsyncAppender, lanes: Lanes, command: _Command, counter: Any
    ) -> None:
        self._appender = appender
        self._lanes = lanes
        self._turns = itertools.count()
        self._schedule = command.schedule
        self._generator = Generator(command.parameters)
        self._counter = counter
        self._made: deque[_Due] = deque()
        #: The next tick to make.
        self._next = 0
        self._ticks = command.schedule.ticks
        self._pending_bytes = 0
        self._settled = asyncio.Event()
        self._error: BaseException | None = None
        self._part = _Part()

    async def run(self) -> _Part | Exception:
        started = time.process_time()
        gc.disable()  # a pause of the collector would be a pause of the schedule
        try:
            while self._made or self._next < self._ticks:
                await self._tick()
            await self._appender.drained()
            await asyncio.sleep(0)  # the callbacks of the last acknowledgements
            if self._error is not None:
                raise self._error
        except Exception as error:
            return _failed(error)
        finally:
            gc.enable()
        self._part.cpu_s = time.process_time() - started
        return self._part

    async def _tick(self) -> None:
        """Wait until something is due, making what comes after meanwhile, and send it."""
        if not self._made:
            self._make()
        while (wait_us := self._schedule.tick_us(self._made[0].tick) - now_us()) > 0:
            ahead_us = self._schedule.tick_us(self._next) - now_us()
            if self._next < self._ticks and ahead_us < _AHEAD_US and wait_us > 1_500:
                self._make()
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(wait_us / SECOND_US)
        while self._pending_bytes > _PENDING_BYTES_MAX and self._error is None:
            self._settled.clear()
            await self._settled.wait()
        if self._error is not None:
            raise self._error
        self._send(self._made.popleft())

    def _make(self) -> None:
        """The batches of the next ticks, of several at once where they are small."""
        schedule = self._schedule
        per_tick = schedule.rate * schedule.flush_us / SECOND_US / schedule.generators
        end = min(self._ticks, self._next + max(1, int(_MAKE_ROWS / max(per_tick, 1e-9))))
        end = min(end, self._next + max(1, _AHEAD_US // schedule.flush_us))
        events = self._generator.events(schedule.ids(self._next, end))
        start = 0
        for tick in range(self._next, end):
            ids = schedule.ids(tick)
            entries = self._entries(events.slice(start, len(ids)))
            size = sum(len(entry.payload) for entry in entries)
            self._made.append(_Due(tick, ids, entries, size))
            start += len(ids)
        self._next = end

    def _entries(self, rows: pa.RecordBatch) -> list[NewEntry]:
        if not rows.num_rows:
            return []
        return [
            NewEntry(encode_trusted(batch), tags, rows=batch.num_rows)
            for piece in split_batch(rows, PAYLOAD_BYTES_MAX)
            for batch, tags in self._lanes.split(piece, next(self._turns))
        ]

    def _send(self, due: _Due) -> None:
        if not due.entries:
            return
        sent_us = now_us()
        self._part.first_us = self._part.first_us or sent_us
        due_us = self._schedule.due_us(due.ids)
        second = max(0, due.tick * self._schedule.flush_us - 1) // SECOND_US
        self._part.own.add(sent_us - due_us, second)
        self._pending_bytes += due.bytes
        # An entry a group: several large ones together would be beyond a group's limit.
        futures = [self._appender.append_nowait([entry]) for entry in due.entries]
        futures[-1].add_done_callback(self._acknowledged(due, due_us, second))

    def _acknowledged(
        self, due: _Due, due_us: Ints, second: int
    ) -> Callable[[asyncio.Future[Appended]], None]:
        """Entries of one appender are acknowledged in order: the last one stands for all."""

        def done(future: asyncio.Future[Appended]) -> None:
            part = self._part
            self._pending_bytes -= due.bytes
            self._settled.set()
            if future.cancelled() or (error := future.exception()) is not None:
                self._error = self._error or error or Unavailable("an append was given up")
                return
            part.acked_us = now_us()
            part.delays.add(part.acked_us - due_us, second)
            part.events += len(due.ids)
            part.bytes += due.bytes
            self._counter.value = part.events

        return done
