"""Reports of a query under simulated faults: what they must be, and reports of workers gone mad.

Laws: a report is JSON that others can read; it tells of tasks of one layout only; shares are 0 to 1
and add up; counters of a run do not fall; every edge is between nodes; what no task told is not
known, and never 0. That no report ends a query is for the world to see: it must go on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from penstock.runtime.histogram import BOUNDS_MS
from penstock.runtime.layout import Layout
from simulation.checkers.evidence import Violation

_SHARES = ("busy_share", "waiting_share", "back_pressured_share")
_COUNTERS = ("numInputRowsTotal",)
_COUNTS = ("instance", "rows_in", "rows_out", "state_rows", "state_bytes", "committed_position")


def check_report(
    report: Mapping[str, Any], before: Mapping[str, Any] | None, layouts: Sequence[Layout]
) -> None:
    """`before`: the last report of the same run; `layouts`: those that counted while it was made.

    Raises Violation.
    """
    try:
        json.dumps(report, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise Violation("I23", f"a report that cannot be written: {error}") from error
    _check_tasks(report, layouts)
    for name, task in report["tasks"].items():
        _check_shares(name, task)
        if any((task.get(count) or 0) < 0 for count in _COUNTS):
            raise Violation("I23", f"{name} counts less than nothing: {task}")
    _check_graph(report)
    if before is not None:
        for name in _COUNTERS:
            _check_counter(name, before[name], report[name])
        for counts in zip(
            *(one["latencyBuckets"]["counts"] for one in (before, report)), strict=True
        ):
            _check_counter("a count of latencies", *counts)


def _check_tasks(report: Mapping[str, Any], layouts: Sequence[Layout]) -> None:
    told = [name.split("/")[1:] for name in report["tasks"]]
    known = [
        all(
            int(stage) < len(one.stages) and one.has(int(stage), int(index))
            for stage, index in told
        )
        for one in layouts
    ]
    shown = {name for node in report["graph"]["nodes"] for name in node.get("tasks", ())}
    if not any(known) or not shown >= report["tasks"].keys():
        raise Violation("I23", f"tasks of no layout, or of two: {[*report['tasks']]}")


def _check_shares(name: str, task: Mapping[str, Any]) -> None:
    shares = [task.get(share) for share in _SHARES]
    if shares == [None] * len(shares):
        return
    is_right = all(share is not None and 0 <= share <= 1 for share in shares)
    if not is_right or abs(sum(filter(None, shares)) - 1) > 0.001:
        raise Violation("I23", f"{name} spends its time as {shares}")


def _check_counter(name: str, before: int, now: int) -> None:
    if now < before:
        raise Violation("I23", f"{name} fell from {before} to {now}")


def _check_graph(report: Mapping[str, Any]) -> None:
    nodes = {node["id"]: node for node in report["graph"]["nodes"]}
    tasks = report["tasks"]
    for edge in report["graph"]["edges"]:
        if edge["from"] not in nodes or edge["to"] not in nodes:
            raise Violation("I23", f"an edge that ends nowhere: {edge}")
        readers = [tasks.get(name, {}) for name in nodes[edge["to"]].get("tasks", ())]
        if not readers:
            continue
        for name, told in (("rowsPerSecond", "busy_share"), ("lag", "inputs")):
            is_told = any(reader.get(told) is not None for reader in readers)
            if edge[name] is not None and not is_told and not edge["from"].startswith("source:"):
                raise Violation("I23", f"{name} of {edge} is told, and by no task")


#: Of a field: what a worker of another version, or a mad one, might say.
_STRANGE: Sequence[Any] = (
    None, -1, 2**70, 1e308, float("nan"), "7", True, [], {}, {"7": 1}, {"x": {"rows": "y"}},
    [1] * (len(BOUNDS_MS) + 1), [None] * (len(BOUNDS_MS) + 1), "\x1b[31m",
)  # fmt: skip
_FIELDS = (
    "instance", "is_running", "position", "committed_position", "settled_position", "commits_ever",
    "watermark_ms", "rows_in", "rows_out", "state_rows", "state_bytes", "inputs", "busy_ms",
    "waiting_ms", "blocked_ms", "step_ms", "commit_ms", "visible_ms", "visible_counts",
    "visible_sum_ms", "resume_ms", "checkpoint_ms", "reported_at_ms", "from_standby", "is_ready",
)  # fmt: skip


def strange_reports(random: Random, query: str, version: int, tasks: Sequence[str]) -> Any:
    """Of tasks that there are, of such that a layout had or never had, and of nothing at all."""
    gone = f"{query}.{version}/{random.randint(0, 3)}/{random.randint(0, 9)}"
    names = [gone, *random.sample(tasks, min(len(tasks), 2))]
    return {name: _strange_report(random) for name in names}


def _strange_report(random: Random) -> dict[str, Any]:
    """Nonsense, or what could be so, but goes up and down."""
    odds = random.choice((0.0, 0.3))
    report: dict[str, Any] = {
        "instance": random.randint(1, 3),
        "is_running": True,
        "visible_counts": [random.randint(0, 9) for _ in range(len(BOUNDS_MS) + 1)],
        "visible_sum_ms": random.uniform(0, 100),
    }
    spent = ("busy_ms", "waiting_ms", "blocked_ms")
    report |= {name: random.uniform(0, 10_000) for name in spent}
    return report | {f: random.choice(_STRANGE) for f in _FIELDS if random.random() < odds}
