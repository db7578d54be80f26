"""df.write: all rows with one marker, or none. Appends; a stream is never overwritten."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from penstock.connector.causes import only_cause
from penstock.connector.commit import commit_write, forget_staged
from penstock.connector.connections import connected, set_modules_aside
from penstock.connector.options import WriteOptions
from penstock.connector.sinks import ready_stream
from penstock.connector.staging import Staged, Staging
from penstock.errors import Unsupported
from penstock.protocol.names import staging_key

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class WrittenMessage(WriterCommitMessage):
    """What a task tells the driver."""

    staged: Staged


class PenstockBatchWriter(DataSourceArrowWriter):
    """Made with `make`; unlike a streaming writer, this very object is pickled for the commit."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._id = uuid.uuid4().hex

    @classmethod
    def make(cls, options: WriteOptions, schema: StructType, overwrite: bool) -> Self:
        if overwrite:
            raise Unsupported(
                'a stream of the log only grows: write with mode("append"), or to a new stream. '
                "`penstock log trim` gives up what is old"
            )
        ready_stream(options.where, options.stream, schema, key_by=options.key_by)
        return cls(options, schema)

    @only_cause
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        set_modules_aside()
        options = self._options
        client = connected(options.where).client
        stream = ready_stream(options.where, options.stream, self._schema)
        staging = Staging(client, stream, reservation=staging_key(self._id), key_by=options.key_by)
        return WrittenMessage(staging.write(iterator))

    @only_cause
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = [message.staged for message in messages if isinstance(message, WrittenMessage)]
        client = connected(self._options.where).client
        commit_write(client, self._id, [self._options.stream], staged)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        forget_staged(connected(self._options.where).client, staging_key(self._id))
