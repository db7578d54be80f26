"""The coordinator's decisions, effect by effect; tests/transcripts has its stories."""

from __future__ import annotations

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
from penstock.runtime.coordinator_core import (
    FUTILE_MAX,
    PULSES_GATHERING,
    PULSES_LONG,
    PULSES_MISSED_MAX,
    Announce,
    Claim,
    CoordinatorCore,
    Fail,
    StopAsked,
)

FIRST, SECOND = TaskId("q", 1, 0, 0), TaskId("q", 1, 0, 1)


def hello(worker: str, slot: int) -> Hello:
    return Hello(worker, slot, "host", 7)


def running(tasks: int = 1) -> CoordinatorCore:
    """One worker, a, that runs all tasks as instance 1."""
    core = CoordinatorCore([FIRST, SECOND][:tasks], workers=1)
    [claim] = core.on_message(hello("a", 0))
    assert isinstance(claim, Claim)
    core.on_claimed(dict.fromkeys(claim.tasks, 1))
    return core


def test_a_task_is_claimed_then_announced() -> None:
    core = CoordinatorCore([FIRST, SECOND], workers=1)
    assert core.on_pulse() == []
    assert core.on_message(hello("a", 0)) == [Claim((FIRST, SECOND))]
    assert core.on_pulse() == [], "it is being claimed"
    assert core.on_claimed({FIRST: 4, SECOND: 9}) == [
        Announce(Assign(1, {"q.1/0/0": ["a", 4], "q.1/0/1": ["a", 9]}))
    ]
    assert core.on_message(hello("a", 0)) == [], "it was said before"
    core.check()


def test_what_is_claimed_piece_by_piece_is_announced_as_it_is_known() -> None:
    core = CoordinatorCore([FIRST, SECOND], workers=1)
    core.on_message(hello("a", 0))
    assert core.on_claimed({SECOND: 1}) == [Announce(Assign(1, {"q.1/0/1": ["a", 1]}))]
    assert core.on_claimed({FIRST: 1}) == [
        Announce(Assign(2, {"q.1/0/0": ["a", 1], "q.1/0/1": ["a", 1]}))
    ]


def test_workers_gather_for_so_many_pulses() -> None:
    core = CoordinatorCore([FIRST], workers=3)
    core.on_pulse()
    assert core.on_message(hello("a", 0)) == []
    for _ in range(PULSES_GATHERING - 1):
        assert core.on_pulse() == []
    assert core.on_pulse() == [Claim((FIRST,))]


def test_two_workers_in_one_slot_are_one() -> None:
    core = CoordinatorCore([FIRST], workers=2)
    assert core.on_message(hello("a", 0)) == []
    assert core.on_message(hello("b", 0)) == []
    assert list(core.members) == ["b"]
    assert core.hellos == {0: 2}


def test_sparks_word_on_earlier_attempts_spares_their_successor() -> None:
    core = CoordinatorCore([FIRST], workers=1)
    core.on_message(Hello("a", 0, "host", 7, attempt=3))
    assert core.on_job_lost(0, attempts=3) == []
    assert core.on_job_lost(1) == []
    assert list(core.members) == ["a"]
    core.on_job_lost(0, attempts=4)
    assert list(core.members) == []


@pytest.mark.parametrize("beats", [False, True])
def test_a_worker_is_dead_after_so_many_pulses_without_a_beat(beats: bool) -> None:
    core = running()
    for _ in range(PULSES_MISSED_MAX):
        assert core.on_pulse() == []
    if beats:
        core.on_message(Beat("a"))
    core.on_pulse()
    assert list(core.members) == (["a"] if beats else [])
    assert (core.tasks[FIRST].place is None) is not beats


@pytest.mark.parametrize("is_slot_free", [True, False])
def test_a_worker_that_beats_again_is_taken_back_if_its_slot_is_free(is_slot_free: bool) -> None:
    core = running()
    for _ in range(PULSES_MISSED_MAX + 1):
        core.on_pulse()
    if not is_slot_free:
        core.on_message(hello("b", 0))
    effects = core.on_message(Beat("a"))
    assert list(core.members) == (["a"] if is_slot_free else ["b"])
    assert effects == ([Claim((FIRST,))] if is_slot_free else [])


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


def end_again_and_again(core: CoordinatorCore, times: int) -> None:
    """Instances of the first task end without a commit, this often; the query goes on."""
    for _ in range(times):
        place = core.tasks[FIRST].place
        assert place is not None
        effects = core.on_message(Ended("a", "q.1/0/0", place.instance, True, "oops"))
        assert effects == [Claim((FIRST,))]
        core.on_claimed({FIRST: place.instance + 1})


def test_instances_that_end_in_a_row_without_a_commit_stop_the_query() -> None:
    core = running()
    core.on_message(Beat("a", {"q.1/0/0": {"commits_ever": 3, "position": 8}}))
    end_again_and_again(core, FUTILE_MAX)
    [fail, finish] = core.on_message(Ended("a", "q.1/0/0", FUTILE_MAX + 1, True, "oops"))
    assert isinstance(fail, Fail)
    assert (
        f"ended {FUTILE_MAX + 1} times in a row without a commit, at input position 8"
        in fail.message
    )
    assert "last cause: oops" in fail.message
    assert finish == Announce(Finish())


def test_a_commit_in_between_starts_the_count_anew() -> None:
    core = running()
    end_again_and_again(core, FUTILE_MAX)
    core.on_message(Beat("a", {"q.1/0/0": {"commits_ever": 0}}))
    end_again_and_again(core, FUTILE_MAX)
    core.on_message(Beat("a", {"q.1/0/0": {"commits_ever": 0}}))
    assert core.on_message(Ended("a", "q.1/0/0", 2 * FUTILE_MAX + 1, True, "oops")) != [
        Claim((FIRST,))
    ], "the same number of commits is no news"


def test_a_commit_that_no_beat_told_of_counts_as_well() -> None:
    """A killed worker's last commits are in the log only: the claim looks there."""
    core = running()
    end_again_and_again(core, FUTILE_MAX)
    core.on_committed({FIRST: 0})
    end_again_and_again(core, FUTILE_MAX)
    core.on_committed({FIRST: 0})
    [fail, _] = core.on_message(Ended("a", "q.1/0/0", 2 * FUTILE_MAX + 1, True, "oops"))
    assert isinstance(fail, Fail), "the same marker is no news"


def test_a_late_word_of_spark_does_not_hit_the_successor() -> None:
    core = running()
    [claim] = core.on_message(Hello("b", 0, "host", 8, attempt=1))
    assert claim == Claim((FIRST,)), "the older one in the slot is lost"
    core.on_claimed({FIRST: 2})

    assert core.on_job_lost(0, 1) == [], "only attempt 0 was lost"
    assert list(core.members) == ["b"]
    core.on_job_lost(0, 2)
    assert list(core.members) == []


def test_a_long_life_without_input_is_no_sign_of_poison() -> None:
    core = running()
    end_again_and_again(core, FUTILE_MAX)
    for _ in range(PULSES_LONG + 1):
        core.on_pulse()
        core.on_message(Beat("a"))
    end_again_and_again(core, FUTILE_MAX - 1)


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


def test_a_request_to_stop_is_passed_on() -> None:
    core = running()
    assert core.on_message(Stop("cli")) == [StopAsked("cli")]
    assert not core.is_over


def test_words_of_another_coordinator_mean_nothing() -> None:
    core = running()
    assert core.on_message(Assign(7, {"q.1/0/0": ["b", 1]})) == []
    assert core.on_message(Pulse()) == []
    assert core.on_message(Finish()) == []
    assert core.tasks[FIRST].place is not None


def test_a_place_with_a_worker_that_is_gone_is_noticed() -> None:
    core = running()
    core.check()
    del core.members["a"]
    with pytest.raises(AssertionError):
        core.check()
