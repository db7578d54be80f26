"""How a query stands, as one JSON object under the names of Spark's StreamingQueryProgress. Pure.

Made of what the tasks reported. Counters of tasks are over all their instances (they are in the
markers); rates are differences between two reports of the coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from penstock.plan import nodes as n
from penstock.protocol.names import TaskId
from penstock.runtime.histogram import Histogram
from penstock.runtime.spec import QuerySpec

if TYPE_CHECKING:
    from penstock.runtime.lag import Lag

Report = Mapping[str, Any]


@dataclass(slots=True)
class Rates:
    """The last report's counters, for the next one's rates."""

    at_ms: int | None = None
    rows: dict[str, int] = field(default_factory=dict)
    #: Rows that waited in the sources.
    behind: int = 0

    def grow(self, name: str, value: int) -> tuple[int, int]:
        """(the counter now, how much it grew). It never falls: a task that resumes reports none."""
        before = self.rows.get(name, value)
        now = self.rows[name] = max(value, before)
        return now, now - before


def make_progress(
    spec: QuerySpec,
    reports: Mapping[TaskId, Report],
    *,
    id: str,
    run_id: str,
    number: int,
    now_ms: int,
    tail: int,
    lags: Mapping[str, Lag],
    workers: int,
    rates: Rates,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """The progress, and `rates` brought up to date. `more`: what only the coordinator knows."""
    seconds = None if rates.at_ms is None else max((now_ms - rates.at_ms) / 1000, 0.001)
    last = len(spec.tasks) - 1
    given, new_out = rates.grow("out", sum(_count(reports, last, "rows_out")))
    commit_ms = _merge(reports, "commit_ms")
    visible_ms = _merge(
        {task: report for task, report in reports.items() if task.stage == last}, "visible_ms"
    )
    rows_in, new_in = rates.grow(
        "in",
        sum(
            sum(_count(reports, stage, "rows_in"))
            for stage in spec.running_stages
            if any(isinstance(leaf, n.Scan) for leaf in spec.inputs(stage))
        ),
    )
    behind = sum(lag.records for lag in lags.values())
    new_lag, rates.behind = behind - rates.behind, behind

    def per_second(rows: int) -> float | None:
        return None if seconds is None else round(rows / seconds, 1)

    told = _watermarks(spec, reports)
    progress = {
        "id": id,
        "runId": run_id,
        "name": spec.name,
        "timestamp": _time(now_ms),
        "batchId": number,
        "numInputRows": new_in,
        "numInputRowsTotal": rows_in,
        "inputRowsPerSecond": per_second(max(new_in + new_lag, 0)),
        "processedRowsPerSecond": per_second(new_in),
        "durationMs": {"commit": commit_ms.summary()},
        "latencyMs": visible_ms.summary(),
        "eventTime": {"watermark": _time(min(told))} if told else {},
        "stateOperators": _states(spec, reports),
        "sources": [
            _source(spec, reports, stream, lags.get(stream), tail) for stream in spec.query.streams
        ],
        "sink": {
            "description": f"penstock stream {spec.to}",
            "numOutputRows": given,
            "outputRowsPerSecond": per_second(new_out),
        },
        "tasks": {str(task): _task(report) for task, report in sorted(reports.items())},
        "workers": workers,
        **more,
    }
    rates.at_ms = now_ms
    return progress


def _watermarks(spec: QuerySpec, reports: Mapping[TaskId, Report]) -> list[int]:
    """Of each stage: that of its slowest task, or the latest where tasks tell one time together."""
    by_stage: dict[int, list[int]] = {}
    for task, report in reports.items():
        ms = report.get("watermark_ms")
        if ms is not None and abs(ms) < 10**14:
            by_stage.setdefault(task.stage, []).append(ms)
    return [max(told) if spec.shares_time(stage) else min(told) for stage, told in by_stage.items()]


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
    spec: QuerySpec, reports: Mapping[TaskId, Report], stream: str, lag: Lag | None, tail: int
) -> dict[str, Any]:
    source: dict[str, Any] = {
        "description": f"penstock stream {stream}",
        "startOffset": spec.sources[stream].start,
        "endOffset": source_position(spec, reports, stream),
        "latestOffset": tail,
    }
    if lag is not None:
        source["lag"] = {"records": lag.records, "seconds": round(lag.seconds, 3)}
        if lag.is_lower_bound:
            source["lag"]["isLowerBound"] = True
    return source


def source_position(spec: QuerySpec, reports: Mapping[TaskId, Report], stream: str) -> int | None:
    """No task that reads the stream has anything to do below; None: not known yet."""
    positions: list[int | None] = []
    for task in spec.task_ids:
        inputs = spec.inputs(task.stage)
        if any(isinstance(leaf, n.Scan) and leaf.stream == stream for leaf in inputs):
            positions.append(reports.get(task, {}).get("settled_position"))
    told = [position for position in positions if position is not None]
    return min(told) if told and len(told) == len(positions) else None


def _task(report: Report) -> dict[str, Any]:
    kept = (
        "worker", "instance", "is_running", "committed_position", "commits_ever", "rows_in",
        "rows_out", "rows_late", "dead_letters", "state_rows", "state_bytes", "checkpoint_lsn",
        "resume_ms", "from_standby", "source_bytes", "rows_waiting",
    )  # fmt: skip
    told = {name: report[name] for name in kept if name in report}
    if report.get("standbys"):
        told["standbys"] = report["standbys"]
    return told


def _time(ms: int) -> str:
    """As Spark writes it."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
