"""Every aggregate function against batch Spark: keyed and not, over growing and changing rows."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from penstock.testing.oracle import (
    Build,
    Frames,
    assert_equal,
    plan_streaming,
    run_ours,
    run_spark,
)

_NAN, _INF = float("nan"), float("inf")
_START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
_TEXTS = ["", "a", "b", "ä", "Zebra", "z", "𝄞", "\uffff", "aa", "日本"]
_SCHEMA = pa.schema(
    [
        ("row", pa.int32()),
        ("k", pa.string()),
        ("b", pa.int8()),
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("e", pa.float64()),
        ("s", pa.string()),
        ("x", pa.binary()),
        ("t", pa.timestamp("us", tz="UTC")),
        ("y", pa.date32()),
        ("m", pa.decimal128(10, 2)),
        ("v", pa.duration("us")),
        ("c", pa.bool_()),
        ("n", pa.int32()),
        ("a", pa.list_(pa.int32())),
    ]
)


def _table(rows: int, seed: int) -> pa.Table:
    """Random rows; every column but row and n has nulls, numbers have their extremes."""
    rng = random.Random(seed)

    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.2 else value

    listed = []
    for row in range(rows):
        listed.append(
            {
                "row": row,
                "k": maybe(rng.choice("abcdef")),
                "b": maybe(rng.choice([-128, 127, 0, 1, 5])),
                "i": maybe(rng.choice([-(2**31), 2**31 - 1, *range(-5, 9)])),
                "l": maybe(rng.randint(-(10**12), 10**12)),
                "f": maybe(rng.choice([_NAN, -0.0, 0.0, 1.5, rng.random()])),
                "d": maybe(rng.choice([_NAN, _INF, -_INF, -0.0, 0.0, rng.gauss(0, 9)])),
                "e": maybe(rng.gauss(1e6, 3)),
                "s": maybe(rng.choice(_TEXTS)),
                "x": maybe(rng.choice([b"", b"\x00", b"\xff", b"ab"])),
                "t": maybe(_START + dt.timedelta(seconds=rng.randint(-99, 99))),
                "y": maybe(dt.date(1582, 10, 15) + dt.timedelta(days=rng.randint(0, 300000))),
                "m": maybe(Decimal(rng.randint(-(10**10) + 1, 10**10 - 1)).scaleb(-2)),
                "v": maybe(dt.timedelta(microseconds=rng.randint(-(10**9), 10**9))),
                "c": maybe(rng.random() < 0.5),
                "n": rng.randint(0, 3),
                "a": maybe([maybe(rng.randint(0, 2)) for _ in range(rng.randint(0, 3))]),
            }
        )
    return pa.Table.from_pylist(listed, schema=_SCHEMA)


SUMS = [
    *("count(*)", "count(i)", "count(i, s)", "count_if(i > 2)", "sum(1)"),
    *(f"{name}({column})" for name in ("sum", "avg", "try_sum", "mean") for column in "bilfdemv"),
    *("try_avg(i)", "try_avg(m)", "try_avg(v)", "sum(i + 1L)", "avg(e - l)"),
    *(f"{name}({column})" for name in ("bit_and", "bit_or", "bit_xor") for column in "bil"),
    *("bool_and(c)", "bool_or(c)", "every(c)", "some(c)", "any(c)"),
]
EXTREMES = [
    *(f"{name}({column})" for name in ("min", "max") for column in "bilfdesxtymvca"),
    *("max(struct(i, s))", "min(struct(d, a, t))", "max(named_struct('p', y, 'q', x))"),
    *("max(array(d, e))", "min(struct(struct(c, m), row))"),
]
PICKS = [
    *(f"{name}({column})" for name in ("first", "last", "any_value") for column in "ildsxtymvca"),
    *("first(i, true)", "last(s, true)", "first_value(d) IGNORE NULLS", "last_value(t)"),
    *("max_by(s, row)", "min_by(i, row)", "max_by(a, struct(d, row))", "max_by(t, l)"),
    *("max_by(struct(i, s, t), struct(i, -row))", "min_by(struct(k, y), struct(s, row))"),
    *("min_by(m, l)", "max_by(v, array(n, row))", "min_by(x, array(i, row))", "max_by(c, x)"),
    *("max_by(s, row, 3)", "min_by(struct(i, t), row, 2)", "max_by(row, struct(d, row), 100)"),
    *("collect_list(i)", "array_agg(s)", "collect_list(struct(t, a))", "collect_list(d)"),
    *("listagg(s)", "listagg(s, ', ')", "string_agg(x)", "listagg(s, '-')"),
    "listagg(s, ',') WITHIN GROUP (ORDER BY s DESC NULLS LAST, row)",
    "string_agg(s) WITHIN GROUP (ORDER BY i NULLS LAST, row DESC)",
]
COUNTS = [
    *("mode(n)", "mode(s, true)", "mode(d, true)", "mode() WITHIN GROUP (ORDER BY i)"),
    *("mode() WITHIN GROUP (ORDER BY t DESC)", "mode(m, true)", "mode(c, true)", "mode(x, true)"),
    *(f"median({column})" for column in "bilfdemv"),
    *("percentile(l, 0.3)", "percentile(d, array(0.1, 0.5, 1.0))", "percentile(e, 0.99, n)"),
    *("percentile(v, array(0.0, 0.37))", "percentile_cont(0.25) WITHIN GROUP (ORDER BY l DESC)"),
    "percentile_disc(0.4) WITHIN GROUP (ORDER BY l)",
    "percentile_disc(0.25) WITHIN GROUP (ORDER BY e DESC)",
    *("percentile_disc(0.0) WITHIN GROUP (ORDER BY m)", "approx_count_distinct(s)"),
    *("approx_count_distinct(n, 0.01)", "approx_count_distinct(d)"),
]
MOMENTS = [
    *(
        f"{name}({column})"
        for name in ("variance", "var_samp", "var_pop", "stddev", "std", "stddev_samp")
        for column in "bflm"
    ),
    *(f"{name}({column})" for name in ("stddev_pop", "skewness", "kurtosis") for column in "fden"),
    *(
        f"{name}({pair})"
        for name in ("covar_pop", "covar_samp", "corr", "regr_r2", "regr_sxy", "regr_slope")
        for pair in ("e, l", "n, f", "d, e", "1, e", "e, 1")
    ),
    *("regr_intercept(e, n)", "regr_intercept(l, e)", "regr_sxx(e, f)", "regr_syy(l, n)"),
    *("regr_count(d, f)", "regr_avgx(e, n)", "regr_avgy(e, f)"),
]
DISTINCT = [
    *("count(DISTINCT s)", "sum(DISTINCT i)", "avg(DISTINCT d)", "max(DISTINCT l)"),
    *("count(DISTINCT n, c)", "count(DISTINCT d) FILTER (WHERE n > 1)", "sum(l)", "count(a)"),
]
DISTINCT_TEXTS = [
    "listagg(DISTINCT s, ',') WITHIN GROUP (ORDER BY s)",
]
FILTERED = [
    *("sum(i) FILTER (WHERE c)", "count(*) FILTER (WHERE s > 'a')", "max(s) FILTER (WHERE n = 9)"),
    *("avg(100 / n) FILTER (WHERE n > 0)", "first(t, true) FILTER (WHERE d > 0)"),
    *("collect_list(s) FILTER (WHERE n = 1)", "mode(s, true) FILTER (WHERE c)"),
]
GROUPS = {
    "sums": SUMS,
    "extremes": EXTREMES,
    "picks": PICKS,
    "counts": COUNTS,
    "moments": MOMENTS,
    "distinct": DISTINCT,
    "distinct texts": DISTINCT_TEXTS,
    "filtered": FILTERED,
}


@contextmanager
def _ansi(spark: Any, enabled: bool) -> Iterator[None]:
    spark.conf.set("spark.sql.ansi.enabled", str(enabled).lower())
    try:
        yield
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


def _named(expressions: list[str]) -> list[Any]:
    return [F.expr(text).alias(f"c{place}") for place, text in enumerate(expressions)]


def _over(expressions: list[str], *keys: str) -> Build:
    """One partition, so that Spark meets the rows in their order."""

    def build(frames: Frames) -> Any:
        return frames["t"].coalesce(1).groupBy(*keys).agg(*_named(expressions))

    return build


def _assert_columns(
    spark: Any, expressions: list[str], build: Build, table: pa.Table, seed: int
) -> None:
    """assert_same that names the expressions which differ."""
    tables = {"t": table}
    expected = run_spark(spark, build, tables)
    assert isinstance(expected, pa.Table), expected
    actual = run_ours(plan_streaming(spark, build, tables), tables, random.Random(seed))
    assert isinstance(actual, pa.Table), actual
    keys = [name for name in expected.column_names if not name.startswith("c")]
    wrong = []
    for place, text in enumerate(expressions):
        chosen = [*keys, f"c{place}"]
        try:
            assert_equal(actual.select(chosen), expected.select(chosen), text)
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", GROUPS)
def test_every_function_matches_by_key_and_without(spark: Any, name: str) -> None:
    table = _table(150, seed=len(name))
    for seed, keys in enumerate([("k",), ()]):
        _assert_columns(spark, GROUPS[name], _over(GROUPS[name], *keys), table, seed)
