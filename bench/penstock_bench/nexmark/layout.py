"""Rows of one kind as Arrow arrays: dense, or with gaps where other kinds of events stand.

Owns how columns lie in memory. Law: a column with gaps has the same values at its rows as a dense
one, and nulls elsewhere; all columns of a kind share one validity bitmap with their struct. Arrays
are made from their buffers: taking rows of a struct by indices with nulls takes several times as
long, and of small batches most of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock_bench.nexmark.draws import Ints

Mask = npt.NDArray[np.bool_]
_NO_LETTERS = pa.py_buffer(b"")


@dataclass(frozen=True, slots=True)
class Texts:
    """Strings, one per row: where each begins and ends in the letters of all."""

    #: One more than there are rows; begins with 0.
    bounds: npt.NDArray[np.int32]
    letters: pa.Buffer

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """In bytes."""
        return self.bounds[1:] - self.bounds[:-1]


#: What the column of a kind may be made of; numbers also for times, in microseconds.
Column = Ints | Texts


def pick(pool: pa.Array, places: Ints) -> Texts:
    """The strings at these places of a pool."""
    return as_texts(pool.take(pa.array(places)))


def as_texts(strings: pa.Array) -> Texts:
    """The buffers of a string array that is no slice of another."""
    assert strings.offset == 0 and strings.null_count == 0
    _, bounds, letters = strings.buffers()
    if bounds is None or not bounds.size:
        return no_texts(0)
    # Arrow may leave out the letters of strings that are all empty, but does not serialise that.
    letters = _NO_LETTERS if letters is None else letters
    return Texts(np.frombuffer(bounds, np.int32, len(strings) + 1), letters)


def no_texts(rows: int) -> Texts:
    """An empty string per row."""
    return Texts(np.zeros(rows + 1, np.int32), _NO_LETTERS)


def even_texts(letters: npt.NDArray[np.uint8]) -> Texts:
    """Strings of one length, a row of letters each."""
    rows, width = letters.shape
    bounds = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    return Texts(bounds, pa.py_buffer(np.ascontiguousarray(letters)))


def dense(columns: Sequence[Column], schema: pa.Schema) -> pa.RecordBatch:
    """A row per value."""
    arrays = [
        _array(column, field.type, None, 0) for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def with_gaps(columns: Sequence[Column], schema: pa.Schema, is_there: Mask) -> pa.Array:
    """A struct per element of the mask: the next value where it is set, null where it is not."""
    places = np.flatnonzero(is_there)
    rows = len(is_there)
    missing = rows - len(places)
    validity = pa.py_buffer(np.packbits(is_there, bitorder="little")) if missing else None
    children = [
        _array(_spread(column, places, rows) if missing else column, field.type, validity, missing)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.Array.from_buffers(
        pa.struct(schema), rows, [validity], null_count=missing, children=children
    )


def _spread(column: Column, places: Ints, rows: int) -> Column:
    """The same values, so many rows apart as the places say; 0 or "" between them."""
    if isinstance(column, Texts):
        lengths = np.zeros(rows + 1, np.int32)
        lengths[places + 1] = column.lengths
        return Texts(np.cumsum(lengths, dtype=np.int32), column.letters)
    spread = np.zeros(rows, np.int64)
    spread[places] = column
    return spread


def _array(column: Column, kind: pa.DataType, validity: pa.Buffer | None, nulls: int) -> pa.Array:
    if isinstance(column, Texts):
        rows = len(column.bounds) - 1
        buffers = [validity, pa.py_buffer(column.bounds), column.letters]
    else:
        rows = len(column)
        buffers = [validity, pa.py_buffer(np.ascontiguousarray(column, np.int64))]
    return pa.Array.from_buffers(kind, rows, buffers, null_count=nulls)
