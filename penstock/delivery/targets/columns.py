"""Which columns a table has for those of a stream, and the values that go into them. Pure.

Every column of the stream becomes one of the table, of the type below, but for these:

    struct<start: timestamp, end: timestamp>    two columns: `<name>_start`, `<name>_end`
    other struct, array, map                    one column with JSON text (stream/json_lines.py)
    of a multiset                               and `_row`, a digest of the row, and `_count`

Law: two rows that differ, as grouping has it, differ in the table; a value that its column cannot
hold is refused by row and column (BadRow). Nothing is rounded, cut or replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.delivery.api import Shard
from penstock.errors import BadRequest, BadRow
from penstock.plain_text import plain
from penstock.state.keys import normalise_floats
from penstock.stream.columns import VALUE_CHARS_MAX, Misfit, find_misfit, first_true
from penstock.stream.ddl import type_to_ddl
from penstock.stream.json_lines import values_to_json

Ints = npt.NDArray[np.int64]
Database = Literal["postgresql", "sqlite", "duckdb"]

#: The columns that a multiset has beside its own.
ROW: Final = "_row"
COUNT: Final = "_count"
#: The table that positions are kept in, beside the rows.
POSITIONS: Final = "penstock_positions"
WINDOW_PROBLEM: Final = "a window without a start or an end"

_TIMES: Final = (pa.timestamp("us", tz="UTC"), pa.timestamp("us"))
#: By type of the stream; numbers and times of SQLite are its own kinds, or text that sorts.
_TYPES: Final[dict[pa.DataType, dict[Database, str]]] = {
    kind: {"postgresql": postgresql, "sqlite": sqlite, "duckdb": duckdb}
    for kind, postgresql, sqlite, duckdb in (
        (pa.bool_(), "boolean", "INTEGER", "BOOLEAN"),
        (pa.int8(), "smallint", "INTEGER", "TINYINT"),
        (pa.int16(), "smallint", "INTEGER", "SMALLINT"),
        (pa.int32(), "integer", "INTEGER", "INTEGER"),
        (pa.int64(), "bigint", "INTEGER", "BIGINT"),
        (pa.float32(), "real", "REAL", "FLOAT"),
        (pa.float64(), "double precision", "REAL", "DOUBLE"),
        (pa.string(), "text", "TEXT", "VARCHAR"),
        (pa.binary(), "bytea", "BLOB", "BLOB"),
        (pa.date32(), "date", "TEXT", "DATE"),
        (_TIMES[0], "timestamp with time zone", "TEXT", "TIMESTAMP WITH TIME ZONE"),
        (_TIMES[1], "timestamp without time zone", "TEXT", "TIMESTAMP"),
        (pa.time64("ns"), "time without time zone", "TEXT", "TIME"),
        (pa.duration("us"), "interval", "INTEGER", "INTERVAL"),
        (pa.null(), "text", "TEXT", "VARCHAR"),
    )
}
_DECIMAL: Final[dict[Database, str]] = {
    "postgresql": "numeric({},{})",
    "sqlite": "TEXT",
    "duckdb": "DECIMAL({},{})",
}
_JSON: Final[dict[Database, str]] = {"postgresql": "jsonb", "sqlite": "TEXT", "duckdb": "JSON"}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    #: Of its values, once they are as the table has them; text if they are JSON.
    type: pa.DataType
    nullable: bool
    is_json: bool = False

    def sql_type(self, database: Database) -> str:
        """As the database itself writes it."""
        if self.is_json:
            return _JSON[database]
        if pt.is_decimal(self.type):
            return _DECIMAL[database].format(self.type.precision, self.type.scale)
        return _TYPES[self.type][database]


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a table must look like to hold a shard's rows."""

    table: str
    columns: tuple[Column, ...]
    #: Names of the columns by which rows replace each other, or counts are added up; may be none.
    key: tuple[str, ...]
    #: Whether it is a multiset.
    is_counted: bool

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def key_columns(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.name in self.key)

    @property
    def value_columns(self) -> tuple[Column, ...]:
        """Those that an upsert replaces."""
        return tuple(column for column in self.columns if column.name not in self.key)


def shape_of(shard: Shard) -> TableShape:
    """The table for these rows; BadRequest for what cannot be one."""
    if shard.table.rpartition(".")[2].lower() == POSITIONS:
        raise BadRequest(f"a table cannot have the name {POSITIONS}: positions are kept there")
    if not shard.table or "\0" in shard.table:
        raise BadRequest(f"{shard.table!r} is no name of a table")
    columns: list[Column] = []
    key: list[str] = []
    for field in shard.schema:
        made = _columns_of(field)
        columns += made
        if field.name in shard.key:
            _check_key(field)
            key += [column.name for column in made]
    missing = [name for name in shard.key if name not in shard.schema.names]
    if missing:
        raise BadRequest(f"key columns {', '.join(missing)} are not in the stream")
    is_counted = shard.changing and not shard.key
    if is_counted:
        columns.append(Column(ROW, pa.binary(), nullable=False))
        columns.append(Column(COUNT, pa.int64(), nullable=False))
        key = [ROW]
    _check_columns([column.name for column in columns])
    return TableShape(shard.table, tuple(columns), tuple(key), is_counted)


def table_rows(
    rows: pa.RecordBatch, shard: Shard, places: Ints, *, names: Sequence[str]
) -> pa.RecordBatch:
    """Rows of the stream, these columns of them, as the table has them.

    `places` are the indexes of the rows in their batch, for a BadRow.
    """
    arrays: list[pa.Array] = []
    columns: list[Column] = []
    for name in names:
        field, array = shard.schema.field(name), rows.column(name)
        misfit = find_misfit(array, field) or _find_window_misfit(array)
        if misfit is not None:
            raise bad_row(misfit, name, places)
        columns += _columns_of(field)
        arrays += _values(array, is_key=name in shard.key)
    schema = pa.schema([pa.field(column.name, column.type) for column in columns])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def bad_row(misfit: Misfit, name: str, places: Ints) -> BadRow:
    """The misfit of a column, told as one of the batch's row."""
    row = int(places[misfit.index])
    return BadRow(f"row {row}, column {plain(name + misfit.path)}: {misfit.problem}", row)


def described(rows: pa.RecordBatch, index: int) -> str:
    """A key for people: `auction=5, bidder='x'`."""
    row = rows.slice(index, 1)
    return ", ".join(
        f"{plain(name)}={_shown(column)}"
        for name, column in zip(row.schema.names, row.columns, strict=True)
    )


def _shown(column: pa.Array) -> str:
    try:
        text = repr(column[0].as_py())
    except (ValueError, OverflowError):  # Python's times end earlier than Arrow's
        text = str(column[0])
    return plain(text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + "…")


def is_window(kind: pa.DataType) -> bool:
    """Whether it is what Spark's window() gives."""
    if not pt.is_struct(kind) or kind.num_fields != 2:
        return False
    start, end = kind.field(0), kind.field(1)
    return (start.name, end.name) == ("start", "end") and start.type == end.type in _TIMES


def _columns_of(field: pa.Field) -> list[Column]:
    kind = field.type
    if is_window(kind):
        inner = kind.field(0).type
        return [Column(f"{field.name}_{end}", inner, field.nullable) for end in ("start", "end")]
    if pt.is_nested(kind):
        return [Column(field.name, pa.string(), field.nullable, is_json=True)]
    if not pt.is_decimal(kind) and kind not in _TYPES:
        raise BadRequest(f"column {plain(field.name)}: no stream has the type {kind}")
    return [Column(field.name, kind, field.nullable)]


def _check_key(field: pa.Field) -> None:
    if any(map(pt.is_map, _all_types(field.type))):
        raise BadRequest(
            f"key column {plain(field.name)}: {type_to_ddl(field.type)} has a map, whose entries "
            "have no order; deliver by another key"
        )


def _all_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    yield kind
    for place in range(kind.num_fields):
        yield from _all_types(kind.field(place).type)


def _check_columns(names: list[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if "\0" in name:
            raise BadRequest(f"column {plain(name)}: no database takes such a name")
        if name.lower() in seen:
            raise BadRequest(
                f"two columns of the table would be {plain(name)}: {ROW}, {COUNT} and the ends of "
                "windows have names of their own; rename the stream's column"
            )
        seen[name.lower()] = name


def _find_window_misfit(array: pa.Array) -> Misfit | None:
    """A window has both ends, or is null: two columns cannot tell it from a window of nulls."""
    if not is_window(array.type):
        return None
    misses = pc.or_(*(end.is_null() for end in array.flatten()))
    misses = pc.and_(misses, array.is_valid())
    return Misfit(first_true(misses), "", WINDOW_PROBLEM) if pc.any(misses).as_py() else None


def _values(array: pa.Array, *, is_key: bool) -> list[pa.Array]:
    if is_window(array.type):
        return list(array.flatten())
    if pt.is_nested(array.type):
        return [pa.array(values_to_json(array, one_zero=is_key), pa.string())]
    return [normalise_floats(array) if is_key else array]
