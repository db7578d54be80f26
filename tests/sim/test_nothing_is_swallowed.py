"""Proof that no mistake passes unnoticed: whatever fails in shipped code ends the world.

Shells are made to survive much: they report an error and go on, end one connection, start a task
anew. A simulator that lets them do so for a mistake in their code would pass over it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable
from functools import partial, wraps
from random import Random
from typing import Any

import pytest
from campaign import Campaign
from simulation.cluster.swarm import draw_for
from simulation.cluster.world import ClusterWorld
from simulation.kernel import Process, Scheduler, Unforeseen
from simulation.kernel.shipped import in_this_thread
from simulation.log.world import World
from simulation.pipeline.world import PipelineWorld

from penstock.log.client.appender_core import AppenderCore
from penstock.log.client.client import AsyncLog
from penstock.log.core.sequencer import Sequencer
from penstock.log.core.tails import Tails
from penstock.log.pairing import PairedConnection
from penstock.log.proxy.claims import Claims
from penstock.log.storage.log_storage import LogStorage
from penstock.runtime.checkpointer import Checkpointer
from penstock.runtime.coordinator import Coordinator
from penstock.runtime.coordinator_core import CoordinatorCore
from penstock.runtime.task import Task
from penstock.runtime.worker import Worker


class Planted(AssertionError):
    """A mistake."""


def plant(patch: pytest.MonkeyPatch, place: Any, name: str, call: int) -> list[str]:
    """The n-th call of a function in this thread fails; returns where it is noted that it did."""
    function, left, failed = getattr(place, name), [call], list[str]()

    def count() -> None:
        left[0] -= 1
        if left[0] == 0:
            failed.append(name)
            raise Planted(name)

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def planted(*values: Any, **options: Any) -> Any:
            count()
            return await function(*values, **options)

    else:

        @wraps(function)
        def planted(*values: Any, **options: Any) -> Any:
            count()
            return function(*values, **options)

    patch.setattr(place, name, in_this_thread(planted, function))
    return failed


def cluster(seed: int) -> ClusterWorld:
    return ClusterWorld(seed, swarm=draw_for("P4", Random(f"P4/{seed}")))


aligned = partial(PipelineWorld, protocol="aligned")

MISTAKES: list[tuple[Callable[[int], Any], int, Any, str, int]] = [
    (World, 5, AsyncLog, "_keep_connected", 3),
    (World, 5, AsyncLog, "_until_ended", 9),
    (World, 5, AsyncLog, "_check_identity", 9),
    (World, 5, PairedConnection, "connection_made", 9),
    (World, 5, LogStorage, "finish_sealed", 2),
    (PipelineWorld, 4, Checkpointer, "write", 2),
    (PipelineWorld, 4, Checkpointer, "_make", 1),
    (PipelineWorld, 1, Task, "_fetch", 1),
    (PipelineWorld, 1, Coordinator, "_hear", 9),
    (PipelineWorld, 1, Worker, "_gather_reports", 9),
    # What the cores say of themselves is asked for.
    (World, 5, Sequencer, "check", 9),
    (World, 5, Tails, "check", 9),
    (World, 1, AppenderCore, "check", 9),
    (cluster, 1, AppenderCore, "check", 9),
    (cluster, 1, Claims, "check", 1),
    (PipelineWorld, 1, CoordinatorCore, "check", 9),
]


@pytest.mark.parametrize(
    ("world", "seed", "place", "name", "call"),
    MISTAKES,
    ids=[f"{place.__name__}.{name}" for _, _, place, name, _ in MISTAKES],
)
def test_a_mistake_in_shipped_code_ends_the_world(
    world: Callable[[int], Any],
    seed: int,
    place: Any,
    name: str,
    call: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = plant(monkeypatch, place, name, call)

    with pytest.raises(Exception):  # noqa: B017
        world(seed).run()

    assert failed == [name]


# ---- the kernel


async def fail() -> None:
    raise OSError("a fault")


async def make_a_mistake() -> None:
    raise Planted


@pytest.fixture
def process() -> Process:
    return Scheduler(Random(0)).process("p")


def test_a_task_that_failed_while_nobody_looked_ends_the_world(process: Process) -> None:
    task = process.create_task(fail())  # somebody holds it, and never asks
    process.scheduler.run_for(1.0)

    with pytest.raises(Unforeseen, match="a fault"):
        process.scheduler.check()
    assert task.done()


def test_a_task_that_failed_is_found_when_its_process_is_killed(process: Process) -> None:
    task = process.create_task(fail())
    process.scheduler.run_for(1.0)
    process.scheduler.after(0.5, process.kill)

    with pytest.raises(Unforeseen, match="a fault"):
        process.scheduler.run_for(1.0)
    assert task.done()


def test_a_task_whose_failure_was_foreseen_does_not_end_the_world(process: Process) -> None:
    task = process.create_task(fail())
    process.scheduler.run_until(task.done, seconds=1.0)
    with pytest.raises(OSError):
        task.result()

    process.scheduler.check()


def test_a_task_whose_siblings_have_not_ended_will_be_looked_at(process: Process) -> None:
    async def gather() -> None:
        await asyncio.gather(fail(), asyncio.sleep(10), return_exceptions=True)

    process.spawn(gather())
    process.scheduler.run_for(1.0)
    process.scheduler.check()


def test_a_mistake_ends_the_world_although_somebody_waits_for_it(process: Process) -> None:
    async def survive() -> None:
        await asyncio.gather(make_a_mistake(), return_exceptions=True)

    process.spawn(survive())

    with pytest.raises(Unforeseen, match="Planted"):
        process.scheduler.run_for(1.0)


def test_a_task_that_gives_up_by_itself_ends_the_world(process: Process) -> None:
    """Somebody below it was cancelled, and it took that for its own cancellation."""

    async def wait_for_what_is_cancelled() -> None:
        future = process.create_future()
        process.call_later(0.1, future.cancel)
        await future

    process.spawn(wait_for_what_is_cancelled())

    with pytest.raises(Unforeseen, match="nobody had asked"):
        process.scheduler.run_for(1.0)


def test_a_task_that_is_cancelled_ends_like_any_other(process: Process) -> None:
    task = process.spawn(asyncio.sleep(10.0))
    process.scheduler.after(0.1, task.cancel)
    process.scheduler.run_for(1.0)

    process.scheduler.check()
    assert task.cancelled()


# ---- campaigns


class BadWorld:
    """One of its seeds is bad."""

    swarm = None

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.counts = Counter(["seen"])
        self.scheduler = Scheduler()

    def run(self) -> None:
        self.scheduler.note("something happens")
        if self.seed == 3:
            raise Planted


def test_a_campaign_fails_with_any_of_its_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    campaign = Campaign("bad", BadWorld, "test_bad.py")
    campaign.run(range(5))

    assert campaign.seeds == campaign.counts["seen"] == 5
    with pytest.raises(AssertionError, match=r"PENSTOCK_SIM_FIRST=3 .* tests/sim/test_bad.py"):
        campaign.check(capsys)


def test_a_campaign_without_seeds_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    campaign = Campaign("none", BadWorld, "test_bad.py")
    campaign.run([])

    with pytest.raises(AssertionError):
        campaign.check(capsys)
