"""`penstock explain`: what one entry is, who wrote it, what came before and after."""

from __future__ import annotations

import click

from penstock.cli.output import json_option, show_json
from penstock.cli.stream_target import open_log
from penstock.cli.target import Target, target_options


@click.command()
@click.argument("lsn", type=click.IntRange(min=0))
@target_options
@json_option
def explain(lsn: int, target: Target, as_json: bool) -> None:
    """Say what the entry at LSN is and who wrote it.

    Its tags, its group, its rows or metadata keys, what its producer did next, and what stands
    before and after it under each tag. Of a query: what a marker commits, and by which marker a
    task's rows or changes were committed, if at all. Of a stream that is delivered: which targets
    have applied its rows, by their last acks.

    \b
    Examples:
      penstock explain 42
      penstock explain 42 --json | jq .group
      penstock explain 42 --json | jq .commit.state
      penstock explain 42 --json | jq '.deliveries[].targets'
    """
    from penstock.cli.explain_entry import gather, show  # Arrow: a help does without

    with open_log(target) as log:
        facts = gather(log, lsn)
    if as_json:
        show_json(facts)
    else:
        show(facts)
