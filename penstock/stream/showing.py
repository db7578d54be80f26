"""Rows as text in a grid, as `DataFrame.show` prints them. Pure."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from penstock.plain_text import plain

#: As Spark cuts a cell, dots included.
CELL_LENGTH_MAX: Final = 20


def grid(table: pa.Table, *, truncate: bool = True) -> str:
    """The rows of a small table; long cells are cut unless that is not wanted."""
    columns = [
        [plain(name), *(_cell(value, truncate) for value in column.to_pylist())]
        for name, column in zip(table.schema.names, table.columns, strict=True)
    ]
    widths = [max(map(len, cells)) for cells in columns]
    rule = "+" + "+".join("-" * width for width in widths) + "+\n"
    head, *rows = (
        "|" + "|".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + "|\n"
        for row in zip(*columns, strict=True)
    )
    return "".join((rule, head, rule, *rows, rule))


def _cell(value: Any, truncate: bool) -> str:
    text = "NULL" if value is None else plain(str(value))
    if truncate and len(text) > CELL_LENGTH_MAX:
        return text[: CELL_LENGTH_MAX - 3] + "..."
    return text
