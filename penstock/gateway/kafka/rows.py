"""Records to rows of a stream and back. Pure.

A stream whose columns are Kafka's own (Spark's `format("kafka")` has the same names) takes records
as they are: `value`, and if it has them `key`, `headers`, `timestamp`. Any other takes values that
are JSON objects, one column for each field, and gives its rows as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import BadRow
from penstock.gateway.kafka.records import Headers, Records, encode_records
from penstock.stream.batches import find_batch_misfit
from penstock.stream.json_columns import lines_to_batches
from penstock.stream.json_lines import rows_to_json_lines

#: What a topic is made with, if nothing else is said.
KAFKA_COLUMNS: Final = (
    "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, "
    "timestamp TIMESTAMP"
)
_NAMES: Final = frozenset(("key", "value", "headers", "timestamp"))


def has_kafka_columns(schema: pa.Schema) -> bool:
    """Whether records are its rows as they are."""
    return "value" in schema.names and all(_is_kafka_column(field) for field in schema)


def _is_kafka_column(field: pa.Field) -> bool:
    kind = field.type
    if field.name in ("key", "value"):
        return bool(pt.is_binary(kind) or pt.is_string(kind))
    if field.name == "timestamp":
        return bool(pt.is_timestamp(kind) and kind.tz is not None)
    if field.name != "headers" or not pt.is_list(kind) or not pt.is_struct(kind.value_type):
        return False
    inner = {each.name: each.type for each in kind.value_type}
    return inner == {"key": pa.string(), "value": pa.binary()}


def records_to_batches(records: Records, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Raises BadRow."""
    if has_kafka_columns(schema):
        return [_to_kafka_columns(records, schema)]
    lines: list[tuple[int, bytes]] = []
    for at, value in enumerate(records.values):
        if value is None or not value.strip():
            raise BadRow(f"record {at} has no value: this stream takes JSON objects")
        lines.append((at, value))
    return lines_to_batches(lines, schema)


def _to_kafka_columns(records: Records, schema: pa.Schema) -> pa.RecordBatch:
    columns: list[pa.Array] = []
    for field in schema:
        try:
            columns.append(_kafka_column(records, field))
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise BadRow(f"column {field.name}: {error}") from None
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    batch.validate(full=True)
    found = find_batch_misfit(batch, schema)
    if found is not None:
        field, misfit = found
        raise BadRow(f"record {misfit.index}, column {field.name}{misfit.path}: {misfit.problem}")
    return batch


def _kafka_column(records: Records, field: pa.Field) -> pa.Array:
    if field.name in ("key", "value"):
        given = records.keys if field.name == "key" else records.values
        return pa.array(_decoded(given) if pt.is_string(field.type) else given, field.type)
    if field.name == "timestamp":
        # -1: the producer says none.
        micros = [None if each < 0 else each * 1000 for each in records.times_ms]
        return pa.array(micros, pa.int64()).cast(field.type)
    pairs = [[{"key": name.decode(), "value": value} for name, value in each] or None
             for each in records.headers]  # fmt: skip
    return pa.array(pairs, field.type)


def _decoded(values: Sequence[bytes | None]) -> list[str | None]:
    return [None if value is None else value.decode() for value in values]


def batch_to_records(batch: pa.RecordBatch, *, offset: int, append_ms: int) -> bytes:
    """Rows as a batch of records, the first of them at `offset`."""
    if not has_kafka_columns(batch.schema):
        values = [line.encode() for line in rows_to_json_lines(batch)]
        none: list[bytes | None] = [None] * len(values)
        times = [append_ms] * len(values)
        return encode_records(offset, times, none, values, append_time=True)
    found: dict[str, list[Any]] = {
        field.name: _plain(column, field)
        for field, column in zip(batch.schema, batch.columns, strict=True)
    }
    count = batch.num_rows
    told = found.get("timestamp")
    times = [append_ms] * count if told is None else [
        append_ms if each is None else each // 1000 for each in told
    ]  # fmt: skip
    return encode_records(
        offset, times, found.get("key", [None] * count), found["value"],
        found.get("headers"), append_time=told is None,
    )  # fmt: skip


def _plain(column: pa.Array, field: pa.Field) -> list[Any]:
    if field.name == "timestamp":
        micros: list[Any] = column.cast(pa.int64()).to_pylist()
        return micros
    values: list[Any] = column.to_pylist()
    if field.name == "headers":
        return [_headers(each) for each in values]
    return [each.encode() if isinstance(each, str) else each for each in values]


def _headers(given: list[dict[str, Any]] | None) -> Headers | None:
    if given is None:
        return None
    return [((each["key"] or "").encode(), each["value"]) for each in given if each is not None]
