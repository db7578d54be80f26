"""Python inside a query: functions of rows, batches, groups, and of what they keep."""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterator
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import Row, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import LongType, StringType, StructField, StructType

from survey.construct import Construct, Group, queries

# Spark's workers cannot import the survey.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

_STATE: Final = "streams only: its tests are in tests/oracle"
_SIZES: Final = {"book": 2, "pen": 1}
_LARGE: Final = {f"item-{n}": "x" * 100 for n in range(20_000)}


def _label(item: str | None, price: float | None) -> str:
    return f"{item}:{price}"


def _shout(text: str | None) -> str | None:
    return None if text is None else text.upper() + "!"


class _Gross:
    """An object that is called."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, price: float | None) -> float | None:
        return None if price is None else price * (1 + self.rate)


def _udf_decorated(f: Any) -> Any:
    @F.udf("string")
    def first_word(text: str | None) -> str | None:
        return text.split(" ")[0] if text else None

    return f.orders.select("id", first_word("note"))


def _udf_struct(f: Any) -> Any:
    parts = F.udf(lambda code: tuple(code.split("-")[:2]), "prefix string, number string")
    return f.orders.select("id", parts("code").alias("p")).select("id", "p.*")


def _udf_sql(f: Any) -> Any:
    f.spark.udf.register("shout", _shout, "string")
    return f.spark.sql("SELECT id, shout(item) AS loud FROM orders WHERE shout(item) != 'PEN!'")


def _udf_broadcast(f: Any) -> Any:
    sizes = f.spark.sparkContext.broadcast(_SIZES)
    size = F.udf(lambda item: sizes.value.get(item, 0), "int")
    return f.orders.select("id", size("item"))


def _udf_large(f: Any) -> Any:
    table = dict(_LARGE)
    known = F.udf(lambda item: item in table, "boolean")
    return f.orders.select("id", known("item"))


def _pandas_scalar(f: Any) -> Any:
    @F.pandas_udf("double")
    def gross(price: pd.Series) -> pd.Series:
        return price * 1.19

    return f.orders.select("id", gross("price"))


def _pandas_two(f: Any) -> Any:
    @F.pandas_udf("string")
    def both(item: pd.Series, code: pd.Series) -> pd.Series:
        return item.str.cat(code, sep="/")

    return f.orders.select("id", both("item", "code"))


def _pandas_struct(f: Any) -> Any:
    @F.pandas_udf("length int, upper string")
    def described(item: pd.Series) -> pd.DataFrame:
        return pd.DataFrame({"length": item.str.len().astype("int32"), "upper": item.str.upper()})

    return f.orders.select("id", described("item"))


def _pandas_iterator(f: Any) -> Any:
    @F.pandas_udf("long")
    def plus(ids: Iterator[pd.Series]) -> Iterator[pd.Series]:
        offset = 100  # stands for a model that is loaded once
        for series in ids:
            yield series + offset

    return f.orders.select("id", plus("id"))


def _arrow_scalar(f: Any) -> Any:
    @F.arrow_udf("string")
    def upper(item: pa.Array) -> pa.Array:
        return pc.utf8_upper(item)

    return f.orders.select("id", upper("item"))


def _pandas_aggregate(f: Any) -> Any:
    @F.pandas_udf("double")
    def spread(price: pd.Series) -> float:
        return float(price.max() - price.min())

    return f.orders.groupBy("item").agg(spread("price"))


def _pandas_over_window(f: Any) -> Any:
    @F.pandas_udf("double")
    def mean(price: pd.Series) -> float:
        return float(price.fillna(0).mean())

    return f.orders.select("id", mean("price").over(Window.partitionBy("item")))


def _pandas_over_frame(f: Any) -> Any:
    @F.pandas_udf("long")
    def total(id: pd.Series) -> int:
        return int(id.sum())

    return f.orders.select(
        "id", total("id").over(Window.partitionBy("item").orderBy("ts").rowsBetween(-1, 0))
    )


def _arrow_aggregate(f: Any) -> Any:
    @F.arrow_udf("long")
    def longest(text: pa.Array) -> int:
        return max(pc.utf8_length(text.drop_null()).to_pylist(), default=0)

    return f.orders.groupBy("item").agg(longest("note"))


def _filtered(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame[frame.price > 10][["id", "price"]]


def _batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select(["id", "item"])


def _centred(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(price=frame.price - frame.price.mean())[["id", "price"]]


def _summed(key: tuple[Any, ...], frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"item": [key[0]], "n": [len(frame)]})


def _counted(rows: pa.Table) -> pa.Table:
    return pa.table({"n": pa.array([rows.num_rows], pa.int64())})


def _matched(orders: pd.DataFrame, payments: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"orders": [len(orders)], "payments": [len(payments)]})


def _cogrouped(f: Any, method: str, function: Any) -> Any:
    orders = f.orders.groupBy("customer")
    payments = f.payments.groupBy("payer")
    return getattr(orders.cogroup(payments), method)(function, "orders long, payments long")


def _matched_arrow(orders: pa.Table, payments: pa.Table) -> pa.Table:
    return pa.table({"orders": [orders.num_rows], "payments": [payments.num_rows]})


def _running_count(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any
) -> Iterator[pd.DataFrame]:
    """As in Spark's documentation of applyInPandasWithState."""
    if state.hasTimedOut:
        (count,) = state.get
        state.remove()
    else:
        count = (state.getOption or (0,))[0] + sum(len(frame) for frame in frames)
        state.update((count,))
        state.setTimeoutDuration(10_000)
    yield pd.DataFrame({"item": [key[0]], "n": [count]})


def _with_state(f: Any, timeout: str = GroupStateTimeout.ProcessingTimeTimeout) -> Any:
    return f.orders.groupBy("item").applyInPandasWithState(
        _running_count, "item string, n long", "n long", "update", timeout
    )


def _per_item(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any
) -> Iterator[pd.DataFrame]:
    """A session by event time: it is told when it has ended."""
    if state.hasTimedOut:
        (count,) = state.get
        state.remove()
        yield pd.DataFrame({"item": [key[0]], "n": [count]})
        return
    count, last = (state.getOption or (0,))[0], 0
    for frame in frames:
        count += len(frame)
        last = max(last, int(frame.ts.max().timestamp() * 1000))
    state.update((count,))
    state.setTimeoutTimestamp(max(last, state.getCurrentWatermarkMs()) + 60_000)


def _sessions(f: Any) -> Any:
    return (
        f.orders.withWatermark("ts", "1 minute")
        .groupBy("item")
        .applyInPandasWithState(
            _per_item,
            "item string, n long",
            "n long",
            "append",
            GroupStateTimeout.EventTimeTimeout,
        )
    )


_OUTPUT: Final = StructType([StructField("item", StringType()), StructField("n", LongType())])


class _Counter(StatefulProcessor):
    """A count by key."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        before = self._count.get()[0] if self._count.exists() else 0
        count = before + sum(1 for _ in rows)
        self._count.update((count,))
        yield Row(item=key[0], n=count)

    def close(self) -> None: ...


class _PandasCounter(StatefulProcessor):
    """The same with pandas, a list and a map."""

    def init(self, handle: Any) -> None:
        self._seen = handle.getListState("seen", "id long")
        self._by_customer = handle.getMapState("by", "customer string", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            for id, customer in zip(frame.id, frame.customer, strict=True):
                self._seen.appendValue((id,))
                name = customer or "?"
                before = self._by_customer.getValue((name,)) or (0,)
                self._by_customer.updateValue((name,), (before[0] + 1,))
        yield pd.DataFrame({"item": [key[0]], "n": [sum(1 for _ in self._seen.get())]})

    def close(self) -> None: ...


class _Forgetful(_Counter):
    """A count that is forgotten an hour after the last row."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long", 3_600_000)


class _Timed(StatefulProcessor):
    """Says something when a key has been silent."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        count = sum(1 for _ in rows) + (self._count.get()[0] if self._count.exists() else 0)
        self._count.update((count,))
        self._handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 60_000)
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield Row(item=key[0], n=self._count.get()[0] if self._count.exists() else 0)

    def close(self) -> None: ...


def _transform(f: Any, processor: Any, mode: str, time: str, method: str) -> Any:
    orders = f.orders.withWatermark("ts", "1 minute") if time == "EventTime" else f.orders
    return getattr(orders.groupBy("item"), method)(processor, _OUTPUT, mode, time)


def _udtf(f: Any) -> Any:
    @F.udtf(returnType="word string, length int")
    class Words:
        def eval(self, text: str | None) -> Iterator[tuple[str, int]]:
            for word in (text or "").split():
                yield word, len(word)

    f.spark.udtf.register("words", Words)
    return f.spark.sql("SELECT o.id, w.* FROM orders o, LATERAL words(o.note) w")


def _udtf_table(f: Any) -> Any:
    @F.udtf(returnType="item string, n int")
    class PerItem:
        def __init__(self) -> None:
            self._counts: collections.Counter[str] = collections.Counter()

        def eval(self, row: Row) -> None:
            self._counts[row["item"]] += 1

        def terminate(self) -> Iterator[tuple[str, int]]:
            yield from self._counts.items()

    f.spark.udtf.register("per_item", PerItem)
    return f.spark.sql(
        "SELECT * FROM per_item(TABLE(SELECT item, id FROM orders) PARTITION BY item)"
    )


def _udtf_dataframe(f: Any) -> Any:
    @F.udtf(returnType="n int")
    class Upto:
        def eval(self, quantity: int | None) -> Iterator[tuple[int]]:
            yield from ((n,) for n in range(quantity or 0))

    return f.orders.select("id", "quantity").lateralJoin(Upto(F.col("quantity").outer()))


def _udtf_arrow(f: Any) -> Any:
    @F.udtf(returnType="tag string", useArrow=True)
    class Tags:
        def eval(self, tags: list[str] | None) -> Iterator[tuple[str]]:
            yield from ((tag,) for tag in (tags if tags is not None else ()))

    f.spark.udtf.register("tags_of", Tags)
    return f.spark.sql("SELECT o.id, t.tag FROM orders o, LATERAL tags_of(o.tags) t")


PYTHON: Final[Group] = (
    *queries(
        {
            "udf of a lambda": lambda f: f.orders.select(
                "id", F.udf(lambda x: x + 1 if x else 0, "int")("quantity")
            ),
            "udf as a decorator": _udf_decorated,
            "udf that gives a struct": _udf_struct,
            "udf that gives an array or a map": lambda f: f.orders.select(
                "id", F.udf(lambda t: dict.fromkeys(t or (), 1), "map<string,int>")("tags")
            ),
            "udf without Arrow": lambda f: f.orders.select(
                "id", F.udf(_shout, "string", useArrow=False)("item")
            ),
            "udf of an object that is called": lambda f: f.orders.select(
                "id", F.udf(_Gross(0.19), "double")("price")
            ),
            "udf registered for SQL": _udf_sql,
            "udf in a filter": lambda f: f.orders.where(
                F.udf(lambda x: x is not None and x > 2, "boolean")("quantity")
            ).select("id"),
            "udf as a group key": lambda f: f.orders.groupBy(
                F.udf(lambda s: s[:1], "string")("item").alias("initial")
            ).count(),
            "udf with a broadcast variable": _udf_broadcast,
            "udf with a closure over 1 MiB": _udf_large,
            "pandas udf": _pandas_scalar,
            "pandas udf that gives a struct": _pandas_struct,
            "pandas udf over an iterator": _pandas_iterator,
            "arrow udf": _arrow_scalar,
            "grouped aggregate pandas udf": _pandas_aggregate,
            "pandas udf over a SQL window": _pandas_over_window,
            "pandas udf over a sliding frame": _pandas_over_frame,
            "mapInPandas": lambda f: f.orders.select("id", "price").mapInPandas(
                _filtered, "id long, price double"
            ),
            "mapInArrow": lambda f: f.orders.mapInArrow(_batches, "id long, item string"),
            "applyInPandas": lambda f: (
                f.orders.select("id", "item", "price")
                .groupBy("item")
                .applyInPandas(_centred, "id long, price double")
            ),
            "applyInPandas with the key": lambda f: f.orders.groupBy("item").applyInPandas(
                _summed, "item string, n long"
            ),
            "applyInArrow": lambda f: f.orders.groupBy("item").applyInArrow(_counted, "n long"),
            "cogroup in pandas": lambda f: _cogrouped(f, "applyInPandas", _matched),
            "cogroup in Arrow": lambda f: _cogrouped(f, "applyInArrow", _matched_arrow),
            "UDTF in a lateral join": _udtf,
            "UDTF over a table, by partition": _udtf_table,
            "UDTF by lateralJoin": _udtf_dataframe,
            "UDTF with Arrow": _udtf_arrow,
        }
    ),
    Construct("applyInPandasWithState", _with_state, unlike_batch=_STATE),
    Construct("applyInPandasWithState with event time", _sessions, "append", unlike_batch=_STATE),
    Construct(
        "transformWithState",
        lambda f: _transform(f, _Counter(), "Update", "None", "transformWithState"),
        unlike_batch=_STATE,
    ),
    Construct(
        "transformWithStateInPandas",
        lambda f: _transform(f, _PandasCounter(), "Update", "None", "transformWithStateInPandas"),
        unlike_batch=_STATE,
    ),
    Construct(
        "transformWithState with timers",
        lambda f: _transform(f, _Timed(), "Append", "EventTime", "transformWithState"),
        "append",
        unlike_batch=_STATE,
    ),
    Construct(
        "transformWithState with a time to live",
        lambda f: _transform(f, _Forgetful(), "Update", "ProcessingTime", "transformWithState"),
        unlike_batch=_STATE,
    ),
)
