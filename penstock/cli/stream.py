"""`penstock stream …`: streams from the shell, as lines of JSON in and out that round-trip."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, Final

import click
import pyarrow as pa

from penstock.cli.groups import LazyGroup, Place
from penstock.cli.output import echo, json_option, show_fields, show_json, show_table, time_text
from penstock.cli.positions import POSITIONS, START_HELP, position
from penstock.cli.stream_target import open_log
from penstock.cli.target import Target, target_options
from penstock.errors import PenstockError
from penstock.plain_text import plain, plain_json
from penstock.runtime.writers import read_writers
from penstock.stream.ddl import COMMENT_KEY, type_to_ddl
from penstock.stream.groups import RowsAppended
from penstock.stream.json_columns import lines_to_batches
from penstock.stream.json_lines import rows_to_json_lines
from penstock.stream.lanes import LANES_DEFAULT, LANES_MAX
from penstock.stream.positions import LATEST, Position
from penstock.stream.registration import stream_tag
from penstock.stream.stream import Stream
from penstock.stream.tail import StreamTail
from penstock.stream.times import to_time_ms

#: Lines that are checked, and then appended, together.
BATCH_LINES: Final = 5_000


_COMMANDS = {
    "lag": Place(
        "penstock.cli.stream_lag",
        "How far queries and deliveries are behind the end of stream NAME, running or not.",
    ),
}


@click.group(cls=LazyGroup, places=_COMMANDS)
def stream() -> None:
    """Streams of typed rows: create, append, read, follow."""


@stream.command("list")
@target_options
@json_option
def list_streams(target: Target, as_json: bool) -> None:
    """All streams with their schemas.

    \b
    Examples:
      penstock stream list
      penstock stream list --json | jq -r '.[].name'
    """
    with open_log(target) as log:
        streams = log.streams()
    if as_json:
        show_json([_summary(each) for each in streams])
    else:
        show_table(["name", "created", "schema"], [_summary(each).values() for each in streams])


def _summary(found: Stream) -> dict[str, Any]:
    created = time_text(to_time_ms(found.created))
    return {"name": found.name, "created": created, "ddl": found.ddl}


def _lane_facts(found: Stream) -> dict[str, Any]:
    return {"lanes": found.lanes, "key": list(found.key)}


@stream.command()
@click.argument("name")
@click.argument("ddl")
@click.option(
    "--lanes",
    type=click.IntRange(1, LANES_MAX),
    help=f"Shares that tasks can read side by side.  [default: {LANES_DEFAULT}]",
)
@click.option(
    "--key",
    metavar="COLUMN[,COLUMN…]",
    help="Rows that are equal in these columns are in one lane.",
)
@target_options
@json_option
def create(
    name: str, ddl: str, lanes: int | None, key: str | None, target: Target, as_json: bool
) -> None:
    """Create stream NAME with the schema DDL, as Spark writes it.

    A stream that exists with the same schema is left as it is; with another one it is an error.

    \b
    Examples:
      penstock stream create bids 'auction long, price long, ts timestamp'
      penstock stream create bids 'auction long, price long, ts timestamp' --key auction
      penstock stream create users 'id long NOT NULL, tags array<string>' --lanes 4
    """
    columns = None if key is None else [column.strip() for column in key.split(",")]
    with open_log(target, create=True) as log:
        made = log.create_stream(name, ddl, lanes=lanes, key=columns)
    if as_json:
        show_json({**_summary(made), **_lane_facts(made)})
    else:
        echo(f"stream {made.name}: {plain(made.ddl)}")


@stream.command()
@click.argument("name")
@target_options
@json_option
def describe(name: str, target: Target, as_json: bool) -> None:
    """The columns of a stream, and its newest batch.

    \b
    Examples:
      penstock stream describe bids
      penstock stream describe bids --json | jq .last_lsn
    """
    with open_log(target) as log:
        found = log.stream(name)
        last = log.client.read_last(stream_tag(name))
        writers = list(read_writers(log.client, name).names)
    columns = [_column(field) for field in found.schema]
    facts: dict[str, Any] = {
        **_summary(found),
        **_lane_facts(found),
        "tag": stream_tag(name),
        "last_lsn": None if last is None else last.lsn,
        "last_time": None if last is None else time_text(last.time_ms),
    }
    if as_json:
        show_json({**facts, "queries": writers, "columns": columns})
        return
    facts["key"] = ", ".join(found.key) or None
    show_fields([*facts.items(), ("result of query", ", ".join(writers) or None)])
    echo()
    show_table(["column", "type", "nullable", "comment"], [column.values() for column in columns])


def _column(field: pa.Field) -> dict[str, Any]:
    comment = (field.metadata or {}).get(COMMENT_KEY)
    return {
        "name": field.name,
        "type": type_to_ddl(field.type),
        "nullable": field.nullable,
        "comment": None if comment is None else comment.decode(),
    }


# ---- append


@stream.command()
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
    done: list[RowsAppended] = []
    numbered = ((at, line) for at, line in enumerate(lines, 1) if line.strip())
    try:
        while batch := list(itertools.islice(numbered, batch_lines)):
            done.append(append(lines_to_batches(batch, found.schema)))
    except PenstockError as error:
        if not done:
            raise
        rows_before = sum(each.rows for each in done)
        raise type(error)(f"{error}; {rows_before} rows before it were appended") from error
    return done


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


# ---- read and tail


_limit = click.option("-n", "--limit", type=click.IntRange(min=0), help="At most so many rows.")
_envelope = click.option(
    "--envelope", is_flag=True, help='Print {"lsn", "time", "producer", "row": {…}} per row.'
)


@stream.command()
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


@stream.command()
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
    entry = batches.entry
    assert entry is not None
    head = json.dumps(
        {"lsn": entry.lsn, "time": time_text(entry.time_ms), "producer": entry.producer},
        separators=(",", ":"),
    )
    for line in rows_to_json_lines(batch):
        yield f'{head[:-1]},"row":{line}}}'
