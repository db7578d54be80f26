"""Every aggregate function against batch Spark: keyed and not, over growing and changing rows."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import ask_spark, assert_refused, assert_same, session_setting, sql
from pyspark.sql import functions as F

from penstock.ops.driver import Driver
from penstock.testing.oracle import (
    Build,
    Failed,
    Frames,
    assert_equal,
    plan_streaming,
    run_ours,
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
                "e": maybe(rng.gauss(1e3, 3)),
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
DISTINCT_TEXTS = ["listagg(DISTINCT s, ',') WITHIN GROUP (ORDER BY s)"]
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
    expected = ask_spark(spark, build, tables)
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
def test_every_function_matches_by_key(spark: Any, name: str) -> None:
    table = _table(150, seed=len(name))
    _assert_columns(spark, GROUPS[name], _over(GROUPS[name], "k"), table, seed=len(name))


#: One of each kind, for what does not depend on the function.
MIXED = [
    *("count(*)", "count(i)", "sum(i)", "sum(d)", "avg(m)", "avg(v)", "max(s)", "min(t)", "max(d)"),
    *("first(i)", "last(s, true)", "max_by(a, row)", "min_by(struct(i, t), struct(s, row))"),
    *("max_by(row, l, 2)", "collect_list(i)", "listagg(s, ',')", "mode(n, true)", "median(l)"),
    *("percentile(d, array(0.5))", "stddev(e)", "kurtosis(e)", "corr(e, f)", "bit_xor(l)"),
    *("approx_count_distinct(s)", "size(collect_set(s))", "max(struct(c, y))", "bool_or(c)"),
]


def test_without_keys_there_is_one_row_whatever_comes_in(spark: Any) -> None:
    for seed, rows in enumerate([150, 0]):
        _assert_columns(spark, MIXED, _over(MIXED), _table(rows, seed=9), seed)


def test_with_keys_and_no_rows_there_is_no_row(spark: Any) -> None:
    assert_same(spark, _over(MIXED, "k"), {"t": _table(0, seed=1)})


def test_several_keys_of_every_type(spark: Any) -> None:
    table = _table(150, seed=21)
    keys = ["b", "f", "d", "s", "x", "t", "y", "m", "v", "c", "a"]

    def build(frames: Frames) -> Any:
        picked = [F.when(F.col("n") == 1, F.col(key)).alias(key) for key in keys]
        return frames["t"].select("i", *picked).groupBy(*keys).agg(F.sum("i"), F.count("*"))

    assert_same(spark, build, {"t": table}, seed=21)


def test_struct_keys_and_expressions_over_aggregates(spark: Any) -> None:
    def build(frames: Frames) -> Any:
        grouped = frames["t"].groupBy(F.expr("struct(n, c) AS g"), F.expr("n % 2 AS p"))
        return grouped.agg(F.expr("sum(i) + count(*) * 2"), F.expr("max(l) - min(l) AS w"))

    assert_same(spark, build, {"t": _table(100, seed=22)}, seed=22)


#: What does not depend on the order of rows, for inputs that change.
UNORDERED = [
    *(f"{name}({column})" for name in ("sum", "avg", "min", "max", "count") for column in "ilmvd"),
    *("max(s)", "min(x)", "max(t)", "min(y)", "max(struct(s, i))", "bit_and(l)", "bit_xor(i)"),
    *(
        "max_by(s, struct(g, k))",
        "min_by(struct(i, t), struct(d, g, k))",
        "max_by(g, g, 3)",
        "mode(i, true)",
    ),
    *("median(l)", "percentile(d, 0.3)", "percentile_disc(0.6) WITHIN GROUP (ORDER BY l)"),
    *("stddev(m)", "var_pop(l)", "skewness(m)", "corr(l, i)", "regr_slope(i, l)"),
    *("approx_count_distinct(s)", "size(collect_set(i))", "size(collect_list(s))"),
    *("listagg(s, ',') WITHIN GROUP (ORDER BY s)", "sum(i) FILTER (WHERE s > 'a')"),
    "bool_and(i > 0)",
]


def _changing(frames: Frames) -> Any:
    """Rows that are replaced as more come in."""
    grouped = frames["t"].groupBy("k", (F.col("row") % 40).alias("g"))
    latest = [F.max_by(column, "row").alias(column) for column in "sxty"]
    sums = [F.sum(column).alias(column) for column in "ilmv"]
    return grouped.agg(*latest, *sums, F.max("d").alias("d"))


@pytest.mark.parametrize("keys", [("k",), ()], ids=["keyed", "global"])
def test_every_function_follows_rows_that_change(spark: Any, keys: tuple[str, ...]) -> None:
    def build(frames: Frames) -> Any:
        return _changing(frames).groupBy(*keys).agg(*_named(UNORDERED))

    _assert_columns(spark, UNORDERED, build, _table(150, seed=31), seed=len(keys))


def test_distinct_aggregates_follow_rows_that_change(spark: Any) -> None:
    calls = ["count(DISTINCT s)", "sum(DISTINCT i)", "count(DISTINCT i, s)", "count(*)", "max(d)"]
    for seed, chosen in enumerate([calls[:1], calls]):

        def build(frames: Frames, chosen: list[str] = chosen) -> Any:
            return _changing(frames).groupBy("k").agg(*_named(chosen))

        _assert_columns(spark, chosen, build, _table(120, seed=32), seed)


def test_groups_that_lose_all_their_rows_vanish(spark: Any) -> None:
    def build(frames: Frames) -> Any:
        latest = (
            frames["t"].groupBy("n").agg(F.max_by("s", "row").alias("s"), F.max("l").alias("l"))
        )
        kept = F.sort_array(F.collect_set("n"))
        return latest.groupBy("s").agg(F.count("*"), F.min("l"), kept, F.sum("l"))

    assert_same(spark, build, {"t": _table(90, seed=33)}, runs=4)


@pytest.mark.parametrize("kind", ["rollup", "cube"])
def test_rollup_and_cube_match(spark: Any, kind: str) -> None:
    def build(frames: Frames) -> Any:
        grouped = getattr(frames["t"], kind)("k", "n", "c")
        return grouped.agg(F.sum("i"), F.max("s"), F.grouping_id(), F.grouping("n"), F.count("*"))

    assert_same(spark, build, {"t": _table(120, seed=41)}, seed=41)


def test_grouping_sets_with_distinct_aggregates_match(spark: Any) -> None:
    query = sql(
        "SELECT k, n, count(DISTINCT s) AS x, sum(DISTINCT i) AS y, count(1) AS z"
        " FROM t GROUP BY GROUPING SETS ((k, n), (k), ()) HAVING count(1) > 2"
    )
    assert_same(spark, query, {"t": _table(120, seed=42)}, seed=42)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("n", [1, 2, 7]),
        ("k", ["a", "zz", "b"]),
        ("c", [True, False]),
        ("f", [1.5, 0.0]),
        ("y", [dt.date(1999, 9, 9)]),
        ("t", [_START]),
    ],
)
def test_pivots_match(spark: Any, column: str, values: list[Any]) -> None:
    def build(frames: Frames) -> Any:
        return frames["t"].groupBy("b").pivot(column, values).agg(F.sum("i"), F.avg("e"))

    assert_same(spark, build, {"t": _table(100, seed=51)}, seed=51)


def test_a_pivot_of_texts_matches(spark: Any) -> None:
    def build(frames: Frames) -> Any:
        return frames["t"].groupBy("b").pivot("n", [0, 1]).agg(F.max("s"), F.first("m"))

    assert_same(spark, build, {"t": _table(60, seed=52).slice(0, 30)}, seed=52)


def test_having_and_aggregates_of_aggregates_match(spark: Any) -> None:
    def build(frames: Frames) -> Any:
        counts = frames["t"].groupBy("k", "n").agg(F.count("*").alias("z"), F.max("l").alias("w"))
        kept = counts.where("z > 4")
        twice = kept.groupBy("k").agg(F.max("z").alias("z"), F.min("w").alias("w"))
        return twice.groupBy("z").agg(F.count("*"), F.avg("w"), F.min("k"))

    assert_same(spark, build, {"t": _table(200, seed=61)}, runs=2)


@pytest.mark.parametrize(("mode", "slide"), [("append", "10 seconds"), ("update", "20 seconds")])
def test_windows_match_in_both_modes(spark: Any, mode: Any, slide: str) -> None:
    table = _table(150, seed=71).sort_by([("t", "ascending")])
    calls = ["count(*)", "sum(d)", "max_by(s, row)", "median(l)", "count(DISTINCT n)", "stddev(e)"]

    def build(frames: Frames) -> Any:
        rows = frames["t"].where("t IS NOT NULL").withWatermark("t", "5 seconds")
        return rows.groupBy(F.window("t", "20 seconds", slide), "n").agg(*_named(calls))

    assert_same(spark, build, {"t": table}, seed=71, mode=mode)


# -- errors


_LONGS = pa.table({"l": pa.array([2**63 - 1, 2**63 - 1, -5, None], pa.int64())})
_DECIMALS = pa.table(
    {"w": pa.array([Decimal(10**37 * 9), Decimal(10**37 * 9)], pa.decimal128(38, 0))}
)
_INTERVALS = pa.table({"v": pa.array([2**63 - 1, 2**63 - 1], pa.int64()).cast(pa.duration("us"))})
OVERFLOWS = [
    ("sum(l)", _LONGS, "ARITHMETIC_OVERFLOW"),
    ("sum(w)", _DECIMALS, "NUMERIC_VALUE_OUT_OF_RANGE"),
    ("sum(v)", _INTERVALS, "INTERVAL_ARITHMETIC_OVERFLOW"),
    ("avg(v)", _INTERVALS, "INTERVAL_ARITHMETIC_OVERFLOW"),
    ("percentile(l, 0.5, l)", _LONGS, "NEGATIVE_VALUES_IN_FREQUENCY_EXPRESSION"),
]


@pytest.mark.parametrize("ansi", [True, False], ids=["ansi", "legacy"])
@pytest.mark.parametrize(("call", "table", "condition"), OVERFLOWS, ids=[o[0] for o in OVERFLOWS])
def test_sums_that_overflow_do_what_spark_does(
    spark: Any, call: str, table: pa.Table, condition: str, ansi: bool
) -> None:
    with session_setting(spark, "spark.sql.ansi.enabled", str(ansi).lower()):
        build = _over([call])
        expected = ask_spark(spark, build, {"t": table})
        actual = run_ours(
            plan_streaming(spark, build, {"t": table}), {"t": table}, random.Random(1)
        )
    assert_equal(actual, expected, call)
    if ansi:
        assert expected == Failed(condition)


def test_overflow_is_null_for_try_functions_and_in_legacy_mode(spark: Any) -> None:
    calls = ["try_sum(l)", "avg(l)", "try_avg(l)"]
    _assert_columns(spark, calls, _over(calls), _LONGS, 0)
    assert_same(spark, _over(["try_sum(w)", "try_avg(w)"]), {"t": _DECIMALS})
    assert_same(spark, _over(["try_sum(v)"]), {"t": _INTERVALS})


def test_a_sum_may_pass_the_largest_long_within_a_batch(spark: Any) -> None:
    """Spark fails or not by the order in which it meets the rows; here only the total counts."""
    table = pa.table({"l": pa.array([2**63 - 1, 5, -5, -(2**63)], pa.int64())})
    planned = plan_streaming(spark, _over(["sum(l)"]), {"t": table})
    driver = Driver(planned.query, {})
    driver.feed(planned.query.streams[0], table.to_batches()[0])
    assert driver.result().column(0).to_pylist() == [-1]


def test_legacy_mode_matches(spark: Any) -> None:
    chosen = ["sum(i)", "sum(l)", "avg(m)", "sum(m)", "avg(d)", "corr(1, e)", "stddev(e)"]
    with session_setting(spark, "spark.sql.ansi.enabled", "false"):
        _assert_columns(spark, chosen, _over(chosen, "k"), _table(80, seed=81), 81)


# -- promises


def test_approx_count_distinct_keeps_its_promise(spark: Any) -> None:
    rng = random.Random(91)
    table = pa.table({"l": pa.array([rng.randint(0, 3000) for _ in range(6000)], pa.int64())})
    calls = ["approx_count_distinct(l, 0.02)", "count(DISTINCT l)"]
    planned = plan_streaming(spark, _over(calls), {"t": table})
    actual = run_ours(planned, {"t": table}, rng)
    assert isinstance(actual, pa.Table)
    ours, exact = (actual.column(place)[0].as_py() for place in range(2))
    assert ours == exact
    theirs = ask_spark(spark, _over(calls), {"t": table})
    assert isinstance(theirs, pa.Table)
    assert abs(theirs.column(0)[0].as_py() - exact) <= 3 * 0.02 * exact


def test_sets_hold_each_value_once(spark: Any) -> None:
    calls = ["collect_set(i)", "collect_set(d)", "collect_set(s)", "collect_set(struct(n, c))"]
    table = _table(120, seed=92)
    expected = ask_spark(spark, _over(calls, "k"), {"t": table})
    planned = plan_streaming(spark, _over(calls, "k"), {"t": table})
    actual = run_ours(planned, {"t": table}, random.Random(92))
    assert isinstance(actual, pa.Table) and isinstance(expected, pa.Table)
    assert_equal(_sorted_lists(actual), _sorted_lists(expected), "sets")


def _sorted_lists(table: pa.Table) -> pa.Table:
    """Lists in the order of their elements' texts: sets have none of their own."""
    columns = []
    for column in table.columns:
        if pa.types.is_list(column.type):
            listed = [sorted(map(str, values)) for values in column.to_pylist()]
            column = pa.chunked_array([listed], pa.list_(pa.string()))
        columns.append(column)
    return pa.table(columns, table.column_names)


def test_extreme_times_survive_in_buffers(spark: Any) -> None:
    """Years beyond 9999 have no Python value, so results are compared as numbers."""
    micros = pa.array([2**62, -(2**60), 0, None], pa.int64())
    table = pa.table({"t": micros.cast(pa.timestamp("us", tz="UTC")), "n": pa.array([1, 2, 3, 4])})
    calls = ["max(t)", "min(t)", "first(t)", "max_by(t, n)", "max_by(struct(t, n), t)"]
    shown = [F.expr(f"unix_micros({call})").alias(f"c{i}") for i, call in enumerate(calls[:4])]
    shown.append(F.expr(f"unix_micros({calls[4]}.t)").alias("c4"))

    def build(frames: Frames) -> Any:
        return frames["t"].coalesce(1).groupBy().agg(*shown)

    actual = run_ours(plan_streaming(spark, build, {"t": table}), {"t": table}, random.Random(1))
    assert isinstance(actual, pa.Table)
    assert actual.to_pylist()[0] == {
        "c0": 2**62,
        "c1": -(2**60),
        "c2": 2**62,
        "c3": None,
        "c4": 2**62,
    }


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("hll_sketch_agg(i)", "HllSketchAgg"),
        ("approx_top_k(i, 3)", "ApproxTopK"),
        ("mode(a)", "mode of list"),
    ],
)
def test_what_cannot_equal_spark_is_refused(spark: Any, call: str, reason: str) -> None:
    assert_refused(spark, _over([call], "k"), {"t": _table(1, seed=0)}, reason)
