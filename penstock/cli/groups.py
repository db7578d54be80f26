"""Groups of commands that are loaded when they run.

Owns where each command is and its line in a help, so that a command waits for what itself needs and
for nothing else: Arrow, ZooKeeper's client and Spark's side of Penstock take longer to import than
most commands run.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click


class Place(NamedTuple):
    """A command that is not loaded yet."""

    module: str
    #: The first sentence of its help.
    summary: str
    #: What the command is called there, if not as users type it.
    attribute: str | None = None


class LazyGroup(click.Group):
    """A group of such commands, by the names that users type."""

    def __init__(self, *args: Any, places: Mapping[str, Place], **options: Any) -> None:
        super().__init__(*args, **options)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._places})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in self._places and name not in self.commands:
            place = self._places[name]
            self.add_command(getattr(import_module(place.module), place.attribute or name))
        return super().get_command(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self.summary(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def summary(self, ctx: click.Context, name: str) -> str:
        """What a help says of a command in its list."""
        if name in self._places:
            return self._places[name].summary
        command = self.get_command(ctx, name)
        return "" if command is None else command.get_short_help_str(limit=80)
