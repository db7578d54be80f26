"""`penstock nexmark …`: the benchmark. The commands are in nexmark_*.py; this is their group."""

from __future__ import annotations

import click

from penstock_bench.cli.nexmark_generate import generate
from penstock_bench.cli.nexmark_peers import compare, peers
from penstock_bench.cli.nexmark_protocols import protocols
from penstock_bench.cli.nexmark_report import recovery, report
from penstock_bench.cli.nexmark_run import run, saturate


@click.group(context_settings={"show_default": True})
def nexmark() -> None:
    """NEXMark: an auction site as a benchmark, its queries and their figures.

    \b
    Examples:
      penstock nexmark generate --rate 100000
      penstock nexmark run q5 --rate 50000 --seconds 60 --json
      penstock nexmark saturate q5
    """


for _command in (generate, run, saturate, peers, compare, protocols, recovery, report):
    nexmark.add_command(_command)
