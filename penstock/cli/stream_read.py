"""`penstock stream read` and `tail`: rows as lines of JSON, as `stream append` takes them.

What brings Arrow in is imported where it is used: a help does without.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from penstock.cli.output import json_option, time_text
from penstock.cli.positions import POSITIONS, START_HELP, position
from penstock.cli.stream_target import open_log
from penstock.cli.target import Target, target_options
from penstock.plain_text import plain_json
from penstock.stream.positions import LATEST, Position

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.stream.tail import StreamTail


_limit = click.option("-n", "--limit", type=click.IntRange(min=0), help="At most so many rows.")
_envelope = click.option(
    "--envelope", is_flag=True, help='Print {"lsn", "time", "producer", "row": {…}} per row.'
)


@click.command()
@click.argument("name")
@click.option(
    "--start",
    type=position,
    default="earliest",
    metavar=POSITIONS,
    help=START_HELP,
    show_default=True,
)
@click.option(
    "--end",
    type=position,
    default=LATEST,
    metavar=POSITIONS,
    help="Where to stop.",
    show_default=True,
)
@_limit
@_envelope
@target_options
@json_option
def read(
    name: str,
    start: Position,
    end: Position,
    limit: int | None,
    envelope: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Print the rows of stream NAME that are there now.

    One line of JSON each, in the form that `stream append` takes.

    \b
    Examples:
      penstock stream read bids -n 10
      penstock stream read bids --start 2026-11-15T08:00:00Z --end latest
      penstock stream read bids --envelope | jq 'select(.lsn > 1000).row'
    """
    with open_log(target) as log:
        end = min(end, log.bounds().tail) if isinstance(end, int) else end
        with log.stream(name).tail(start, end) as batches:
            _print_rows(batches, limit=limit, envelope=envelope)


@click.command()
@click.argument("name")
@click.option(
    "--start", type=position, default=LATEST, metavar=POSITIONS, help=START_HELP, show_default=True
)
@click.option("--end", type=position, metavar=POSITIONS, help="Where to stop.  [default: never]")
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop at the tail of now.")
@_limit
@_envelope
@target_options
@json_option
def tail(
    name: str,
    start: Position,
    end: Position | None,
    exit_at_end: bool,
    limit: int | None,
    envelope: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Follow stream NAME until Ctrl-C.

    One line of JSON per row, as rows come, in the form that `stream append` takes.

    \b
    Examples:
      penstock stream tail bids
      penstock stream tail bids --start earliest -e
      penstock stream tail bids | penstock stream append bids_copy --batch-lines 1
    """
    if exit_at_end and end is not None:
        raise click.UsageError("give --end or --exit-at-end, not both")
    try:
        with open_log(target) as log:
            stop = LATEST if exit_at_end else end
            with log.stream(name).tail(start, stop) as batches:
                _print_rows(batches, limit=limit, envelope=envelope)
    except KeyboardInterrupt:
        pass  # the way to end it


def _print_rows(batches: StreamTail, *, limit: int | None, envelope: bool) -> None:
    """Rows as UTF-8 whatever the locale says: JSON is always UTF-8."""
    from penstock.stream.json_lines import rows_to_json_lines

    output = sys.stdout.buffer
    if limit == 0:
        return
    left = limit
    for batch in batches:
        shown = batch if left is None else batch.slice(0, left)
        lines = _in_envelopes(batches, shown) if envelope else rows_to_json_lines(shown)
        output.write(plain_json("".join(f"{line}\n" for line in lines)).encode())
        output.flush()
        if left is not None:
            left -= shown.num_rows
            if left == 0:
                return


def _in_envelopes(batches: StreamTail, batch: pa.RecordBatch) -> Iterator[str]:
    from penstock.stream.json_lines import rows_to_json_lines

    entry = batches.entry
    assert entry is not None
    head = json.dumps(
        {"lsn": entry.lsn, "time": time_text(entry.time_ms), "producer": entry.producer},
        separators=(",", ":"),
    )
    for line in rows_to_json_lines(batch):
        yield f'{head[:-1]},"row":{line}}}'
