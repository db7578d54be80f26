"""What the command line prints: exit codes, errors, tables, numbers and times.

Owns the forms, in one place, so that they never change by accident: scripts read them. Text is
aligned columns without boxes, one thing per line, so that it survives grep. Law: everything is
printed through plain_text.py; JSON says the same with escapes of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import IO, Any, Final

import click

from penstock.errors import Damaged, Fenced, Refused, Retryable, Unauthorized, Unknown, Unsupported
from penstock.plain_text import plain, plain_json
from penstock.stream.times import time_text as time_text

EXIT_UNEXPECTED: Final = 1
EXIT_USAGE: Final = 2
EXIT_DAMAGED: Final = 8
EXIT_INTERRUPTED: Final = 130
#: By error class, the first that fits; whatever is not here is unexpected.
EXIT_CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (click.UsageError, EXIT_USAGE),
    (Unauthorized, 4),
    (Refused, 3),
    (Retryable, 5),
    (Unknown, 6),
    (Fenced, 7),
    (Damaged, EXIT_DAMAGED),
)

#: Shown where there is no value.
NOTHING: Final = "-"

json_option = click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")


def echo(
    text: str = "", *, err: bool = False, nl: bool = True, file: IO[Any] | None = None
) -> None:
    """Print lines of text: the way for everything that is no JSON."""
    click.echo(plain(text, lines=True), err=err, nl=nl, file=file)


def exit_code(error: BaseException) -> int:
    """How the process ends after this error."""
    return next((code for cls, code in EXIT_CODES if isinstance(error, cls)), EXIT_UNEXPECTED)


def error_text(error: BaseException, *, as_json: bool) -> str:
    """What tells of an error: one line, but for a list of reasons."""
    message = _message(error)
    if not isinstance(error, Unsupported):  # a list of reasons keeps its lines
        message = " ".join(message.split())
    if not as_json:
        return f"penstock: {plain(message, lines=True)}"
    found: dict[str, Any] = {
        "error": type(error).__name__,
        "message": message,
        "exit_code": exit_code(error),
    }
    if isinstance(error, Unsupported):
        found["reasons"] = [asdict(reason) for reason in error.reasons]
    return json.dumps(found)


def _message(error: BaseException) -> str:
    if isinstance(error, click.ClickException):
        return error.format_message()
    return str(error) or repr(error)


def show_json(value: Any) -> None:
    """One JSON value on standard output."""
    click.echo(plain_json(json.dumps(value, indent=2, ensure_ascii=False)))


def show_json_line(value: Any) -> None:
    """The same on one line, so that a program can wait for it."""
    click.echo(json.dumps(value))


def show_table(headers: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Aligned columns, two blanks between them; numbers to the right."""
    head, *lines = table_lines(headers, rows)
    click.secho(head, bold=True)
    for line in lines:
        click.echo(line)


def table_lines(headers: Sequence[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """What `show_table` prints, its head first."""
    table = [[_cell(value) for value in row] for row in rows]
    numeric = [
        bool(table) and all(row[column].isdigit() for row in table)
        for column in range(len(headers))
    ]
    widths = [max(len(text) for text in column) for column in zip(headers, *table, strict=True)]
    upper = _line([header.upper() for header in headers], widths, numeric)
    return [upper, *(_line(row, widths, numeric) for row in table)]


def show_fields(fields: Iterable[tuple[str, object]]) -> None:
    """One `name  value` per line."""
    for line in field_lines(fields):
        click.echo(line)


def field_lines(fields: Iterable[tuple[str, object]]) -> list[str]:
    """What `show_fields` prints."""
    pairs = [(name, _cell(value, lines=True).split("\n")) for name, value in fields]
    width = max(len(name) for name, _ in pairs)
    return [
        f"{'' if number else name:<{width}}  {line}".rstrip()
        for name, lines in pairs
        for number, line in enumerate(lines)
    ]


def _cell(value: object, *, lines: bool = False) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return plain(str(value), lines=lines)  # also numbers: an LSN is there to be copied


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    return "  ".join(
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, numeric, strict=True)
    ).rstrip()


def bytes_text(size: int) -> str:
    """A size for people: 512 B, 1.5 kB, 64.0 MB."""
    if size < 1000:
        return f"{size} B"
    number = float(size)
    for unit in ("kB", "MB", "GB"):
        number /= 1000
        if number < 1000:
            return f"{number:.1f} {unit}"
    return f"{number / 1000:.1f} TB"
