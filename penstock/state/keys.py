"""Keys: the one partition hash, virtual nodes, and keys as things a dictionary can hold.

The hash is part of the format: it decides which virtual node, and so which tag of the log, a row
goes to, and must never change. It is defined in docs/formats.md and here:

    mix(x)          splitmix64's finalizer
    integer, date, timestamp, boolean, interval   mix(value as u64, sign extended)
    float, double   mix(bits of the double), all NaNs alike, -0.0 as 0.0
    text, binary    mix(sum of (byte[i] + 1) * G^i  +  length * G), modulo 2^64, G the golden ratio
    decimal         mix(low word) combined with mix(high word)
    struct          its fields combined;  list: its elements combined like bytes of text
    null            a constant
    several columns h = mix(h * 31 + hash(column)), from left to right, starting at 0

Equal keys, by Spark's equality for grouping (null equals null, NaN equals NaN), have equal hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.limits import VIRTUAL_NODES_MAX

Hashes = npt.NDArray[np.uint64]
#: Virtual nodes of a keyed stream: the most tasks that a stage can have, and as many as the tags of
#: one entry, so that an entry can hold rows of all of them.
VIRTUAL_NODES: Final = VIRTUAL_NODES_MAX
_U = np.uint64
_GOLDEN: Final = _U(0x9E3779B97F4A7C15)
_NULL: Final = _U(0xA5A5_5A5A_0F0F_F0F0)
_BASE: Final = _U(31)
_POWERS_MIN: Final = 256
_INT64: Final = pa.int64()
#: Types whose values are integers of 64 bits, as they are in memory.
WORDS: Final = frozenset(
    kind.id for kind in (pa.int64(), pa.timestamp("us"), pa.time64("us"), pa.duration("us"))
)


def hash_columns(columns: Sequence[pa.Array], rows: int) -> Hashes:
    """One hash per row."""
    hashes = np.zeros(rows, _U)
    for column in columns:  # arrays wrap around without a warning
        hashes = mix(hashes * _BASE + _hash(column))
    return hashes


def virtual_nodes(hashes: Hashes, count: int = VIRTUAL_NODES) -> npt.NDArray[np.int64]:
    """The virtual node of each hash."""
    return (hashes % _U(count)).astype(np.int64)


def mix(z: Hashes) -> Hashes:
    """splitmix64's finalizer."""
    z = (z + _GOLDEN).astype(_U, copy=False)
    z = (z ^ (z >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> _U(27))) * _U(0x94D049BB133111EB)
    return z ^ (z >> _U(31))


def _hash(column: pa.Array) -> Hashes:
    kind = column.type
    if pt.is_null(kind):
        return np.full(len(column), _NULL)
    if pt.is_struct(kind):
        hashes = hash_columns(list(column.flatten()), len(column))
    elif pt.is_string(kind) or pt.is_binary(kind):
        hashes = _hash_bytes(column)
    elif pt.is_list(kind) or pt.is_map(kind):
        hashes = _hash_lists(column)
    elif pt.is_decimal(kind):
        hashes = _hash_decimals(column)
    else:
        hashes = mix(canonical_ints(column).view(_U))
    if column.null_count:
        missing = column.is_null().to_numpy(zero_copy_only=False)
        hashes = np.where(missing, _NULL, hashes)
    return hashes


def canonical_ints(column: pa.Array) -> npt.NDArray[np.int64]:
    """A column of fixed width as int64, equal exactly where Spark groups; nulls are 0."""
    kind = column.type
    if kind.id in WORDS and not column.null_count and len(column):
        return np.frombuffer(column.buffers()[1], np.int64, len(column), 8 * column.offset)
    if pt.is_floating(kind):
        if column.null_count:
            column = pc.fill_null(column, 0.0)
        floats = column.to_numpy(zero_copy_only=False).astype(np.float64)
        floats = np.where(np.isnan(floats), np.nan, floats) + 0.0
        return floats.view(np.int64)
    if pt.is_boolean(kind):
        return pc.fill_null(column, False).cast(pa.int8()).to_numpy().astype(np.int64)
    if pt.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if column.null_count:
        column = column.fill_null(0)
    return column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)


def words_column(numbers: npt.NDArray[np.generic], kind: pa.DataType = _INT64) -> pa.Array:
    """Numbers of 64 bits as a column of one of WORDS, without nulls; it may share their memory.

    Where batches are small, what pa.array asks of its argument takes most of the time.
    """
    buffer = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(kind, len(numbers), [None, buffer])


def _hash_bytes(column: pa.Array) -> Hashes:
    offsets = _offsets(column)
    data = column.buffers()[2]
    raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return _hash_runs(raw[offsets[0] : offsets[-1]].astype(_U), offsets - offsets[0])


def _hash_lists(column: pa.Array) -> Hashes:
    offsets = _offsets(column)
    if pt.is_map(column.type):
        entries = [column.keys, column.items]
    else:
        entries = [column.values]
    start, end = int(offsets[0]), int(offsets[-1])
    parts = [entry.slice(start, end - start) for entry in entries]
    return _hash_runs(hash_columns(parts, end - start), offsets - offsets[0])


def _hash_runs(values: Hashes, offsets: npt.NDArray[np.int64]) -> Hashes:
    """Runs of values, [offsets[i], offsets[i+1]) each, to one hash per run."""
    lengths = np.diff(offsets)
    with np.errstate(over="ignore"):
        places = np.arange(len(values)) - np.repeat(offsets[:-1], lengths)
        powers = _powers(int(lengths.max(initial=0)))
        terms = (values + _U(1)) * powers[places]
        sums = np.concatenate([np.zeros(1, _U), np.cumsum(terms, dtype=_U)])
        totals = sums[offsets[1:]] - sums[offsets[:-1]]
        return mix(totals + lengths.astype(_U) * _GOLDEN)


def _powers(count: int) -> Hashes:
    return np.cumprod(np.r_[_U(1), np.full(max(count, _POWERS_MIN), _GOLDEN)], dtype=_U)


def _offsets(column: pa.Array) -> npt.NDArray[np.int64]:
    buffer = column.buffers()[1]
    if buffer is None:
        return np.zeros(len(column) + 1, np.int64)
    offsets = np.frombuffer(buffer, np.int32)
    return offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)


def _hash_decimals(column: pa.Array) -> Hashes:
    words = decimal_words(column)
    with np.errstate(over="ignore"):
        low = mix(words[:, 0].view(_U))
        return mix(low * _BASE + mix(words[:, 1].view(_U)))


def decimal_words(column: pa.Array) -> npt.NDArray[np.int64]:
    """The two little-endian 64-bit words of each decimal; null is 0."""
    buffer = column.buffers()[1]
    words = np.frombuffer(buffer, np.int64).reshape(-1, 2)
    words = words[column.offset : column.offset + len(column)]
    if column.null_count:
        words = np.where(column.is_null().to_numpy(zero_copy_only=False)[:, None], 0, words)
    return np.ascontiguousarray(words)


# -- keys for dictionaries


def key_objects(columns: Sequence[pa.Array], rows: int) -> list[object]:
    """One hashable object per row: equal objects exactly where Spark groups rows together."""
    flat = [objects for column in columns for objects in _objects(column)]
    if not flat:
        return [()] * rows
    if len(flat) == 1:
        return flat[0]
    return list(zip(*flat, strict=True))


def _objects(column: pa.Array) -> list[list[object]]:
    """A column as lists of hashable objects; a struct gives its fields' and whether it is null."""
    kind = column.type
    if pt.is_struct(kind):
        fields = [objects for field in column.flatten() for objects in _objects(field)]
        missing = column.is_null().to_pylist() if column.null_count else [False] * len(column)
        return [*fields, missing]
    if pt.is_string(kind) or pt.is_binary(kind) or pt.is_decimal(kind) or pt.is_null(kind):
        return [column.to_pylist()]
    if pt.is_list(kind) or pt.is_map(kind):
        return [_list_objects(column)]
    ints = canonical_ints(column).tolist()
    if column.null_count:
        missing = column.is_null().to_pylist()
        ints = [None if gone else value for gone, value in zip(missing, ints, strict=True)]
    return [ints]


def _list_objects(column: pa.Array) -> list[object]:
    # Elements become objects as columns do; only the cutting into tuples goes row by row.
    offsets = _offsets(column)
    start, end = int(offsets[0]), int(offsets[-1])
    entries = [column.keys, column.items] if pt.is_map(column.type) else [column.values]
    parts = [entry.slice(start, end - start) for entry in entries]
    elements = key_objects(parts, end - start)
    bounds = (offsets - start).tolist()
    missing = column.is_null().to_pylist()
    return [
        None if gone else tuple(elements[low:high])
        for gone, low, high in zip(missing, bounds[:-1], bounds[1:], strict=True)
    ]


def key_columns(objects: Sequence[object], types: Sequence[pa.DataType]) -> list[pa.Array]:
    """The inverse of key_objects, up to what grouping does not tell apart."""
    width = sum(_width(kind) for kind in types)
    if width == 1:
        lists: list[Sequence[object]] = [objects]
    elif objects:
        lists = [list(column) for column in zip(*objects, strict=True)]
    else:
        lists = [[] for _ in range(width)]
    columns = []
    for kind in types:
        columns.append(_column(lists[: _width(kind)], kind, len(objects)))
        lists = lists[_width(kind) :]
    return columns


def _width(kind: pa.DataType) -> int:
    """How many lists of objects a column becomes."""
    if pt.is_struct(kind):
        return 1 + sum(_width(kind.field(i).type) for i in range(kind.num_fields))
    return 1


def _column(lists: list[Sequence[object]], kind: pa.DataType, rows: int) -> pa.Array:
    if pt.is_struct(kind):
        fields, taken = [], 0
        for position in range(kind.num_fields):
            inner = kind.field(position).type
            fields.append(_column(lists[taken : taken + _width(inner)], inner, rows))
            taken += _width(inner)
        mask = pa.array(lists[taken], pa.bool_())
        return pa.StructArray.from_arrays(
            fields, fields=[kind.field(i) for i in range(kind.num_fields)], mask=mask
        )
    values = lists[0]
    if pt.is_string(kind) or pt.is_binary(kind) or pt.is_decimal(kind) or pt.is_null(kind):
        return pa.array(values, kind)
    if pt.is_list(kind):
        return _list_column(values, kind)
    ints = pa.array(values, pa.int64())
    if pt.is_floating(kind):
        floats = pc.fill_null(ints, 0).to_numpy().view(np.float64)
        mask = ints.is_null().to_numpy(zero_copy_only=False)
        return pa.array(floats, mask=mask).cast(kind, safe=False)
    if pt.is_date32(kind) or pt.is_time32(kind):
        return ints.cast(pa.int32()).cast(kind)
    return ints.cast(kind)


def _list_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    tuples = [() if value is None else value for value in values]
    lengths = [len(value) for value in tuples]
    flat = [element for value in tuples for element in value]
    (elements,) = key_columns(flat, [kind.value_type])
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    mask = pa.array([value is None for value in values], pa.bool_())
    return pa.ListArray.from_arrays(offsets, elements, type=kind, mask=mask)


def normalise_floats(column: pa.Array) -> pa.Array:
    """A key column as Spark shows it after grouping: one zero, one NaN."""
    if not pt.is_floating(column.type):
        if pt.is_nested(column.type) and _has_floats(column.type):
            (column,) = key_columns(key_objects([column], len(column)), [column.type])
        return column
    floats = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False) + 0.0
    mask = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    return pa.array(floats, column.type, mask=mask)


def _has_floats(kind: pa.DataType) -> bool:
    fields = (kind.field(place) for place in range(kind.num_fields))
    return pt.is_floating(kind) or any(_has_floats(field.type) for field in fields)
