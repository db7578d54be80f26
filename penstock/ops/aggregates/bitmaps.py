"""bitmap_construct_agg, bitmap_or_agg, bitmap_and_agg: sets of numbers as 4,096 bytes of bits.

A buffer has the bitmap without the zero bytes at its end, or nothing where no value came yet.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import EvaluationFailed
from penstock.ops.aggregates.api import Accumulator, Buffers, Ints, aggregate, has_values
from penstock.ops.aggregates.values import lift_objects, objects
from penstock.plan.nodes import AggregateCall
from penstock.state.keys import canonical_ints

#: Bytes of a bitmap.
BYTES: Final = 4096
#: What the buffer of bitmap_construct_agg holds, if anything.
_POSITION, _BITMAP = 1, 2

_Bytes = npt.NDArray[np.uint8]


class _Bitmap(Accumulator):
    """Bitmaps put together, and where none came the one that changes nothing."""

    exact = True
    _EMPTY: bytes = bytes(BYTES)

    def __init__(self, call: AggregateCall) -> None:
        self.columns = {"bitmap": pa.binary()}

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        return [objects(lift_objects(pc.binary_slice(args[0], 0, BYTES)), rows)]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        totals: list[_Bytes | None] = [None] * count
        # One step of a kernel over 4,096 bytes for each bitmap.
        for group, raw in zip(groups.tolist(), buffers[0].tolist(), strict=True):
            if raw is not None:
                totals[group] = self._put(totals[group], _read(raw))
        return [objects((_write(total) for total in totals), count)]

    def _put(self, total: _Bytes | None, more: _Bytes) -> _Bytes:
        return more if total is None else total | more

    def finish(self, buffers: Buffers) -> pa.Array:
        shown = (
            self._EMPTY if raw is None else raw.ljust(BYTES, b"\0") for raw in buffers[0].tolist()
        )
        return pa.array(list(shown), pa.binary())


class _AllOfBitmap(_Bitmap):
    _EMPTY = b"\xff" * BYTES

    def _put(self, total: _Bytes | None, more: _Bytes) -> _Bytes:
        return more if total is None else total & more


class _BitmapOfPositions(_Bitmap):
    """A row has a position, and a group a bitmap."""

    def __init__(self, call: AggregateCall) -> None:
        self.columns = {"position": pa.int64(), "bitmap": pa.binary(), "holds": pa.int64()}

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        positions, present = canonical_ints(args[0]), has_values(args[0])
        outside = (positions < 0) | (positions >= 8 * BYTES)
        if outside.any():
            raise EvaluationFailed("INVALID_BITMAP_POSITION", str(positions[outside.argmax()]))
        return [positions, np.empty(rows, object), np.where(present, _POSITION, 0)]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        positions, bitmaps, holds = buffers
        has_bitmap, single = holds == _BITMAP, holds == _POSITION
        own, place = np.unique(groups[single], return_inverse=True)
        bits: _Bytes = np.zeros((len(own), BYTES), np.uint8)
        at = positions[single].astype(np.int64)
        np.bitwise_or.at(bits, (place, at >> 3), (1 << (at & 7)).astype(np.uint8))
        lifted = np.concatenate((bitmaps[has_bitmap], objects(map(_write, bits), len(own))))
        of_groups = np.concatenate((groups[has_bitmap], own))
        (merged,) = super().merge([lifted], of_groups, count)
        holds = np.zeros(count, np.int64)
        holds[of_groups] = _BITMAP
        return [np.zeros(count, np.int64), merged, holds]

    def finish(self, buffers: Buffers) -> pa.Array:
        return super().finish([buffers[1]])


def _read(raw: bytes) -> _Bytes:
    return np.frombuffer(raw.ljust(BYTES, b"\0"), np.uint8)


def _write(bits: Any) -> bytes | None:
    return None if bits is None else bits.tobytes().rstrip(b"\0")


aggregate("BitmapConstructAgg", sql="bitmap_construct_agg")(_BitmapOfPositions)
aggregate("BitmapOrAgg", sql="bitmap_or_agg")(_Bitmap)
aggregate("BitmapAndAgg", sql="bitmap_and_agg")(_AllOfBitmap)
