"""Deltas as payloads of a keyed stream between stages.

A payload is the batch of the delta (stream/batches.py); a stream whose rows are taken back has one
more column, the weights. The stream's schema says whether it is there.

Law: decode_delta(encode_delta(d, changing), schema, changing) equals d.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.ops.api import Delta, batch_of
from penstock.stream.batches import decode_trusted, encode_trusted

#: Cannot clash: the names of our columns end in #id.
WEIGHT = pa.field("weight", pa.int64(), nullable=False)


def payload_schema(schema: pa.Schema, *, changing: bool) -> pa.Schema:
    """The schema of a keyed stream's payloads."""
    return schema.append(WEIGHT) if changing else schema


def encode_delta(delta: Delta, *, changing: bool) -> bytes:
    """The payload of a delta."""
    if not changing:
        assert delta.weights is None, "an append-only stream takes no rows back"
        return encode_trusted(delta.batch)
    weights = pa.array(delta.all_weights())
    arrays = [*delta.batch.columns, weights]
    schema = payload_schema(delta.batch.schema, changing=True)
    return encode_trusted(pa.RecordBatch.from_arrays(arrays, schema=schema))


def decode_delta(payload: bytes | memoryview, schema: pa.Schema, *, changing: bool) -> Delta:
    """The delta of a payload; `schema` is that of the rows alone. The bytes must be our own."""
    batch = decode_trusted(payload, payload_schema(schema, changing=changing))
    if not changing:
        return Delta(batch)
    weights = batch.column(batch.num_columns - 1).to_numpy()
    return Delta(batch_of(batch.columns[:-1], schema, batch.num_rows), weights)
