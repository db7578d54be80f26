"""Windows: of event time, with watermarks; and SQL's, over partitions and orders."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from survey.construct import Construct, Group, queries


def _late(f: Any) -> Any:
    return f.orders.withWatermark("ts", "10 minutes")


EVENT_TIME: Final[Group] = (
    *queries(
        {
            "tumbling window": lambda f: f.orders.groupBy(F.window("ts", "15 minutes")).count(),
            "sliding window": lambda f: f.orders.groupBy(
                F.window("ts", "20 minutes", "5 minutes"), "item"
            ).agg(F.sum("price")),
            "window with a start offset": lambda f: f.orders.groupBy(
                F.window("ts", "1 hour", startTime="15 minutes")
            ).count(),
            "window and its bounds selected": lambda f: (
                f.orders.groupBy(F.window("ts", "10 minutes").alias("w"), "item")
                .agg(F.max("price").alias("top"))
                .select("w.start", "w.end", "item", "top")
            ),
            "session window": lambda f: f.orders.groupBy(
                F.session_window("ts", "8 minutes"), "customer"
            ).count(),
            "session window with a gap by row": lambda f: f.orders.groupBy(
                F.session_window("ts", F.when(F.col("item") == "pen", "1 hour").otherwise("5 min"))
            ).count(),
        }
    ),
    *queries(
        {
            "window in append mode": lambda f: (
                _late(f).groupBy(F.window("ts", "15 minutes"), "item").count()
            ),
            "sliding window in append mode": lambda f: (
                _late(f).groupBy(F.window("ts", "20 minutes", "10 minutes")).agg(F.avg("price"))
            ),
            "session window in append mode": lambda f: (
                _late(f)
                .groupBy(F.session_window("ts", "8 minutes"), "customer")
                .agg(F.count("*"), F.max("price"))
            ),
            "window of windows by window_time": lambda f: (
                _late(f)
                .groupBy(F.window("ts", "5 minutes"), "item")
                .count()
                .groupBy(F.window(F.window_time("window"), "30 minutes"))
                .agg(F.sum("count"))
            ),
            "window of a window": lambda f: (
                _late(f)
                .groupBy(F.window("ts", "5 minutes"))
                .count()
                .groupBy(F.window("window", "30 minutes"))
                .agg(F.max("count"))
            ),
            "groupBy date_trunc in append mode": lambda f: (
                _late(f).groupBy(F.date_trunc("hour", "ts").alias("hour")).count()
            ),
            "groupBy to_date in append mode": lambda f: (
                _late(f).groupBy(F.to_date("ts").alias("date"), "item").agg(F.sum("price"))
            ),
            "groupBy the event time itself in append mode": lambda f: (
                _late(f).groupBy("ts").count()
            ),
            "watermark over a parsed column": lambda f: (
                f.orders.withColumn("at", F.to_timestamp("time_text"))
                .withWatermark("at", "1 minute")
                .groupBy(F.window("at", "10 minutes"))
                .count()
            ),
            "windows of two streams joined": lambda f: (
                _late(f)
                .groupBy(F.window("ts", "30 minutes"))
                .count()
                .join(
                    f.payments.withWatermark("paid_at", "10 minutes")
                    .groupBy(F.window("paid_at", "30 minutes"))
                    .agg(F.sum("paid").alias("paid")),
                    "window",
                )
            ),
        },
        mode="append",
    ),
)


def _latest() -> Any:
    return Window.partitionBy("item").orderBy(F.desc("ts"))


def _so_far() -> Any:
    return Window.partitionBy("item").orderBy("ts")


SQL_WINDOWS: Final[Group] = (
    *queries(
        {
            "latest row by key with row_number": lambda f: (
                f.orders.withColumn("rn", F.row_number().over(_latest())).where("rn = 1").drop("rn")
            ),
            "top n by group": "SELECT * FROM (SELECT id, item, price, rank() OVER (PARTITION BY "
            "item ORDER BY price DESC) AS r FROM orders) WHERE r <= 2",
            "rank and dense_rank": lambda f: f.orders.select(
                "id", F.rank().over(_latest()), F.dense_rank().over(_latest())
            ),
            "lag and lead": lambda f: f.orders.select(
                "id", F.lag("price").over(_so_far()), F.lead("price", 2, 0.0).over(_so_far())
            ),
            "running total": lambda f: f.orders.select(
                "id", F.sum("quantity").over(_so_far().rowsBetween(Window.unboundedPreceding, 0))
            ),
            "moving average over rows": lambda f: f.orders.select(
                "id", F.avg("price").over(_so_far().rowsBetween(-2, 0))
            ),
            "range frame by interval": "SELECT id, sum(price) OVER (PARTITION BY item ORDER BY ts "
            "RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT ROW) AS s FROM orders",
            "share of the total of a group": lambda f: f.orders.select(
                "id", F.col("price") / F.sum("price").over(Window.partitionBy("item"))
            ),
            "last value that is not null": lambda f: f.orders.select(
                "id", F.last("price", ignorenulls=True).over(_so_far())
            ),
            "ntile, percent_rank, cume_dist": lambda f: f.orders.select(
                "id",
                F.ntile(3).over(_so_far()),
                F.percent_rank().over(_so_far()),
                F.cume_dist().over(_so_far()),
            ),
            "window without a partition": lambda f: f.orders.select(
                "id", F.row_number().over(Window.orderBy("ts"))
            ),
            "collect_list over a window": lambda f: f.orders.select(
                "id", F.collect_list("quantity").over(_so_far().rowsBetween(-1, 1))
            ),
            "qualify by a filter above": "SELECT id, item FROM orders "
            "QUALIFY row_number() OVER (PARTITION BY item ORDER BY ts DESC) = 1",
        }
    ),
    Construct(
        "top n of each time window",
        lambda f: (
            _late(f)
            .groupBy(F.window("ts", "30 minutes"), "item")
            .count()
            .withColumn(
                "rn",
                F.row_number().over(Window.partitionBy("window").orderBy(F.desc("count"), "item")),
            )
            .where("rn <= 2")
        ),
    ),
)
