"""`penstock nexmark recovery`: q8 fails and recovers, with and without checkpoints, at some rates.

Owns the table (that of Impeller 5.3.5: time, entries and changes by input rate) and its bars; how a
resume is measured is bench/recovery.py's. State is built from so many seconds of event time, fed as
fast as the tasks take it, so a checkpoint each second of the clock comes every few seconds of event
time; the paper's came every ten.

Law: each rate has its own log; with and without are measured on the same one, in turn, and end with
equally many rows of state, or the check says by how many they differ.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from penstock_bench.recovery import (
    RecoveryBenchSizes,
    RecoveryFigures,
    measure_resume,
    resume_checks,
)
from penstock_bench.report import Report, Say

BENCH: Final = "nexmark_recovery"
RATES: Final = (10_000, 20_000, 40_000)
SECONDS: Final = 300
ROUNDS: Final = 5


def run_recovery(
    rates: Sequence[int] = RATES,
    *,
    seconds: int = SECONDS,
    rounds: int = ROUNDS,
    directory: Path | None = None,
    say: Say = lambda _: None,
) -> Report:
    """Needs Java, to plan the query."""
    figures = {}
    for rate in rates:
        plan = RecoveryBenchSizes(event_seconds=seconds, events_per_s=rate, rounds=rounds)
        figures[rate] = measure_resume(directory=directory, plan=plan, say=say)
    return make_report(figures, seconds=seconds, rounds=rounds)


def make_report(per_rate: Mapping[int, RecoveryFigures], *, seconds: int, rounds: int) -> Report:
    """The verdict, and one object per rate."""
    checks = []
    for rate, own in per_rate.items():
        checks += resume_checks(own, f"{rate:,} events/s: ")
    figures = {"rates": [_figures(rate, own) for rate, own in per_rate.items()]}
    parameters = {"query": "q8", "seconds": seconds, "rounds": rounds, "rates": list(per_rate)}
    return Report(BENCH, checks, figures, parameters)


def _figures(rate: int, figures: RecoveryFigures) -> dict[str, Any]:
    return {
        "rate": rate,
        "state_rows": figures.state_rows,
        "commits": figures.commits,
        "build_seconds": figures.build_seconds,
        "without": {
            **_seconds(figures.without),
            **asdict(figures.replay_all),
            "checkpoint_bytes": 0,
        },
        "with": {
            **_seconds(figures.with_checkpoints),
            **asdict(figures.replay_suffix),
            "checkpoint_bytes": figures.checkpoint_bytes,
        },
    }


def _seconds(rounds: Sequence[float]) -> dict[str, float]:
    return {
        "seconds": round(statistics.median(rounds), 4),
        "seconds_min": round(min(rounds), 4),
        "seconds_max": round(max(rounds), 4),
    }


#: The rows of the table: what it is called, and where it stands in `_figures`.
_MEASURES: Final = (
    ("recovery time, s", "seconds", "{:.3f}"),
    ("entries read", "entries", "{:,}"),
    ("bytes read from the log", "bytes", "{:,}"),
    ("changes applied", "changes", "{:,}"),
    ("bytes of checkpoints read", "checkpoint_bytes", "{:,}"),
)


def make_table(report: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows, as the paper has them, of a report's JSON: a column per rate."""
    rates = report["figures"]["rates"]
    headers = ["events/s", "", *(f"{own['rate']:,}" for own in rates)]
    rows = []
    for name, key, form in _MEASURES:
        for label, kind in (("no checkpoints", "without"), ("checkpoints", "with")):
            rows.append([name, label, *(form.format(own[kind][key]) for own in rates)])
    faster = [own["without"]["seconds"] / own["with"]["seconds"] for own in rates]
    rows.append(["times faster", "", *(f"{ratio:.1f}×" for ratio in faster)])
    rows.append(["rows of state", "", *(f"{own['state_rows']:,}" for own in rates)])
    return headers, rows
