"""`penstock bench …`: measure, print a table or one JSON object, exit 1 if a bar is missed."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from penstock_bench.cli.options import Option, directory_option, json_option
from penstock_bench.report import Report


def _say(line: str) -> None:
    click.echo(f"… {line}", err=True)


@click.group()
def bench() -> None:
    """Measure what we claim, beside the raw disk or a peer, in one run."""


def _benchmark(*, quick: str, writes: str | None = None) -> Option:
    """A command of `bench`, named as its function, that shows the report which that returns."""

    def register(measure: Callable[..., Report]) -> click.Command:
        @functools.wraps(measure)
        def command(as_json: bool, **options: Any) -> None:
            show_report(measure(**options), as_json=as_json)

        flag = click.option("--quick", is_flag=True, help=f"{quick}; the figures mean nothing.")
        options: list[Option] = [flag]
        if writes is not None:
            options.append(directory_option(f"Where to write ({writes}); the disk of the log."))
        whole: Callable[..., Any] = command
        for option in reversed(options):
            whole = option(whole)
        return bench.command(measure.__name__)(json_option(whole))

    return register


@_benchmark(quick="A few seconds", writes="about 6 GB")
def log(quick: bool, directory: Path | None) -> Report:
    """The shared log on one machine: latency, throughput, selective reads, opening, memory.

    \b
    Examples:
      penstock bench log
      penstock bench log --json --dir /var/tmp > log.json
    """
    from penstock_bench.log import QUICK, LogBenchSizes, run_log_bench

    return run_log_bench(directory=directory, plan=QUICK if quick else LogBenchSizes(), say=_say)


@_benchmark(quick="A minute less")
def ops(quick: bool) -> Report:
    """The operators on one core, beside the same work in batch Spark (needs Java).

    \b
    Examples:
      penstock bench ops
      penstock bench ops --json > ops.json
    """
    from penstock_bench.ops import QUICK, OpsBenchSizes, run_ops_bench

    return run_ops_bench(plan=QUICK if quick else OpsBenchSizes(), say=_say)


@_benchmark(quick="Two minutes", writes="about 2 GB")
def realtime(quick: bool, directory: Path | None) -> Report:
    """Latency in real time, beside the same DataFrame in Spark's micro-batches (needs Java).

    About eight minutes, best on a machine that does nothing else.

    \b
    Examples:
      penstock bench realtime
      penstock bench realtime --json --dir /var/tmp > realtime.json
    """
    from penstock_bench.realtime import QUICK, RealtimeBenchSizes, run_realtime_bench

    return run_realtime_bench(
        directory=directory, plan=QUICK if quick else RealtimeBenchSizes(), say=_say
    )


@_benchmark(quick="Half a minute", writes="about 1 GB")
def recovery(quick: bool, directory: Path | None) -> Report:
    """How soon a query goes on: with checkpoints beside without, after kills (needs Java).

    About two minutes.

    \b
    Examples:
      penstock bench recovery
      penstock bench recovery --json --dir /var/tmp > recovery.json
    """
    from penstock_bench.recovery import QUICK, RecoveryBenchSizes, run_recovery_bench

    return run_recovery_bench(
        directory=directory, plan=QUICK if quick else RecoveryBenchSizes(), say=_say
    )


@_benchmark(quick="A minute", writes="about 4 GB")
def connector(quick: bool, directory: Path | None) -> Report:
    """Streams as a source and a sink of Spark's own engine, beside Spark's own (needs Java).

    About five minutes, best on a machine that does nothing else.

    \b
    Examples:
      penstock bench connector
      penstock bench connector --json --dir /var/tmp > connector.json
    """
    from penstock_bench.connector import QUICK, ConnectorBenchSizes, run_connector_bench

    return run_connector_bench(
        directory=directory, plan=QUICK if quick else ConnectorBenchSizes(), say=_say
    )


@_benchmark(quick="Half a minute", writes="about 1 GB")
def cluster(quick: bool, directory: Path | None) -> Report:
    """The replicated log beside the log of one machine: latency, a slow node, tails (needs Java).

    About four minutes, best on a machine that does nothing else.

    \b
    Examples:
      penstock bench cluster
      penstock bench cluster --json --dir /var/tmp > cluster.json
    """
    from penstock_bench.cluster import QUICK, ClusterBenchSizes, run_cluster_bench

    return run_cluster_bench(
        directory=directory, plan=QUICK if quick else ClusterBenchSizes(), say=_say
    )


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
