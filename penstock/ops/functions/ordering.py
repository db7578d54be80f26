"""Spark's order of values, nested ones too, as integers that NumPy can compare.

NaN equals NaN and is the largest number, -0.0 equals 0.0; text and binary go by unsigned bytes; a
struct goes by its fields and a list by its elements, from left to right, null before all else.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.ops.functions.alignment import Ints, Mask, valid_mask
from penstock.ops.functions.lists import join, lists_of
from penstock.state.keys import WORDS, canonical_ints

_ALL_BUT_SIGN = np.int64(2**63 - 1)


def order_keys(values: pa.Array) -> Ints:
    """One integer per value: equal for equal values, else as the values are ordered.

    The integer of a null means nothing; integers of two calls cannot be compared.
    """
    kind = values.type
    if kind.id in WORDS:
        return canonical_ints(values)
    if pt.is_null(kind):
        return np.zeros(len(values), np.int64)
    if pt.is_struct(kind):
        return _keys_of_fields(values)
    if pt.is_list(kind):
        return _keys_of_lists(values)
    if pt.is_map(kind):
        # Spark does not order maps, but rows that hold them must be told apart.
        entry = pa.struct([kind.key_field, kind.item_field])
        return _keys_of_lists(values.cast(pa.list_(entry)))
    if pt.is_interval(kind):  # likewise
        return order_keys(values.view(pa.binary(16)))
    if pt.is_floating(kind):
        bits = canonical_ints(values)
        return bits ^ ((bits >> np.int64(63)) & _ALL_BUT_SIGN)
    if _is_ranked(kind):
        ranks = pc.rank(values, sort_keys="ascending", tiebreaker="dense")
        return ranks.to_numpy(zero_copy_only=False).astype(np.int64)
    return canonical_ints(values)


def _is_ranked(kind: pa.DataType) -> bool:
    bytes_like = pt.is_string(kind) or pt.is_binary(kind) or pt.is_fixed_size_binary(kind)
    return bytes_like or pt.is_decimal(kind)


def ranks(values: pa.Array) -> Ints:
    """Small integers in the order of the values: null is 0, the smallest value 1."""
    _, places = np.unique(order_keys(values), return_inverse=True)
    return np.where(valid_mask(values), places + 1, 0)


def equal_mask(left: pa.Array, right: pa.Array) -> Mask:
    """Where both are equal and not null."""
    if pt.is_nested(left.type) or pt.is_floating(left.type):
        keys = order_keys(join([left, right]))
        count = len(left)
        return (keys[:count] == keys[count:]) & valid_mask(left, right)
    equal = pc.fill_null(pc.equal(left, right), False)
    return equal.to_numpy(zero_copy_only=False)


def _keys_of_fields(values: pa.Array) -> Ints:
    keys = np.zeros(len(values), np.int64)
    for field in values.flatten():
        keys = _combine(keys, ranks(field))
    return keys


def _keys_of_lists(values: pa.Array) -> Ints:
    lists = lists_of(values)
    elements = np.append(ranks(lists.elements) + 1, 0)
    keys = np.zeros(len(lists), np.int64)
    lengths = lists.lengths
    for place in range(int(lengths.max(initial=0))):
        # A list that has ended counts as 0 here: shorter ones come first.
        places = np.where(lengths > place, lists.offsets[:-1] + place, -1)
        keys = _combine(keys, elements[places])
    return keys


def _combine(first: Ints, second: Ints) -> Ints:
    """Keys in the order of (first, second); both are small."""
    _, places = np.unique(first * (second.max(initial=0) + 1) + second, return_inverse=True)
    return places.astype(np.int64)
