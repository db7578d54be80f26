"""Which rows are equal, as Spark groups: nulls alike, NaNs alike, -0.0 like 0.0.

Hashes tell most rows apart at the cost of a few passes over arrays; what they leave is compared.
They are never stored: unlike the hash that places keys (keys.py) they may change at any time.

Law: equal hashes are never taken for equal rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.state.keys import WORDS, Hashes, canonical_ints, hash_columns, key_objects

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
#: The golden ratio: its multiples differ in their upper bits.
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
#: A null differs from every likely number; what has the same hash is still compared.
_NULL: Final = np.uint64(0xA5A5_5A5A_0F0F_F0F0)
_HALF: Final = np.uint64(32)


def _powers(count: int) -> Hashes:
    return np.full(count, _FACTOR).cumprod(dtype=np.uint64)


#: One for each word of a row: sums of multiples of them are equal for no likely rows.
_FACTORS: Final = _powers(64)
#: Pairs that are compared one by one, all at once: fewer take less time than to sort.
_COMPARED_MAX: Final = 1 << 14
#: Rows that are sorted by hash; more of them are put into a hash table, which costs more to begin.
_SORTED_MAX: Final = 1 << 10


@dataclass(frozen=True, slots=True)
class _Words:
    """A column of fixed width as numbers that are equal where its values are, nulls aside."""

    numbers: Ints
    missing: Mask | None

    def mixed(self) -> Hashes:
        """What goes into a hash: nulls alike."""
        numbers = self.numbers.view(np.uint64)
        return numbers if self.missing is None else np.where(self.missing, _NULL, numbers)

    def take(self, places: Ints) -> _Words:
        """The values at these places."""
        missing = None if self.missing is None else self.missing[places]
        return _Words(self.numbers[places], missing)

    def equal(self, lefts: Ints, rights: Ints) -> Mask:
        """Where the values at two lists of places are equal."""
        equal: Mask = self.numbers[lefts] == self.numbers[rights]
        if self.missing is not None:  # a null's number is 0
            equal &= self.missing[lefts] == self.missing[rights]
        return equal


def _words(column: pa.Array, *, tells_nulls: bool = True) -> list[_Words] | None:
    """The words of a column, one per field of a struct; None for what has no fixed width.

    Unless they tell null structs from structs of nulls, how many they are depends on the type only.
    """
    kind = column.type
    missing = _missing(column) if column.null_count else None
    if not pa.types.is_struct(kind):
        return [_Words(canonical_ints(column), missing)] if pa.types.is_primitive(kind) else None
    # Fields of a null are null: what tells it from a struct of nulls is a word of its own.
    words = []
    if missing is not None and tells_nulls:
        words = [_Words(missing.astype(np.int64), None)]
    for field in column.flatten():
        inner = _words(field, tells_nulls=tells_nulls)
        if inner is None:
            return None
        words += inner
    return words


def hash_keys(columns: Sequence[pa.Array], rows: int) -> Hashes:
    """Equal keys, as grouping has it, have equal hashes; cheaper than the hash that places keys.

    Hashes of a single column of WORDS, nulls aside, are equal only if the keys are: to multiply by
    an odd number loses nothing.
    """
    if len(columns) == 1 and columns[0].type.id in WORDS:
        (column,) = columns
        missing = _missing(column) if column.null_count else None
        return _Words(canonical_ints(column), missing).mixed() * _FACTOR
    hashes = np.zeros(rows, np.uint64)
    for column in columns:
        words = _words(column, tells_nulls=False)
        if words is None:
            hashes = _mix_in(hashes, hash_columns([column], rows))
            continue
        for word in words:
            hashes = _mix_in(hashes, word.mixed())
    return hashes


def _mix_in(hashes: Hashes, numbers: Hashes) -> Hashes:
    # Arrays wrap around without a warning, unlike NumPy's scalars.
    hashes = (hashes ^ numbers) * _FACTOR
    return hashes ^ (hashes >> _HALF)


def first_equal(
    columns: Sequence[pa.Array],
    count: int,
    among: Ints | None = None,
    within: npt.NDArray[np.generic] | None = None,
) -> Ints:
    """For each row, the first row that equals it, as grouping has it; of those `among` alone.

    Rows are equal only `within` the same group, which is a number of 64 bits, if these are given.
    Every row is compared with the first one of its hash. Long values are hashed only if the short
    ones do not tell rows apart, and only rows of a hash that unequal rows share are compared as
    objects, one by one.
    """
    short, long = _split(columns)
    if len(short) == 1 and short[0].missing is None and not long and among is within is None:
        codes, leaders = group_numbers(short[0].numbers)
        first: Ints = leaders[codes]
        return first
    if within is not None:
        short.insert(0, _Words(within.view(np.int64), None))
    if among is not None:
        short, count = [word.take(among) for word in short], len(among)
    hashes = np.zeros(count, np.uint64)
    if short:
        hashes = _mix_in(hashes, _combined(short))
    pairs = _Pairs(hashes) if short or not long else None
    if pairs is not None and pairs.are_equal(short, long, among):
        return pairs.first
    if long:
        pairs = _Pairs(_hash_long(hashes, long, among))
        if pairs.are_equal(short, long, among):
            return pairs.first
    assert pairs is not None
    rows = np.flatnonzero(np.isin(pairs.codes, pairs.codes[pairs.unequal]))
    seen: dict[object, int] = {}
    places = pa.array(rows if among is None else among[rows])
    own = short[0].numbers[rows].tolist() if within is not None else [0] * len(rows)
    objects = key_objects([column.take(places) for column in columns], len(rows))
    pairs.first[rows] = [
        seen.setdefault((group, key), row)
        for group, key, row in zip(own, objects, rows.tolist(), strict=True)
    ]
    return pairs.first


def _combined(words: Sequence[_Words]) -> Hashes:
    """One number per row: a sum of its words, each times a factor of its own."""
    numbers = np.stack([word.mixed() for word in words])
    factors = _FACTORS[: len(words)]
    if len(factors) < len(words):
        factors = _powers(len(words))
    sums: Hashes = (numbers * factors[:, None]).sum(axis=0, dtype=np.uint64)
    return sums


class _Pairs:
    """Rows, and for each the first row with the same hash."""

    def __init__(self, hashes: Hashes) -> None:
        self.codes, leaders = group_numbers(hashes)
        self.first: Ints = leaders[self.codes]
        #: The rows that are not the first of their hash and not equal to it.
        self.unequal = np.flatnonzero(self.first != np.arange(len(hashes)))

    def are_equal(
        self, short: Sequence[_Words], long: Sequence[pa.Array], among: Ints | None
    ) -> bool:
        """Whether all rows are equal to the first of their hash; keeps those that are not."""
        followers = self.unequal
        if not len(followers):
            return True
        leading = self.first[followers]
        equal = np.ones(len(followers), bool)
        for word in short:
            equal &= word.equal(followers, leading)
        if long:
            lefts, rights = followers, leading
            if among is not None:
                lefts, rights = among[lefts], among[rights]
            for column in long:
                equal &= are_equal(column.take(pa.array(lefts)), column.take(pa.array(rights)))
        self.unequal = followers[~equal]
        return bool(equal.all())


def _split(columns: Sequence[pa.Array]) -> tuple[list[_Words], list[pa.Array]]:
    """Words of the columns of fixed width, and the other columns."""
    short: list[_Words] = []
    long: list[pa.Array] = []
    for column in columns:
        words = _words(column)
        if words is None:
            long.append(column)
        else:
            short += words
    return short, long


def group_rows(columns: Sequence[pa.Array], count: int) -> tuple[Ints, Ints]:
    """The first row of each group of equal rows, in order, and each row's place among them."""
    first = first_equal(columns, count)
    leads = first == np.arange(count)
    return leads.nonzero()[0], (leads.cumsum() - 1)[first]


def group_numbers(hashes: npt.NDArray[np.generic]) -> tuple[Ints, Ints]:
    """Numbers of 64 bits as small ones, in any order, and the first row of each."""
    if len(hashes) <= _SORTED_MAX:
        order = hashes.argsort(kind="stable")
        ordered = hashes[order]
        begins = np.ones(len(hashes), bool)
        begins[1:] = ordered[1:] != ordered[:-1]
        codes = np.empty(len(hashes), np.int64)
        codes[order] = begins.cumsum() - 1
        return codes, order[begins]
    encoded = pa.array(hashes).dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    leaders = np.empty(len(encoded.dictionary), np.int64)
    leaders[codes[::-1]] = np.arange(len(codes))[::-1]  # the first one is written last
    return codes, leaders


def _hash_long(hashes: Hashes, long: Sequence[pa.Array], among: Ints | None) -> Hashes:
    """The hashes; long values are hashed in only for rows that are equal without them."""
    codes, _ = group_numbers(hashes)
    alike = np.flatnonzero(np.bincount(codes)[codes] > 1)
    if not len(alike):
        return hashes
    places = pa.array(alike if among is None else among[alike])
    mixed = hashes[alike]
    for column in long:
        mixed = _mix_in(mixed, hash_columns([column.take(places)], len(alike)))
    hashes = hashes.copy()
    hashes[alike] = mixed
    return hashes


def equal_at(left: pa.Array, places: Ints, right: pa.Array) -> Mask:
    """Where the values of `left` at these places are equal to those of `right`."""
    kind = left.type
    if pa.types.is_primitive(kind) and not left.null_count and not right.null_count:
        equal: Mask = canonical_ints(left)[places] == canonical_ints(right)
        return equal
    return are_equal(left.take(pa.array(places)), right)


def are_equal(left: pa.Array, right: pa.Array) -> Mask:
    """Where two key columns are equal as grouping has it: nulls alike, NaNs alike."""
    kind = left.type
    if pa.types.is_struct(kind):
        equal = np.ones(len(left), bool)
        if left.null_count or right.null_count:
            equal = _missing(left) == _missing(right)
        for pair in zip(left.flatten(), right.flatten(), strict=True):
            equal = equal & are_equal(*pair)
        return equal
    if pa.types.is_floating(kind):
        left, right = (pa.array(canonical_ints(c), mask=_missing(c)) for c in (left, right))
    elif pa.types.is_nested(kind) or pa.types.is_null(kind):
        # Lists and maps are rare as keys; their objects are compared one by one.
        pairs = zip(key_objects([left], len(left)), key_objects([right], len(right)), strict=True)
        return np.fromiter((a == b for a, b in pairs), bool, len(left))
    equal = pc.equal(left, right)
    if equal.null_count:
        both = pc.and_(left.is_null(), right.is_null())
        equal = pc.or_(pc.fill_null(equal, False), both)
    mask: Mask = equal.to_numpy(zero_copy_only=False)
    return mask


def _missing(column: pa.Array) -> Mask:
    missing: Mask = column.is_null().to_numpy(zero_copy_only=False)
    return missing


def add_up(rows: pa.RecordBatch, weights: Ints) -> tuple[pa.RecordBatch, Ints]:
    """Equal rows become one with the sum of their weights; those that cancel vanish."""
    if not (weights < 0).any():
        return rows, weights
    first = first_equal(rows.columns, len(weights))
    totals = np.zeros(len(weights), np.int64)
    np.add.at(totals, first, weights)
    kept = totals.nonzero()[0]
    return rows.take(pa.array(kept)), totals[kept]


def strike_out(
    groups: npt.NDArray[np.generic], rows: pa.RecordBatch, weights: Ints
) -> tuple[Ints, Ints]:
    """Equal rows of equal groups become one; which rows remain, and their weights.

    Only groups with a negative weight are looked at.
    """
    touched = _is_among(groups, groups[weights < 0]).nonzero()[0]
    first = touched[first_equal(rows.columns, len(weights), touched, within=groups)]
    totals = weights.copy()
    totals[touched] = 0
    np.add.at(totals, first, weights[touched])
    kept = totals.nonzero()[0]
    return kept, totals[kept]


def _is_among(values: npt.NDArray[np.generic], chosen: npt.NDArray[np.generic]) -> Mask:
    if len(values) * len(chosen) > _COMPARED_MAX:
        return np.isin(values, chosen)
    among: Mask = (values[:, None] == chosen).any(axis=1)
    return among
