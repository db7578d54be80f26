"""Deltas as payloads of a keyed stream between stages.

A payload is the batch of the delta (stream/batches.py); a stream whose rows are taken back has one
more column, the weights, and one whose rows must be put in order has their places. The stream's
schema says what is there.

Law: decode_delta(encode_delta(d, changing), schema, changing) equals d. Who can append to a log can
write under any tag of it, so bytes of others are refused, or give a delta that is safe to read.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BadFormat
from penstock.ops.api import Delta, batch_of
from penstock.stream.batches import ARRAY_LENGTH_MAX, decode_own, encode_trusted

#: Cannot clash: the names of our columns end in #id.
WEIGHT = pa.field("weight", pa.int64(), nullable=False)
PLACE = pa.field("place", pa.int64(), nullable=False)


def payload_schema(schema: pa.Schema, *, changing: bool) -> pa.Schema:
    """The schema of a keyed stream's payloads."""
    return schema.append(WEIGHT) if changing else schema


def encode_placed(delta: Delta, places: npt.NDArray[np.int64]) -> bytes:
    """The payload of rows that only grow, each with its place in the order of their source."""
    assert delta.weights is None, "an append-only stream takes no rows back"
    arrays = [*delta.batch.columns, pa.array(places)]
    return encode_trusted(
        pa.RecordBatch.from_arrays(arrays, schema=delta.batch.schema.append(PLACE))
    )


def decode_placed(
    payload: bytes | memoryview, schema: pa.Schema
) -> tuple[Delta, npt.NDArray[np.int64]]:
    """Rows and their places. Raises BadFormat."""
    batch = _decode(payload, schema.append(PLACE))
    places = batch.column(batch.num_columns - 1)
    if places.null_count:
        raise BadFormat("rows between stages without their places")
    rows = batch_of(batch.columns[:-1], schema, batch.num_rows)
    return Delta(rows), places.to_numpy()


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
    """The delta of a payload; `schema` is that of the rows alone. Raises BadFormat."""
    batch = _decode(payload, payload_schema(schema, changing=changing))
    if not changing:
        return Delta(batch)
    weights = batch.column(batch.num_columns - 1)
    if weights.null_count:
        raise BadFormat("rows between stages without their weights")
    return Delta(batch_of(batch.columns[:-1], schema, batch.num_rows), weights.to_numpy())


def _decode(payload: bytes | memoryview, schema: pa.Schema) -> pa.RecordBatch:
    batch = decode_own(payload, schema)
    if batch.num_rows > ARRAY_LENGTH_MAX:
        raise BadFormat(f"{batch.num_rows} rows between stages, limit {ARRAY_LENGTH_MAX}")
    return batch
