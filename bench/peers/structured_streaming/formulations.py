"""NEXMark as Spark's Structured Streaming accepts it, each query with `lat_ts` as its last column.

Where Spark takes the DataFrame that Penstock runs (`penstock_bench.nexmark.timed`), it gets it.
Where it refuses it, it gets another that says the same in its terms: aggregates in a chain for q5,
processors for q4 and q6, `max_by` for q9, q18 and q19, sets for the distinct counts of q15 and q16.
Watermarks lag by nothing: the stream is ordered.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, Final

from penstock_bench.nexmark.model import side_input
from penstock_bench.nexmark.queries import QUERIES, split_events
from penstock_bench.nexmark.queries.groups import day, statistics
from penstock_bench.nexmark.queries.joins import in_time
from penstock_bench.nexmark.queries.windows import ends
from penstock_bench.nexmark.timed import LAT_TS, MODES, timed
from processors import HighestBid, LastTen, MaxPerAuction
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from talk import Refusal

#: What needs the time of which kinds, so that windows close.
_WATERMARKED: Final = {
    "q5": ("bid",),
    "q7": ("bid",),
    "q8": ("person", "auction"),
    "q11": ("bid",),
}


def make_frame(spark: SparkSession, query: str, mode: str, events: DataFrame) -> DataFrame:
    """The query over the mixed stream; raises Refusal if Spark has no form of it."""
    if query not in MODES:
        raise Refusal(f"no query {query}")
    if mode != MODES[query]:
        raise Refusal(f"{query} runs in {MODES[query]} mode here")
    if query in _REFUSED:
        raise Refusal(_REFUSED[query])
    frames = dict(zip(("person", "auction", "bid"), split_events(events), strict=True))
    for kind in _WATERMARKED.get(query, ()):
        frames[kind] = frames[kind].withWatermark("dateTime", "0 seconds")
    if query in WITH_PROCESSORS:
        return WITH_PROCESSORS[query](events)
    if query in _OWN:
        return _OWN[query](**frames)
    side = spark.createDataFrame(side_input()) if QUERIES[query].takes_side_input else None
    return timed(query, *frames.values(), side, mode=mode)


def _as(column: Column) -> Column:
    return column.alias(LAT_TS)


def _both(events: DataFrame) -> DataFrame:
    """Auctions and bids in one stream, keyed by the auction: what the processors take."""
    return events.where("event_type IN (1, 2)").selectExpr(
        "coalesce(auction.id, bid.auction) AS k",
        "event_type AS kind",
        "unix_millis(coalesce(auction.dateTime, bid.dateTime)) AS ts",
        "unix_millis(auction.expires) AS expires",
        "auction.seller AS seller",
        "auction.category AS category",
        "bid.price AS price",
    )


def _q4(events: DataFrame) -> DataFrame:
    _need_protobuf()
    changed = "category BIGINT, d_sum BIGINT, d_count BIGINT, at BIGINT"
    per_auction = _both(events).groupBy("k")
    changes = per_auction.transformWithState(MaxPerAuction(), changed, "Update", "None")
    average = F.expr("sum(d_sum) div sum(d_count)").alias("final")
    return changes.groupBy("category").agg(average, _as(F.timestamp_millis(F.max("at"))))


def _q6(events: DataFrame) -> DataFrame:
    _need_protobuf()
    sold = "seller BIGINT, id BIGINT, closed BIGINT, price BIGINT, at BIGINT"
    per_auction = _both(events).groupBy("k")
    highest = per_auction.transformWithState(HighestBid(), sold, "Update", "None")
    average = "seller BIGINT, avg_price BIGINT, closed BIGINT, at BIGINT"
    per_seller = highest.groupBy("seller")
    averages = per_seller.transformWithState(LastTen(), average, "Update", "None")
    return averages.select(
        "seller",
        "avg_price",
        F.timestamp_millis("closed").alias("closed"),
        _as(F.timestamp_millis("at")),
    )


def _need_protobuf() -> None:
    if importlib.util.find_spec("google.protobuf") is None:
        raise Refusal("Spark's Python processors need protobuf: pip install protobuf")


def _q5(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    # Spark loses all rows of the literal form, silently: both sides of its join share one source.
    window = F.window("dateTime", "10 seconds", "2 seconds")
    counts = bid.groupBy("auction", window).agg(F.count("*").alias("num"))
    per_window = counts.groupBy("window").agg(
        F.max("num").alias("most"), F.collect_list(F.struct("auction", "num")).alias("all")
    )
    hot = F.explode(F.filter("all", lambda one: one.num == F.col("most"))).alias("hot")
    return per_window.select("window", hot).select(
        "hot.auction", "hot.num", *ends(), _as(F.col("window.end"))
    )


def _q8(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    # As Penstock runs it, but that times are numbers: Spark refuses state with two time columns.
    window = F.window("dateTime", "10 seconds")
    came = person.select("id", "name", window, F.unix_micros("dateTime").alias("came_at"))
    came = came.dropDuplicates(["id", "name", "window"])
    sold = auction.select("seller", window, F.unix_micros("dateTime").alias("sold_at"))
    sold = sold.dropDuplicates(["seller", "window"])
    both = came.join(sold, (came.id == sold.seller) & (came.window == sold.window))
    newest = F.timestamp_micros(F.greatest("came_at", "sold_at"))
    return both.select("id", "name", came.window.start.alias("starttime"), _as(newest))


def _q9(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    best_first = F.struct(bid.price, -F.unix_micros(bid.dateTime), -bid.bidder)
    row = F.struct(
        bid.auction, bid.bidder, bid.price, bid.dateTime.alias("bid_dateTime"),
        bid.extra.alias("bid_extra"),
    )  # fmt: skip
    columns = [auction[name] for name in auction.columns]
    best = (
        auction.join(bid, in_time(auction, bid))
        .groupBy(*columns)
        .agg(F.max_by(row, best_first).alias("b"))
    )
    return best.select(*auction.columns, "b.*", _as(F.col("b.bid_dateTime")))


def _statistics() -> list[Column]:
    by_sets = statistics(lambda column: F.size(F.collect_set(column)).cast("bigint"))
    return [*by_sets, _as(F.max("dateTime"))]


def _q15(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    return bid.groupBy(day()).agg(*_statistics())


def _q16(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    minute = F.max(F.date_format("dateTime", "HH:mm")).alias("minute")
    return bid.groupBy("channel", day()).agg(minute, *_statistics())


def _q18(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    last = F.max_by(F.struct(*bid.columns), F.struct("dateTime", "price", "extra")).alias("b")
    groups = bid.groupBy(F.col("bidder").alias("who"), F.col("auction").alias("what"))
    return groups.agg(last).select("b.*", _as(F.col("b.dateTime")))


def _q19(person: DataFrame, auction: DataFrame, bid: DataFrame) -> DataFrame:
    # Of equal prices the earliest is the higher; padding cannot decide here, and never does.
    row = F.struct(*bid.columns)
    highest_first = F.struct("price", -F.unix_micros("dateTime"))
    groups = bid.groupBy(F.col("auction").alias("what"))
    top = groups.agg(F.max_by(row, highest_first, 10).alias("ten"))
    ranked = top.select("ten", F.posexplode("ten").alias("place", "b"))
    newest = F.array_max(
        F.transform(F.slice("ten", 1, F.col("place") + 1), lambda one: one.dateTime)
    )
    return ranked.select("b.*", (F.col("place") + 1).alias("rank_number"), _as(newest))


#: Those whose state must be in RocksDB.
WITH_PROCESSORS: Final[dict[str, Callable[[DataFrame], DataFrame]]] = {"q4": _q4, "q6": _q6}
_OWN: Final[dict[str, Callable[..., Any]]] = {
    "q5": _q5,
    "q8": _q8,
    "q9": _q9,
    "q15": _q15,
    "q16": _q16,
    "q18": _q18,
    "q19": _q19,
}
_REFUSED: Final = {
    "q12": "windows of processing time: its result depends on when batches run, so there is "
    "nothing to compare",
}
