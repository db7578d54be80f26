"""`penstock stream append`: lines of JSON become rows of a stream.

What brings Arrow in is imported where it is used: a help does without.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from typing import IO, TYPE_CHECKING, Final

import click

from penstock.cli.output import echo, json_option, show_json
from penstock.cli.stream_target import open_log
from penstock.cli.target import Target, target_options
from penstock.errors import PenstockError, TooLarge
from penstock.limits import PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.stream.groups import RowsAppended
    from penstock.stream.stream import Stream

#: Lines that are checked, and then appended, together.
BATCH_LINES: Final = 5_000


@click.command()
@click.argument("name")
@click.argument("files", nargs=-1, type=click.File("rb"))
@click.option(
    "--producer",
    metavar="ID",
    help="Append as this producer: the same input sent again is appended once (with --seq).",
)
@click.option(
    "--seq",
    type=click.IntRange(min=0),
    help="Seq of the first batch.  [default: the producer's next]",
)
@click.option(
    "--batch-lines",
    type=click.IntRange(min=1),
    default=BATCH_LINES,
    show_default=True,
    help="Lines appended together; 1 for a live pipe.",
)
@target_options
@json_option
def append(
    name: str,
    files: tuple[IO[bytes], ...],
    producer: str | None,
    seq: int | None,
    batch_lines: int,
    target: Target,
    as_json: bool,
) -> None:
    """Append lines of JSON to stream NAME.

    They come from FILES, or from standard input. A line that does not fit the schema ends it with
    an error that names line and column. The lines of its batch are not appended; the error says how
    many rows before it were.

    \b
    Examples:
      echo '{"auction": 1, "price": 250}' | penstock stream append bids
      penstock stream append bids monday.jsonl tuesday.jsonl
      penstock stream read bids | penstock stream append bids_copy
      penstock stream append bids monday.jsonl --producer loader-monday --seq 0
    """
    if seq is not None and producer is None:
        raise click.UsageError("--seq goes with --producer")
    lines = itertools.chain.from_iterable(files or (sys.stdin.buffer,))
    with open_log(target) as log:
        found = log.stream(name)
        if producer is None:
            done = _append_lines(lines, found, batch_lines, found.append)
        else:
            with found.producer(producer) as opened:
                at = opened.next_seq if seq is None else seq

                def append_next(rows: list[pa.RecordBatch]) -> RowsAppended:
                    nonlocal at
                    appended = opened.append(rows, at)
                    at += sum(group.count for group in appended.groups)
                    return appended

                done = _append_lines(lines, found, batch_lines, append_next)
    _show_appended(name, done, as_json=as_json)


def _append_lines(
    lines: Iterable[bytes],
    found: Stream,
    batch_lines: int,
    append: Callable[[list[pa.RecordBatch]], RowsAppended],
) -> list[RowsAppended]:
    from penstock.stream.json_columns import lines_to_batches

    done: list[RowsAppended] = []
    numbered = ((at, line) for at, line in enumerate(lines, 1) if line.strip())
    try:
        while batch := list(itertools.islice(numbered, batch_lines)):
            rows = lines_to_batches(batch, found.schema)
            _check_sizes(rows, [at for at, _ in batch])
            done.append(append(rows))
    except PenstockError as error:
        if not done:
            raise
        rows_before = sum(each.rows for each in done)
        raise type(error)(f"{error}; {rows_before} rows before it were appended") from error
    return done


def _check_sizes(batches: list[pa.RecordBatch], lines: list[int]) -> None:
    """TooLarge, with its line, for a row that no entry of the log can hold."""
    from penstock.stream.batches import payload_size

    first = 0
    for batch in batches:
        if payload_size(batch) > PAYLOAD_BYTES_MAX:
            for row in range(batch.num_rows):
                size = payload_size(batch.slice(row, 1))
                if size > PAYLOAD_BYTES_MAX:
                    raise TooLarge(
                        f"line {lines[first + row]} takes {size} bytes, a row at most "
                        f"{PAYLOAD_BYTES_MAX}: leave it out, or put large values elsewhere"
                    )
        first += batch.num_rows


def _show_appended(name: str, done: list[RowsAppended], *, as_json: bool) -> None:
    lsns = [lsn for each in done for lsn in (each.first_lsn, each.last_lsn) if lsn is not None]
    result = {
        "stream": name,
        "rows": sum(each.rows for each in done),
        "duplicates": sum(each.rows for each in done if each.duplicate),
        "first_lsn": min(lsns, default=None),
        "last_lsn": max(lsns, default=None),
    }
    if as_json:
        show_json(result)
        return
    where = f" at LSN {result['first_lsn']} to {result['last_lsn']}" if lsns else ""
    known = f", {result['duplicates']} of them had been there" if result["duplicates"] else ""
    echo(f"appended {result['rows']} rows to {name}{where}{known}")
