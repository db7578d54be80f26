"""Stories of the coordinator: who is alive, who runs what, when a query is given up.

telling.py says how they are written. A task is shown as stage/index; `a(3)` is worker a, running it
as instance 3.

    query 2 1                  two tasks in stage 0, one in stage 1 (workers=N are expected)
    hello a slot=0             a worker started in a slot
    beat a 0/0=3               it lives, and has committed marker 3 of task 0/0 (position=N)
    ended a 0/0 why            a task stopped by itself; another instance may do better
    broke a 0/0 why            it stopped, and would again
    goodbye a                  the worker leaves
    lost 0                     Spark: what ran in slot 0 has ended
    pulse 12                   so many pulses of the coordinator were ordered
    claimed                    the claims that were asked for are durable (or only: claimed 0/0)
    stop who / finish          somebody asks for the end; the end
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from telling import check_story, told

from penstock.protocol.names import TaskId
from penstock.runtime.control import Assign, Beat, Ended, Finish, Goodbye, Hello, Stop
from penstock.runtime.coordinator_core import (
    Announce,
    Claim,
    CoordinatorCore,
    Effect,
    Fail,
    StopAsked,
)

STORIES = sorted((Path(__file__).parent / "coordinator").glob("*.txt"))


class Story:
    """One coordinator, told by commands; its law is checked after each."""

    def __init__(self) -> None:
        self.core = CoordinatorCore([], 1)
        #: Tasks whose claim was asked for, and the instances that were claimed.
        self.asked: list[TaskId] = []
        self.claimed: dict[TaskId, int] = {}
        self.announced: dict[tuple[TaskId, int], str] = {}

    def run(self, command: str) -> list[str]:
        name, *words = shlex.split(command)
        effects: list[Effect] = getattr(self, f"do_{name}")(*words)
        self.core.check()
        return [f"  {self.show(effect)}" for effect in effects]

    def show(self, effect: Effect) -> str:
        match effect:
            case Claim(tasks=tasks):
                self.asked += tasks
                return "claim " + " ".join(short(task) for task in tasks)
            case Announce(message=Assign() as assign):
                self.check_law(assign)
                places = [f"{name[4:]} {who}({at})" for name, (who, at) in assign.tasks.items()]
                return f"announce {assign.number}: " + (", ".join(places) or "nobody runs anything")
            case Announce(message=Finish()):
                return "announce the end"
            case Fail(message=message):
                return f"fail: {message}"
            case StopAsked(who=who):
                return f"stop asked by {who}"
            case _:
                raise AssertionError(f"unknown effect {effect}")

    def check_law(self, assign: Assign) -> None:
        """A task is announced at an instance that was claimed for it, and for one worker only."""
        for name, place in assign.places().items():
            task = long(name[4:])
            assert place.instance <= self.claimed.get(task, 0), f"{name} was not claimed"
            assert self.announced.setdefault((task, place.instance), place.worker) == place.worker

    # ---- commands

    def do_query(self, *words: str) -> list[Effect]:
        options = dict(word.split("=") for word in words if "=" in word)
        counts = [int(word) for word in words if "=" not in word]
        tasks = [TaskId("q", 1, stage, at) for stage, n in enumerate(counts) for at in range(n)]
        self.core = CoordinatorCore(tasks, int(options.get("workers", "2")))
        return []

    def do_hello(self, worker: str, slot: str) -> list[Effect]:
        return self.core.on_message(Hello(worker, int(slot.removeprefix("slot=")), "host", 1))

    def do_beat(self, worker: str, *words: str) -> list[Effect]:
        reports: dict[str, dict[str, Any]] = {}
        for word in words:
            name, _, number = word.partition("=")
            if name == "position":
                for report in reports.values():
                    report["position"] = int(number)
            else:
                reports[str(long(name))] = {"commits_ever": int(number)}
        return self.core.on_message(Beat(worker, reports))

    def do_ended(self, worker: str, task: str, *why: str) -> list[Effect]:
        return self.end(worker, task, " ".join(why), is_retryable=True)

    def do_broke(self, worker: str, task: str, *why: str) -> list[Effect]:
        return self.end(worker, task, " ".join(why), is_retryable=False)

    def end(self, worker: str, task: str, why: str, *, is_retryable: bool) -> list[Effect]:
        place = self.core.tasks[long(task)].place
        instance = 0 if place is None else place.instance
        return self.core.on_message(Ended(worker, str(long(task)), instance, is_retryable, why))

    def do_goodbye(self, worker: str) -> list[Effect]:
        return self.core.on_message(Goodbye(worker))

    def do_lost(self, slot: str) -> list[Effect]:
        return self.core.on_job_lost(int(slot))

    def do_pulse(self, count: str = "1") -> list[Effect]:
        return [effect for _ in range(int(count)) for effect in self.core.on_pulse()]

    def do_claimed(self, *words: str) -> list[Effect]:
        wanted = [long(word) for word in words] or list(self.asked)
        assert wanted, "nothing was to be claimed"
        for task in wanted:
            self.asked.remove(task)
            self.claimed[task] = self.claimed.get(task, 0) + 1
        return self.core.on_claimed({task: self.claimed[task] for task in wanted})

    def do_stop(self, who: str) -> list[Effect]:
        return self.core.on_message(Stop(who))

    def do_finish(self) -> list[Effect]:
        return self.core.finish()


def short(task: TaskId) -> str:
    return f"{task.stage}/{task.index}"


def long(text: str) -> TaskId:
    stage, index = text.split("/")
    return TaskId("q", 1, int(stage), int(index))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_story_of_the_coordinator_goes_as_written(path: Path) -> None:
    check_story(path, Story().run)


def test_there_are_coordinator_stories_and_each_begins_with_what_it_tells() -> None:
    assert len(STORIES) >= 8
    for path in STORIES:
        assert path.read_text().startswith("# ")


def test_a_trace_of_the_coordinator_that_does_not_happen_is_noticed() -> None:
    story = "query 1\nhello a slot=0\nhello b slot=1\n----\nnonsense\n"

    assert told(story, Story().run) == story.replace("nonsense", "  claim 0/0")


def test_an_instance_that_was_not_claimed_is_noticed() -> None:
    story = Story()
    with pytest.raises(AssertionError, match=r"q\.1/0/0 was not claimed"):
        story.show(Announce(Assign(1, {"q.1/0/0": ["a", 1]})))
