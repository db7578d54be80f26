"""How the queries of a log stand, as metrics: from the reports that stand in the log to text. Pure.

Owns names, units and help of `penstock_query_*`, `penstock_task_*` and `penstock_state_*`. Whoever
can read the log can tell them: its server, `penstock ui`. Spark executors need no port. Laws: what
is not known has no sample, and is never 0; labels are bounded, what is beyond the bound is counted;
whatever stands in a report, the text is OpenMetrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from typing import Any, Final

from penstock.log.serving.openmetrics import Buckets, Family, escape_label
from penstock.protocol.pulses import State

QUERIES_MAX: Final = 200
TASKS_MAX: Final = 2000
#: Sources and edges of their graphs, of all queries.
EDGES_MAX: Final = 2000
#: Of one label. No name of ours is as long; whoever may append may give any.
LABEL_CHARS_MAX: Final = 200
#: Upper bounds of a histogram.
BOUNDS_MAX: Final = 50
_TASK = ("query", "task")
_EDGE = ("query", "from", "to")
#: By slot: the name of a worker changes with each of its lives.
_WORKER = ("query", "slot")


@dataclass(frozen=True, slots=True)
class QueryReport:
    """What the log has of one query."""

    name: str
    #: A value of `State`.
    state: str
    #: When its coordinator was last heard of; None: never.
    pulse_ms: int | None
    #: Its newest report (runtime/progress.py); None: there is none.
    progress: Mapping[str, Any] | None
    #: The name of the log, where a server has several.
    log: str | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """One family."""

    kind: str
    help: str
    labels: tuple[str, ...]


METRICS: Final[Mapping[str, Metric]] = {
    "query_state": Metric("stateset", "How the query was last heard of.", ("query",)),
    "query_report_age_seconds": Metric(
        "gauge", "Since its coordinator was last heard of.", ("query",)
    ),
    "query_workers": Metric("gauge", "Workers that count as alive.", ("query",)),
    "query_workers_wanted": Metric("gauge", "Workers that it should have.", ("query",)),
    "query_tasks": Metric("gauge", "Tasks of its layout.", ("query",)),
    "query_tasks_running": Metric("gauge", "Tasks that say that they run.", ("query",)),
    "query_input_rows": Metric("counter", "Rows taken in from its sources.", ("query",)),
    "query_output_rows": Metric("counter", "Rows written to its result.", ("query",)),
    "query_source_lag_rows": Metric(
        "gauge", "Rows of a source that wait; if very many, a lower bound.", ("query", "source")
    ),
    "query_source_lag_seconds": Metric(
        "gauge", "Age of the oldest row of a source that waits.", ("query", "source")
    ),
    "query_edge_lag_rows": Metric("gauge", "Rows on an edge of its graph that wait.", _EDGE),
    "query_edge_lag_seconds": Metric("gauge", "How long the oldest of them has waited.", _EDGE),
    "query_edge_rows_per_second": Metric("gauge", "Rows on an edge of its graph.", _EDGE),
    "query_watermark_age_seconds": Metric(
        "gauge", "How far event time is behind the clock.", ("query",)
    ),
    "query_latency_seconds": Metric(
        "histogram", "From the append of a row to when what came of it can be read.", ("query",)
    ),
    "query_latency_recent_seconds": Metric(
        "gauge", "The same of the last 5 to 10 s: a share of rows was faster.", ("query", "share")
    ),
    "query_commit_recent_seconds": Metric(
        "gauge", "From capture to durable, of the commits of the last 5 to 10 s.",
        ("query", "share"),
    ),
    "worker_state_limit_bytes": Metric(
        "gauge", "Its state_memory: about how much of its state may be in memory.", _WORKER
    ),
    "worker_state_file_bytes": Metric("gauge", "The files that its state is in.", _WORKER),
    "worker_state_mapped_in_bytes": Metric(
        "gauge", "How much of them is in its memory now.", _WORKER
    ),
    "query_left_out": Metric("gauge", "Queries, tasks and edges beyond what is told here.", ()),
    "query_unreadable": Metric("gauge", "Queries whose report could not be read.", ()),
    "task_running": Metric("gauge", "Whether it says that it runs.", _TASK),
    "task_busy_ratio": Metric("gauge", "Share of its time in which it worked.", _TASK),
    "task_waiting_ratio": Metric("gauge", "Share in which it waited for input, or a turn.", _TASK),
    "task_back_pressured_ratio": Metric(
        "gauge", "Share in which it took nothing in before a commit was durable.", _TASK
    ),
    "task_step_seconds": Metric("gauge", "How long the step under way lasts.", _TASK),
    "task_commit_age_seconds": Metric("gauge", "Since its last commit was visible.", _TASK),
    "task_input_rows": Metric("counter", "Rows taken in.", _TASK),
    "task_output_rows": Metric("counter", "Rows given out.", _TASK),
    "task_late_rows": Metric("counter", "Rows dropped as late, by this instance.", _TASK),
    "task_dead_letters": Metric("counter", "Rows set aside, by this instance.", _TASK),
    "task_resume_seconds": Metric("gauge", "How long its instance took to begin.", _TASK),
    "task_standbys_ready": Metric("gauge", "Copies of its state that could take over.", _TASK),
    "state_rows": Metric("gauge", "Rows of a task's state.", _TASK),
    "state_bytes": Metric("gauge", "Bytes of a task's state.", _TASK),
    "state_rows_unread": Metric(
        "gauge", "Rows that are still in files of its checkpoint after a resume.", _TASK
    ),
    "state_checkpoint_bytes": Metric("gauge", "Bytes of its newest checkpoint.", _TASK),
    "state_checkpoint_age_seconds": Metric("gauge", "Since its newest checkpoint.", _TASK),
    "state_checkpoint_duration_seconds": Metric("gauge", "How long it took to write.", _TASK),
    "state_checkpoints": Metric("counter", "Checkpoints written by this instance.", _TASK),
    "state_checkpoint_failures": Metric(
        "counter", "Checkpoints that this instance could not write.", _TASK
    ),
}  # fmt: skip


def query_metrics(
    reports: Sequence[QueryReport], now_ms: int, *, unreadable: int = 0, left_out: int = 0
) -> dict[str, Family]:
    """By name, without the prefix `penstock_`; what nobody told is left out."""
    made = QueryMetrics()
    for report in reports:
        made.add_report(report, now_ms)
    return made.families(unreadable=unreadable, left_out=left_out)


@dataclass(slots=True)
class QueryMetrics:
    """Of many queries, added one after the other: whoever serves others may do so in between."""

    log: str | None = None
    values: dict[str, dict[str, float | Buckets]] = field(default_factory=dict)
    queries: int = 0
    tasks: int = 0
    edges: int = 0
    left_out: int = 0

    def add_report(self, report: QueryReport, now_ms: int) -> None:
        if self.queries == QUERIES_MAX:
            self.left_out += 1
            return
        self.queries += 1
        self.log = report.log
        progress = report.progress if isinstance(report.progress, Mapping) else {}
        _add_query(self, report, progress, now_ms)
        for name, task in _maps(_map(progress, "tasks")):
            if self.tasks == TASKS_MAX:
                self.left_out += 1
                continue
            self.tasks += 1
            _add_task(self, (report.name, name), task, now_ms)

    def add(self, name: str, labels: tuple[str, ...], value: float | Buckets | None) -> None:
        metric = METRICS[name]
        if value is None:
            return
        if metric.kind == "counter" and not isinstance(value, Buckets) and value < 0:
            return  # nobody counted that
        pairs = list(zip(metric.labels, labels, strict=False))
        pairs += [("log", self.log)] if self.log is not None else []
        text = ",".join(f'{key}="{_label(told)}"' for key, told in pairs)
        self.values.setdefault(name, {})[text] = value

    def add_state(self, query: str, state: str) -> None:
        for one in (one.value for one in State):
            log = "" if self.log is None else f',log="{_label(self.log)}"'
            labels = f'query="{_label(query)}"{log},penstock_query_state="{one}"'
            self.values.setdefault("query_state", {})[labels] = float(one == state)

    def has_room(self) -> bool:
        """For one more source or edge; what there is no room for is counted."""
        if self.edges == EDGES_MAX:
            self.left_out += 1
            return False
        self.edges += 1
        return True

    def families(self, *, unreadable: int, left_out: int) -> dict[str, Family]:
        """All that was added; and how many queries were not, here or before."""
        self.log = None
        self.add("query_unreadable", (), unreadable)
        self.add("query_left_out", (), left_out + self.left_out)
        return {
            name: Family(metric.kind, metric.help, self.values[name])
            for name, metric in METRICS.items()
            if name in self.values
        }


def _add_query(
    made: QueryMetrics, report: QueryReport, progress: Mapping[str, Any], now_ms: int
) -> None:
    query = (report.name,)
    made.add_state(report.name, report.state)
    if report.pulse_ms is not None:
        made.add("query_report_age_seconds", query, _age(report.pulse_ms, now_ms))
    if not progress:
        return
    tasks = [task for _, task in _maps(_map(progress, "tasks"))]
    made.add("query_workers", query, _number(progress, "workers"))
    made.add("query_workers_wanted", query, _number(progress, "workersWanted"))
    made.add("query_tasks", query, float(len(tasks)))
    running = [task for task in tasks if task.get("is_running") is True]
    made.add("query_tasks_running", query, float(len(running)))
    made.add("query_input_rows", query, _number(progress, "numInputRowsTotal"))
    made.add("query_output_rows", query, _number(_map(progress, "sink"), "numOutputRows"))
    watermark_ms = _time(_map(progress, "eventTime").get("watermark"))
    if watermark_ms is not None:
        made.add("query_watermark_age_seconds", query, (now_ms - watermark_ms) / 1000)
    made.add("query_latency_seconds", query, _buckets(_map(progress, "latencyBuckets")))
    commits = _map(_map(progress, "durationMs"), "commit")
    for share, name in (("0.5", "p50"), ("0.95", "p95"), ("0.99", "p99")):
        latency = _seconds(_map(progress, "latencyMs"), name)
        made.add("query_latency_recent_seconds", (report.name, share), latency)
        made.add("query_commit_recent_seconds", (report.name, share), _seconds(commits, name))
    for source in _all_maps(progress.get("sources")):
        text = source.get("description")
        if isinstance(text, str) and made.has_room():
            stream = text.removeprefix("penstock stream ")
            _add_lag(made, "query_source", (report.name, stream), source)
    for _, member in _maps(_map(progress, "members")):
        _add_worker(made, report.name, member)
    for edge in _all_maps(_map(progress, "graph").get("edges")):
        giver, taker = edge.get("from"), edge.get("to")
        if isinstance(giver, str) and isinstance(taker, str) and made.has_room():
            labels = (report.name, giver, taker)
            _add_lag(made, "query_edge", labels, edge)
            made.add("query_edge_rows_per_second", labels, _number(edge, "rowsPerSecond"))


def _add_worker(made: QueryMetrics, query: str, member: Mapping[str, Any]) -> None:
    """Of a worker whose state has a bound."""
    slot = _number(member, "slot")
    if slot is None or "stateMemory" not in member or not made.has_room():
        return
    for name, key in (
        ("worker_state_limit_bytes", "stateMemory"),
        ("worker_state_file_bytes", "stateFileBytes"),
        ("worker_state_mapped_in_bytes", "stateMappedInBytes"),
    ):
        made.add(name, (query, str(int(slot))), _number(member, key))


def _add_lag(made: QueryMetrics, name: str, labels: tuple[str, ...], of: Mapping[str, Any]) -> None:
    lag = _map(of, "lag")
    made.add(f"{name}_lag_rows", labels, _number(lag, "records"))
    made.add(f"{name}_lag_seconds", labels, _number(lag, "seconds"))


def _add_task(
    made: QueryMetrics, labels: tuple[str, str], task: Mapping[str, Any], now_ms: int
) -> None:
    running = task.get("is_running")
    made.add("task_running", labels, float(running) if isinstance(running, bool) else None)
    for name, key in (
        ("task_busy_ratio", "busy_share"),
        ("task_waiting_ratio", "waiting_share"),
        ("task_back_pressured_ratio", "back_pressured_share"),
        ("task_input_rows", "rows_in"),
        ("task_output_rows", "rows_out"),
        ("task_late_rows", "rows_late"),
        ("task_dead_letters", "dead_letters"),
        ("state_rows", "state_rows"),
        ("state_bytes", "state_bytes"),
        ("state_rows_unread", "state_rows_unread"),
        ("state_checkpoint_bytes", "checkpoint_bytes"),
        ("state_checkpoints", "checkpoints"),
        ("state_checkpoint_failures", "checkpoint_failures"),
    ):
        made.add(name, labels, _number(task, key))
    for name, key in (
        ("task_step_seconds", "step_ms"),
        ("task_resume_seconds", "resume_ms"),
        ("state_checkpoint_duration_seconds", "checkpoint_ms"),
    ):
        made.add(name, labels, _seconds(task, key))
    for name, key in (
        ("task_commit_age_seconds", "committed_at_ms"),
        ("state_checkpoint_age_seconds", "checkpoint_at_ms"),
    ):
        at_ms = _number(task, key)
        made.add(name, labels, None if at_ms is None else _age(at_ms, now_ms))
    if "standbys" in task:
        copies = [copy for _, copy in _maps(_map(task, "standbys"))]
        ready = sum(copy.get("is_ready") is True for copy in copies)
        made.add("task_standbys_ready", labels, float(ready))


def _label(text: str) -> str:
    return escape_label(text[:LABEL_CHARS_MAX])


def _age(at_ms: float, now_ms: int) -> float:
    """In seconds. Clocks of two machines differ: nothing is younger than now."""
    return max(0.0, (now_ms - at_ms) / 1000)


def _number(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -(2**62) <= value <= 2**62 and isfinite(value) else None


def _seconds(values: Mapping[str, Any], name: str) -> float | None:
    ms = _number(values, name)
    return None if ms is None else ms / 1000


def _map(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = values.get(name)
    return value if isinstance(value, Mapping) else {}


def _maps(values: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield name, value


def _all_maps(values: Any) -> list[Mapping[str, Any]]:
    found = values if isinstance(values, list) else []
    return [value for value in found if isinstance(value, Mapping)]


def _time(text: Any) -> int | None:
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):
        return None


def _buckets(told: Mapping[str, Any]) -> Buckets | None:
    """None if it is no histogram, or of no latency yet."""
    bounds, counts, total = told.get("boundsMs"), told.get("counts"), _seconds(told, "sumMs")
    if not isinstance(bounds, list) or not isinstance(counts, list) or total is None:
        return None
    if len(bounds) > BOUNDS_MAX or total < 0:
        return None
    known = [_number({"": one}, "") for one in (*bounds, *counts)]
    if None in known or len(counts) != len(bounds) + 1 or not sum(counts):
        return None
    if bounds != sorted(set(bounds)) or min(counts) < 0:
        return None
    return Buckets(tuple(ms / 1000 for ms in bounds), tuple(map(int, counts)), total)
