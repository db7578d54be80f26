"""What Spark finds under the name `penstock`: a stream as a source and a sink.

Spark makes one in every process that plans, reads or writes, and pickles it: it holds its options
and nothing else. Imports are inside the methods, since Spark loads this module to list its sources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from penstock.connector.causes import only_cause

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class PenstockDataSource(DataSource):
    """See docs/spark.md for the options."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    @only_cause
    def schema(self) -> Any:
        from penstock.connector.arrow import stream_struct
        from penstock.connector.options import BATCH_READ, STREAM_READ, read_options

        # Not known yet whether it is a stream or a batch that is read.
        allowed = (*STREAM_READ, *(name for name in BATCH_READ if name not in STREAM_READ))
        return stream_struct(read_options(self.options, allowed))

    @only_cause
    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.connector.batch_reader import PenstockBatchReader, PenstockPushingReader
        from penstock.connector.options import BATCH_READ, read_options

        options = read_options(self.options, BATCH_READ)
        kind = PenstockPushingReader if options.push_filters else PenstockBatchReader
        return kind(options, schema)

    @only_cause
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from penstock.connector.connections import set_modules_aside
        from penstock.connector.options import STREAM_READ, read_options
        from penstock.connector.stream_reader import PenstockStreamReader

        set_modules_aside()
        return PenstockStreamReader(read_options(self.options, STREAM_READ), schema)

    @only_cause
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.connector.batch_writer import PenstockBatchWriter
        from penstock.connector.options import WRITE, write_options

        return PenstockBatchWriter.make(write_options(self.options, WRITE), schema, overwrite)

    @only_cause
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.connector.options import STREAM_WRITE, write_options
        from penstock.connector.stream_writer import PenstockStreamWriter

        options = write_options(self.options, STREAM_WRITE)
        return PenstockStreamWriter.make(options, schema, overwrite)
