"""`spark.read.format("penstock")`: what counts in a range of LSNs.

Owns the range: what the options say, narrowed by filters on `_lsn` and `_time` if Spark pushes
them down. Positions are fixed when Spark plans: rows that come later are not read. Law: a filter
that is not given back to Spark is applied exactly.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from penstock.connector.arrow import Streams, check_columns, find_streams
from penstock.connector.causes import only_cause
from penstock.connector.connections import connected
from penstock.connector.options import ReadOptions
from penstock.connector.partitions import Partition, Span, plan_range
from penstock.connector.read_partition import (
    batch_commit_lost,
    batch_data_lost,
    cut_off,
    read_markers,
)
from penstock.connector.stream_reader import make_partitions, read_partition
from penstock.log.api import Bounds
from penstock.stream.metadata import LSN, TIME
from penstock.stream.positions import EARLIEST, resolve_position

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.stream.session import Log

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class PenstockBatchReader(DataSourceReader):
    """What Spark calls: `partitions` where it plans, `read` in tasks."""

    def __init__(self, options: ReadOptions, columns: StructType) -> None:
        self._options = options
        self._columns = columns

    @only_cause
    def partitions(self) -> list[InputPartition]:  # Spark wants a list
        options = self._options
        log = connected(options.where)
        streams = find_streams(log, options)
        check_columns(self._columns, streams.schema, options)
        return make_partitions(self._plan(log, streams), streams.schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._columns, is_batch=True)

    def _plan(self, log: Log, streams: Streams) -> list[Partition]:
        options, bounds = self._options, log.bounds()
        beginning = min(source.start_lsn for source in streams.sources)
        start = resolve_position(log.client, options.start, options.streams, beginning=beginning)
        start = max(start, beginning)
        end = min(resolve_position(log.client, options.end), bounds.tail)
        span = self._narrowed(log, Span(start, end))
        if span.first >= span.end:
            return []
        self._check_start(span, bounds)
        planned = plan_range(
            span,
            read_markers(log.client, streams.sources, span),
            streams.sources,
            partitions=options.partitions,
            processors=os.cpu_count() or 1,
            by=options.division,
        )
        gone = cut_off((span for each in planned for span in each.named), bounds.trim_point)
        if gone is not None:
            lsn = gone.place.lsn
            raise batch_commit_lost(options.streams, gone.first, lsn, bounds.trim_point)
        return planned

    def _narrowed(self, log: Log, span: Span) -> Span:
        return span

    def _check_start(self, span: Span, bounds: Bounds) -> None:
        if span.first < bounds.trim_point and self._options.start != EARLIEST:
            raise batch_data_lost(self._options.streams, span.first, bounds.trim_point)


class PenstockPushingReader(PenstockBatchReader):
    """The same, for a Spark that pushes filters down: it refuses this class if it does not.

    Spark keeps what was planned for the first query of a DataFrame and hands it to the next one
    that pushes nothing: a frame of this kind is good for one query. Hence only on request.
    """

    def __init__(self, options: ReadOptions, columns: StructType) -> None:
        super().__init__(options, columns)
        #: LSNs that can pass the filters.
        self._lsns = Span(0, 1 << 62)
        #: Times that can, in milliseconds; the filters themselves are Spark's to apply.
        self._times_ms: tuple[int | None, int | None] = (None, None)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for wanted in filters:
            if not self._takes(wanted):
                yield wanted

    def _takes(self, wanted: Filter) -> bool:
        """Whether the filter is applied here, to the letter; others only narrow what is read."""
        match wanted:
            case EqualTo((name,), value) | GreaterThan((name,), value):
                pass
            case GreaterThanOrEqual((name,), value) | LessThan((name,), value):
                pass
            case LessThanOrEqual((name,), value):
                pass
            case _:
                return False
        if name not in self._options.metadata:
            return False  # a column of the stream
        if name == LSN and type(value) is int:
            self._take_lsns(wanted, value)
            return True
        if name == TIME and isinstance(value, datetime) and value.utcoffset() is not None:
            self._take_times(wanted, value)
        return False

    def _take_lsns(self, wanted: Filter, value: int) -> None:
        low, high = _range(wanted, value, value + 1)
        first = self._lsns.first if low is None else max(self._lsns.first, low)
        end = self._lsns.end if high is None else min(self._lsns.end, high)
        self._lsns = Span(first, end)

    def _take_times(self, wanted: Filter, value: datetime) -> None:
        """Append times are whole milliseconds; a wider range is as good, Spark filters again."""
        time_ms = max((value - _EPOCH) // _MILLISECOND, 0)
        low, high = _range(wanted, time_ms, time_ms + 1)
        if isinstance(wanted, LessThan):
            high = time_ms + 1  # the value may lie inside the millisecond
        now_low, now_high = self._times_ms
        self._times_ms = (
            now_low if low is None else max(low, now_low or 0),
            now_high if high is None else min(high, high if now_high is None else now_high),
        )

    def _narrowed(self, log: Log, span: Span) -> Span:
        first, end = max(span.first, self._lsns.first), min(span.end, self._lsns.end)
        low_ms, high_ms = self._times_ms
        if low_ms is not None:
            first = max(first, log.client.find_time(low_ms))
        if high_ms is not None:
            end = min(end, log.client.find_time(high_ms))
        return Span(first, end)


def _range(wanted: Filter, value: int, after: int) -> tuple[int | None, int | None]:
    """[low, high) of what can pass a comparison with something in [value, after)."""
    match wanted:
        case EqualTo():
            return value, after
        case GreaterThan():
            return after, None
        case GreaterThanOrEqual():
            return value, None
        case LessThan():
            return None, value
        case _:
            return None, after
