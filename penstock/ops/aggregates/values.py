"""Values inside buffers: how a column of any type is kept, shown again, and put in order.

Numbers, dates and times are kept as int64 or float64; everything else as Python objects, in which
dates and times are integers too, because Python's own end at the year 9999 and Spark's do not.

Law: ranks order values as Spark does: nulls first inside of structs and arrays, NaN last and equal
to itself, -0.0 equal to 0.0, text and binary by unsigned bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.state.keys import canonical_ints

Ints = npt.NDArray[np.int64]
Values = npt.NDArray[np.generic]


def is_fixed(kind: pa.DataType) -> bool:
    """Whether values of the type are kept as numbers."""
    if pt.is_interval(kind):
        return False
    return (
        pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind) or pt.is_temporal(kind)
    )


def buffer_type(kind: pa.DataType) -> pa.DataType:
    """The type of a buffer column that keeps values of this type."""
    if not is_fixed(kind):
        return stored_type(kind)
    return pa.float64() if pt.is_floating(kind) else pa.int64()


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type with integers for dates and times, at any depth."""
    if pt.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([field.with_type(stored_type(field.type)) for field in fields])
    if pt.is_list(kind):
        return pa.list_(kind.value_field.with_type(stored_type(kind.value_type)))
    if pt.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(stored_type(key.type)), item.with_type(stored_type(item.type)))
    if pt.is_date32(kind):
        return pa.int32()
    return pa.int64() if pt.is_temporal(kind) and not pt.is_interval(kind) else kind


def objects(values: Iterable[object], count: int) -> npt.NDArray[np.object_]:
    """An array of objects; unlike assignment this never takes lists for rows of a matrix."""
    return np.fromiter(values, object, count)


def lift_objects(column: pa.Array) -> list[Any]:
    """The column's values as Python objects, nulls as None."""
    stored = stored_type(column.type)
    listed: list[Any] = (column if stored == column.type else column.cast(stored)).to_pylist()
    return listed


def show_objects(values: list[Any], kind: pa.DataType) -> pa.Array:
    """The inverse of lift_objects."""
    stored = stored_type(kind)
    array = pa.array(values, stored)
    return array if stored == kind else array.cast(kind)


def lift_values(column: pa.Array) -> Values:
    """The column as a buffer; what stands for null does not matter."""
    kind = column.type
    if not is_fixed(kind):
        return objects(lift_objects(column), len(column))
    if pt.is_floating(kind):
        filled = column.fill_null(0.0) if column.null_count else column
        return filled.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    return canonical_ints(column)


def show_values(values: Values, present: Values, kind: pa.DataType) -> pa.Array:
    """The inverse of lift_values; null where nothing is present."""
    if not is_fixed(kind):
        kept = zip(values.tolist(), present.tolist(), strict=True)
        return show_objects([value if there else None for value, there in kept], kind)
    array = pa.array(values, mask=None if present.all() else np.logical_not(present))
    if array.type == kind:
        return array
    if pt.is_date32(kind):
        array = array.cast(pa.int32())
    return array.cast(kind, safe=False)


def ranks(values: Values, kind: pa.DataType) -> Ints:
    """Integers that compare as these values, of a buffer of this type, do. None may be null."""
    if not is_fixed(kind):
        return _ranks(pa.array(values.tolist(), stored_type(kind)))
    return ordered_floats(values) if values.dtype == np.float64 else values.astype(np.int64)


def ordered_floats(values: Values) -> Ints:
    """Integers that compare as the numbers do."""
    bits = canonical_ints(pa.array(values, pa.float64(), from_pandas=False))
    return bits ^ ((bits >> np.int64(63)) & np.int64(np.iinfo(np.int64).max))


def _ranks(column: pa.Array) -> Ints:
    """Dense ranks, nulls lowest."""
    kind = column.type
    if pt.is_struct(kind):
        parts = [column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)]
        return _ranks_of_rows(parts + [_ranks(field) for field in column.flatten()])
    if pt.is_list(kind):
        return _ranks_of_lists(column)
    if pt.is_floating(kind):
        ordered = ordered_floats(column.fill_null(0.0).to_numpy(zero_copy_only=False))
        column = pa.array(ordered, mask=column.is_null().to_numpy(zero_copy_only=False))
    elif pt.is_boolean(kind):
        column = column.cast(pa.int8())
    elif pt.is_null(kind):
        return np.zeros(len(column), np.int64)
    found = pc.rank(column, "ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    if column.null_count:
        found[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return found


def _ranks_of_rows(parts: list[Ints]) -> Ints:
    rows = np.stack(parts, axis=1)
    order = np.lexsort(rows.T[::-1])
    ordered = rows[order]
    steps = np.any(ordered[1:] != ordered[:-1], axis=1)
    found = np.zeros(len(rows), np.int64)
    found[order[1:]] = np.cumsum(steps)
    return found


def _ranks_of_lists(column: pa.Array) -> Ints:
    # Lists differ in length: Python compares tuples of their elements' ranks.
    elements = _ranks(column.flatten()).tolist()
    lengths = pc.list_value_length(column).fill_null(0).to_pylist()
    tuples: list[tuple[int, ...]] = []
    start = 0
    for length, there in zip(lengths, column.is_valid().to_pylist(), strict=True):
        tuples.append((1, *elements[start : start + length]) if there else (0,))
        start += length
    places = {value: place for place, value in enumerate(sorted(set(tuples)))}
    return np.fromiter((places[value] for value in tuples), np.int64, len(tuples))


def is_ordered(kind: pa.DataType) -> bool:
    """Whether ranks can compare values of the type."""
    if pt.is_struct(kind):
        return all(is_ordered(kind.field(i).type) for i in range(kind.num_fields))
    if pt.is_list(kind):
        return is_ordered(kind.value_type)
    return not (pt.is_map(kind) or pt.is_interval(kind))


def last_of_each(groups: Ints, count: int, rows: Ints) -> Ints:
    """The last of these row numbers in each group, -1 where there is none."""
    chosen = np.full(count, -1, np.int64)
    chosen[groups[rows]] = rows  # of several assignments to one place the last one stays
    return chosen


def take_rows(values: Values, chosen: Ints) -> Values:
    """The values of these rows; for -1 the value of an empty buffer."""
    missing = chosen < 0
    if not missing.any():
        return values[chosen]
    taken = np.zeros(len(chosen), values.dtype)
    if values.dtype == object:
        taken = np.empty(len(chosen), object)
    taken[~missing] = values[chosen[~missing]]
    return taken
