"""A part, read by a task: entries of the log to the batches that Spark takes.

Owns how entries are fetched (few requests, nothing held but the batch in the making) and put
together: small entries as one batch, only the columns that are wanted, metadata columns beside.
Law: every entry of the part, once, and no other (items.py says which those are).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.connector.items import (
    Carried,
    Finder,
    Part,
    Place,
    Span,
    intervals_of,
    tags_of,
)
from penstock.connector.options import LSN, PRODUCER, STREAM, TIME
from penstock.errors import BadFormat, Trimmed
from penstock.log.client.blocking import BlockingLog
from penstock.stream.batches import decode_batch

logger = logging.getLogger(__name__)

#: A batch on its way to Spark is closed when it has this many rows, or bytes of payloads.
_BATCH_ROWS: Final = 50_000
_BATCH_BYTES: Final = 8 << 20


def read_carried(part: Part, schema: pa.Schema, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches of a part that carries its entries."""
    return _batches(iter(part.carried), schema, target)


def read_part(
    client: BlockingLog,
    part: Part,
    schema: pa.Schema,
    target: pa.Schema,
    *,
    fail_on_data_loss: bool,
) -> Iterator[pa.RecordBatch]:
    """The batches of a part, read from the log: its streams have `schema`, Spark wants `target`.

    Raises Trimmed if some of it is gone and that is not to be passed over.
    """
    return _batches(_entries(client, part, fail_on_data_loss), schema, target)


def _entries(client: BlockingLog, part: Part, fail_on_data_loss: bool) -> Iterator[Carried]:
    found = Finder(part)
    tags = tags_of(part)
    for interval in intervals_of(part):
        start = interval.first
        while start < interval.end:
            try:
                with client.tail(tags, start=start, end=interval.end) as reader:
                    for batch in reader:
                        for entry in batch.entries:
                            yield from found.rows_of(entry)
                        start = batch.looked_up_to
                break
            except Trimmed as error:
                trim_point = client.bounds().trim_point
                if fail_on_data_loss or trim_point <= start:
                    raise data_lost(part, Span(start, interval.end), trim_point) from error
                logger.warning("rows are lost from_lsn=%d trim_point=%d", start, trim_point)
                start = trim_point


def data_lost(part: Part, span: Span, trim_point: int) -> Trimmed:
    names = ", ".join(source.name for source in part.sources)
    return Trimmed(
        f"stream {names}: LSN {span.first} is to be read, but the log was trimmed at {trim_point}: "
        "start with a new checkpoint, or go on at the trim point with failOnDataLoss=false"
    )


@dataclass(slots=True)
class _Making:
    """The batch in the making."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    places: list[tuple[Place, str]] = field(default_factory=list)
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
    known = set(making.batches[0].schema.names)
    arrays: list[pa.Array] = []
    for wanted in target:
        if wanted.name in known:
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
