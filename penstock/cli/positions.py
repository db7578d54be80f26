"""Positions in a stream, as options take them."""

from __future__ import annotations

from typing import Final

import click

from penstock.errors import PenstockError
from penstock.stream.positions import Position, parse_position

#: How a help shows them.
POSITIONS: Final = "earliest|latest|LSN|TIME"
START_HELP: Final = "First position: an LSN, or an append time like 2026-11-15T08:00:00Z."


def position(text: str) -> Position:
    """The type of such an option."""
    try:
        return parse_position(text)
    except PenstockError as error:
        raise click.BadParameter(str(error)) from error
