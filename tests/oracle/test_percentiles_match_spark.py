"""percentile_approx, product and bitmaps against batch Spark, and what the first promises."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness.oracle import ask_spark, assert_same, sql
from pyspark.sql import functions as F

from penstock.ops.aggregates.summaries import Summary, exact_summaries
from penstock.testing.oracle import Failed, Frames, plan_streaming, run_ours

_NAN = float("nan")


def _table(rows: int, seed: int) -> pa.Table:
    rng = random.Random(seed)

    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.15 else value

    def column(kind: pa.DataType, make: Any) -> pa.Array:
        return pa.array([maybe(make()) for _ in range(rows)], kind)

    start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    return pa.table(
        {
            "row": pa.array(range(rows), pa.int64()),
            "k": column(pa.string(), lambda: rng.choice("abc")),
            "b": column(pa.int8(), lambda: rng.randint(-128, 127)),
            "i": column(pa.int32(), lambda: rng.choice([-(2**31), 2**31 - 1, *range(20)])),
            "l": column(pa.int64(), lambda: rng.choice([2**63 - 1, -(2**63), rng.getrandbits(60)])),
            "f": column(pa.float32(), lambda: rng.choice([0.1, 2.5, float("inf"), rng.random()])),
            "d": column(pa.float64(), lambda: rng.choice([-0.0, 1e300, rng.gauss(0, 3)])),
            "m": column(pa.decimal128(10, 2), lambda: Decimal(rng.randint(-999, 999)).scaleb(-2)),
            "w": column(pa.decimal128(38, 20), lambda: Decimal(rng.getrandbits(100)).scaleb(-20)),
            "t": column(
                pa.timestamp("us", "UTC"), lambda: start + dt.timedelta(seconds=rng.randint(0, 99))
            ),
            "y": column(
                pa.date32(), lambda: dt.date(2020, 1, 1) + dt.timedelta(rng.randint(0, 99))
            ),
            "v": column(pa.duration("us"), lambda: dt.timedelta(microseconds=rng.randint(-9, 9))),
            "x": column(pa.binary(), lambda: rng.choice([b"", b"\x10", b"\xff\x01", b"a" * 5000])),
        }
    )


#: Groups have so few rows that Spark's answer is exact, whatever the accuracy they ask for.
CALLS = [
    *(f"percentile_approx({column}, 0.5)" for column in "bilfdmwtyv"),
    *(f"approx_percentile({column}, array(0.0, 0.25, 0.5, 0.99, 1.0))" for column in "bilfdmwtyv"),
    *("percentile_approx(i, 0.3, 200)", "percentile_approx(d, array(0.01, 0.02, 0.5), 500)"),
    *("percentile_approx(i, 1.0, 1000)", "percentile_approx(null, 0.5)"),
    *("percentile_approx(DISTINCT i, 0.5)", "percentile_approx(DISTINCT m, array(0.5, 0.1))"),
    *("percentile_approx(d, 0.5) FILTER (WHERE i > 3)", "percentile_approx(i, 0.9, 1)"),
    *("bitmap_construct_agg(bitmap_bit_position(i))", "bitmap_or_agg(x)", "bitmap_and_agg(x)"),
    *("bitmap_count(bitmap_construct_agg(abs(b)))", "bitmap_or_agg(x) FILTER (WHERE i > 99)"),
]


def _calls() -> list[Any]:
    columns = [F.product("d"), F.product("i"), F.product("v2"), F.product("b")]
    named = [F.expr(text) for text in CALLS] + columns
    return [column.alias(f"c{place}") for place, column in enumerate(named)]


@pytest.mark.parametrize("keys", [("k",), ()], ids=["keyed", "global"])
def test_aggregates_match(spark: Any, keys: tuple[str, ...]) -> None:
    def build(frames: Frames) -> Any:
        rows = frames["t"].coalesce(1).withColumn("v2", F.expr("if(i > 99, 0, m + 20)"))
        return rows.groupBy(*keys).agg(*_calls())

    assert_same(spark, build, {"t": _table(90, 1)}, {"t": _table(0, 1)}, seed=3, runs=3)


def test_aggregates_follow_rows_that_change(spark: Any) -> None:
    def build(frames: Frames) -> Any:
        latest = frames["t"].groupBy((F.col("row") % 20).alias("g"))
        rows = latest.agg(
            F.max_by("k", "row").alias("k"),
            F.sum("i").alias("i"),
            F.max_by("x", "row").alias("x"),
        )
        calls = [
            "percentile_approx(i, array(0.2, 0.5))",
            "bitmap_or_agg(x)",
            "bitmap_and_agg(x)",
            "bitmap_construct_agg(g)",
        ]
        return rows.groupBy("k").agg(*map(F.expr, calls), F.product(F.col("g") + 1))

    assert_same(spark, build, {"t": _table(80, 2)}, runs=3)


def test_a_position_outside_of_a_bitmap_fails(spark: Any) -> None:
    table = pa.table({"l": pa.array([1, 32768], pa.int64())})
    build = sql("SELECT bitmap_construct_agg(l) FROM t")
    expected = ask_spark(spark, build, {"t": table})
    assert expected == Failed("INVALID_BITMAP_POSITION")
    planned = plan_streaming(spark, build, {"t": table})
    assert run_ours(planned, {"t": table}, random.Random(0)) == expected


def test_percentile_approx_keeps_its_promise_over_many_rows(spark: Any) -> None:
    """Beyond what is exact in Spark both have some value of a rank that is near enough."""
    rng = random.Random(7)
    values = [rng.gauss(0, 1) for _ in range(4000)]
    table = pa.table({"d": pa.array(values), "k": pa.array([n % 2 for n in range(4000)])})
    parts, accuracy = [0.02, 0.1, 0.5, 0.9, 0.999], 50
    query = f"percentile_approx(d, array({', '.join(map(str, parts))}), {accuracy})"
    build = sql(f"SELECT k, {query} AS p FROM t GROUP BY k")
    planned = plan_streaming(spark, build, {"t": table})
    for shown in (
        run_ours(planned, {"t": table}, rng),
        ask_spark(spark, build, {"t": table}),
    ):
        assert isinstance(shown, pa.Table)
        for row in shown.to_pylist():
            own = sorted(values[row["k"] :: 2])
            for part, found in zip(parts, row["p"], strict=True):
                rank = own.index(found) + 1
                assert abs(rank - part * len(own)) <= len(own) / accuracy + 1


@pytest.mark.parametrize("accuracy", [1, 20, 333])
@pytest.mark.parametrize("shape", ["random", "rising", "falling", "few", "NaN"])
def test_summaries_keep_their_law(accuracy: int, shape: str) -> None:
    rng = np.random.default_rng(accuracy)
    count = 20_000
    values = {
        "random": rng.normal(size=count),
        "rising": np.arange(count, dtype=np.float64),
        "falling": -np.arange(count, dtype=np.float64),
        "few": rng.integers(0, 15, count).astype(np.float64),
        "NaN": np.where(rng.random(count) < 0.3, _NAN, rng.normal(size=count)),
    }[shape]
    cuts = [0, *sorted(rng.integers(0, count, 40).tolist()), count]
    total: Summary | None = None
    for begin, end in itertools.pairwise(cuts):
        for _, part in exact_summaries(np.zeros(end - begin, np.int64), values[begin:end]):
            merged = part if total is None else total.merge(part)
            total = merged.compress(accuracy)
            total = Summary.read(total.write(), total.rows)
    assert total is not None
    assert total.rows == count
    assert len(total.values) <= max(2 * accuracy, 15)
    ordered = np.sort(values)
    for rank in range(1, count, 97):
        found = total.at(rank)
        first = int(np.searchsorted(ordered, found, "left")) + 1
        last = int(np.searchsorted(ordered, found, "right"))
        assert max(first - rank, rank - last, 0) <= count / accuracy
    if shape == "few":
        assert [total.at(rank) for rank in (1, 777, count)] == ordered[[0, 776, -1]].tolist()
