"""bit_and, bit_or, bit_xor."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from penstock.ops.aggregates.api import Accumulator, Buffers, Ints, aggregate, any_of, has_values
from penstock.ops.aggregates.values import lift_values, show_values
from penstock.plan.nodes import AggregateCall

#: Catalyst's name: the operation, and the value that changes nothing.
_OPERATIONS: Final[dict[str, tuple[np.ufunc, int]]] = {
    "bit_and": (np.bitwise_and, -1),
    "bit_or": (np.bitwise_or, 0),
    "bit_xor": (np.bitwise_xor, 0),
}


class _Bits(Accumulator):
    exact = True

    def __init__(self, call: AggregateCall) -> None:
        self._type = call.type
        self._fold, self._neutral = _OPERATIONS[call.function]
        self.columns = {"value": pa.int64(), "any": pa.bool_()}

    def lift(self, args: list[pa.Array], rows: int) -> Buffers:
        return [lift_values(args[0]), has_values(args[0])]

    def merge(self, buffers: Buffers, groups: Ints, count: int) -> Buffers:
        values, present = buffers
        folded = np.full(count, self._neutral, np.int64)
        self._fold.at(folded, groups, np.where(present, values, self._neutral))
        has_any = any_of(present, groups, count)
        folded[~has_any] = 0
        return [folded, has_any]

    def finish(self, buffers: Buffers) -> pa.Array:
        return show_values(buffers[0], buffers[1], self._type)


aggregate(*_OPERATIONS, sql="bit_and bit_or bit_xor")(_Bits)
