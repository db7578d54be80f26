"""Mathematics on doubles, as java.lang.Math and StrictMath define it.

Results agree with Java's to the last digit or two: its own definition allows that much. Arguments
outside a function's domain give NaN, but null for logarithms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.ops.functions.alignment import Values, nulls, on_arrays, to_numpy
from penstock.ops.functions.java_floats import to_longs
from penstock.ops.functions.registry import function
from penstock.plan.exprs import Call

_Unary: TypeAlias = Callable[[Values], Values]


def _atanh(x: Values) -> Values:
    return 0.5 * (np.log1p(x) - np.log1p(-x))


#: By Catalyst's name: the names users write, and the function.
_UNARY: Final[dict[str, tuple[str, _Unary]]] = {
    "Acos": ("acos", np.arccos),
    "Acosh": ("acosh", np.arccosh),
    "Asin": ("asin", np.arcsin),
    "Asinh": ("asinh", np.arcsinh),
    "Atan": ("atan", np.arctan),
    "Atanh": ("atanh", _atanh),
    "Cbrt": ("cbrt", np.cbrt),
    "Cos": ("cos", np.cos),
    "Cosh": ("cosh", np.cosh),
    "Cot": ("cot", lambda x: 1 / np.tan(x)),
    "Csc": ("csc", lambda x: 1 / np.sin(x)),
    "Exp": ("exp", np.exp),
    "Expm1": ("expm1", np.expm1),
    "Rint": ("rint", np.rint),
    "Sec": ("sec", lambda x: 1 / np.cos(x)),
    "Signum": ("sign signum", np.sign),
    "Sin": ("sin", np.sin),
    "Sinh": ("sinh", np.sinh),
    "Sqrt": ("sqrt", np.sqrt),
    "Tan": ("tan", np.tan),
    "Tanh": ("tanh", np.tanh),
    "ToDegrees": ("degrees", np.degrees),
    "ToRadians": ("radians", np.radians),
}
#: Logarithms: the names users write, the function, and the argument up to which it is null.
_LOGARITHMS: Final[dict[str, tuple[str, _Unary, float]]] = {
    "Log": ("ln", np.log, 0.0),
    "Log10": ("log10", np.log10, 0.0),
    "Log1p": ("log1p", np.log1p, -1.0),
    "Log2": ("log2", lambda x: np.log(x) / np.log(2.0), 0.0),
}


def _register(kind: str, sql: str, compute: _Unary) -> None:
    @function(kind, sql=sql, raises=False)
    @on_arrays
    def evaluate(call: Call, value: pa.Array) -> pa.Array:
        with np.errstate(all="ignore"):
            return pa.array(compute(_doubles(value)), pa.float64(), mask=nulls(value))


def _register_logarithm(kind: str, sql: str, compute: _Unary, asymptote: float) -> None:
    @function(kind, sql=sql, raises=False)
    @on_arrays
    def evaluate(call: Call, value: pa.Array) -> pa.Array:
        x = _doubles(value)
        with np.errstate(all="ignore"):
            return pa.array(compute(x), pa.float64(), mask=nulls(value) | (x <= asymptote))


def _doubles(value: pa.Array) -> Values:
    """Only sign() takes something else, an interval."""
    return to_numpy(value if pa.types.is_floating(value.type) else value.cast(pa.int64()))


for _kind, (_sql, _compute) in _UNARY.items():
    _register(_kind, _sql, _compute)
for _kind, (_sql, _compute, _asymptote) in _LOGARITHMS.items():
    _register_logarithm(_kind, _sql, _compute, _asymptote)


@function("Logarithm", sql="log", raises=False, strict=True)
@on_arrays
def logarithm(call: Call, base: pa.Array, value: pa.Array) -> pa.Array:
    bases, values = to_numpy(base), to_numpy(value)
    mask = nulls(base, value) | (bases <= 0.0) | (values <= 0.0)
    with np.errstate(all="ignore"):
        return pa.array(np.log(values) / np.log(bases), pa.float64(), mask=mask)


@function("Pow", sql="pow power", raises=False, strict=True)
@on_arrays
def power(call: Call, base: pa.Array, exponent: pa.Array) -> pa.Array:
    """Where C says that 1 to the power of anything is 1, Java says NaN."""
    bases, exponents = to_numpy(base), to_numpy(exponent)
    with np.errstate(all="ignore"):
        result = np.power(bases, exponents)
    odd = np.isnan(exponents) | ((np.abs(bases) == 1.0) & np.isinf(exponents))
    return pa.array(np.where(odd, np.nan, result), pa.float64(), mask=nulls(base, exponent))


@function("Atan2", sql="atan2", raises=False, strict=True)
@on_arrays
def atan2(call: Call, y: pa.Array, x: pa.Array) -> pa.Array:
    """Spark turns -0.0 into 0.0 first."""
    angles = np.arctan2(to_numpy(y) + 0.0, to_numpy(x) + 0.0)
    return pa.array(angles, pa.float64(), mask=nulls(y, x))


@function("Hypot", sql="hypot", raises=False, strict=True)
@on_arrays
def hypot(call: Call, left: pa.Array, right: pa.Array) -> pa.Array:
    with np.errstate(all="ignore"):
        lengths = np.hypot(to_numpy(left), to_numpy(right))
    return pa.array(lengths, pa.float64(), mask=nulls(left, right))


_FACTORIALS: Final = np.array([1, *np.cumprod(np.arange(1, 21, dtype=np.int64))], np.int64)


@function("Factorial", sql="factorial", raises=False)
@on_arrays
def factorial(call: Call, value: pa.Array) -> pa.Array:
    """Null for what has none, or none that fits a long."""
    number = to_numpy(value)
    outside = (number < 0) | (number > 20)
    return pa.array(
        _FACTORIALS[np.where(outside, 0, number)], pa.int64(), mask=nulls(value) | outside
    )


@function("WidthBucket", sql="width_bucket", raises=False, strict=True)
@on_arrays
def width_bucket(
    call: Call, value: pa.Array, low: pa.Array, high: pa.Array, count: pa.Array
) -> pa.Array:
    """Which of `count` equal parts of [low, high) a value is in; 0 and count + 1 are outside."""
    x, a, b = (_doubles(each).astype(np.float64) for each in (value, low, high))
    buckets = to_numpy(count)
    with np.errstate(all="ignore"):
        none = (buckets <= 0) | (buckets == np.iinfo(np.int64).max) | np.isnan(x) | (a == b)
        none |= ~np.isfinite(a) | ~np.isfinite(b)
        lower, upper = np.minimum(a, b), np.maximum(a, b)
        rises = a < b
        passed = np.where(rises, x - lower, upper - x)
        place = to_longs(buckets.astype(np.float64) * passed / (upper - lower))
        before = np.where(rises, x < lower, x > upper)
        after = np.where(rises, x >= upper, x <= lower)
        place = np.where(before, 0, np.where(after, buckets + 1, place + 1))
    return pa.array(place, pa.int64(), mask=nulls(value, low, high, count) | none)
