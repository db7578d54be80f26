"""Spark's micro-batches over Penstock's log: a streaming source and sink in Python.

For measurements only, as fast as we can make them and with what keeps exactly-once:

- For latency the source is a `SimpleDataSourceStreamReader`: of the two kinds it has the lower one,
  since the rows reach the JVM with the offset and no task needs a Python process to read them. A
  thread follows the stream all the time, so a trigger takes what has arrived and never waits for
  the log. For throughput it is a `DataSourceStreamReader` with as many tasks as cores, which gets
  more through. Rows cross as Arrow, in few large batches.
- The sink takes Arrow and appends in the task: rows are visible before Spark's commit, not after
  it. One conditional append writes the rows and the batch id, so a batch that runs again is known
  by its id and skipped. It costs a round trip to the log (below 1 ms).
- Updates go another way, since Spark takes no Python sink for them: the driver collects each batch
  and appends it, with the same condition.
- Both keep their connection between batches, for as long as Spark keeps their process. Spark's
  workers collect garbage after every call, over all modules that are loaded: these are set aside.

Spark's Python workers import this module by its name: program.py puts its directory on their path.
"""

from __future__ import annotations

import gc
import itertools
import json
import random
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from penstock.log.client.blocking import BlockingLog
from penstock.log.records import Entry, Guard, Kind, SetKey
from penstock.stream.groups import Group, make_groups
from penstock.stream.registration import stream_tag
from penstock.stream.session import Log, connect
from penstock.stream.stream import Stream

FORMAT: Final = "penstock_bench"
#: Rows of one Arrow batch on the way to the JVM.
_BATCH_ROWS: Final = 50_000

#: Spark calls a source and a sink in processes that it keeps: so do we our connection there.
_logs: dict[str, Log] = {}
_streams: dict[tuple[str, str], Stream] = {}
_calls = 0


def read_stream(
    spark: SparkSession, log: str, stream: str, schema: StructType, *, readers: int | None = None
) -> DataFrame:
    """A stream of the log in the directory `log`, from its start.

    With `readers`, so many tasks read each batch; without, Spark's driver does.
    """
    spark.dataSource.register(BenchDataSource)
    reader = spark.readStream.format(FORMAT)
    if readers is not None:
        reader = reader.option("readers", readers)
    return reader.option("log", log).option("stream", stream).schema(schema).load()


def write_stream(
    frame: DataFrame, log: str, stream: str, checkpoint: str, *, mode: str = "append"
) -> StreamingQuery:
    """Start the query, with Spark's default trigger."""
    if mode != "append":
        return _write_updates(frame, log, stream, checkpoint, mode)
    writer = frame.writeStream.format(FORMAT).outputMode(mode)
    writer = writer.option("log", log).option("stream", stream)
    return writer.option("checkpointLocation", checkpoint).start()


def _write_updates(
    frame: DataFrame, log: str, stream: str, checkpoint: str, mode: str
) -> StreamingQuery:
    """Spark takes no sink in Python for updates: the driver collects each batch and appends it."""

    def append(batch: DataFrame, batch_id: int) -> None:
        result = _stream(log, stream)
        rows = batch.toArrow().cast(result.schema)
        if rows.num_rows:
            groups = _groups(result, rows.to_batches())
            append_once(_connected(log).client, f"bench/{stream}", batch_id, groups)

    writer = frame.writeStream.outputMode(mode).option("checkpointLocation", checkpoint)
    return writer.foreachBatch(append).start()


class BenchDataSource(DataSource):
    """Options: `log`, a directory, and `stream`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if "readers" not in self.options:
            return super().streamReader(schema)  # Spark then asks for the simple one
        readers = int(self.options["readers"])
        return BenchParallelReader(self.options["log"], self.options["stream"], schema, readers)

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        return BenchReader(self.options["log"], self.options["stream"], schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        _set_modules_aside()
        return BenchWriter(self.options["log"], self.options["stream"])


class BenchReader(SimpleDataSourceStreamReader):
    """Offsets are LSNs: everything below was read."""

    def __init__(self, log: str, stream: str, schema: StructType) -> None:
        self._log = log
        self._stream = stream
        self._schema = schema
        self._arrived: deque[Entry] = deque()
        self._failed: Exception | None = None
        self._next_lsn: int | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"lsn": int(_connected(self._log).bounds().trim_point)}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        if self._next_lsn is None:
            self._next_lsn = start["lsn"]
            threading.Thread(target=self._follow, args=(start["lsn"],), daemon=True).start()
        assert start["lsn"] == self._next_lsn, "Spark goes back only after a restart, and then anew"
        if self._failed is not None:
            raise self._failed
        entries = [self._arrived.popleft() for _ in range(len(self._arrived))]
        if entries:
            self._next_lsn = entries[-1].lsn + 1
        return iter(_decode(entries, self._schema)), {"lsn": self._next_lsn}

    def _follow(self, start: int) -> None:
        try:
            with _connected(self._log).client.tail([stream_tag(self._stream)], start=start) as tail:
                for found in tail:
                    self._arrived.extend(e for e in found.entries if e.kind is Kind.DATA)
        except Exception as error:  # the next trigger raises it
            self._failed = error

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:
        return iter(_read(self._log, self._stream, self._schema, start["lsn"], end["lsn"]))


@dataclass(frozen=True, slots=True)
class Span(InputPartition):
    """LSNs that one task reads."""

    start: int
    end: int


class BenchParallelReader(DataSourceStreamReader):
    """The other kind of source, for throughput: several tasks read a batch, each its LSNs."""

    def __init__(self, log: str, stream: str, schema: StructType, readers: int) -> None:
        self._log = log
        self._stream = stream
        self._schema = schema
        self._readers = readers

    def initialOffset(self) -> dict[str, int]:
        return {"lsn": int(_connected(self._log).bounds().trim_point)}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        last = _connected(self._log).client.read_last(stream_tag(self._stream))
        return start if last is None else {"lsn": max(start["lsn"], last.lsn + 1)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Span]:
        first, count = start["lsn"], end["lsn"] - start["lsn"]
        cuts = [first + count * number // self._readers for number in range(self._readers + 1)]
        return [Span(low, high) for low, high in itertools.pairwise(cuts) if low < high]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Span)
        _set_modules_aside()
        return iter(_read(self._log, self._stream, self._schema, partition.start, partition.end))


class BenchWriter(DataSourceStreamArrowWriter):
    """Appends a partition's rows, once for each batch id."""

    def __init__(self, log: str, stream: str) -> None:
        self._log = log
        self._stream = stream

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        _set_modules_aside()
        context = TaskContext.get()
        assert context is not None
        batch_id = int(context.getLocalProperty("streaming.sql.batchId") or "")
        batches = [batch for batch in iterator if batch.num_rows]
        if batches:
            stream = _stream(self._log, self._stream)
            groups = _groups(stream, batches)
            key = f"bench/{self._stream}/{context.partitionId()}"
            append_once(_connected(self._log).client, key, batch_id, groups)
        return WriterCommitMessage()


def _groups(stream: Stream, batches: list[pa.RecordBatch]) -> list[Group]:
    turns = itertools.count(random.randrange(stream.lanes))
    return make_groups(batches, schema=stream.schema, lanes=stream.spread, turns=turns)


def _read(log: str, stream: str, schema: StructType, start: int, end: int) -> list[pa.RecordBatch]:
    found = _connected(log).client.read([stream_tag(stream)], start=start, end=end)
    return _decode([entry for entry in found if entry.kind is Kind.DATA], schema)


def _decode(entries: list[Entry], schema: StructType) -> list[pa.RecordBatch]:
    # Spark compares the schema to the letter, so ours is made from its own.
    arrow = to_arrow_schema(schema, timezone="UTC")
    # Unchecked: the peer is not to pay for it.
    payloads = [pa.ipc.read_record_batch(pa.py_buffer(entry.payload), arrow) for entry in entries]
    table = pa.Table.from_batches(payloads, arrow).combine_chunks()
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=_BATCH_ROWS)
    return batches


def append_once(client: BlockingLog, key: str, batch_id: int, groups: list[Group]) -> None:
    """Append the groups of a batch, except those that an earlier attempt has appended.

    The metadata key holds the last batch and how many of its groups are there; each append moves it
    on, and fails if somebody else has.
    """
    known = client.get(key)
    value = None if known is None else known.data
    last_batch, done = (-1, 0) if value is None else json.loads(value)
    if last_batch > batch_id:
        return
    for number in range(done if last_batch == batch_id else 0, len(groups)):
        moved = json.dumps([batch_id, number + 1]).encode()
        client.append(groups[number], guards=[Guard(key, value)], sets=[SetKey(key, moved)])
        value = moved


def _set_modules_aside() -> None:
    """What is there now is never looked at again by the garbage collector.

    Spark and Arrow load more after the first calls. `gc.get_freeze_count` would tell, but walks all
    that is frozen, 3 to 9 ms a time.
    """
    global _calls
    _calls += 1
    if _calls in (1, 3, 10):
        gc.freeze()


def _connected(directory: str) -> Log:
    if directory not in _logs:
        _logs[directory] = connect(directory)
    return _logs[directory]


def _stream(directory: str, name: str) -> Stream:
    known = _streams.get((directory, name))
    if known is None:
        known = _streams[directory, name] = _connected(directory).stream(name)
    return known
