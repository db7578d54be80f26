"""What users do around a query: sources, sinks, starting, watching, reading the result."""

from __future__ import annotations

import contextlib
import io
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from harness.waiting import wait_until
from pyspark.sql import functions as F

import penstock
from survey.construct import Group, Habit

SCHEMA: Final = "id long, item string, price double, ts timestamp"


class Desk:
    """A session, a log and a stream of orders with rows in it, as a user has them."""

    def __init__(self, spark: Any, log: penstock.Log, rows: Any) -> None:
        self.spark = spark
        self.log = log
        self.rows = rows
        self.orders = log.create_stream("desk_orders", SCHEMA)
        self.orders.append(rows)
        self._count = 0

    def name(self) -> str:
        """One that no other habit uses."""
        self._count += 1
        return f"habit_{self._count}"

    def directory(self) -> str:
        """An empty one, for a checkpoint."""
        path = Path(self.log.default_checkpoints or ".").parent / self.name()
        return str(path)

    @contextlib.contextmanager
    def started(self, frame: Any, **options: Any) -> Iterator[Any]:
        """A query, stopped in the end."""
        query = penstock.start(frame, **{"workers": 1, "log": self.log, **options})
        try:
            query.processAllAvailable()
            yield query
        finally:
            query.stop()

    def counted(self) -> Any:
        """A DataFrame that is worth starting."""
        return self.orders.df(self.spark).groupBy("item").count()


def _append_kinds(desk: Desk) -> None:
    stream = desk.log.create_stream(desk.name(), SCHEMA)
    stream.append(desk.rows)
    stream.append(desk.rows.to_pandas())
    stream.append(desk.rows.to_pylist())
    assert stream.read().num_rows == 3 * desk.rows.num_rows


def _start_and_read(desk: Desk) -> None:
    name = desk.name()
    with desk.started(desk.counted(), to=name, name=name) as query:
        assert query.result().num_rows == 4
        assert query.isActive and query.status and query.lastProgress is not None
        assert query.awaitTermination(timeout=0.01) is False


def _defaults(desk: Desk) -> None:
    with desk.started(desk.counted()) as query:
        assert query.result().num_rows == 4


def _go_on(desk: Desk) -> None:
    name = desk.name()
    source = desk.log.create_stream(desk.name(), SCHEMA)
    frame = source.df(desk.spark).select("id")
    for turn in (1, 2):
        source.append(desk.rows)
        with desk.started(frame, to=name, name=name, mode="append") as query:
            assert query.result().num_rows == turn * desk.rows.num_rows


def _pandas(desk: Desk) -> None:
    assert len(desk.orders.to_pandas()) == desk.rows.num_rows


def _show_stream(desk: Desk) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        desk.orders.show(2)
    assert "item" in shown.getvalue()


def _duckdb(desk: Desk) -> None:
    import duckdb

    orders = desk.orders.read()
    (count,) = duckdb.sql("SELECT count(*) FROM orders").fetchall()[0]
    assert count == orders.num_rows


def _queries(desk: Desk) -> None:
    name = desk.name()
    with desk.started(desk.counted(), to=name, name=name):
        assert name in [query.name for query in penstock.queries(desk.spark).active]


def _metadata(desk: Desk) -> None:
    name = desk.name()
    frame = desk.orders.df(desk.spark, metadata=["_lsn", "_time"]).select("id", "_lsn", "_time")
    with desk.started(frame, to=name, name=name, mode="append") as query:
        assert query.result()["_lsn"].null_count == 0


def _dead_letter(desk: Desk) -> None:
    name = desk.name()
    frame = desk.orders.df(desk.spark).selectExpr("id", "1 / (id - 3) AS x")
    with desk.started(frame, to=name, name=name, mode="append", dead_letter=name + "_bad") as query:
        assert query.result().num_rows == desk.rows.num_rows - 1
    assert desk.log.stream(name + "_bad").read().num_rows == 1


def _explain(desk: Desk) -> None:
    assert "aggregate" in penstock.explain(desk.counted())


def _deliver(desk: Desk) -> None:
    name, path = desk.name(), desk.directory() + ".sqlite"
    with desk.started(desk.counted(), to=name, name=name) as query:
        delivery = penstock.deliver(query, f"sqlite:///{path}", table="counts")
        try:
            wait_until(lambda: _rows_of(path) == 4, "the table does not have the result")
        finally:
            delivery.stop()


def _rows_of(path: str) -> int | None:
    with contextlib.suppress(sqlite3.Error), sqlite3.connect(path) as database:
        (count,) = database.execute("SELECT count(*) FROM counts").fetchone()
        return int(count)
    return None


def _run_micro_batches(desk: Desk, writer: Any) -> None:
    query = writer.option("checkpointLocation", desk.directory()).trigger(availableNow=True).start()
    assert query.awaitTermination(60)


def _source(desk: Desk) -> Any:
    frame = desk.orders.df(desk.spark)
    return frame.select("id", "item")


def _for_each_batch(desk: Desk) -> None:
    counts: list[int] = []
    writer = _source(desk).writeStream.foreachBatch(lambda batch, _: counts.append(batch.count()))
    _run_micro_batches(desk, writer)
    assert sum(counts) == desk.rows.num_rows


def _memory_sink(desk: Desk) -> None:
    name = desk.name()
    _run_micro_batches(desk, _source(desk).writeStream.format("memory").queryName(name))
    assert desk.spark.table(name).count() == desk.rows.num_rows


def _sink(desk: Desk) -> None:
    name = desk.name()
    writer = _source(desk).writeStream.format("penstock").option("stream", name)
    _run_micro_batches(desk, writer.options(**desk.orders.found_by))
    assert desk.log.stream(name).read().num_rows == desk.rows.num_rows


def _batch_read(desk: Desk) -> None:
    reader = desk.spark.read.format("penstock").option("stream", "desk_orders")
    assert reader.options(**desk.orders.found_by).load().count() == desk.rows.num_rows


def _batch_write(desk: Desk) -> None:
    name = desk.name()
    writer = desk.spark.range(5).write.format("penstock").option("stream", name).mode("append")
    writer.options(**desk.orders.found_by).save()
    assert desk.log.stream(name).read().num_rows == 5


def _listener(desk: Desk) -> None:
    from pyspark.sql.streaming import StreamingQueryListener

    heard: list[str] = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            heard.append(event.name)

        def onQueryProgress(self, event: Any) -> None: ...

        def onQueryIdle(self, event: Any) -> None: ...

        def onQueryTerminated(self, event: Any) -> None: ...

    name, listener = desk.name(), Listener()
    penstock.queries(desk.spark).addListener(listener)
    try:
        with desk.started(desk.counted(), to=name, name=name):
            wait_until(lambda: name in heard, "the listener heard nothing")
    finally:
        penstock.queries(desk.spark).removeListener(listener)


def _rate_source(desk: Desk) -> None:
    name = desk.name()
    frame = desk.spark.readStream.format("rate").load().groupBy(F.col("value") % 2).count()
    with desk.started(frame, to=name, name=name):
        pass


def _file_source(desk: Desk) -> None:
    name, path = desk.name(), desk.directory()
    desk.spark.range(5).write.parquet(path)
    frame = desk.spark.readStream.schema("id long").parquet(path)
    with desk.started(frame, to=name, name=name, mode="append") as query:
        assert query.result().num_rows == 5


def _show(desk: Desk) -> None:
    desk.counted().show()


def _several_queries(desk: Desk) -> None:
    first, second = desk.name(), desk.name()
    with desk.started(desk.counted(), to=first, name=first):
        rows = desk.orders.df(desk.spark).where("price > 10").select("id")
        with desk.started(rows, to=second, name=second, mode="append") as query:
            assert query.result().num_rows > 0


def _chained(desk: Desk) -> None:
    """A query over the result of another one."""
    first, second = desk.name(), desk.name()
    rows = desk.orders.df(desk.spark).where("price > 10").select("id", "item")
    with desk.started(rows, to=first, name=first, mode="append"):
        frame = desk.log.stream(first).df(desk.spark).groupBy("item").count()
        with desk.started(frame, to=second, name=second) as query:
            assert query.result().num_rows > 0


HABITS: Final[Group] = (
    Habit("append dicts, pandas and Arrow", _append_kinds),
    Habit("start, watch, read the result", _start_and_read),
    Habit("start without a name", _defaults),
    Habit("stop, start again, go on", _go_on),
    Habit("a query over another's result", _chained),
    Habit("explain before the start", _explain),
    Habit("list running queries", _queries),
    Habit("listeners", _listener),
    Habit("columns of the log: _lsn and _time", _metadata),
    Habit("bad rows to a stream", _dead_letter),
    Habit("a stream in pandas", _pandas),
    Habit("show the rows of a stream", _show_stream),
    Habit("a stream in DuckDB", _duckdb),
    Habit("results in a database", _deliver),
    Habit("foreachBatch", _for_each_batch),
    Habit("memory sink", _memory_sink),
    Habit("micro-batches to a stream", _sink),
    Habit("spark.read of a stream", _batch_read),
    Habit("df.write to a stream", _batch_write),
    Habit("rate source", _rate_source),
    Habit("files as a source", _file_source),
    Habit("show() of a streaming DataFrame", _show),
)
