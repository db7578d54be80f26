"""`penstock stream create` and `describe`: a stream and its schema.

What brings Arrow in is imported where it is used: a help does without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.output import echo, json_option, show_fields, show_json, show_table, time_text
from penstock.cli.stream_target import open_log
from penstock.cli.target import Target, target_options
from penstock.limits import LANES_DEFAULT, LANES_MAX
from penstock.plain_text import plain
from penstock.runtime.writers import read_writers
from penstock.stream.registration import stream_tag
from penstock.stream.times import to_time_ms

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.stream.stream import Stream


def _summary(found: Stream) -> dict[str, Any]:
    created = time_text(to_time_ms(found.created))
    return {"name": found.name, "created": created, "ddl": found.ddl}


def _lane_facts(found: Stream) -> dict[str, Any]:
    return {"lanes": found.lanes, "key": list(found.key)}


@click.command()
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


@click.command()
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
    from penstock.stream.ddl import COMMENT_KEY, type_to_ddl

    comment = (field.metadata or {}).get(COMMENT_KEY)
    return {
        "name": field.name,
        "type": type_to_ddl(field.type),
        "nullable": field.nullable,
        "comment": None if comment is None else comment.decode(),
    }
