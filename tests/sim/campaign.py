"""Campaigns: the worlds of many seeds, one after the other, and what happened in all of them.

Fixed seeds on every run, fresh ones in long runs. A failure names its seed and the one command that
repeats it. What a campaign never met was not tested: a fault or event that did not occur fails it
too. `PENSTOCK_SIM_SEEDS=5000` looks further, `PENSTOCK_SIM_FIRST=n` elsewhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pytest
from harness.soak import SOAK_SECONDS
from simulation.kernel import Scheduler

#: After so many failures a campaign has said enough.
FAILURES_MAX = 3
#: Seconds of the clock for any test, and for every seed: about three times what a seed needs of a
#: processor, for machines on which more is at work than they have processors.
_TEST_SECONDS = 300
_SEED_SECONDS = 1.5
_TRACE_LINES = 40
#: So many worlds of a campaign are compared with the same worlds elsewhere.
_TRACES = 10


class SimulatedWorld(Protocol):
    """Any simulator's world of one seed."""

    seed: int
    counts: Counter[str]
    scheduler: Scheduler
    swarm: Any

    def run(self) -> None:
        """Raises what it finds."""


W = TypeVar("W", bound=SimulatedWorld)


@dataclass
class Campaign(Generic[W]):
    """The worlds of one simulator or protocol."""

    name: str
    make: Callable[[int], W]
    #: The file with its test, and what else pytest is told to repeat that.
    test: str
    #: Is shown every world when it has ended.
    look: Callable[[W], None] = lambda world: None
    counts: Counter[str] = field(default_factory=Counter)
    first: int = 0
    seeds: int = 0
    steps: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    #: By seed, of the first seeds: what tells a world apart from all others.
    traces: dict[int, str] = field(default_factory=dict)

    def run(self, seeds: Iterable[int], seconds: float = 1e9) -> None:
        """Until the seeds or the time or the patience run out."""
        started = time.monotonic()
        for seed in seeds:
            self._run_one(self.make(seed))
            self.seconds = time.monotonic() - started
            if len(self.failures) == FAILURES_MAX or self.seconds > seconds:
                break

    def _run_one(self, world: W) -> None:
        try:
            world.run()
        except Exception as error:
            self.failures.append(self._story(world, error))
        self.look(world)
        self.counts += world.counts
        self.first = self.first if self.seeds else world.seed
        self.seeds += 1
        self.steps += world.scheduler.steps
        if len(self.traces) < _TRACES:
            self.traces[world.seed] = _told_apart(world)

    def trace(self, seed: int) -> str:
        """Of a world that has run; or else it runs now."""
        return self.traces.get(seed) or trace_of(self.make(seed))

    def _story(self, world: W, error: Exception) -> str:
        """Everything that is needed to look at a failure."""
        seed, scheduler = world.seed, world.scheduler
        lines = "\n  ".join(scheduler.trace_lines(_TRACE_LINES))
        return (
            f"{self.name}, seed {seed}: {type(error).__name__}: {error}\n"
            f"repeat with: PENSTOCK_SIM_FIRST={seed} PENSTOCK_SIM_SEEDS=1 "
            f"pytest tests/sim/{self.test}\n"
            f"swarm: {world.swarm}\nlast of {len(scheduler.trace)} trace lines:\n  {lines}"
        )

    def run_fresh(self, capsys: pytest.CaptureFixture[str], seconds: float = SOAK_SECONDS) -> None:
        """Seeds that nobody has seen; fails if a law is broken."""
        first = int.from_bytes(os.urandom(4), "little")
        self.run(range(first, first + 10**9), seconds)
        self.check(capsys)

    def check(self, capsys: pytest.CaptureFixture[str]) -> None:
        """No law was broken under any seed."""
        with capsys.disabled():
            print(
                f"\n{self.name}: {self.seeds} seeds from {self.first}, "
                f"{self.steps} steps in {self.seconds:.0f} s"
            )
        assert self.seeds > 0
        assert not self.failures, "\n\n".join(self.failures)


def fixed_seeds(count: int, first: int = 0) -> range:
    """The seeds of every run, unless somebody asks for others."""
    first = int(os.environ.get("PENSTOCK_SIM_FIRST", first))
    return range(first, first + int(os.environ.get("PENSTOCK_SIM_SEEDS", count)))


def time_for(seeds: Sequence[int]) -> pytest.MarkDecorator:
    """A limit for tests that run so many seeds."""
    return pytest.mark.timeout(_TEST_SECONDS + _SEED_SECONDS * len(seeds))


def only_with(count: int, seeds: Sequence[int]) -> pytest.MarkDecorator:
    """For what fewer seeds say nothing about: a few are a repetition of something."""
    return pytest.mark.skipif(len(seeds) < count, reason="a few seeds cannot meet everything")


def absent(wanted: Iterable[str], counts: Counter[str]) -> list[str]:
    """What should have happened and did not."""
    return [what for what in wanted if not counts[what]]


def check_traces(imports: str, trace: str, seeds: int, here: Sequence[str] = ()) -> list[str]:
    """I21: `trace`, an expression of a seed, is the same in other processes with other hash seeds:
    no order of a set or dict leaks into what happens. `here`: what it was in this process, which
    is then one of two. Returns the traces."""
    room = "from harness.rooms import use_asked_room\nuse_asked_room()"
    program = f"{room}\n{imports}\nfor seed in range({seeds}): print({trace})"
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    others = [hash_seed for hash_seed in "12" if hash_seed != os.environ.get("PYTHONHASHSEED")]
    outputs = ["".join(f"{trace}\n" for trace in here)] if here else []
    outputs += [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,  # what it complains of is shown with the test
            check=True,
            text=True,
        ).stdout
        for hash_seed in (others[:1] if here else "12")
    ]

    assert outputs[0] == outputs[1]
    traces = outputs[0].splitlines()
    assert len(set(traces)) == len(traces) == seeds
    return traces


def check_world_traces(world: type, seeds: int, here: Sequence[str] = ()) -> None:
    imports = f"from campaign import trace_of\nfrom {world.__module__} import {world.__name__}"
    check_traces(imports, f"trace_of({world.__name__}(seed))", seeds, here)


def trace_of(world: SimulatedWorld) -> str:
    """Runs a world, and tells its trace apart from all others."""
    world.run()
    return _told_apart(world)


def _told_apart(world: SimulatedWorld) -> str:
    return f"{world.scheduler.trace_hash} {world.scheduler.steps}"
