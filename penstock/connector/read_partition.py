"""A partition, read by a task: entries of the log to the batches that Spark takes.

Owns how entries are fetched (few requests, nothing held but the batch in the making) and put
together: small entries as one batch, only the columns that are wanted, metadata columns beside.
Law: every entry of the partition, once, and no other (partitions.py says which those are).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.connector.items import ItemPlace, ItemSource
from penstock.connector.partitions import (
    Carried,
    NamedSpan,
    Partition,
    PartitionFilter,
    Span,
    intervals_of,
    tags_of,
)
from penstock.errors import BadFormat, Trimmed
from penstock.log.client.blocking import BlockingLog
from penstock.log.records import Entry
from penstock.protocol.names import naming_tag
from penstock.stream.batches import decode_batch
from penstock.stream.metadata import LSN, PRODUCER, STREAM, TIME

logger = logging.getLogger(__name__)

#: A batch on its way to Spark is closed when it has this many rows, or bytes of payloads.
_BATCH_ROWS: Final = 50_000
_BATCH_BYTES: Final = 8 << 20


def read_carried(
    partition: Partition, schema: pa.Schema, target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The batches of a partition that carries its entries."""
    return _batches(iter(partition.carried), schema, target)


def read_from_log(
    client: BlockingLog,
    partition: Partition,
    schema: pa.Schema,
    target: pa.Schema,
    *,
    fail_on_data_loss: bool,
    is_batch: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The batches of a partition, read from the log: streams have `schema`, Spark wants `target`.

    Raises Trimmed if some of it is gone and that is not to be passed over; what it says to do
    depends on `is_batch`: of `spark.read`, or of a query.
    """
    return _batches(_entries(client, partition, fail_on_data_loss, is_batch), schema, target)


def read_markers(client: BlockingLog, sources: Iterable[ItemSource], span: Span) -> Iterator[Entry]:
    """The markers in the span that name staged entries; only a delivery of them is held."""
    tags = [naming_tag(source.name) for source in sources]
    with client.tail(tags, start=span.first, end=span.end) as reader:
        for batch in reader:
            yield from batch.entries


def _entries(
    client: BlockingLog, partition: Partition, fail_on_data_loss: bool, is_batch: bool
) -> Iterator[Carried]:
    wanted = PartitionFilter(partition)
    tags = tags_of(partition)
    for interval in intervals_of(partition):
        start = interval.first
        while start < interval.end:
            try:
                with client.tail(tags, start=start, end=interval.end) as reader:
                    for batch in reader:
                        for entry in batch.entries:
                            yield from wanted.rows_of(entry)
                        start = batch.looked_up_to
                break
            except Trimmed as error:
                trim_point = client.bounds().trim_point
                if fail_on_data_loss or trim_point <= start:
                    raise _partition_lost(partition, start, trim_point, is_batch) from error
                logger.warning("rows are lost from_lsn=%d trim_point=%d", start, trim_point)
                start = trim_point


# ---- what is trimmed


def data_lost(names: Sequence[str], start: int, trim_point: int) -> Trimmed:
    """To a query."""
    return Trimmed(
        f"{_gone(names, start, trim_point)}: start with a new checkpoint, or go on at the trim "
        "point with option failOnDataLoss=false"
    )


def commit_lost(names: Sequence[str], first: int, marker_lsn: int, trim_point: int) -> Trimmed:
    """To a query, of rows from `first` on that count at a marker which is still there."""
    return Trimmed(
        f"{_cut_off(names, first, marker_lsn, trim_point)}: start with a new checkpoint and option "
        f"startingPosition={marker_lsn + 1}, after that commit, or pass over what is lost with "
        "option failOnDataLoss=false"
    )


def batch_data_lost(names: Sequence[str], start: int, trim_point: int) -> Trimmed:
    """To a `spark.read`."""
    return Trimmed(
        f"{_gone(names, start, trim_point)}: set option startingPosition to earliest, or to an LSN "
        "from there on"
    )


def batch_commit_lost(
    names: Sequence[str], first: int, marker_lsn: int, trim_point: int
) -> Trimmed:
    """To a `spark.read`, of rows from `first` on that count at a marker which is still there."""
    return Trimmed(
        f"{_cut_off(names, first, marker_lsn, trim_point)}: set option startingPosition to "
        f"{marker_lsn + 1}, after that commit"
    )


def cut_off(named: Iterable[NamedSpan], trim_point: int) -> NamedSpan | None:
    """Of what is trimmed, that which counts last; None: nothing is."""
    gone = [span for span in named if span.first < trim_point]
    return max(gone, key=lambda span: (span.place.lsn, -span.first), default=None)


def _partition_lost(partition: Partition, start: int, trim_point: int, is_batch: bool) -> Trimmed:
    names = [source.name for source in partition.sources]
    gone = cut_off((span for span in partition.named if span.end > start), trim_point)
    if gone is None:
        return (batch_data_lost if is_batch else data_lost)(names, start, trim_point)
    told = batch_commit_lost if is_batch else commit_lost
    return told(names, max(gone.first, start), gone.place.lsn, trim_point)


def _gone(names: Sequence[str], start: int, trim_point: int) -> str:
    return (
        f"stream {', '.join(names)} is to be read from LSN {start}, but the log was trimmed at "
        f"{trim_point}"
    )


def _cut_off(names: Sequence[str], first: int, marker_lsn: int, trim_point: int) -> str:
    return (
        f"stream {', '.join(names)}: the commit at LSN {marker_lsn} holds rows from LSN {first} "
        f"on, but the log was trimmed at {trim_point}"
    )


# ---- batches


@dataclass(slots=True)
class _Making:
    """The batch in the making."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    places: list[tuple[ItemPlace, str]] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


def _batches(
    entries: Iterator[Carried], schema: pa.Schema, target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    making = _Making()
    for entry in entries:
        try:
            batch = decode_batch(entry.payload, schema)
        except BadFormat as error:
            raise BadFormat(f"stream {entry.stream}, LSN {entry.place.lsn}: {error}") from error
        if not batch.num_rows:
            continue
        making.batches.append(batch)
        making.places.append((entry.place, entry.stream))
        making.rows += batch.num_rows
        making.bytes += len(entry.payload)
        if making.rows >= _BATCH_ROWS or making.bytes >= _BATCH_BYTES:
            yield _make(making, target)
            making = _Making()
    if making.rows:
        yield _make(making, target)


def _make(making: _Making, target: pa.Schema) -> pa.RecordBatch:
    names = set(making.batches[0].schema.names)
    arrays: list[pa.Array] = []
    for wanted in target:
        if wanted.name in names:
            columns = [batch.column(wanted.name) for batch in making.batches]
            array = columns[0] if len(columns) == 1 else pa.concat_arrays(columns)
            # Inside nested columns, the user may have said that there can be nulls.
            arrays.append(array if array.type == wanted.type else array.cast(wanted.type))
        else:
            arrays.append(_metadata_column(wanted, making))
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _metadata_column(wanted: pa.Field, making: _Making) -> pa.Array:
    counts = [batch.num_rows for batch in making.batches]
    values: Sequence[int | str]
    match wanted.name:
        case name if name == LSN:
            values = [place.lsn for place, _ in making.places]
        case name if name == TIME:
            values = [place.time_ms * 1000 for place, _ in making.places]
        case name if name == PRODUCER:
            values = [place.producer for place, _ in making.places]
        case name if name == STREAM:
            values = [stream for _, stream in making.places]
        case name:
            raise AssertionError(f"no column {name}: check_columns lets none of that name through")
    per_entry = pa.array(values)
    repeated = per_entry.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
    return repeated.cast(wanted.type)
