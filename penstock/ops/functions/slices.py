"""Strings and binaries as bytes and offsets: cut every row at its own positions, in NumPy.

A Layout is a column taken apart: all bytes, and where each row begins and ends. Null rows may have
bytes; the mask goes along. Characters are Unicode code points, as Spark counts them: every byte
that does not continue a character begins one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ops.functions.alignment import Ints, Mask


@dataclass(frozen=True, slots=True)
class Layout:
    """A string or binary column, taken apart."""

    type: pa.DataType
    data: npt.NDArray[np.uint8]
    begin: Ints
    end: Ints
    #: True for rows that are not null, or None if none is.
    valid: Mask | None

    @classmethod
    def of(cls, column: pa.Array) -> Layout:
        """Take a column of strings or binaries apart."""
        _, offsets, data = column.buffers()
        count = len(column)
        bounds = np.zeros(count + 1, np.int64)
        if count:
            all_bounds = np.frombuffer(offsets, np.int32)
            bounds = all_bounds[column.offset : column.offset + count + 1].astype(np.int64)
        all_bytes = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        used = all_bytes[bounds[0] : bounds[-1]]
        bounds -= bounds[0]
        valid = None
        if column.null_count:
            valid = column.is_valid().to_numpy(zero_copy_only=False)
        return cls(column.type, used, bounds[:-1], bounds[1:], valid)

    @property
    def is_ascii(self) -> bool:
        """Whether every byte is a character of its own."""
        return not self.data.size or int(self.data.max()) < 0x80

    def cut(self, begin: Ints, end: Ints) -> pa.Array:
        """The bytes from begin to end of every row; positions are those of `data`."""
        lengths = end - begin
        bounds = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        places = np.arange(bounds[-1]) + np.repeat(begin - bounds[:-1], lengths)
        return self.join(self.data[places], bounds)

    def join(self, data: npt.NDArray[np.uint8], bounds: Ints) -> pa.Array:
        """A column of these bytes, with the nulls of this one."""
        mask = None
        nulls = 0
        if self.valid is not None:
            mask = pa.py_buffer(np.packbits(self.valid, bitorder="little"))
            nulls = int(np.count_nonzero(~self.valid))
        buffers = [mask, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(data)]
        return pa.Array.from_buffers(self.type, len(bounds) - 1, buffers, null_count=nulls)

    def characters(self) -> Ints:
        """For every byte position, and the one past the end: how many characters begin before."""
        begins = (self.data & 0xC0) != 0x80
        counted = np.zeros(len(begins) + 1, np.int64)
        np.cumsum(begins, out=counted[1:])
        return counted


def substring_rows(column: pa.Array, position: Ints, length: Ints) -> pa.Array:
    """Spark's substring: positions count from 1, negative ones from the end; 0 is as 1."""
    layout = Layout.of(column)
    if pa.types.is_string(column.type) and not layout.is_ascii:
        counted = layout.characters()
        # Where each character begins; the end of the data closes the last one.
        starts = np.append(np.flatnonzero(np.diff(counted)), len(layout.data))
    else:
        counted = starts = np.arange(len(layout.data) + 1)
    first = counted[layout.begin]
    count = counted[layout.end] - first
    start = np.where(position > 0, position - 1, np.where(position < 0, count + position, 0))
    stop = np.clip(start + length, 0, count)
    start = np.minimum(np.clip(start, 0, count), stop)
    return layout.cut(starts[first + start], starts[first + stop])


def prefix(column: pa.Array, lengths: Ints) -> pa.Array:
    """At most this many bytes from the front of every row, be they whole characters or not."""
    layout = Layout.of(column.view(pa.binary()))
    return layout.cut(layout.begin, np.minimum(layout.begin + lengths, layout.end))


def suffix(column: pa.Array, lengths: Ints) -> pa.Array:
    """At most this many bytes from the end of every row, be they whole characters or not."""
    layout = Layout.of(column.view(pa.binary()))
    return layout.cut(np.maximum(layout.end - lengths, layout.begin), layout.end)
