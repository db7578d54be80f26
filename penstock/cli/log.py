"""`penstock log …`: run a log's server, look at it, check its files, trim it."""

from __future__ import annotations

import click

from penstock.cli.groups import LazyGroup, Place

_COMMANDS = {
    "forget": Place(
        "penstock.cli.log_trim",
        "Give up what WRITER staged and did not commit; without WRITER, list who has such rows.",
    ),
    "serve": Place(
        "penstock.cli.log_serve",
        "Run the server of a data directory until SIGTERM or Ctrl-C.",
    ),
    "status": Place(
        "penstock.cli.log_status",
        "Where the log stands: positions, segments, sizes, connections.",
    ),
    "trim": Place(
        "penstock.cli.log_trim",
        "Give up everything below LSN, in all streams and for good.",
    ),
    "verify": Place(
        "penstock.cli.log_verify",
        "Read every byte of a log's files and say what is damaged, and where.",
    ),
}


@click.group(cls=LazyGroup, places=_COMMANDS)
def log() -> None:
    """The shared log: serve it, look at it, check it, trim it."""
