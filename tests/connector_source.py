"""The connector's source as Spark would call it, without Spark; and what it finds in a log."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import penstock
from penstock.connector.arrow import stream_struct
from penstock.connector.batch_reader import PenstockBatchReader
from penstock.connector.options import BATCH_READ, STREAM_READ, read_options
from penstock.connector.stream_reader import PenstockStreamReader
from penstock.ids import Lsn
from penstock.log.records import Appended, Kind, NewEntry
from penstock.protocol.markers import Marker, Range, encode_marker
from penstock.protocol.names import with_naming
from penstock.stream.batches import encode_batch
from penstock.stream.registration import stream_tag

SCHEMA = "k long NOT NULL, v string"


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"k": n, "v": f"v{n}"} for n in range(first, first + count)]


def entry(stream: penstock.Stream, first: int, count: int, kind: Kind, *nodes: int) -> NewEntry:
    batch = pa.RecordBatch.from_pylist(rows(first, count), schema=stream.schema)
    tags = (stream_tag(stream.name), *(f"s/{stream.name}/{node}" for node in nodes))
    return NewEntry(encode_batch(batch), tags, kind, rows=count)


def stage(log: penstock.Log, stream: penstock.Stream, first: int, count: int, *nodes: int) -> Range:
    """Rows that count nowhere yet."""
    done = log.client.append([entry(stream, first, count, Kind.STAGED, *nodes)])
    return Range(done.first_lsn, done.count)


def mark(log: penstock.Log, streams: list[penstock.Stream], *ranges: Range) -> Appended:
    """A marker as the real-time engine and the sinks write it."""
    tags = [stream_tag(stream.name) for stream in streams]
    made = Marker("q.1/0/0", 1, 0, Lsn(0), 0, ranges=ranges)
    tags = ["T/q.1/0/0", *(with_naming(tags) if ranges else tags)]
    return log.client.append([NewEntry(encode_marker(made), tuple(tags), Kind.MARKER)])


def reader(log: penstock.Log, *streams: str, columns: Any = None, **said: Any) -> Any:
    options = {"log": log.target, "streams": ",".join(streams)}
    options |= {name: str(value) for name, value in said.items()}
    found = read_options(options, STREAM_READ)
    return PenstockStreamReader(found, columns or stream_struct(found))


def take(source: Any, start: Any, end: Any) -> list[dict[str, Any]]:
    """What tasks read of a batch, by objects that were asked nothing else."""
    found: list[dict[str, Any]] = []
    for part in source.partitions(start, end):
        task = PenstockStreamReader(source._options, source._columns)
        for batch in task.read(part):
            batch.validate(full=True)
            found += batch.to_pylist()
    return found


def read_now(log: penstock.Log, stream: str, **said: Any) -> list[dict[str, Any]]:
    """What `spark.read` gives."""
    options = {"log": log.target, "stream": stream}
    options |= {name: str(value) for name, value in said.items()}
    found = read_options(options, BATCH_READ)
    planned = PenstockBatchReader(found, stream_struct(found))
    task = PenstockBatchReader(found, planned._columns)
    return [
        row for part in planned.partitions() for got in task.read(part) for row in got.to_pylist()
    ]


def large_row(k: int) -> list[dict[str, Any]]:
    """A delivery of the log holds few of them."""
    return [{"k": k, "v": "x" * 500_000}]


def keys(found: list[dict[str, Any]]) -> list[int]:
    return sorted(row["k"] for row in found)


def run_through(source: Any, start: Any = None) -> tuple[list[list[dict[str, Any]]], Any]:
    """All triggers until nothing is new, as Spark calls them; and where it ended."""
    at = source.initialOffset() if start is None else start
    limit = source.getDefaultReadLimit()
    batches: list[list[dict[str, Any]]] = []
    while (end := source.latestOffset(at, limit)) != at:
        batches.append(take(source, at, end))
        source.commit(end)
        at = end
    return batches, at
