"""An argument that would fail is not evaluated for rows where Spark does not look at it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import assert_expressions, assert_fails

from penstock.ops import functions
from penstock.ops.functions.registry import FUNCTIONS

TABLE = pa.table(
    {
        "i": pa.array([None, 1, 2], pa.int32()),
        "n": pa.array([[], [3], [4]], pa.list_(pa.int32())),
        "z": pa.array([0, 1, 2], pa.int32()),
        "t": pa.array([False, True, None]),
    }
)


def test_arguments_after_a_null_are_not_evaluated(spark: Any) -> None:
    assert_expressions(
        spark,
        [
            "i + n[0]",
            "i = n[0]",
            "i < n[0]",
            "substring('abc', i, n[0])",
            "n[0] / i",
            "n[0] % i",
            "i * (10 / z)",
            "date_add(date'2024-01-01', i + n[0])",
        ],
        TABLE,
    )


#: In the first row every argument but z is null, and what is computed from z fails.
NULLS = pa.table(
    {
        "z": pa.array([0, 1], pa.int32()),
        "n": pa.array([None, 2], pa.int32()),
        "l": pa.array([None, 3.5]),
        "s": pa.array([None, "ab"]),
        "a": pa.array([None, [1, 2]], pa.list_(pa.int32())),
        "words": pa.array([None, ["x"]], pa.list_(pa.string())),
        "m": pa.array([None, [("1", 1)]], pa.map_(pa.string(), pa.int32())),
        "raw": pa.array([None, b"ab"]),
        "d": pa.array([None, 3], pa.date32()),
        "t": pa.array([None, 5], pa.timestamp("us", "UTC")),
        "v": pa.array([None, 7], pa.duration("us")),
    }
)
NUMBER, TEXT, LIST = "cast(1 div z as int)", "string(1 div z)", "array(cast(1 div z as int))"
DAY, TIME = f"date_add(date'2020-01-01', {NUMBER})", f"timestamp_seconds({NUMBER})"
AFTER_A_NULL = [
    *[f"n {op} {NUMBER}" for op in ("+", "-", "*", "=", "<", ">=", "<>", "&", "|", "^")],
    *[f"{NUMBER} {op} n" for op in ("/", "div", "%")],
    *[f"pmod({NUMBER}, n)", f"try_add(n, {NUMBER})", f"getbit(n, {NUMBER})"],
    *[f"pow(l, {NUMBER})", f"log(l, {NUMBER})", f"hypot(l, {NUMBER})", f"atan2(l, {NUMBER})"],
    *[f"shiftleft(n, {NUMBER})", f"width_bucket(l, 0D, double({NUMBER}), 4)"],
    *[f"conv(s, {NUMBER} + 9, 16)", f"format_number(l, {NUMBER})", f"sha2(raw, {NUMBER})"],
    *[f"{name}(s, {TEXT})" for name in ("startswith", "contains", "instr", "find_in_set")],
    *[f"s like {TEXT}", f"levenshtein(s, {TEXT})", f"trim({TEXT} from s)", f"ltrim({TEXT}, s)"],
    *[f"rtrim({TEXT}, s)", f"repeat(s, {NUMBER})", f"lpad(s, {NUMBER}, 'x')", f"locate(s, {TEXT})"],
    *[f"substring(s, {NUMBER}, 1)", f"replace(s, {TEXT}, 'x')", f"translate(s, {TEXT}, 'x')"],
    *[f"substring_index(s, {TEXT}, 1)", f"split_part(s, {TEXT}, 1)", f"rpad(s, {NUMBER}, 'x')"],
    *[f"overlay(s placing {TEXT} from 1)", f"regexp_replace(s, 'a', {TEXT})"],
    *[f"{name}(a, {NUMBER})" for name in ("array_contains", "array_position", "array_remove")],
    *[f"{name}(a, {LIST})" for name in ("array_union", "array_intersect", "array_except")],
    *[f"arrays_overlap(a, {LIST})", f"slice(a, {NUMBER}, 1)", f"array_join(words, {TEXT})"],
    *[f"array_append(a, {NUMBER})", f"array_insert(a, {NUMBER}, 1)", f"sequence(n, {NUMBER})"],
    *[f"a[{NUMBER}]", f"try_element_at(a, {NUMBER})", f"m[{TEXT}]", f"element_at(m, {TEXT})"],
    *[f"map_from_arrays(slice(a, 1, 1), {LIST})", f"sequence(1, n, {NUMBER})"],
    *[f"make_date(n, {NUMBER}, 1)", f"make_timestamp(n, {NUMBER}, 1, 1, 1, 1)"],
    *[f"make_dt_interval(n, {NUMBER})", f"extract(month from make_interval(n, {NUMBER}))"],
    *[f"date_add(d, {NUMBER})", f"add_months(d, {NUMBER})", f"datediff(d, {DAY})", f"d - {DAY}"],
    *[f"t - {TIME}", f"t + make_dt_interval({NUMBER})", f"d + make_interval({NUMBER})"],
    *[f"months_between(t, {TIME})", f"timestampdiff(hour, t, {TIME})", f"v * {NUMBER}"],
    *[f"timestampadd(hour, n, {TIME})", f"trunc({DAY}, s)", f"date_trunc(s, {TIME})"],
    f"unix_date(next_day(d, if({NUMBER} = 1, 'mon', 'tue')))",
    f"from_utc_timestamp(t, if({NUMBER} = 1, 'UTC', 'Europe/Berlin'))",
]


def test_no_function_evaluates_what_follows_a_null(spark: Any) -> None:
    assert_expressions(spark, AFTER_A_NULL, NULLS)


#: Bases of Catalyst's expressions whose eval() stops at the first null.
STOPPING = frozenset(
    {
        *("BinaryArithmetic", "BinaryExpression", "TernaryExpression"),
        *("QuaternaryExpression", "SeptenaryExpression"),
    }
)
#: Expressions that stop at a null in an eval() of their own; for Java methods, generated code does.
STOPPING_OF_THEIR_OWN = frozenset(
    {
        *("ArrayInsert", "ArrayJoin", "Divide", "IntegralDivide", "Levenshtein", "Pmod"),
        *(
            "Remainder",
            "Sequence",
            "StringLocate",
            "StringTrim",
            "StringTrimLeft",
            "StringTrimRight",
        ),
        *("TruncDate", "TruncTimestamp", "make_timestamp", "ByteArray.lpad", "ByteArray.rpad"),
        *("ByteArrayMethods.contains", "ByteArrayMethods.endsWith", "ByteArrayMethods.startsWith"),
    }
)


def test_the_registry_says_of_every_function_whether_it_stops_at_a_null(spark: Any) -> None:
    functions.load()
    find, row = spark._jvm.java.lang.Class.forName, "org.apache.spark.sql.catalyst.InternalRow"
    parameters = spark.sparkContext._gateway.new_array(spark._jvm.java.lang.Class, 1)
    parameters[0] = find(row)

    def stops(kind: str) -> bool:
        if kind in STOPPING_OF_THEIR_OWN:
            return True
        try:
            expression = find(f"org.apache.spark.sql.catalyst.expressions.{kind}")
        except Exception:
            return False  # a name of another kind: none that stops is left
        return (
            expression.getMethod("eval", parameters).getDeclaringClass().getSimpleName() in STOPPING
        )

    plain = {kind: function for kind, function in FUNCTIONS.items() if function.form is None}
    wrong = [kind for kind, function in plain.items() if function.strict != stops(kind)]

    assert not wrong


def test_branches_that_are_not_taken_are_not_evaluated(spark: Any) -> None:
    assert_expressions(
        spark,
        [
            "if(z = 0, 0, 10 / z)",
            "CASE WHEN z = 0 THEN 0 WHEN 10 / z > 5 THEN 1 ELSE 10 / z END",
            "z > 0 AND 10 / z > 1",
            "t AND 10 / z > 1",
            "z = 0 OR 10 / z > 1",
            "coalesce(z, 10 / 0)",
            "if(t, n[0], 7)",
            "z <> 0 AND (t OR n[0] > 3)",
            "nullif(z, if(z = 0, 0, 10 / z))",
        ],
        TABLE,
    )


@pytest.mark.parametrize(
    ("expression", "condition"),
    [
        ("z + n[0]", "INVALID_ARRAY_INDEX"),
        ("if(z = 1, 0, 10 / z)", "DIVIDE_BY_ZERO"),
        ("z >= 0 AND 10 / z > 1", "DIVIDE_BY_ZERO"),
        ("coalesce(i, 10 / z)", "DIVIDE_BY_ZERO"),
    ],
)
def test_those_that_are_taken_fail(spark: Any, expression: str, condition: str) -> None:
    assert_fails(spark, expression, TABLE, condition)


def test_what_fails_in_every_mode_is_not_evaluated_in_branches_that_are_not_taken(
    spark: Any,
) -> None:
    table = pa.table({"i": pa.array([1, 2**31 - 1, 2 * 10**6, None], pa.int32())})
    far, day = "i > 1000000", "date_from_unix_date(i)"
    casts = [f"cast({day} as timestamp)", f"cast({day} as timestamp_ntz)"]
    expressions = [f"if({far}, 0, unix_micros({cast}))" for cast in casts]
    expressions += [f"if({far}, null, cast(array({day}) as array<timestamp>))"]
    expressions += [f"if({far}, null, try_cast(struct({day} as d) as struct<d: timestamp>))"]
    hours = "make_interval(0, 0, 0, 0, i)"
    expressions += [f"if({far}, 0, extract(hour from {hours} {op} {hours}))" for op in "+-"]
    assert_expressions(spark, expressions, table, ansi=False)
    assert_expressions(spark, expressions[3:4], table)
