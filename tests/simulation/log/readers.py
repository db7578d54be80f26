"""Clients that read: followers, scanners of a range, askers of single facts; and trimmers.

`SimReader` mirrors penstock/log/client/reader.py: one subscription, resumed at the first LSN that
was not received; credit is given back as batches are handed out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, Retryable, Trimmed
from penstock.log.client.reader import RESUME_SECONDS, decode_records, split_records
from penstock.log.core.tails import FOREVER
from penstock.wire import messages as m
from simulation.log.link import Link
from simulation.log.network import Connection
from simulation.log.story import BoundsOp, FindTimeOp, LastOp, Reading, TrimOp

if TYPE_CHECKING:
    from simulation.log.world import World


class SimReader:
    """reader.py `AsyncReader`; `ended` is called once, when it is done or has failed."""

    def __init__(
        self, link: Link, reading: Reading, ended: Callable[[], None], *, slow: bool
    ) -> None:
        self._link = link
        self._world = link.world
        self.reading = reading
        self._ended = ended
        self._slow = slow
        self.next_lsn = reading.start
        self._end = FOREVER if reading.end is None else reading.end
        self._number = 0
        self._queue: deque[tuple[m.Delivery, bytes]] = deque()
        self._handing = False
        self._is_full = False
        self._done = False
        self._closed = False
        self._record_max = 0
        link.world.story.readings.append(reading)
        link.join(self)
        if link.connection is not None:
            self.connected()

    def connected(self) -> None:
        """reader.py `resume`."""
        if self._done or self.reading.error is not None:
            return
        if self.next_lsn >= self._end:
            self._done = True
            self._hand_out_later()
            return
        credit = self._world.swarm.credit_bytes - sum(len(body) for _, body in self._queue)
        self._is_full = credit <= 0
        if self._is_full:
            return
        self._link.readers.pop(self._number, None)
        self._number = self._link.next_request()
        self._link.readers[self._number] = self._delivered
        message = m.Subscribe(self._number, self.reading.tags, self.next_lsn, self._end, credit)
        self._link.send(self._number, message, self._answered)

    def disconnected(self) -> None:
        pass

    def _answered(self, message: m.Message | PenstockError, _: bytes) -> None:
        if not isinstance(message, PenstockError):
            return
        connection = self._link.connection
        if not isinstance(message, Retryable):
            self.reading.error = message
            self._hand_out_later()
        elif connection is not None:
            wait_us = int(RESUME_SECONDS * 1_000_000)
            self._world.after(
                wait_us, f"{self._link.name} resumes", lambda: self._resume_on(connection)
            )

    def _resume_on(self, connection: Connection) -> None:
        if connection is self._link.connection and not self._closed:
            self.connected()

    def _delivered(self, message: m.Delivery, body: bytes) -> None:
        self.next_lsn = max(self.next_lsn, message.looked_up_to)
        self._queue.append((message, body))
        self._check_credit(body)
        if message.done:
            self._done = True
            self._link.forget(self._number)
        self._hand_out_later()

    def _check_credit(self, body: bytes) -> None:
        """A reader never holds more than it gave credit for, but for one record (I19)."""
        sizes = [header.record_bytes for header, _ in split_records(memoryview(body))]
        self._record_max = max([self._record_max, *sizes])
        limit = self._world.swarm.credit_bytes + self._record_max
        held = sum(len(data) for _, data in self._queue)
        assert held <= limit, f"{self._link.name} is given more than its credit"

    def _hand_out_later(self) -> None:
        if not self._handing:
            self._handing = True
            pause_us = self._world.random.randint(0, 20_000 if self._slow else 100)
            self._world.after(pause_us, f"{self._link.name} hands out", self._hand_out)

    def _hand_out(self) -> None:
        self._handing = False
        if not self._queue:
            self._finish()
            return
        message, body = self._queue.popleft()
        entries = decode_records(memoryview(body))
        self._world.story.saw(self.reading, entries, message.looked_up_to, self._world.now_us)
        if body and not self._done and self._link.connection is not None:
            if self._is_full:
                self.connected()
            else:
                self._link.send(0, m.Credit(self._number, len(body)))
        if self._queue or self._done or self.reading.error is not None:
            self._hand_out_later()

    def _finish(self) -> None:
        if not self._closed and (self._done or self.reading.error is not None):
            self.reading.done = self._done
            self._leave()
            self._ended()

    def close(self) -> None:
        """Stop reading, as a program that has seen enough."""
        if self._link.connection is not None and not self._done and not self.reading.error:
            self._link.forget(self._number)
            self._link.send(0, m.Unsubscribe(self._number))
        self._done = True
        self._queue.clear()
        self._leave()

    def _leave(self) -> None:
        self._closed = True
        self._link.readers.pop(self._number, None)
        self._link.leave(self)


class Follower:
    """Follows some tags, or everything, from some LSN on, for ever."""

    def __init__(
        self, world: World, link: Link, *, tags: tuple[str, ...] | None, start: int, slow: bool
    ) -> None:
        self._world = world
        self._link = link
        self._tags = tags
        self._slow = slow
        self._start_lsn = start
        self.reader: SimReader | None = None

    def start(self) -> None:
        reading = Reading(self._link.name, self._tags, self._start_lsn, None)
        self.reader = SimReader(self._link, reading, self._ended, slow=self._slow)

    def _ended(self) -> None:
        assert self.reader is not None
        error = self.reader.reading.error
        assert isinstance(error, Trimmed), f"{self._link.name}: {error!r}"
        self._world.count("reader trimmed")
        ask_bounds(self._link, self._resume)

    def _resume(self, bounds: BoundsOp | None) -> None:
        if bounds is None:
            ask_bounds(self._link, self._resume)
            return
        self._start_lsn = bounds.trim_point
        self.start()

    def leave_and_return(self) -> None:
        """Unsubscribe in the middle, and go on later from there."""
        reader = self.reader
        if reader is not None and reader.reading.error is None:
            self._world.count("reader left")
            self._start_lsn = reader.reading.looked_up_to
            reader.close()
            self.start()

    @property
    def looked_up_to(self) -> int:
        return self.reader.reading.looked_up_to if self.reader is not None else 0


def ask_bounds(link: Link, done: Callable[[BoundsOp | None], None]) -> None:
    world = link.world
    op = BoundsOp(link.name, world.now_us, world.story.known_lsn)

    def answered(message: m.Message | PenstockError, _: bytes) -> None:
        if isinstance(message, PenstockError):
            done(None)
            return
        assert isinstance(message, m.LogBounds)
        op.ended_us = world.now_us
        op.trim_point, op.tail = message.trim_point, message.tail
        world.story.bounds.append(op)
        world.story.know(message.tail)
        done(op)

    link.call(m.GetBounds(), answered)


class Scanner:
    """Asks now and then: for a range, the newest entry of a tag, a time, the bounds."""

    def __init__(self, world: World, link: Link, *, tags: tuple[str, ...]) -> None:
        self._world = world
        self._link = link
        self._tags = tags

    def start(self) -> None:
        self._later()

    def _later(self) -> None:
        if self._world.is_broken:
            pause_us = self._world.random.randint(1000, 400_000)
            self._world.after(pause_us, f"{self._link.name} asks", self._ask)

    def _ask(self) -> None:
        question = self._world.random.choice((self._scan, self._scan, self._last, self._time))
        question()

    def _scan(self) -> None:
        def found(bounds: BoundsOp | None) -> None:
            if bounds is None or bounds.tail <= bounds.trim_point:
                self._later()
                return
            random = self._world.random
            start = random.randint(bounds.trim_point, bounds.tail)
            # Sometimes beyond the tail: it then waits for it.
            end = max(random.choice((bounds.tail, bounds.tail, start + 3)), start + 1)
            count = random.randint(0, 3)
            tags = tuple(random.sample(self._tags, count)) if count else None
            reading = Reading(self._link.name, tags, start, end)
            SimReader(self._link, reading, self._later, slow=False)

        ask_bounds(self._link, found)

    def _last(self) -> None:
        world = self._world
        tag = world.random.choice(self._tags)
        op = LastOp(self._link.name, world.now_us, world.story.known_lsn, tag=tag)

        def answered(message: m.Message | PenstockError, body: bytes) -> None:
            if isinstance(message, m.LastEntry):
                op.ended_us = world.now_us
                if body:
                    (op.found,) = decode_records(memoryview(body))
                    world.story.know(op.found.lsn + 1)
                world.story.lasts.append(op)
            self._later()

        self._link.call(m.ReadLast(tag, FOREVER), answered)

    def _time(self) -> None:
        world = self._world
        time_ms = world.wall_ms() - world.random.randint(-100, 3000)
        op = FindTimeOp(
            self._link.name, world.now_us, world.story.known_lsn, time_ms=max(time_ms, 0)
        )

        def answered(message: m.Message | PenstockError, _: bytes) -> None:
            if isinstance(message, m.Position):
                op.ended_us = world.now_us
                op.found = message.lsn
                world.story.times.append(op)
            self._later()

        self._link.call(m.FindTime(op.time_ms), answered)


class Trimmer:
    """Gives up old entries: those that the archive has read, or, if free, any."""

    def __init__(self, world: World, link: Link, *, limit: Callable[[], int]) -> None:
        self._world = world
        self._link = link
        self._limit = limit

    def start(self) -> None:
        if self._world.is_broken:
            pause_us = self._world.random.randint(50_000, 600_000)
            self._world.after(pause_us, f"{self._link.name} trims", self._trim)

    def _trim(self) -> None:
        world = self._world
        limit = self._limit()
        lsn = world.random.randint(limit // 2, limit)
        op = TrimOp(self._link.name, world.now_us, world.story.known_lsn, lsn=lsn)
        world.story.trims.append(op)

        def answered(message: m.Message | PenstockError, _: bytes) -> None:
            if isinstance(message, m.Position):
                op.ended_us = world.now_us
                op.point = message.lsn
            self.start()

        self._link.call(m.Trim(lsn), answered)
