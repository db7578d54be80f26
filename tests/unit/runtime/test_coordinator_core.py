"""The edges of the coordinator's decisions; tests/transcripts has its stories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
    Leave,
    Message,
    Move,
    Place,
    Pulse,
    Stop,
    Yield,
    Yielded,
)
from penstock.runtime.coordinator_core import (
    FUTILE_MAX,
    PULSES_GATHERING,
    PULSES_YIELDING,
    Announce,
    Claim,
    CoordinatorCore,
    Fail,
    Moved,
    Plan,
)

TOLD = "its worker was told to leave"
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


def test_a_suspended_query_lets_all_workers_go_and_places_nothing() -> None:
    core = running(tasks=2)
    assert core.suspend() == [Announce(Leave("a"))]
    assert core.suspend() == [], "it was told once"
    assert core.on_message(hello("b", 1)) == [Announce(Leave("b"))], "who comes now goes at once"
    assert core.on_message(Goodbye("a")) == [] and core.on_message(Goodbye("b")) == []
    assert core.members == {} and not core.is_settled
    assert all(state.place is None for state in core.tasks.values())
    assert all(state.report["is_running"] is False for state in core.tasks.values())
    for _ in range(2 * PULSES_GATHERING):
        assert core.on_pulse() == []


def test_a_resumed_query_claims_all_tasks_when_its_workers_are_there() -> None:
    core = running(tasks=2)
    core.suspend()
    assert core.resume(2) == []
    assert core.resume(3) == [], "it is no more suspended"
    assert core.on_message(hello("b", 0)) == [], "another one is to come"
    [claim] = core.on_message(hello("c", 1))
    assert claim == Claim((FIRST, SECOND)), "by the worker that leaves, too"
    assert {who for who, _ in assigned(core.on_claimed({FIRST: 2, SECOND: 2}))} == {"b", "c"}
    assert {(moved.left, moved.why) for moved in core.moves} == {("a", TOLD)}


def test_however_often_a_query_is_suspended_its_tasks_have_not_failed() -> None:
    core = running()
    for round in range(FUTILE_MAX + 2):
        core.suspend()
        core.on_message(Goodbye("a" if round == 0 else f"w{round}"))
        core.resume(1)
        effects = core.on_message(hello(f"w{round + 1}", 0))
        assert effects == [Claim((FIRST,))]
        core.on_claimed({FIRST: round + 2})
    assert {moved.why for moved in core.moves} == {TOLD}


def test_what_was_claimed_as_a_query_was_suspended_runs_nowhere() -> None:
    core = CoordinatorCore([FIRST], workers=1)
    core.on_message(hello("a", 0))
    assert core.suspend() == [Announce(Leave("a"))]
    assert core.on_claimed({FIRST: 1}) == []
    assert core.tasks[FIRST].place is None
    core.check()


def assigned(effects: Sequence[Any]) -> list[list[Any]]:
    """Worker and instance of each task, as it is announced last."""
    found = [one.message for one in effects if isinstance(one, Announce)]
    [*_, last] = [message for message in found if isinstance(message, Assign)]
    return list(last.tasks.values())


def test_tasks_leave_a_worker_whose_executor_goes_before_it_does() -> None:
    core = CoordinatorCore([FIRST, SECOND], workers=2)
    core.on_message(hello("a", 0))
    core.on_message(hello("b", 1))
    core.on_claimed({FIRST: 1, SECOND: 1})
    assert core.vacate(0) == [Claim((FIRST,))], "the worker stays until its task is elsewhere"
    assert core.vacate(0) == [] and core.vacate(7) == []
    effects = core.on_claimed({FIRST: 2})
    assert assigned(effects) == [["b", 2], ["b", 1]]
    assert effects[-1] == Announce(Leave("a"))
    assert [moved.why for moved in core.moves] == ["its executor is to go"]
    core.on_message(Goodbye("a"))
    assert core.on_message(hello("c", 0)) == [Claim((SECOND,))], "its slot has another one"


def test_if_all_executors_go_tasks_stay_until_somebody_else_is_there() -> None:
    core = running()
    assert core.vacate(0) == []
    assert core.tasks[FIRST].place == Place("a", 1) and "a" in core.members
    assert core.on_message(hello("b", 0)) == [Claim((FIRST,))]


def test_with_copies_a_task_yields_before_its_executor_goes() -> None:
    core = CoordinatorCore([FIRST], workers=2, replicas=1)
    core.on_message(hello("a", 0))
    core.on_message(hello("b", 1))
    core.on_claimed({FIRST: 1})
    there = next(one for one in ("a", "b") if one != core.tasks[FIRST].place.worker)
    core.on_message(Beat(there, {}, {str(FIRST): {"is_ready": True}}))
    here = core.tasks[FIRST].place.worker
    assert core.vacate("ab".index(here)) == [Announce(Yield(str(FIRST), 1))]
    assert core.on_message(Yielded(here, str(FIRST), 1)) == [Claim((FIRST,))]


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


def test_rows_that_were_counted_stay_counted_until_the_next_instance_has_resumed() -> None:
    """Else a query that is stopped while a task moves says that it read less than it did."""
    core = running()
    core.on_message(Beat("a", {"q.1/0/0": {"rows_in": 180, "rows_out": 15}}))
    core.on_message(hello("b", 0, attempt=1))
    core.on_claimed({FIRST: 2})
    core.on_message(Beat("b", {"q.1/0/0": {"rows_in": 0, "rows_out": 0, "position": 0}}))
    assert core.tasks[FIRST].report == {"rows_in": 180, "rows_out": 15, "position": 0}
    core.on_message(Beat("b", {"q.1/0/0": {"rows_in": 181, "rows_out": 15}}))
    assert core.tasks[FIRST].report == {"rows_in": 181, "rows_out": 15}


def test_rows_that_only_the_log_knows_of_are_counted() -> None:
    """Who committed them was lost before its next report."""
    core = running()
    core.on_message(Beat("a", {"q.1/0/0": {"rows_in": 7, "rows_out": 7}}))
    core.on_counted({FIRST: {"rows_in": 180, "rows_out": 3}})
    assert core.tasks[FIRST].report == {"rows_in": 180, "rows_out": 7}


def test_of_two_claims_of_a_task_over_a_change_of_the_layout_the_later_one_counts() -> None:
    """It is claimed for its worker is lost, and again as a task of the next layout; the answers
    come the other way round."""
    core = running()
    core.expect(2)
    core.on_message(hello("b", 1))
    [claim] = core.on_message(Goodbye("a"))
    assert claim == Claim((FIRST,))
    assert core.succeed([FIRST], {"version": 1}) == [Claim((FIRST,))]
    core.on_claimed({FIRST: 3})
    core.on_claimed({FIRST: 2})
    assert core.tasks[FIRST].place == Place("b", 3), "2 was fenced: it would run nowhere for ever"


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


def test_a_worker_that_is_lost_at_the_end_is_not_waited_for() -> None:
    core = running()
    core.finish()
    assert core.on_job_lost(0) == []
    assert core.members == {}
    core.check()


# -- copies and moves

READY = {"is_ready": True}


def beside() -> CoordinatorCore:
    """Two workers, a and b, with a task each and a copy of the other's."""
    core = CoordinatorCore([FIRST, SECOND], workers=2, replicas=1)
    core.on_message(hello("a", 0))
    [claim] = core.on_message(hello("b", 1))
    assert claim == Claim((FIRST, SECOND))
    announced = core.on_claimed({FIRST: 1, SECOND: 1})
    assert announced == [
        Announce(
            Assign(1, {"q.1/0/0": ["a", 1], "q.1/0/1": ["b", 1]},
                   {"q.1/0/0": ["b"], "q.1/0/1": ["a"]})
        )
    ]  # fmt: skip
    for _ in range(PULSES_GATHERING):  # nobody is waited for any more
        core.on_message(Beat("a"))
        core.on_message(Beat("b"))
        core.on_pulse()
    return core


def test_the_task_of_a_lost_worker_goes_on_at_its_copy() -> None:
    core = beside()
    assert core.on_message(Goodbye("a")) == [Claim((FIRST,))]
    [announced] = core.on_claimed({FIRST: 2})
    assert announced == Announce(Assign(2, {"q.1/0/0": ["b", 2], "q.1/0/1": ["b", 1]}))
    assert list(core.moves) == [Moved(FIRST, 2, "a", "b", "its worker was lost")]


def test_a_task_moves_when_the_copy_is_ready_and_it_has_yielded() -> None:
    core = beside()
    assert core.on_message(Move("q.1/0/0", "1")) == [], "b keeps a copy, which has not spoken yet"
    assert core.on_message(Beat("b", {}, {"q.1/0/0": {"is_ready": False}})) == []
    [asked] = core.on_message(Beat("b", {}, {"q.1/0/0": READY}))
    assert asked == Announce(Yield("q.1/0/0", 1))
    assert core.on_message(Beat("b", {}, {"q.1/0/0": READY})) == [], "it is asked once"
    assert core.on_message(Yielded("b", "q.1/0/0", 1)) == [], "it does not run there"
    assert core.on_message(Yielded("a", "q.1/0/0", 1)) == [Claim((FIRST,))]
    [announced] = core.on_claimed({FIRST: 2})
    assert announced == Announce(
        Assign(2, {"q.1/0/0": ["b", 2], "q.1/0/1": ["b", 1]},
               {"q.1/0/0": ["a"], "q.1/0/1": ["a"]})
    )  # fmt: skip
    assert [moved.why for moved in core.moves] == ["by hand"]


def test_a_task_that_does_not_yield_is_claimed_after_a_while() -> None:
    core = beside()
    core.on_message(Move("q.1/0/0", "b"))
    core.on_message(Beat("b", {}, {"q.1/0/0": READY}))
    effects = []
    for _ in range(PULSES_YIELDING + 1):
        assert effects == []
        core.on_message(Beat("a"))
        core.on_message(Beat("b"))
        effects = core.on_pulse()
    assert effects == [Claim((FIRST,))]


def test_a_move_whose_target_dies_is_forgotten() -> None:
    core = beside()
    core.on_message(Move("q.1/0/0", "b"))
    core.on_message(Beat("b", {}, {"q.1/0/0": READY}))
    assert core.on_message(Goodbye("b")) == [Claim((SECOND,))]
    core.on_claimed({SECOND: 2})
    assert core.on_message(Yielded("a", "q.1/0/0", 1)) == [Claim((FIRST,))]
    [announced] = core.on_claimed({FIRST: 2})
    assert announced == Announce(Assign(3, {"q.1/0/0": ["a", 2], "q.1/0/1": ["a", 2]}))


def test_a_worker_that_comes_later_is_a_standby_before_it_gets_a_task() -> None:
    core = beside()
    core.on_message(Goodbye("a"))
    core.on_claimed({FIRST: 2})
    [announced] = core.on_message(hello("c", 0))
    assert isinstance(announced, Announce) and isinstance(announced.message, Assign)
    assert announced.message.tasks == {"q.1/0/0": ["b", 2], "q.1/0/1": ["b", 1]}
    assert announced.message.standbys == {"q.1/0/0": ["c"], "q.1/0/1": ["c"]}
    [asked] = core.on_message(Beat("c", {}, {"q.1/0/0": READY, "q.1/0/1": READY}))
    assert asked == Announce(Yield("q.1/0/1", 1)), "for balance, one of them"
    core.check()


def among_three() -> CoordinatorCore:
    """Workers a, b and c; the task runs at a, and c keeps a copy, which is ready."""
    core = CoordinatorCore([FIRST], workers=3, replicas=1)
    for slot, worker in enumerate("abc"):
        core.on_message(hello(worker, slot))
    core.on_claimed({FIRST: 1})
    core.copies = {FIRST: ("c",)}
    core.on_message(Beat("c", {}, {"q.1/0/0": READY}))
    for _ in range(PULSES_GATHERING):
        for worker in "abc":
            core.on_message(Beat(worker))
        core.on_pulse()
    assert core.copies == {FIRST: ("c",)}
    return core


def test_the_copies_that_are_there_stay_while_a_task_moves_elsewhere() -> None:
    core = among_three()
    core.on_message(Move("q.1/0/0", "b"))
    assert core.copies == {FIRST: ("c", "b")}
    core.on_pulse()
    assert core.copies == {FIRST: ("c", "b")}


def test_a_task_that_is_lost_while_it_moves_goes_to_the_copy_that_is_ready() -> None:
    core = among_three()
    core.on_message(Move("q.1/0/0", "b"))
    core.on_message(Beat("b", {}, {"q.1/0/0": {"is_ready": False}}))
    core.on_message(Goodbye("a"))
    core.on_claimed({FIRST: 2})
    place = core.tasks[FIRST].place
    assert place is not None and place.worker == "c"
    assert core.tasks[FIRST].target == "b", "it is wanted there all the same"


def test_a_move_that_was_not_yielded_for_is_told() -> None:
    core = beside()
    core.on_message(Move("q.1/0/0", "b"))
    core.on_message(Beat("b", {}, {"q.1/0/0": READY}))
    for _ in range(PULSES_YIELDING + 1):
        core.on_message(Beat("a"))
        core.on_message(Beat("b"))
        core.on_pulse()
    core.on_claimed({FIRST: 2})
    assert list(core.moves) == [Moved(FIRST, 2, "a", "b", "by hand")]


def test_a_late_word_of_a_copy_that_was_given_up_counts_for_nothing() -> None:
    core = among_three()
    core.on_message(Beat("b", {}, {"q.1/0/0": READY}))
    assert core.on_message(Move("q.1/0/0", "b"))[0] != Announce(Yield("q.1/0/0", 1))


NEXT = [TaskId("q", 1, 0, 2), TaskId("q", 1, 0, 3)]
PLAN = Plan(tuple(NEXT), frozenset(NEXT), {"version": 1}, 2)


def rescaling() -> CoordinatorCore:
    """A worker, a, runs the task; b has come, and both make ready to run its successors."""
    core = running()
    core.expect(2)
    assert core.on_message(hello("b", 1)) == [], "nothing moves to it, and it may stay"
    [announced] = core.prepare(PLAN)
    successors = {"q.1/0/2": "a", "q.1/0/3": "b"}
    assert announced == Announce(
        Assign(2, {"q.1/0/0": ["a", 1]}, next_layout={"version": 1}, successors=successors)
    )
    return core


def test_the_workers_of_the_next_tasks_make_ready_for_them() -> None:
    core = rescaling()
    assert core.prepared == (0, 2)
    core.on_message(Beat("a", {}, {}, {"q.1/0/2": READY, "q.1/0/3": READY}))
    assert core.prepared == (1, 2), "the other one is not its to speak of"
    core.on_message(Beat("b", {}, {}, {"q.1/0/3": {**READY, "state_rows": 70}}))
    assert core.prepared == (2, 2) and core.prepared_rows == 70
    core.wanted = 2
    assert core.succeed(NEXT, {"version": 1}) == [Claim(tuple(NEXT))]
    core.on_message(Beat("a"))
    [announced] = core.on_claimed(dict.fromkeys(NEXT, 1))
    places = {"q.1/0/2": ["a", 1], "q.1/0/3": ["b", 1]}
    assert announced == Announce(Assign(3, places, layout={"version": 1}))
    assert core.prepared == (0, 0)


def test_while_successors_are_claimed_what_was_made_ready_for_them_is_kept() -> None:
    core = rescaling()
    core.wanted = 2
    core.succeed(NEXT, {"version": 1})
    core.on_message(hello("c", 7))
    kept = {"q.1/0/2": ["a"], "q.1/0/3": ["b"]}
    assert {str(task): list(who) for task, who in core.copies.items()} == kept
    assert core.on_pulse() == []


def test_another_worker_makes_ready_if_one_is_lost() -> None:
    core = rescaling()
    core.on_message(Beat("b", {}, {}, {"q.1/0/3": READY}))
    [announced] = core.on_message(Goodbye("b"))
    assert isinstance(announced, Announce) and isinstance(announced.message, Assign)
    assert announced.message.successors == {"q.1/0/2": "a", "q.1/0/3": "a"}
    assert core.prepared == (0, 2)


def test_a_plan_that_is_dropped_lets_workers_go() -> None:
    core = rescaling()
    core.expect(1)
    announced, left = core.rescale(1)
    assert announced == Announce(Assign(3, {"q.1/0/0": ["a", 1]}))
    assert left == Announce(Leave("b"))
