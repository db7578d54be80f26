"""The sink's staging and commit, with a fault at every call of the log: each batch has one effect.

Spark's part is played by connector_steps.py: tasks, retries, commit, abort, and the batch again
after a lost driver. Most of it is on a log in memory, so that there can be much of it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from connector_steps import (
    PARTS,
    READING,
    BatchWrite,
    Fault,
    Faults,
    MemoryClient,
    Place,
    Process,
    Query,
    Race,
    ThreeStreams,
    ThreeWithoutTasks,
    WithoutTasks,
    act,
    at,
    first_append,
    interleavings,
    leave_spark,
    no_fault,
)

import penstock
from penstock.connector import staging
from penstock.errors import Fenced, PenstockError, Refused, Retryable, Unknown
from penstock.log.client import packing

Places = Callable[..., Place]


@pytest.fixture
def places() -> Iterator[Places]:
    """Each in a log of its own, in memory."""
    made: list[Place] = []

    def make(kind: type[Query] = Query) -> Place:
        made.append(Place(MemoryClient(), kind))
        return made[-1]

    yield make
    for place in made:
        place.close()
    leave_spark()


@pytest.fixture
def served_places(log: penstock.Log) -> Iterator[Places]:
    """All in the log of one server."""
    made: list[Place] = []

    def make(kind: type[Query] = Query) -> Place:
        made.append(Place(log.client, kind))
        return made[-1]

    yield make
    for place in made:
        place.close()
    leave_spark()


BATCH = [row for part in PARTS for row in part]
KINDS = [Query, ThreeStreams, WithoutTasks, ThreeWithoutTasks]


def run_before(query: Query, number: int) -> list[int]:
    """Batches that nothing disturbs; their rows."""
    for one in range(number):
        query.run_batch(one, [[one]])
    return list(range(number))


def clean_calls(places: Places, kind: type[Query], number: int) -> list[str]:
    """The calls of a batch that nothing disturbs."""
    place, process = places(kind), Process()
    query = place.query()
    run_before(query, number)
    assert act(place, process, lambda: query.run_batch(number)) is None
    assert process.calls.count("append") >= 3, process.calls
    return process.calls


def faults_of(calls: Sequence[str]) -> list[tuple[int, Fault]]:
    """Every fault at every call. One that only reads cannot be done without an answer."""
    return [
        (place, fault)
        for place, name in enumerate(calls)
        for fault in ((Fault.REFUSED, Fault.DIES) if name in READING else Fault)
    ]


def run_until_committed(
    place: Place, query: Query, number: int, faults: Sequence[Faults], before: list[int]
) -> None:
    """As a user's restarts would; at every moment all of the batch counts, or nothing of it."""
    for fault in [*faults, no_fault]:
        error = act(place, Process(fault), lambda: query.run_batch(number))
        # A group that is sent again comes after those that followed it.
        assert sorted(place.rows()) in (before, before + BATCH)
        if error is None:  # Spark notes that it is done, and never asks again
            assert sorted(place.rows()) == before + BATCH
    assert sorted(place.rows()) == before + BATCH


# ---- one driver


def check_one_fault(places: Places, kind: type[Query], number: int, skip: int = 0) -> None:
    for where, fault in faults_of(clean_calls(places, kind, number))[skip:]:
        place = places(kind)
        query = place.query()
        before = run_before(query, number)

        run_until_committed(place, query, number, [at(where, fault)], before)
        query.run_batch(number + 1, [[99]])

        assert sorted(place.rows()) == [*before, *BATCH, 99], (where, fault)
        assert place.markers() == number + 2, (where, fault)
        assert place.reservation is None, (where, fault)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [0, 2])
def test_a_fault_at_any_call_and_the_batch_again_have_one_effect(
    places: Places, kind: type[Query], number: int
) -> None:
    check_one_fault(places, kind, number)


def test_a_fault_at_any_call_of_a_server_has_one_effect(served_places: Places) -> None:
    check_one_fault(served_places, Query, 1)


def test_a_fault_at_the_last_call_of_a_server_has_one_effect_on_all_streams(
    served_places: Places,
) -> None:
    check_one_fault(served_places, ThreeStreams, 1, skip=-len(Fault))


def check_two_faults(places: Places, kind: type[Query], share: float) -> None:
    faults = faults_of(clean_calls(places, kind, 0))
    pairs = list(itertools.product(faults, faults))
    for first, second in random.Random(1).sample(pairs, round(share * len(pairs))):
        place = places(kind)

        run_until_committed(place, place.query(), 0, [at(*first), at(*second)], [])


@pytest.mark.parametrize("kind", KINDS)
def test_two_faults_and_the_batch_a_third_time_have_one_effect(
    places: Places, kind: type[Query]
) -> None:
    """Some pairs; a soak takes all."""
    check_two_faults(places, kind, 0.015)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_any_two_faults_and_the_batch_a_third_time_have_one_effect(
    places: Places, kind: type[Query]
) -> None:
    check_two_faults(places, kind, 1.0)


@pytest.mark.parametrize("kind", [Query, ThreeStreams])
def test_nothing_counts_before_the_commit(places: Places, kind: type[Query]) -> None:
    place = places(kind)
    query = place.query()

    messages = query.stage(0)
    assert place.rows() == []
    query.commit(0, messages)

    assert place.rows() == BATCH


@pytest.mark.parametrize("kind", [Query, ThreeStreams])
def test_of_two_attempts_that_both_end_the_one_that_won_counts(
    places: Places, kind: type[Query]
) -> None:
    """Speculation: Spark gives the commit one message for each part."""
    for losers in ("before", "after", "between"):
        place = places(kind)
        query = place.query()
        if losers != "after":
            query.stage(0)
        messages = [query.run_task(0, PARTS[0])]
        if losers == "between":
            query.stage(0)
        messages.append(query.run_task(0, PARTS[1]))
        if losers == "after":
            query.stage(0)

        query.commit(0, messages)

        assert place.rows() == BATCH, losers


def test_rows_of_a_task_that_go_in_many_groups_are_each_named(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pipelined appends, with a fault at each."""
    monkeypatch.setattr(staging, "_ENTRY_BYTES", 1)
    monkeypatch.setattr(packing, "GROUP_BYTES", 1)
    calls = clean_calls(places, Query, 0)
    assert calls.count("append_nowait") == 3

    check_one_fault(places, Query, 0)


def test_an_abort_after_a_commit_that_took_effect_undoes_nothing(places: Places) -> None:
    """The answer is lost, and then the log is away until Spark has called abort."""
    place = places()
    query = place.query()
    messages = query.stage(0)

    process = Process(first_append(Fault.DONE, Fault.REFUSED))
    error = act(place, process, lambda: query._writer().commit(messages, 0))
    assert isinstance(error, PenstockError)
    query.abort(0, messages)

    assert place.rows() == BATCH
    assert act(place, Process(), lambda: query.run_batch(0)) is None
    assert place.rows() == BATCH


def test_an_empty_batch_is_committed_too(places: Places) -> None:
    """Else the next one would look like one too many."""
    place = places()
    query = place.query()

    query.run_batch(0, [[1]])
    query.run_batch(1, [[]])
    query.run_batch(2, [[2]])

    assert place.rows() == [1, 2]


# ---- two drivers


@pytest.mark.parametrize("kind", [Query, ThreeStreams])
def test_two_drivers_of_one_directory_commit_a_batch_once_in_any_order(
    places: Places, kind: type[Query]
) -> None:
    """Both planned it alike: one commits, the other finds it done."""

    def race(choose: Callable[[int], int]) -> None:
        place = places(kind)
        one, two = place.query(), place.query()
        run_before(one, 1)
        works = [partial(query.commit, 1, query.stage(1)) for query in (one, two)]

        outcomes = Race(place, works).run(choose)

        assert outcomes == [None, None]
        assert place.rows() == [0, *BATCH]
        assert place.markers() == 2

    assert interleavings(race) >= 70


def run_unlooked(query: Query, number: int, parts: Sequence[Sequence[int]]) -> None:
    """Without a look at the reservation: another driver's commit takes it away."""
    query.commit(number, [query.run_task(number, part) for part in parts])


def check_whole_race(places: Places, choose: Callable[[int], int]) -> None:
    """Two batches each, with all that is staged for them."""
    place = places()
    queries = [place.query(), place.query()]

    def work(query: Query) -> None:
        for number in range(2):
            run_unlooked(query, number, [[10 * number, 10 * number + 1]])

    outcomes = Race(place, [partial(work, query) for query in queries]).run(choose)

    assert place.rows() == [0, 1, 10, 11]
    assert place.markers() == 2
    for outcome in outcomes:  # who comes late by a whole batch is told
        assert outcome is None or isinstance(outcome, Fenced)
    assert None in outcomes


def test_two_drivers_of_one_directory_write_each_batch_once_in_many_orders(places: Places) -> None:
    rng = random.Random(2)
    for _ in range(200):
        check_whole_race(places, lambda alive: rng.randrange(alive))


@pytest.mark.soak
def test_two_drivers_of_one_directory_write_each_batch_once_in_more_orders(places: Places) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(20_000):
        check_whole_race(places, lambda alive: rng.randrange(alive))


@pytest.mark.parametrize("kind", [Query, ThreeStreams])
@pytest.mark.parametrize("number", [0, 1])
def test_of_a_directory_and_its_copy_one_is_fenced_in_any_order(
    places: Places, kind: type[Query], number: int
) -> None:
    """The copy plans batches of its own: other rows under the same number."""

    def race(choose: Callable[[int], int]) -> None:
        place = places(kind)
        original, copy = place.query(), place.query("/copy")
        before = run_before(original, number)
        rows = {0: [1, 2], 1: [3, 4]}
        works = [
            partial(query.commit, number, query.stage(number, [rows[which]]))
            for which, query in enumerate((original, copy))
        ]

        outcomes = Race(place, works).run(choose)

        fenced = [isinstance(outcome, Fenced) for outcome in outcomes]
        assert sorted(fenced) == [False, True], outcomes
        winner = fenced.index(False)
        assert outcomes[winner] is None
        assert winner == 0 or number == 0, "who was first has the query"
        assert place.rows() == before + rows[winner]

    assert interleavings(race) >= 30


def test_a_copy_may_go_on_if_it_says_so(places: Places) -> None:
    place = places()
    original, copy = place.query(), place.query("/copy")
    original.run_batch(0, [[0]])

    copy.options = replace(copy.options, take_over=True)
    copy.run_batch(1, [[1]])

    assert isinstance(act(place, None, lambda: original.run_batch(1, [[7]])), Fenced)
    assert isinstance(act(place, None, lambda: original.run_batch(2, [[8]])), Fenced)
    assert place.rows() == [0, 1]


@pytest.mark.parametrize("kind", [Query, ThreeStreams])
@pytest.mark.parametrize("further", [1, 2, 3])
def test_a_zombie_that_commits_late_changes_nothing(
    places: Places, kind: type[Query], further: int
) -> None:
    """At each call of a driver, another runs its batch, and maybe the next ones."""
    calls = clean_calls(places, kind, 1)
    for pause in range(len(calls)):
        place = places(kind)
        zombie, heir = place.query(), place.query()
        run_before(zombie, 1)
        process = Process()

        def turn(process: Process = process, heir: Query = heir, pause: int = pause) -> None:
            if len(process.calls) == pause:
                with heir.between.nobody():
                    heir.run_batch(1)
                    for number in range(1, further):
                        heir.run_batch(1 + number, [[90 + number]])

        process.turn = turn
        outcome = act(place, process, partial(run_unlooked, zombie, 1, PARTS))

        if further == 1:
            assert outcome is None, "the batch is done, and that is all that it wanted"
        else:
            assert isinstance(outcome, Fenced), outcome
        assert place.rows() == [0, *BATCH, *range(91, 90 + further)]


@pytest.mark.parametrize("number", [0, 2])
def test_a_batch_that_comes_late_is_fenced(places: Places, number: int) -> None:
    """An old copy of the directory, or the directory of another log."""
    place = places()
    query = place.query()
    run_before(query, 4)

    error = act(place, None, lambda: query.run_batch(number, [[77]]))

    assert isinstance(error, Fenced)
    assert place.rows() == [0, 1, 2, 3]


# ---- two tasks


def test_two_tasks_that_begin_together_stage_their_rows_in_any_order(places: Places) -> None:
    """One of them reserves what is staged: the reservation is in neither's ranges."""

    def race(choose: Callable[[int], int]) -> None:
        place = places()
        query = place.query()
        messages: dict[int, Any] = {}

        def work(number: int) -> None:
            messages[number] = query.run_task(0, PARTS[number])

        outcomes = Race(place, [partial(work, 0), partial(work, 1)]).run(choose)
        assert outcomes == [None, None]
        query._check_staged(0, [messages[0].staged, messages[1].staged])
        query.commit(0, [messages[0], messages[1]])

        assert sorted(place.rows()) == BATCH
        assert place.reservation is None

    assert interleavings(race) >= 6


# ---- batch writes


def test_a_batch_write_with_a_fault_at_any_call_counts_whole_or_not_at_all(places: Places) -> None:
    """If it says that it is done, it counts; if it says that nothing happened, it does not."""
    place, process = places(), Process()
    assert act(place, process, BatchWrite(place).run) is None
    for where, fault in faults_of(process.calls):
        place = places()

        error = act(place, Process(at(where, fault)), BatchWrite(place).run)

        rows = place.rows()
        assert rows in ([], BATCH), (where, fault)
        assert rows == BATCH or error is not None, (where, fault)
        if isinstance(error, Retryable | Refused):
            assert rows == [], (where, fault)
        act(place, None, BatchWrite(place).run)
        assert place.rows() == rows + BATCH


def test_a_batch_write_whose_answer_is_lost_for_good_is_unknown(places: Places) -> None:
    """Nobody may take it for undone: to write it again would double its rows."""
    for done in (Fault.DONE, Fault.LOST):
        for later in (Fault.REFUSED, Fault.LOST):
            place = places()
            write = BatchWrite(place)
            messages = [write.run_task(part) for part in PARTS]

            process = Process(first_append(done, later))
            error = act(place, process, partial(write.writer.commit, messages))

            assert isinstance(error, Unknown), (done, later, error)
            assert place.rows() == (BATCH if done is Fault.DONE else [])


def test_a_batch_write_counts_once_though_a_late_attempt_reserves_its_rows_anew(
    places: Places,
) -> None:
    """A commit that took effect, unknown to its driver, is not taken for one that did not."""
    place = places()
    write = BatchWrite(place)
    messages = [write.run_task(part) for part in PARTS]
    process = Process(first_append(Fault.DONE, None))

    def turn() -> None:
        if process.calls[-1:] == ["append"]:
            process.turn = lambda: None
            with place.between.nobody():
                write.run_task(PARTS[0])

    process.turn = turn
    error = act(place, process, partial(write.writer.commit, messages))

    assert error is None
    assert place.rows() == BATCH
