"""The result object of one run: one form for all systems and all tools that read it.

Pure. Owns the names; how a run is judged is figures.py's matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock_bench.nexmark import figures
from penstock_bench.nexmark.figures import Appended, Position, Usage
from penstock_bench.nexmark.oracle import Verdict
from penstock_bench.nexmark.producers import Sent
from penstock_bench.nexmark.timed import latency_from
from penstock_bench.nexmark.visible import Latencies, Rows
from penstock_bench.report import Check, commit, machine_class

if TYPE_CHECKING:
    from penstock_bench.nexmark.run import Run


#: Of the run, as it was asked for.
_SETTINGS: Final = ("rate", "seconds", "warm_seconds", "seed", "generators", "flush_ms")
#: What not every system has.
_NOT_TOLD: Final = (
    *("workers", "commit_interval_ms", "watermark_ms", "throughput_events_per_s", "lag_events"),
    *("markers_per_s", "bytes_appended", "bytes_appended_per_event"),
)


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
    """Everything about a run of ours, ready for JSON."""
    latencies = rows.latencies_ms(measured.from_us, measured.to_us)
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
        figures.summary(latencies.visible),
        lags,
        rate=run.rate,
        is_held=schedule["is_held"],
        growth=figures.growth_ms_per_s(latencies.since_us, latencies.visible),
    )
    sustained.append(Check("all results visible", float(measured.is_settled), 1.0, "at least", ""))
    result = make_object(
        *("penstock", run.protocol, run, latencies, sustained),
        workers=run.workers,
        commit_interval_ms=run.commit_interval_ms,
        watermark_ms=run.lateness_ms,
        state_scale=run.state_scale,
        throughput_events_per_s=_rounded(lags.events_per_s),
        events=measured.sent.events,
        lag_events=lags.as_json(),
        is_sustained=all(check.ok for check in sustained),
        cpu_s_per_million_events=figures.used_between(measured.before, measured.after, sent),
        memory_mib=figures.memory_mib(measured.after),
        markers_per_s=_rounded(lags.markers_per_s),
        bytes_appended=measured.bytes_appended,
        bytes_appended_per_event=round(measured.bytes_appended / max(sent, 1.0), 1),
        schedule=schedule,
    )
    return judged(result, verdict)


def make_object(
    system: str,
    variant: str,
    run: Run,
    latencies: Latencies,
    checks: Iterable[Check],
    **own: Any,
) -> dict[str, Any]:
    """What all results say, and what this one's `own` figures are; what is not told is None."""
    return {
        "bench": "nexmark",
        "system": system,
        "variant": variant,
        "query": run.query,
        "mode": run.output_mode,
        **{name: getattr(run, name) for name in _SETTINGS},
        **dict.fromkeys(_NOT_TOLD),
        "latency_ms": figures.summary(latencies.visible),
        "latency_from": latency_from(run.query, run.output_mode),
        "rows": len(latencies.visible),
        "percentiles": figures.curve(latencies.visible),
        "emitted_latency_ms": figures.summary(latencies.emitted),
        "results_per_s": round(len(latencies.visible) / run.seconds, 1),
        **own,
        "oracle": "skipped",
        "oracle_reason": "not asked for",
        "checks": [check.as_json() for check in checks],
        "commit": commit(),
        "machine": machine_class(),
    }


def judged(result: dict[str, Any], verdict: Verdict) -> dict[str, Any]:
    """The result object with what the oracle said."""
    checks = list(result["checks"])
    if verdict.oracle != "skipped":
        equal = float(verdict.oracle == "equal")
        check = Check("equal to batch Spark", equal, 1.0, "at least", "", verdict.reason)
        checks.append(check.as_json())
    return {**result, "oracle": verdict.oracle, "oracle_reason": verdict.reason, "checks": checks}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
