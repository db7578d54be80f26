"""The result object of one run: one form for all systems and all tools that read it.

Pure. Owns the names; how a run is judged is figures.py's matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock_bench.nexmark import figures
from penstock_bench.nexmark.figures import Appended, Position, Usage
from penstock_bench.nexmark.oracle import Verdict
from penstock_bench.nexmark.producers import Sent
from penstock_bench.nexmark.timed import latency_from
from penstock_bench.nexmark.visible import Rows
from penstock_bench.report import Check, commit, machine_class

if TYPE_CHECKING:
    from penstock_bench.nexmark.run import Run


@dataclass(frozen=True, slots=True)
class Measured:
    """The samples of a run whose measured span is [from, to)."""

    from_us: int
    to_us: int
    sent: Sent
    appended: list[Appended]
    positions: list[Position]
    before: Usage
    after: Usage
    bytes_appended: int
    is_settled: bool


def make_result(run: Run, measured: Measured, rows: Rows, verdict: Verdict) -> dict[str, Any]:
    """Everything about the run, ready for JSON."""
    since_us, visible, emitted = rows.latencies_ms(measured.from_us, measured.to_us)
    latency = figures.summary(visible)
    lags = figures.find_lags(
        measured.appended, measured.positions, measured.from_us, measured.to_us
    )
    sent = figures.sent_at(measured.appended, measured.to_us)
    sent -= figures.sent_at(measured.appended, measured.from_us)
    schedule = figures.schedule_of(
        run.query,
        measured.sent.delay_ms,
        measured.sent.note,
        is_prompt=measured.sent.is_held,
        share=sent / (run.rate * run.seconds),
    )
    sustained = figures.judge(
        run.query,
        latency,
        lags,
        rate=run.rate,
        is_held=schedule["is_held"],
        growth=figures.growth_ms_per_s(since_us, visible),
    )
    sustained.append(Check("all results visible", float(measured.is_settled), 1.0, "at least", ""))
    checks = [*sustained, *_oracle_check(verdict)]
    return {
        "bench": "nexmark",
        "system": "penstock",
        "variant": run.protocol,
        "query": run.query,
        "mode": run.output_mode,
        "rate": run.rate,
        "seconds": run.seconds,
        "warm_seconds": run.warm_seconds,
        "seed": run.seed,
        "generators": run.generators,
        "workers": run.workers,
        "commit_interval_ms": run.commit_interval_ms,
        "flush_ms": run.flush_ms,
        "watermark_ms": run.lateness_ms,
        "state_scale": run.state_scale,
        "latency_ms": latency,
        "latency_from": latency_from(run.query, run.output_mode),
        "rows": len(visible),
        "percentiles": figures.curve(visible),
        "emitted_latency_ms": figures.summary(emitted),
        "throughput_events_per_s": _rounded(lags.events_per_s),
        "events": measured.sent.events,
        "results_per_s": round(len(visible) / run.seconds, 1),
        "lag_events": lags.as_json(),
        "is_sustained": all(check.ok for check in sustained),
        "cpu_s_per_million_events": figures.used_between(measured.before, measured.after, sent),
        "memory_mib": figures.memory_mib(measured.after),
        "markers_per_s": _rounded(lags.markers_per_s),
        "bytes_appended": measured.bytes_appended,
        "bytes_appended_per_event": round(measured.bytes_appended / max(sent, 1.0), 1),
        "schedule": schedule,
        "oracle": verdict.oracle,
        "oracle_reason": verdict.reason,
        "checks": [check.as_json() for check in checks],
        "commit": commit(),
        "machine": machine_class(),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _oracle_check(verdict: Verdict) -> list[Check]:
    if verdict.oracle == "skipped":
        return []
    is_equal = float(verdict.oracle == "equal")
    return [Check("equal to batch Spark", is_equal, 1.0, "at least", "", verdict.reason)]
