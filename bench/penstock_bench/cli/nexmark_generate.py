"""`penstock nexmark generate`: the events alone, on schedule, and how well it was kept.

Owns the command and its report. The bars are the benchmark's: everything that was scheduled was
sent, and 99 of 100 events were in the log within pace.held_ms of their scheduled time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from penstock_bench.cli.output import json_option, number, seed_option, show_report, shown
from penstock_bench.report import Check, Report

if TYPE_CHECKING:
    from penstock_bench.nexmark.producers import Producers, Sent

#: From the order until the first event is due; the processes wait for it.
_LEAD_US: Final = 500_000
#: What the last acknowledgements may take; a log that is behind needs it.
_PATIENCE_SECONDS: Final = 120.0
_REFRESH_SECONDS: Final = 0.2


@click.command("generate")
@number("--rate", click.FloatRange(min=1), 100_000)
@number("--seconds", click.FloatRange(min=0.1), 20)
@number(
    "--generators",
    click.IntRange(1, 64),
    1,
    "Processes that share the rate; the stream is then only roughly in order.",
)
@seed_option
@number(
    "--flush-ms", click.FloatRange(min=0.5, max=10_000), 5, "How often what became due is appended."
)
@click.option(
    "--log",
    "target",
    metavar="TARGET",
    help="A data directory or penstock://host:port.  [default: a new log, removed afterwards]",
)
@click.option("--stream", default="events")
@click.option(
    "--variant",
    type=click.Choice(["nexmark", "rhino"]),
    default="nexmark",
    help="rhino: keys drawn evenly, records of 206, 269 and 32 bytes.",
)
@number(
    "--state-scale",
    click.IntRange(min=1),
    1,
    "With rhino: persons and auctions so many times as large, and in use.",
)
@json_option
def generate(as_json: bool, target: str | None, **options: Any) -> None:
    """Append NEXMark events on schedule, and say how late they were; needs no Java.

    Exits with 1 if the schedule was not held.

    \b
    Examples:
      penstock nexmark generate
      penstock nexmark generate --rate 20000 --seconds 60 --generators 2
      penstock nexmark generate --log ./data --variant rhino --state-scale 20 --json
    """
    if options["variant"] != "rhino" and options["state_scale"] != 1:
        raise click.UsageError("--state-scale goes with --variant rhino")
    with _target(target) as where:
        sent = _send(where, **options)
    show_report(make_report(sent, options), as_json=as_json)


def make_report(sent: Sent, options: dict[str, Any]) -> Report:
    """What was sent against what was to be sent."""
    from penstock_bench.nexmark.pace import held_ms

    wanted = round(options["rate"] * options["seconds"])
    took_s = max(sent.acked_us - sent.first_us, 1) / 1_000_000
    report = Report("nexmark generate", parameters=options)
    report.checks = [
        Check(
            "scheduled to appended, p99",
            sent.delay_ms["p99"],
            held_ms(round(options["flush_ms"] * 1_000)),
            "at most",
            "ms",
            "of all events",
        ),
        Check("events sent", sent.events, wanted, "at least", "events"),
        Check("events too many", sent.events - wanted, 0, "at most", "events"),
        # Growing lateness is a schedule not held even while its p99 is still low.
        Check("schedule held", float(sent.is_held), 1, "at least", "", sent.note),
    ]
    report.figures = {
        **asdict(sent),
        "events_per_s": round(sent.events / took_s),
        "bytes_per_event": round(sent.bytes / max(sent.events, 1), 1),
        "cpu_s_per_million_events": round(sent.cpu_s / max(sent.events, 1) * 1_000_000, 2),
    }
    return report


def _send(
    where: str,
    *,
    rate: float,
    seconds: float,
    generators: int,
    seed: int,
    flush_ms: float,
    stream: str,
    variant: str,
    state_scale: int,
) -> Sent:
    from penstock_bench.measure import now_us
    from penstock_bench.nexmark.generator import Parameters, rhino_parameters
    from penstock_bench.nexmark.producers import Producers

    parameters = Parameters(seed=seed)
    if variant == "rhino":
        parameters = rhino_parameters(seed=seed, state_scale=state_scale)
    count = round(rate * seconds)
    with Producers(where, stream=stream, generators=generators, parameters=parameters) as producers:
        flush_us = round(flush_ms * 1_000)
        producers.begin(start_us=now_us() + _LEAD_US, rate=rate, count=count, flush_us=flush_us)
        _follow(producers, count, seconds + _LEAD_US / 1_000_000)
        return producers.finished(_PATIENCE_SECONDS)


def _follow(producers: Producers, count: int, seconds: float) -> None:
    """Progress on standard error until everything is due."""
    end = time.monotonic() + seconds
    with shown() as (_, show):
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(_REFRESH_SECONDS, left))
            sent = producers.sent()
            show(sent / max(count, 1), f"{sent:,} of {count:,} events")


@contextlib.contextmanager
def _target(given: str | None) -> Iterator[str]:
    """The log that was named, or a new one that is removed afterwards."""
    if given is not None:
        yield given
        return
    from penstock_bench.measure import scratch

    with scratch("penstock-nexmark-", None) as root:
        yield str(root / "log")
