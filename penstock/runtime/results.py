"""The committed result of a query, read back from its stream as deltas.

Law: all of it and nothing else, or Trimmed. Of a result that takes rows back, a part means nothing;
and what others wrote to the stream (another query, an earlier life of this one, a producer) is
theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from penstock.errors import BadFormat, Trimmed
from penstock.ids import Lsn
from penstock.log.records import Entry
from penstock.ops.api import Delta, batch_of
from penstock.protocol.markers import decode_marker
from penstock.protocol.names import TaskId, layout_key
from penstock.runtime.layout import first_layout, read_layout
from penstock.runtime.spec import QuerySpec
from penstock.stream.batches import decode_batch
from penstock.stream.positions import EARLIEST
from penstock.stream.registration import stream_tag
from penstock.stream.session import Log
from penstock.stream.stream import Stream
from penstock.stream.tail import CommittedTail


def result_deltas(log: Log, spec: QuerySpec) -> list[Delta]:
    """All rows that this version of the query wrote, under the plan's own column names."""
    check_whole(log, spec)
    last = spec.query.stages[-1]
    schema = last.root.schema
    deltas = []
    for batch in _own_batches(log, spec):
        columns = batch.columns
        weights = None
        if last.changing:
            weights = columns[-1].to_numpy(zero_copy_only=False)
            columns = columns[:-1]
        cast = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, schema, strict=True)
        ]
        deltas.append(Delta(batch_of(cast, schema, batch.num_rows), weights))
    return deltas


def _own_batches(log: Log, spec: QuerySpec) -> Iterator[pa.RecordBatch]:
    stream = log.stream(spec.to)
    own = f"@{spec.name}.{spec.version}/"  # tasks of all layouts
    start, end = stream.resolve(EARLIEST), log.bounds().tail
    tail = CommittedTail(log.client, [stream_tag(spec.to)], start=start, end=end)
    try:
        while (counted := tail.next(None)) is not None:
            for _, entries in counted:
                for entry in entries:
                    if entry.producer.startswith(own):
                        yield _decode(entry, stream)
    finally:
        tail.close()


def _decode(entry: Entry, stream: Stream) -> pa.RecordBatch:
    try:
        return decode_batch(entry.payload, stream.schema)
    except BadFormat as error:
        raise BadFormat(f"stream {stream.name}, LSN {entry.lsn}: {error}") from error


class Result(Protocol):
    """What must be known of a query to find its result: a `QuerySpec`, a `RegisteredQuery`."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def tasks(self) -> Sequence[int]: ...

    @property
    def to(self) -> str: ...


def check_whole(log: Log, spec: Result) -> None:
    """Raise Trimmed unless, of every task that writes it, what stands begins before its first row.

    The counter of the first marker that stands tells how much it committed with and before itself;
    a trim may have cut into that very commit.
    """
    bounds = log.bounds()
    if not bounds.trim_point:
        return
    last = len(spec.tasks) - 1
    value = log.client.get(layout_key(spec.name))
    found = None if value is None else read_layout(value.data, spec.version)
    layout = found or first_layout(spec.tasks)
    retired = [one for one in layout.retired if one.stage == last]
    is_cut = any(one.rows_out and one.lsn < bounds.trim_point for one in retired)
    if layout.is_result_cut or is_cut:
        raise _trimmed(spec, bounds.trim_point)
    indexes = [*(one.index for one in retired), *(share.index for share in layout.stages[last])]
    for task in [TaskId(spec.name, spec.version, last, index) for index in indexes]:
        start, end = bounds.trim_point, bounds.tail
        with log.client.tail([task.marker_tag], start=start, end=end) as reader:
            first = next((entry for batch in reader for entry in batch.entries), None)
        marker = None if first is None else decode_marker(first.payload)
        if marker is None or first is None or not marker.rows_out or marker.begins_a_task:
            continue
        below = min([first.lsn - marker.inline, *(named.first_lsn for named in marker.ranges)])
        if marker.number > 0 or below < start:
            raise _trimmed(spec, start)


def _trimmed(spec: Result, start: Lsn) -> Trimmed:
    return Trimmed(
        f"the first rows of query {spec.name}'s result were trimmed with the log, below "
        f'LSN {start}: read what is left with log.stream("{spec.to}").read()'
    )
