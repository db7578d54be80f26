"""Decimals as whole numbers and back: what Spark's optimizer puts around sums of short decimals."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.ops.functions.alignment import nulls, on_arrays, to_numpy
from penstock.ops.functions.failures import fail
from penstock.ops.functions.registry import function
from penstock.plan.exprs import Call
from penstock.state.keys import decimal_words


@function("UnscaledValue", raises=False)
@on_arrays
def unscaled_value(call: Call, value: pa.Array) -> pa.Array:
    """All digits, without the point; Spark asks only where they fit a long."""
    return pa.array(decimal_words(value)[:, 0].copy(), mask=nulls(value))


@function("MakeDecimal", raises=lambda call: not call.option("nullOnOverflow", True))
@on_arrays
def make_decimal(call: Call, value: pa.Array) -> pa.Array:
    missing, digits = nulls(value), to_numpy(value)
    if call.type.precision < 19:
        bound = 10**call.type.precision
        outside = (digits >= bound) | (digits <= -bound)
        if outside.any() and not call.option("nullOnOverflow", True):
            fail("NUMERIC_VALUE_OUT_OF_RANGE", f"a sum does not fit {call.type}")
        missing = missing | outside
    words = np.stack([digits, digits >> np.int64(63)], axis=1)
    valid = pa.array(~missing).buffers()[1]
    return pa.Array.from_buffers(call.type, len(digits), [valid, pa.py_buffer(words.tobytes())])
