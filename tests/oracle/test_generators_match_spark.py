"""explode and its kin give the rows that batch Spark gives, in any chunking, and take them back."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import assert_refused, assert_same, sql

from penstock.plan.nodes import Mode
from penstock.testing.oracle import Frames

pytestmark = pytest.mark.usefixtures("interpreted")

POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])


def make_table(rows: int, seed: int) -> pa.Table:
    rng = random.Random(seed)

    def maybe(value: object) -> object:
        return None if rng.random() < 0.15 else value

    def many(*choices: object) -> object:
        return maybe([maybe(rng.choice(choices)) for _ in range(rng.choice([0, 1, 2, 4]))])

    def entries() -> object:
        return maybe([(key, maybe(1)) for key in rng.sample("abcd", rng.randrange(4))])

    points = ({"x": 1, "y": "a"}, {"x": None, "y": "b"}, {"x": 3, "y": None})
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "g": pa.array([rng.choice([1, 2, 3, None]) for _ in range(rows)], pa.int32()),
            "w": pa.array([maybe("é") for _ in range(rows)], pa.string()),
            "n": pa.array([many(1, 2, 3) for _ in range(rows)], pa.list_(pa.int32())),
            "a": pa.array([many(*points) for _ in range(rows)], pa.list_(POINT)),
            "nn": pa.array(
                [many([1, 2], [], [None]) for _ in range(rows)], pa.list_(pa.list_(pa.int32()))
            ),
            "m": pa.array([entries() for _ in range(rows)], pa.map_(pa.string(), pa.int32())),
        }
    )


TABLE = make_table(80, 2)

QUERIES = [
    "SELECT id, explode(n) FROM t",
    "SELECT explode_outer(n) FROM t",
    "SELECT id, w, explode_outer(n) AS x, g FROM t",
    "SELECT id, posexplode(n) FROM t",
    "SELECT id, posexplode_outer(a) FROM t",
    "SELECT id, explode(m) FROM t",
    "SELECT id, explode_outer(m) AS (k, v) FROM t",
    "SELECT id, posexplode(m) FROM t",
    "SELECT id, posexplode_outer(m) FROM t",
    "SELECT id, inline(a) FROM t",
    "SELECT id, inline_outer(a) FROM t",
    "SELECT id, inline(transform(n, x -> struct(x, w))) FROM t",
    "SELECT id, col.* FROM (SELECT id, explode(a) FROM t)",
    "SELECT id, pos + 1 AS rank, col.* FROM (SELECT id, posexplode(a) FROM t)",
    "SELECT id, stack(2, g, w, 7, 'x') FROM t",
    "SELECT id, stack(3, id, g, id + 1, g, id) AS (p, q) FROM t",
    "SELECT id, stack(2, n, array(g)) FROM t",
    "SELECT id, x FROM t LATERAL VIEW explode(n) AS x",
    "SELECT id, x FROM t LATERAL VIEW OUTER explode(n) AS x WHERE g > 1",
    "SELECT id, x, y FROM t LATERAL VIEW explode(nn) AS x LATERAL VIEW explode(x) AS y",
    "SELECT id, x, y FROM t LATERAL VIEW OUTER explode(nn) AS x LATERAL VIEW OUTER explode(x) AS y",
    "SELECT id, x FROM t LATERAL VIEW explode(array(1, g)) AS x",
    "SELECT id, x FROM t LATERAL VIEW explode(array(1, 2)) AS x",
    "SELECT id, e.x FROM t LATERAL VIEW explode(filter(a, p -> p.x = g)) AS e",
    "SELECT t.id, x FROM t, LATERAL explode(n) AS q(x)",
    "SELECT count(*) FROM t LATERAL VIEW explode(n) AS x",
    "SELECT x, count(*) FROM t LATERAL VIEW explode(n) AS x GROUP BY x",
    "SELECT g, c, x FROM (SELECT g, count(*) AS c, collect_list(id) AS ids FROM t GROUP BY g) "
    "LATERAL VIEW explode(array(c, 0L)) AS x",
    "SELECT x, count(*) FROM (SELECT g, count(*) AS c FROM t GROUP BY g) "
    "LATERAL VIEW explode(array(c, 1L)) AS x GROUP BY x",
]


#: Rows as often as they are in both, or more often in the first; nulls are equal to nulls.
SETS = [
    "SELECT g, w FROM t EXCEPT ALL SELECT g, w FROM t WHERE id % 3 = 0",
    "SELECT g, w FROM t INTERSECT ALL SELECT g, w FROM u",
    "SELECT g FROM u EXCEPT ALL SELECT g FROM t WHERE id < 30",
    "SELECT n, g FROM t EXCEPT ALL (SELECT n, g FROM u INTERSECT ALL SELECT n, g FROM t)",
    "SELECT g, count(*) AS c FROM (SELECT g FROM t EXCEPT ALL SELECT g FROM u) GROUP BY g",
    "SELECT c FROM (SELECT g, count(*) AS c FROM t GROUP BY g) INTERSECT ALL SELECT id FROM u",
]


@pytest.mark.parametrize("query", SETS)
def test_set_operations_that_count_match_spark(spark: Any, query: str) -> None:
    tables = {"t": TABLE, "u": make_table(50, 7)}
    assert_same(spark, sql(query), tables, seed=len(query), runs=2)


@pytest.mark.parametrize("query", QUERIES)
def test_generators_match_spark(spark: Any, query: str) -> None:
    assert_same(spark, sql(query), {"t": TABLE}, seed=len(query))


def make_bids(rows: int, seed: int) -> pa.Table:
    """Bids of NEXMark, ten a second; no two have the same price."""
    rng = random.Random(seed)
    micros = pa.array([row * 100_000 for row in range(rows)], pa.timestamp("us", tz="UTC"))
    return pa.table(
        {
            "auction": pa.array([rng.randrange(10) for _ in range(rows)], pa.int64()),
            "bidder": pa.array(range(rows), pa.int64()),
            "price": pa.array(rng.sample(range(10 * rows), rows), pa.int64()),
            "dateTime": micros,
        }
    )


#: All auctions with the most bids in a window, ties included, in one chain.
HOT_ITEMS = """
    SELECT e.auction, e.num, w.start AS starttime, w.end AS endtime FROM (
      SELECT w, max(num) AS maxn, collect_list(struct(auction, num)) AS all FROM (
        SELECT auction, count(*) AS num, window AS w FROM bid
        GROUP BY auction, window(dateTime, '10 seconds', '2 seconds')) GROUP BY w)
    LATERAL VIEW explode(filter(all, x -> x.num = maxn)) AS e
"""
#: The ten highest bids of an auction, in order.
TOP_BIDS = """
    SELECT auction, pos + 1 AS rank_number, col.* FROM (
      SELECT auction, posexplode(max_by(struct(bidder, price, dateTime), price, 10))
      FROM bid GROUP BY auction)
"""


@pytest.mark.parametrize("mode", ["append", "update"])
def test_the_hot_items_of_nexmarks_q5_are_exploded_out_of_a_filtered_list(
    spark: Any, mode: Mode
) -> None:
    def build(frames: Frames) -> Any:
        return sql(HOT_ITEMS)({"bid": frames["bid"].withWatermark("dateTime", "4 seconds")})

    assert_same(spark, build, {"bid": make_bids(400, 1)}, seed=4, mode=mode)


def test_the_top_bids_of_nexmarks_q19_are_exploded_with_their_rank(spark: Any) -> None:
    assert_same(spark, sql(TOP_BIDS), {"bid": make_bids(300, 2)}, seed=5)


def test_an_unknown_generator_is_refused(spark: Any) -> None:
    build = sql("SELECT col FROM t, LATERAL variant_explode(parse_json(w)) v(pos, key, col)")
    assert_refused(spark, build, {"t": TABLE}, "no generator for VariantExplode")
