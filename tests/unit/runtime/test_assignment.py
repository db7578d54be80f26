"""Every task has a place, places are balanced, and nothing moves without need."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.names import TaskId
from penstock.runtime.assignment import assign


def tasks_of(*counts: int) -> list[TaskId]:
    return [TaskId("q", 1, stage, at) for stage, count in enumerate(counts) for at in range(count)]


def loads(placed: dict[TaskId, str], workers: list[str]) -> list[int]:
    counts = Counter(placed.values())
    return [counts[worker] for worker in workers]


TASKS = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(lambda counts: tasks_of(*counts))
WORKERS = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[TaskId], list[str], dict[TaskId, str]]:
    """Tasks, who is there, and where tasks were, on workers that may be gone."""
    tasks = draw(TASKS)
    was = {task: draw(st.sampled_from("abcdefgh")) for task in tasks if draw(st.booleans())}
    return tasks, draw(WORKERS), was


@given(worlds())
def test_every_task_has_a_worker_that_is_there_in_balance_and_moves_only_for_that(
    world: tuple[list[TaskId], list[str], dict[TaskId, str]],
) -> None:
    tasks, workers, was = world
    placed = assign(tasks, workers, was)
    assert list(placed) == sorted(tasks)
    assert set(placed.values()) <= set(workers)
    found = loads(placed, workers)
    assert max(found) - min(found) <= 1

    moved = [task for task, worker in was.items() if worker in workers and placed[task] != worker]
    kept = Counter(worker for worker in was.values() if worker in workers)
    least, more = divmod(len(tasks), len(workers))
    # At best, the fullest workers keep one more than the others.
    fullest = sorted((kept[worker] for worker in workers), reverse=True)
    room = [least + 1] * more + [least] * (len(workers) - more)
    surplus = sum(max(0, have - fits) for have, fits in zip(fullest, room, strict=True))
    assert len(moved) == surplus

    assert assign(tasks, workers, placed) == placed, "a good assignment stays"
    assert assign(list(reversed(tasks)), list(reversed(workers)), placed) == placed


@given(TASKS, WORKERS)
def test_at_first_tasks_of_a_stage_spread_before_they_double_up(
    tasks: list[TaskId], workers: list[str]
) -> None:
    placed = assign(tasks, workers, {})
    for stage in {task.stage for task in tasks}:
        mine = {task: worker for task, worker in placed.items() if task.stage == stage}
        found = loads(mine, workers)
        assert max(found) - min(found) <= 1


def test_without_workers_nothing_is_placed() -> None:
    assert assign(tasks_of(2), [], {}) == {}


def test_tasks_of_a_lost_worker_go_to_those_with_the_least() -> None:
    tasks = tasks_of(2, 2)
    placed = assign(tasks, ["a", "b"], {})
    assert [placed[task] for task in tasks] == ["a", "b", "a", "b"]
    again = assign(tasks, ["a", "c"], placed)
    assert [again[task] for task in tasks] == ["a", "c", "a", "c"]


def test_a_new_worker_takes_tasks_of_different_stages() -> None:
    tasks = tasks_of(2, 2)
    placed = assign(tasks, ["a", "b"], assign(tasks, ["a"], {}))
    moved = [task.stage for task, worker in placed.items() if worker == "b"]
    assert sorted(moved) == [0, 1]


def test_a_lost_task_goes_to_its_copy_even_if_others_have_less() -> None:
    tasks = tasks_of(4)
    copies = {tasks[0]: ["b"], tasks[1]: ["b", "c"]}
    was = dict(zip(tasks, "aabc", strict=True))
    placed = assign(tasks, ["b", "c"], was, copies=copies)
    assert [placed[task] for task in tasks] == ["b", "c", "b", "c"]


def test_what_has_gone_to_its_copy_moves_on_only_from_there() -> None:
    tasks = tasks_of(3)
    copies = {task: ["b"] for task in tasks}
    was = dict.fromkeys(tasks, "a")
    assert set(assign(tasks, ["b", "c"], was, copies=copies).values()) == {"b"}
    settled = assign(tasks, ["b", "c"], dict.fromkeys(tasks, "b"), copies=copies)
    assert Counter(settled.values()) == {"b": 2, "c": 1}


def test_a_task_that_was_put_somewhere_stays_there() -> None:
    tasks = tasks_of(2)
    was = dict(zip(tasks, "ab", strict=True))
    by_hand = {tasks[0]: "b"}
    assert set(assign(tasks, ["a", "b"], was, by_hand=by_hand).values()) == {"b"}
    assert assign(tasks, ["a"], was, by_hand=by_hand) == dict.fromkeys(tasks, "a"), "b is gone"
