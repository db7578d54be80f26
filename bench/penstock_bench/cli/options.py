"""Options that many commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import click

Option: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

json_option: Final = click.option(
    "--json", "as_json", is_flag=True, help="One JSON object on standard output."
)
no_oracle_option: Final = click.option(
    "--no-oracle", is_flag=True, help="Do not compare with batch Spark."
)


def directory_option(help: str) -> Option:
    """`--dir`, which must exist."""
    path = click.Path(path_type=Path, exists=True, file_okay=False)
    return click.option("--dir", "directory", type=path, help=help)


def results_option(help: str) -> Option:
    """`--results`, a directory that is made if need be."""
    return click.option("--results", type=click.Path(path_type=Path, file_okay=False), help=help)


def number(
    name: str, kind: click.ParamType[Any], default: float, help: str | None = None
) -> Option:
    """A number with a default that is shown."""
    return click.option(name, type=kind, default=default, show_default=True, help=help)
