"""What the commands of this package have in common: options, progress, and how reports are shown.

Results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from penstock_bench.report import Report, Say

Show = Callable[[float, str], None]
Option = Callable[[Callable[..., Any]], Callable[..., Any]]

#: Between two plain lines of progress.
_LINE_SECONDS: Final = 5.0

json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON object on standard output."
)
oracle_option = click.option("--no-oracle", is_flag=True, help="Do not compare with batch Spark.")


def number(
    name: str, kind: click.ParamType[Any], default: float, help: str | None = None
) -> Option:
    """A number with a default, which the help shows."""
    return click.option(name, type=kind, default=default, help=help)


seed_option = number("--seed", click.INT, 42)


def directory_option(help: str) -> Option:
    path = click.Path(path_type=Path, exists=True, file_okay=False)
    return click.option("--dir", "directory", type=path, help=help)


def results_option(help: str, default: Path | None = None) -> Option:
    path = click.Path(path_type=Path, file_okay=False)
    return click.option("--results", type=path, default=default, help=help)


def keeper(results: Path | None) -> Callable[[dict[str, Any]], None]:
    """Keeps a result as a file in this directory, if there is one."""
    from penstock_bench.nexmark.keep import keep

    def keep_result(result: dict[str, Any]) -> None:
        if results is not None:
            keep(result, results)

    return keep_result


def say(line: str) -> None:
    click.echo(f"… {line}", err=True)


class _Lines:
    """Progress where there is no terminal: a line now and then."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, share: float, text: str) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_SECONDS
            say(f"{share:4.0%} {text}")


@contextlib.contextmanager
def shown() -> Iterator[tuple[Say, Show]]:
    """What is said and shown while something runs: a bar in a terminal, plain lines elsewhere."""
    if not sys.stderr.isatty():
        yield say, _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=Console(stderr=True), transient=True, refresh_per_second=4
    ) as progress:
        bar = progress.add_task("starting", total=1.0)

        def show(share: float, text: str) -> None:
            progress.update(bar, completed=share, description=text)

        yield (lambda line: progress.console.print(f"… {line}", highlight=False)), show


def show_result(
    result: dict[str, Any], show: Callable[[], None], *, as_json: bool, ok: bool
) -> None:
    """One JSON object, or what `show` prints; exit code 1 if something is not as it should be."""
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        show()
    if not ok:
        sys.exit(1)


def show_report(
    report: Report, show: Callable[[Report], None] | None = None, *, as_json: bool
) -> None:
    """Print a report, by default as a table of its checks, and exit 1 if a bar is missed."""
    shows = show or _show_table
    show_result(report.as_json(), lambda: shows(report), as_json=as_json, ok=report.ok)


def _show_table(report: Report) -> None:
    width = max(len(check.name) for check in report.checks)
    for check in report.checks:
        value = f"{check.value:,.2f} {check.unit}"
        bar = f"{check.sense} {check.bar:,g}"
        click.echo(f"{verdict(check.ok)} {check.name:<{width}}  {value:>22}  {bar}")
    click.echo()
    for name, figure in report.figures.items():
        click.echo(f"{name}: {figure}")
    show_origin(report)


def show_checks(checks: Iterable[dict[str, Any]]) -> None:
    """A line for each, after an empty one."""
    click.echo()
    for check in checks:
        bar = f"{check['sense']} {check['bar']:,g} {check['unit']}".rstrip()
        line = f"{verdict(check['ok'])} {check['name']}: {check['value']:,.2f}, {bar}"
        click.echo(f"{line}  {check['detail']}".rstrip())


def show_origin(report: Report) -> None:
    figures = report.as_json()
    click.echo(f"commit {figures['commit']}, machine {figures['machine']}")


def verdict(ok: bool) -> str:
    return "ok  " if ok else "MISS"
