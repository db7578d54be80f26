"""Queries that are scaled to zero and back, while everything else breaks.

A suspended query holds no worker and writes nothing, whoever died on the way; it goes on with its
state when it gets workers again, the same number or another. A driver that is started anew runs it
with the workers that its start says. Judged as all worlds are: nothing is lost or done twice.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from campaign import Campaign, absent, fixed_seeds, only_with, time_for
from pipeline_mutants import Mutant
from simulation.checkers.evidence import Violation
from simulation.pipeline.laws import Evidence, check_all
from simulation.pipeline.swarm import Fault, Swarm
from simulation.pipeline.world import LIVENESS_SECONDS_MAX, PipelineWorld
from test_rescaling import when_rescaled

from penstock.log.records import Kind
from penstock.protocol.names import TaskId
from penstock.runtime.balancing import GIVEN_UP
from penstock.runtime.control import Hello
from penstock.runtime.coordinator import Coordinator
from penstock.runtime.coordinator_core import CoordinatorCore, Effect, Member
from penstock.state.keys import VIRTUAL_NODES

FIXED_SEEDS = 6
SEEDS = fixed_seeds(FIXED_SEEDS)
EVENTS = ("fault suspend", "suspended", "layout changed")


def make_world(seed: int) -> PipelineWorld:
    """Every second one has copies."""
    swarm = PipelineWorld(seed).swarm
    faults = {**swarm.mean_ms, Fault.SUSPEND: 200 + 50 * (seed % 4)}
    return PipelineWorld(seed, swarm=replace(swarm, mean_ms=faults, replicas=seed % 2))


def new_campaign() -> Campaign[PipelineWorld]:
    return Campaign("suspended", make_world, "test_suspended.py")


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


def written(world: PipelineWorld) -> int:
    """Markers of tasks in the log."""
    return sum(entry.kind is Kind.MARKER for entry in world.log.entries)


def suspend(victim: str, ms: float, *, workers: int = 2, replicas: int = 0) -> PipelineWorld:
    """Two workers, none, and then so many; somebody dies so long after there should be none."""
    swarm = Swarm(
        entries=16, safety_ms=200, lanes=4, replicas=replicas, shape="window",
        mean_ms={Fault.RESCALE: 10**9},
    )  # fmt: skip
    world = PipelineWorld(3, swarm=swarm)
    with world.open():
        world.populate()
        world.run_for(0.12)
        driver = world.drivers[0]
        if victim == "newcomer":  # dies before, and the next one is on its way
            world.kill(driver.workers[0].process)
            world.run_for(ms / 1000)
        driver.process.spawn(driver.rescale(0))
        world.run_for(ms / 1000)
        match victim:
            case "driver":
                world.kill(driver.process)
            case "log":
                world.log.restart(0.005)
            case "0" | "1":
                world.kill(driver.workers[int(victim)].process)
            case _:
                pass
        world.heal()
        heir = world.running_driver()
        if heir is driver:
            core = driver.coordinator.core
            world.run_until(
                lambda: (
                    core.is_suspended
                    and not core.members
                    and all(one.process.dead for one in driver.workers.values())
                ),
                LIVENESS_SECONDS_MAX,
            )
            before = written(world)
            world.run_for(0.2)
            if written(world) != before or core.members:
                raise Violation("suspended", "a query without workers has written something")
            world.count("suspended")
            driver.process.spawn(driver.rescale(workers))
        world.run_until(when_rescaled(heir, heir.wanted or workers), LIVENESS_SECONDS_MAX)
        world.catch_up()
        world.stop()
        check_all(world, Evidence(world))
    return world


STEPS = range(0, 60, 6)
VICTIMS = ("driver", "log", "0", "1", "newcomer")


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("victim", VICTIMS)
def test_whoever_dies_at_a_step_of_it_the_query_comes_back(victim: str, workers: int) -> None:
    """Each victim at every fifth step, and somebody at each of them."""
    for ms in STEPS[VICTIMS.index(victim) :: len(VICTIMS)]:
        world = suspend(victim, ms, workers=workers, replicas=int(workers > 1))
        assert world.counts["suspended"] == (victim != "driver")


@pytest.mark.soak
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("victim", VICTIMS)
def test_whoever_dies_at_any_step_of_it_the_query_comes_back(victim: str, workers: int) -> None:
    for ms in STEPS:
        suspend(victim, ms, workers=workers, replicas=int(workers > 1))


def calm_swarm() -> Swarm:
    """Two workers, and nothing that breaks by itself."""
    return Swarm(entries=16, safety_ms=200, lanes=4, shape="window", mean_ms={Fault.RESCALE: 10**9})


def is_cut(world: PipelineWorld) -> bool:
    return any(entry.payload.startswith(b"cut ") for entry in world.log.entries)


def end_all_at_a_cut(ms: float) -> PipelineWorld:
    """All workers die as tasks are cut, just before none is wanted any more, and then three are."""
    world = PipelineWorld(3, swarm=calm_swarm())
    with world.open():
        world.populate()
        world.run_for(0.12)
        driver = world.drivers[0]
        driver.process.spawn(driver.rescale(1))
        world.run_until(lambda: is_cut(world), LIVENESS_SECONDS_MAX)
        world.run_for(ms / 1000)
        for worker in [*driver.workers.values()]:
            world.kill(worker.process)
        driver.process.spawn(driver.rescale(0))
        core = driver.coordinator.core
        world.run_until(lambda: core.is_suspended and not core.members, LIVENESS_SECONDS_MAX)
        before = written(world)
        world.run_for(0.2)
        assert written(world) == before, "a query without workers has written something"
        driver.process.spawn(driver.rescale(3))
        world.run_until(when_rescaled(driver, 3), LIVENESS_SECONDS_MAX)
        world.catch_up()
        world.stop()
        check_all(world, Evidence(world))
    return world


@pytest.mark.parametrize("ms", [0, 2])
def test_it_is_suspended_though_tasks_that_are_cut_have_lost_their_workers(ms: float) -> None:
    end_all_at_a_cut(ms)


def test_virtual_nodes_that_were_to_move_stay_when_it_is_suspended() -> None:
    world = PipelineWorld(3, swarm=calm_swarm())
    with world.open():
        world.populate()
        world.run_for(0.12)
        driver = world.drivers[0]
        coordinator, core = driver.coordinator, driver.coordinator.core
        world.run_until(lambda: core.is_settled, LIVENESS_SECONDS_MAX)

        async def balance_and_suspend() -> None:
            hot = tuple(90.0 if node in (0, 2, 4, 6) else 1.0 for node in range(VIRTUAL_NODES))
            await driver.balance(dict.fromkeys(coordinator.spec.running_stages, hot))
            assert coordinator._tell_more()["balance"]["isUnderWay"]
            await driver.rescale(0)

        driver.process.spawn(balance_and_suspend())
        world.run_until(lambda: core.is_suspended and not core.members, LIVENESS_SECONDS_MAX)
        told = coordinator._tell_more()["balance"]
        assert not told["isUnderWay"] and told["told"] == GIVEN_UP
        driver.process.spawn(driver.rescale(2))
        world.run_until(when_rescaled(driver, 2), LIVENESS_SECONDS_MAX)
        world.catch_up()
        world.stop()
        check_all(world, Evidence(world))


def workers_are_not_told_to_leave(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CoordinatorCore, "_let_go", lambda self: [])


def who_says_hello_to_a_suspended_query_stays(patch: pytest.MonkeyPatch) -> None:
    original = CoordinatorCore._on_hello

    def on_hello(self: CoordinatorCore, hello: Hello) -> list[Effect]:
        self._leaving |= {hello.worker} if self.is_suspended else set()
        return original(self, hello)

    patch.setattr(CoordinatorCore, "_on_hello", on_hello)


def a_task_of_a_suspended_query_keeps_its_place(patch: pytest.MonkeyPatch) -> None:
    """Nobody claims it when the query comes back."""
    original = CoordinatorCore._end

    def end(self: CoordinatorCore, task: TaskId, cause: str) -> list[Effect]:
        place, effects = self.tasks[task].place, original(self, task, cause)
        if self.is_suspended:
            self.tasks[task].place = place
        return effects

    patch.setattr(CoordinatorCore, "_end", end)


def a_suspended_query_gives_work_to_who_comes(patch: pytest.MonkeyPatch) -> None:
    original = CoordinatorCore._staying
    patch.setattr(CoordinatorCore, "suspend", CoordinatorCore.on_pulse)

    def staying(self: CoordinatorCore, wanted: int | None = None) -> list[Member]:
        return original(self, max(1, self.wanted if wanted is None else wanted))

    patch.setattr(CoordinatorCore, "_staying", staying)


def a_cut_waits_for_workers_that_nobody_starts(patch: pytest.MonkeyPatch) -> None:
    async def look(self: Coordinator) -> None:
        """It is suspended when the cut is over."""

    patch.setattr(Coordinator, "_look_at_cut", look)


MUTANTS = [
    Mutant(apply.__name__.replace("_", " "), apply, "marker")
    for apply in (
        workers_are_not_told_to_leave,
        who_says_hello_to_a_suspended_query_stays,
        a_task_of_a_suspended_query_keeps_its_place,
        a_suspended_query_gives_work_to_who_comes,
        a_cut_waits_for_workers_that_nobody_starts,
    )
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_world_catches(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.apply(monkeypatch)
    with pytest.raises((Violation, AssertionError)):
        suspend_at_every_step()


def suspend_at_every_step() -> None:
    end_all_at_a_cut(0)
    for ms in STEPS:
        for victim in ("nobody", "newcomer"):
            suspend(victim, ms)


@pytest.mark.soak
def test_no_law_is_broken_under_fresh_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    new_campaign().run_fresh(capsys)
