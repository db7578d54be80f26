"""A stream: typed rows appended to the log, read back as Arrow.

Owns what a user does with one stream. Rows become data entries under the tag `s/<name>`, one per
batch (groups.py). Law: `read` gives back the rows that were appended, in log order, each once.
"""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa

from penstock.log.client.blocking import BlockingLog
from penstock.stream.groups import RowsAppended, append_groups, make_groups
from penstock.stream.positions import (
    EARLIEST,
    LATEST,
    Position,
    from_time_ms,
    resolve_position,
)
from penstock.stream.producer import StreamProducer, producer_name
from penstock.stream.registration import Registration, stream_tag
from penstock.stream.tail import StreamTail


class Stream:
    """One stream of a log; from `Log.create_stream` or `Log.stream`.

    Usable from several threads, and in forked children, which connect on their own.
    """

    def __init__(self, client: BlockingLog, registration: Registration) -> None:
        self._client = client
        self._registration = registration

    @property
    def name(self) -> str:
        return self._registration.name

    @property
    def schema(self) -> pa.Schema:
        return self._registration.schema

    @property
    def ddl(self) -> str:
        """The schema as Spark DDL text."""
        return self._registration.ddl

    @property
    def created(self) -> datetime:
        return from_time_ms(self._registration.created_ms)

    def append(self, rows: object) -> RowsAppended:
        """Append rows; returns when they are durable and visible.

        `rows` is a dict, an iterable of dicts, a pandas DataFrame, a pyarrow Table or RecordBatch,
        or a list of those. A row that does not fit the schema raises BadRow naming row and column,
        and nothing is appended. Up to about 4 MiB the append is atomic; more is cut into several
        atomic groups, and an error then says how many rows were appended before it. After `Unknown`
        use `producer` to send again without a risk of duplicates.
        """
        groups = make_groups(rows, name=self.name, schema=self.schema)
        return append_groups(groups, self._client.append)

    def producer(self, id: str) -> StreamProducer:
        """Open a named producer: its appends may be sent again, also after a restart.

        Fences every producer of this stream that was opened before under the same id.
        """
        appender = self._client.appender(producer_name(self.name, id))
        return StreamProducer(self._client, appender, name=self.name, schema=self.schema)

    def read(self, start: Position = EARLIEST, end: Position | None = None) -> pa.Table:
        """The rows in [start, end) that are there now, as one table.

        Positions are "earliest", "latest", an LSN, or a datetime (append time; UTC if it has no
        zone). `end` None, or beyond the tail, means the tail now. Raises Trimmed for a start below
        the trim point.
        """
        tail = self._client.bounds().tail
        last = tail if end is None else min(resolve_position(self._client, end), tail)
        with self.tail(start, last) as batches:
            return pa.Table.from_batches(list(batches), schema=self.schema)

    def tail(
        self,
        start: Position = LATEST,
        end: Position | None = None,
        timeout: float | None = None,
    ) -> StreamTail:
        """Follow the stream: an iterator of `pyarrow.RecordBatch`, which also waits for new ones.

        Positions as in `read`; they are fixed when this is called. `end` None follows for ever,
        "latest" stops at the tail of now. `timeout`: stop when no batch came for so many seconds.
        """
        first = resolve_position(self._client, start)
        last = None if end is None else resolve_position(self._client, end)
        reader = self._client.tail([stream_tag(self.name)], start=first, end=last)
        return StreamTail(reader, name=self.name, schema=self.schema, start=first, timeout=timeout)

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, {self.ddl!r})"
