"""How a query stands, as one JSON object under the names of Spark's StreamingQueryProgress. Pure.

Made of what the tasks reported. Counters of tasks are over all their instances (they are in the
markers); rates are differences between two reports. What is not known is None, or not there, and
never 0. Law: reports that leave out anything, or are of tasks that the layout does not have, make a
progress like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from penstock.plan import nodes as n
from penstock.protocol.names import TaskId
from penstock.runtime.edges import GraphFacts, make_graph, tell_lag
from penstock.runtime.graph import Outline, outline
from penstock.runtime.histogram import Histogram
from penstock.runtime.spec import QuerySpec
from penstock.runtime.task_rates import LatencyTotals, TaskRate, TaskRates
from penstock.runtime.time_text import is_shown, time_text

if TYPE_CHECKING:
    from penstock.runtime.lag import Lag

Report = Mapping[str, Any]


#: By stream, and stage that reads it.
Lags = Mapping[tuple[str, int], "Lag"]


@dataclass(slots=True)
class Rates:
    """The last report's counters, for the next one's rates."""

    at_ms: int | None = None
    rows: dict[str, int] = field(default_factory=dict)
    #: Rows that waited in the sources.
    behind: int = 0
    tasks: TaskRates = field(default_factory=TaskRates)
    latency: LatencyTotals = field(default_factory=LatencyTotals)
    #: The graph of the query under its newest layout.
    _outline: tuple[QuerySpec, Outline] | None = None

    def grow(self, name: str, value: int) -> tuple[int, int]:
        """(the counter now, how much it grew). It never falls: a task that resumes reports none."""
        before = self.rows.get(name, value)
        now = self.rows[name] = max(value, before)
        return now, now - before

    def outline(self, spec: QuerySpec) -> Outline:
        if self._outline is None or self._outline[0] is not spec:
            self._outline = (spec, outline(spec))
        return self._outline[1]


def make_progress(
    spec: QuerySpec,
    reports: Mapping[TaskId, Report],
    *,
    id: str,
    run_id: str,
    number: int,
    now_ms: int,
    tail: int | None,
    lags: Lags,
    workers: int,
    rates: Rates,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """The progress, and `rates` brought up to date. `more`: what only the coordinator knows."""
    reports = of_layout(spec, reports)
    seconds = None if rates.at_ms is None else max((now_ms - rates.at_ms) / 1000, 0.001)

    def per_second(rows: int) -> float | None:
        return None if seconds is None else round(rows / seconds, 1)

    last = len(spec.tasks) - 1
    given, new_out = rates.grow("out", sum(_count(reports, last, "rows_out")))
    commit_ms = _merge(reports, "commit_ms")
    visible_ms = _merge(
        {task: report for task, report in reports.items() if task.stage == last}, "visible_ms"
    )
    rows_in, new_in = rates.grow("in", _rows_of_sources(spec, reports))
    largest = {stream: _largest(spec, lags, stream) for stream in spec.query.streams}
    behind = sum(lag.records for lag in largest.values() if lag is not None)
    new_lag, rates.behind = behind - rates.behind, behind
    by_task = rates.tasks.update(reports)
    told = _watermarks(spec, reports)
    progress = {
        "id": id,
        "runId": run_id,
        "name": spec.name,
        "timestamp": time_text(now_ms),
        "batchId": number,
        "numInputRows": new_in,
        "numInputRowsTotal": rows_in,
        "inputRowsPerSecond": per_second(max(new_in + new_lag, 0)),
        "processedRowsPerSecond": per_second(new_in),
        "durationMs": {"commit": commit_ms.summary()},
        "latencyMs": visible_ms.summary(),
        "latencyBuckets": rates.latency.update(reports).to_json(),
        "eventTime": {"watermark": time_text(min(told.values()))} if told else {},
        "stateOperators": _states(spec, reports),
        "sources": [
            _source(spec, reports, stream, largest[stream], tail) for stream in spec.query.streams
        ],
        "sink": {
            "description": f"penstock stream {spec.to}",
            "numOutputRows": given,
            "outputRowsPerSecond": per_second(new_out),
        },
        "tasks": {
            str(task): {**_task(report), **_shares(by_task.get(task))}
            for task, report in reports.items()
        },
        "workers": workers,
        **more,
    }
    facts = GraphFacts(spec, reports, by_task, told, lags, now_ms, per_second(new_out))
    progress["graph"] = make_graph(rates.outline(spec), facts)
    for worker, member in progress.get("members", {}).items():
        member["busyShare"] = _busy_share(reports, by_task, worker)
        member.update(_state_memory(reports, worker))
    rates.at_ms = now_ms
    return progress


def of_layout(spec: QuerySpec, reports: Mapping[TaskId, Report]) -> Mapping[TaskId, Report]:
    """The reports of tasks that the query has, in order: the others have successors by now."""
    return {task: reports[task] for task in spec.task_ids if task in reports}


def _rows_of_sources(spec: QuerySpec, reports: Mapping[TaskId, Report]) -> int:
    return sum(
        sum(_count(reports, stage, "rows_in"))
        for stage in spec.running_stages
        if any(isinstance(leaf, n.Scan) for leaf in spec.inputs(stage))
    )


def _largest(spec: QuerySpec, lags: Lags, stream: str) -> Lag | None:
    """Of all stages that read the stream; None if it is not known of all."""
    found = [
        lags.get((stream, stage)) for stage in spec.running_stages if _reads(spec, stage, stream)
    ]
    known = [lag for lag in found if lag is not None]
    if len(known) < len(found):
        return None
    return max(known, key=lambda lag: (lag.records, lag.seconds), default=None)


def _reads(spec: QuerySpec, stage: int, stream: str) -> bool:
    leaves = spec.inputs(stage)
    return any(isinstance(leaf, n.Scan) and leaf.stream == stream for leaf in leaves)


def _busy_share(
    reports: Mapping[TaskId, Report], rates: Mapping[TaskId, TaskRate], worker: str
) -> float | None:
    """Of the worker's one thread, which its tasks share."""
    mine = [task for task, report in reports.items() if report.get("worker") == worker]
    told = [rates[task].busy for task in mine if task in rates]
    return round(min(sum(told), 1.0), 4) if told else None


_MEMORY_FACTS: Final = {
    "state_memory": "stateMemory",
    "state_file_bytes": "stateFileBytes",
    "state_mapped_in_bytes": "stateMappedInBytes",
}


def _state_memory(reports: Mapping[TaskId, Report], worker: str) -> dict[str, int]:
    """Of a worker with a bound: its tasks share one room, and each tells of all of it."""
    mine = [report for report in reports.values() if report.get("worker") == worker]
    newest = max(mine, key=lambda report: report.get("reported_at_ms") or 0, default={})
    return {said: newest[name] for name, said in _MEMORY_FACTS.items() if name in newest}


def _watermarks(spec: QuerySpec, reports: Mapping[TaskId, Report]) -> dict[int, int]:
    """Of each stage: that of its slowest task, or the latest where tasks tell one time together."""
    by_stage: dict[int, list[int]] = {}
    for task, report in reports.items():
        ms = report.get("watermark_ms")
        if ms is not None and is_shown(ms):
            by_stage.setdefault(task.stage, []).append(ms)
    return {
        stage: max(told) if spec.shares_time(stage) else min(told)
        for stage, told in by_stage.items()
    }


def _count(reports: Mapping[TaskId, Report], stage: int, name: str) -> list[int]:
    return [int(report.get(name, 0)) for task, report in reports.items() if task.stage == stage]


def _merge(reports: Mapping[TaskId, Report], name: str) -> Histogram:
    histograms = (Histogram.from_json(report.get(name, {})) for report in reports.values())
    return Histogram().merge(histograms)


def _states(spec: QuerySpec, reports: Mapping[TaskId, Report]) -> list[dict[str, Any]]:
    return [
        {
            "operatorName": f"stage {stage}",
            "numRowsTotal": sum(_count(reports, stage, "state_rows")),
            "memoryUsedBytes": sum(_count(reports, stage, "state_bytes")),
            "numRowsDroppedByWatermark": sum(_count(reports, stage, "rows_late")),
        }
        for stage in spec.running_stages
    ]


def _source(
    spec: QuerySpec,
    reports: Mapping[TaskId, Report],
    stream: str,
    lag: Lag | None,
    tail: int | None,
) -> dict[str, Any]:
    source: dict[str, Any] = {
        "description": f"penstock stream {stream}",
        "startOffset": spec.sources[stream].start,
        "endOffset": source_position(spec, reports, stream),
        "latestOffset": tail,
    }
    if lag is not None:
        source["lag"] = tell_lag(lag)
    return source


def settled_positions(
    spec: QuerySpec, reports: Mapping[TaskId, Report]
) -> Iterator[tuple[str, int, int]]:
    """Stream, stage that reads it, and below which position that has nothing left to do."""
    for stage in spec.running_stages:
        streams = [leaf.stream for leaf in spec.inputs(stage) if isinstance(leaf, n.Scan)]
        tasks = spec.tasks_of(stage)
        positions = [reports.get(task, {}).get("settled_position") for task in tasks]
        told = [position for position in positions if position is not None]
        if len(told) == len(tasks):
            for stream in dict.fromkeys(streams):
                yield stream, stage, min(told)


def source_position(spec: QuerySpec, reports: Mapping[TaskId, Report], stream: str) -> int | None:
    """No task that reads the stream has anything to do below; None: not known yet."""
    positions: list[int | None] = []
    for task in spec.task_ids:
        if _reads(spec, task.stage, stream):
            positions.append(reports.get(task, {}).get("settled_position"))
    told = [position for position in positions if position is not None]
    return min(told) if told and len(told) == len(positions) else None


_TASK_FACTS = (
    "worker", "instance", "is_running", "reported_at_ms", "committed_position", "committed_at_ms",
    "commits_ever", "rows_in", "rows_out", "rows_late", "dead_letters", "virtual_nodes",
    "state_rows", "state_bytes", "state_rows_unread", "checkpoint_lsn", "checkpoint_at_ms",
    "checkpoint_bytes", "checkpoint_ms", "checkpoints", "checkpoint_failures", "checkpoint_error",
    "resume_ms", "from_standby", "source_bytes", "rows_waiting",
)  # fmt: skip


def _task(report: Report) -> dict[str, Any]:
    told = {name: report[name] for name in _TASK_FACTS if name in report}
    watermark_ms = report.get("watermark_ms")
    if watermark_ms is not None and is_shown(watermark_ms):
        told["watermark_ms"] = watermark_ms
    if report.get("is_running") and report.get("step_ms") is not None:
        told["step_ms"] = report["step_ms"]
    if "inputs" in report:
        told["inputs"] = {
            name: {key: one.get(key) for key in ("rows", "delay_ms")}
            for name, one in report["inputs"].items()
        }
    if report.get("standbys"):
        told["standbys"] = report["standbys"]
    return told


def _shares(rate: TaskRate | None) -> dict[str, float]:
    if rate is None:
        return {}
    return {
        "busy_share": round(rate.busy, 4),
        "waiting_share": round(rate.waiting, 4),
        "back_pressured_share": round(rate.back_pressured, 4),
    }
