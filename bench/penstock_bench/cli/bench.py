"""`penstock bench …`: measure, print a table or one JSON object, exit 1 if a bar is missed.

A benchmark is a module of this package with `run_bench`, and with the sizes FULL and QUICK.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from penstock_bench.cli.output import directory_option, json_option, say, show_report

_ALONE = ", best on a machine that does nothing else."


@click.group()
def bench() -> None:
    """Measure what we claim, beside the raw disk or a peer, in one run."""


def _add(name: str, summary: str, *, quick: str, disk: str = "", takes: str = "") -> click.Command:
    """The command of one benchmark; one that writes nothing to the disk has no --dir."""
    examples = f"penstock bench {name}\n  penstock bench {name} --json > {name}.json"
    if disk:
        examples = examples.replace("--json", "--json --dir /var/tmp")

    @bench.command(name, help="\n\n".join((summary, takes, f"\b\nExamples:\n  {examples}")))
    @json_option
    @click.option("--quick", is_flag=True, help=f"{quick}; the figures mean nothing.")
    def measure(as_json: bool, quick: bool, **options: Any) -> None:
        module = importlib.import_module(f"penstock_bench.{name}")
        sizes = module.QUICK if quick else module.FULL
        show_report(module.run_bench(plan=sizes, say=say, **options), as_json=as_json)

    if disk:
        directory_option(f"Where to write ({disk}); the disk of the log.")(measure)
    return measure


_add(
    "log",
    "The shared log on one machine: latency, throughput, selective reads, opening, memory.",
    quick="A few seconds",
    disk="about 6 GB",
)
_add(
    "ops",
    "The operators on one core, beside the same work in batch Spark (needs Java).",
    quick="A minute less",
)
_add(
    "small",
    "What an event costs in small batches: NEXMark by tasks in this process (needs Java).",
    quick="Half a minute",
    takes=f"About five minutes{_ALONE}",
)
_add(
    "realtime",
    "Latency in real time, beside the same DataFrame in Spark's micro-batches (needs Java).",
    quick="Two minutes",
    disk="about 2 GB",
    takes=f"About eight minutes{_ALONE}",
)
_add(
    "recovery",
    "How soon a query goes on: with checkpoints beside without, after kills (needs Java).",
    quick="Half a minute",
    disk="about 1 GB",
    takes="About two minutes.",
)
_add(
    "result",
    "What query.result() costs after a long history, and what a trim leaves of it (needs Java).",
    quick="Two minutes",
    disk="about 1 GB",
    takes="About three minutes.",
)
_add(
    "reports",
    "What it costs that queries tell how they stand: meters, reports, scrapes of /metrics.",
    quick="A few seconds",
    disk="about 100 MB",
    takes=f"About a minute{_ALONE}",
)
_add(
    "checkpoints",
    "Stores of checkpoints, as a thesis about S4 measured its own (needs Java).",
    quick="Half a minute",
    disk="about 2 GB",
    takes=f"About six minutes{_ALONE}",
)
_add(
    "scale",
    "What more tasks on one source bring: speed, bytes read, commits (needs Java).",
    quick="A minute",
    disk="about 1 GB",
    takes=f"About two minutes{_ALONE}",
)
_add(
    "state",
    "What checkpoints cost a task with five million keys: pauses, bytes (needs Java).",
    quick="A minute",
    disk="about 4 GB",
    takes=f"About three minutes{_ALONE}",
)
handover = _add(
    "handover",
    "How long a large state pauses when it moves, is lost, or is rescaled (needs Java).",
    quick="A minute",
    disk="about 4 GB",
    takes=f"About 40 minutes; with --keys 1000000 --rounds 2 --rescales 1 eight{_ALONE}",
)
for _name, _help in (
    ("keys", "Keys of the state; give it again for more sizes."),
    ("rounds", "Moves and kills of each way."),
    ("rescales", "How often from two workers to four, and back."),
):
    click.option(
        f"--{_name}", type=click.IntRange(1), multiple=_name == "keys", default=None, help=_help
    )(handover)
click.option(
    "--loaded", is_flag=True, help="New workers have loaded what they need, as with penstock.tuned."
)(handover)
_add(
    "connector",
    "Streams as a source and a sink of Spark's own engine, beside Spark's own (needs Java).",
    quick="A minute",
    disk="about 4 GB",
    takes=f"About five minutes{_ALONE}",
)
_add(
    "cluster",
    "The replicated log beside the log of one machine: latency, a slow node, tails (needs Java).",
    quick="Half a minute",
    disk="about 1 GB",
    takes=f"About four minutes{_ALONE}",
)
_add(
    "deliver",
    "Delivery to many targets in other processes: from dispatch to receipt, frames and gRPC.",
    quick="A minute",
    disk="nearly nothing",
    takes=f"About five minutes{_ALONE}",
)
_add(
    "start",
    "How long people wait: for commands, and for the quick start's first result (needs Java).",
    quick="A few seconds",
    takes=f"About two minutes{_ALONE}",
)
_add(
    "ui",
    "What three open pages and a scrape each second cost a query (needs Java).",
    quick="A minute",
    disk="about 1 GB",
    takes=f"About four minutes{_ALONE}",
)
_add(
    "gateway",
    "Requests over HTTP by size, JSON decoded by column beside row by row, and Kafka's protocol "
    "beside a broker of Kafka's (needs the peer kafka_streams: penstock nexmark peers install).",
    quick="Half a minute",
    disk="about 6 GB",
    takes=f"About four minutes{_ALONE}",
)
