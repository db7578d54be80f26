"""Arrow values as NumPy vectors and back, for functions that no Arrow kernel computes.

Law: vectors have no nulls. Where an argument is null the vector holds zero, the row is remembered,
no failure is raised for it, and the result is null there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.ops.functions.alignment import Ints, Mask, as_array
from penstock.ops.functions.failures import fail
from penstock.ops.functions.registry import Datum

#: How Arrow lays out an interval of months, days and nanoseconds.
CALENDAR_DTYPE: Final = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanos", "<i8")])
#: Decimals of at most this many digits fit 64 bits.
LONG_DIGITS: Final = 18


class Operands:
    """The arguments of one call as vectors; a scalar is a vector of one element."""

    __slots__ = ("_count", "_is_scalar", "nulls", "vectors")

    def __init__(self, *values: Datum) -> None:
        arrays = [as_array(value, 1) for value in values]
        lengths = [len(v) for v in values if not isinstance(v, pa.Scalar)]
        self._is_scalar = not lengths
        self._count = lengths[0] if lengths else 1
        #: Rows where some argument is null; None if there are none.
        self.nulls: Mask | None = None
        for array in arrays:
            if array.null_count:
                missing = array.is_null().to_numpy(zero_copy_only=False)
                self.nulls = missing if self.nulls is None else self.nulls | missing
        #: One vector per argument, to be broadcast: int64, float64, bool or CALENDAR_DTYPE. Text
        #: has none; its vector is one zero.
        self.vectors = [_vector(array) for array in arrays]

    def result(self, values: np.ndarray, type: pa.DataType, nulls: Mask | None = None) -> Datum:
        """The answer of the call; rows of `nulls` are null as well."""
        nulls = self._with(nulls)
        if values.shape != (self._count,):
            values = np.broadcast_to(values, self._count)
        if nulls is not None and nulls.shape != (self._count,):
            nulls = np.broadcast_to(nulls, self._count)
        return self.answer(to_arrow(values, nulls, type))

    def answer(self, array: pa.Array) -> Datum:
        """The array, or its one element if all arguments are scalars."""
        return array[0] if self._is_scalar else array

    def _with(self, nulls: Mask | None) -> Mask | None:
        if nulls is None or self.nulls is None:
            return nulls if self.nulls is None else self.nulls
        return self.nulls | nulls

    def fail_where(
        self, rows: Mask, condition: str, message: str | Callable[[int], str] = ""
    ) -> None:
        """Fail if any of these rows, none of its arguments null, is there."""
        if self.nulls is not None:
            rows = rows & ~self.nulls
        rows = np.broadcast_to(rows, self._count) if rows.shape != (self._count,) else rows
        if rows.any():
            fail(condition, message if isinstance(message, str) else message(int(rows.argmax())))


def _vector(array: pa.Array) -> np.ndarray:
    if pa.types.is_string(array.type):
        return np.zeros(1, np.int64)
    raw = _raw(array)
    if array.null_count:
        raw = raw.copy()
        raw[array.is_null().to_numpy(zero_copy_only=False)] = 0
    if raw.dtype.kind == "i" and raw.dtype != np.int64:
        return raw.astype(np.int64)
    return raw.astype(np.float64) if raw.dtype == np.float32 else raw


def _raw(array: pa.Array) -> np.ndarray:
    """The data as it lies in Arrow's buffer; what is at nulls is undefined."""
    type = array.type
    if pa.types.is_boolean(type):
        return array.fill_null(False).to_numpy(zero_copy_only=False)
    if pa.types.is_decimal(type):
        assert type.precision <= LONG_DIGITS
        words = _buffer(array, np.dtype("<i8"), 2)
        return words[:, 0]
    if pa.types.is_interval(type):
        return _buffer(array, CALENDAR_DTYPE)
    if pa.types.is_floating(type):
        return _buffer(array, np.dtype(f"<f{type.bit_width // 8}"))
    return _buffer(array, np.dtype(f"<i{type.bit_width // 8}"))


def _buffer(array: pa.Array, dtype: np.dtype, words: int = 1) -> np.ndarray:
    if len(array) == 0:
        return np.empty((0, words) if words > 1 else 0, dtype)
    data = np.frombuffer(array.buffers()[1], dtype)
    data = data.reshape(-1, words) if words > 1 else data
    return data[array.offset : array.offset + len(array)]


def to_arrow(values: np.ndarray, nulls: Mask | None, type: pa.DataType) -> pa.Array:
    """The vector as an array of the type; integers are cut to its width, as Java cuts them."""
    if pa.types.is_decimal(type) or pa.types.is_interval(type):
        return _from_buffer(values, nulls, type)
    if pa.types.is_floating(type) or pa.types.is_boolean(type):
        return pa.array(values, type, mask=nulls)
    width = type.bit_width // 8
    if values.dtype.itemsize != width:
        values = values.astype(f"<i{width}")
    array = pa.array(values, mask=nulls)
    return array if array.type == type else array.view(type)


def _from_buffer(values: np.ndarray, nulls: Mask | None, type: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(type):
        words = np.empty((len(values), 2), "<i8")
        words[:, 0] = values
        words[:, 1] = values >> 63
        values = words
    bits = None if nulls is None else pa.array(~nulls).buffers()[1]
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(type, len(values), [bits, data])


def divide_toward_zero(values: Ints, divisor: int) -> Ints:
    """Java's `/` with a positive divisor."""
    return (values + np.where(values < 0, divisor - 1, 0)) // divisor


def remainder(values: Ints, divisor: int) -> Ints:
    """Java's `%`: it has the sign of the dividend."""
    return np.fmod(values, divisor)


def add_overflows(left: Ints, right: Ints) -> tuple[Ints, Mask]:
    """The sum, and where it does not fit 64 bits."""
    total = left + right
    return total, ((left ^ total) & (right ^ total)) < 0


def multiply_overflows(values: Ints, factor: Ints) -> tuple[Ints, Mask]:
    """The product, and where it does not fit 64 bits."""
    product = values * factor
    # Only where the approximate product is near the limit can the exact one be beyond it.
    near = np.abs(values.astype(np.float64) * factor.astype(np.float64)) > 2.0**62
    wrong = np.zeros(np.broadcast_shapes(values.shape, factor.shape), bool)
    if near.any():
        lefts, rights = np.broadcast_arrays(values, factor)
        for row in np.flatnonzero(near):  # whole numbers beyond 64 bits: Python has them
            wrong[row] = not -(2**63) <= int(lefts[row]) * int(rights[row]) < 2**63
    return product, wrong
