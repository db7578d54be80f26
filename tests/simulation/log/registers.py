"""Clients that compare and set: counters that only grow, and locks that are taken and given back.

A counter's values are `n/unique`: in log order, n must count without a gap. A lock goes from absent
to its owner and back to absent, so that a guard that once failed holds again later: a refused
request that arrives a second time would then be let in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import GuardFailed, PenstockError
from penstock.ids import Lsn
from penstock.log.records import Appended, Guard, NewEntry, SetKey, Value
from penstock.wire import messages as m
from simulation.log.appender import Claim, SimAppender
from simulation.log.link import Link
from simulation.log.story import AppendOp, GetOp

if TYPE_CHECKING:
    from simulation.log.world import World

#: Most attempts of one change, so that rivals cannot keep each other going for ever.
_ATTEMPTS_MAX = 40


def get_key(link: Link, key: str, done: Callable[[Value | PenstockError | None], None]) -> None:
    """client.py `get`, with its entry in the story."""
    world = link.world
    op = GetOp(link.name, world.now_us, world.story.known_lsn, key=key)

    def answered(message: m.Message | PenstockError, _: bytes) -> None:
        if isinstance(message, PenstockError):
            done(message)
            return
        assert isinstance(message, m.Metadata)
        op.ended_us = world.now_us
        if message.values:
            value = message.values[0]
            op.found = Value(value.data, Lsn(value.lsn))
            world.story.know(value.lsn + 1)
        world.story.gets.append(op)
        done(op.found)

    link.call(m.GetMetadata(key, True), answered)


class _Register:
    """A client with a producer of its own that changes one key again and again."""

    def __init__(self, world: World, link: Link, *, key: str, operations: int) -> None:
        self._world = world
        self._link = link
        self._key = key
        self._left = operations
        self._attempts = 0
        self._opened = 0
        self._appender: SimAppender | None = None
        self.is_done = False

    def start(self) -> None:
        self._opened += 1
        name = f"anon-{self._link.name}-{self._opened}"
        Claim(self._link, name, retires=True, opened=self._claimed)

    def _claimed(self, result: SimAppender | PenstockError) -> None:
        if isinstance(result, SimAppender):
            self._appender = result
            self._soon()
        else:
            self._world.after(50_000, f"{self._link.name} opens again", self.start)

    def _soon(self) -> None:
        span_us = self._world.swarm.safety_ms * 40
        self._world.after(
            self._world.random.randint(0, span_us), f"{self._link.name} next", self._next
        )

    def _next(self) -> None:
        assert self._appender is not None
        if self._left == 0 or self._attempts >= _ATTEMPTS_MAX:
            self._appender.close(self._closed)
        else:
            self._attempts += 1
            get_key(self._link, self._key, self._found)

    def _closed(self) -> None:
        self.is_done = True

    def _found(self, found: Value | PenstockError | None) -> None:
        if isinstance(found, PenstockError):
            self._soon()
        else:
            self._change(None if found is None else found.data)

    def _change(self, now: bytes | None) -> None:
        raise NotImplementedError

    def _swap(
        self, expected: bytes | None, value: bytes | None, ended: Callable[[AppendOp], None]
    ) -> None:
        """A guarded group of two entries: one that names the attempt, and the change itself."""
        assert self._appender is not None

        def settled(op: AppendOp) -> None:
            if isinstance(op.outcome, PenstockError):
                self._world.count(f"told {type(op.outcome).__name__}")
            ended(op)
            self._after(op)

        proof = NewEntry(f"{self._link.name}/{self._world.unique()}".encode(), ("proof",))
        self._appender.append(
            [proof],
            settled,
            guards=[Guard(self._key, expected)],
            sets=[SetKey(self._key, value)],
            flush_ms=self._world.random.choice((0, 0, 5)),
        )

    def _after(self, op: AppendOp) -> None:
        if isinstance(op.outcome, Appended | GuardFailed):
            self._soon()
            return
        # Unknown: whether it happened is the log's secret; go on with a new producer.
        assert self._appender is not None
        self._link.leave(self._appender)
        self._appender = None
        self._world.after(1000, f"{self._link.name} opens again", self.start)


class Counter(_Register):
    """Adds one, over and over."""

    def _change(self, now: bytes | None) -> None:
        count = 0 if now is None else int(now.split(b"/")[0])
        value = f"{count + 1}/{self._world.unique()}".encode()
        self._swap(now, value, self._ended)

    def _ended(self, op: AppendOp) -> None:
        if isinstance(op.outcome, Appended):
            self._left -= 1


class Lock(_Register):
    """Takes the lock whenever it believes it free, keeps it a while, gives it back."""

    def __init__(self, world: World, link: Link, *, key: str, operations: int) -> None:
        super().__init__(world, link, key=key, operations=operations)
        self._mine: set[bytes] = set()

    def _change(self, now: bytes | None) -> None:
        if now is not None and now in self._mine:
            self._swap(now, None, self._ended)  # also what an unknown outcome left behind
            return
        # Tried even if somebody holds it: it may be free when the request is ordered.
        value = f"{self._link.name}/{self._world.unique()}".encode()
        self._mine.add(value)
        self._swap(None, value, self._ended)

    def _ended(self, op: AppendOp) -> None:
        if isinstance(op.outcome, Appended):
            self._left -= 1
