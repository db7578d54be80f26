"""`penstock stream …`: streams from the shell, as lines of JSON in and out that round-trip."""

from __future__ import annotations

import click

from penstock.cli.groups import LazyGroup, Place

_COMMANDS = {
    "append": Place("penstock.cli.stream_append", "Append lines of JSON to stream NAME."),
    "create": Place(
        "penstock.cli.stream_create",
        "Create stream NAME with the schema DDL, as Spark writes it.",
    ),
    "describe": Place(
        "penstock.cli.stream_create", "The columns of a stream, and its newest batch."
    ),
    "lag": Place(
        "penstock.cli.stream_lag",
        "How far queries and deliveries are behind the end of stream NAME, running or not.",
    ),
    "list": Place(
        "penstock.cli.stream_list", "All streams with their schemas.", attribute="list_streams"
    ),
    "read": Place("penstock.cli.stream_read", "Print the rows of stream NAME that are there now."),
    "tail": Place("penstock.cli.stream_read", "Follow stream NAME until Ctrl-C."),
}


@click.group(cls=LazyGroup, places=_COMMANDS)
def stream() -> None:
    """Streams of typed rows: create, append, read, follow."""
