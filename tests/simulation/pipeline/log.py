"""The log of the simulation: the real sequencer, its write in flight, its restarts, its readers.

Owns what is durable, for ever: what was trimmed cannot be read, but the checkers still see it. A
restart loses what was in flight, or keeps the first groups of it, and answers nobody: clients find
out by waiting. Law: answers and entries come from durable groups only, as the real server's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import PenstockError, Trimmed, Unknown
from penstock.ids import Lsn
from penstock.log.api import Bounds, ReadBatch
from penstock.log.core.sequencer import (
    Answer,
    OldDuplicate,
    OrderedGroup,
    SegmentLimits,
    Sequencer,
    Write,
    decide_duplicate,
)
from penstock.log.core.state import AppendedGroup, LogState
from penstock.log.group_format import CLAIM, decode_body
from penstock.log.records import Appended, Entry, Guard
from simulation.pipeline.fibers import Loop, Promise

_NO_ROLL = SegmentLimits(2**62, 2**62)


@dataclass(frozen=True, slots=True)
class Known:
    """A producer, as `GetProducer` answers."""

    instance: int
    next_seq: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim that the log ordered, for the checkers."""

    lsn: Lsn
    producer: str
    instance: int


@dataclass(slots=True)
class _Poll:
    """A reader that waits for its first entry."""

    tags: frozenset[str]
    start: Lsn
    end: int
    chunk: int
    promise: Promise[ReadBatch]


class SimLog:
    """The server. Its methods are what happens when a request has arrived."""

    def __init__(self, loop: Loop, fsync_us_max: int) -> None:
        self._loop = loop
        self._fsync_us_max = fsync_us_max
        self.entries: list[Entry] = []
        self.claims: list[Claimed] = []
        self._claim_lsns: set[int] = set()
        #: First LSN of every durable group, in order.
        self.groups: list[Lsn] = []
        self.trim_point = Lsn(0)
        self._durable = LogState()
        self._sequencer = Sequencer(LogState(), limits=_NO_ROLL)
        self._polls: list[_Poll] = []
        self._life = 0
        self.is_up = True

    @property
    def now_ms(self) -> int:
        return self._loop.now_us // 1000

    @property
    def tail(self) -> Lsn:
        return Lsn(len(self.entries))

    # -- appends

    def append(self, body: bytes, guards: Sequence[Guard], answer: Promise[Appended]) -> None:
        decoded = decode_body(body)
        self._sequencer.append(answer, decoded, guards=guards, now_ms=self.now_ms)
        self._pump()

    def ask_producer(self, name: str, answer: Promise[Known]) -> None:
        """Answered once everything that the answer rests on is durable."""
        known = self._sequencer.state.producers.get(name)
        found = Known(known.instance, known.next_seq) if known else Known(0, 0)
        asked: Promise[Appended] = Promise()
        asked.then(lambda: answer.keep(found))
        self._sequencer.ask(asked)
        self._pump()

    def _pump(self) -> None:
        for answer in self._sequencer.take_answers():
            self._answer(answer)
        write = self._sequencer.take_write(2**62)
        if write is not None:
            life = self._life
            delay_us = self._loop.random.randint(20, self._fsync_us_max)
            self._loop.after(delay_us, lambda: self._written(write, life))

    def _answer(self, answer: Answer) -> None:
        promise = answer.cause
        assert isinstance(promise, Promise)
        outcome = answer.outcome
        if isinstance(outcome, OldDuplicate):
            outcome = self._judge_old(outcome)
        if isinstance(outcome, PenstockError):
            promise.fail(outcome)
        else:
            promise.keep(outcome)

    def _judge_old(self, old: OldDuplicate) -> Appended | PenstockError:
        for lsn in self.groups:
            entry = self.entries[lsn]
            is_it = (entry.producer, entry.seq) == (old.producer, old.first_seq)
            if is_it and lsn not in self._claim_lsns:
                count = next((at for at in self.groups if at > lsn), self.tail) - lsn
                group = AppendedGroup(old.first_seq, count, entry.instance, lsn)
                try:
                    return decide_duplicate(old.instance, old.count, group)
                except PenstockError as error:
                    return error
        return Unknown(f"no group of {old.producer} at seq {old.first_seq}")

    def _written(self, write: Write, life: int) -> None:
        if life != self._life:
            return
        self._keep(write.groups)
        self._sequencer.written(write)
        self._serve()
        self._pump()

    def _keep(self, groups: Sequence[OrderedGroup]) -> None:
        for group in groups:
            self._durable.apply(group.body, first_lsn=group.first_lsn, time_ms=group.time_ms)
            self.groups.append(group.first_lsn)
            self.entries += group.body.entries(group.first_lsn, group.time_ms)
            if group.body.flags & CLAIM:
                body = group.body
                self._claim_lsns.add(group.first_lsn)
                self.claims.append(Claimed(group.first_lsn, body.producer, body.instance))

    # -- reads

    def poll(
        self, tags: frozenset[str], start: Lsn, end: int, chunk: int, answer: Promise[ReadBatch]
    ) -> None:
        """At most `chunk` LSNs that hold something; waits while there is nothing."""
        poll = _Poll(tags, start, end, chunk, answer)
        if not self._serve_one(poll):
            self._polls.append(poll)

    def _serve(self) -> None:
        self._polls = [poll for poll in self._polls if not self._serve_one(poll)]

    def _serve_one(self, poll: _Poll) -> bool:
        if poll.promise.is_done:
            return True
        if poll.start < self.trim_point:
            poll.promise.fail(Trimmed(f"lsn {poll.start} is below {self.trim_point}"))
            return True
        stop = min(poll.end, len(self.entries))
        found: list[Entry] = []
        looked = poll.start
        for lsn in range(poll.start, stop):
            if len(found) == poll.chunk:
                break
            entry = self.entries[lsn]
            if not poll.tags.isdisjoint(entry.tags):
                found.append(entry)
            looked = Lsn(lsn + 1)
        if not found and looked < poll.end:
            # The next look starts where this one ended: it says so when something comes.
            return False
        poll.promise.keep(ReadBatch(found, looked))
        return True

    def look(self, tags: frozenset[str], start: Lsn) -> Lsn:
        """How far a reader that has nothing to read has looked."""
        for lsn in range(start, len(self.entries)):
            if not tags.isdisjoint(self.entries[lsn].tags):
                return Lsn(lsn)
        return Lsn(max(start, len(self.entries)))

    def read(self, tags: frozenset[str], start: int, end: int) -> list[Entry]:
        if start < self.trim_point:
            raise Trimmed(f"lsn {start} is below {self.trim_point}")
        return [one for one in self.entries[start:end] if not tags.isdisjoint(one.tags)]

    def read_last(self, tag: str) -> Entry | None:
        for lsn in range(len(self.entries) - 1, self.trim_point - 1, -1):
            if tag in self.entries[lsn].tags:
                return self.entries[lsn]
        return None

    def bounds(self) -> Bounds:
        return Bounds(self.trim_point, self.tail)

    def trim(self, lsn: Lsn) -> Lsn:
        self.trim_point = Lsn(max(self.trim_point, min(lsn, self.tail)))
        return self.trim_point

    # -- faults

    def restart(self, *, keeps: float, away_us: int) -> None:
        """Die now; of the write in flight the first groups were durable, or all, or none."""
        if not self.is_up:
            return
        self.is_up = False
        self._life += 1
        for flight in self._sequencer._in_flight:
            self._keep(flight.groups[: round(len(flight.groups) * keeps)])
        self._polls.clear()
        self._loop.after(away_us, self._come_back)

    def _come_back(self) -> None:
        self._loop.note(f"log is back at {self.tail}")
        self._sequencer = Sequencer(self._durable.copy(), limits=_NO_ROLL)
        self.is_up = True
