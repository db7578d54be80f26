"""A Bloom filter over the places of keys (fold.py): which of them are surely not there. Pure.

About ten bits and seven probes for each row: of keys that are not there, one in a hundred or so is
looked for in vain. The bytes are part of the format of increments: numbers are little-endian.

    bits u64 (a power of two, or 0), then bits / 8 bytes; bit i is bit i % 8 of byte i // 8

Probe j of a place p is (mix(p) + j * (mix(p) >> 32 | 1)) modulo bits, mix being splitmix64's
finalizer.

Law: may_have(make_filter(places), places) is all true.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.errors import BadFormat
from penstock.state.keys import Hashes, mix

_BITS_PER_ROW: Final = 8
_PROBES: Final = 7
_HEAD_BYTES: Final = 8


def make_filter(places: Hashes) -> bytes:
    """The filter of these, which are in order, or nearly so: it only gets larger if not.

    Not np.unique, which keeps the interpreter to itself: 2.2 s for five million of them.
    """
    is_first = np.ones(len(places), bool)
    is_first[1:] = places[1:] != places[:-1]
    different = places[is_first]
    bits = 1 << max(6, (_BITS_PER_ROW * len(different) - 1).bit_length())
    is_set = np.zeros(bits, bool)
    for probe in _probes(different, bits):
        is_set[probe] = True
    return bits.to_bytes(_HEAD_BYTES, "little") + np.packbits(is_set, bitorder="little").tobytes()


def may_have(data: bytes, places: Hashes) -> npt.NDArray[np.bool_]:
    """Which of the places the filter does not rule out."""
    bits = int.from_bytes(data[:_HEAD_BYTES], "little")
    if bits & (bits - 1) or not bits or len(data) != _HEAD_BYTES + bits // 8:
        raise BadFormat(f"a filter of {bits} bits in {len(data)} bytes")
    kept = np.frombuffer(data, np.uint8, offset=_HEAD_BYTES)
    may = np.ones(len(places), bool)
    for probe in _probes(places, bits):
        may &= (kept[probe >> 3] >> (probe & 7) & 1).astype(bool)
    return may


def _probes(places: Hashes, bits: int) -> list[npt.NDArray[np.int64]]:
    mixed = mix(places)
    step = (mixed >> np.uint64(32)) | np.uint64(1)
    mask = np.uint64(bits - 1)
    numbers = range(_PROBES)
    return [((mixed + np.uint64(number) * step) & mask).astype(np.int64) for number in numbers]
