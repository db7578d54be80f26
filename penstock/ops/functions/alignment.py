"""Arguments of different shapes made alike: scalars beside arrays, nulls beside NumPy's values.

Owns the shapes that all functions share: an argument as an array of the batch's length, where it is
null, and its values as a vector without nulls.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.functions.registry import Datum, Evaluate
from penstock.plan.exprs import Call

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Values: TypeAlias = npt.NDArray[Any]


def as_array(value: Datum, rows: int) -> pa.Array:
    """The value with one element per row."""
    if not isinstance(value, pa.Scalar):
        return value
    # Of a list Arrow cannot make no copies.
    return pa.repeat(value, rows) if rows else pa.nulls(0, value.type)


def arrays(*values: Datum) -> list[pa.Array]:
    """All values as arrays of one length; scalars alone make arrays of one element."""
    rows = next((len(value) for value in values if isinstance(value, pa.Array)), 1)
    return [as_array(value, rows) for value in values]


def on_arrays(evaluate: Evaluate) -> Evaluate:
    """A function that is given arrays of one length only; of scalars it answers with a scalar."""

    @wraps(evaluate)
    def aligned(call: Call, *values: Datum) -> Datum:
        result = evaluate(call, *arrays(*values))
        return result[0] if all(isinstance(value, pa.Scalar) for value in values) else result

    return aligned


def nulls(*values: pa.Array) -> Mask:
    """Where any of the arrays is null."""
    mask = np.zeros(len(values[0]), bool)
    for value in values:
        if value.null_count:
            mask |= value.is_null().to_numpy(zero_copy_only=False)
    return mask


def valid_mask(*values: pa.Array) -> Mask:
    """Where none of the arrays is null."""
    return ~nulls(*values)


def to_numpy(array: pa.Array) -> Values:
    """Numbers as a vector; nulls are zero."""
    if array.null_count:
        array = pc.fill_null(array, pa.scalar(0).cast(array.type))
    return np.asarray(array.to_numpy(zero_copy_only=False))


def masked(values: npt.NDArray[np.generic], valid: Mask, type: pa.DataType) -> pa.Array:
    """An Arrow column of these values, null where not valid."""
    return pa.array(values, mask=~valid).cast(type)


def null_where(array: pa.Array, rows: Mask) -> pa.Array:
    """The array with these rows made null."""
    if not rows.any():
        return array
    return pc.if_else(pa.array(rows), pa.scalar(None, array.type), array)
