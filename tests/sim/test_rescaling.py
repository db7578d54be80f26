"""Rescaling under simulated faults: tasks are split and merged while everything else breaks.

The worlds of test_exactly_once.py, with somebody who wants another number of workers again and
again, as do drivers that are started anew: workers, drivers and the log die at every step of a cut
and of a change of the layout (protocol P7). Judged by lineage: positions of a virtual node are
contiguous over the tasks that had it (I13), a successor begins with the fold of its predecessors'
input (I11), nothing that it needs is trimmed (I15), time does not go back (I18).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from campaign import Campaign, absent, fixed_seeds, only_with, time_for
from simulation.pipeline.laws import Evidence, check_all
from simulation.pipeline.lineage import count_layouts
from simulation.pipeline.spark import SimDriver
from simulation.pipeline.swarm import Fault, Swarm
from simulation.pipeline.world import LIVENESS_SECONDS_MAX, PipelineWorld

from penstock.protocol.markers import Origin
from penstock.runtime import inheritance
from penstock.runtime.spec import QuerySpec, rescaled_tasks

#: In every run; long ones have fresh seeds.
FIXED_SEEDS = 6
SEEDS = fixed_seeds(FIXED_SEEDS)
EVENTS = (
    "fault rescale", "layout changed", "stage split", "stage merged", "stage set apart",
    "instance fenced", "successor taken",
)  # fmt: skip


def make_world(seed: int) -> PipelineWorld:
    """Every third one has stages that run together, every second one copies."""
    swarm = PipelineWorld(seed).swarm
    faults = {**swarm.mean_ms, Fault.RESCALE: 150 + 50 * (seed % 4)}
    keyed = seed % 3 == 0
    changed = replace(
        swarm,
        mean_ms=faults,
        keyed=keyed,
        lanes=4 if keyed else swarm.lanes,
        replicas=seed % 2,
    )
    return PipelineWorld(seed, swarm=changed)


def new_campaign() -> Campaign[PipelineWorld]:
    return Campaign("rescaling", make_world, "test_rescaling.py")


@pytest.fixture(scope="module")
def campaign() -> Campaign[PipelineWorld]:
    campaign = new_campaign()
    campaign.run(SEEDS)
    return campaign


@time_for(SEEDS)
def test_no_law_is_broken_under_any_of_the_fixed_seeds(
    campaign: Campaign[PipelineWorld], capsys: pytest.CaptureFixture[str]
) -> None:
    campaign.check(capsys)


@time_for(SEEDS)
@only_with(FIXED_SEEDS, SEEDS)
def test_every_event_occurred(campaign: Campaign[PipelineWorld]) -> None:
    assert absent(EVENTS, campaign.counts) == []


def test_the_log_may_be_trimmed_as_a_successor_begins() -> None:
    """It reads from the trim point on, which has moved when its reader begins."""
    make_world(1596962931).run()


def when_rescaled(driver: SimDriver, workers: int) -> Callable[[], bool]:
    """Whether all tasks run that so many workers should have; asked after every step."""
    wanted: dict[int, bool] = {}  # by the version of the layout: a plan is walked once for each

    def is_rescaled() -> bool:
        if not driver.is_started or not driver.coordinator.core.is_settled:
            return False
        spec = driver.coordinator.spec
        version = spec.layout.version
        if version not in wanted:
            wanted[version] = rescaled_tasks(spec, workers) == spec.tasks
        return wanted[version]

    return is_rescaled


def crash(
    victim: str, workers: int, ms: float, *, lanes: int = 4, replicas: int = 0
) -> PipelineWorld:
    """A query of two workers gets another number, and so long after that somebody dies."""
    swarm = Swarm(
        entries=16, safety_ms=200, lanes=lanes, replicas=replicas, shape="window",
        mean_ms={Fault.RESCALE: 10**9},
    )  # fmt: skip
    world = PipelineWorld(3, swarm=swarm)
    with world.open():
        world.populate()
        world.run_for(0.12)
        driver = world.drivers[0]
        driver.process.spawn(driver.rescale(workers))
        world.run_for(ms / 1000)
        match victim:
            case "driver":
                world.kill(driver.process)
            case "log":
                world.log.restart(0.005)
            case _:
                world.kill(driver.workers[int(victim)].process)
        world.heal()
        heir = world.running_driver()
        wanted = workers if heir is driver else heir.wanted
        world.run_until(when_rescaled(heir, wanted), LIVENESS_SECONDS_MAX)
        world.catch_up()
        world.stop()
        evidence = Evidence(world)
        for what in count_layouts(evidence):
            world.count(what)
        check_all(world, evidence)
    return world


#: Until copies are there, and from then until successors run: the layout changes at 106 to 110.
STEPS = (*range(0, 54, 9), *range(54, 128, 4))


def die_at(steps: Sequence[int], victim: str, workers: int) -> None:
    worlds = [crash(victim, workers, ms) for ms in steps]
    changed = [world.counts["layout changed"] for world in worlds]
    if victim != "driver":
        assert {*changed} == {1}
    else:  # the next one finds the old layout, or the new one; and wants two workers again
        assert min(changed) == 0 and max(changed) == 2
    assert sum(world.counts["successor taken"] for world in worlds) > len(worlds)


VICTIMS = ("driver", "log", "0", "1")
all_victims = pytest.mark.parametrize("victim", VICTIMS)
both_ways = pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.soak), 3])


@both_ways
@all_victims
def test_whoever_dies_at_a_step_of_it_the_query_goes_on(victim: str, workers: int) -> None:
    """Each victim at every fourth step, and somebody at each of them."""
    die_at(STEPS[VICTIMS.index(victim) :: len(VICTIMS)], victim, workers)


@pytest.mark.soak
@both_ways
@all_victims
def test_whoever_dies_at_any_step_of_it_the_query_goes_on(victim: str, workers: int) -> None:
    """While copies are made, and every third of a commit from before the first cut on."""
    die_at(STEPS, victim, workers)


@pytest.mark.parametrize(
    "steps", [range(9, 120, 18), pytest.param(range(9, 120, 6), marks=pytest.mark.soak)]
)
def test_a_worker_that_came_for_it_may_die_at_any_step(steps: range) -> None:
    worlds = [crash("2", 3, ms) for ms in steps]
    assert {world.counts["layout changed"] for world in worlds} == {1}
    taken = [world.counts["successor taken"] for world in worlds]
    assert max(taken) == 6 and min(taken) < 6, "at some step it has the only copies of two"


@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("victim", ["0", "1"])
def test_whoever_dies_the_tasks_of_a_stage_that_stays_go_on(victim: str, replicas: int) -> None:
    """Its source has two lanes, so that there are no more tasks to read it. One dies at the steps
    at which the other does not."""
    steps = range(20, 120, 18)[int(victim) :: 2]
    stays_whoever_dies_at(steps, victim, replicas)


@pytest.mark.soak
@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("victim", ["0", "1"])
def test_whoever_dies_at_any_step_the_tasks_of_a_stage_that_stays_go_on(
    victim: str, replicas: int
) -> None:
    stays_whoever_dies_at(range(20, 120, 18), victim, replicas)


def stays_whoever_dies_at(steps: Sequence[int], victim: str, replicas: int) -> None:
    worlds = [crash(victim, 3, ms, lanes=2, replicas=replicas) for ms in steps]
    kept = [world.counts["stage kept"] for world in worlds]
    assert kept == [world.counts["stage split"] for world in worlds]
    assert sum(kept) == len(worlds)


def test_however_often_it_was_rescaled_an_heir_builds_each_ancestor_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A small state never gets a checkpoint; and there are more ways to an ancestor each time."""
    built: list[str] = []
    original = inheritance.Predecessor.__init__

    def init(self: Any, spec: QuerySpec, origin: Origin, *given: Any) -> None:
        built.append(origin.task)
        original(self, spec, origin, *given)

    monkeypatch.setattr(inheritance.Predecessor, "__init__", init)
    swarm = Swarm(
        entries=16, safety_ms=200, lanes=6, shape="count", checkpoints=False,
        mean_ms={Fault.RESCALE: 10**9},
    )  # fmt: skip
    world = PipelineWorld(3, swarm=swarm)
    with world.open():
        world.populate()
        world.run_for(0.12)
        driver = world.drivers[0]
        for round in range(4):
            built.clear()
            driver.process.spawn(driver.rescale(3 - round % 2))
            world.run_for(0.6)
        assert {built.count(task) for task in built} == {2}, "two tasks have come of all of them"
        world.heal()
        world.catch_up()
        world.stop()
        check_all(world)


@pytest.mark.soak
def test_no_law_is_broken_under_fresh_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    new_campaign().run_fresh(capsys)
