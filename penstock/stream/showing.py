"""Rows as text in a grid, as `DataFrame.show` prints them; times are in UTC. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from penstock.plain_text import plain

#: As Spark cuts a cell, dots included.
CELL_LENGTH_MAX: Final = 20
#: As narrow as a column of Spark's gets.
_WIDTH_MIN: Final = 3


def grid(table: pa.Table, *, truncate: bool | int = True) -> str:
    """The rows of a small table; cells are cut at `truncate` characters, True: at 20."""
    most = CELL_LENGTH_MAX if truncate is True else int(truncate)
    columns = [
        [plain(name), *(_cell(value, column.type, most) for value in column.to_pylist())]
        for name, column in zip(table.schema.names, table.columns, strict=True)
    ]
    widths = [max(_WIDTH_MIN, *map(len, cells)) for cells in columns]
    rule = "+" + "+".join("-" * width for width in widths) + "+\n"
    head, *rows = (
        "|" + "|".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + "|\n"
        for row in zip(*columns, strict=True)
    )
    return "".join((rule, head, rule, *rows, rule))


def _cell(value: Any, type: pa.DataType, most: int) -> str:
    text = plain(_text(value, type))
    if not 0 < most < len(text):
        return text
    return text[:most] if most < 4 else text[: most - 3] + "..."


def _text(value: Any, type: pa.DataType) -> str:
    """As Spark casts it to a string."""
    if value is None:
        return "NULL"
    if pt.is_struct(type):
        fields = [type.field(place) for place in range(type.num_fields)]
        return f"{{{', '.join(_text(value[field.name], field.type) for field in fields)}}}"
    if pt.is_map(type):
        entries = (f"{_text(k, type.key_type)} -> {_text(v, type.item_type)}" for k, v in value)
        return f"{{{', '.join(entries)}}}"
    if pt.is_list(type) or pt.is_large_list(type):
        return f"[{', '.join(_text(element, type.value_type) for element in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return f"[{value.hex(' ').upper()}]"
    if isinstance(value, datetime):
        plain_time = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        text = str(plain_time)
        return text.rstrip("0") if "." in text else text
    return str(value)
