"""One target of a host, for whichever players connect: a thread, and what waits for it.

Owns the thread, and who has the target's seat (seat.py). All that is asked of a target is put in
one line and done there, in order, so nothing is decided twice or at the same time; a target may
block for as long as it likes, and only its own line waits. Law: of what was asked by somebody who
has gone, nothing is done but what was begun.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final, Protocol, assert_never

import pyarrow as pa

from penstock.delivery.api import Batch, Shard, Target
from penstock.delivery.messages import Ack, At, Failure, FromTarget
from penstock.delivery.remote.row_parts import decode_rows
from penstock.delivery.remote.seat import Seat, check_seat, loss_of_seat
from penstock.errors import PenstockError, Unavailable
from penstock.ids import Lsn
from penstock.log.group_format import Buffer
from penstock.plain_text import plain_line

logger = logging.getLogger(__name__)

#: Of what a target says when it fails; it travels to the player.
ERROR_TEXT_MAX: Final = 2_000


class Asker(Protocol):
    """A player's connection, as targets see it. Both are called from threads of targets."""

    @property
    def is_gone(self) -> bool: ...

    def answer(self, answer: FromTarget | None, size: int) -> None:
        """`shard` of the answer is the target's number; None: there is none.

        What was asked, of `size` bytes, is not held any more.
        """


@dataclass(frozen=True, slots=True)
class Open:
    asker: Asker
    connection: int
    term: int
    shard: Shard
    #: A batch of the stream without rows.
    empty: pa.RecordBatch
    #: What it counts for, while it waits; so with the others.
    size: int = 0

    @property
    def seat(self) -> Seat:
        return Seat(self.shard.delivery, self.shard.index, self.term, self.connection)


@dataclass(frozen=True, slots=True)
class ApplyRows:
    asker: Asker
    connection: int
    after: Lsn
    upto: Lsn
    parts: Sequence[Buffer]
    size: int


@dataclass(frozen=True, slots=True)
class Close:
    """Let go of an opening; without a connection: of whichever the asker has."""

    asker: Asker
    connection: int | None = None
    size: int = 0


Job = Open | ApplyRows | Close


class ServedTarget:
    """See the module's docstring. `put` may be called from any thread."""

    def __init__(self, number: int, target: Target) -> None:
        self._number = number
        self._target = target
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        #: The opening that has the seat; None: the target is not open.
        self._held: Open | None = None
        self.is_ending = False
        self._thread = threading.Thread(
            target=self._run, name=f"penstock-target-{number}", daemon=True
        )
        self._thread.start()

    def put(self, job: Job) -> None:
        self._jobs.put(job)

    def shut_down(self) -> None:
        """After what it is at work on. Nobody need wait for it."""
        self.is_ending = True
        self._jobs.put(None)

    def join(self, seconds: float) -> bool:
        """Whether it has ended within that time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # ---- in the thread

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            answer = None
            try:
                answer = self._do(job)
            except BaseException as error:
                # Whatever a target raises is its own affair: the player decides.
                logger.debug("target=%d failed", self._number, exc_info=True)
                self._let_go(job)
                answer = Failure(self._number, job.connection or 0, told(error))
            job.asker.answer(answer, job.size)
            del job, answer  # or rows would be held until the next come
        self._close()

    def _do(self, job: Job) -> FromTarget | None:
        match job:
            case Close():
                self._let_go(job)
                return None
            case _ if job.asker.is_gone or self.is_ending:
                return None
            case Open():
                return self._open(job)
            case ApplyRows():
                return self._apply(job)
        assert_never(job)

    def _open(self, job: Open) -> At:
        held = self._held
        if held is not None:
            check_seat(held.seat, job.seat, is_connected=not held.asker.is_gone)
            loss = loss_of_seat(held.seat, job.seat)
            held.asker.answer(Failure(self._number, held.connection, loss), 0)
            self._close()
        try:
            position = self._target.open(job.shard, job.term)
        except BaseException:
            self._close()
            raise
        self._held = job
        return At(self._number, job.connection, position)

    def _apply(self, job: ApplyRows) -> Ack | None:
        held = self._held
        if held is None or (held.asker, held.connection) != (job.asker, job.connection):
            return None  # it failed on this connection, or lost its seat, and was told so
        rows = decode_rows(job.parts, held.empty)
        position = self._target.apply(Batch(held.term, job.after, job.upto, rows))
        return Ack(self._number, job.connection, position)

    def _let_go(self, job: Job) -> None:
        """Of the asker's opening, if it has the seat."""
        held = self._held
        if held is None or held.asker is not job.asker:
            return
        if job.connection in (None, held.connection):
            self._close()

    def _close(self) -> None:
        self._held = None
        try:
            self._target.close()
        except Exception:
            logger.warning("target=%d: close failed", self._number, exc_info=True)


def told(error: BaseException) -> PenstockError:
    """As it can travel: what is none of ours is told in words, and asks to try again."""
    if isinstance(error, PenstockError):
        return error
    return Unavailable(f"{type(error).__name__}: {plain_line(str(error))[:ERROR_TEXT_MAX]}")
