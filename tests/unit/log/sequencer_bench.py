"""A sequencer on a bench: causes are counted, `check()` runs after each event."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import PenstockError
from penstock.log.core.sequencer import Answer, SegmentLimits, Sequencer, Write
from penstock.log.core.state import LogState
from penstock.log.group_format import Body
from penstock.log.records import IMMEDIATE, Flush, Guard

WIDE = SegmentLimits(bytes=2**30, ms=2**40)


class Bench:
    """A sequencer whose causes are counted and whose invariants are checked after each event."""

    def __init__(self, *, limits: SegmentLimits = WIDE, write_bytes_max: int = 2**20) -> None:
        self.core = Sequencer(LogState(), limits=limits, write_bytes_max=write_bytes_max)
        self.now_ms = 1000
        self.causes = 0

    def append(
        self, body: Body, *, guards: Sequence[Guard] = (), flush: Flush = IMMEDIATE
    ) -> list[Answer]:
        """Answers that are ready at once; the cause is the number of the call."""
        self.core.append(self.causes, body, guards=guards, flush=flush, now_ms=self.now_ms)
        self.causes += 1
        self.core.check()
        return self.core.take_answers()

    def take(self) -> Write | None:
        write = self.core.take_write(self.now_ms)
        self.core.check()
        return write

    def finish(self, write: Write) -> list[Answer]:
        self.core.written(write)
        self.core.check()
        return self.core.take_answers()

    def settle(self) -> list[Answer]:
        """Perform every write that is due."""
        answers = []
        while (write := self.take()) is not None:
            answers += self.finish(write)
        return answers + self.core.take_answers()

    def outcome(self, body: Body, *, guards: Sequence[Guard] = ()) -> object:
        """Append and make durable: the answer, with errors as their class."""
        answers = self.append(body, guards=guards) + self.settle()
        outcome = answers[-1].outcome
        return type(outcome) if isinstance(outcome, PenstockError) else outcome
