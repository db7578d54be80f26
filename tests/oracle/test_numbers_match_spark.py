"""Arithmetic, comparison and mathematics give what Spark gives: extremes, nulls, NaN, all modes."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import assert_expressions, assert_fails, assert_same

_INTEGERS = {"b": 8, "s": 16, "i": 32, "l": 64}
_FLOATS = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.5, -2.5, 0.1, 1e-300, 1e300]
_SMALL_FLOATS = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.5, -2.5, 0.5, 1e-30, 3e30]
_TEXTS = ["", "a", "A", "ab", "é", "😀", "￿", "10", "9"]
_EPOCH = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def _integers(rng: random.Random, bits: int, rows: int, *, is_small: bool) -> list[int | None]:
    most = 2 ** (bits - 1)
    edges: list[int | None] = [None, 0, 1, -1, 2, 3, -7, 7]
    if not is_small:
        edges += [-most, most - 1, -most + 1, most // 2, rng.randrange(-most, most)]
    return [rng.choice(edges) for _ in range(rows)]


def _decimals(rng: random.Random, precision: int, scale: int, rows: int) -> list[Decimal | None]:
    made: list[Decimal | None] = []
    for _ in range(rows):
        most = 10 ** rng.randint(1, precision)
        unscaled = rng.choice([0, 1, -1, most - 1, 1 - most, rng.randrange(-most, most)])
        made.append(rng.choice([None, *[Decimal(f"{unscaled}E-{scale}")] * 6]))
    return made


def numbers(rows: int = 100, seed: int = 1, *, is_small: bool = False) -> pa.Table:
    """Two columns of each numeric type: b1 and b2 tinyint, s, i, l, f float, d double; decimals."""
    rng = random.Random(seed)
    columns: dict[str, pa.Array] = {}
    for number in ("1", "2"):
        for name, bits in _INTEGERS.items():
            values = _integers(rng, bits, rows, is_small=is_small)
            columns[name + number] = pa.array(values, f"int{bits}")
        floats = [rng.choice([None, *_SMALL_FLOATS, rng.random()]) for _ in range(rows)]
        columns["f" + number] = pa.array(floats, pa.float32())
        doubles = [rng.choice([None, *_FLOATS, rng.random() * 100]) for _ in range(rows)]
        columns["d" + number] = pa.array(doubles, pa.float64())
    for name, (precision, scale) in _DECIMAL_COLUMNS.items():
        values = _decimals(rng, precision - 4 if is_small else precision, scale, rows)
        columns[name] = pa.array(values, pa.decimal128(precision, scale))
    return pa.table(columns)


_DECIMAL_COLUMNS = {
    "p1": (10, 2),
    "p2": (10, 4),
    "q": (5, 3),
    "n": (18, 0),
    "w1": (38, 10),
    "w2": (38, 18),
    "z": (38, 0),
}


def orderables(rows: int = 100, seed: int = 2) -> pa.Table:
    """Two columns of each orderable type that is no number."""
    rng = random.Random(seed)
    pair = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.float64())])
    columns: dict[str, pa.Array] = {}

    def pick(values: list[Any]) -> list[Any]:
        return [rng.choice([None, *values]) for _ in range(rows)]

    days = [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date(9999, 12, 31)]
    times = [_EPOCH, _EPOCH + dt.timedelta(microseconds=1), _EPOCH - dt.timedelta(days=9999)]
    naive = [time.replace(tzinfo=None) for time in times]
    spans = [dt.timedelta(0), dt.timedelta(microseconds=-1), dt.timedelta(days=99)]
    lists = [[], [1], [1, None], [None], [1, 2], [2]]
    float_lists = [[float("nan")], [0.0], [-0.0, None], [1.0, 2.0], []]
    structs = [{"x": x, "y": y} for x in (None, 1, 2) for y in (None, 0.0, -0.0, float("nan"))]
    for number in ("1", "2"):
        columns["t" + number] = pa.array(pick(_TEXTS), pa.string())
        columns["x" + number] = pa.array(pick([b"", b"\x00", b"\x7f", b"\x80", b"ab"]), pa.binary())
        columns["o" + number] = pa.array(pick([True, False]), pa.bool_())
        columns["day" + number] = pa.array(pick(days), pa.date32())
        columns["ts" + number] = pa.array(pick(times), pa.timestamp("us", tz="UTC"))
        columns["ntz" + number] = pa.array(pick(naive), pa.timestamp("us"))
        columns["dur" + number] = pa.array(pick(spans), pa.duration("us"))
        columns["list" + number] = pa.array(pick(lists), pa.list_(pa.int32()))
        columns["floats" + number] = pa.array(pick(float_lists), pa.list_(pa.float64()))
        columns["pair" + number] = pa.array(pick(structs), pair)
    return pa.table(columns)


_PRIMITIVES = ("b", "s", "i", "l", "f", "d")
_ORDERABLES = ("t", "x", "o", "day", "ts", "ntz", "dur", "list", "floats", "pair")
_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "<=>")
_UNARY = [
    *["acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "cos", "cosh", "cot", "csc"],
    *["exp", "expm1", "rint", "sec", "sign", "signum", "sin", "sinh", "sqrt", "tan", "tanh"],
    *["degrees", "radians", "ln", "log10", "log1p", "log2"],
]
_BINARY = ["log", "pow", "power", "atan2", "hypot"]
_MANY = ", ".join(str(value) for value in range(-10, 10))
_SOME = ", ".join(f"{value}D" for value in range(-10, 10))
_LISTED = ", ".join(f"'{text}'" for text in _TEXTS[:5] * 3)
_LONG_LISTED = ", ".join(f"'{text}{n}'" for text in _TEXTS[:4] for n in range(4))
OF_NUMBERS = {
    "comparisons": [
        *(f"{c}1 {op} {c}2" for c in (*_PRIMITIVES, "p") for op in _COMPARISONS),
        *(f"d1 {op} {v}" for op in _COMPARISONS for v in ("1.5D", "double('NaN')")),
        *(f"1.5D {op} d1" for op in _COMPARISONS),
    ],
    "membership and extremes": [
        f"i1 in ({_MANY})",
        f"i1 not in ({_MANY}, null)",
        f"d1 in ({_SOME}, double('NaN'), -0.0D)",
        "i1 in (1, 2, i2)",
        "i1 in (1, 2, null)",
        "d1 in (1.5D, 0.0D)",
        "d1 in (d2, 1.5D, double('NaN'))",
        "p1 in (0.00, 1.00, -0.01)",
        "greatest(d1, d2, 1.5D)",
        "least(d1, d2)",
        "greatest(i1, i2, 0)",
        "least(i1, i2)",
        "greatest(p1, p2)",
        "least(f1, f2)",
        "isnan(d1)",
        "isnan(f1)",
        "nanvl(d1, d2)",
        "nanvl(f1, f2)",
        "nanvl(double('NaN'), d2)",
        "nanvl(d1, 2.5D)",
        "i1 is null",
        "i1 is not null",
        "not (i1 > i2)",
        "nullif(i1, i2)",
        "nvl(i1, i2)",
        "nvl2(i1, i2, 7)",
        "ifnull(d1, 0D)",
        "i1 between -1 and i2",
        "equal_null(i1, i2)",
    ],
    "arithmetic that gives null instead of failing": [
        f"{kind}({c}1, {c}2)"
        for kind in ("try_add", "try_subtract", "try_multiply", "try_divide", "try_mod")
        for c in (*_PRIMITIVES, "w", "p")
    ],
    "mathematics": [
        *(f"{name}(d1)" for name in _UNARY),
        *(f"{name}(d1, d2)" for name in _BINARY),
        *("sqrt(i1)", "pow(2, b1)", "log(d1)", "factorial(b1)", "pi() * d1", "e() * d1"),
        *("width_bucket(d1, -2D, 3D, 10)", "width_bucket(d1, 3D, -2D, 10)"),
        *("width_bucket(d1, d2, 3D, i1)", "width_bucket(i1, 0, 100, 7)"),
    ],
    "bits and bases": [
        *(f"{c}1 {op} {c}2" for c in "bsil" for op in "&|^"),
        *(f"{name}({c}1)" for name in ("~", "bit_count") for c in "bsil"),
        *(f"{n}({c}1, i2)" for n in ("shiftleft", "shiftright") for c in "il"),
        *(f"shiftrightunsigned({c}1, i2)" for c in "il"),
        *("i1 << 3", "l1 >> 3", "l1 >>> 60", "bit_count(i1 > 0)", "bin(l1)", "bin(i1)"),
        *("getbit(l1, 63)", "bit_get(i1, 0)", "getbit(b1, 7)", "hex(l1)", "hex(i1)"),
        *(f"conv(cast(i1 as string), 10, {base})" for base in (2, 16, 36, -2, -16, 37)),
        *("conv(hex(l1), 16, -10)", "conv(hex(l1), 16, 10)", "conv('-1Zz', b1, b2)"),
    ],
}
OF_OTHERS = {
    "comparisons": [f"{c}1 {op} {c}2" for c in _ORDERABLES for op in _COMPARISONS],
    "membership and extremes": [
        *(f"{name}({c}1, {c}2)" for name in ("greatest", "least") for c in _ORDERABLES),
        *(f"{c}1 in ({c}2, {c}1)" for c in _ORDERABLES),
        f"t1 in ({_LISTED})",
        f"t1 in ({_LONG_LISTED}, 'a')",
        "day1 in (date'2024-02-29', date'1969-12-31')",
        "ts1 in (timestamp'2024-01-01 00:00:00')",
        "list1 in (array(1), array(1, 2))",
        "x1 in (x'00', x'80')",
    ],
    "arithmetic of intervals": [
        *("dur1 + dur2", "dur1 - dur2", "-dur1", "abs(dur1)", "dur1 + interval '1' day"),
        *("try_add(dur1, dur2)", "dur1 div interval '1' hour", "sign(dur1)"),
        "width_bucket(dur1, interval '0' day, interval '100' day, 7)",
    ],
}


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_functions_of_numbers_match(spark: Any, name: str) -> None:
    assert_expressions(spark, OF_NUMBERS[name], numbers())


@pytest.mark.parametrize("name", OF_OTHERS)
def test_functions_of_other_types_that_have_an_order_match(spark: Any, name: str) -> None:
    assert_expressions(spark, OF_OTHERS[name], orderables())


def test_arithmetic_without_overflow_matches(spark: Any) -> None:
    table = numbers(is_small=True)
    expressions = [f"{c}1 {op} {c}2" for c in _PRIMITIVES for op in "+-*"]
    expressions += [f"{c}1 {op} 3" for c in _PRIMITIVES for op in ("+", "-", "*", "/", "%")]
    expressions += [f"pmod({c}1, {n})" for c in _PRIMITIVES for n in (3, -3)]
    expressions += [f"{c}1 {op} nullif({c}2, 0)" for c in _PRIMITIVES for op in "/%"]
    expressions += [f"-{c}1" for c in _PRIMITIVES] + [f"abs({c}1)" for c in _PRIMITIVES]
    expressions += [f"{c}1 div nullif({c}2, 0)" for c in "bsil"] + ["l1 div 3", "i1 div -1"]
    expressions += ["+i1", "positive(d1)", "negative(l1)", "mod(i1, 4)", "10 - i1", "7 % 4D * d1"]
    assert_expressions(spark, expressions, table)


def test_legacy_arithmetic_wraps_around_and_divides_by_zero_to_null(spark: Any) -> None:
    expressions = [f"{c}1 {op} {c}2" for c in _PRIMITIVES for op in ("+", "-", "*", "/", "%")]
    expressions += [f"{c}1 div {c}2" for c in "bsil"]
    expressions += [f"pmod({c}1, {c}2)" for c in _PRIMITIVES]
    expressions += [f"-{c}1" for c in _PRIMITIVES] + [f"abs({c}1)" for c in _PRIMITIVES]
    assert_expressions(spark, expressions, numbers(), ansi=False)


@pytest.mark.parametrize("ansi", [True, False])
def test_decimal_arithmetic_matches(spark: Any, ansi: bool) -> None:
    table = numbers(is_small=ansi)
    names = ["p1", "p2", "q", "n"]
    pairs = [("p1", "p2"), ("p1", "q"), ("q", "p2"), ("n", "p1"), ("w1", "q"), ("n", "n")]
    if not ansi:
        pairs += [("w1", "w2"), ("w2", "z"), ("z", "w1"), ("z", "z"), ("p1", "w2"), ("w2", "w2")]
    expressions = [f"{a} {op} {b}" for a, b in pairs for op in "+-*"]
    expressions += [f"{a} / nullif({b}, 0)" for a, b in pairs]
    expressions += [f"{a} {op} nullif({b}, 0)" for a, b in pairs[:6] for op in ("%", "div")]
    expressions += [f"pmod({a}, nullif({b}, 0))" for a, b in pairs[:6]]
    expressions += [f"-{name}" for name in names] + [f"abs({name})" for name in names]
    expressions += ["p1 + 1", "p1 * 2.5", "1 / nullif(p1, 0)", "p1 / 3", "i1 + p1", "p1 * d1"]
    assert_expressions(spark, expressions, table, ansi=ansi)


@pytest.mark.parametrize("ansi", [True, False])
def test_negated_decimals_keep_34_digits_as_in_spark(spark: Any, ansi: bool) -> None:
    texts = ["1234567890123456789012345678.9012345678", "-7654321098765432109876543210.0123454999"]
    texts += [
        "-1234567890123456789012345678.9012350000",
        "-1234567890123456789012345678.9012450000",
    ]
    values = [Decimal(text) for text in [*texts, "0.5", "-99999999"]]
    table = pa.table({"w": pa.array([*values, None], pa.decimal128(38, 10))})
    assert_expressions(spark, ["-w", "abs(w)", "-(-w)"], table, ansi=ansi)


def _measures() -> pa.Table:
    """Prices, halves, and numbers whose last digit decides."""
    rng = random.Random(3)
    doubles = [round(rng.uniform(-1000, 1000), rng.randint(0, 6)) for _ in range(120)]
    doubles += [rng.randint(-2000, 2000) / 8 for _ in range(60)] + [2.675, 1.005, -2.5, 0.5, 1.5]
    doubles += [1e22, 1e-7, 123456789012345.67, -0.3, 4503599627370497.5, 1e300]
    floats = [rng.choice([None, value]) for value in doubles if abs(value) < 1e30]
    floats += [None] * (len(doubles) - len(floats))
    integers = [rng.choice([None, rng.randint(-500, 500)]) for _ in doubles]
    return pa.table(
        {
            "d": pa.array([*doubles, None, float("nan"), float("inf")]),
            "f": pa.array([*floats, None, float("nan"), -float("inf")], pa.float32()),
            "i": pa.array([*integers, 2**31 - 1, -(2**31), 55], pa.int32()),
            "l": pa.array([*integers, 2**63 - 1, -(2**63), 55], pa.int64()),
            "p": pa.array(
                [*_decimals(rng, 10, 4, len(doubles)), *[None] * 3], pa.decimal128(10, 4)
            ),
            "w": pa.array(
                [*_decimals(rng, 30, 9, len(doubles)), *[None] * 3], pa.decimal128(38, 9)
            ),
        }
    )


@pytest.mark.parametrize("ansi", [True, False])
def test_rounding_matches(spark: Any, ansi: bool) -> None:
    table = _measures()
    names = ("round", "bround")
    expressions = [f"{n}({c}, {s})" for n in names for c in "dfpw" for s in (0, 1, 2, 3, -1, -2)]
    expressions += [f"{n}(i, {s})" for n in names for s in (0, 2)] + ["round(d)", "round(p)"]
    expressions += [f"{n}({c}, {s})" for n in ("ceil", "floor") for c in "pw" for s in (0, 2, -1)]
    expressions += [f"{n}({c})" for n in ("ceil", "floor", "ceiling") for c in "pwil"]
    expressions += [
        "ceil(d / 1e295D)",
        "floor(f / 1e22D)",
        "ceil(i, -2)",
        "round(d, 15)",
        "round(d, 30)",
    ]
    if not ansi:
        expressions += [f"{n}({c}, {s})" for n in names for c in "il" for s in (-1, -2, -9, -19)]
        expressions += ["ceil(d)", "floor(d)"]
    else:
        table = table.slice(0, len(table) - 3)
    assert_expressions(spark, expressions, table, ansi=ansi)


def test_too_many_digits_of_another_base_are_the_largest_number(spark: Any) -> None:
    expressions = ["conv(concat('FFFFFFFFFFFFFFFFF', b1), 16, 10)", "conv('-9', 10, 16 + b1 * 0)"]
    assert_expressions(spark, expressions, numbers(), ansi=False)


def test_decimal_sums_are_made_of_integers_as_in_spark(spark: Any) -> None:
    def build(frames: Any) -> Any:
        return frames["t"].groupBy("b1").agg({"p1": "sum", "q": "sum"})

    assert_same(spark, build, {"t": numbers().select(["b1", "p1", "q"])})


def test_rows_without_enough_values_are_dropped_as_in_spark(spark: Any) -> None:
    table = {"t": numbers().select(["b1", "i1", "d1", "f1"])}
    assert_same(spark, lambda frames: frames["t"].dropna(thresh=2), table)
    assert_same(spark, lambda frames: frames["t"].dropna(how="all"), table)
    assert_same(spark, lambda frames: frames["t"].dropna(), table)


def test_grouping_by_floating_point_numbers_matches(spark: Any) -> None:
    table = {"t": numbers().select(["d1", "f1"])}
    assert_same(spark, lambda frames: frames["t"].groupBy("d1").count(), table)
    assert_same(spark, lambda frames: frames["t"].select("f1").distinct(), table)


def test_arguments_after_a_null_are_not_evaluated(spark: Any) -> None:
    table = pa.table(
        {
            "l": pa.array([None, 1, 3], pa.int64()),
            "z": pa.array([0, 2, 1], pa.int64()),
            "d": pa.array([None, 1.5, float("nan")]),
            "text": pa.array(["x", "1", "7"]),
        }
    )
    expressions = [
        *[f"l {op} (1 div z)" for op in ("+", "-", "*", "=", "<", ">=", "<>", "&", "|", "^")],
        *[f"(1 div z) {op} l" for op in ("/", "div", "%")],
        *["pmod(1 div z, l)", "pow(l, 1 div z)", "log(d, 1 div z)", "hypot(d, 1 / z)"],
        *["l = cast(text as bigint)", "l in (5, 1 div z)", "nanvl(d, 1 / z)", "atan2(d, 1 / z)"],
        *["shiftleft(l, cast(text as int))", "width_bucket(d, 0D, 1 / z, 4)"],
    ]
    assert_expressions(spark, expressions, table)


_EDGES = pa.table(
    {
        "b": pa.array([1, -128, 0], pa.int8()),
        "s": pa.array([1, -(2**15), 0], pa.int16()),
        "i": pa.array([1, -(2**31), 0], pa.int32()),
        "l": pa.array([1, -(2**63), 0], pa.int64()),
        "d": pa.array([1.0, 2.0, 0.0]),
        "p": pa.array([Decimal(1), Decimal("9" * 38), Decimal(0)], pa.decimal128(38, 0)),
        "dur": pa.array([1, -(2**63), 0], pa.int64()).cast(pa.duration("us")),
    }
)


@pytest.mark.parametrize(
    ("expression", "condition"),
    [
        ("b - 1Y", "BINARY_ARITHMETIC_OVERFLOW"),
        ("s * 2S", "BINARY_ARITHMETIC_OVERFLOW"),
        ("i - 1", "ARITHMETIC_OVERFLOW"),
        ("l * 2", "ARITHMETIC_OVERFLOW"),
        ("-b", "ARITHMETIC_OVERFLOW"),
        ("-i", "ARITHMETIC_OVERFLOW"),
        ("abs(s)", "ARITHMETIC_OVERFLOW"),
        ("abs(l)", "ARITHMETIC_OVERFLOW"),
        ("l div -1", "ARITHMETIC_OVERFLOW"),
        ("1 / d", "DIVIDE_BY_ZERO"),
        ("d / d", "DIVIDE_BY_ZERO"),
        ("1 div i", "DIVIDE_BY_ZERO"),
        ("p / p", "DIVIDE_BY_ZERO"),
        ("i % i", "REMAINDER_BY_ZERO"),
        ("d % d", "REMAINDER_BY_ZERO"),
        ("pmod(i, i)", "REMAINDER_BY_ZERO"),
        ("p + p", "NUMERIC_VALUE_OUT_OF_RANGE"),
        ("p * p", "NUMERIC_VALUE_OUT_OF_RANGE"),
        ("p / 0.01", "NUMERIC_VALUE_OUT_OF_RANGE"),
        ("dur - interval '1' day", "INTERVAL_ARITHMETIC_OVERFLOW"),
        ("-dur", "INTERVAL_ARITHMETIC_OVERFLOW"),
        ("abs(dur)", "ARITHMETIC_OVERFLOW"),
        ("round(l, -19)", "ARITHMETIC_OVERFLOW"),
        ("ceil(d * 1e300D)", "ARITHMETIC_OVERFLOW"),
        ("getbit(i, 32)", "INVALID_PARAMETER_VALUE"),
        ("conv(concat('FFFFFFFFFFFFFFFFF', b), 16, 10)", "ARITHMETIC_OVERFLOW"),
        ("-p", "NUMERIC_VALUE_OUT_OF_RANGE"),
    ],
)
def test_arithmetic_fails_where_spark_fails(spark: Any, expression: str, condition: str) -> None:
    assert_fails(spark, expression, _EDGES, condition)
