"""Maps: making them, and taking them apart. Keys are never null and never repeated."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.ops.functions.alignment import Ints, Mask, on_arrays, valid_mask
from penstock.ops.functions.arrays import array, interleave
from penstock.ops.functions.failures import fail_where
from penstock.ops.functions.lists import Lists, entries_type, lists_of
from penstock.ops.functions.ordering import ranks
from penstock.ops.functions.registry import function
from penstock.ops.functions.structs import struct_of
from penstock.plan.exprs import Call, Literal


def map_of(
    offsets: Ints, keys: pa.Array, items: pa.Array, valid: Mask, type: pa.DataType
) -> pa.Array:
    """A map array out of the rows' keys and values; fails if a key is null or repeated."""
    fail_where(pc.is_null(keys), "NULL_MAP_KEY")
    if pt.is_floating(keys.type):
        keys = pc.add(keys, pa.scalar(0.0, keys.type))  # Spark stores -0.0 as 0.0
    lists = Lists(offsets, entries_of(keys, items, type), valid)
    codes = ranks(keys)
    within = np.sort(lists.rows * (int(codes.max(initial=0)) + 1) + codes)
    fail_where(pa.array(within[1:] == within[:-1]), "DUPLICATED_MAP_KEY")
    return lists.array(type)


def entries_of(keys: pa.Array, items: pa.Array, type: pa.DataType) -> pa.Array:
    """The entries of a map of this type, as structs."""
    return struct_of([keys, items], entries_type(type).value_type)


@function("CreateMap", sql="map", raises=True)
@on_arrays
def create_map(call: Call, *args: pa.Array) -> pa.Array:
    """Keys and values alternate."""
    kind = call.type
    keys, items = (
        lists_of(array(Call("CreateArray", (), pa.list_(field.type)), *values))
        for field, values in ((kind.key_field, args[0::2]), (kind.item_field, args[1::2]))
    )
    return map_of(keys.offsets, keys.elements, items.elements, keys.valid, kind)


@function("MapFromArrays", sql="map_from_arrays", raises=True, strict=True)
@on_arrays
def map_from_arrays(call: Call, keys: pa.Array, items: pa.Array) -> pa.Array:
    valid = valid_mask(keys, items)
    names, values = lists_of(keys).where(valid), lists_of(items).where(valid)
    fail_where(
        pa.array(names.lengths != values.lengths),
        "_LEGACY_ERROR_TEMP_2128",
        "the key array and value array of map_from_arrays must have the same length",
    )
    return map_of(names.offsets, names.elements, values.elements, valid, call.type)


@function("MapFromEntries", sql="map_from_entries", raises=True)
@on_arrays
def map_from_entries(call: Call, value: pa.Array) -> pa.Array:
    """Null if one of the entries is."""
    lists = lists_of(value)
    lists = lists.where(~lists.any(~valid_mask(lists.elements)))
    keys, items = lists.elements.flatten()
    return map_of(lists.offsets, keys, items, lists.valid, call.type)


@function("MapConcat", sql="map_concat", raises=True)
@on_arrays
def map_concat(call: Call, *values: pa.Array) -> pa.Array:
    lists = interleave([lists_of(value) for value in values])
    keys, items = lists.elements.flatten()
    return map_of(lists.offsets, keys, items, lists.valid, call.type)


@function("MapKeys", sql="map_keys", raises=False)
@on_arrays
def map_keys(call: Call, value: pa.Array) -> pa.Array:
    lists = lists_of(value)
    return Lists(lists.offsets, lists.elements.flatten()[0], lists.valid).array(call.type)


@function("MapValues", sql="map_values", raises=False)
@on_arrays
def map_values(call: Call, value: pa.Array) -> pa.Array:
    lists = lists_of(value)
    return Lists(lists.offsets, lists.elements.flatten()[1], lists.valid).array(call.type)


@function("MapEntries", sql="map_entries", raises=False)
@on_arrays
def map_entries(call: Call, value: pa.Array) -> pa.Array:
    return lists_of(value).array(call.type)


#: Delimiters are regular expressions; none of these means anything special in one.
_PLAIN_DELIMITERS = frozenset(",:;=&#@!~%/<>-_ \t\n")


def _needs_plain_delimiters(call: Call) -> str | None:
    for arg in call.args[1:]:
        if not isinstance(arg, Literal) or arg.value.as_py() not in _PLAIN_DELIMITERS:
            return "str_to_map with delimiters other than constant, single, plain characters"
    return None


@function(
    "StringToMap", sql="str_to_map", raises=True, accepts=_needs_plain_delimiters, strict=True
)
@on_arrays
def str_to_map(call: Call, value: pa.Array, pairs: pa.Array, parts: pa.Array) -> pa.Array:
    """What follows the first delimiter of a pair is the value; without one it is null."""
    if not len(value):
        return pa.nulls(0, call.type)
    lists = lists_of(pc.split_pattern(value, pairs[0].as_py()))
    split = lists_of(pc.split_pattern(lists.elements, parts[0].as_py(), max_splits=1))
    first = np.zeros(len(split), np.int64)
    keys, items = split.at(first, split.lengths > 0), split.at(first + 1, split.lengths > 1)
    return map_of(lists.offsets, keys, items, lists.valid, call.type)
