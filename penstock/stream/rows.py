"""Rows as users have them (dicts, pandas, Arrow) to record batches of exactly a stream's schema.

Owns which Python values a column takes and how a wrong one is named. Arrow columns are converted in
columns.py. Nothing is guessed: no text is parsed, no number rounded, no bool is a number, and the
only liberties are these: a Python float is rounded to a `float` column (there is no other way to
write one), a datetime without a zone is UTC in a `timestamp` column, a missing or absent value is
null, and in a pandas DataFrame a missing value (NaN, NaT, NA) is null, as in Spark.

Law: to_batches returns all rows, in order, in batches that find_misfit accepts, or raises BadRow
naming the first row (0-based, in what was passed) and column that do not fit, and returns nothing.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from operator import methodcaller
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import BadRequest, BadRow, TooLarge
from penstock.stream.columns import (
    NULL_PROBLEM,
    Misfit,
    find_misfit,
    first_misfit,
    fit_column,
)
from penstock.stream.values import as_mapping, fit_value, is_missing

#: Rows of one batch made from dicts; it bounds what the columns of a long list hold twice.
BATCH_ROWS_MAX: Final = 65_536

_NONE: Final = type(None)
#: Whatever pa.array raises for a value that it cannot take.
_ARROW_ERRORS: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)


def to_batches(rows: object, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Batches with the rows of a dict, an iterable of dicts, a pandas DataFrame, a pyarrow Table or
    RecordBatch, or a list of those. Columns go by name; no rows give no batches.

    `schema` is normalised. Raises BadRow, or BadRequest if `rows` is nothing of the above. The
    batches are not yet split to the size of a payload.
    """
    if isinstance(rows, pa.RecordBatch | pa.Table):
        return _from_arrow([rows], schema)
    if _is_data_frame(rows):
        return _from_pandas(rows, schema)
    if as_mapping(rows) is not None:
        return _from_dicts([rows], schema)
    if isinstance(rows, str | bytes | bytearray) or not isinstance(rows, Iterable):
        raise BadRequest(
            "rows are a dict, an iterable of dicts, a pandas DataFrame, a pyarrow Table or "
            f"RecordBatch, got {type(rows).__name__}"
        )
    listed = list(rows)
    if listed and all(isinstance(item, pa.RecordBatch | pa.Table) for item in listed):
        return _from_arrow(listed, schema)
    return _from_dicts(listed, schema)


def fit_row(row: Mapping[Any, object], schema: pa.Schema, *, where: str) -> dict[str, object]:
    """One row with every column of the schema, each value in the form that pa.array takes exactly.

    Raises BadRow that starts with `where` (`row 17`, `line 3`).
    """
    _check_names(row, schema, where=where)
    fitted: dict[str, object] = {}
    for field in schema:
        try:
            fitted[field.name] = fit_value(row.get(field.name), field, path="")
        except Misfit as misfit:
            absent = field.name not in row and misfit.problem == NULL_PROBLEM
            _fail(where, field.name, misfit, absent=absent)
    return fitted


def _from_dicts(rows: list[Any], schema: pa.Schema) -> list[pa.RecordBatch]:
    if set(map(type, rows)) - {dict}:
        rows = [_to_dict(row, number) for number, row in enumerate(rows)]
    # All column names at once, in C; only when one is unknown, look for the row that has it.
    if set(itertools.chain.from_iterable(rows)) - set(schema.names):
        for number, row in enumerate(rows):
            _check_names(row, schema, where=f"row {number}")
    batches: list[pa.RecordBatch] = []
    for start in range(0, len(rows), BATCH_ROWS_MAX):
        chunk = rows[start : start + BATCH_ROWS_MAX]
        # Dicts are turned into columns by a loop, as no kernel reads Python objects.
        columns = {name: [row.get(name) for row in chunk] for name in schema.names}
        try:
            batches.append(_fit_columns(columns, schema, length=len(chunk)))
        except _BadColumn as bad:
            absent = bad.name not in chunk[bad.misfit.index]
            number = start + bad.misfit.index
            _fail(f"row {number}", bad.name, bad.misfit, absent=absent)
    return batches


def _to_dict(row: object, number: int) -> dict[Any, object]:
    mapping = as_mapping(row)
    if mapping is None:
        raise BadRow(f"row {number}: expected a dict, got {type(row).__name__}")
    return dict(mapping)


def _from_arrow(tables: list[Any], schema: pa.Schema) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = []
    start = 0
    for table in tables:
        _check_columns(table.schema.names, schema)
        for batch in table.to_batches() if isinstance(table, pa.Table) else [table]:
            try:
                # Before any kernel runs over it: offsets that lie would be read out of bounds.
                batch.validate(full=True)
            except pa.ArrowException as error:
                raise BadRow(f"row {start}: invalid Arrow data: {error}") from error
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            batches += _fit_arrow(columns, schema, start=start, length=batch.num_rows)
            start += batch.num_rows
    return batches


def _from_pandas(frame: Any, schema: pa.Schema) -> list[pa.RecordBatch]:
    names = list(frame.columns)
    _check_columns(names, schema)
    columns: dict[str, Any] = {}
    for position, name in enumerate(names):
        series = frame.iloc[:, position]
        if series.dtype == object:
            # Python values of any kind: they go the way of dicts, so the same rules apply.
            columns[name] = [None if is_missing(value) else value for value in series]
        else:
            columns[name] = _series_to_arrow(series, schema.field(name))
    return _fit_arrow(columns, schema, start=0, length=len(frame))


def _series_to_arrow(series: Any, field: pa.Field) -> pa.Array:
    try:
        array = pa.array(series, from_pandas=True)
    except _ARROW_ERRORS as error:
        raise BadRow(
            f"row 0, column {field.name}: {series.dtype} cannot be read: {error}"
        ) from None
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pt.is_floating(array.type) and array.null_count and pt.is_integer(field.type):
        # A missing value makes pandas store integers as floats; whole ones are integers again.
        try:
            return array.cast(field.type)
        except pa.ArrowException:
            return array
    return array


def _fit_arrow(
    columns: Mapping[str, Any], schema: pa.Schema, *, start: int, length: int
) -> list[pa.RecordBatch]:
    if length == 0:
        return []
    try:
        return [_fit_columns(columns, schema, length=length)]
    except _BadColumn as bad:
        absent = bad.name not in columns
        _fail(f"row {start + bad.misfit.index}", bad.name, bad.misfit, absent=absent)


class _BadColumn(Exception):
    """The first misfit of a batch, and the column it is in."""

    def __init__(self, name: str, misfit: Misfit) -> None:
        super().__init__(name)
        self.name = name
        self.misfit = misfit


def _fit_columns(columns: Mapping[str, Any], schema: pa.Schema, *, length: int) -> pa.RecordBatch:
    """A batch from lists of Python values or Arrow arrays; all are tried before one is blamed."""
    arrays: list[pa.Array] = []
    misfits: dict[str, Misfit] = {}
    for field in schema:
        column = columns.get(field.name)
        try:
            if isinstance(column, list):
                array, misfit = _fit_list(column, field), None
            else:
                given = pa.nulls(length) if column is None else column
                array = fit_column(given, field)
                misfit = find_misfit(array, field)
            if misfit is not None:
                raise misfit
            arrays.append(array)
        except Misfit as misfit:
            misfits[field.name] = misfit
    first = first_misfit(misfits.values())
    if first is not None:
        raise _BadColumn(next(name for name in misfits if misfits[name] is first), first)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _fit_list(values: list[Any], field: pa.Field) -> pa.Array:
    """One column of Python values. The fast way is one call of Arrow; it is only taken when the
    types of all values are such that Arrow is known to take them exactly. Otherwise, or if Arrow
    fails, or if what it made may not be appended, the values are walked one by one: Arrow tells
    neither row nor path, and values of rarer types (numpy, pandas, enums) are converted on the way.
    What it returns, find_misfit accepts.
    """
    if _is_plain(values, field.type):
        try:
            array = pa.array(values, type=field.type)
            if find_misfit(_one_array(array, field), field) is None:
                return array
        except _ARROW_ERRORS:
            pass
    fitted: list[object] = []
    for index, value in enumerate(values):
        try:
            fitted.append(fit_value(value, field, path=""))
        except Misfit as misfit:
            raise Misfit(index, misfit.path, misfit.problem) from None
    array = _one_array(pa.array(fitted, type=field.type), field)
    misfit_left = find_misfit(array, field)
    if misfit_left is not None:
        raise misfit_left
    return array


def _one_array(array: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        raise TooLarge(
            f"column {field.name}: over 2 GiB in {len(array)} rows; append fewer at once"
        )
    return array


#: Per kind of leaf, the Python types that pa.array converts without loss or guess (or refuses).
_PLAIN_LEAVES: Final = (
    (pt.is_boolean, frozenset({bool})),
    (pt.is_integer, frozenset({int})),
    (pt.is_floating, frozenset({float, int})),
    (pt.is_decimal, frozenset({Decimal, int})),
    (pt.is_string, frozenset({str})),
    (pt.is_binary, frozenset({bytes, bytearray})),
    (pt.is_date, frozenset({date})),
    (pt.is_timestamp, frozenset({datetime})),
    (pt.is_time, frozenset({time})),
    (pt.is_duration, frozenset({timedelta})),
)


def _is_plain(values: Sequence[Any], arrow_type: pa.DataType) -> bool:
    """Whether pa.array may be trusted with these values.

    pa.array alone is too kind: it takes 1.5 as 1 for an int column, text for binary, integers for
    times, 1e300 as infinity for a float, and drops unknown keys of structs and zones of datetimes.
    Everything here runs in C over whole columns: map, set, chain, NumPy.
    """
    kinds = set(map(type, values)) - {_NONE}
    if not kinds:
        return True
    if pt.is_list(arrow_type):
        if not kinds <= {list, tuple}:
            return False
        elements = list(itertools.chain.from_iterable(filter(None, values)))
        return _is_plain(elements, arrow_type.value_type)
    if pt.is_struct(arrow_type):
        return kinds == {dict} and _is_plain_struct(values, arrow_type)
    if pt.is_map(arrow_type):
        return kinds == {dict} and _is_plain_map(values, arrow_type)
    if not any(is_kind(arrow_type) and kinds <= plain for is_kind, plain in _PLAIN_LEAVES):
        return False
    if pt.is_timestamp(arrow_type) or pt.is_time(arrow_type):
        offsets = set(map(methodcaller("utcoffset"), filter(None, values))) - {None}
        # pa.array drops the fraction of a second that an offset may have.
        whole = all(offset.microseconds == 0 for offset in offsets)
        return not offsets or (pt.is_timestamp(arrow_type) and arrow_type.tz is not None and whole)
    if pt.is_float32(arrow_type):
        return kinds == {float} and not _overflows_float32(values)
    return True


def _is_plain_struct(values: Sequence[Any], arrow_type: pa.StructType) -> bool:
    dicts = [value for value in values if value is not None]
    if set(itertools.chain.from_iterable(dicts)) - {field.name for field in arrow_type}:
        return False
    return all(
        _is_plain([row.get(field.name) for row in dicts], field.type) for field in arrow_type
    )


def _is_plain_map(values: Sequence[Any], arrow_type: pa.MapType) -> bool:
    dicts = list(filter(None, values))
    keys = list(itertools.chain.from_iterable(dicts))
    items = list(itertools.chain.from_iterable(map(dict.values, dicts)))
    return _is_plain(keys, arrow_type.key_type) and _is_plain(items, arrow_type.item_type)


def _overflows_float32(values: Sequence[Any]) -> bool:
    numbers = np.array([value for value in values if value is not None], np.float64)
    with np.errstate(over="ignore"):
        return bool((np.isinf(numbers.astype(np.float32)) & ~np.isinf(numbers)).any())


def _is_data_frame(rows: object) -> bool:
    """Whether it is a pandas DataFrame, without importing pandas for those who do not use it."""
    return any(
        kind.__name__ == "DataFrame" and kind.__module__.partition(".")[0] == "pandas"
        for kind in type(rows).__mro__
    )


def _check_columns(names: list[Any], schema: pa.Schema) -> None:
    _check_names(dict.fromkeys(names), schema, where="row 0")
    for position, name in enumerate(names):
        if name in names[:position]:
            raise BadRow(f"row 0, column {name}: given twice")


def _check_names(row: Mapping[Any, object], schema: pa.Schema, *, where: str) -> None:
    for name in row:
        if name not in schema.names:
            close = difflib.get_close_matches(str(name).lower(), map(str.lower, schema.names), n=1)
            likely = [real for real in schema.names if real.lower() in close]
            remedy = f"did you mean {likely[0]}?" if likely else f"known: {', '.join(schema.names)}"
            raise BadRow(f"{where}, column {name}: unknown column; {remedy}")


def _fail(where: str, name: str, misfit: Misfit, *, absent: bool) -> NoReturn:
    problem = misfit.problem
    if absent and problem == NULL_PROBLEM and not misfit.path:
        problem = "is NOT NULL, but missing"
    raise BadRow(f"{where}, column {name}{misfit.path}: {problem}") from None
