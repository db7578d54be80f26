"""Columns that say where a row stands in the log, for whoever asks for them beside a stream's own.

    _lsn        where the row counts: at its entry, or at the marker that names it
    _time       when that was appended, by the log's clock; never falls along the log
    _producer   who appended it
    _stream     the stream that it was read from

Law: they depend on the log alone, so a row has the same ones whenever and by whomever it is read.
Pure.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from penstock.log.records import Entry

LSN: Final = "_lsn"
TIME: Final = "_time"
PRODUCER: Final = "_producer"
STREAM: Final = "_stream"
METADATA: Final[dict[str, pa.DataType]] = {
    LSN: pa.int64(),
    TIME: pa.timestamp("us", tz="UTC"),
    PRODUCER: pa.string(),
    STREAM: pa.string(),
}


def metadata_column(name: str, at: Entry, stream: str, rows: int) -> pa.Array:
    """A metadata column for all rows of an entry that counts where `at` stands."""
    values = {LSN: at.lsn, TIME: at.time_ms * 1000, PRODUCER: at.producer, STREAM: stream}
    return pa.repeat(pa.scalar(values[name], METADATA[name]), rows)
