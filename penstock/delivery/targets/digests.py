"""Sixteen bytes that stand for a row of a multiset: BLAKE2b of its canonical bytes. Pure.

They are stored in the column `_row` of users' tables, so they never change. Of each column that is
not null, in the order of the names' bytes:

    length of the name u32 · name · length of the value u32 · value      (little-endian)

    boolean, integer, date, timestamp, time, interval   8 bytes, as the stream has them
    float, double      8 bytes of the double, one NaN, -0.0 as 0.0
    decimal            16 bytes, unscaled
    text, binary       its bytes
    struct, array, map JSON text, zeros alike (stream/json_lines.py)

Law: equal for rows that grouping takes for equal, also after columns were added, which are null in
older rows; different for all others, as far as anybody can find out.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.state.keys import canonical_ints, decimal_words
from penstock.stream.json_lines import values_to_json

DIGEST_BYTES: Final = 16


def row_digests(rows: pa.RecordBatch) -> pa.Array:
    """One for each row."""
    order = sorted(range(rows.num_columns), key=lambda place: rows.schema.names[place].encode())
    parts = [
        _part(rows.schema.names[place], rows.column(place))
        for place in order
        if not pt.is_null(rows.schema.types[place])
    ]
    if not parts:
        parts = [pa.array([b""] * rows.num_rows, pa.binary())]
    whole = pc.binary_join_element_wise(*parts, b"")
    # One by one: no kernel makes digests, and what is weaker than one can be made to collide.
    digests = [blake2b(row, digest_size=DIGEST_BYTES).digest() for row in whole.to_pylist()]
    return pa.array(digests, pa.binary())


def _part(name: str, column: pa.Array) -> pa.Array:
    values = _value_bytes(column)
    lengths = fixed_binary(np.asarray(pc.binary_length(values).fill_null(0), "<u4"))
    head = struct.pack("<I", len(name.encode())) + name.encode()
    heads = pa.scalar(head, pa.binary())
    part = pc.binary_join_element_wise(heads, lengths, values.fill_null(b""), b"")
    return pc.if_else(column.is_valid(), part, b"") if column.null_count else part


def _value_bytes(column: pa.Array) -> pa.Array:
    kind = column.type
    if pt.is_string(kind) or pt.is_binary(kind):
        return column.cast(pa.binary())
    if pt.is_nested(kind):
        return pa.array(values_to_json(column, one_zero=True), pa.string()).cast(pa.binary())
    if pt.is_decimal(kind):
        return fixed_binary(decimal_words(column).astype("<i8").reshape(-1, 2))
    return fixed_binary(canonical_ints(column).astype("<i8"))


def fixed_binary(values: np.ndarray) -> pa.Array:
    """Each number, or each line of a matrix, as its bytes."""
    values = np.ascontiguousarray(values)
    width = values.itemsize * (values.shape[1] if values.ndim > 1 else 1)
    offsets = np.arange(len(values) + 1, dtype=np.int32) * np.int32(width)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)
