"""`penstock nexmark protocols`: markers beside transactions, aligned checkpoints and nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from penstock.cli.output import show_table
from penstock_bench.cli.output import (
    directory_option,
    json_option,
    keeper,
    number,
    oracle_option,
    results_option,
    show_result,
    shown,
)
from penstock_bench.protocols.choosing import PROTOCOLS
from penstock_bench.report import Report


@click.command("protocols")
@click.option(
    "--rate",
    "rates",
    metavar="QUERY=RATE",
    multiple=True,
    help="A query and its events a second; repeatable.  [default: q1, q4, q5, q8]",
)
@click.option(
    "--interval",
    "intervals_ms",
    metavar="MS",
    type=click.IntRange(0, 60_000),
    multiple=True,
    default=(10, 100),
    help="Between two commits; repeatable.",
)
@click.option(
    "--protocol",
    "protocols",
    type=click.Choice(PROTOCOLS),
    multiple=True,
    default=PROTOCOLS,
    show_default=False,
    help="Repeatable.  [default: all]",
)
@number("--rounds", click.IntRange(1, 100), 3)
@number("--seconds", click.FloatRange(min=0.5), 10)
@number("--warm-seconds", click.FloatRange(min=0), 4)
@oracle_option
@directory_option("Where the log is for the time of the run.")
@results_option("Also keep every run as a file in this directory.")
@json_option
def protocols(
    rates: tuple[str, ...],
    no_oracle: bool,
    directory: Path | None,
    results: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure commit protocols side by side: same query, same events, same log (needs Java).

    About 25 minutes with the defaults.

    \b
    Examples:
      penstock nexmark protocols
      penstock nexmark protocols --rate q5=4000 --interval 10 --interval 25 --interval 50
      penstock nexmark protocols --rounds 1 --seconds 5 --json --results results/
    """
    from penstock_bench.nexmark.protocols import ProtocolComparison, compare_protocols
    from penstock_bench.nexmark.run import Bench

    if rates:
        options["rates"] = dict(_parse(text) for text in rates)
    plan = ProtocolComparison(**options, oracle=not no_oracle)
    with shown() as (say, show), Bench(say, show=show, directory=directory) as bench:
        report, runs = compare_protocols(bench, plan, say, keeper(results))
    result = {**report.as_json(), "runs": runs}
    show_result(result, lambda: _show(report), as_json=as_json, ok=report.ok)


def _parse(text: str) -> tuple[str, float]:
    query, _, rate = text.partition("=")
    try:
        return query, float(rate)
    except ValueError:
        raise click.BadParameter(f"{text!r}: give it as q5=4000", param_hint="--rate") from None


def _show(report: Report) -> None:
    shown_figures = {
        "p50 ms": "p50_ms",
        "p99 ms": "p99_ms",
        "appended p50": "appended_p50_ms",
        "bytes/event": "bytes_per_event",
        "CPU s/M": "cpu_s_per_million_events",
    }
    rows = (
        (
            name,
            protocol,
            *(figures[key] for key in shown_figures.values()),
            f"{figures['held']} of {len(figures['p50_ms_rounds'])}",
            ", ".join(figures["oracle"]),
        )
        for name, protocols in report.figures.items()
        for protocol, figures in protocols.items()
    )
    show_table(["query", "protocol", *shown_figures, "held", "oracle"], rows)
    click.echo()
    for check in report.checks:
        verdict = "as in the paper" if check.ok else "NOT as in the paper"
        click.echo(f"{verdict}: {check.name} {check.value:,.2f} {check.unit} {check.detail}")
