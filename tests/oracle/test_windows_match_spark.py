"""Window functions, over rows that are only added and over rows that are taken back."""

from __future__ import annotations

import datetime
import decimal
import random
from typing import Any

import pyarrow as pa
import pytest
from harness.oracle import assert_refused, assert_same, sql

from penstock.testing.oracle import plan_streaming, run_ours

pytestmark = pytest.mark.usefixtures("interpreted")

_KEYS = ["a", "b", "é", "", None]
_FLOATS = [0.0, -0.0, 1.5, -2.25, float("nan"), float("inf"), float("-inf"), None, 3.0, 7.5]
_WORDS = ["", "a", "ab", "b", "é", "z", "𝄞", None]


def _table(rows: int, seed: int) -> pa.Table:
    """Rows with a unique number `id`, and columns full of ties, nulls and extremes."""
    rng = random.Random(seed)
    ids = list(range(rows))
    rng.shuffle(ids)
    day = datetime.date(2024, 1, 1)
    cents = [None, *(decimal.Decimal(n) / 100 for n in (-5, 0, 7, 1999))]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "k": pa.array([rng.choice(_KEYS) for _ in ids], pa.string()),
            "i": pa.array([rng.choice([None, -3, 0, 1, 2, 2**31 - 1]) for _ in ids], pa.int32()),
            "x": pa.array([rng.choice(_FLOATS) for _ in ids], pa.float64()),
            "y": pa.array([rng.choice([None, -1.5, 0.25, 3.0]) for _ in ids], pa.float64()),
            "s": pa.array([rng.choice(_WORDS) for _ in ids], pa.string()),
            "d": pa.array([rng.choice([None, day, day.replace(day=3)]) for _ in ids], pa.date32()),
            "m": pa.array([rng.choice(cents) for _ in ids], pa.decimal128(10, 2)),
            "b": pa.array([rng.choice([None, True, False]) for _ in ids], pa.bool_()),
            "f": pa.array([rng.choice(_FLOATS) for _ in ids], pa.float32()),
            "raw": pa.array([rng.choice([None, b"", b"\x00", b"\x7f", b"\xff"]) for _ in ids]),
            "a": pa.array([_some_list(rng) for _ in ids], pa.list_(pa.float64())),
            "st": pa.array(
                [rng.choice([None, {"x": _some_list(rng), "y": rng.choice(_WORDS)}]) for _ in ids],
                pa.struct([("x", pa.list_(pa.float64())), ("y", pa.string())]),
            ),
            "ts": pa.array(
                [rng.choice([None, rng.randrange(6 * 3600) * 10**6]) for _ in ids],
                pa.timestamp("us", "UTC"),
            ),
        }
    )


def _some_list(rng: random.Random) -> list[float | None] | None:
    return rng.choice([None, [], [None], [rng.choice(_FLOATS)], [1.5, rng.choice(_FLOATS)]])


def _over(functions: list[str], *, source: str = "t") -> Any:
    """All of these expressions, beside the rows of `source`."""
    named = ", ".join(f"{function} AS c{index}" for index, function in enumerate(functions))
    return sql(f"SELECT *, {named} FROM {source}")


_UNIQUE = "PARTITION BY k ORDER BY x DESC NULLS FIRST, s, id"
_TIED = "PARTITION BY k ORDER BY i"
_FRAMES = [
    "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING",
    "ROWS BETWEEN 3 PRECEDING AND 2 PRECEDING",
    "ROWS BETWEEN 1 FOLLOWING AND 4 FOLLOWING",
    "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
    "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "RANGE BETWEEN CURRENT ROW AND CURRENT ROW",
    "RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
]
RANKS = [
    f"row_number() OVER ({_UNIQUE})",
    *(
        f"{function} OVER ({order})"
        for function in ("rank()", "dense_rank()", "percent_rank()", "cume_dist()")
        for order in (_UNIQUE, _TIED, "PARTITION BY k ORDER BY x, s DESC NULLS LAST")
    ),
    *(f"ntile({count}) OVER ({_UNIQUE})" for count in (1, 3, 7, 1000)),
    "rank() OVER (PARTITION BY k ORDER BY struct(i, s), m DESC)",
    "dense_rank() OVER (PARTITION BY k ORDER BY array(i, 1, i) DESC, d NULLS LAST, b)",
]
NEIGHBOURS = [
    f"{function} OVER ({_UNIQUE})"
    for function in (
        "lag(s)",
        "lead(y, 2)",
        "lag(i, 3, 42)",
        "lead(id, 1, id)",
        "lag(m, -2)",
        "lead(d, 0)",
        "lag(y, 0) IGNORE NULLS",
        "lag(y, 2) IGNORE NULLS",
        "lead(s, 3, 'none') IGNORE NULLS",
        "lead(i, -1, -7) IGNORE NULLS",
        "lag(struct(i, s), 1)",
    )
]
PICKS = [
    f"{function} OVER ({_UNIQUE} {frame})"
    for function in ("first_value(y)", "last(s, true)", "nth_value(i, 2)")
    for frame in _FRAMES[:6]
] + [
    f"nth_value(y, 2) IGNORE NULLS OVER ({_UNIQUE})",
    f"first_value(d) IGNORE NULLS OVER ({_UNIQUE} {_FRAMES[4]})",
    f"first(id) FILTER (WHERE b) OVER ({_UNIQUE} {_FRAMES[1]})",
    f"any_value(m) OVER ({_UNIQUE} {_FRAMES[0]})",
]
AGGREGATES = [
    f"{function} OVER ({order} {frame})"
    for frame in _FRAMES[:6]
    for order, functions in (
        (_UNIQUE, ("count(s)", "sum(i)", "sum(y)", "avg(x)", "max(s)", "min(x)")),
    )
    for function in functions
]
MORE_AGGREGATES = [
    *(f"count(*) OVER ({_TIED} {frame})" for frame in _FRAMES[6:]),
    *(f"sum(m) OVER ({_TIED} {frame})" for frame in _FRAMES[6:]),
    *(f"max(x) OVER ({_TIED} {frame})" for frame in _FRAMES[6:]),
    f"sum(y) FILTER (WHERE b) OVER ({_UNIQUE} {_FRAMES[1]})",
    f"avg(m) OVER ({_UNIQUE} {_FRAMES[1]})",
    "sum(id + 1) OVER (PARTITION BY k)",
    "max(id) OVER (PARTITION BY x)",
    "count(*) OVER (PARTITION BY i % 2, b ORDER BY id)",
    "max(id) OVER ()",
    "sum(id) OVER (ORDER BY id DESC)",
    "row_number() OVER (ORDER BY s, id)",
    "sum(id) OVER (PARTITION BY 1, k ORDER BY id + 1 ROWS 2 PRECEDING)",
]


OTHER_AGGREGATES = [
    f"{function} OVER ({_UNIQUE} {frame})"
    for frame in (_FRAMES[0], _FRAMES[1], _FRAMES[5])
    for function in (
        "collect_list(i)",
        "stddev(y)",
        "max_by(s, id)",
        "count_if(b)",
        "bool_and(b)",
        "approx_count_distinct(s)",
        "percentile(y, 0.5)",
        "corr(y, i)",
    )
]
ORDERS = [
    f"dense_rank() OVER (PARTITION BY k ORDER BY {term})"
    for term in (
        "i DESC NULLS FIRST",
        "x NULLS LAST",
        "f DESC",
        "s DESC",
        "d",
        "m DESC",
        "b",
        "raw DESC NULLS FIRST",
        "a NULLS LAST",
        "st DESC",
        "ts",
    )
]
RANGES = [
    f"sum(id) OVER (PARTITION BY k ORDER BY {order} RANGE BETWEEN {frame})"
    for order, frames in {
        "id": ("7 PRECEDING AND CURRENT ROW", "9 FOLLOWING AND UNBOUNDED FOLLOWING"),
        "id DESC": ("7 PRECEDING AND 3 PRECEDING", "UNBOUNDED PRECEDING AND 5 FOLLOWING"),
        "CAST(id % 9 AS SMALLINT)": ("2 PRECEDING AND 1 FOLLOWING",),
        "x NULLS LAST": ("1.5D PRECEDING AND 2D FOLLOWING", "CURRENT ROW AND 3D FOLLOWING"),
        "x DESC NULLS FIRST": ("3D PRECEDING AND UNBOUNDED FOLLOWING",),
        "CAST(y AS FLOAT) DESC": ("1.75F PRECEDING AND 0F FOLLOWING",),
        "d": ("2 PRECEDING AND CURRENT ROW", "INTERVAL 2 DAYS PRECEDING AND CURRENT ROW"),
        "ts": ("INTERVAL 90 MINUTES PRECEDING AND INTERVAL 5 MINUTES FOLLOWING",),
    }.items()
    for frame in frames
]


@pytest.mark.parametrize(
    "functions",
    [RANKS, NEIGHBOURS, PICKS, AGGREGATES, MORE_AGGREGATES, OTHER_AGGREGATES, ORDERS, RANGES],
    ids=["ranks", "neighbours", "picks", "aggregates", "frames", "others", "orders", "ranges"],
)
def test_functions_over_rows_that_are_added_equal_spark(spark: Any, functions: list[str]) -> None:
    assert_same(spark, _over(functions), {"t": _table(60, 1)}, runs=3)


_MAXIMA = "(SELECT k, i, max(id) AS id, count(*) AS n, sum(id) AS total FROM t GROUP BY k, i)"
_LATEST = "PARTITION BY k ORDER BY id DESC"
OVER_CHANGES = [
    f"row_number() OVER ({_LATEST})",
    "rank() OVER (PARTITION BY k ORDER BY n)",
    "dense_rank() OVER (PARTITION BY i ORDER BY n DESC)",
    f"lag(total, 1, 0) OVER ({_LATEST})",
    f"lead(i) IGNORE NULLS OVER ({_LATEST})",
    f"avg(total) OVER ({_LATEST} ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
    f"max(total) OVER ({_LATEST} ROWS BETWEEN CURRENT ROW AND 2 FOLLOWING)",
    "sum(n) OVER (PARTITION BY k)",
    "first_value(total) OVER (PARTITION BY i ORDER BY id)",
    "count(*) OVER ()",
]


def test_functions_over_rows_that_are_taken_back_equal_spark(spark: Any) -> None:
    assert_same(spark, _over(OVER_CHANGES, source=_MAXIMA), {"t": _table(80, 3)}, runs=8)


def test_equal_rows_count_as_often_as_they_come(spark: Any) -> None:
    rng = random.Random(6)
    keys, values = zip(*((rng.choice("ab"), rng.randrange(3)) for _ in range(40)), strict=True)
    table = pa.table({"k": keys, "v": values})
    functions = [
        "row_number() OVER (PARTITION BY k ORDER BY v)",
        "cume_dist() OVER (PARTITION BY k ORDER BY v DESC)",
        "sum(v) OVER (PARTITION BY k ORDER BY v ROWS 3 PRECEDING)",
        "count(*) OVER (PARTITION BY v)",
    ]
    assert_same(spark, _over(functions), {"t": table}, runs=4)


def test_a_window_over_a_window_equals_spark(spark: Any) -> None:
    inner = f"(SELECT id, k, s, row_number() OVER ({_UNIQUE}) AS rn FROM t)"
    functions = ["max(id) OVER (PARTITION BY rn)", "lag(id) OVER (PARTITION BY s ORDER BY rn, id)"]
    assert_same(spark, _over(functions, source=inner), {"t": _table(60, 8)}, runs=4)


def test_an_empty_stream_gives_no_rows(spark: Any) -> None:
    assert_same(spark, _over(RANKS), {"t": _table(0, 9)}, seed=9)


_TIMED = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("v", pa.int64())])


def _timed_rows(rows: int, seed: int) -> pa.Table:
    """One row a second, in order: no row is late."""
    rng = random.Random(seed)
    begin = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    times = [begin + datetime.timedelta(seconds=n) for n in range(rows)]
    keys = [rng.choice("abcd") for _ in times]
    return pa.table([times, keys, [rng.randrange(9) for _ in times]], schema=_TIMED)


_HOT = """
    SELECT *, rank() OVER (PARTITION BY window ORDER BY n DESC, k) AS r,
           sum(n) OVER (PARTITION BY window) AS total
    FROM (SELECT window(t, '10 seconds') AS window, k, count(*) AS n FROM t GROUP BY 1, k)
"""


def _hot(frames: Any) -> Any:
    return sql(_HOT)({"t": frames["t"].withWatermark("t", "2 seconds")})


@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_a_window_by_event_time_runs_in_every_mode(spark: Any, mode: Any) -> None:
    assert_same(spark, _hot, {"t": _timed_rows(70, 10)}, runs=4, mode=mode)


# -- NEXMark q6: the mean price of a seller's last ten auctions, over maxima that change

_Q6 = """
    WITH won AS (
        SELECT a.id, a.seller, a.expires, max(b.price) AS price
        FROM auctions a JOIN bids b ON a.id = b.auction AND b.t BETWEEN a.t AND a.expires
        GROUP BY a.id, a.seller, a.expires)
    SELECT seller, expires, avg(price) OVER (
        PARTITION BY seller ORDER BY expires, id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS mean
    FROM won
"""
_AUCTION = [(name, pa.int64()) for name in ("id", "seller", "t", "expires")]
_BID = [(name, pa.int64()) for name in ("auction", "price", "t")]


def _rows(rows: list[tuple[int, ...]], fields: list[tuple[str, pa.DataType]]) -> pa.Table:
    return pa.table([list(column) for column in zip(*rows, strict=True)], schema=pa.schema(fields))


def test_q6_of_the_worked_example_gives_the_means_that_the_example_says(spark: Any) -> None:
    auctions = [(1107, 1001, 2000, 12000), (1108, 1001, 3000, 9000), (1109, 1002, 3500, 15000)]
    auctions += [(1110, 1003, 13000, 18000), (1230, 1002, 14000, 19000), (1111, 1004, 20500, 26000)]
    bids = [(1107, 100, 2500), (1108, 250, 2900), (1107, 300, 5000), (1108, 200, 9000)]
    bids += [(1107, 300, 9500), (1109, 500, 10000), (1107, 900, 12500), (1230, 700, 14500)]
    bids += [(1110, 400, 15000), (1999, 50, 16000), (1230, 750, 19000), (1110, 900, 20000)]
    bids += [(1111, 601, 22000), (1107, 1000, 26000)]
    tables = {"auctions": _rows(auctions, _AUCTION), "bids": _rows(bids, _BID)}
    planned = plan_streaming(spark, sql(_Q6), tables)

    result = run_ours(planned, tables, random.Random(13))

    assert isinstance(result, pa.Table)
    rows = {(row["seller"], row["mean"], row["expires"]) for row in result.to_pylist()}
    assert rows == {
        (1001, 200, 9000),
        (1001, 250, 12000),
        (1002, 500, 15000),
        (1003, 400, 18000),
        (1002, 625, 19000),
        (1004, 601, 26000),
    }


def test_q6_over_changing_maxima_equals_spark(spark: Any) -> None:
    rng = random.Random(14)
    auctions = []
    for id in range(60):
        begin = rng.randrange(1000)
        auctions.append((id, rng.randrange(3), begin, begin + rng.randrange(500)))
    bids = [(rng.randrange(65), rng.randrange(10**6), rng.randrange(1500)) for _ in range(300)]
    tables = {"auctions": _rows(auctions, _AUCTION), "bids": _rows(bids, _BID)}
    assert_same(spark, sql(_Q6), tables, runs=4)


def test_append_mode_refuses_a_window_that_no_time_bounds(spark: Any) -> None:
    reason = "partitioned by event time"
    assert_refused(spark, _over(RANKS[:1]), {"t": _table(1, 11)}, reason, "append")


def test_a_range_whose_bound_overflows_fails_as_in_spark(spark: Any) -> None:
    over = "(PARTITION BY k ORDER BY i RANGE BETWEEN CURRENT ROW AND 1 FOLLOWING)"
    assert_same(spark, _over([f"count(*) OVER {over}"]), {"t": _table(60, 16)}, seed=16)


@pytest.mark.parametrize(
    ("order", "offset"), [("t", "INTERVAL 1 DAY"), ("t", "INTERVAL 2 MONTHS"), ("v", "2.5BD")]
)
def test_a_range_that_is_no_plain_sum_is_refused(spark: Any, order: str, offset: str) -> None:
    over = f"(PARTITION BY k ORDER BY {order} RANGE {offset} PRECEDING)"
    source = "(SELECT t, k, CAST(v AS DECIMAL(9, 1)) AS v FROM t)"
    build = _over([f"sum(v) OVER {over}"], source=source)
    reason = "a window frame with such an offset"
    assert_refused(spark, build, {"t": _timed_rows(1, 12)}, reason)
