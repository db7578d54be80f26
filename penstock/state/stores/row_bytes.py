"""Rows of Arrow batches as Python's bytes, one each, and back. Pure.

    row      :=  fixed part | texts and binaries, one after the other
    fixed    :=  of each column: 1 if it is not null, then its bytes; of a text, how many (u32)

Columns of fixed width, texts and binaries are handled by column, a few passes over arrays each.
Lists, maps and structs go row by row, as Arrow's own messages, which takes longer.

Law: decode_rows(encode_rows(rows), rows.schema) equals rows; bytes of another length raise
BadFormat.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import BadFormat

_SIZE: Final = np.dtype("<u4")
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


def encode_rows(rows: pa.RecordBatch) -> list[bytes]:
    """One value per row."""
    count = rows.num_rows
    fixed: list[Bytes] = [] if rows.num_columns else [np.zeros((count, 1), np.uint8)]
    texts: list[tuple[bytes, list[int]]] = []
    for column in rows.columns:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        fixed.append(valid.astype(np.uint8).reshape(count, 1))
        width = _width(column.type)
        if width is None:
            data, ends = _texts(column)
            sizes = np.diff(ends).astype(_SIZE)
            fixed.append(sizes.view(np.uint8).reshape(count, _SIZE.itemsize))
            texts.append((data, ends.tolist()))
        elif width:
            fixed.append(_fixed(column, width) * valid.astype(np.uint8).reshape(count, 1))
    matrix = np.ascontiguousarray(np.concatenate(fixed, axis=1))
    data, size = matrix.tobytes(), matrix.shape[1]
    encoded = [data[at : at + size] for at in range(0, count * size, size)]
    for data, ends_of in texts:
        bounds = pairwise(ends_of)
        encoded = [row + data[a:b] for row, (a, b) in zip(encoded, bounds, strict=True)]
    return encoded


def decode_rows(values: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    """The inverse of encode_rows."""
    count = len(values)
    if not len(schema):
        return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
    widths = [_width(field.type) for field in schema]
    size = sum(1 + (_SIZE.itemsize if width is None else width) for width in widths)
    sizes = np.fromiter(map(len, values), np.int64, count)
    if count and int(sizes.min()) < size:
        raise BadFormat(f"a row of {int(sizes.min())} bytes: expected {size} at least")
    raw = np.frombuffer(b"".join(values), np.uint8)
    ends = np.cumsum(sizes)
    at = ends - sizes
    if int(sizes.sum()) == size * count:
        matrix = raw.reshape(count, size)
    else:
        matrix = raw[at[:, None] + np.arange(size)]
    at = at + size
    columns, place = [], 0
    for field, width in zip(schema, widths, strict=True):
        valid = matrix[:, place].astype(bool)
        place += 1
        if width is None:
            lengths = matrix[:, place : place + _SIZE.itemsize]
            taken = np.ascontiguousarray(lengths).view(_SIZE).reshape(-1).astype(np.int64)
            columns.append(_read_texts(field.type, valid, raw, at, taken, ends))
            at, place = at + taken, place + _SIZE.itemsize
        else:
            columns.append(_read_fixed(field.type, valid, matrix[:, place : place + width]))
            place += width
    if not np.array_equal(at, ends):
        raise BadFormat("a row that is longer than its columns")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _width(kind: pa.DataType) -> int | None:
    """Bytes of a value; None where values differ in length."""
    if pt.is_boolean(kind):
        return 1
    if pt.is_null(kind):
        return 0
    if pt.is_primitive(kind) or pt.is_decimal(kind):
        return int(kind.bit_width) // 8
    return None


def _fixed(column: pa.Array, width: int) -> Bytes:
    if pt.is_boolean(column.type):
        column = column.cast(pa.int8())
    raw = np.frombuffer(column.buffers()[1] or b"", np.uint8)
    start = column.offset * width
    return raw[start : start + len(column) * width].reshape(len(column), width)


def _read_fixed(kind: pa.DataType, valid: npt.NDArray[np.bool_], data: Bytes) -> pa.Array:
    if pt.is_null(kind):
        return pa.nulls(len(valid))
    if pt.is_boolean(kind):
        data = np.packbits(data.reshape(-1).astype(bool), bitorder="little")
    return pa.Array.from_buffers(
        kind, len(valid), [_bitmap(valid), pa.py_buffer(np.ascontiguousarray(data))]
    )


def _bitmap(valid: npt.NDArray[np.bool_]) -> Any:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _texts(column: pa.Array) -> tuple[bytes, Ints]:
    """All bytes of a column, and where those of each row begin and end; of a null, nothing."""
    kind = column.type
    if not (pt.is_string(kind) or pt.is_binary(kind)):
        column = pa.array(_messages(column), pa.binary())
    if column.null_count:
        column = column.cast(pa.binary()).fill_null(b"")
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset :][: len(column) + 1].astype(np.int64)
    first, last = int(ends[0]), int(ends[-1])
    return (b"" if data is None else data.slice(first, last - first).to_pybytes()), ends - first


def _messages(column: pa.Array) -> list[bytes | None]:
    # Row by row: Arrow cuts no lists out of lists in any other way.
    schema = pa.schema([("value", column.type)])
    found: list[bytes | None] = []
    for place in range(len(column)):
        one = pa.concat_arrays([column.slice(place, 1)])
        valid = one[0].is_valid
        batch = pa.RecordBatch.from_arrays([one], schema=schema)
        found.append(batch.serialize().to_pybytes() if valid else None)
    return found


def _read_texts(
    kind: pa.DataType,
    valid: npt.NDArray[np.bool_],
    raw: Bytes,
    at: Ints,
    sizes: Ints,
    ends: Ints,
) -> pa.Array:
    if (at + sizes > ends).any():
        raise BadFormat("a text that is longer than its row")
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    places = np.repeat(at - offsets[:-1], sizes) + np.arange(offsets[-1])
    buffers = [_bitmap(valid), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(raw[places])]
    is_plain = pt.is_string(kind) or pt.is_binary(kind)
    column = pa.Array.from_buffers(kind if is_plain else pa.binary(), len(sizes), buffers)
    if is_plain:
        return column
    schema = pa.schema([("value", kind)])
    try:
        read = [
            pa.nulls(1, kind)
            if message is None
            else pa.ipc.read_record_batch(pa.py_buffer(message), schema).column(0)
            for message in column.to_pylist()
        ]
    except (pa.ArrowException, OSError) as error:
        raise BadFormat(f"not a row of {kind}: {error}") from error
    return pa.concat_arrays(read) if read else pa.array([], kind)
