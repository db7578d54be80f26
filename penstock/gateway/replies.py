"""Rows on their way out: NDJSON, CSV, an Arrow stream, server-sent events. Pure.

Law: every form has all rows of a batch, in order. What JSON says of a value (json_lines.py), CSV
says in the same words, except for numbers that are not finite.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.csv
import pyarrow.types as pt

from penstock.log.records import Entry
from penstock.plain_text import plain_json
from penstock.stream.json_lines import rows_to_json_lines, values_to_json
from penstock.stream.times import time_text

NDJSON: Final = "application/x-ndjson"
CSV: Final = "text/csv"
ARROW: Final = "application/vnd.apache.arrow.stream"
EVENTS: Final = "text/event-stream"
#: Names that `format=` takes.
FORMATS: Final = {"ndjson": NDJSON, "csv": CSV, "arrow": ARROW}

#: Ends an Arrow stream.
_ARROW_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class RowWriter(Protocol):
    """One form of an answer."""

    @property
    def media_type(self) -> str: ...

    def begin(self) -> bytes: ...

    def rows(self, entry: Entry, batch: pa.RecordBatch) -> bytes: ...

    def end(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class NdjsonWriter:
    """A line for each row; in an envelope it also says where the row stands."""

    envelope: bool = False
    media_type: str = NDJSON

    def begin(self) -> bytes:
        return b""

    def rows(self, entry: Entry, batch: pa.RecordBatch) -> bytes:
        lines: Iterator[str] = rows_to_json_lines(batch)
        if self.envelope:
            head = json.dumps(place_of(entry), separators=(",", ":"))[:-1]
            lines = (f'{head},"row":{line}}}' for line in lines)
        return plain_json("".join(f"{line}\n" for line in lines)).encode()

    def end(self) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class CsvWriter:
    """A line with the names, then one for each row; null is empty, an empty text is `""`."""

    schema: pa.Schema
    media_type: str = CSV

    def begin(self) -> bytes:
        return _csv(self.schema.names, [pa.array([], pa.string())] * len(self.schema), True)

    def rows(self, entry: Entry, batch: pa.RecordBatch) -> bytes:
        return _csv(self.schema.names, [_csv_column(column) for column in batch.columns], False)

    def end(self) -> bytes:
        return b""


def _csv(names: list[str], columns: list[pa.Array], header: bool) -> bytes:
    table = pa.Table.from_arrays(columns, names=names)
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(table, sink, pyarrow.csv.WriteOptions(include_header=header))
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _csv_column(column: pa.Array) -> pa.Array:
    kind = column.type
    is_plain = pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_floating(kind)
    if is_plain or pt.is_string(kind):
        return column
    if pt.is_null(kind):
        return column.cast(pa.string())
    # Texts of JSON, without its quotes where the whole is one text.
    texts = values_to_json(column)
    return pa.array(
        [json.loads(text) if text and text.startswith('"') else text for text in texts],
        pa.string(),
    )


@dataclass(frozen=True, slots=True)
class ArrowWriter:
    """An Arrow IPC stream: its messages follow each other as they come."""

    schema: pa.Schema
    media_type: str = ARROW

    def begin(self) -> bytes:
        message: bytes = self.schema.serialize().to_pybytes()
        return message

    def rows(self, entry: Entry, batch: pa.RecordBatch) -> bytes:
        message: bytes = batch.serialize().to_pybytes()
        return message

    def end(self) -> bytes:
        return _ARROW_END


def writer_of(media_type: str, schema: pa.Schema, *, envelope: bool) -> RowWriter:
    made: dict[str, Callable[[], RowWriter]] = {
        NDJSON: lambda: NdjsonWriter(envelope),
        CSV: lambda: CsvWriter(schema),
        ARROW: lambda: ArrowWriter(schema),
    }
    return made[media_type]()


def place_of(entry: Entry) -> dict[str, object]:
    """Where a row stands, as `penstock stream read --envelope` says it."""
    return {"lsn": entry.lsn, "time": time_text(entry.time_ms), "producer": entry.producer}


# ---- server-sent events


def rows_event(batch: pa.RecordBatch, position: int) -> bytes:
    """One event for one entry: no position lies within it. Its data is a line of JSON per row."""
    lines = [f"data: {line}\n" for line in rows_to_json_lines(batch)]
    return plain_json(f"id: {position}\nevent: rows\n{''.join(lines)}\n").encode()


def heartbeat_event(position: int) -> bytes:
    """No event to a client, which only remembers the position: a quiet stream moves on, too."""
    return f":\nid: {position}\n\n".encode()


def problem_event(body: bytes) -> bytes:
    return b"event: problem\ndata: " + body + b"\n\n"
