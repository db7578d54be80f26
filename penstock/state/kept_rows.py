"""Rows of a run: one matrix where all columns are 64-bit words, else as Arrow has them.

To gather rows takes Arrow some microseconds for each column, however few the rows are, and NumPy
half of one for a matrix. So numbers and times are gathered and joined all at once, and become
columns of one buffer when somebody asks for the rows.

Law: `batch` gives the rows that were kept, value by value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.keys import WORDS, canonical_ints, words_column

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class WordRows:
    """Rows of words; nothing of them is ever written to."""

    schema: pa.Schema
    #: By column and row; a null is 0.
    words: Ints
    #: What of it is not null; None: all of it.
    there: Mask | None

    @property
    def nbytes(self) -> int:
        return self.words.nbytes

    def take(self, places: Ints) -> WordRows:
        """The rows at these places."""
        there = None if self.there is None else self.there.take(places, axis=1)
        return WordRows(self.schema, self.words.take(places, axis=1), there)

    def batch(self) -> pa.RecordBatch:
        """All rows."""
        there = None
        if self.there is not None:
            there = pa.py_buffer(np.packbits(self.there, bitorder="little"))
        buffers, rows = [there, pa.py_buffer(self.words)], self.words.shape[1]
        columns = [
            pa.Array.from_buffers(kind, rows, buffers, offset=place * rows)
            for place, kind in enumerate(self.schema.types)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Rows of any columns."""

    rows: pa.RecordBatch

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes)

    def take(self, places: Ints) -> ArrowRows:
        """The rows at these places."""
        return ArrowRows(self.rows.take(words_column(places)))

    def batch(self) -> pa.RecordBatch:
        """All rows."""
        return self.rows


KeptRows: TypeAlias = WordRows | ArrowRows


def keep_rows(batch: pa.RecordBatch) -> KeptRows:
    """The rows of a batch; how they are kept follows from its schema alone."""
    schema = batch.schema
    if not len(schema) or any(kind.id not in WORDS for kind in schema.types):
        return ArrowRows(batch)
    words = np.stack([canonical_ints(column) for column in batch.columns])
    there: Mask | None = None
    if any(column.null_count for column in batch.columns):
        there = np.stack([c.is_valid().to_numpy(zero_copy_only=False) for c in batch.columns])
    return WordRows(schema, words, there)


def join_rows(parts: Sequence[KeptRows]) -> KeptRows:
    """All rows of parts with one schema, in order."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, ArrowRows):
        return ArrowRows(pa.concat_batches([part.batch() for part in parts]))
    of_words = [part for part in parts if isinstance(part, WordRows)]
    there: Mask | None = None
    if any(part.there is not None for part in of_words):
        there = np.concatenate([_all_there(part) for part in of_words], axis=1)
    return WordRows(first.schema, np.concatenate([part.words for part in of_words], axis=1), there)


def _all_there(rows: WordRows) -> Mask:
    return np.ones(rows.words.shape, bool) if rows.there is None else rows.there
