"""`penstock nexmark peers …` and `compare`: other systems beside Penstock, in one run.

Owns the options and how figures are shown. Results go to standard output, everything else to
standard error. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.output import NOTHING, show_json, show_table
from penstock_bench.cli.output import (
    directory_option,
    json_option,
    keeper,
    number,
    oracle_option,
    results_option,
    say,
    seed_option,
    show_checks,
    show_report,
    shown,
)

if TYPE_CHECKING:
    from penstock_bench.report import Report


@click.group("peers")
def peers() -> None:
    """Other stream processors that can be measured beside Penstock.

    \b
    Examples:
      penstock nexmark peers list
      penstock nexmark peers install flink
    """


@peers.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON array on standard output.")
def list_peers(as_json: bool) -> None:
    """Which peers there are, and whether they can run here.

    \b
    Examples:
      penstock nexmark peers list
      penstock nexmark peers list --json
    """
    from penstock_bench.nexmark.peers import find_peers

    listed: list[dict[str, Any]] = [
        {
            "name": spec.name,
            "is_ready": spec.missing is None,
            "missing": spec.missing,
            "summary": spec.summary,
            "variants": list(spec.variants),
        }
        for spec in find_peers().values()
    ]
    if as_json:
        show_json(listed)
        return
    rows = (
        (peer["name"], peer["missing"] or "ready", ", ".join(peer["variants"]), peer["summary"])
        for peer in listed
    )
    show_table(["name", "state", "variants", "what it is"], rows)


@peers.command("install")
@click.argument("names", nargs=-1, required=True)
@json_option
def install_peers(names: tuple[str, ...], as_json: bool) -> None:
    """Install peers, each into an environment of its own beside its program, by pip and Maven.

    \b
    Examples:
      penstock nexmark peers install flink
      penstock nexmark peers install kafka_streams
    """
    from penstock_bench.nexmark.peers import find_peer, install

    specs = [find_peer(name) for name in names]
    for spec in specs:
        install(spec, say)
        click.echo(f"{spec.name} is ready", err=True)
    if as_json:
        show_json([{"name": spec.name, "is_ready": spec.missing is None} for spec in specs])


@click.command("compare")
@click.argument("queries", nargs=-1, required=True)
@number("--rate", click.FloatRange(min=1), 5_000, "Events a second; choose one that all hold.")
@number("--seconds", click.FloatRange(min=1), 20)
@number(
    "--warm-seconds",
    click.FloatRange(min=0),
    10,
    "Of Penstock: before the measured ones, and not counted.",
)
@number("--peer-warm-seconds", click.FloatRange(min=0), 25, "Of the peers, whose JVMs need longer.")
@click.option("--peer", "peers", multiple=True, help="Only this one; may be repeated.")
@click.option("--variant", "variants", multiple=True, help="Only this one; may be repeated.")
@seed_option
@oracle_option
@directory_option("Where logs and files are for the time of the run.")
@results_option("Also keep every result as a file in this directory.")
@json_option
def compare(
    queries: tuple[str, ...],
    no_oracle: bool,
    directory: Path | None,
    results: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Penstock and every installed peer over the same events, one after the other (needs Java).

    Peers that are not installed are skipped with a line that says how to install them. About a
    minute per query and variant.

    \b
    Examples:
      penstock nexmark compare q1 q5
      penstock nexmark compare q4 --rate 2000 --peer flink --variant checkpoints_100ms
      penstock nexmark compare q1 q2 q3 --json --results results/ > compare.json
    """
    from penstock_bench.nexmark.compare import PeerComparison
    from penstock_bench.nexmark.compare import compare as run_comparison

    plan = PeerComparison(queries, oracle=not no_oracle, **options)
    with shown() as (tell, show):
        report = run_comparison(plan, tell, show=show, directory=directory, keep=keeper(results))
    show_report(report, _show_comparison, as_json=as_json)


def _show_comparison(report: Report) -> None:
    headers = [
        *("query", "system", "variant", "p50 ms", "p99 ms", "max ms", "emitted p50", "rows"),
        *("CPU s/M", "rate held", "oracle"),
    ]
    show_table(headers, _rows(report))
    for run in report.figures["skipped"]:
        name = " ".join(run[part] for part in ("system", "variant", "query") if run[part])
        click.echo(f"skipped: {name}: {run['reason']}")
    show_checks(report.as_json()["checks"])


def _rows(report: Report) -> Iterator[tuple[object, ...]]:
    from penstock_bench.nexmark.compare import holds_rate

    order = {query: place for place, query in enumerate(report.parameters["queries"])}
    for result in sorted(report.figures["results"], key=lambda row: order[row["query"]]):
        visible, emitted = result["latency_ms"] or {}, result["emitted_latency_ms"] or {}
        times = [*(visible.get(name) for name in ("p50", "p99", "max")), emitted.get("p50")]
        yield (
            *(result[name] for name in ("query", "system", "variant")),
            *(NOTHING if ms is None else f"{ms:,.1f}" for ms in times),
            result["rows"],
            f"{result['cpu_s_per_million_events']['total']:,.0f}",
            holds_rate(result),
            result["oracle"],
        )
