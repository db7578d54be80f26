"""The queries with one more column, `lat_ts`: the moment from which a row's latency counts.

Owns what "since when" means for each query. A row that appears when its window is over (append
mode) counts from the window's end; any other counts from the newest event that it derives from.
Law: without `lat_ts` the result is that of the plain query, and `lat_ts` changes only when the rest
of its row may: a measured query makes the updates of the plain one. (Two exceptions, both rare: a
second bid at the same highest price, and an average that changes by less than a cent.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame, GroupedData, Window
from pyspark.sql import functions as F

from penstock_bench.nexmark.queries import QUERIES
from penstock_bench.nexmark.queries.joins import sold
from penstock_bench.nexmark.queries.rhino import GAPS_MINUTES
from penstock_bench.nexmark.queries.windows import ends, most_bids

LAT_TS: Final = "lat_ts"
APPEND: Final = "append"

_UPDATING: Final = ("q4", "q6", "q9", "q15", "q16", "q17", "q18", "q19", "nbqx")
#: How each query is run unless told otherwise: those whose rows are final at once, or with their
#: window, append; the others take rows back.
MODES: Final[dict[str, str]] = {name: "update" if name in _UPDATING else APPEND for name in QUERIES}
#: Those whose rows wait for the end of a window in append mode. The rows of q8 do not: they are
#: final as soon as both of their events are there.
WINDOWED: Final = ("q5", "q7", "q11", "q12", "nbq5", "nbqx")
#: Those whose windows are of the time at which the log took a row.
BY_ARRIVAL: Final = ("q12",)
#: Those without state: row in, row out.
STATELESS: Final = ("q0", "q1", "q2", "q10", "q13", "q14", "q21", "q22")


def timed(
    query: str,
    person: DataFrame,
    auction: DataFrame,
    bid: DataFrame,
    side: DataFrame | None = None,
    *,
    mode: str,
) -> DataFrame:
    """The query's own columns and `lat_ts`, which is the last."""
    if query not in _TIMED:
        inputs = (person, auction, _Carrying(bid), *(() if side is None else (side,)))
        carried: DataFrame = QUERIES[query].build(*inputs)
        return carried
    return _TIMED[query](person, auction, bid, mode == APPEND)


def latency_from(query: str, mode: str) -> str:
    """What `lat_ts` is, in words."""
    return "window end" if query in WINDOWED and mode == APPEND else "event"


@dataclass(frozen=True)
class _Carrying:
    """Bids whose `select` also takes their time, so that a query runs as it is written."""

    frame: DataFrame

    def where(self, condition: Any) -> _Carrying:
        return _Carrying(self.frame.where(condition))

    def join(self, other: DataFrame, on: Any) -> _Carrying:
        return _Carrying(self.frame.join(other, on))

    def select(self, *columns: Any) -> DataFrame:
        return self.frame.select(*columns, _as(F.col("dateTime")))

    def groupBy(self, *keys: Any) -> _CarryingGroups:  # Spark's name
        return _CarryingGroups(self.frame.groupBy(*keys))


@dataclass(frozen=True)
class _CarryingGroups:
    """Groups whose `agg` also takes the time of the newest bid; every bid counts in its group."""

    groups: GroupedData

    def agg(self, *columns: Column) -> DataFrame:
        return self.groups.agg(*columns, _as(F.max("dateTime")))


def _as(column: Column) -> Column:
    return column.alias(LAT_TS)


def _q3(person: DataFrame, auction: DataFrame, bid: DataFrame, append: bool) -> DataFrame:
    nearby = person.where(F.col("state").isin("OR", "ID", "CA"))
    offered = auction.where("category = 10").select(
        "seller", F.col("id").alias("auction"), F.col("dateTime").alias("offered_at")
    )
    joined = nearby.join(offered, nearby.id == offered.seller)
    newest = F.greatest("dateTime", "offered_at")
    return joined.select("name", "city", "state", F.col("auction").alias("id"), _as(newest))


def _sold(auction: DataFrame, bid: DataFrame, *keys: str) -> DataFrame:
    """The highest bid of each auction, and when it was made."""
    return sold(auction, bid, *keys, more=(F.max_by(bid.dateTime, "price").alias("sold_at"),))


def _q4(person: DataFrame, auction: DataFrame, bid: DataFrame, append: bool) -> DataFrame:
    average = F.avg("final").cast("bigint").alias("final")
    prices = _sold(auction, bid, "category")
    return prices.groupBy("category").agg(average, _as(F.max("sold_at")))


def _q5(person: DataFrame, auction: DataFrame, bid: DataFrame, append: bool) -> DataFrame:
    if append:
        return _newest_of("q5", "endtime")(person, auction, bid)
    window = F.window("dateTime", "10 seconds", "2 seconds")
    counts = bid.groupBy("auction", window).agg(
        F.count("*").alias("num"), F.max("dateTime").alias("counted_at")
    )
    return most_bids(counts).select("auction", "num", *ends(), _as(F.col("counted_at")))


def _q6(person: DataFrame, auction: DataFrame, bid: DataFrame, append: bool) -> DataFrame:
    last_ten = Window.partitionBy("seller").orderBy("expires", "id").rowsBetween(-9, 0)
    average = F.avg("final").over(last_ten).cast("bigint").alias("avg_price")
    newest = F.max("sold_at").over(last_ten)
    prices = _sold(auction, bid, "seller", "expires")
    return prices.select("seller", average, F.col("expires").alias("closed"), _as(newest))


def _q7(person: DataFrame, auction: DataFrame, bid: DataFrame, append: bool) -> DataFrame:
    window = F.window("dateTime", "10 seconds")
    # In append mode the maximum is final with its window; before, a larger bid makes it anew.
    times = [] if append else [F.max_by("dateTime", "price").alias("max_at")]
    per_window = bid.groupBy(window).agg(F.max("price").alias("maxprice"), *times)
    highest = per_window.withColumn("wend", F.col("window.end")).drop("window")
    in_window = bid.dateTime.between(highest.wend - F.expr("INTERVAL 10 SECONDS"), highest.wend)
    top = bid.join(highest, (bid.price == highest.maxprice) & in_window)
    since = highest.wend if append else F.greatest(bid.dateTime, highest.max_at)
    return top.select("auction", "price", "bidder", "dateTime", "extra", _as(since))


def _q8(person: DataFrame, auction: DataFrame, bid: DataFrame, append: bool) -> DataFrame:
    # Who came, and who sold, is known with the first event of its kind in the window, and so is
    # the row: nothing waits for the window's end. `distinct` would not keep that event's time.
    window = F.window("dateTime", "10 seconds")
    came = person.select("id", "name", window, F.col("dateTime").alias("came_at"))
    came = came.dropDuplicates(["id", "name", "window"])
    sold = auction.select("seller", window, F.col("dateTime").alias("sold_at"))
    sold = sold.dropDuplicates(["seller", "window"])
    both = came.join(sold, (came.id == sold.seller) & (came.window == sold.window))
    start = came.window.start.alias("starttime")
    return both.select("id", "name", start, _as(F.greatest("came_at", "sold_at")))


def _q11(person: DataFrame, auction: DataFrame, bid: DataFrame, append: bool) -> DataFrame:
    plain = QUERIES["q11"].build(person, auction, bid)
    last_bid = F.col("endtime") - F.expr("INTERVAL 10 SECONDS")
    return plain.withColumn(LAT_TS, F.col("endtime") if append else last_bid)


def _q19(person: DataFrame, auction: DataFrame, bid: DataFrame, append: bool) -> DataFrame:
    # A bid's place changes with the bids above it: of those, and itself, the newest counts.
    highest_first = Window.partitionBy("auction").orderBy(
        F.desc("price"), F.asc("dateTime"), F.asc("extra")
    )
    above = highest_first.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ranked = bid.withColumn("rank_number", F.row_number().over(highest_first))
    newest = ranked.withColumn(LAT_TS, F.max("dateTime").over(above))
    return newest.where("rank_number <= 10")


def _nbqx(person: DataFrame, auction: DataFrame, bid: DataFrame, append: bool) -> DataFrame:
    """A session shows when its newest event was; in append mode its rows wait for its end."""
    plain = QUERIES["nbqx"].build(person, auction, bid)
    since = F.greatest("auction_time", "bid_time")
    for minutes in GAPS_MINUTES:
        gap = F.expr(f"INTERVAL {0 if append else minutes} MINUTES")
        is_part = F.col("part") == f"session {minutes}"
        since = F.when(is_part, F.col("endtime") - gap).otherwise(since)
    return plain.withColumn(LAT_TS, since)


def _newest_of(query: str, *times: str) -> Callable[..., DataFrame]:
    """The plain query already shows the times of all that a row derives from."""

    def build(
        person: DataFrame, auction: DataFrame, bid: DataFrame, append: bool = True
    ) -> DataFrame:
        newest = F.greatest(*times) if len(times) > 1 else F.col(times[0])
        return QUERIES[query].build(person, auction, bid).withColumn(LAT_TS, newest)

    return build


def _nbq5(person: DataFrame, auction: DataFrame, bid: DataFrame, append: bool) -> DataFrame:
    if append:
        return _newest_of("nbq5", "endtime")(person, auction, bid)
    window = F.window("dateTime", "60 seconds", "10 seconds")
    groups = bid.groupBy("auction", window)
    counts = groups.agg(F.count("*").alias("num"), _as(F.max("dateTime")))
    return counts.select("auction", "num", *ends(), LAT_TS)


_TIMED: Final[dict[str, Callable[..., DataFrame]]] = {
    "q3": _q3,
    "q4": _q4,
    "q5": _q5,
    "q6": _q6,
    "q7": _q7,
    "q8": _q8,
    "q9": _newest_of("q9", "dateTime", "bid_dateTime"),
    "q11": _q11,
    "q12": _newest_of("q12", "endtime"),
    "q18": _newest_of("q18", "dateTime"),
    "q19": _q19,
    "q20": _newest_of("q20", "auction_dateTime", "bid_dateTime"),
    "nbq5": _nbq5,
    "nbq8": _newest_of("nbq8", "person_time", "dateTime"),
    "nbqx": _nbqx,
}
