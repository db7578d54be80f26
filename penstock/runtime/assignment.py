"""Which worker runs which task: a pure function of who is there and what was.

Laws: every task has one worker, if there is any; a task stays where it is unless its worker is gone
or has two more than another; one whose worker is gone goes to a worker that keeps a copy of its
state, if there is one; no worker has two more than another, not counting tasks that were put where
they are by hand or go to their copy now; where there is a choice, tasks of one stage spread over
workers before they double up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from penstock.protocol.names import TaskId


def assign(
    tasks: Sequence[TaskId],
    workers: Sequence[str],
    previous: Mapping[TaskId, str],
    *,
    copies: Mapping[TaskId, Sequence[str]] = MappingProxyType({}),
    by_hand: Mapping[TaskId, str] = MappingProxyType({}),
) -> dict[TaskId, str]:
    """By task, its worker; empty without workers. The order of `workers` breaks ties."""
    if not workers:
        return {}
    fixed = {task: worker for task, worker in by_hand.items() if worker in workers}
    placed: dict[TaskId, str] = {
        task: previous[task] for task in tasks if previous.get(task) in workers
    }
    placed |= fixed

    def load(worker: str, stage: int) -> tuple[int, int, int]:
        mine = [task for task, owner in placed.items() if owner == worker]
        return len(mine), sum(task.stage == stage for task in mine), workers.index(worker)

    for task in sorted(tasks):
        if task not in placed:
            able = [worker for worker in copies.get(task, ()) if worker in workers]
            placed[task] = min(able or workers, key=lambda worker: load(worker, task.stage))
            if able:
                fixed[task] = placed[task]
    while True:
        free = [owner for task, owner in placed.items() if task not in fixed]
        counts = {worker: free.count(worker) for worker in workers}
        fullest = max(workers, key=lambda worker: (counts[worker], -workers.index(worker)))
        emptiest = min(workers, key=lambda worker: (counts[worker], workers.index(worker)))
        if counts[fullest] - counts[emptiest] < 2:
            return dict(sorted(placed.items()))
        moved = max(
            (task for task, owner in placed.items() if owner == fullest and task not in fixed),
            key=lambda task: (
                emptiest in copies.get(task, ()),
                load(fullest, task.stage)[1] - load(emptiest, task.stage)[1],
                task,
            ),
        )
        placed[moved] = emptiest
