"""`penstock nexmark run` and `saturate`: measure a query, and find the highest rate it holds.

Owns the options and how figures are shown. Results go to standard output, everything else to
standard error. Exit code 1 if a run was not held or the oracle found a difference.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.output import show_fields, show_table
from penstock_bench.cli.output import (
    directory_option,
    json_option,
    keeper,
    number,
    oracle_option,
    results_option,
    seed_option,
    show_checks,
    show_result,
    shown,
)
from penstock_bench.protocols.choosing import PROTOCOLS

if TYPE_CHECKING:
    from penstock_bench.nexmark.run import Run

Command = Callable[..., Any]

_OPTIONS: Final = (
    click.option(
        "--mode",
        type=click.Choice(["append", "update", "complete"]),
        help="By default the query's own.",
    ),
    number("--workers", click.IntRange(1, 64), 1),
    number("--generators", click.IntRange(1, 64), 1, "Processes that share the rate."),
    number("--flush-ms", click.FloatRange(0.5, 10_000), 5, "How often a generator appends."),
    click.option(
        "--commit-interval",
        "commit_interval_ms",
        metavar="MS",
        type=click.IntRange(0, 60_000),
        default=0,
        help="Between two commits at least; 0: as often as the log can.",
    ),
    click.option("--protocol", type=click.Choice(PROTOCOLS), default="marker"),
    click.option(
        "--watermark-ms",
        type=click.IntRange(0, 60_000),
        help="How late events may be.  [default: 0, with several generators 100]",
    ),
    number(
        "--state-scale",
        click.IntRange(min=1),
        1,
        "Of nbq5, nbq8, nbqx: persons and auctions so many times as large, and in use.",
    ),
    seed_option,
    oracle_option,
    number(
        "--oracle-events",
        click.IntRange(min=1),
        2_000_000,
        "Of a longer run, the oracle checks a part in a run of its own.",
    ),
    directory_option("Where the log is for the time of the run."),
    results_option("Also keep the result as a file in this directory."),
    json_option,
)


def _with_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command("run")
@click.argument("query")
@number("--rate", click.FloatRange(min=1), 50_000, "Events a second.")
@number("--seconds", click.FloatRange(min=0.5), 60)
@number("--warm-seconds", click.FloatRange(min=0), 10, "Before the measured ones, and not counted.")
@_with_options
def run(
    query: str, as_json: bool, directory: Path | None, results: Path | None, **options: Any
) -> None:
    """Measure one query under a paced load, and compare its result with batch Spark (needs Java).

    Latency is per result row, from the scheduled time of its newest event, or from the end of its
    window, until a reader of the result has it.

    \b
    Examples:
      penstock nexmark run q5
      penstock nexmark run q1 --rate 20000 --seconds 30 --json
      penstock nexmark run q4 --rate 2000 --protocol unsafe --results results/
    """
    from penstock_bench.nexmark.run import run_nexmark

    with shown() as (say, show):
        result = run_nexmark(_run(query, options), say, show=show, directory=directory)
    keeper(results)(result)
    ok = all(check["ok"] for check in result["checks"])
    show_result(result, lambda: _show_run(result), as_json=as_json, ok=ok)


@click.command("saturate")
@click.argument("query")
@click.option("--from", "first", type=click.FloatRange(min=1), help="The first rate to try.")
@number("--seconds", click.FloatRange(min=0.5), 20, "Of each step.")
@number("--warm-seconds", click.FloatRange(min=0), 5)
@_with_options
def saturate(
    query: str,
    first: float | None,
    as_json: bool,
    directory: Path | None,
    results: Path | None,
    **options: Any,
) -> None:
    """Find the highest rate that a query holds, within a tenth (needs Java).

    Held: 99 of 100 rows within 60 ms (queries without state) or 1 s (others), no growing lag, and
    generators that kept to their schedule.

    \b
    Examples:
      penstock nexmark saturate q5
      penstock nexmark saturate q1 --from 50000 --seconds 30 --json
    """
    from penstock_bench.nexmark.run import Bench
    from penstock_bench.nexmark.saturate import find_saturation

    with shown() as (say, show), Bench(say, show=show, directory=directory) as bench:
        saturation, steps = find_saturation(bench, _run(query, options), say, first=first)
    for step in steps:
        keeper(results)(step)
    ok = saturation["is_final"] and saturation["oracle"] != "different"
    show_result(saturation, lambda: _show_saturation(saturation), as_json=as_json, ok=ok)


def _run(query: str, options: dict[str, Any]) -> Run:
    from penstock_bench.nexmark.run import Run

    return Run(query, oracle=not options.pop("no_oracle"), **options)


def _show_run(result: dict[str, Any]) -> None:
    latency = result["latency_ms"] or {}
    lag = result["lag_events"]
    cpu = result["cpu_s_per_million_events"]
    show_fields(
        [
            ("query", f"{result['query']}, {result['mode']}, {result['variant']}"),
            ("events/s", f"{_number(result['throughput_events_per_s'])} of {result['rate']:,.0f}"),
            ("results/s", f"{result['results_per_s']:,.1f}"),
            ("latency", f"{_times(latency)}, from {result['latency_from']}"),
            ("appended", _times(result["emitted_latency_ms"] or {})),
            (
                "lag",
                f"at most {_number(lag['max'])} events, {_number(lag['slope_per_s'])} more per s",
            ),
            ("CPU", ", ".join(f"{kind} {seconds:.1f}" for kind, seconds in cpu.items())),
            ("", "seconds per million events"),
            ("memory", ", ".join(f"{k} {v:,.0f} MiB" for k, v in result["memory_mib"].items())),
            ("markers/s", _number(result["markers_per_s"])),
            ("bytes/event", f"{result['bytes_appended_per_event']:,.1f}"),
            ("schedule", result["schedule"]["note"]),
            ("oracle", f"{result['oracle']}: {result['oracle_reason']}"),
        ]
    )
    show_checks(result["checks"])


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.1f}"


def _times(latency: dict[str, float]) -> str:
    return ", ".join(f"{name} {ms:,.1f} ms" for name, ms in latency.items()) or "no rows"


def _show_saturation(saturation: dict[str, Any]) -> None:
    rows = []
    for step in saturation["steps"]:
        latency = step["latency_ms"] or {}
        missed = [check["name"] for check in step["checks"] if not check["ok"]]
        growth, said = step["lag_events"]["slope_per_s"], ", ".join(missed) or "held"
        rows.append((f"{step['rate']:.0f}", latency.get("p50"), latency.get("p99"), growth, said))
    show_table(["events/s", "p50 ms", "p99 ms", "lag per s", "verdict"], rows)
    click.echo()
    best = saturation["saturation_events_per_s"]
    click.echo(f"{saturation['query']}: {'none held' if best is None else f'{best:,.0f} events/s'}")
