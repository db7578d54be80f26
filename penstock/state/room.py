"""Where the arrays of a state are: in this process's memory, or in files that are mapped.

Whatever grows with the number of keys is asked for here. What a room hands out are ordinary NumPy
arrays: who reads and writes them does not know where they are.

Laws: an array keeps what is written to it for as long as somebody holds it or an array that it was
grown to. `grown` gives the same rows, and zeros after them; the old array is not used any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[Any]
Shape = int | tuple[int, ...]


class Room(Protocol):
    """See the module's docstring."""

    #: Whether memory is short here: then structures are made denser, and pieces of work smaller.
    @property
    def is_bounded(self) -> bool: ...

    def zeros(self, shape: Shape, dtype: npt.DTypeLike) -> Array:
        """A new array; of Python objects, it is in memory anyway, and full of None."""

    def grown(self, array: Array, rows: int) -> Array:
        """The array with so many rows."""

    def joined(self, parts: Sequence[Array], axis: int = 0) -> Array:
        """All parts in one array that shares nothing with them."""

    def keep(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows, where large ones belong."""

    def expect(self, array: Array, places: npt.NDArray[np.int64]) -> None:
        """Rows at these places are about to be read or written, in this order."""

    def tidy(self) -> None:
        """Keep the bound, if there is one. Called once for each commit: it is nearly free."""

    def report(self) -> dict[str, int]:
        """Of a bounded room, by name: the bound, and how much there is and is mapped in."""


class Memory:
    """All in this process's memory; the bound is the machine's."""

    is_bounded: Final = False

    def zeros(self, shape: Shape, dtype: npt.DTypeLike) -> Array:
        return in_memory(shape, dtype)

    def grown(self, array: Array, rows: int) -> Array:
        wider = in_memory((rows, *array.shape[1:]), array.dtype)
        wider[: len(array)] = array
        return wider

    def joined(self, parts: Sequence[Array], axis: int = 0) -> Array:
        return np.concatenate(parts, axis=axis)

    def keep(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows

    def expect(self, array: Array, places: npt.NDArray[np.int64]) -> None:
        """It is there."""

    def tidy(self) -> None:
        """Nothing is let go."""

    def report(self) -> dict[str, int]:
        """There is no bound."""
        return {}


def in_memory(shape: Shape, dtype: npt.DTypeLike) -> Array:
    """A new array in memory."""
    is_object = np.dtype(dtype).hasobject
    return np.empty(shape, dtype) if is_object else np.zeros(shape, dtype)


MEMORY: Final = Memory()
