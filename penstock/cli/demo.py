"""`penstock demo`: see it work, in a minute (demo_run.py plays it)."""

from __future__ import annotations

from dataclasses import asdict

import click

from penstock.cli.output import EXIT_UNEXPECTED, json_option, show_json


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(min=3),
    default=30.0,
    show_default=True,
    help="How long bids come in, from the first result on.",
)
@click.option("--ui", "shows_page", is_flag=True, help="Open the page in a browser, until Ctrl-C.")
@json_option
def demo(seconds: float, shows_page: bool, as_json: bool) -> None:
    """Watch a query on Spark in real time, through two kills (needs Java).

    Bids of an auction site come in at 10,000 events a second; a windowed DataFrame runs on two
    long-lived Spark tasks. One of them is killed, then the log's server. In the end the result is
    compared with batch Spark over the same bids. Takes about a minute, needs no network, in a
    temporary directory that is removed after. Exit code 1 if a single row differs.

    \b
    Examples:
      penstock demo
      penstock demo --seconds 60
      penstock demo --ui
      penstock demo --json | jq .ok
    """
    # Only here: Spark's side of Penstock takes a while to import, and other commands need none.
    from penstock.cli.demo_page import show_page
    from penstock.cli.demo_run import run_demo
    from penstock.cli.demo_view import View

    if shows_page and as_json:
        raise click.UsageError("--ui goes on until Ctrl-C: give it without --json")
    outcome = run_demo(seconds, View(quiet=as_json), show_page if shows_page else None)
    if as_json:
        show_json({"ok": outcome.ok, **asdict(outcome)})
    if not outcome.ok:
        click.get_current_context().exit(EXIT_UNEXPECTED)
