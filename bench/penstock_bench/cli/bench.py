"""`penstock bench …`: measure, print a table or one JSON object, exit 1 if a bar is missed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from penstock_bench.report import Report

Option = Callable[[Callable[..., Any]], Callable[..., Any]]


_json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON object on standard output."
)


def _quick_option(takes: str) -> Option:
    return click.option("--quick", is_flag=True, help=f"{takes}; the figures mean nothing.")


def _directory_option(size: str) -> Option:
    return click.option(
        "--dir",
        "directory",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help=f"Where to write ({size}); the disk of the log.",
    )


def _say(line: str) -> None:
    click.echo(f"… {line}", err=True)


@click.group()
def bench() -> None:
    """Measure what we claim, beside the raw disk or a peer, in one run."""


@bench.command("log")
@_json_option
@_quick_option("A few seconds")
@_directory_option("about 6 GB")
def bench_log(as_json: bool, quick: bool, directory: Path | None) -> None:
    """The shared log on one machine: latency, throughput, selective reads, opening, memory.

    \b
    Examples:
      penstock bench log
      penstock bench log --json --dir /var/tmp > log.json
    """
    from penstock_bench.log import QUICK, LogBenchSizes, run_log_bench

    report = run_log_bench(directory=directory, plan=QUICK if quick else LogBenchSizes(), say=_say)
    show_report(report, as_json=as_json)


@bench.command("ops")
@_json_option
@_quick_option("A minute less")
def bench_ops(as_json: bool, quick: bool) -> None:
    """The operators on one core, beside the same work in batch Spark (needs Java).

    \b
    Examples:
      penstock bench ops
      penstock bench ops --json > ops.json
    """
    from penstock_bench.ops import QUICK, OpsBenchSizes, run_ops_bench

    report = run_ops_bench(plan=QUICK if quick else OpsBenchSizes(), say=_say)
    show_report(report, as_json=as_json)


@bench.command("realtime")
@_json_option
@_quick_option("Two minutes")
@_directory_option("about 2 GB")
def bench_realtime(as_json: bool, quick: bool, directory: Path | None) -> None:
    """Latency in real time, beside the same DataFrame in Spark's micro-batches (needs Java).

    About eight minutes, best on a machine that does nothing else.

    \b
    Examples:
      penstock bench realtime
      penstock bench realtime --json --dir /var/tmp > realtime.json
    """
    from penstock_bench.realtime import QUICK, RealtimeBenchSizes, run_realtime_bench

    report = run_realtime_bench(
        directory=directory, plan=QUICK if quick else RealtimeBenchSizes(), say=_say
    )
    show_report(report, as_json=as_json)


@bench.command("recovery")
@_json_option
@_quick_option("Half a minute")
@_directory_option("about 1 GB")
def bench_recovery(as_json: bool, quick: bool, directory: Path | None) -> None:
    """How soon a query goes on: with checkpoints beside without, after kills (needs Java).

    About two minutes.

    \b
    Examples:
      penstock bench recovery
      penstock bench recovery --json --dir /var/tmp > recovery.json
    """
    from penstock_bench.recovery import QUICK, RecoveryBenchSizes, run_recovery_bench

    report = run_recovery_bench(
        directory=directory, plan=QUICK if quick else RecoveryBenchSizes(), say=_say
    )
    show_report(report, as_json=as_json)


@bench.command("connector")
@_json_option
@_quick_option("A minute")
@_directory_option("about 4 GB")
def bench_connector(as_json: bool, quick: bool, directory: Path | None) -> None:
    """Streams as a source and a sink of Spark's own engine, beside Spark's own (needs Java).

    About five minutes, best on a machine that does nothing else.

    \b
    Examples:
      penstock bench connector
      penstock bench connector --json --dir /var/tmp > connector.json
    """
    from penstock_bench.connector import QUICK, ConnectorBenchSizes, run_connector_bench

    report = run_connector_bench(
        directory=directory, plan=QUICK if quick else ConnectorBenchSizes(), say=_say
    )
    show_report(report, as_json=as_json)


@bench.command("cluster")
@_json_option
@_quick_option("Half a minute")
@_directory_option("about 1 GB")
def bench_cluster(as_json: bool, quick: bool, directory: Path | None) -> None:
    """The replicated log beside the log of one machine: latency, a slow node, tails (needs Java).

    About four minutes, best on a machine that does nothing else.

    \b
    Examples:
      penstock bench cluster
      penstock bench cluster --json --dir /var/tmp > cluster.json
    """
    from penstock_bench.cluster import QUICK, ClusterBenchSizes, run_cluster_bench

    report = run_cluster_bench(
        directory=directory, plan=QUICK if quick else ClusterBenchSizes(), say=_say
    )
    show_report(report, as_json=as_json)


def show_report(report: Report, *, as_json: bool) -> None:
    """Print a report in the one form of all benchmarks, and exit 1 if a bar is missed."""
    if as_json:
        click.echo(json.dumps(report.as_json(), indent=2))
    else:
        _show_table(report)
    if not report.ok:
        sys.exit(1)


def _show_table(report: Report) -> None:
    figures = report.as_json()
    width = max(len(check.name) for check in report.checks)
    for check in report.checks:
        verdict = "ok  " if check.ok else "MISS"
        value = f"{check.value:,.2f} {check.unit}"
        click.echo(f"{verdict} {check.name:<{width}}  {value:>22}  {check.sense} {check.bar:,g}")
    click.echo()
    for name, figure in report.figures.items():
        click.echo(f"{name}: {figure}")
    click.echo(f"commit {figures['commit']}, machine {figures['machine']}")
