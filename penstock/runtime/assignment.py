"""Which worker runs which task: a pure function of who is there and what was.

Laws: every task has one worker, if there is any, and no worker has two more than another; a task
stays where it is unless its worker is gone or has two more than another; where there is a choice,
tasks of one stage spread over workers before they double up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.protocol.names import TaskId


def assign(
    tasks: Sequence[TaskId], workers: Sequence[str], previous: Mapping[TaskId, str]
) -> dict[TaskId, str]:
    """By task, its worker; empty without workers. The order of `workers` breaks ties."""
    if not workers:
        return {}
    placed: dict[TaskId, str] = {
        task: previous[task] for task in tasks if previous.get(task) in workers
    }

    def load(worker: str, stage: int) -> tuple[int, int, int]:
        mine = [task for task, owner in placed.items() if owner == worker]
        return len(mine), sum(task.stage == stage for task in mine), workers.index(worker)

    for task in sorted(tasks):
        if task not in placed:
            placed[task] = min(workers, key=lambda worker: load(worker, task.stage))
    while True:
        counts = {worker: load(worker, -1)[0] for worker in workers}
        fullest = max(workers, key=lambda worker: (counts[worker], -workers.index(worker)))
        emptiest = min(workers, key=lambda worker: (counts[worker], workers.index(worker)))
        if counts[fullest] - counts[emptiest] < 2:
            return dict(sorted(placed.items()))
        moved = max(
            (task for task, owner in placed.items() if owner == fullest),
            key=lambda task: (load(fullest, task.stage)[1] - load(emptiest, task.stage)[1], task),
        )
        placed[moved] = emptiest
