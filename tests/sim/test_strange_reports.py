"""Measuring ends no query: strange reports of workers, and reports that cannot be made.

The worlds of test_rescaling.py, in which workers also report nonsense, of tasks that are there, of
tasks that a layout no longer has, and of none. The query must go on (I16), exactly once, and what
it reports itself must be a report (simulation/pipeline/report_law.py). Every law was seen to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from mutant_hunt import foreign_homes
from pipeline_mutants import Mutant, catch, world
from simulation.pipeline.swarm import Fault

from penstock.errors import Unavailable
from penstock.protocol.names import TaskId
from penstock.runtime import coordinator, coordinator_core, edges, progress, task_rates
from penstock.runtime.coordinator import Coordinator
from penstock.runtime.histogram import Buckets
from penstock.runtime.lag import measure_lag
from penstock.runtime.progress import settled_positions
from penstock.runtime.taken import Taken
from penstock.runtime.task_rates import TaskRate
from penstock.runtime.worker import _Assigned

STRANGE: dict[str, Any] = {
    "workers": 2,
    "lanes": 4,
    "replicas": 0,
    "entries": 24,
    "safety_ms": 800,
    "pulses_per_report": 1,
    "mean_ms": {Fault.RESCALE: 120, Fault.KILL: 300, Fault.REPORT: 30},
    "odds": {},
}
COPIED: dict[str, Any] = {**STRANGE, "replicas": 1, "shape": "window"}


@pytest.mark.parametrize(("swarm", "seed"), [(STRANGE, 2), (COPIED, 3)])
def test_a_query_goes_on_whatever_its_workers_report(swarm: dict[str, Any], seed: int) -> None:
    found = world(seed, swarm)
    found.run()
    assert found.counts[f"fault {Fault.REPORT}"] > 5
    assert found.counts["layout changed"] > 0
    assert found.counts["report made"] > 10


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4, 40))
def test_more_worlds_go_on(seed: int) -> None:
    world(seed, (STRANGE, COPIED)[seed % 2]).run()


def measuring_fails(patch: pytest.MonkeyPatch) -> None:
    """As if the log answered those that look at it, and only those, that it is away."""
    asked = iter(range(10**9))

    async def measure(*arguments: Any, **options: Any) -> Any:
        if next(asked) % 3 == 0:
            raise Unavailable("not for measuring")
        return await measure_lag(*arguments, **options)

    patch.setattr(coordinator, "measure_lag", measure)


def test_a_query_that_cannot_be_measured_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    measuring_fails(monkeypatch)
    found = world(1, STRANGE)
    found.run()
    assert found.counts["report made"] > 0


def telling_fails(patch: pytest.MonkeyPatch) -> None:
    """As if a task could not count what it took in."""
    asked = iter(range(10**9))
    original = Taken.report

    def report(self: Taken, *values: Any) -> Any:
        if next(asked) % 3 == 0:
            raise Unavailable("not for telling")
        return original(self, *values)

    patch.setattr(Taken, "report", report)


def test_a_query_whose_tasks_cannot_tell_how_they_stand_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    telling_fails(monkeypatch)
    world(1, STRANGE).run()


# ---- mistakes


def a_report_that_fails_ends_the_query(patch: pytest.MonkeyPatch) -> None:
    measuring_fails(patch)
    patch.setattr(Coordinator, "_try_report", Coordinator._report)


def a_task_that_cannot_tell_ends_its_worker(patch: pytest.MonkeyPatch) -> None:
    telling_fails(patch)

    def report(self: Any) -> Any:
        if self.task is None:
            return {"instance": self.instance, "is_running": False}, None
        return self.task.report(), self.task.meter

    patch.setattr(_Assigned, "report", report)


def counts_are_taken_in_whatever_they_are(patch: pytest.MonkeyPatch) -> None:
    def read(values: Mapping[str, Any]) -> dict[str, Any]:
        counts = ("instance", "rows_in", "rows_out", "state_rows", "state_bytes")
        return {name: values[name] for name in counts if type(values.get(name)) is int}

    patch.setattr(coordinator_core, "read_report", read)


def a_report_mixes_two_layouts(patch: pytest.MonkeyPatch) -> None:
    """The tasks are those of before the log was asked, the layout is that of after it."""

    async def report(self: Coordinator) -> dict[str, Any]:
        reports = self._task_reports()
        tail, now_ms = (await self._log.bounds()).tail, self._host.now_ms()
        lags = {}
        for stream, stage, position in list(settled_positions(self.spec, reports)):
            lags[stream, stage] = await measure_lag(self._log, stream, position, now_ms=now_ms)
        more = self._tell_more()
        told = self._make_progress(self.spec, reports, now_ms, tail, lags, more)
        self.recent.append(told)
        return told

    def all_of_them(spec: Any, reports: Mapping[TaskId, Any]) -> Mapping[TaskId, Any]:
        return reports

    patch.setattr(Coordinator, "_report", report)
    patch.setattr(progress, "of_layout", all_of_them)


def what_nobody_told_is_zero(patch: pytest.MonkeyPatch) -> None:
    original = edges._rows_per_second
    patch.setattr(edges, "_rows_per_second", lambda *values: original(*values) or 0.0)


def latencies_are_counted_back_when_a_task_begins_again(patch: pytest.MonkeyPatch) -> None:
    def add_growth(self: Buckets, now: Buckets, before: Buckets) -> None:
        pairs: Iterable[tuple[int, int]] = zip(now.counts, before.counts, strict=True)
        self.counts = [mine + n - b for mine, (n, b) in zip(self.counts, pairs, strict=True)]

    patch.setattr(Buckets, "add_growth", add_growth)


def time_goes_back_and_is_counted(patch: pytest.MonkeyPatch) -> None:
    def rate(before: Any, now: Any) -> TaskRate:
        ms = now.ms - before.ms
        spent = ((now.busy_ms, before.busy_ms), (now.waiting_ms, before.waiting_ms),
                 (now.blocked_ms, before.blocked_ms))  # fmt: skip
        return TaskRate(*((one - other) / ms for one, other in spent), {})

    patch.setattr(task_rates, "_rate", rate)


MUTANTS = [
    Mutant(apply.__name__.replace("_", " "), apply, "marker", swarm)
    for apply, swarm in (
        (a_report_that_fails_ends_the_query, STRANGE),
        (a_task_that_cannot_tell_ends_its_worker, STRANGE),
        (counts_are_taken_in_whatever_they_are, STRANGE),
        (a_report_mixes_two_layouts, STRANGE),
        (what_nobody_told_is_zero, STRANGE),
        (time_goes_back_and_is_counted, STRANGE),
        (latencies_are_counted_back_when_a_task_begins_again, STRANGE),
    )
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_world_catches(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    catch(mutant, monkeypatch, capsys)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_of_reports_changes_shipped_code_only(mutant: Mutant) -> None:
    apply: Callable[[pytest.MonkeyPatch], None] = mutant.apply
    assert foreign_homes(apply) == []
