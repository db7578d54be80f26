"""The first n rows of each key, by every way of counting; sorted and limited results."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import ask_spark, assert_refused, assert_same, sql

from penstock.ops.driver import Driver
from penstock.plan import nodes as n
from penstock.testing.oracle import chunks, plan_streaming, run_ours

pytestmark = pytest.mark.usefixtures("interpreted")

_FLOATS = [0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf"), None]


def _table(rows: int, seed: int, keys: int = 5) -> pa.Table:
    rng = random.Random(seed)
    ids = list(range(rows))
    rng.shuffle(ids)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "k": pa.array([rng.choice([None, *range(keys)]) for _ in ids], pa.int64()),
            "x": pa.array([rng.choice(_FLOATS) for _ in ids], pa.float64()),
            "s": pa.array([rng.choice(["", "a", "é", "𝄞", None]) for _ in ids], pa.string()),
        }
    )


def _top(ranks: str, condition: str, source: str = "t") -> Any:
    return sql(f"SELECT * FROM (SELECT *, {ranks} FROM {source}) WHERE {condition}")


_NEWEST = "OVER (PARTITION BY k ORDER BY id DESC)"
_TIED = "OVER (PARTITION BY k ORDER BY x NULLS LAST)"
TOPS = {
    "newest": (f"row_number() {_NEWEST} AS r", "r <= 3"),
    "newest one": (f"row_number() {_NEWEST} AS r", "r = 1"),
    "best by rank": (f"rank() {_TIED} AS r", "r <= 2"),
    "best by dense rank": (f"dense_rank() {_TIED} AS r", "r < 3"),
    "with totals": (
        f"row_number() {_NEWEST} AS r, sum(id) {_NEWEST} AS total, "
        "rank() OVER (PARTITION BY k ORDER BY id DESC) AS q",
        "r <= 4",
    ),
    "by two keys": ("rank() OVER (PARTITION BY k, s ORDER BY x DESC, id) AS r", "r <= 1"),
    "of everything": ("row_number() OVER (ORDER BY s, id DESC) AS r", "r <= 7"),
    "and a condition": (f"row_number() {_NEWEST} AS r", "r <= 5 AND x > 1"),
    "by position": (f"row_number() {_NEWEST} AS r", "r = 2"),
}


@pytest.mark.parametrize("name", TOPS)
def test_top_n_over_rows_that_are_added_equals_spark(spark: Any, name: str) -> None:
    assert_same(spark, _top(*TOPS[name]), {"t": _table(90, 1)}, runs=4)


_MAXIMA = "(SELECT k, s, max(id) AS id, max(x) AS x FROM t GROUP BY k, s)"


@pytest.mark.parametrize("name", ["newest", "best by rank", "best by dense rank", "of everything"])
def test_top_n_over_rows_that_are_taken_back_equals_spark(spark: Any, name: str) -> None:
    ranks, condition = TOPS[name]
    assert_same(spark, _top(ranks, condition, _MAXIMA), {"t": _table(90, 3)}, runs=4)


def test_ties_are_decided_by_the_rows_and_not_by_how_they_came(spark: Any) -> None:
    """Which of equal rows come first is ours to say, but not today so and tomorrow otherwise."""
    build = _top("row_number() OVER (PARTITION BY k ORDER BY x) AS r", "r <= 2")
    tables = {"t": _table(60, 5)}
    planned = plan_streaming(spark, build, tables)

    results = []
    for seed in range(8):
        shuffled = list(range(60))
        random.Random(seed).shuffle(shuffled)
        rows = {"t": tables["t"].take(shuffled)}
        result = run_ours(planned, rows, random.Random(seed))
        assert isinstance(result, pa.Table)
        results.append(sorted(map(repr, result.to_pylist())))

    assert all(result == results[0] for result in results)


def test_a_top_n_over_added_rows_keeps_no_more_than_n_rows_of_a_key(spark: Any) -> None:
    tables = {"t": _table(400, 6, keys=3)}
    planned = plan_streaming(spark, _top(*TOPS["newest"]), tables)
    assert [type(node) for node in planned.query.stages[-1].root.walk()][:2] == [n.Filter, n.TopN]

    driver = Driver(planned.query, {})
    for batch in chunks(tables["t"], random.Random(6)):
        driver.feed(planned.query.streams[0], batch)

    ((changes,),) = driver.snapshot().states[-1]
    kept = sum(part.rows.num_rows for parts in changes.values() for part in parts)
    assert kept == 4 * 3


# -- sorted and limited results

SORTED = {
    "most first": "SELECT k, count(*) AS c, max(id) AS m FROM t GROUP BY k ORDER BY c DESC, k",
    "ten by two": "SELECT s, k, sum(id) AS v FROM t GROUP BY s, k ORDER BY v DESC, k, s LIMIT 9",
    "from the fourth on": "SELECT * FROM t ORDER BY x DESC NULLS FIRST, id LIMIT 7 OFFSET 3",
    "without the order's column": "SELECT s FROM t ORDER BY id LIMIT 12",
    "a part of the first": "SELECT * FROM (SELECT * FROM t ORDER BY id LIMIT 20) WHERE x > 1",
    "skipping": "SELECT id FROM t ORDER BY s NULLS LAST, x, id OFFSET 5",
    "nothing": "SELECT id FROM t WHERE id < 0 ORDER BY id LIMIT 3",
}


@pytest.mark.parametrize("name", SORTED)
def test_a_sorted_result_equals_spark_row_by_row(spark: Any, name: str) -> None:
    tables = {"t": _table(60, 7)}
    expected = ask_spark(spark, sql(SORTED[name]), tables)
    planned = plan_streaming(spark, sql(SORTED[name]), tables, "complete")

    actual = run_ours(planned, tables, random.Random(7))

    assert isinstance(actual, pa.Table) and isinstance(expected, pa.Table)
    assert list(map(repr, actual.to_pylist())) == list(map(repr, expected.to_pylist()))


def test_a_limit_without_an_order_gives_the_same_rows_however_they_came(spark: Any) -> None:
    tables = {"t": _table(60, 8)}
    planned = plan_streaming(spark, sql("SELECT id, s FROM t LIMIT 9"), tables, "complete")

    results = [run_ours(planned, tables, random.Random(seed)) for seed in range(4)]

    assert all(result == results[0] for result in results)
    assert isinstance(results[0], pa.Table) and results[0].num_rows == 9


@pytest.mark.parametrize("mode", ["append", "update"])
@pytest.mark.parametrize("tail", ["ORDER BY id", "LIMIT 3", "OFFSET 2"])
def test_sorts_and_limits_are_refused_outside_complete_mode(
    spark: Any, mode: Any, tail: str
) -> None:
    query = sql(f"SELECT * FROM t {tail}")
    assert_refused(spark, query, {"t": _table(1, 9)}, "use mode='complete'", mode)


def test_a_limit_below_state_is_refused(spark: Any) -> None:
    query = "SELECT k, count(*) FROM (SELECT * FROM t ORDER BY id LIMIT 5) GROUP BY k"
    reason = "below an operator that keeps state"
    assert_refused(spark, sql(query), {"t": _table(1, 10)}, reason, "complete")
