"""Which workers keep copies of which tasks' states: a pure function of who is there and what was.

Rhino's replication manager. Laws: a copy is never with the worker that runs the task; as many as
were asked for, or as many as there are other workers; on another executor if there is one, since
executors fail whole; a copy stays where it is as long as these hold; among the workers that could
take a new one, the one that holds the fewest bytes does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.protocol.names import TaskId

#: Workers that keep a copy, by task.
Copies = dict[TaskId, tuple[str, ...]]


def place_copies(
    replicas: int,
    places: Mapping[TaskId, str],
    workers: Mapping[str, str],
    previous: Mapping[TaskId, Sequence[str]],
    state_bytes: Mapping[TaskId, int],
) -> Copies:
    """`places`: the worker of each task; `workers`: the executor of each, in order."""
    held = dict.fromkeys(workers, 0)
    for task, worker in places.items():
        held[worker] = held.get(worker, 0) + _size(task, state_bytes)
    copies: Copies = {}
    for task in sorted(places):
        kept = _still_right(task, places[task], workers, previous.get(task, ()))[:replicas]
        for worker in kept:
            held[worker] += _size(task, state_bytes)
        copies[task] = kept
    # The largest first: what comes later evens out.
    for task in sorted(places, key=lambda task: (-_size(task, state_bytes), task)):
        missing = replicas - len(copies[task])
        more = _choose(missing, places[task], copies[task], workers, held)
        for worker in more:
            held[worker] += _size(task, state_bytes)
        copies[task] = _in_order([*copies[task], *more], places[task], workers)
    return copies


def _choose(
    count: int,
    place: str,
    kept: Sequence[str],
    workers: Mapping[str, str],
    held: Mapping[str, int],
) -> list[str]:
    """So many more, on executors that have neither the task nor a copy if there are such."""
    order, chosen = list(workers), [*kept]

    def merit(one: str) -> tuple[bool, bool, int, int]:
        there = workers[one]
        has_copy = there in [workers[worker] for worker in chosen]
        return there == workers.get(place), has_copy, held[one], order.index(one)

    for _ in range(count):
        others = [worker for worker in order if worker != place and worker not in chosen]
        if others:
            chosen.append(min(others, key=merit))
    return chosen[len(kept) :]


def _still_right(
    task: TaskId, place: str, workers: Mapping[str, str], previous: Sequence[str]
) -> tuple[str, ...]:
    """Those that live, elsewhere than the task; beside it only if no other executor is left."""
    living = [worker for worker in previous if worker in workers and worker != place]
    home = workers.get(place)
    abroad = {worker for worker, executor in workers.items() if executor != home}
    if abroad <= set(living):
        return _in_order(living, place, workers)
    return tuple(worker for worker in living if worker in abroad)


def _in_order(chosen: Sequence[str], place: str, workers: Mapping[str, str]) -> tuple[str, ...]:
    """Those on other executors than the task first."""
    return tuple(sorted(chosen, key=lambda one: (workers[one] == workers.get(place), one)))


def _size(task: TaskId, state_bytes: Mapping[TaskId, int]) -> int:
    """One more: tasks without state, or without a word of it yet, spread, too."""
    return 1 + state_bytes.get(task, 0)
