"""`penstock.foreach_batch_writer`: what `foreachBatch` needs to write streams exactly once.

For update and complete mode, which Spark allows no sink in Python, and for several streams that
become visible together. Tasks stage as for the streaming sink; the driver appends one marker with
the tags of all streams. Law: a batch is on all of its streams or on none, once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.connector.commit import commit_batch, was_committed
from penstock.connector.connections import connected, set_modules_aside
from penstock.connector.options import Where, checkpoint_place, where
from penstock.connector.sinks import ready_stream
from penstock.connector.staging import Staged, Staging
from penstock.connector.stream_writer import QUERY_ID
from penstock.errors import BadRequest, Unsupported
from penstock.ids import Lsn
from penstock.protocol.batch_commit import Batch
from penstock.protocol.markers import Range
from penstock.protocol.names import staging_key
from penstock.stream.registration import check_name
from penstock.stream.session import Log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

#: From the rows of a batch to the rows of each stream.
Route = Callable[["DataFrame", int], Mapping[str, "DataFrame"]]

_STAGED: Final = "first_lsn long, entries long, rows long, log string"
_STREAMS_MAX: Final = 20


def foreach_batch_writer(
    to: str | Route,
    *,
    log: Log | None = None,
    key_by: str | list[str] | None = None,
    take_over: bool = False,
) -> Callable[[DataFrame, int], None]:
    """A function for `DataStreamWriter.foreachBatch` that writes each batch exactly once.

    Rows of a batch are appended as they are: in update mode those that changed, in complete mode
    all of the result, each time. They are one atomic commit: all have the same `_lsn`.

        counts.writeStream.outputMode("update").foreachBatch(
            penstock.foreach_batch_writer("word_counts")
        ).option("checkpointLocation", "…").start()

    Args:
        to: A stream, which is made if there is none; or a function (batch, batch_id) that returns
            the rows of each stream, `{"big": DataFrame, "small": DataFrame}`. All of them become
            visible together, or none.
        log: By default the log of this machine, as in `penstock.connect()`.
        key_by: Columns by whose values rows go to virtual nodes.
        take_over: Go on from another checkpoint directory than the one the query began in.
    """
    if isinstance(to, str):
        check_name(to)
    elif not callable(to):
        raise BadRequest(f"expected a stream or a function that gives rows to streams, got {to!r}")
    place = where(*(None,) * 3) if log is None else where(log.target, log.token_file, log.tls_ca)
    keys = (key_by,) if isinstance(key_by, str) else tuple(key_by or ())

    def write(batch: DataFrame, batch_id: int) -> None:
        _write(place, to, batch, batch_id, keys, take_over)

    return write


def _write(
    place: Where,
    to: str | Route,
    rows: DataFrame,
    number: int,
    key_by: tuple[str, ...],
    take_over: bool,
) -> None:
    if not hasattr(rows, "_jdf"):
        raise Unsupported(
            "foreach_batch_writer needs classic PySpark: Spark Connect does not tell it the query"
        )
    query = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    if query is None:
        raise BadRequest("no streaming query runs here: give this function to foreachBatch")
    batch = Batch(query, number, _checkpoint_of(rows, query), take_over)
    reservation = staging_key(query, number)
    client = connected(place).client
    kept = None
    try:
        if callable(to):
            kept = rows.persist()  # several streams are made of it: of the same rows, then
            routed = _checked(to(kept, number))
        else:
            routed = {to: rows}
        if was_committed(client, batch, list(routed)):
            logger.info("query=%s batch=%d was committed before", query, number)
            return
        staged = [
            _stage(place, stream, rows, reservation, key_by) for stream, rows in routed.items()
        ]
        commit_batch(client, batch, list(routed), staged)
    finally:
        if kept is not None:
            kept.unpersist()


def _checked(routed: Any) -> dict[str, DataFrame]:
    if not isinstance(routed, Mapping) or not 0 < len(routed) <= _STREAMS_MAX:
        raise BadRequest(
            "the function given to foreach_batch_writer returns a dict of 1 to "
            f"{_STREAMS_MAX} DataFrames by stream, got {type(routed).__name__}"
        )
    for name in routed:
        check_name(name)
    return dict(routed)


def _stage(
    where: Where, name: str, frame: DataFrame, reservation: str, key_by: tuple[str, ...]
) -> Staged:
    """Run the job that stages the rows; only of tasks that won comes a result."""
    schema = frame.schema
    ready_stream(where, name, schema, key_by=key_by)
    stage = _stager(where, name, schema, reservation, key_by)
    written = frame.mapInArrow(stage, _STAGED).collect()
    ranges = [Range(Lsn(row.first_lsn), row.entries) for row in written if row.entries]
    logs = {row.log for row in written}
    return Staged(tuple(ranges), sum(row.rows for row in written), ", ".join(sorted(logs)))


def _stager(
    where: Where, name: str, schema: StructType, reservation: str, key_by: tuple[str, ...]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_modules_aside()
        client = connected(where).client
        stream = ready_stream(where, name, schema)
        done = Staging(client, stream, reservation=reservation, key_by=key_by).write(batches)
        ranges = done.ranges or (Range(Lsn(0), 0),)
        columns: dict[str, list[Any]] = {
            "first_lsn": [one.first_lsn for one in ranges],
            "entries": [one.count for one in ranges],
            "rows": [done.rows, *[0] * (len(ranges) - 1)],
            "log": [done.log] * len(ranges),
        }
        yield pa.RecordBatch.from_pydict(columns)

    return stage


def _checkpoint_of(rows: DataFrame, query: str) -> str | None:
    """The directory of the running query; foreachBatch is not told, Spark's own object knows."""
    session = rows.sparkSession._jsparkSession
    jvm = rows.sparkSession.sparkContext._jvm
    assert jvm is not None
    running = (
        session.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(query))
    )
    return None if running is None else checkpoint_place(running.resolvedCheckpointRoot())
