"""Row by row: the one place where a Python function is applied to the values of a column.

For functions that no column kernel computes. A column beside constants is first reduced to its
distinct values, because streams repeat themselves: the function runs once per distinct value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.ops.functions.registry import Datum


def each(type: pa.DataType, compute: Callable[..., Any], *values: Datum) -> Datum:
    """`compute` over every row in which no value is null; the others are null."""
    return _each(type, _unless_null(compute), values)


def each_with_nulls(type: pa.DataType, compute: Callable[..., Any], *values: Datum) -> Datum:
    """`compute` over every row; a null is None."""
    return _each(type, compute, values)


def _unless_null(compute: Callable[..., Any]) -> Callable[..., Any]:
    def computed(*row: Any) -> Any:
        return None if None in row else compute(*row)

    return computed


def _each(type: pa.DataType, compute: Callable[..., Any], values: tuple[Datum, ...]) -> Datum:
    columns = [index for index, value in enumerate(values) if isinstance(value, pa.Array)]
    if not columns:
        return pa.scalar(compute(*(value.as_py() for value in values)), type)
    if len(columns) == 1 and not pa.types.is_nested(values[columns[0]].type):
        return _each_distinct(type, compute, values, columns[0])
    count = len(values[columns[0]])
    rows = zip(*(_to_list(value, count) for value in values), strict=True)
    return pa.array([compute(*row) for row in rows], type)


def _each_distinct(
    type: pa.DataType, compute: Callable[..., Any], values: tuple[Datum, ...], column: int
) -> pa.Array:
    encoded = values[column].dictionary_encode(null_encoding="encode")
    row = [value.as_py() if isinstance(value, pa.Scalar) else None for value in values]
    results = []
    for item in encoded.dictionary.to_pylist():
        row[column] = item
        results.append(compute(*row))
    return pa.array(results, type).take(encoded.indices)


def _to_list(value: Datum, count: int) -> list[Any]:
    return [value.as_py()] * count if isinstance(value, pa.Scalar) else value.to_pylist()
