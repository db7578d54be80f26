"""Arrays: making them, reading, searching, cutting and joining them.

Sorting and set operations are in array_sets.py, functions with lambdas in lambdas.py.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.functions.alignment import Ints, Mask, masked, on_arrays, valid_mask
from penstock.ops.functions.failures import fail_where
from penstock.ops.functions.lists import Lists, check_length, join, lists_of, offsets_of, retype
from penstock.ops.functions.ordering import equal_mask
from penstock.ops.functions.registry import function
from penstock.ops.functions.structs import struct_of
from penstock.plan.exprs import Call
from penstock.state.keys import canonical_ints


@function("CreateArray", sql="array", raises=False)
@on_arrays
def array(call: Call, *values: pa.Array) -> pa.Array:
    """One element per argument."""
    width = len(values)
    count = len(values[0])
    order = np.arange(count * width).reshape(width, count).T.ravel()
    kinds = [retype(value, call.type.value_type) for value in values]
    elements = join(kinds).take(pa.array(order))
    lengths = np.full(count, width, np.int64)
    return Lists(offsets_of(lengths), elements, np.ones(count, bool)).array(call.type)


@function("GetArrayItem", sql="[] get", strict=True)
@on_arrays
def get_item(call: Call, value: pa.Array, index: pa.Array) -> pa.Array:
    """The element at an index from 0."""
    lists, places = lists_of(value), canonical_ints(index)
    asked = valid_mask(value, index)
    inside = asked & (places >= 0) & (places < lists.lengths)
    if call.is_ansi:
        fail_where(pa.array(asked & ~inside), "INVALID_ARRAY_INDEX")
    return retype(lists.at(places, inside), call.type)


def _is_over_arrays(call: Call) -> bool:
    return pa.types.is_list(call.args[0].type)


@function("ElementAt", sql="element_at try_element_at", raises=_is_over_arrays, strict=True)
@on_arrays
def element_at(call: Call, value: pa.Array, index: pa.Array) -> pa.Array:
    """The element at an index from 1, or from -1 backwards; or the value of a key."""
    if not _is_over_arrays(call):
        return value_of_key(call, value, index)
    lists, places = lists_of(value), canonical_ints(index)
    asked = valid_mask(value, index)
    fail_where(pa.array(asked & (places == 0)), "INVALID_INDEX_OF_ZERO")
    inside = asked & (np.abs(places) <= lists.lengths)
    if call.is_ansi:
        fail_where(pa.array(asked & ~inside), "INVALID_ARRAY_INDEX_IN_ELEMENT_AT")
    elements = lists.at(np.where(places < 0, places + lists.lengths, places - 1), inside)
    if call.option("defaultValueOutOfBound", "") is not None:
        # Only split_part has a default: empty text. An expression, it is not among the options.
        return pc.if_else(pa.array(asked & ~inside), "", elements)
    return retype(elements, call.type)


@function("GetMapValue", raises=False, strict=True)
@on_arrays
def value_of_key(call: Call, value: pa.Array, key: pa.Array) -> pa.Array:
    """The value of a key; null if the map has no such key."""
    lists = lists_of(value)
    keys, items = lists.elements.flatten()
    places = lists.first(equal_mask(keys, key.take(pa.array(lists.rows))))
    return retype(Lists(lists.offsets, items, lists.valid).at(places, places >= 0), call.type)


@function("Size", sql="size cardinality array_size", raises=False)
@on_arrays
def size(call: Call, value: pa.Array) -> pa.Array:
    """How many elements or entries; of null it is null, or -1 in Spark's legacy mode."""
    lists = lists_of(value)
    if call.option("legacySizeOfNull"):
        return pa.array(np.where(lists.valid, lists.lengths, -1), pa.int32())
    return masked(lists.lengths, lists.valid, pa.int32())


# -- searching


def _matches(value: pa.Array, wanted: pa.Array) -> tuple[Lists, Mask]:
    lists = lists_of(value)
    return lists, equal_mask(lists.elements, wanted.take(pa.array(lists.rows)))


@function("ArrayContains", sql="array_contains map_contains_key", raises=False, strict=True)
@on_arrays
def array_contains(call: Call, value: pa.Array, wanted: pa.Array) -> pa.Array:
    """Null if it is not found, but a null is."""
    lists, matches = _matches(value, wanted)
    contains = lists.any(matches)
    unknown = lists.any(~valid_mask(lists.elements)) & ~contains
    return masked(contains, valid_mask(value, wanted) & ~unknown, pa.bool_())


@function("ArrayPosition", sql="array_position", raises=False, strict=True)
@on_arrays
def array_position(call: Call, value: pa.Array, wanted: pa.Array) -> pa.Array:
    """Counted from 1; 0 if it is not found."""
    lists, matches = _matches(value, wanted)
    return masked(lists.first(matches) + 1, valid_mask(value, wanted), pa.int64())


@function("ArrayRemove", sql="array_remove", raises=False, strict=True)
@on_arrays
def array_remove(call: Call, value: pa.Array, unwanted: pa.Array) -> pa.Array:
    """Nulls stay."""
    lists, matches = _matches(value, unwanted)
    return lists.keep(~matches).where(valid_mask(unwanted)).array(call.type)


# -- cutting and joining


@function("Slice", sql="slice", raises=True, strict=True)
@on_arrays
def slice_(call: Call, value: pa.Array, start: pa.Array, length: pa.Array) -> pa.Array:
    """From a place counted from 1, or from -1 backwards."""
    lists, first, count = lists_of(value), canonical_ints(start), canonical_ints(length)
    valid = valid_mask(value, start, length)
    bad = valid & ((first == 0) | (count < 0))
    fail_where(pa.array(bad), "INVALID_PARAMETER_VALUE", "slice starts at 1 or -1")
    low = np.where(first < 0, first + lists.lengths, first - 1)
    places = lists.places
    low, high = low[lists.rows], (low + count)[lists.rows]
    return lists.keep((low >= 0) & (places >= low) & (places < high)).where(valid).array(call.type)


def reverse_arrays(call: Call, value: pa.Array) -> pa.Array:
    """Reverse of arrays; Catalyst has one name for this and for text."""
    lists = lists_of(value)
    ends = lists.offsets[1:][lists.rows]
    elements = lists.elements.take(pa.array(ends - 1 - lists.places))
    return Lists(lists.offsets, elements, lists.valid).array(call.type)


def concat_arrays(call: Call, *values: pa.Array) -> pa.Array:
    """Concat of arrays; Catalyst has one name for this and for text."""
    return interleave([lists_of(value) for value in values]).array(call.type)


def interleave(parts: list[Lists]) -> Lists:
    """Row by row the elements of all parts; null where one is null."""
    valid = np.logical_and.reduce([part.valid for part in parts])
    kept = [part.where(valid) for part in parts]
    lengths = np.sum([part.lengths for part in kept], axis=0)
    rows = np.concatenate([part.rows for part in kept])
    elements = join([part.elements for part in kept])
    order = np.argsort(rows, kind="stable")
    return Lists(offsets_of(lengths), elements.take(pa.array(order)), valid)


@function("Flatten", sql="flatten", raises=False)
@on_arrays
def flatten(call: Call, value: pa.Array) -> pa.Array:
    """Null if one of the inner arrays is."""
    outer = lists_of(value)
    outer = outer.where(~outer.any(~valid_mask(outer.elements)))
    inner = lists_of(outer.elements)
    return Lists(inner.offsets[outer.offsets], inner.elements, outer.valid).array(call.type)


@function("ArrayJoin", sql="array_join", raises=False, strict=True)
@on_arrays
def array_join(
    call: Call, value: pa.Array, delimiter: pa.Array, null: pa.Array | None = None
) -> pa.Array:
    """Nulls are left out, or replaced."""
    lists = lists_of(value)
    present = valid_mask(lists.elements)
    if null is None:
        joined = lists.keep(present)
    else:
        replaced = pc.coalesce(lists.elements, null.take(pa.array(lists.rows)))
        joined = Lists(lists.offsets, replaced, lists.valid).where(valid_mask(null))
    return pc.binary_join(joined.array(pa.list_(pa.string())), delimiter)


@function("ArrayRepeat", sql="array_repeat", raises=True)
@on_arrays
def array_repeat(call: Call, value: pa.Array, count: pa.Array) -> pa.Array:
    valid, times = valid_mask(count), np.maximum(canonical_ints(count), 0)
    check_length(times)
    rows = np.repeat(np.arange(len(times)), times)
    return Lists(offsets_of(times), value.take(pa.array(rows)), valid).array(call.type)


def _refuse_legacy_index(call: Call) -> str | None:
    if call.option("legacyNegativeIndex"):
        return "array_insert under spark.sql.legacy.negativeIndexInArrayInsert"
    return None


@function(
    "ArrayInsert",
    sql="array_insert array_append array_prepend",
    raises=True,
    accepts=_refuse_legacy_index,
    strict=True,
)
@on_arrays
def array_insert(call: Call, value: pa.Array, place: pa.Array, item: pa.Array) -> pa.Array:
    """At a place counted from 1, or from -1 (after the last) backwards; gaps are filled by null."""
    lists, where = lists_of(value), canonical_ints(place)
    valid = valid_mask(value, place)
    fail_where(pa.array(valid & (where == 0)), "INVALID_INDEX_OF_ZERO")
    lists = lists.where(valid)
    target = np.where(where < 0, lists.lengths + where + 1, where - 1)
    gap = np.maximum(-target, 0)  # nulls between the new element, then first, and the old ones
    target = np.maximum(target, 0)
    lengths = np.where(valid, np.maximum(lists.lengths + 1 + gap, target + 1), 0)
    check_length(lengths)
    offsets = offsets_of(lengths)
    rows, spots = lists.rows, lists.places
    moved = np.where(spots >= target[rows], 1 + gap[rows], 0)
    places = np.full(offsets[-1], -1, np.int64)
    places[offsets[rows] + spots + moved] = np.arange(len(lists.elements))
    places[(offsets[:-1] + target)[valid]] = len(lists.elements) + np.flatnonzero(valid)
    both = join([lists.elements, item])
    elements = both.take(pa.array(np.maximum(places, 0), mask=places < 0))
    return Lists(offsets, elements, valid).array(call.type)


@function("ArraysZip", sql="arrays_zip", raises=False)
@on_arrays
def arrays_zip(call: Call, *values: pa.Array) -> pa.Array:
    """Structs of elements at the same place; the shorter arrays are filled up with null."""
    parts, offsets, valid = pad([lists_of(value) for value in values])
    elements = struct_of(parts, call.type.value_type)
    return Lists(offsets, elements, valid).array(call.type)


def pad(parts: list[Lists]) -> tuple[list[pa.Array], Ints, Mask]:
    """The elements of all parts, filled up with null to the longest; null where one is null."""
    valid = np.logical_and.reduce([part.valid for part in parts])
    parts = [part.where(valid) for part in parts]
    lengths = np.max([part.lengths for part in parts], axis=0)
    offsets = offsets_of(lengths)
    filled = []
    for part in parts:
        places = np.full(offsets[-1], -1, np.int64)
        places[offsets[part.rows] + part.places] = np.arange(len(part.elements))
        filled.append(part.elements.take(pa.array(np.maximum(places, 0), mask=places < 0)))
    return filled, offsets, valid
