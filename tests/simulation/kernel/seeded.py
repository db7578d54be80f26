"""What all worlds have: a seed, a scheduler, counts, and faults that strike for a while."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from random import Random
from typing import Generic, TypeVar

from simulation.kernel.scheduler import Scheduler

F = TypeVar("F", bound=StrEnum)


class SeededWorld(ABC, Generic[F]):
    """Everything in it comes from `random`."""

    def __init__(self, seed: int, random: Random) -> None:
        self.seed = seed
        self.random = random
        self.scheduler = Scheduler(random)
        #: What happened, and how often: for campaigns.
        self.counts: Counter[str] = Counter()
        #: Faults still strike.
        self.is_broken = True
        self._unique = 0

    @property
    def now(self) -> float:
        return self.scheduler.now

    @property
    def now_us(self) -> int:
        return int(self.scheduler.now * 1_000_000)

    def note(self, text: str) -> None:
        """One line of the trace."""
        self.scheduler.note(text)

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def unique(self) -> int:
        self._unique += 1
        return self._unique

    @abstractmethod
    def run(self) -> None:
        """Both phases, then the checkers. Raises on any violation."""

    @abstractmethod
    def strike(self, kind: F) -> bool:
        """Let one fault happen; False if there was nothing to break, or it counts by itself."""

    def fault_later(self, kind: F, mean_seconds: float) -> None:
        """Faults of a kind strike again and again, until all is healed."""

        def strike() -> None:
            if self.is_broken:
                if self.strike(kind):
                    self.count(f"fault {kind}")
                self.fault_later(kind, mean_seconds)

        self.scheduler.after(self.random.expovariate(1 / mean_seconds), strike)


@contextmanager
def collected_at_the_end() -> Iterator[None]:
    """Python looks only once for what nobody holds any more: when it lets go of a failed future
    hangs on no clock, and a world does not pay for all that the process has in memory."""
    gc.disable()
    try:
        yield
        gc.collect(0)  # the young ones: all that the world has made
    finally:
        gc.enable()


def draw_kinds(random: Random, kinds: Sequence[F], *, none: float, each: float) -> list[F]:
    """The swarm (Groce et al., ISSTA'12): some worlds have no faults, some one kind, most a random
    subset; what never occurs together in the average world then does in some."""
    drawn = random.random()
    if drawn < none:
        return []
    if drawn < 0.25:
        return [random.choice(kinds)]
    return [kind for kind in kinds if random.random() < each]


def draw_mean(random: Random, bounds: tuple[float, float]) -> float:
    """The mean time between two faults: all orders of magnitude are equally likely."""
    low, high = bounds
    return float(low * (high / low) ** random.random())
