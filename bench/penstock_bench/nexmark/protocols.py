"""`penstock nexmark protocols`: commit protocols side by side, everything else the same.

Owns the plan of the experiment (Impeller's Figure 8 and 9): the same query, events, rate, operators
and log; only the way commits are made differs (penstock_bench/protocols), and the interval
between them. Rounds go through all protocols in turn, each round in another order, so that a
machine that drifts favours nobody; what is compared is the median of the rounds' percentiles.

Queries that aggregate run in update mode, as in the paper: every change of a result is a row, and
none waits for a window's end. With `aligned`, the interval is that between two checkpoints; data
flows between stages meanwhile, and a result is visible when its checkpoint is complete.

Stages run apart here, though each has one task: what protocols differ in is mostly between them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from penstock_bench.nexmark.run import Bench, Run
from penstock_bench.protocols.choosing import PROTOCOLS, ProtocolName
from penstock_bench.report import Check, Report, Say

#: Events a second: each well within what all protocols hold on two cores.
RATES: Final[Mapping[str, float]] = {"q1": 20_000, "q4": 2_000, "q5": 4_000, "q8": 20_000}
_MODES: Final = {"q1": "append"}
#: The interval at which the paper finds the protocols apart.
_SHORT_MS: Final = 10


@dataclass(frozen=True, slots=True)
class ProtocolComparison:
    rates: Mapping[str, float] = field(default_factory=lambda: dict(RATES))
    intervals_ms: tuple[int, ...] = (10, 100)
    protocols: tuple[ProtocolName, ...] = PROTOCOLS
    rounds: int = 3
    seconds: float = 10
    warm_seconds: float = 4
    #: Whether the first round asks batch Spark.
    oracle: bool = True


def compare_protocols(
    bench: Bench,
    plan: ProtocolComparison,
    say: Say,
    keep: Callable[[dict[str, Any]], object] = lambda _: None,
) -> tuple[Report, list[dict[str, Any]]]:
    """The verdict, and the result objects of all runs; `keep` is told of each at once."""
    runs: list[dict[str, Any]] = []
    for query, rate in plan.rates.items():
        for interval in plan.intervals_ms:
            for number in range(plan.rounds):
                for protocol in turned(plan.protocols, number):
                    say(f"{query}, every {interval} ms, {protocol}")
                    run = Run(
                        query, rate, plan.seconds, plan.warm_seconds,
                        mode=_MODES.get(query, "update"), commit_interval_ms=interval,
                        protocol=protocol, joins_stages=False,
                        oracle=plan.oracle and number == 0,
                    )  # fmt: skip
                    runs.append(bench.run(run))
                    keep(runs[-1])
    return make_report(plan, runs), runs


def turned(protocols: Sequence[ProtocolName], number: int) -> tuple[ProtocolName, ...]:
    """Every round begins with another one."""
    first = number % len(protocols)
    return (*protocols[first:], *protocols[:first])


def make_report(plan: ProtocolComparison, runs: Sequence[dict[str, Any]]) -> Report:
    """Figures by query, interval and protocol; the paper's order as checks."""
    report = Report("nexmark protocols", parameters=asdict(plan))
    for query in plan.rates:
        for interval in plan.intervals_ms:
            figures: dict[str, dict[str, Any]] = {
                protocol: _figures(runs, query, interval, protocol) for protocol in plan.protocols
            }
            report.figures[f"{query}, {interval} ms"] = figures
            report.checks += _checks(query, interval, figures)
    # Nothing fails here: what promises nothing must be right as well, others are measured by it.
    wrong = [run for run in runs if run["oracle"] == "different"]
    report.checks.append(Check("runs that differ from batch Spark", len(wrong), 0, "at most", ""))
    return report


def _figures(
    runs: Sequence[dict[str, Any]], query: str, interval: int, protocol: str
) -> dict[str, Any]:
    mine = [
        run
        for run in runs
        if (run["query"], run["commit_interval_ms"], run["variant"]) == (query, interval, protocol)
    ]
    rounds = {
        name: [run["latency_ms"][name] for run in mine if run["latency_ms"]]
        for name in ("p50", "p99")
    }
    emitted = [run["emitted_latency_ms"]["p50"] for run in mine if run["emitted_latency_ms"]]
    return {
        **{f"{name}_ms": _median(values) for name, values in rounds.items()},
        **{f"{name}_ms_rounds": values for name, values in rounds.items()},
        "appended_p50_ms": _median(emitted),
        "bytes_per_event": _median([run["bytes_appended_per_event"] for run in mine]),
        "cpu_s_per_million_events": _median(
            [run["cpu_s_per_million_events"]["total"] for run in mine]
        ),
        "held": sum(run["is_sustained"] for run in mine),
        "oracle": sorted({run["oracle"] for run in mine} - {"skipped"}),
    }


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 2) if values else None


def _checks(query: str, interval: int, figures: Mapping[str, dict[str, Any]]) -> list[Check]:
    """The paper's order: unsafe, marker, transaction, at a short interval."""
    if interval != _SHORT_MS or not {"marker", "transaction", "unsafe"} <= set(figures):
        return []
    checks = []
    for name, slower, faster in (
        ("transaction over marker", "transaction", "marker"),
        ("marker over unsafe", "marker", "unsafe"),
    ):
        over, under = figures[slower]["p50_ms"], figures[faster]["p50_ms"]
        if over is not None and under:
            text = f"{over:,.1f} ms against {under:,.1f} ms"
            checks.append(
                Check(
                    f"{query}, {interval} ms, p50 {name}", over / under, 1.0, "at least", "x", text
                )
            )
    return checks
