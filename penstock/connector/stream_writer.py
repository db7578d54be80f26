"""The streaming sink: tasks stage, the driver commits. Append mode.

Spark makes a writer anew in the process that plans a batch, in the one that commits it, and in each
task: what the commit needs comes in the tasks' messages. Spark hands `commit` only the messages of
attempts that won, so what retried and speculative attempts staged is never named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.connector.causes import only_cause
from penstock.connector.commit import commit_batch
from penstock.connector.connections import connected, set_modules_aside
from penstock.connector.options import WriteOptions
from penstock.connector.sinks import ready_stream
from penstock.connector.staging import Staged, Staging
from penstock.errors import Unsupported
from penstock.protocol.batch_commit import Batch
from penstock.protocol.names import staging_key

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: What Spark tells every task of a batch, and the function of foreachBatch.
QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """What a task tells the driver."""

    query: str
    staged: Staged


class PenstockStreamWriter(DataSourceStreamArrowWriter):
    """Made with `make`, which checks; Spark pickles it to the tasks."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @classmethod
    def make(cls, options: WriteOptions, schema: StructType, overwrite: bool) -> Self:
        if overwrite:
            raise Unsupported(
                "a stream of the log only grows, so the sink takes append mode. For complete and "
                f'update mode: .foreachBatch(penstock.foreach_batch_writer("{options.stream}"))'
            )
        ready_stream(options.where, options.stream, schema, key_by=options.key_by)
        set_modules_aside()
        return cls(options, schema)

    @only_cause
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        set_modules_aside()
        options = self._options
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(_BATCH_ID)
        assert query is not None and batch is not None, "Spark tells every task of a batch"
        client = connected(options.where).client
        stream = ready_stream(options.where, options.stream, self._schema)
        reservation = staging_key(query, int(batch))
        staging = Staging(client, stream, reservation=reservation, key_by=options.key_by)
        return StagedMessage(query, staging.write(iterator))

    @only_cause
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        told = _told(messages)
        if not told:
            return  # Spark runs one task at least: without one there is nothing to commit
        options = self._options
        batch = Batch(told[0].query, batchId, options.checkpoint, options.take_over)
        client = connected(options.where).client
        commit_batch(client, batch, [options.stream], [message.staged for message in told])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do. A commit that raised may have taken effect, or may still; another driver
        may be about to commit this very batch: the reservation stays until the batch is decided."""


def _told(messages: list[WriterCommitMessage | None]) -> list[StagedMessage]:
    return [message for message in messages if isinstance(message, StagedMessage)]
