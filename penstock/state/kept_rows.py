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
from penstock.state.room import MEMORY, Room

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class WordRows:
    """Rows of words; nothing of them is ever written to."""

    schema: pa.Schema
    kinds: list[pa.DataType]
    #: By column and row; a null is 0.
    words: Ints
    #: What of it is not null; None: all of it.
    there: Mask | None

    @property
    def nbytes(self) -> int:
        return self.words.nbytes

    def expect(self, places: Ints, room: Room) -> None:
        """Rows at these places are about to be taken."""
        starts = np.arange(len(self.words))[:, None] * self.words.shape[1]
        room.expect(self.words.reshape(-1), (starts + places).reshape(-1))

    def take(self, places: Ints) -> WordRows:
        """The rows at these places."""
        there = None if self.there is None else self.there.take(places, axis=1)
        return WordRows(self.schema, self.kinds, self.words.take(places, axis=1), there)

    def batch(self) -> pa.RecordBatch:
        """All rows."""
        columns = self.columns(range(len(self.schema)))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def columns(self, wanted: Sequence[int]) -> list[pa.Array]:
        """These columns of all rows."""
        there = None
        if self.there is not None:
            there = pa.py_buffer(np.packbits(self.there, bitorder="little"))
        buffers, rows, kinds = [there, pa.py_buffer(self.words)], self.words.shape[1], self.kinds
        return [
            pa.Array.from_buffers(kinds[place], rows, buffers, offset=place * rows)
            for place in wanted
        ]


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Rows of any columns."""

    rows: pa.RecordBatch

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes)

    def expect(self, places: Ints, room: Room) -> None:
        """Where values of no fixed width are is not known before they are read."""

    def take(self, places: Ints) -> ArrowRows:
        """The rows at these places."""
        return ArrowRows(self.rows.take(words_column(places)))

    def batch(self) -> pa.RecordBatch:
        """All rows."""
        return self.rows


KeptRows: TypeAlias = WordRows | ArrowRows


@dataclass(frozen=True, slots=True)
class WordHits:
    """Rows that were found: words are gathered at once, and become columns when asked for."""

    rows: WordRows

    def columns(self, wanted: Sequence[int]) -> list[pa.Array]:
        """These columns of all rows."""
        return self.rows.columns(wanted)

    def take(self, places: Ints | None) -> pa.RecordBatch:
        """The rows at these places among those that were found; None: all."""
        return (self.rows if places is None else self.rows.take(places)).batch()


@dataclass(frozen=True, slots=True)
class ArrowHits:
    """Rows that were found: where they are; they are gathered when asked for."""

    parts: list[tuple[pa.RecordBatch, Ints]]

    def columns(self, wanted: Sequence[int]) -> list[pa.Array]:
        """See WordHits."""
        if not wanted:
            return []
        narrow = [(rows.select(wanted), places) for rows, places in self.parts]
        return ArrowHits(narrow).take(None).columns

    def take(self, places: Ints | None) -> pa.RecordBatch:
        """See WordHits."""
        if len(self.parts) == 1:
            ((rows, found),) = self.parts
            return rows.take(words_column(found if places is None else found[places]))
        whole = pa.concat_batches([rows.take(words_column(found)) for rows, found in self.parts])
        return whole if places is None else whole.take(words_column(places))


Hits: TypeAlias = WordHits | ArrowHits


def gather(parts: Sequence[tuple[KeptRows, Ints]]) -> Hits:
    """Rows of one schema at these places, in order."""
    words = [rows.take(places) for rows, places in parts if isinstance(rows, WordRows)]
    if not words:
        return ArrowHits([(rows.batch(), places) for rows, places in parts])
    joined = join_rows(words)
    assert isinstance(joined, WordRows)
    return WordHits(joined)


def keep_rows(batch: pa.RecordBatch) -> KeptRows:
    """The rows of a batch; how they are kept follows from its schema alone."""
    schema = batch.schema
    kinds = schema.types
    if not kinds or any(kind.id not in WORDS for kind in kinds):
        return ArrowRows(batch)
    words = np.stack([canonical_ints(column) for column in batch.columns])
    there: Mask | None = None
    if any(column.null_count for column in batch.columns):
        there = np.stack([c.is_valid().to_numpy(zero_copy_only=False) for c in batch.columns])
    return WordRows(schema, kinds, words, there)


def join_rows(parts: Sequence[KeptRows], room: Room = MEMORY) -> KeptRows:
    """All rows of parts with one schema, in order, where the room has such rows."""
    first = parts[0]
    if len(parts) == 1 and not room.is_bounded:
        return first
    if isinstance(first, ArrowRows):
        return ArrowRows(room.keep(pa.concat_batches([part.batch() for part in parts])))
    of_words = [part for part in parts if isinstance(part, WordRows)]
    there: Mask | None = None
    if any(part.there is not None for part in of_words):
        there = room.joined([_all_there(part) for part in of_words], axis=1)
    words = room.joined([part.words for part in of_words], axis=1)
    return WordRows(first.schema, first.kinds, words, there)


def _all_there(rows: WordRows) -> Mask:
    return np.ones(rows.words.shape, bool) if rows.there is None else rows.there
