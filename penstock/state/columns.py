"""The values of a table, by column and slot: arrays that grow.

Numbers are where the room has them (room.py), everything else is Python's objects, in memory. In
memory every column is an array of its own, which is fastest. Where memory is short, the numbers of
a row stand together: then a row is one page to be fetched, and not one for each column.

Law: `read` gives what was written last at a slot, or zero (None, of objects) after `clear`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.state.api import Slots
from penstock.state.room import Room

_CAPACITY_MIN: Final = 1024


class Columns:
    """See the module's docstring."""

    def __init__(self, types: dict[str, pa.DataType], room: Room) -> None:
        self._room = room
        self._capacity = _CAPACITY_MIN
        self._zero = {name: None if dtype_of(kind) is object else 0 for name, kind in types.items()}
        numbers = [name for name, zero in self._zero.items() if zero is not None]
        #: The numbers of a row together; None: each column is by itself.
        self._rows: npt.NDArray[Any] | None = None
        self._together: dict[str, str] = {}
        if room.is_bounded and len(numbers) > 1:
            self._together = {name: str(place) for place, name in enumerate(numbers)}
            fields = [(place, dtype_of(types[name])) for name, place in self._together.items()]
            self._rows = room.zeros(_CAPACITY_MIN, np.dtype(fields, align=True))
        self._columns: dict[str, npt.NDArray[Any]] = {
            name: room.zeros(_CAPACITY_MIN, dtype_of(kind))
            for name, kind in types.items()
            if name not in self._together
        }
        self._look_into_rows()

    def _look_into_rows(self) -> None:
        if self._rows is not None:
            self._columns |= {name: self._rows[place] for name, place in self._together.items()}

    @property
    def nbytes(self) -> int:
        """About: eight for every value."""
        return self._capacity * 8 * len(self._zero)

    def read(self, name: str, slots: Slots) -> npt.NDArray[Any]:
        """The values of a column at these slots."""
        column = self._columns[name]
        self._room.expect(column, slots)
        return column[slots]

    def write(self, name: str, slots: Slots, values: npt.NDArray[Any]) -> None:
        """Set a column at these slots."""
        self._columns[name][slots] = values

    def clear(self, slots: Slots) -> None:
        """Set all columns at these slots to zero, or None."""
        for name, zero in self._zero.items():
            self._columns[name][slots] = zero

    def grow(self, needed: int) -> None:
        """Have room for so many slots."""
        if needed <= self._capacity:
            return
        while self._capacity < needed:
            self._capacity *= 2
        if self._rows is not None:
            self._rows = self._room.grown(self._rows, self._capacity)
            self._look_into_rows()
        for name, column in self._columns.items():
            if name not in self._together:
                self._columns[name] = self._room.grown(column, self._capacity)


def dtype_of(kind: pa.DataType) -> npt.DTypeLike:
    """Numbers are kept as such, everything else as Python objects."""
    if pt.is_int64(kind):
        return np.int64
    if pt.is_float64(kind):
        return np.float64
    if pt.is_boolean(kind):
        return np.bool_
    return object
