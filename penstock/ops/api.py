"""What every operator is: batches in, batches out; time told, never asked.

A Delta is a batch of rows and how often each counts: no weights means once each, a negative weight
takes a row back. Contract of an operator: rows of one call are processed as if one by one, in
order; the same rows in any chunking give the same result; whatever must survive lives in the State
it was built with. The watermark is told between batches, after the rows that moved it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

#: The watermark of a stream that has ended, and of one whose first row is still to come. In
#: microseconds both fit 64 bits, with room for delays.
END_MS = 2**62 // 1000
START_MS = -END_MS
Weights = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Delta:
    """Rows, and how often each counts."""

    batch: pa.RecordBatch
    weights: Weights | None = None

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def take(self, rows: npt.NDArray[np.int64]) -> Delta:
        """These rows, in this order."""
        weights = None if self.weights is None else self.weights[rows]
        return Delta(self.batch.take(pa.array(rows)), weights)

    def where(self, mask: npt.NDArray[np.bool_]) -> Delta:
        """The rows for which the mask is true."""
        if mask.all():
            return self
        weights = None if self.weights is None else self.weights[mask]
        return Delta(self.batch.filter(pa.array(mask)), weights)

    def once_each(self) -> Delta:
        """The same rows, repeated instead of weighed: what a stream carries that only grows.

        Rows to be taken back stay as they are.
        """
        if self.weights is None or (self.weights < 0).any():
            return self
        rows = np.repeat(np.arange(len(self)), self.weights)
        return Delta(self.batch.take(pa.array(rows)))

    def all_weights(self) -> Weights:
        """One weight per row."""
        return np.ones(len(self), np.int64) if self.weights is None else self.weights


def batch_of(arrays: Sequence[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """The arrays as a batch; Arrow keeps the number of rows without columns only in a struct."""
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def renaming(of: pa.Schema, to: pa.Schema) -> list[str] | None:
    """The names that make batches of one schema ones of another; None if these differ by more."""
    if [field.with_name("") for field in of] != [field.with_name("") for field in to]:
        return None
    return list(to.names) if len(to) else None


def join_deltas(deltas: Sequence[Delta]) -> Delta:
    """All rows of deltas with one schema, in order."""
    if len(deltas) == 1:
        return deltas[0]
    batch = pa.concat_batches([delta.batch for delta in deltas])
    if all(delta.weights is None for delta in deltas):
        return Delta(batch)
    return Delta(batch, np.concatenate([delta.all_weights() for delta in deltas]))


class Operator(Protocol):
    """One node of a query at work. Each method returns what goes out because of it."""

    def on_start(self) -> list[Delta]:
        """The query begins, once in its life: what is there before any input."""
        return []

    def on_batch(self, port: int, delta: Delta) -> list[Delta]:
        """Rows came in at this port."""

    def on_watermark(self, watermark_ms: int) -> list[Delta]:
        """No row at or below this event time is expected any more, at any port."""
        return []

    def on_time(self) -> list[Delta]:
        """Processing time may have passed."""
        return []


#: Told of rows that came after the watermark had passed them, and by whom.
OnLate = Callable[[str, Delta], None]


def ignore_late(operator: str, rows: Delta) -> None:
    """Tell nobody of late rows: the default."""


def no_clock() -> int:
    """Processing time that stands still: the default."""
    return 0
