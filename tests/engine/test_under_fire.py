"""Exactly once under fire: whatever is killed, the results are those of batch Spark.

Four queries run at once on real processes: the log server, a driver with its JVM, two executors
and eight Python workers, while a feed appends. All kinds of faults come at random moments, a part
of them beside a busy processor. In the end every result equals batch Spark's over the same rows,
and the log itself keeps every law.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from fire import Stand
from fire_queries import QUERIES, closing_rows
from harness.engine_checkers import by_task, check_engine, find_markers
from harness.soak import fresh_seeds
from nemesis import Nemesis, cpu_load

from penstock.log.records import Entry
from penstock.protocol.names import parse_task

SEED = 20261101
#: Two executors; in name, each has cores enough for all workers, should the other be lost.
MASTER = "local-cluster[2,8,1024]"


@dataclass(slots=True)
class Plan:
    """How much of what."""

    #: Single kills whose recovery is timed and told; bars are for `penstock bench recovery`.
    timed_workers: int = 0
    timed_executors: int = 0
    #: Faults of a round; a driver is killed after each.
    calm_machine: Counter[str] = field(
        default_factory=lambda: Counter(worker=6, server=2, zombie=1)
    )
    busy_machine: Counter[str] = field(
        default_factory=lambda: Counter(worker=4, server=1, zombie=1, executor=1)
    )
    rounds: int = 1
    #: How long a round of faults may take, so that a slow machine has fewer.
    round_seconds: float = 18.0


@dataclass(slots=True)
class Report:
    """What a run was like."""

    seed: int
    counts: Counter[str]
    worker_seconds: list[float]
    executor_seconds: list[float]
    driver_seconds: list[float]
    outcome: dict[str, object]
    events: int
    seconds: float
    #: Seconds since the start, by what was done then.
    phases: dict[str, float]
    instances: int = 0
    longest_pause_seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items()))
        return "\n".join(
            [
                f"under fire, seed {self.seed}, {self.seconds:.0f} s: "
                + ", ".join(f"{what} {at:.0f}" for what, at in self.phases.items()),
                f"  faults                     {self.counts.total()}: {kills}",
                f"  instances that took over   {self.instances}",
                f"  longest pause of a query   {self.longest_pause_seconds:.1f} s",
                f"  events fed                 {self.events}",
                f"  rows of results            {self.outcome}",
                f"  worker killed, all tasks   {_show(self.worker_seconds)}",
                f"  executor killed            {_show(self.executor_seconds)}",
                f"  driver killed              {_show(self.driver_seconds)}",
            ]
        )


def _show(seconds: list[float]) -> str:
    if not seconds:
        return "-"
    each = " ".join(f"{one:.2f}" for one in seconds)
    return f"commit again after {statistics.median(seconds):.2f} s (median of {each})"


def run_under_fire(directory: Path, seed: int, plan: Plan) -> Report:
    began = time.monotonic()
    phases: dict[str, float] = {}

    def reached(what: str) -> None:
        phases[what] = time.monotonic() - began

    rng = random.Random(seed)
    with Stand(directory, master=MASTER, queries=list(QUERIES), workers=2) as stand:
        stand.feeding.set()
        stand.start_driver().wait_for("running")
        stand.wait_placed()
        reached("running")
        nemesis = Nemesis(stand, rng)
        for number in range(plan.rounds):
            until = time.monotonic() + plan.round_seconds
            nemesis.run(list(plan.calm_machine.elements()), until)
            reached(f"fire {number}")
            nemesis.driver()
            reached(f"driver {number}")
            with cpu_load(2):
                until = time.monotonic() + plan.round_seconds
                nemesis.run(list(plan.busy_machine.elements()), until)
            reached(f"busy fire {number}")
            nemesis.driver()
            reached(f"busy driver {number}")
        worker_seconds = [
            time_kill(stand, nemesis, "worker", 15.0) for _ in range(plan.timed_workers)
        ]
        executor_seconds = [
            time_kill(stand, nemesis, "executor", 30.0) for _ in range(plan.timed_executors)
        ]
        reached("timed")
        stand.stop_feeding()
        stand.append(closing_rows())
        stand.driver.ask(command="verify", events=stand.events)
        outcome = stand.driver.wait_for("verified")["outcome"]
        reached("verified")
        entries = stand.log.client.read()
        assert stand.errors == []
        assert stand.failures == []
        report = Report(
            seed, nemesis.counts, worker_seconds, executor_seconds, nemesis.driver_seconds,
            outcome, stand.events, time.monotonic() - began, phases,
        )  # fmt: skip
    look_at_log(report, entries)
    return report


def time_kill(stand: Stand, nemesis: Nemesis, kind: str, seconds: float) -> float:
    """Until the last task that was hit has committed again."""
    took: list[float] = []
    while not took:  # one that just came may have no task yet
        took = stand.wait_recovered(getattr(nemesis, kind)(), seconds)
        time.sleep(1.0)  # a successor says hello, and tasks move back to it
    return max(took)


def look_at_log(report: Report, entries: list[Entry]) -> None:
    report.problems = check_engine(entries)
    markers = find_markers(entries)
    tasks = by_task(markers)
    report.instances = sum(len({at.marker.instance for at in one}) - 1 for one in tasks.values())
    times: dict[str, list[int]] = {}
    for at in markers:
        times.setdefault(parse_task(at.marker.task).query, []).append(at.entry.time_ms)
    gaps = [after - before for one in times.values() for before, after in pairwise(one)]
    report.longest_pause_seconds = max(gaps) / 1000


def check(report: Report) -> None:
    assert report.problems == []
    wrong = {name: found for name, found in report.outcome.items() if not isinstance(found, int)}
    assert wrong == {}
    assert report.outcome.keys() == QUERIES.keys()
    assert all(report.outcome.values()), "a query without a result shows nothing"


@pytest.mark.timeout(1500)  # two minutes on two cores
def test_results_are_batch_sparks_whatever_is_killed(tmp_path: Path, tables: list[str]) -> None:
    """Method: some twenty faults of five kinds at four queries."""
    report = run_under_fire(tmp_path, SEED, Plan())
    print(report)
    tables.append(str(report))

    check(report)


@pytest.mark.soak
def test_results_are_batch_sparks_after_hours_of_fire(tmp_path: Path, tables: list[str]) -> None:
    for seed in fresh_seeds():
        plan = Plan(
            timed_workers=7,
            timed_executors=2,
            calm_machine=Counter(worker=18, server=5, zombie=2),
            busy_machine=Counter(worker=17, server=4, zombie=2, executor=1),
            rounds=4,
            round_seconds=29.0,
        )
        report = run_under_fire(tmp_path / str(seed), seed, plan)
        tables.append(str(report))
        check(report)
