"""The engine's laws under any schedule: what comes out is what the driver computes, once.

Several task cores over a list that stands for the log; steps, commits, deaths and lost commits come
in any order. The oracle is ops/driver.py, which knows neither log nor markers.
"""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from engine_samples import (
    Wired,
    count_by,
    finals,
    join,
    pairs,
    plain,
    scan,
    spec_of,
    timed,
    times,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.log.client import packing
from penstock.ops.driver import Driver
from penstock.plan import nodes as n
from penstock.protocol.names import TaskId
from penstock.runtime import outputs, task_core
from penstock.runtime.control import Assign, Beat, Ended, Goodbye, Hello
from penstock.runtime.coordinator_core import (
    PULSES_GATHERING,
    PULSES_LONG,
    Announce,
    Claim,
    CoordinatorCore,
    Effect,
    Fail,
)
from penstock.runtime.spec import QuerySpec

KEYS = st.integers(0, 5)
PAIRS = st.lists(st.tuples(KEYS, st.integers(0, 3)), min_size=1, max_size=5)


def counted() -> n.Node:
    """Three stages, the last over rows that are taken back: how many keys have each count."""
    return count_by(count_by(scan("a"), 0), 1, id=95)


def joined() -> n.Node:
    return join(scan("a"), scan("b", id=11))


def timed_counts() -> n.Node:
    return finals(timed("a", delay_ms=2_000))


SHAPES = {"counted": counted, "joined": joined, "timed_counts": timed_counts}
#: (task, what happens): the task takes in, commits, commits and dies, dies, or dies with a commit
#: that was captured and never appended.
STEPS = st.lists(
    st.tuples(
        st.integers(0, 20), st.sampled_from(["take", "take", "commit", "commit", "die", "lose"])
    ),
    max_size=40,
)


@st.composite
def inputs(draw: st.DrawFn, shape: str) -> list[tuple[str, pa.RecordBatch]]:
    streams = ("a", "b") if shape == "joined" else ("a",)
    found = []
    for _ in range(draw(st.integers(1, 6))):
        stream = draw(st.sampled_from(streams))
        if shape == "timed_counts":
            # Never late: how late a row is may depend on how entries are joined into batches.
            seconds = draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
            found.append((stream, times(*(len(found) + second for second in seconds))))
        else:
            found.append((stream, pairs(*draw(PAIRS))))
    return found


def spec_for(shape: str, tasks: int) -> QuerySpec:
    root = SHAPES[shape]()
    mode: n.Mode = "update" if shape == "counted" else "append"
    if shape == "timed_counts":
        return spec_of(root, mode=mode, tasks=(1, tasks))
    return spec_of(root, mode=mode, tasks=tasks)


def run(wired: Wired, steps: list[tuple[int, str]]) -> None:
    everyone = list(wired.cores)
    for number, what in steps:
        task = everyone[number % len(everyone)]
        match what:
            case "take":
                wired.take(task)
            case "commit":
                wired.commit(task)
            case "die":
                wired.start(task)
            case "lose":
                wired.cores[task].take_commit()
                wired.start(task)


def check_markers(wired: Wired) -> None:
    """I9: numbers without a gap, positions and time that never go back."""
    for task in wired.spec.task_ids:
        markers = wired.markers(task)
        assert [marker.number for marker in markers] == list(range(len(markers)))
        for one, two in pairwise(markers):
            assert one.position <= two.position
            assert one.instance <= two.instance
            assert one.rows_in <= two.rows_in and one.rows_out <= two.rows_out
            if one.watermark_ms is not None:
                assert two.watermark_ms is not None and one.watermark_ms <= two.watermark_ms


@pytest.mark.parametrize("small", [False, True], ids=["one group", "many groups"])
@pytest.mark.parametrize("shape", list(SHAPES))
@given(data=st.data())
@settings(max_examples=25)
def test_any_schedule_with_deaths_gives_what_the_driver_gives(
    shape: str, small: bool, data: st.DataObject
) -> None:
    spec = spec_for(shape, data.draw(st.integers(1, 3), "tasks"))
    batches = data.draw(inputs(shape), "inputs")
    driver = Driver(spec.query, {})
    with pytest.MonkeyPatch.context() as patch:
        if small:  # nearly every commit is flushed before its marker
            patch.setattr(packing, "GROUP_BYTES", 700)
            patch.setattr(outputs, "PAYLOAD_BYTES_MAX", 600)
            patch.setattr(task_core, "PAYLOAD_BYTES_MAX", 900)
        wired = Wired(spec)
        for stream, batch in batches:
            driver.feed(stream, batch)
            wired.feed(batch, stream)
            run(wired, data.draw(STEPS, "steps"))
        wired.settle()
    assert plain(wired.result()) == plain(driver.result())
    check_markers(wired)


# ---- the coordinator


class AnyOrder(RuleBasedStateMachine):
    """Workers come, beat, fall silent and leave; claims come back whenever."""

    @initialize(
        counts=st.lists(st.integers(1, 3), min_size=1, max_size=3), workers=st.integers(1, 3)
    )
    def start(self, counts: list[int], workers: int) -> None:
        tasks = [TaskId("q", 1, stage, at) for stage, k in enumerate(counts) for at in range(k)]
        self.core = CoordinatorCore(tasks, workers)
        self.asked: list[TaskId] = []
        self.claimed: dict[TaskId, int] = {}
        self.announced: dict[tuple[str, int], str] = {}
        self.number = 0
        self.hellos = 0
        self.is_over = False
        #: What the workers were told last.
        self.told: dict[str, list[object]] = {}

    def perform(self, effects: list[Effect]) -> None:
        assert not self.is_over or not effects, "it was over"
        for effect in effects:
            match effect:
                case Claim(tasks=tasks):
                    assert not set(tasks) & set(self.asked), "it is being claimed"
                    self.asked += tasks
                case Announce(message=Assign() as assign):
                    assert assign.number == self.number + 1
                    self.number, self.told = assign.number, assign.tasks
                    for name, place in assign.places().items():
                        instance = (name, place.instance)
                        assert self.announced.setdefault(instance, place.worker) == place.worker
                        assert place.worker in self.core.members
                case Fail():
                    self.is_over = True
                case _:
                    pass

    @rule(slot=st.integers(0, 2))
    def hello(self, slot: int) -> None:
        self.hellos += 1
        self.perform(self.core.on_message(Hello(f"w{self.hellos}", slot, "h", 1)))

    @precondition(lambda self: self.hellos > 0)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        worker = f"w{data.draw(st.integers(1, self.hellos))}"
        commits = {
            str(task): {"commits_ever": self.claimed.get(task, 0)} for task in self.core.tasks
        }
        self.perform(self.core.on_message(Beat(worker, data.draw(st.sampled_from([{}, commits])))))

    @precondition(lambda self: self.hellos > 0)
    @rule(data=st.data())
    def goodbye(self, data: st.DataObject) -> None:
        self.perform(self.core.on_message(Goodbye(f"w{data.draw(st.integers(1, self.hellos))}")))

    @rule(slot=st.integers(0, 2))
    def lost(self, slot: int) -> None:
        self.perform(self.core.on_job_lost(slot))

    @rule(count=st.integers(1, 15))
    def pulse(self, count: int) -> None:
        for _ in range(count):
            self.perform(self.core.on_pulse())

    @precondition(lambda self: self.told)
    @rule(data=st.data())
    def ended(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.told)))
        worker, instance = self.told[name]
        self.perform(self.core.on_message(Ended(str(worker), name, int(str(instance)), True, "x")))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(self.asked), min_size=1, unique=True))
        for task in some:
            self.asked.remove(task)
            self.claimed[task] = self.claimed.get(task, 0) + 1
        before = dict(self.claimed)
        self.perform(self.core.on_claimed({task: self.claimed[task] for task in some}))
        for (name, instance), _ in self.announced.items():
            task = next(one for one in self.core.tasks if str(one) == name)
            assert instance <= before.get(task, 0), "announced before it was claimed"

    @invariant()
    def places_are_with_members(self) -> None:
        self.core.check()

    def teardown(self) -> None:
        """Once calm returns, every task runs, as its newest instance, and nobody has too many."""
        self.hello(0)
        for _ in range(PULSES_GATHERING + 1):
            self.pulse(1)
            for worker in list(self.core.members):
                self.perform(self.core.on_message(Beat(worker)))
        while self.asked and not self.is_over:
            task = self.asked.pop()
            self.claimed[task] = self.claimed.get(task, 0) + 1
            self.perform(self.core.on_claimed({task: self.claimed[task]}))
        if self.is_over:
            return
        assert {str(task) for task in self.core.tasks} == set(self.told)
        newest = {str(task): instance for task, instance in self.claimed.items()}
        assert {name: place[1] for name, place in self.told.items()} == newest
        loads = {
            worker: sum(place[0] == worker for place in self.told.values())
            for worker in self.core.members
        }
        # There is one of the first slot: those of slots that are not wanted have nothing.
        wanted = [loads.pop(w) for w, m in self.core.members.items() if m.slot < self.core.wanted]
        assert max(wanted) - min(wanted) <= 1
        assert not any(loads.values())
        assert PULSES_LONG > PULSES_GATHERING


class TestAnyOrder(AnyOrder.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(max_examples=60, stateful_step_count=40)
