"""A stream: typed rows appended to the log, read back as Arrow.

Owns what a user does with one stream. Rows become data entries under the tag `s/<name>`, one per
batch (groups.py). Law: `read` gives back the rows that were appended, in log order, each once.
"""

from __future__ import annotations

import importlib
import itertools
import random
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from penstock.errors import Refused
from penstock.ids import Lsn
from penstock.limits import LANES_MAX
from penstock.log.client.blocking import BlockingLog
from penstock.plain_text import plain
from penstock.stream.groups import RowsAppended, append_groups, make_groups
from penstock.stream.lanes import lanes_of
from penstock.stream.positions import (
    EARLIEST,
    LATEST,
    Position,
    resolve_position,
)
from penstock.stream.producer import StreamProducer, producer_name
from penstock.stream.registration import Registration
from penstock.stream.showing import grid
from penstock.stream.tail import StreamTail
from penstock.stream.times import from_time_ms


class Stream:
    """One stream of a log; from `Log.create_stream` or `Log.stream`.

    Usable from several threads, and in forked children, which connect on their own.
    """

    def __init__(
        self,
        client: BlockingLog,
        registration: Registration,
        found_by: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._client = client
        self._registration = registration
        #: What the log was connected with, as options: queries over the stream find it by them.
        self._found_by = found_by
        #: How rows are spread over its lanes.
        self.spread = lanes_of(registration)
        #: Programs that append little begin at different lanes.
        self._turns = itertools.count(random.randrange(LANES_MAX))

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

    @property
    def lanes(self) -> int:
        """As many tasks of a query can read it side by side."""
        return self.spread.count

    @property
    def key(self) -> tuple[str, ...]:
        """The columns whose equal values are in one lane; none: entries take turns."""
        return self.spread.key

    @property
    def found_by(self) -> Mapping[str, str]:
        """Where its log is, as options of `format("penstock")`: names of files, never a secret."""
        return self._found_by

    @property
    def start_lsn(self) -> Lsn:
        """Where it begins: what stands below belongs to an earlier life of it."""
        return self._registration.start_lsn

    def append(self, rows: object) -> RowsAppended:
        """Append rows; returns when they are durable and visible.

        `rows` is a dict, an iterable of dicts, a pandas DataFrame, a pyarrow Table or RecordBatch,
        or a list of those. A row that does not fit the schema raises BadRow naming row and column,
        and nothing is appended. Up to about 4 MiB the append is atomic; more is cut into several
        atomic groups, and an error then says how many rows were appended before it. After `Unknown`
        use `producer` to send again without a risk of duplicates.
        """
        groups = make_groups(rows, schema=self.schema, lanes=self.spread, turns=self._turns)
        return append_groups(groups, self._client.append)

    def producer(self, id: str) -> StreamProducer:
        """Open a named producer: its appends may be sent again, also after a restart.

        Fences every producer of this stream that was opened before under the same id.
        """
        appender = self._client.appender(producer_name(self.name, id))
        return StreamProducer(self._client, appender, schema=self.schema, lanes=self.spread)

    def read(self, start: Position = EARLIEST, end: Position | None = None) -> pa.Table:
        """The rows in [start, end) that are there now, as one table.

        Positions are "earliest", "latest", an LSN, or a datetime (append time; UTC if it has no
        zone). `end` None, or beyond the tail, means the tail now. Raises Trimmed for a start below
        the trim point, or before a commit that has lost rows to a trim; "earliest" is after those.
        """
        tail = self._client.bounds().tail
        last = tail if end is None else min(self.resolve(end), tail)
        with self.tail(start, last) as batches:
            return pa.Table.from_batches(list(batches), schema=self.schema)

    def to_pandas(self, start: Position = EARLIEST, end: Position | None = None) -> Any:
        """The rows of `read` as a pandas DataFrame."""
        return self.read(start, end).to_pandas()

    def to_polars(self, start: Position = EARLIEST, end: Position | None = None) -> Any:
        """The rows of `read` as a polars DataFrame; needs `pip install 'penstock[polars]'`."""
        polars = _extra("polars")
        return polars.from_arrow(self.read(start, end))

    def to_duckdb(self, start: Position = EARLIEST, end: Position | None = None) -> Any:
        """The rows of `read` as a relation of DuckDB; needs `pip install 'penstock[duckdb]'`.

        It belongs to DuckDB's default connection, so SQL finds it by the name of its variable:

            rows = bids.to_duckdb()
            duckdb.sql("SELECT auction, max(price) FROM rows GROUP BY auction").show()
        """
        duckdb = _extra("duckdb")
        return duckdb.from_arrow(self.read(start, end))

    def show(self, n: int = 20, truncate: bool | int = True) -> None:
        """Print the first rows that are there now, as `DataFrame.show` does for a batch.

        Times are in UTC. `truncate` is how long a cell may be; False: as long as it is.
        """
        rows: list[pa.RecordBatch] = []
        missing = n
        with self.tail(EARLIEST, LATEST) as batches:
            while missing > 0 and (batch := next(batches, None)) is not None:
                rows.append(batch.slice(0, missing))
                missing -= rows[-1].num_rows
        text = grid(pa.Table.from_batches(rows, schema=self.schema), truncate=truncate)
        sys.stdout.write(plain(text, lines=True))

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
        first = self.resolve(start)
        last = None if end is None else self.resolve(end)
        return StreamTail(
            self._client, name=self.name, schema=self.schema, start=first, end=last, timeout=timeout
        )

    def resolve(self, position: Position) -> Lsn:
        """The LSN that a position means in this stream now: none is before its beginning."""
        beginning = self._registration.start_lsn
        lsn = resolve_position(self._client, position, (self.name,), beginning=beginning)
        return Lsn(max(lsn, beginning))

    def df(self, spark: Any, *, metadata: Sequence[str] = ()) -> Any:
        """The stream as a streaming DataFrame: for `penstock.start`, and for Spark's own engine.

        The same as spark.readStream.format("penstock") with the options that find it. `metadata`
        are columns that say where a row stands in the log, beside its own: "_lsn", "_time" (when it
        was appended), "_producer", "_stream".

        It has no end, so Spark refuses `show()`, `count()`, `collect()` and `toPandas()` of it:
        "Queries with streaming sources must be executed with writeStream.start()". To look at the
        rows that are there now, use `show()`, `read()` or `to_pandas()` of the stream itself.
        """
        # By its name: what knows Spark stands below this package.
        importlib.import_module("penstock.connector.registering").register(spark)
        reader = spark.readStream.format("penstock").option("stream", self.name)
        if metadata:
            reader = reader.option("metadata", ",".join(metadata))
        return reader.options(**self._found_by).load()

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, {self.ddl!r})"


def _extra(name: str) -> Any:
    """A package that is not installed with Penstock, but with an extra of its name."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Refused(f"{error}: pip install 'penstock[{name}]'") from None
