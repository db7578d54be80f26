"""Arguments of different shapes made alike: scalars beside arrays become arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.functions.registry import Datum, Evaluate
from penstock.plan.exprs import Call

Mask: TypeAlias = npt.NDArray[np.bool_]
Values: TypeAlias = npt.NDArray[Any]


def arrays(*values: Datum) -> list[pa.Array]:
    """All values as arrays of one length; scalars alone make arrays of one element."""
    rows = next((len(value) for value in values if isinstance(value, pa.Array)), 1)
    return [pa.repeat(v, rows) if isinstance(v, pa.Scalar) else v for v in values]


def on_arrays(evaluate: Evaluate) -> Evaluate:
    """A function that is given arrays of one length only; of scalars it answers with a scalar."""

    @wraps(evaluate)
    def aligned(call: Call, *values: Datum) -> Datum:
        result = evaluate(call, *arrays(*values))
        return result[0] if all(isinstance(value, pa.Scalar) for value in values) else result

    return aligned


def nulls(*values: pa.Array) -> Mask:
    """Where any of the arrays is null."""
    found = np.zeros(len(values[0]), bool)
    for value in values:
        if value.null_count:
            found |= value.is_null().to_numpy(zero_copy_only=False)
    return found


def to_numpy(array: pa.Array) -> Values:
    """Numbers as a vector; nulls are zero."""
    if array.null_count:
        array = pc.fill_null(array, pa.scalar(0).cast(array.type))
    return np.asarray(array.to_numpy(zero_copy_only=False))


def null_where(array: pa.Array, rows: Mask) -> pa.Array:
    """The array with these rows made null."""
    if not rows.any():
        return array
    return pc.if_else(pa.array(rows), pa.scalar(None, array.type), array)


def by_value(array: pa.Array, change: Callable[[Any], Any], type: pa.DataType) -> pa.Array:
    """Each distinct value changed once, by Python: for what no column kernel can do."""
    encoded = array.dictionary_encode()
    changed = pa.array([change(value) for value in encoded.dictionary.to_pylist()], type)
    return changed.take(encoded.indices)
