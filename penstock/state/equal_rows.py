"""Which rows are equal, as Spark groups: nulls alike, NaNs alike, -0.0 like 0.0.

Hashes tell most rows apart at the cost of a few passes over arrays; what they leave is compared.
They are never stored: unlike the hash that places keys (keys.py) they may change at any time.

Law: equal hashes are never taken for equal rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.state.keys import Hashes, canonical_ints, hash_columns, key_objects

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
#: The golden ratio: its multiples differ in their upper bits.
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
#: A null differs from every likely number; what has the same hash is still compared.
_NULL: Final = np.uint64(0xA5A5_5A5A_0F0F_F0F0)


def hash_keys(columns: Sequence[pa.Array], rows: int) -> Hashes:
    """Equal keys, as grouping has it, have equal hashes; cheaper than the hash that places keys."""
    hashes = np.zeros(rows, np.uint64)
    for column in columns:
        hashes = _hash_in(hashes, column)
    return hashes


def _hash_in(hashes: Hashes, column: pa.Array) -> Hashes:
    if pa.types.is_struct(column.type):
        for field in column.flatten():
            hashes = _hash_in(hashes, field)
        return hashes
    if pa.types.is_primitive(column.type):
        numbers = canonical_ints(column).view(np.uint64)
        if column.null_count:
            numbers = np.where(_missing(column), _NULL, numbers)
    else:
        numbers = hash_columns([column], len(column))
    with np.errstate(over="ignore"):
        hashes = (hashes ^ numbers) * _FACTOR
    return hashes ^ (hashes >> np.uint64(32))


def first_equal(columns: Sequence[pa.Array], count: int) -> Ints:
    """For each row, the first row that equals it, as grouping has it.

    Every row is compared with the first one of its hash; only those of a hash that unequal rows
    share are compared as objects, one by one.
    """
    codes, leaders = _group(_hash_apart(columns, count))
    if len(leaders) == count:
        return leaders
    first = leaders[codes]
    followers = np.flatnonzero(first != np.arange(count))
    one, two = pa.array(followers), pa.array(first[followers])
    equal = np.ones(len(followers), bool)
    for column in columns:
        equal &= are_equal(column.take(one), column.take(two))
    if not equal.all():
        rows = np.flatnonzero(np.isin(codes, codes[followers[~equal]]))
        seen: dict[object, int] = {}
        objects = key_objects([column.take(pa.array(rows)) for column in columns], len(rows))
        first[rows] = [
            seen.setdefault(key, row) for key, row in zip(objects, rows.tolist(), strict=True)
        ]
    return first


def group_rows(columns: Sequence[pa.Array], count: int) -> tuple[Ints, Ints]:
    """The first row of each group of equal rows, in order, and each row's place among them."""
    return np.unique(first_equal(columns, count), return_inverse=True)


def _group(hashes: Hashes) -> tuple[Ints, Ints]:
    """Hashes numbered in order of appearance, and the first row of each."""
    codes = pa.array(hashes).dictionary_encode().indices.to_numpy().astype(np.int64)
    leaders = np.empty(int(codes.max(initial=-1)) + 1, np.int64)
    leaders[codes[::-1]] = np.arange(len(codes))[::-1]  # the first one is written last
    return codes, leaders


def _hash_apart(columns: Sequence[pa.Array], count: int) -> Hashes:
    """Hashes that tell rows apart; long values count only where the short ones are alike."""
    short = [c for c in columns if _is_short(c.type)]
    long = [c for c in columns if not _is_short(c.type)]
    hashes = hash_keys(short, count)
    if not long:
        return hashes
    codes, _ = _group(hashes)
    alike = np.flatnonzero(np.bincount(codes)[codes] > 1)
    if len(alike):
        values = [pa.array(hashes[alike]), *(c.take(pa.array(alike)) for c in long)]
        hashes[alike] = hash_keys(values, len(alike))
    return hashes


def _is_short(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(_is_short(kind.field(position).type) for position in range(kind.num_fields))
    return bool(pa.types.is_primitive(kind))


def are_equal(one: pa.Array, two: pa.Array) -> Mask:
    """Where two key columns are equal as grouping has it: nulls alike, NaNs alike."""
    kind = one.type
    if pa.types.is_struct(kind):
        equal = np.ones(len(one), bool)
        if one.null_count or two.null_count:
            equal = _missing(one) == _missing(two)
        for left, right in zip(one.flatten(), two.flatten(), strict=True):
            equal = equal & are_equal(left, right)
        return equal
    if pa.types.is_floating(kind):
        one, two = (pa.array(canonical_ints(c), mask=_missing(c)) for c in (one, two))
    elif pa.types.is_nested(kind) or pa.types.is_null(kind):
        # Lists and maps are rare as keys; their objects are compared one by one.
        pairs = zip(key_objects([one], len(one)), key_objects([two], len(two)), strict=True)
        return np.fromiter((a == b for a, b in pairs), bool, len(one))
    equal = pc.equal(one, two)
    if equal.null_count:
        both = pc.and_(one.is_null(), two.is_null())
        equal = pc.or_(pc.fill_null(equal, False), both)
    mask: Mask = equal.to_numpy(zero_copy_only=False)
    return mask


def _missing(column: pa.Array) -> Mask:
    missing: Mask = column.is_null().to_numpy(zero_copy_only=False)
    return missing
