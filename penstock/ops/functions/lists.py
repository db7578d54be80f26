"""Lists as NumPy offsets over Arrow elements: the layout that every nested function works on.

Arrow allows a list array to be a slice of a larger one, and a null list to cover elements all the
same. Lists has neither: offsets start at 0, elements are all of them and no others, a null row has
none. A map is a list of entries, structs of key and value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ops.functions.alignment import Ints as Ints
from penstock.ops.functions.alignment import Mask, valid_mask
from penstock.ops.functions.failures import fail_where

#: The longest array that Spark makes: what a Java array can hold, rounded down to words.
LENGTH_MAX: Final = 2**31 - 1 - 15


@dataclass(frozen=True, slots=True)
class Lists:
    """One list per row: row i has the elements [offsets[i], offsets[i + 1])."""

    offsets: Ints
    elements: pa.Array
    #: Which rows are lists; the others are null and have no elements.
    valid: Mask

    def __len__(self) -> int:
        return len(self.valid)

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    @property
    def rows(self) -> Ints:
        """The row of each element."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def places(self) -> Ints:
        """The place of each element within its list, from 0."""
        return np.arange(len(self.elements)) - np.repeat(self.offsets[:-1], self.lengths)

    def keep(self, mask: Mask) -> Lists:
        """Only the elements for which the mask is true."""
        kept = self.elements.filter(pa.array(mask))
        return Lists(offsets_of(self.count(mask)), kept, self.valid)

    def count(self, mask: Mask) -> Ints:
        """How many elements of each row have the mask."""
        return np.bincount(self.rows[mask], minlength=len(self))

    def any(self, mask: Mask) -> Mask:
        """Which rows have an element with the mask."""
        return self.count(mask) > 0

    def first(self, mask: Mask) -> Ints:
        """The place of each row's first element with the mask, or -1."""
        places = np.full(len(self), -1, np.int64)
        hits = np.flatnonzero(mask)[::-1]
        places[self.rows[hits]] = self.places[hits]
        return places

    def at(self, places: Ints, wanted: Mask) -> pa.Array:
        """The element at a place of each row; null where not wanted."""
        where = np.where(wanted, self.offsets[:-1] + places, 0)
        return self.elements.take(pa.array(where, mask=~wanted))

    def where(self, valid: Mask) -> Lists:
        """The same lists, null in other rows."""
        valid = valid & self.valid
        if np.array_equal(valid, self.valid):
            return self
        kept = self.keep(valid[self.rows])
        return Lists(kept.offsets, kept.elements, valid)

    def array(self, type: pa.DataType) -> pa.Array:
        """As an Arrow array of this type."""
        assert self.offsets[-1] < 2**31, "more elements in one batch than Arrow can count"
        mask = None if self.valid.all() else pa.array(~self.valid)
        offsets = pa.array(self.offsets.astype(np.int32))
        return retype(pa.ListArray.from_arrays(offsets, self.elements, mask=mask), type)


def lists_of(array: pa.Array) -> Lists:
    """The lists of a list or map array."""
    if pa.types.is_map(array.type):
        array = retype(array, entries_type(array.type))
    valid = valid_mask(array)
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return Lists(np.zeros(len(array) + 1, np.int64), array.values.slice(0, 0), valid)
    raw = np.frombuffer(buffer, np.int32)[array.offset : array.offset + len(array) + 1]
    offsets = raw.astype(np.int64)
    elements = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    offsets -= offsets[0]
    lengths = np.diff(offsets)
    hidden = ~valid & (lengths > 0)
    if hidden.any():
        elements = elements.filter(pa.array(np.repeat(~hidden, lengths)))
        offsets = offsets_of(np.where(hidden, 0, lengths))
    return Lists(offsets, elements, valid)


def entries_type(type: pa.DataType) -> pa.DataType:
    """The list type that lays out a map's memory."""
    entry = pa.struct([type.key_field, type.item_field])
    return pa.list_(pa.field("entries", entry, nullable=False))


def offsets_of(lengths: Ints) -> Ints:
    """Where lists of these lengths start, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def check_length(lengths: npt.NDArray[np.integer[Any]]) -> None:
    """Fail as Spark does if one of the lists to be made is too long."""
    fail_where(pa.array(lengths > LENGTH_MAX), "COLLECTION_SIZE_LIMIT_EXCEEDED")


def retype(array: pa.Array, type: pa.DataType) -> pa.Array:
    """The same memory under a type of the same layout: other field names, nullability, map or list.

    A cast would do, but refuses to call a nullable field non-nullable, though no null is in it.
    """
    have = array.type
    if not pa.types.is_nested(type) or have.equals(type, check_metadata=True):
        assert have == type, f"{have} is not laid out as {type}"
        return array
    if pa.types.is_struct(type):
        fields = [type.field(i) for i in range(type.num_fields)]
        inner = [retype(array.field(i), field.type) for i, field in enumerate(fields)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(inner, fields=fields, mask=mask)
    if pa.types.is_map(have):
        parts = [array.keys, array.items]
        elements = pa.StructArray.from_arrays(parts, fields=[have.key_field, have.item_field])
    else:
        elements = array.values
    wanted = entries_type(type) if pa.types.is_map(type) else type
    elements = retype(elements, wanted.value_type)
    if pa.types.is_map(type) and elements.offset:
        # Arrow's maps look past the offset of their entries, straight at keys and values.
        fields = [type.key_field, type.item_field]
        elements = pa.StructArray.from_arrays([elements.field(0), elements.field(1)], fields=fields)
    return pa.Array.from_buffers(
        type, len(array), array.buffers()[:2], array.null_count, array.offset, [elements]
    )


def join(arrays: list[pa.Array]) -> pa.Array:
    """One array after the other, under the first one's type."""
    return pa.concat_arrays([retype(array, arrays[0].type) for array in arrays])
