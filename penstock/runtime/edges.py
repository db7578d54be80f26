"""How the nodes and edges of a query's graph stand, from what its tasks reported. Pure.

The lag of a source is counted in the log (lag.py). Between stages, it is what the tasks of one say
to have committed, less what a task of the other has heard of that: as large as at the task that is
furthest behind, and no read of the log. Two reports are not of one moment: what was committed
meanwhile is in it. Law: an edge or node without reports is not known, and never at 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.protocol.names import TaskId
from penstock.runtime.graph import Outline, stage_id
from penstock.runtime.lag import Lag
from penstock.runtime.spec import QuerySpec
from penstock.runtime.task_rates import TaskRate
from penstock.runtime.time_text import time_text

Reports = Mapping[TaskId, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """Of one moment."""

    spec: QuerySpec
    reports: Reports
    rates: Mapping[TaskId, TaskRate]
    #: By stage: its time in milliseconds.
    watermarks: Mapping[int, int]
    #: By stream, and stage that reads it.
    lags: Mapping[tuple[str, int], Lag]
    now_ms: int
    #: Rows a second of the result.
    given: float | None


def make_graph(outline: Outline, facts: GraphFacts) -> dict[str, Any]:
    """As docs/operations.md describes it."""
    by_id = {stage_id(stage): stage for stage in facts.spec.running_stages}
    return {
        "nodes": [
            {"id": id, **node, **(_busiest(facts, by_id[id]) if id in by_id else {})}
            for id, node in outline.nodes.items()
        ],
        "edges": [
            {
                "from": giver,
                "to": taker,
                "lag": _lag(facts, giver, by_id[taker]) if taker in by_id else None,
                "rowsPerSecond": (
                    _rows_per_second(facts, giver, by_id[taker]) if taker in by_id else facts.given
                ),
                "watermark": _watermark(facts, by_id.get(giver)),
            }
            for giver, taker in outline.edges
        ],
    }


def tell_lag(lag: Lag) -> dict[str, Any]:
    told: dict[str, Any] = {"records": lag.records, "seconds": round(lag.seconds, 3)}
    if lag.is_lower_bound:
        told["isLowerBound"] = True
    return told


def _busiest(facts: GraphFacts, stage: int) -> dict[str, Any]:
    told = [(facts.rates[task].busy, task) for task in facts.spec.tasks_of(stage)
            if task in facts.rates]  # fmt: skip
    if not told:
        return dict.fromkeys(("busiestTask", "busyShare", "waitingShare", "backPressuredShare"))
    _, task = max(told, key=lambda one: one[0])
    rate = facts.rates[task]
    return {
        "busiestTask": str(task),
        "busyShare": round(rate.busy, 4),
        "waitingShare": round(rate.waiting, 4),
        "backPressuredShare": round(rate.back_pressured, 4),
    }


def _rows_per_second(facts: GraphFacts, giver: str, stage: int) -> float | None:
    rates = [facts.rates[task].rows for task in facts.spec.tasks_of(stage) if task in facts.rates]
    told = [rows[giver] for rows in rates if giver in rows]
    return round(sum(told), 1) if told else None


def _watermark(facts: GraphFacts, stage: int | None) -> str | None:
    ms = None if stage is None else facts.watermarks.get(stage)
    return None if ms is None else time_text(ms)


def _lag(facts: GraphFacts, giver: str, stage: int) -> dict[str, Any] | None:
    kind, _, name = giver.partition(":")
    if kind == "source":
        lag = facts.lags.get((name, stage))
    else:
        lag = stage_lag(facts, int(name), stage)
    return None if lag is None else tell_lag(lag)


def stage_lag(facts: GraphFacts, giver: int, stage: int) -> Lag | None:
    """Rows that the tasks of `giver` have committed and a task of `stage` has not heard of."""
    givers = facts.spec.tasks_of(giver)
    counts = [facts.reports.get(task, {}).get("rows_out") for task in givers]
    given = [count for count in counts if count is not None]
    if len(given) < len(givers):
        return None
    id = stage_id(giver)
    behind = [
        _behind(facts, task, id, sum(given), len(givers)) for task in facts.spec.tasks_of(stage)
    ]
    known = [lag for lag in behind if lag is not None]
    if len(known) < len(behind):
        return None
    return max(known, key=lambda lag: (lag.records, lag.seconds))


def _behind(facts: GraphFacts, task: TaskId, giver: str, given: int, givers: int) -> Lag | None:
    report = facts.reports.get(task, {})
    told = report.get("inputs", {}).get(giver, {})
    # A task that resumed hears of all of them again within seconds: each says now and then where
    # it is. Until then, what it has heard of is not known.
    if told.get("told_by") != givers or told.get("rows_told") is None:
        return None
    records = max(given - told["rows_told"], 0)
    waited_ms = (told.get("delay_ms") or 0) + (report.get("step_ms") or 0)
    return Lag(records, waited_ms / 1000 if records else 0.0)
