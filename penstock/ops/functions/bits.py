"""Bits of integers, and numbers written in other bases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.functions.alignment import Values, nulls, on_arrays, to_numpy
from penstock.ops.functions.failures import fail
from penstock.ops.functions.operands import divide_toward_zero
from penstock.ops.functions.registry import Datum, function, kernels
from penstock.ops.functions.rows import each
from penstock.plan.exprs import Call

_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MASK: Final = 2**64 - 1
_BITMAP_BITS: Final = 8 * 4096


kernels({"BitwiseNot": ("~", pc.bit_wise_not)})
kernels(
    {
        "BitwiseAnd": ("&", pc.bit_wise_and),
        "BitwiseOr": ("|", pc.bit_wise_or),
        "BitwiseXor": ("^", pc.bit_wise_xor),
    },
    strict=True,
)


@function("ShiftLeft", sql="shiftleft <<", raises=False, strict=True)
@on_arrays
def shift_left(call: Call, value: pa.Array, places: pa.Array) -> pa.Array:
    return _shift(value, places, np.left_shift)


@function("ShiftRight", sql="shiftright >>", raises=False, strict=True)
@on_arrays
def shift_right(call: Call, value: pa.Array, places: pa.Array) -> pa.Array:
    return _shift(value, places, np.right_shift)


@function("ShiftRightUnsigned", sql="shiftrightunsigned >>>", raises=False, strict=True)
@on_arrays
def shift_right_unsigned(call: Call, value: pa.Array, places: pa.Array) -> pa.Array:
    unsigned = f"u{value.type.bit_width // 8}"

    def shift(values: Values, counts: Values) -> Values:
        return np.right_shift(values.view(unsigned), counts.view(unsigned)).view(values.dtype)

    return _shift(value, places, shift)


def _shift(
    value: pa.Array, places: pa.Array, kernel: Callable[[Values, Values], Values]
) -> pa.Array:
    """Only the low bits of the number of places count, as in Java."""
    values = to_numpy(value)
    counts = (to_numpy(places) & (value.type.bit_width - 1)).astype(values.dtype)
    return pa.array(kernel(values, counts), value.type, mask=nulls(value, places))


@function("BitwiseCount", sql="bit_count", raises=False)
@on_arrays
def bit_count(call: Call, value: pa.Array) -> pa.Array:
    """Of the value as a long, sign bits included."""
    longs = to_numpy(value).astype(np.int64).view(np.uint64)
    return pa.array(np.bitwise_count(longs).astype(np.int32), pa.int32(), mask=nulls(value))


@function("BitwiseGet", sql="getbit bit_get", raises=True, strict=True)
@on_arrays
def bit_get(call: Call, value: pa.Array, place: pa.Array) -> pa.Array:
    places, none = to_numpy(place), nulls(value, place)
    outside = ((places < 0) | (places >= value.type.bit_width)) & ~none
    if outside.any():
        fail("INVALID_PARAMETER_VALUE", f"there is no bit {places[outside][0]}")
    bits = (to_numpy(value).astype(np.int64) >> np.where(none, 0, places)) & 1
    return pa.array(bits.astype(np.int8), pa.int8(), mask=none)


@function("Bin", sql="bin", raises=False)
def binary_digits(call: Call, value: Datum) -> Datum:
    return each(call.type, lambda number: f"{number & _MASK:b}", value)


@function("Conv", sql="conv", raises=lambda call: call.is_ansi, strict=True)
def convert_base(call: Call, number: Datum, source: Datum, target: Datum) -> Datum:
    # No kernel knows bases.
    return each(call.type, partial(_convert, is_ansi=call.is_ansi), number, source, target)


def _convert(text: str, source: int, target: int, *, is_ansi: bool) -> str | None:
    """By way of an unsigned long; the result is signed if the target base is negative."""
    text = text.strip(" ")
    if not (2 <= source <= 36 and 2 <= abs(target) <= 36) or not text:
        return None
    is_negative = text[0] == "-"
    value = _read_digits(text[is_negative:], source, is_ansi)
    signed = value - 2**64 if value >= 2**63 else value
    if is_negative and target > 0:
        signed = -1 if signed < 0 else -signed
    if target < 0 and signed < 0:
        signed, is_negative = -signed, True
    digits = _write_digits(signed & _MASK, abs(target))
    return f"-{digits}" if is_negative and target < 0 else digits


def _read_digits(text: str, base: int, is_ansi: bool) -> int:
    """The digits up to the first that is none; too many of them are the largest number."""
    value = 0
    for letter in text:
        digit = _DIGITS.find(letter.upper()) if letter.isascii() else -1
        if not 0 <= digit < base:
            break
        value = value * base + digit
        if value > _MASK:
            if is_ansi:
                fail("ARITHMETIC_OVERFLOW", "overflow in function conv()")
            return _MASK
    return value


def _write_digits(value: int, base: int) -> str:
    text = ""
    while value:
        value, digit = divmod(value, base)
        text = _DIGITS[digit] + text
    return text or "0"


# -- bitmaps of bitmap_construct_agg, of 4,096 bytes


@function("BitmapExpressionUtils.bitmapBucketNumber", sql="bitmap_bucket_number", raises=False)
@on_arrays
def bitmap_bucket_number(call: Call, value: pa.Array) -> pa.Array:
    """The number of the bitmap: 1 to 32,768 are in the first."""
    values = to_numpy(value)
    cut = divide_toward_zero(np.where(values > 0, values - 1, values), _BITMAP_BITS)
    numbers = np.where(values > 0, 1 + cut, cut)
    return pa.array(numbers, pa.int64(), mask=nulls(value))


@function("BitmapExpressionUtils.bitmapBitPosition", sql="bitmap_bit_position", raises=False)
@on_arrays
def bitmap_bit_position(call: Call, value: pa.Array) -> pa.Array:
    """The place in the bitmap, from 0."""
    values = to_numpy(value)
    positions = np.where(values > 0, (values - 1) % _BITMAP_BITS, np.fmod(-values, _BITMAP_BITS))
    return pa.array(positions, pa.int64(), mask=nulls(value))


@function("BitmapExpressionUtils.bitmapCount", sql="bitmap_count", raises=False)
@on_arrays
def bitmap_count(call: Call, value: pa.Array) -> pa.Array:
    counts = (int.from_bytes(bits or b"").bit_count() for bits in value.to_pylist())
    return pa.array(list(counts), pa.int64(), mask=nulls(value))
