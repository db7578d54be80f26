"""`penstock nexmark report` and `penstock nexmark recovery`.

Owns their options and what they print. Matplotlib is imported by the report only, and only here is
its absence told.
"""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.output import show_fields, show_json, show_table
from penstock.errors import NotFound
from penstock_bench.cli.output import (
    directory_option,
    json_option,
    number,
    results_option,
    say,
    show_checks,
    show_origin,
    show_report,
)
from penstock_bench.report import Report

#: Where `penstock nexmark run --results` keeps result objects, unless told otherwise.
RESULTS = Path("nexmark-results")


@click.command("report")
@results_option("Directory of result objects (*.json), searched to any depth.", RESULTS)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where page and pictures go; `report` in the directory of results if not given.",
)
@json_option
def report(results: Path, out: Path | None, as_json: bool) -> None:
    """One HTML page and PNGs of all results: latency against rate, peers, protocols, saturation.

    The page needs no network and no other file.

    \b
    Examples:
      penstock nexmark report
      penstock nexmark report --results nexmark-results --out docs/figures
    """
    try:
        from penstock_bench.nexmark.report_page import write_report
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise NotFound(
            "the report needs Matplotlib, which is not installed: pip install matplotlib"
        ) from error

    written = write_report(results, out or results / "report")
    if as_json:
        show_json(
            {
                "page": str(written.page),
                "images": [str(path) for path in written.images],
                "runs": written.runs,
                "skipped": list(written.skipped),
                "missing": {name: list(lines) for name, lines in written.missing.items()},
            }
        )
        return
    for line in written.skipped:
        click.echo(f"passed over {line}", err=True)
    images = [("image", path) for path in written.images]
    show_fields([("page", written.page), *images, ("runs", written.runs)])


def _parse_rates(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Whole numbers, by commas."""
    try:
        rates = tuple(int(part) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no list of numbers such as 10000,20000") from error
    # A step of the bench is 0.1 s of events and should hold whole turns of the generator.
    if not all(rate >= 500 and rate % 500 == 0 for rate in rates):
        raise click.BadParameter(f"{value}: each rate must be a multiple of 500 events/s")
    return rates


@click.command("recovery")
@click.option(
    "--rates", default="10000,20000,40000", callback=_parse_rates, help="Events/s, by commas."
)
@number("--seconds", click.IntRange(min=1), 300, "Event time until the failure.")
@number(
    "--rounds", click.IntRange(min=1), 5, "How often each resume is measured; the median counts."
)
@directory_option("Where to write (about 1 GB); the disk of the log.")
@json_option
def recovery(
    rates: tuple[int, ...], seconds: int, rounds: int, directory: Path | None, as_json: bool
) -> None:
    """q8 fails and recovers, with checkpoints and without, at each input rate (needs Java).

    The events of so many seconds are fed as fast as the tasks take them. Exit code 1 if checkpoints
    are not ten times faster, or if the states differ.

    \b
    Examples:
      penstock nexmark recovery
      penstock nexmark recovery --rates 10000 --seconds 120
      penstock nexmark recovery --json > nexmark-results/recovery.json
    """
    from penstock_bench.nexmark.recovery import make_table, run_recovery

    figures = run_recovery(rates, seconds=seconds, rounds=rounds, directory=directory, say=say)

    def show(figures: Report) -> None:
        show_table(*make_table(figures.as_json()))
        show_checks(figures.as_json()["checks"])
        show_origin(figures)

    show_report(figures, show, as_json=as_json)
