"""The streaming source: `spark.readStream.format("penstock")`.

An offset is {"lsn": L, "from": F, "schema": hash, "log": id}: all that counts in [F, L) was read, F
being where the query began, for all its life. Spark calls one object on the driver's side, in a
process of its own, for all but `read`; that runs in tasks, on objects that were never asked
anything else, and so a partition says all that they need.

Law: the rows of [start, end) are the same whenever they are planned, by a query that knows them
from its follower or by one that was restarted and knows two offsets only.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.connector.arrow import Streams, check_columns, find_streams, target_schema
from penstock.connector.causes import only_cause
from penstock.connector.connections import connected, set_modules_aside
from penstock.connector.follower import AHEAD_BYTES_MAX, FollowerLimits, SourceFollower
from penstock.connector.options import ReadOptions
from penstock.connector.partitions import Partition, Span, plan_items, plan_range
from penstock.connector.read_partition import (
    data_lost,
    read_carried,
    read_from_log,
    read_markers,
)
from penstock.errors import BadRequest, SchemaMismatch
from penstock.stream.positions import resolve_position
from penstock.stream.registration import stream_tag
from penstock.stream.schema import decode_schema, encode_schema
from penstock.stream.session import Log

logger = logging.getLogger(__name__)

Offset = dict[str, Any]
_LSN: Final = "lsn"
_FROM: Final = "from"
_SCHEMA: Final = "schema"
_LOG: Final = "log"


#: Of the hexadecimal digits of a log's id.
_LOG_ID_LENGTH: Final = 16


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark calls."""

    def __init__(self, options: ReadOptions, columns: StructType) -> None:
        self._options = options
        self._columns = columns
        self._driver: _Driver | None = None

    # ---- on the driver's side

    @only_cause
    def initialOffset(self) -> Offset:
        return self._on_driver().initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark takes one limit; `latestOffset` keeps both."""
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._on_driver().stop_at_tail()

    @only_cause
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        return self._on_driver().latest_offset(start, isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> Offset | None:
        return self._on_driver().reported_offset()

    @only_cause
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return self._on_driver().partitions(start, end)

    def commit(self, end: Offset) -> None:
        self._on_driver().forget(end)

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()

    def _on_driver(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self._options, self._columns)
        return self._driver

    # ---- in tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._columns)


def make_partitions(planned: Sequence[Partition], schema: pa.Schema) -> list[InputPartition]:
    """Plain data, and all that a task needs beside its options."""
    encoded = encode_schema(schema)
    return [InputPartition((encoded, partition)) for partition in planned]


def read_partition(
    given: InputPartition,
    options: ReadOptions,
    columns: StructType,
    *,
    is_batch: bool = False,
) -> Iterator[pa.RecordBatch]:
    """In a task: the batches of what `make_partitions` made."""
    set_modules_aside()
    if given.value is None:  # Spark's own, where a batch has no partitions
        return iter(())
    encoded, partition = given.value
    schema, target = decode_schema(encoded), target_schema(columns)
    if partition.carried:
        return read_carried(partition, schema, target)
    client = connected(options.where).client
    return read_from_log(
        client,
        partition,
        schema,
        target,
        fail_on_data_loss=options.fail_on_data_loss,
        is_batch=is_batch,
    )


class _Driver:
    """A query's source in the process on the driver's side; made at the first call."""

    def __init__(self, options: ReadOptions, columns: StructType) -> None:
        self._options = options
        self._log: Log = connected(options.where)
        self._streams: Streams = find_streams(self._log, options)
        check_columns(columns, self._streams.schema, options)
        self._log_id = self._log.id[:_LOG_ID_LENGTH]
        #: Where the query began, as its offsets say; None: none was seen.
        self._from: int | None = None
        self._initial: Offset | None = None
        #: Where a query that takes what is there now ends.
        self._below: int | None = None
        self._follower: SourceFollower | None = None

    def initial_offset(self) -> Offset:
        """Spark asks twice, and "latest" must mean one position."""
        if self._initial is None:
            options = self._options
            beginning = min(source.start_lsn for source in self._streams.sources)
            lsn = self._checked(
                resolve_position(
                    self._log.client, options.start, options.streams, beginning=beginning
                )
            )
            self._initial = self._offset(lsn, lsn)
        return self._initial

    def stop_at_tail(self) -> None:
        self._below = self._log.bounds().tail

    def latest_offset(self, start: Offset, everything: bool) -> Offset:
        options = self._options
        first = self._lsn(start)
        self._from = int(start.get(_FROM, first))
        follower = self._following(first)
        everything = everything or (options.rows_max is None and options.bytes_max is None)
        if everything and not (self._below is None and follower.is_current):
            end = self._end_of_log(first)
        else:
            rows_max = None if everything else options.rows_max
            bytes_max = None if everything else options.bytes_max
            end = self._cut(follower, first, FollowerLimits(rows_max, bytes_max, self._below))
        return self._offset(end, self._from) if end > first else start

    def reported_offset(self) -> Offset | None:
        if self._follower is None or self._from is None:
            return None
        return self._offset(self._follower.end, self._from)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        first, last = self._begin(start, end), self._lsn(end)
        if first == last:
            return []  # another source of the query has news
        items = None if self._follower is None else self._follower.items(first, last)
        options, sources = self._options, self._streams.sources
        how: dict[str, Any] = {
            "partitions": options.partitions,
            "processors": os.cpu_count() or 1,
            "by": options.division,
        }
        if items is not None:
            planned = plan_items(items, sources, **how)
        else:
            first = min(self._checked(first), last)
            if first == last:
                return []  # all of it is lost
            span = Span(first, last)
            markers = read_markers(self._log.client, sources, span)
            planned = plan_range(span, markers, sources, **how)
        return make_partitions(planned, self._streams.schema)

    def forget(self, end: Offset) -> None:
        if self._follower is not None:
            self._follower.forget(int(end[_LSN]))

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    def _cut(self, follower: SourceFollower, first: int, limits: FollowerLimits) -> int:
        try:
            return follower.cut(first, limits)
        except BaseException:
            self.close()  # whoever calls again begins anew
            raise

    def _following(self, start: int) -> SourceFollower:
        """The follower; begun here if it cannot tell what comes after `start`."""
        if self._follower is not None and not self._follower.covers(start):
            self.close()
        if self._follower is None:
            self._follower = SourceFollower(
                self._log.client,
                self._streams.sources,
                start,
                tail_from=self._checked(start),
                ahead_max=max(self._options.bytes_max or 0, AHEAD_BYTES_MAX),
                by=self._options.division,
                fail_on_data_loss=self._options.fail_on_data_loss,
            )
        return self._follower

    def _end_of_log(self, start: int) -> int:
        """After all that is there, by one question a stream: it may be far too much to follow."""
        last = [
            self._log.client.read_last(stream_tag(source.name), end=self._below)
            for source in self._streams.sources
        ]
        end = max([start, *(entry.lsn + 1 for entry in last if entry is not None)])
        if end > start:
            self.close()  # the next trigger begins at the end
        return end

    def _checked(self, start: int) -> int:
        """A position from which the log can be read."""
        bounds = self._log.bounds()
        if start > bounds.tail:
            raise BadRequest(
                f"stream {self._names()} is to be read from LSN {start}, but the log ends at "
                f"{bounds.tail}: the checkpoint, or the position, is of another log; start with a "
                "new checkpoint"
            )
        beginning = min(source.start_lsn for source in self._streams.sources)
        start = max(start, beginning)
        if start >= bounds.trim_point:
            return start
        if self._options.fail_on_data_loss:
            raise data_lost(self._options.streams, start, bounds.trim_point)
        logger.warning(
            "rows are lost stream=%s from_lsn=%d trim_point=%d",
            self._names(),
            start,
            bounds.trim_point,
        )
        return bounds.trim_point

    def _begin(self, start: Offset, end: Offset) -> int:
        """Where the batch that ends at `end` begins.

        Spark does not store where the first batch begins, and asks for it again after a restart;
        by then "latest", or "earliest" in a log that was trimmed, is another position.
        """
        first, last = self._lsn(start), self._lsn(end)
        if first == last and _FROM not in end:
            return first
        if _FROM not in end:
            raise BadRequest(
                f"the checkpoint's offset {last} of stream {self._names()} does not say where the "
                "query began: start with a new checkpoint"
            )
        if int(start.get(_FROM, first)) != int(end[_FROM]):
            first = int(end[_FROM])
        if first > last:
            raise BadRequest(
                f"stream {self._names()} is to be read from LSN {first} to {last}, which lies "
                "before it: the checkpoint's offsets are not of one query; start with a new "
                "checkpoint"
            )
        return first

    def _offset(self, lsn: int, began: int) -> Offset:
        """Spark compares offsets as texts: the keys always in this order."""
        return {
            _LSN: int(lsn),
            _FROM: int(began),
            _SCHEMA: self._streams.schema_hash,
            _LOG: self._log_id,
        }

    def _lsn(self, offset: Offset) -> int:
        """Raises SchemaMismatch if the query began when the streams had another schema.

        Raises BadRequest if it is a position in another log.
        """
        if offset.get(_LOG) != self._log_id:
            raise BadRequest(
                f"the checkpoint of stream {self._names()} is of another log, "
                f"{offset.get(_LOG, 'unknown')}, and not of {self._log_id}, which is at "
                f"{self._log.target}: correct the option log, or start with a new checkpoint"
            )
        if offset.get(_SCHEMA) != self._streams.schema_hash:
            raise SchemaMismatch(
                f"stream {self._names()} has another schema than when the checkpoint was written; "
                "start with a new checkpoint"
            )
        return int(offset[_LSN])

    def _names(self) -> str:
        return ", ".join(self._options.streams)
