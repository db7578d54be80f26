"""Values inside buffers: how a column of any type is kept, shown again, and put in order.

Numbers, dates and times are kept as int64 or float64; everything else as Python objects, in which
dates and times are integers too, because Python's own end at the year 9999 and Spark's do not.

Their order is that of functions/ordering.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.ops.aggregates.api import Ints
from penstock.ops.functions.ordering import order_keys
from penstock.state.keys import WORDS, canonical_ints, words_column

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
    is_whole = present.all()
    if is_whole and kind.id in WORDS:
        return words_column(values, kind)
    array = pa.array(values, mask=None if is_whole else np.logical_not(present))
    if array.type == kind:
        return array
    if pt.is_temporal(kind) and kind.bit_width == 64:
        return array.view(kind)
    if pt.is_date32(kind):
        array = array.cast(pa.int32())
    return array.cast(kind, safe=False)


def buffer_keys(values: Values, kind: pa.DataType) -> Ints:
    """Integers that compare as these values, of a buffer of this type, do. None may be null."""
    if not is_fixed(kind):
        return order_keys(pa.array(values.tolist(), stored_type(kind)))
    return order_keys(pa.array(values)) if pt.is_floating(kind) else values.astype(np.int64)


def is_ordered(kind: pa.DataType) -> bool:
    """Whether values of the type can be compared."""
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
