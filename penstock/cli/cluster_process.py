"""What `penstock cluster node` and `proxy` share: a process of a cluster in the foreground.

Owns nothing but the way from a parser of options, which `python -m penstock.log.node` and
`… .proxy` have, to a command: both have the same options, and only one place says which.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, TypeVar

import click

from penstock.cli.output import echo, error_text
from penstock.errors import Unavailable
from penstock.log.serving.process import EXIT_FATAL

F = TypeVar("F", bound=Callable[..., Any])


def parser_options(parser: argparse.ArgumentParser) -> Callable[[F], F]:
    """All options of a parser, but `--help`, as those of a command."""

    def decorate(command: F) -> F:
        for action in reversed(parser._actions):
            if isinstance(action, argparse._HelpAction):
                continue
            command = _option(action)(command)
        return command

    return decorate


def _option(action: argparse.Action) -> Callable[[F], F]:
    hidden = action.help == argparse.SUPPRESS
    help = "" if hidden or not action.help else f"{action.help[0].upper()}{action.help[1:]}."
    kind: Any = str if action.type is None else action.type
    if action.choices is not None:
        kind = click.Choice(list(action.choices))
    elif kind not in (str, int, float):
        kind = click.Path(path_type=kind)
    # With a default of None, click would take a required option as given.
    default = {} if action.default is None else {"default": action.default}
    return click.option(
        *action.option_strings,
        action.dest,
        type=kind,
        required=action.required,
        **default,
        show_default=action.default not in (None, ""),
        hidden=hidden,
        help=help,
    )


def serve(run: Callable[[], None], *, as_json: bool) -> None:
    """Run until it is told to stop; after a failed write, end with a code that says so."""
    try:
        run()
    except Unavailable as error:
        if error.__cause__ is None:
            raise
        # A write failed. What was acknowledged is whole, but this process must not go on.
        echo(error_text(error, as_json=as_json), err=True)
        click.get_current_context().exit(EXIT_FATAL)
