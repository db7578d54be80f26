"""Hash functions: hash() and xxhash64() bit by bit as Spark's, md5, sha, crc32.

hash() and xxhash64() fold values: the hash of one is the seed of the next, over the arguments, the
fields of a struct, the elements of an array; a null leaves the seed as it is. A Hasher has the two
primitives that differ, everything else is shared. All of it works on whole columns in NumPy.
"""

from __future__ import annotations

import hashlib
import hmac
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.ops.functions.alignment import Ints, on_arrays
from penstock.ops.functions.failures import fail
from penstock.ops.functions.lists import lists_of
from penstock.ops.functions.operands import LONG_DIGITS
from penstock.ops.functions.registry import Datum, function
from penstock.ops.functions.rows import each
from penstock.ops.functions.slices import Layout
from penstock.plan.exprs import Call

#: One running hash per row: uint32 or uint64.
Seeds = npt.NDArray[np.unsignedinteger]
Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

_DECIMAL_BYTES: Final = 16
_P1: Final = np.uint64(0x9E3779B185EBCA87)
_P2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_P3: Final = np.uint64(0x165667B19E3779F9)
_P4: Final = np.uint64(0x85EBCA77C2B2AE63)
_P5: Final = np.uint64(0x27D4EB2F165667C5)
_STRIPE: Final = 32


@dataclass(frozen=True, slots=True)
class Hasher:
    """What tells one hash function from another."""

    dtype: type[np.unsignedinteger]
    #: From values of 32 and of 64 bits and seeds to hashes.
    hash_int: Callable[[Words, Seeds], Seeds]
    hash_long: Callable[[Words, Seeds], Seeds]
    #: From bytes, where each row begins and ends in them, and seeds.
    hash_bytes: Callable[[Bytes, Ints, Ints, Seeds], Seeds]


# -- Murmur3


def _mix_k(k: Seeds) -> Seeds:
    return _rotate32(k * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _mix_h(h: Seeds, k: Seeds) -> Seeds:
    return _rotate32(h ^ _mix_k(k), 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _finish32(h: Seeds, length: Seeds | np.uint32) -> Seeds:
    h = h ^ length
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def _rotate32(value: Seeds, bits: int) -> Seeds:
    return (value << np.uint32(bits)) | (value >> np.uint32(32 - bits))


def _murmur_int(values: Words, seeds: Seeds) -> Seeds:
    return _finish32(_mix_h(seeds, values.astype(np.uint32)), np.uint32(4))


def _murmur_long(values: Words, seeds: Seeds) -> Seeds:
    low, high = values.astype(np.uint32), (values >> np.uint64(32)).astype(np.uint32)
    return _finish32(_mix_h(_mix_h(seeds, low), high), np.uint32(8))


def _murmur_bytes(data: Bytes, begin: Ints, end: Ints, seeds: Seeds) -> Seeds:
    """Whole words, then the rest byte by byte, with its sign: Spark's own variant."""
    h = seeds.copy()
    places = begin.copy()
    while (rows := np.flatnonzero(places + 4 <= end)).size:
        h[rows] = _mix_h(h[rows], _word(data, places[rows], 4).astype(np.uint32))
        places[rows] += 4
    while (rows := np.flatnonzero(places < end)).size:
        signed = data[places[rows]].view(np.int8).astype(np.int32).view(np.uint32)
        h[rows] = _mix_h(h[rows], signed)
        places[rows] += 1
    return _finish32(h, (end - begin).astype(np.uint32))


def _word(data: Bytes, places: Ints, width: int) -> Words:
    """The little-endian number that begins at each position."""
    word = np.zeros(len(places), np.uint64)
    for index in range(width):
        word |= data[places + index].astype(np.uint64) << np.uint64(8 * index)
    return word


# -- xxHash


def _rotate64(value: Words, bits: int) -> Words:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


def _finish64(h: Words) -> Words:
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> np.uint64(32))


def _xx_round(h: Words, k: Words) -> Words:
    return _rotate64(h + k * _P2, 31) * _P1


def _xx_long_step(h: Words, k: Words) -> Words:
    return _rotate64(h ^ (_rotate64(k * _P2, 31) * _P1), 27) * _P1 + _P4


def _xx_int_step(h: Words, k: Words) -> Words:
    return _rotate64(h ^ (k * _P1), 23) * _P2 + _P3


def _xx_int(values: Words, seeds: Seeds) -> Seeds:
    low = values & np.uint64(0xFFFFFFFF)
    return _finish64(_xx_int_step(seeds + _P5 + np.uint64(4), low))


def _xx_long(values: Words, seeds: Seeds) -> Seeds:
    return _finish64(_xx_long_step(seeds + _P5 + np.uint64(8), values))


def _xx_bytes(data: Bytes, begin: Ints, end: Ints, seeds: Seeds) -> Seeds:
    lengths = end - begin
    places = begin.copy()
    h = seeds + _P5
    long = np.flatnonzero(lengths >= _STRIPE)
    if long.size:
        h[long], places[long] = _xx_stripes(data, places[long], end[long], seeds[long])
    h += lengths.astype(np.uint64)
    while (rows := np.flatnonzero(places + 8 <= end)).size:
        h[rows] = _xx_long_step(h[rows], _word(data, places[rows], 8))
        places[rows] += 8
    rows = np.flatnonzero(places + 4 <= end)
    h[rows] = _xx_int_step(h[rows], _word(data, places[rows], 4))
    places[rows] += 4
    while (rows := np.flatnonzero(places < end)).size:
        h[rows] = _rotate64(h[rows] ^ (data[places[rows]].astype(np.uint64) * _P5), 11) * _P1
        places[rows] += 1
    return _finish64(h)


def _xx_stripes(data: Bytes, places: Ints, end: Ints, seeds: Seeds) -> tuple[Words, Ints]:
    """The part of long values that is taken 32 bytes at a time, by four accumulators."""
    places = places.copy()
    lanes = [seeds + _P1 + _P2, seeds + _P2, seeds.copy(), seeds - _P1]
    while (rows := np.flatnonzero(places + _STRIPE <= end)).size:
        for index, lane in enumerate(lanes):
            lane[rows] = _xx_round(lane[rows], _word(data, places[rows] + 8 * index, 8))
        places[rows] += _STRIPE
    h = sum(
        (_rotate64(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)),
        np.zeros(len(places), np.uint64),
    )
    for lane in lanes:
        h = (h ^ (_rotate64(lane * _P2, 31) * _P1)) * _P1 + _P4
    return h, places


_MURMUR: Final = Hasher(np.uint32, _murmur_int, _murmur_long, _murmur_bytes)
_XX: Final = Hasher(np.uint64, _xx_int, _xx_long, _xx_bytes)


# -- values of all types


def _problem(type: pa.DataType) -> str | None:
    if pt.is_map(type) or pt.is_interval(type) or pt.is_time(type):
        return f"the hash of a value of type {type}"
    if pt.is_list(type):
        return _problem(type.value_type)
    if pt.is_struct(type):
        return next((p for p in (_problem(field.type) for field in type) if p is not None), None)
    return None


def _judge(call: Call) -> str | None:
    return next((p for p in (_problem(arg.type) for arg in call.args) if p is not None), None)


@function("Murmur3Hash", sql="hash", raises=False, accepts=_judge)
@on_arrays
def murmur3(call: Call, *values: pa.Array) -> pa.Array:
    return _hash(call, _MURMUR, values)


@function("XxHash64", sql="xxhash64", raises=False, accepts=_judge)
@on_arrays
def xxhash64(call: Call, *values: pa.Array) -> pa.Array:
    return _hash(call, _XX, values)


def _hash(call: Call, hasher: Hasher, columns: tuple[pa.Array, ...]) -> pa.Array:
    seed = call.option("seed")
    assert isinstance(seed, int)
    hashes: Seeds = np.full(len(columns[0]), seed % 2**64, np.uint64).astype(hasher.dtype)
    with np.errstate(over="ignore"):
        for column in columns:
            hashes = fold(hasher, column, hashes)
    return pa.array(hashes).view(call.type)


def fold(hasher: Hasher, column: pa.Array, seeds: Seeds) -> Seeds:
    """The hash of every row, given its seed; of a null it is the seed."""
    if column.null_count == 0:
        return _fold_valid(hasher, column, seeds)
    hashes = seeds.copy()
    rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    if rows.size:
        hashes[rows] = _fold_valid(hasher, column.take(pa.array(rows)), seeds[rows])
    return hashes


def _fold_valid(hasher: Hasher, column: pa.Array, seeds: Seeds) -> Seeds:
    type = column.type
    if pt.is_null(type):
        return seeds
    if pt.is_struct(type):
        for field in column.flatten():
            seeds = fold(hasher, field, seeds)
        return seeds
    if pt.is_list(type):
        return _fold_lists(hasher, column, seeds)
    if pt.is_string(type) or pt.is_binary(type):
        layout = Layout.of(column)
        return hasher.hash_bytes(layout.data, layout.begin, layout.end, seeds)
    if pt.is_decimal(type):
        return _fold_decimals(hasher, column, seeds)
    words = _words(column)
    is_long = not pt.is_boolean(type) and type.bit_width == 64
    return (hasher.hash_long if is_long else hasher.hash_int)(words, seeds)


def _fold_lists(hasher: Hasher, column: pa.Array, seeds: Seeds) -> Seeds:
    """All first elements, then all second ones ...: as many steps as the longest list has."""
    lists = lists_of(column)
    hashes = seeds.copy()
    for place in range(int(lists.lengths.max(initial=0))):
        rows = np.flatnonzero(lists.lengths > place)
        elements = lists.elements.take(pa.array(lists.offsets[:-1][rows] + place))
        hashes[rows] = fold(hasher, elements, hashes[rows])
    return hashes


def _fold_decimals(hasher: Hasher, column: pa.Array, seeds: Seeds) -> Seeds:
    """Up to 18 digits as a number of 64 bits, else as few bytes as hold it, the highest first."""
    count = len(column)
    data = np.frombuffer(column.buffers()[1], np.uint8) if count else np.zeros(0, np.uint8)
    data = data.reshape(-1, _DECIMAL_BYTES)[column.offset : column.offset + count]
    if column.type.precision <= LONG_DIGITS:
        words = np.ascontiguousarray(data[:, :8]).view(np.uint64)[:, 0]
        return hasher.hash_long(words, seeds)
    highest_first = np.ascontiguousarray(data[:, ::-1])
    sign = highest_first[:, :1] >> 7
    # A leading byte says nothing if it repeats the sign that the next byte begins with.
    idle = (highest_first[:, :-1] == sign * 255) & (highest_first[:, 1:] >> 7 == sign)
    skipped = np.cumprod(idle, axis=1).sum(axis=1)
    begin = np.arange(count) * _DECIMAL_BYTES
    return hasher.hash_bytes(highest_first.ravel(), begin + skipped, begin + _DECIMAL_BYTES, seeds)


def _words(column: pa.Array) -> Words:
    """Values of up to 64 bits as the bits that Java has for them."""
    type = column.type
    if pt.is_boolean(type):
        return column.to_numpy(zero_copy_only=False).astype(np.uint64)
    if pt.is_floating(type):
        values = column.to_numpy(zero_copy_only=False)
        # All zeros are one zero, all NaN are one NaN.
        values = np.where(values == 0, values.dtype.type(0), values)
        values = np.where(np.isnan(values), values.dtype.type(np.nan), values)
        return values.view(f"i{type.bit_width // 8}").astype(np.int64).view(np.uint64)
    integers = column.view(f"int{type.bit_width}")
    return integers.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)


# -- digests


@function("Md5", sql="md5", raises=False)
def md5(call: Call, value: Datum) -> Datum:
    return each(call.type, lambda data: hashlib.md5(data, usedforsecurity=False).hexdigest(), value)


@function("Sha1", sql="sha sha1", raises=False)
def sha1(call: Call, value: Datum) -> Datum:
    return each(
        call.type, lambda data: hashlib.sha1(data, usedforsecurity=False).hexdigest(), value
    )


#: Spark's names of what a hmac can be made with.
_HMAC: Final = {
    f"SHA{dash}{bits}": f"sha{bits}" for dash in ("", "-") for bits in (1, 224, 256, 384, 512)
} | {"MD5": "md5"}
_SHA2: Final = {
    0: hashlib.sha256,
    224: hashlib.sha224,
    256: hashlib.sha256,
    384: hashlib.sha384,
    512: hashlib.sha512,
}


@function("Sha2", sql="sha2", raises=False, strict=True)
def sha2(call: Call, value: Datum, bits: Datum) -> Datum:
    """Null for a number of bits that SHA-2 does not have."""
    return each(
        call.type,
        lambda data, bits: _SHA2[bits](data).hexdigest() if bits in _SHA2 else None,
        value,
        bits,
    )


@function("Crc32", sql="crc32", raises=False)
def crc32(call: Call, value: Datum) -> Datum:
    return each(call.type, zlib.crc32, value)


@function("ExpressionImplUtils.hmac", sql="hmac", raises=True)
def hmac_(call: Call, key: Datum, message: Datum, algorithm: Datum) -> Datum:
    def digest(key: bytes, message: bytes, algorithm: str) -> bytes:
        name = _HMAC.get(algorithm.upper())
        if name is None:
            fail("INVALID_PARAMETER_VALUE", f"no hmac with {algorithm}")
        if not key:
            fail("INVALID_PARAMETER_VALUE", "the key of a hmac is empty")
        return hmac.digest(key, message, name)

    return each(call.type, digest, key, message, algorithm)
