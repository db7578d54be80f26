"""to_number, to_char of numbers, array_sort by a comparator and raise_error against batch Spark."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import assert_expressions, assert_fails, assert_same, sql

from penstock.testing.oracle import Failed, plan_streaming, run_ours

pytestmark = pytest.mark.usefixtures("interpreted")

FORMATS = [
    *(
        "9",
        "999",
        "000",
        "99,999",
        "0,000",
        "9,9,9",
        "99.9",
        "00.00",
        ".99",
        "9.",
        "9D99",
        "99G999",
    ),
    *("$99.99", "S999", "999S", "MI999", "999MI", "999PR", "$99,999.99PR", "S$999.9", "$999.9MI"),
    *("009", "990", "S0,000.00", "999.00", "s99d9", "99,999,999,999,999,999,999.99", "$9S", ".9MI"),
    *("S9", "09,999MI", "9,990PR", "0", ".0", "S.9", "$.99PR"),
]
_NUMBERS = [
    *(
        "",
        " ",
        "1",
        "12",
        "123",
        "1234",
        "0",
        "00",
        "-1",
        "+1",
        "1-",
        "1+",
        "<1>",
        "<1",
        "1>",
        "<-1>",
    ),
    *("1.5", ".5", "5.", "-.5", "1,234", "12,34", ",1", "1,", "1,,2", "12,345.67", "$1", "$12.50"),
    *(
        "-$12.5",
        "$-12.5",
        "<$12.5>",
        "1 2",
        " 12 ",
        "1\t2",
        "-  3",
        "1\u00a02",
        "\u0661\u0662",
        "𝟏",
    ),
    *(
        "abc",
        "1a",
        "--1",
        "+-1",
        "1.2.3",
        "99999999999999999999",
        "\u20032",
        "-",
        "$",
        ".",
        ",",
        "<>",
    ),
    *("000", "001", "0,001", "$78.12", "12,454.8-", "12,454", "1,2,3", "9,9,9.9"),
]
TEXTS = pa.table({"s": pa.array([*_NUMBERS, None], pa.string())})

POINTED = pa.table(
    {"s": [".5", "-.5", "+.5", ".5-", ".55", ".555", "$.5", "<$.5>", "", ".", "x.5"]}
)


def _decimals() -> pa.Table:
    rng = random.Random(5)
    numbers = ["0", "0.1", "-0.1", "0.05", "1", "-1", "12", "-12.5", "123", "1234", "-1234.5"]
    numbers += ["99.99", "999.9", "-999", "12454.8", "0.01", "100", "-100", "10.10", "1000000"]
    numbers += [str(Decimal(rng.randint(-(10**9), 10**9)).scaleb(-2)) for _ in range(20)]
    return pa.table(
        {
            "m": pa.array([*map(Decimal, numbers), None], pa.decimal128(20, 2)),
            "i": pa.array([*(int(Decimal(n)) for n in numbers), None], pa.int64()),
            "d": pa.array([*map(float, numbers), None], pa.float64()),
        }
    )


@pytest.mark.parametrize("ansi", [True, False])
def test_numbers_are_read_and_written_by_formats(spark: Any, ansi: bool) -> None:
    read = [f"try_to_number(s, '{form}')" for form in FORMATS]
    has_digits = [form.lstrip("$Ss").startswith(".") for form in FORMATS]
    whole = [text for text, pointed in zip(read, has_digits, strict=True) if not pointed]
    assert_expressions(spark, [*whole, "try_to_number(s, null)"], TEXTS, ansi=ansi)
    parts = [text for text, pointed in zip(read, has_digits, strict=True) if pointed]
    assert_expressions(spark, parts, POINTED, ansi=ansi)
    written = [f"to_char({name}, '{form}')" for form in FORMATS for name in "mi"]
    more = ["to_varchar(d, '999,999.9S')", "to_char(d, '$0,000.00PR')", "to_char(m, null)"]
    assert_expressions(spark, written + more, _decimals(), ansi=ansi)


def test_what_does_not_match_its_format_fails(spark: Any) -> None:
    right = pa.table({"s": pa.array(["$1,234.5-", "12", None], pa.string())})
    assert_expressions(
        spark, ["to_number(s, '9,999.9MI')", "to_number('12', '99')"], right.slice(1)
    )
    assert_fails(spark, "to_number(s, '9,999')", right, "INVALID_FORMAT")
    assert_fails(spark, "try_to_number(s, '.99')", right, "NUMERIC_VALUE_OUT_OF_RANGE")
    assert_fails(spark, "to_number(s, '0000')", right.slice(1), "INVALID_FORMAT", ansi=False)


def _arrays() -> pa.Table:
    rng = random.Random(11)

    def array(longest: int) -> list[Any]:
        count = rng.randint(0, longest)
        return [rng.choice([None, *range(-9, 9)]) for _ in range(count)]

    numbers = [array(40) for _ in range(40)] + [array(6) for _ in range(40)] + [None, []]
    texts = [None if row is None else [f"{'ab' * (n or 0)}{n}" for n in row] for row in numbers]
    places = [None if row is None else list(enumerate(n or 0 for n in row)) for row in numbers]
    pair = pa.struct([("p", pa.int32()), ("v", pa.int32())])
    return pa.table(
        {
            "a": pa.array(numbers, pa.list_(pa.int32())),
            "s": pa.array(texts, pa.list_(pa.string())),
            "o": pa.array(
                [None if row is None else [{"p": p, "v": v} for p, v in row] for row in places],
                pa.list_(pair),
            ),
            "n": pa.array([rng.choice([-1, 1, 2]) for _ in numbers], pa.int32()),
        }
    )


COMPARATORS = [
    "array_sort(a, (x, y) -> coalesce(y, 0) - coalesce(x, 0))",
    "array_sort(a, (x, y) -> n * (coalesce(x, 99) - coalesce(y, 99)))",
    "array_sort(s, (x, y) -> case when length(x) < length(y) then -1"
    " when length(x) > length(y) then 1 else 0 end)",
    "array_sort(o, (x, y) -> sign(x.v - y.v)::int)",
    "array_sort(o, (x, y) -> y.v % 3 - x.v % 3)",
    "array_sort(filter(a, x -> x is not null), (x, y) -> case when x < y then 1 else -1 end)",
    "transform(array_sort(o, (x, y) -> x.v - y.v), z -> z.p)",
    # Not orders: what comes of them depends on what is asked, and in which turn.
    "array_sort(slice(a, 1, 31), (x, y) -> 1)",
    "array_sort(slice(a, 1, 31), (x, y) -> -1)",
    "array_sort(slice(a, 1, 31), (x, y) -> case when x > y then 1 else 0 end)",
    "array_sort(slice(a, 1, 31), (x, y) -> coalesce(x * 7 + y, 1) % 3)",
    "array_sort(array(array(3), array(1, 2)), (x, y) -> size(y) - size(x))",
]


@pytest.mark.parametrize("ansi", [True, False])
def test_arrays_are_sorted_by_comparators(spark: Any, ansi: bool) -> None:
    assert_expressions(spark, COMPARATORS, _arrays(), ansi=ansi)


def test_a_comparator_that_fails_or_knows_nothing_fails(spark: Any) -> None:
    table = pa.table({"a": pa.array([[1, 2], [None, 3, 1]], pa.list_(pa.int32()))})
    # PySpark does not know Spark's error for this one, so it cannot be asked by its name.
    unknown = sql("SELECT array_sort(a, (x, y) -> if(x > y, null, -1)) FROM t")
    planned = plan_streaming(spark, unknown, {"t": table})
    shown = run_ours(planned, {"t": table}, random.Random(0))
    assert shown == Failed("COMPARATOR_RETURNS_NULL")
    assert_fails(spark, "array_sort(a, (x, y) -> int(x / 0))", table, "DIVIDE_BY_ZERO")
    lazy = "if(size(a) = 2, array_sort(a, (x, y) -> x - y), a)"
    assert_expressions(spark, [lazy], table)


ROWS = pa.table(
    {"i": pa.array([1, 2, None], pa.int32()), "s": pa.array(["no", None, "never"], pa.string())}
)


@pytest.mark.parametrize("ansi", [True, False])
def test_errors_are_raised_where_a_row_asks_for_them(spark: Any, ansi: bool) -> None:
    raised = "USER_RAISED_EXCEPTION"
    for failing in (
        "raise_error(s)",
        "if(i = 2, raise_error(s), i)",
        "assert_true(i > 0)",
        "assert_true(i > 1, concat('not ', s))",
        "coalesce(i, raise_error('nothing'))",
    ):
        assert_fails(spark, failing, ROWS, raised, ansi=ansi)
    kept = ["if(i = 9, raise_error(s), i)", "assert_true(coalesce(i, 1) > 0)"]
    kept += [
        "assert_true(coalesce(i, 1) > 0, s) is null",
        "case when i > 5 then raise_error('x') end",
    ]
    assert_expressions(spark, kept, ROWS, ansi=ansi)


def test_errors_are_raised_over_aggregates_too(spark: Any) -> None:
    checked = "if(count(*) > 9, raise_error('too many'), sum(i))"
    query = f"SELECT i % 2 AS k, {checked} AS n FROM t GROUP BY 1"
    assert_same(spark, sql(query), {"t": ROWS})
