"""The committed result of a query, read back from its stream as deltas.

Of a result that changes, its image (images.py) stands for what counts before the image's position.

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
from penstock.protocol.images import Image, decode_image, image_key, image_tag, payloads_of
from penstock.protocol.markers import decode_marker
from penstock.protocol.names import TaskId, layout_key
from penstock.runtime.images import is_of
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
    last = spec.query.stages[-1]
    schema = last.root.schema
    deltas = []
    for batch in _batches(log, spec):
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


def _batches(log: Log, spec: QuerySpec) -> list[pa.RecordBatch]:
    """Again if the image was replaced meanwhile, and what it stood for trimmed."""
    stream = log.stream(spec.to)
    while True:
        data, image = _find_image(log, spec)
        try:
            if image is None:
                check_whole(log, spec)
                return list(_own_batches(log, spec, stream, stream.resolve(EARLIEST)))
            rows = list(_image_batches(log, spec, stream, image))
            return [*rows, *_own_batches(log, spec, stream, Lsn(image.position))]
        except Trimmed:
            if data == _find_image(log, spec)[0]:
                raise


def _find_image(log: Log, spec: QuerySpec) -> tuple[bytes | None, Image | None]:
    value = log.client.get(image_key(spec.name))
    if value is None:
        return None, None
    image = decode_image(spec.name, value.data)
    return value.data, image if image.version == spec.version else None


def _image_batches(
    log: Log, spec: QuerySpec, stream: Stream, image: Image
) -> Iterator[pa.RecordBatch]:
    start = log.bounds().trim_point
    if image.position < start:
        raise _trimmed(spec, start)
    if image.entries:
        tags = [image_tag(spec.name, image.version)]
        entries = log.client.read(tags, start=image.first_lsn, end=image.end_lsn)
        for payload in payloads_of(image, entries):
            yield decode_batch(payload, stream.schema)


def _own_batches(log: Log, spec: QuerySpec, stream: Stream, start: Lsn) -> Iterator[pa.RecordBatch]:
    end = log.bounds().tail
    tail = CommittedTail(log.client, [stream_tag(spec.to)], start=start, end=end)
    try:
        while (counted := tail.next(None)) is not None:
            for _, entries in counted:
                for entry in entries:
                    if is_of(entry, spec.name, spec.version):
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
