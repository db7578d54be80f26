"""Static rows beside a stream: unions, joins that keep them, subqueries, EXCEPT and INTERSECT."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import assert_refused, assert_same, sql

from penstock.errors import EvaluationFailed
from penstock.ops.driver import Driver
from penstock.plan.nodes import Mode
from penstock.testing.oracle import Frames, plan_streaming

pytestmark = pytest.mark.usefixtures("interpreted")


def make_table(count: int, seed: int) -> pa.Table:
    rng = random.Random(seed)
    begin, second = 1_700_000_000_000_000, 1_000_000
    return pa.table(
        {
            "k": pa.array([rng.choice(["a", "b", "é", None]) for _ in range(count)]),
            "v": pa.array([rng.choice([0, 1, 2, 3, 9, None]) for _ in range(count)], pa.int64()),
            "f": pa.array([rng.choice([0.0, -0.0, 1.0, float("nan"), None]) for _ in range(count)]),
            "ts": pa.array(
                [begin + second * row for row in range(count)], pa.timestamp("us", "UTC")
            ),
        }
    )


TABLE = make_table(90, 4)
#: Six rows with nulls, and the same twice.
STATIC = "(SELECT IF(id = 5, NULL, id % 4) AS id, CAST(id AS STRING) AS n FROM range(6))"
FLOATS = "(SELECT IF(id = 0, DOUBLE('NaN'), -0.0D * id) AS g, id FROM range(2))"
GROUPED = "(SELECT k, count(*) AS v FROM t GROUP BY k)"

UNIONS = [
    f"SELECT k, v FROM t UNION ALL SELECT n, id FROM {STATIC}",
    f"SELECT n AS k, id AS v FROM {STATIC} UNION ALL SELECT k, v FROM t",
    f"SELECT k, v FROM t UNION SELECT n, id FROM {STATIC}",
    f"SELECT v, count(*) AS c, count(k) AS d FROM (SELECT k, v FROM t UNION ALL "
    f"SELECT n, id FROM {STATIC} UNION ALL SELECT k, v + 1 FROM t) GROUP BY v",
    f"SELECT k, v FROM {GROUPED} UNION ALL SELECT n, id FROM {STATIC}",
    "SELECT 1 AS c FROM t UNION ALL SELECT 1 FROM range(3)",
    f"SELECT v, sum(w) AS s FROM (SELECT v, 1 AS w FROM t UNION ALL SELECT id, 10 FROM {STATIC}) "
    f"JOIN {STATIC} ON v = id GROUP BY v",
    f"SELECT k, v, row_number() OVER (PARTITION BY v ORDER BY k NULLS LAST) AS r FROM "
    f"(SELECT DISTINCT k, v FROM t UNION ALL SELECT n || 'x', id FROM {STATIC})"
    f" WHERE k IS NOT NULL OR v = 99",
]
KEEPING = [
    f"SELECT n, id, k, v FROM {STATIC} LEFT JOIN t ON id = v",
    f"SELECT n, id, k, v FROM t RIGHT JOIN {STATIC} ON id = v AND (k <> 'a' OR k IS NULL)",
    f"SELECT n, id, k, v FROM t FULL JOIN {STATIC} ON id = v",
    f"SELECT n, id, v FROM t FULL JOIN {STATIC} ON id <=> v AND k = 'a'",
    f"SELECT n, id FROM {STATIC} LEFT SEMI JOIN t ON id = v",
    f"SELECT n, id FROM {STATIC} LEFT ANTI JOIN t ON id = v",
    f"SELECT n, id, v FROM {STATIC} LEFT JOIN t ON id > v + 1",
    f"SELECT n, id FROM {STATIC} LEFT ANTI JOIN t ON v = 77",
    f"SELECT s.n, g.k, g.v FROM {STATIC} s LEFT JOIN {GROUPED} g ON s.id = g.v % 4",
    f"SELECT n, g.k FROM {GROUPED} g FULL JOIN {STATIC} s ON s.id = g.v AND s.id = g.v % 4",
    f"SELECT g, id, f FROM {FLOATS} LEFT JOIN t ON g = f",
    f"SELECT n, count(v) AS c FROM {STATIC} LEFT JOIN t ON id = v GROUP BY n",
    "SELECT a.c, b.id FROM (SELECT count(*) AS c FROM t) a RIGHT JOIN range(4) b ON a.c > 40",
]
SUBQUERIES = [
    "SELECT k, v, (SELECT max(id) FROM range(5)) AS m FROM t "
    "WHERE v < (SELECT avg(id) FROM range(7))",
    "SELECT v, (SELECT max(id) FROM range(5)) AS a, (SELECT min(id) + 1 FROM range(5)) AS b FROM t",
    "SELECT k, sum(v + (SELECT max(id) FROM range(3))) AS s FROM t GROUP BY k "
    "HAVING count(*) > (SELECT count(*) FROM range(2))",
    "SELECT v, (SELECT id FROM range(5) WHERE id > 7) AS nothing FROM t",
    "SELECT v, (SELECT max(id) FROM range(5) WHERE id = v) AS m FROM t",
    "SELECT a.k, b.v FROM t a JOIN t b ON a.v = b.v AND a.v > (SELECT max(id) FROM range(2))",
    "SELECT v FROM t WHERE v IN (SELECT id FROM range(2)) OR k = 'a'",
    "SELECT v, v IN (SELECT id FROM range(2)) AS i FROM t",
    "SELECT v FROM t WHERE v NOT IN (SELECT id FROM range(2))",
    "SELECT v FROM t WHERE EXISTS (SELECT 1 FROM range(5))",
    "SELECT v FROM t WHERE EXISTS (SELECT 1 FROM range(5) WHERE id = v) AND NOT EXISTS "
    "(SELECT 1 FROM range(1) WHERE id = v)",
    "SELECT CASE WHEN EXISTS (SELECT 1 FROM range(3) WHERE id = v) THEN k ELSE 'no' END AS c, "
    "count(*) AS n FROM t GROUP BY 1",
    "SELECT DISTINCT v FROM t WHERE v >= (SELECT 1)",
    "SELECT k, v FROM t WHERE v + (SELECT min(id) FROM range(3)) IN (SELECT id FROM range(2)) "
    "OR k = 'a'",
]
SETS = [
    "SELECT k, v FROM t EXCEPT ALL SELECT k, v FROM t WHERE v > 1",
    "SELECT v FROM t EXCEPT ALL SELECT id % 3 FROM range(20)",
    "SELECT id % 3 AS v FROM range(60) EXCEPT ALL SELECT v FROM t",
    "SELECT k, v FROM t INTERSECT ALL SELECT k, v FROM t WHERE v > 1",
    "SELECT v FROM t INTERSECT ALL SELECT id % 3 FROM range(20)",
    "SELECT k FROM t INTERSECT SELECT k FROM t WHERE v > 2",
    "SELECT k FROM t EXCEPT SELECT k FROM t WHERE v > 8 AND k <> 'a'",
    "SELECT v FROM t EXCEPT SELECT id FROM range(2)",
    "SELECT id AS v FROM range(12) EXCEPT SELECT v FROM t",
    "SELECT v FROM t INTERSECT SELECT id FROM range(2)",
]


@pytest.mark.parametrize("query", UNIONS + KEEPING + SUBQUERIES + SETS)
def test_static_rows_match_spark(spark: Any, query: str) -> None:
    assert_same(spark, sql(query), {"t": TABLE}, seed=len(query), runs=3)


def test_static_rows_of_a_union_move_the_watermark_before_any_other(spark: Any) -> None:
    def build(frames: Frames) -> Any:
        static = "SELECT 'z' AS k, 1L AS v, timestamp_seconds(1699999999 - id) AS ts FROM range(3)"
        frames["t"].select("k", "v", "ts").createOrReplaceTempView("both")
        both = spark.sql(f"SELECT * FROM both UNION ALL {static}")
        return both.withWatermark("ts", "0 seconds").groupBy("ts", "k").count()

    assert_same(spark, build, {"t": TABLE}, seed=3, runs=3, mode="append")


@pytest.mark.parametrize(
    ("query", "mode"),
    [
        (UNIONS[0], "append"),
        (KEEPING[4], "append"),
        (SUBQUERIES[0], "append"),
        (SETS[9], "complete"),
    ],
)
def test_what_only_grows_can_be_appended(spark: Any, query: str, mode: Mode) -> None:
    assert_same(spark, sql(query), {"t": TABLE}, seed=5, mode=mode)


def test_a_kept_row_is_shown_alone_until_it_has_a_partner(spark: Any) -> None:
    build = sql("SELECT id, v FROM range(2) LEFT JOIN t ON id = v")
    planned = plan_streaming(spark, build, {"t": TABLE})
    driver = Driver(planned.query, planned.static_rows())
    assert sorted(map(tuple, _rows(driver))) == [(0, None), (1, None)]
    driver.feed(
        "t", TABLE.filter(pa.array([v == 1 for v in TABLE["v"].to_pylist()])).to_batches()[0]
    )
    assert {tuple(row) for row in _rows(driver)} == {(1, 1)}
    assert (0, None) in [tuple(row.values()) for row in driver.result().to_pylist()]


def _rows(driver: Driver) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in driver.read_new().to_pylist()]


@pytest.mark.parametrize("query", [KEEPING[0], KEEPING[2], KEEPING[5]])
def test_a_join_that_keeps_static_rows_cannot_append(spark: Any, query: str) -> None:
    assert_refused(spark, sql(query), {"t": TABLE}, "(?s)takes rows back.*mode='update'", "append")


def test_a_scalar_subquery_of_many_rows_fails_as_in_spark(spark: Any) -> None:
    build = sql("SELECT v FROM t WHERE v = (SELECT id FROM range(3))")
    planned = plan_streaming(spark, build, {"t": TABLE})
    with pytest.raises(EvaluationFailed, match="SCALAR_SUBQUERY_TOO_MANY_ROWS"):
        planned.static_rows()
