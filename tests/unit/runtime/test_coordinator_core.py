"""The edges of the coordinator's decisions; tests/transcripts has its stories."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.errors import BadFormat
from penstock.protocol.names import TaskId
from penstock.runtime.control import (
    Assign,
    Beat,
    Ended,
    Finish,
    Goodbye,
    Hello,
    Message,
    Pulse,
    Stop,
)
from penstock.runtime.coordinator_core import FUTILE_MAX, Announce, Claim, CoordinatorCore, Fail

FIRST, SECOND = TaskId("q", 1, 0, 0), TaskId("q", 1, 0, 1)


def hello(worker: str, slot: int, attempt: int = 0) -> Hello:
    return Hello(worker, slot, "host", 7, attempt=attempt)


def running(tasks: int = 1) -> CoordinatorCore:
    """One worker, a, that runs all tasks as instance 1."""
    core = CoordinatorCore([FIRST, SECOND][:tasks], workers=1)
    [claim] = core.on_message(hello("a", 0))
    assert isinstance(claim, Claim)
    core.on_claimed(dict.fromkeys(claim.tasks, 1))
    return core


def test_two_workers_in_one_slot_are_one() -> None:
    core = CoordinatorCore([FIRST], workers=2)
    assert core.on_message(hello("a", 0)) == []
    assert core.on_message(hello("b", 0)) == []
    assert list(core.members) == ["b"]
    assert core.hellos == {0: 2}


def test_sparks_word_on_earlier_attempts_spares_their_successor() -> None:
    core = running()
    assert core.on_message(hello("b", 0, attempt=3)) == [Claim((FIRST,))], "the older one is lost"
    core.on_claimed({FIRST: 2})
    assert core.on_message(hello("b", 0, attempt=3)) == [], "it was said before"
    assert core.on_job_lost(0, attempts=3) == []
    assert core.on_job_lost(1) == []
    assert list(core.members) == ["b"]
    core.on_job_lost(0, attempts=4)
    assert list(core.members) == []


def test_what_a_beat_reports_is_kept_for_the_task_it_runs() -> None:
    core = running()
    report = {"commits_ever": 3, "position": 8}
    assert core.on_message(Beat("a", {"q.1/0/0": report, "q.1/7/7": report})) == []
    assert core.tasks[FIRST].report == report
    core.on_message(Beat("stranger", {"q.1/0/0": {"commits_ever": 99}}))
    assert core.tasks[FIRST].report == report


def test_a_beat_that_names_no_task_is_refused() -> None:
    with pytest.raises(BadFormat, match="is no task"):
        running().on_message(Beat("a", {"nonsense": {}}))


def test_a_task_that_ends_by_itself_gets_another_instance() -> None:
    core = running()
    ended = Ended("a", "q.1/0/0", 1, True, "oops")
    assert core.on_message(ended) == [Claim((FIRST,))]
    assert core.on_message(ended) == [], "it has no place now"
    assert core.on_claimed({FIRST: 2}) == [Announce(Assign(2, {"q.1/0/0": ["a", 2]}))]
    assert core.on_message(ended) == [], "of an instance that was replaced"


def test_a_task_that_would_fail_again_stops_the_query() -> None:
    core = running()
    assert core.on_message(Ended("a", "q.1/0/0", 1, False, "ValueError: x", "trace")) == [
        Fail("task q.1/0/0: ValueError: x", "trace"),
        Announce(Finish()),
    ]
    assert core.is_over


def end_again_and_again(core: CoordinatorCore) -> None:
    """As often as a query stands it, instances of the first task end without a commit."""
    for _ in range(FUTILE_MAX):
        place = core.tasks[FIRST].place
        assert place is not None
        effects = core.on_message(Ended("a", "q.1/0/0", place.instance, True, "oops"))
        assert effects == [Claim((FIRST,))]
        core.on_claimed({FIRST: place.instance + 1})


def test_instances_that_end_in_a_row_without_a_commit_stop_the_query() -> None:
    core = running()
    core.on_message(Beat("a", {"q.1/0/0": {"commits_ever": 3, "position": 8}}))
    end_again_and_again(core)
    [fail, finish] = core.on_message(Ended("a", "q.1/0/0", FUTILE_MAX + 1, True, "oops"))
    assert isinstance(fail, Fail) and finish == Announce(Finish())
    ended = f"ended {FUTILE_MAX + 1} times in a row without a commit, at input position 8"
    assert f"{ended}; last cause: oops" in fail.message


@pytest.mark.parametrize(
    "tell",
    [
        lambda core: core.on_message(Beat("a", {"q.1/0/0": {"commits_ever": 0}})),
        # A killed worker's last commits are in the log only: the claim looks there.
        lambda core: core.on_committed({FIRST: 0}),
    ],
    ids=["by a beat", "by the log"],
)
def test_a_commit_that_is_told_of_starts_the_count_anew(
    tell: Callable[[CoordinatorCore], object],
) -> None:
    core = running()
    for _ in range(2):
        end_again_and_again(core)
        tell(core)
    [fail, _] = core.on_message(Ended("a", "q.1/0/0", 2 * FUTILE_MAX + 1, True, "oops"))
    assert isinstance(fail, Fail), "the same number of commits is no news"


def test_of_several_poisoned_tasks_of_a_worker_one_is_named() -> None:
    core = running(tasks=2)
    for number in range(FUTILE_MAX):
        [claim] = core.on_message(hello(f"b{number}", 0))
        assert claim == Claim((FIRST, SECOND))
        core.on_claimed({FIRST: number + 2, SECOND: number + 2})
    effects = core.on_job_lost(0)
    assert [type(effect) for effect in effects] == [Fail, Announce]


@pytest.mark.parametrize(
    "message",
    [
        hello("b", 1),
        Beat("a"),
        Goodbye("a"),
        Ended("a", "q.1/0/0", 1, False, "x"),
        Stop("cli"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_after_the_end_nothing_happens(message: Message) -> None:
    core = running()
    core.on_message(Ended("a", "q.1/0/0", 1, True, "oops"))
    assert core.finish() == [Announce(Finish())]
    assert core.on_message(message) == []
    assert core.on_claimed({FIRST: 2}) == []
    assert core.on_pulse() == []
    assert core.on_job_lost(0) == []
    assert core.finish() == []


def test_words_of_another_coordinator_mean_nothing() -> None:
    core = running()
    for message in (Assign(7, {"q.1/0/0": ["b", 1]}), Pulse(), Finish()):
        assert core.on_message(message) == []
    assert core.tasks[FIRST].place is not None


def test_a_place_with_a_worker_that_is_gone_is_noticed() -> None:
    core = running()
    core.check()
    del core.members["a"]
    with pytest.raises(AssertionError):
        core.check()
