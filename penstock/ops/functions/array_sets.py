"""Arrays as sets and as sorted lists. Null is an element like any other: equal to itself."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.ops.functions.alignment import Ints, Mask, masked, on_arrays, valid_mask
from penstock.ops.functions.arrays import interleave
from penstock.ops.functions.lists import Lists, join, lists_of, retype
from penstock.ops.functions.ordering import order_keys, ranks
from penstock.ops.functions.registry import function
from penstock.plan.exprs import Call, Literal


@function("ArrayDistinct", sql="array_distinct", raises=False)
@on_arrays
def array_distinct(call: Call, value: pa.Array) -> pa.Array:
    """The first of each kind."""
    return _distinct(lists_of(value)).array(call.type)


@function("ArrayUnion", sql="array_union", raises=False, strict=True)
@on_arrays
def array_union(call: Call, left: pa.Array, right: pa.Array) -> pa.Array:
    return _distinct(interleave([lists_of(left), lists_of(right)])).array(call.type)


@function("ArrayIntersect", sql="array_intersect", raises=False, strict=True)
@on_arrays
def array_intersect(call: Call, left: pa.Array, right: pa.Array) -> pa.Array:
    lists, shared = _shared(left, right)
    return _distinct(lists.keep(shared)).array(call.type)


@function("ArrayExcept", sql="array_except", raises=False, strict=True)
@on_arrays
def array_except(call: Call, left: pa.Array, right: pa.Array) -> pa.Array:
    lists, shared = _shared(left, right)
    return _distinct(lists.keep(~shared)).array(call.type)


@function("ArraysOverlap", sql="arrays_overlap", raises=False, strict=True)
@on_arrays
def arrays_overlap(call: Call, left: pa.Array, right: pa.Array) -> pa.Array:
    """Null if nothing is shared, but a null in one could be something in the other."""
    lists, shared = _shared(left, right)
    other = lists_of(right)
    present = valid_mask(lists.elements)
    overlaps = lists.any(shared & present)
    nulls = lists.any(~present) | other.any(~valid_mask(other.elements))
    unknown = ~overlaps & nulls & (lists.lengths > 0) & (other.lengths > 0)
    return masked(overlaps, valid_mask(left, right) & ~unknown, pa.bool_())


def _distinct(lists: Lists) -> Lists:
    codes = ranks(lists.elements)
    _, first = np.unique(_with_rows(lists, codes, int(codes.max(initial=0))), return_index=True)
    mask = np.zeros(len(lists.elements), bool)
    mask[first] = True
    return lists.keep(mask)


def _shared(left: pa.Array, right: pa.Array) -> tuple[Lists, Mask]:
    """The left lists, null where either is, and which elements are in the right ones too."""
    valid = valid_mask(left, right)
    lefts, rights = lists_of(left).where(valid), lists_of(right).where(valid)
    codes = ranks(join([lefts.elements, rights.elements]))
    most, cut = int(codes.max(initial=0)), len(lefts.elements)
    return lefts, np.isin(
        _with_rows(lefts, codes[:cut], most), _with_rows(rights, codes[cut:], most)
    )


def _with_rows(lists: Lists, codes: Ints, most: int) -> Ints:
    """Codes that are equal only within a row."""
    return lists.rows * (most + 1) + codes


@function("ArrayMax", sql="array_max", raises=False)
@on_arrays
def array_max(call: Call, value: pa.Array) -> pa.Array:
    """Null only if there is nothing else."""
    return _extreme(call, value, largest=True)


@function("ArrayMin", sql="array_min", raises=False)
@on_arrays
def array_min(call: Call, value: pa.Array) -> pa.Array:
    """Null only if there is nothing else."""
    return _extreme(call, value, largest=False)


def _extreme(call: Call, value: pa.Array, *, largest: bool) -> pa.Array:
    lists = lists_of(value)
    lists = lists.keep(valid_mask(lists.elements))
    order = np.lexsort((order_keys(lists.elements), lists.rows))
    places = lists.lengths - 1 if largest else np.zeros(len(lists), np.int64)
    ordered = Lists(lists.offsets, lists.elements.take(pa.array(order)), lists.valid)
    return retype(ordered.at(places, lists.lengths > 0), call.type)


def _needs_constant_order(call: Call) -> str | None:
    if isinstance(call.args[1], Literal):
        return None
    return "sort_array with a direction that is not a constant"


@function("SortArray", sql="sort_array", raises=False, accepts=_needs_constant_order, strict=True)
@on_arrays
def sort_array(call: Call, value: pa.Array, ascending: pa.Array) -> pa.Array:
    """Nulls come first, or last when descending."""
    if not len(value):
        return retype(value, call.type)
    if not ascending[0].as_py():
        return sort(value, descending=True).array(call.type)
    return sort(value, nulls_last=False).array(call.type)


def sort(value: pa.Array, *, descending: bool = False, nulls_last: bool = True) -> Lists:
    """Each list sorted; equal elements keep their order."""
    lists = lists_of(value)
    keys = ranks(lists.elements)
    last = int(keys.max(initial=0)) + 1
    if descending:
        keys = last - keys
    elif nulls_last:
        keys = np.where(keys == 0, last, keys)
    order = np.lexsort((keys, lists.rows))
    return Lists(lists.offsets, lists.elements.take(pa.array(order)), lists.valid)
