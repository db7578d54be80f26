"""Copies are never beside their task, spread over executors, stay, and even out bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.names import TaskId
from penstock.runtime.replication import place_copies

TASKS = [TaskId("q", 1, stage, index) for stage in range(2) for index in range(3)]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[int, dict[TaskId, str], dict[str, str], dict[TaskId, int]]:
    workers = {f"w{at}": draw(st.sampled_from("xyz")) for at in range(draw(st.integers(1, 5)))}
    tasks = TASKS[: draw(st.integers(1, len(TASKS)))]
    places = {task: draw(st.sampled_from(sorted(workers))) for task in tasks}
    sizes = {task: draw(st.integers(0, 1000)) for task in tasks if draw(st.booleans())}
    return draw(st.integers(1, 3)), places, workers, sizes


@given(clusters(), st.dictionaries(st.sampled_from(TASKS), st.lists(st.sampled_from(
    ["w0", "w1", "w2", "gone"]), unique=True, max_size=3)))  # fmt: skip
def test_copies_are_elsewhere_as_many_as_can_be_and_stay(
    cluster: tuple[int, dict[TaskId, str], dict[str, str], dict[TaskId, int]],
    previous: dict[TaskId, list[str]],
) -> None:
    replicas, places, workers, sizes = cluster
    copies = place_copies(replicas, places, workers, previous, sizes)

    for task, place in places.items():
        kept = copies[task]
        assert place not in kept
        assert len(set(kept)) == len(kept) == min(replicas, len(workers) - 1)
        elsewhere = [worker for worker in workers if workers[worker] != workers[place]]
        if elsewhere and kept:
            assert workers[kept[0]] != workers[place], "executors fail whole"
    assert place_copies(replicas, places, workers, copies, sizes) == copies, "they stay"


def test_the_worker_with_the_fewest_bytes_takes_a_copy() -> None:
    first, second, third = TASKS[:3]
    places = {first: "a", second: "b", third: "c"}
    sizes = {first: 1000, second: 10, third: 500}
    copies = place_copies(1, places, dict.fromkeys("abc", "x"), {}, sizes)
    assert copies[first] == ("b",), "the largest state goes to whoever has least"


def test_a_copy_leaves_the_executor_of_its_task_when_there_is_another() -> None:
    [task] = TASKS[:1]
    copies = place_copies(1, {task: "a"}, {"a": "x", "b": "x"}, {}, {})
    assert copies == {task: ("b",)}
    copies = place_copies(1, {task: "a"}, {"a": "x", "b": "x", "c": "y"}, copies, {})
    assert copies == {task: ("c",)}
