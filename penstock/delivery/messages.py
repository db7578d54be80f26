"""What player and hosts of targets say to each other, and what a batch is made of. Pure.

    player ── Hello ──►  host      open the target of a shard, for this player
           ◄── At ─────            it is open, and stands at this position
           ── Apply ──►            whole commits of the shard: [after, upto)
           ◄── Ack ────            the target's position now; `upto`, if they were applied
           ◄── Failure ─           it could not be done; nothing is known of what was sent before
           ── Bye ────►            let go of it

A *connection* is one opening of a target by a player, numbered from 1. All that is said on it is
said in order, or not at all. Law: words of an earlier connection, however late, change nothing:
they are told apart by its number (R28). A *term* is the player's instance, which the log gave it:
two players never have the same (R27).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.delivery.api import Batch
from penstock.ids import Lsn


@dataclass(frozen=True, slots=True)
class Places:
    """Where rows that were read together count, in order."""

    lsns: tuple[Lsn, ...]
    #: Rows before those of each place.
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """All rows of one shard that count in [after, upto): of whole commits, in log order."""

    after: Lsn
    upto: Lsn
    #: As many batches as were at hand: joining them is left to who needs them joined.
    rows: tuple[pa.RecordBatch, ...]
    bytes: int
    places: Places
    #: Which of the rows that were read together these are, in order; None: all of them.
    indexes: npt.NDArray[np.int64] | None = field(default=None, compare=False)

    @property
    def count(self) -> int:
        return sum(rows.num_rows for rows in self.rows)

    def locate(self, row: int) -> tuple[Lsn, int]:
        """Where a row counts, and which of all rows that count there it is."""
        index = row if self.indexes is None else int(self.indexes[row])
        place = bisect_right(self.places.starts, index) - 1
        return self.places.lsns[place], index - self.places.starts[place]

    def without(self, lsn: Lsn, row: int) -> Piece:
        """Without the row that `locate` told of; itself, if that is not here."""
        place = bisect_left(self.places.lsns, lsn)
        if place == len(self.places.lsns) or self.places.lsns[place] != lsn:
            return self
        indexes = np.arange(self.count) if self.indexes is None else self.indexes
        stays = indexes != self.places.starts[place] + row
        if stays.all():
            return self
        kept = join_rows(self.rows).filter(pa.array(stays))
        return replace(self, rows=(kept,), indexes=indexes[stays])


# ---- to a target


@dataclass(frozen=True, slots=True)
class Hello:
    """Open the target."""

    shard: int
    connection: int
    term: int


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply what counts in [after, upto); without pieces it only moves the position."""

    shard: int
    connection: int
    term: int
    after: Lsn
    upto: Lsn
    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self.pieces)

    @property
    def rows(self) -> int:
        return sum(piece.count for piece in self.pieces)

    def locate(self, row: int) -> tuple[Lsn, int] | None:
        """See `Piece.locate`; None: it has no such row."""
        for piece in self.pieces:
            if 0 <= row < piece.count:
                return piece.locate(row)
            row -= piece.count
        return None


@dataclass(frozen=True, slots=True)
class Bye:
    """Close the target."""

    shard: int
    connection: int


# ---- from a target


@dataclass(frozen=True, slots=True)
class At:
    """The target is open, and stands at this position."""

    shard: int
    connection: int
    position: Lsn


@dataclass(frozen=True, slots=True)
class Ack:
    """The target's position after the oldest batch of the connection that has no answer yet."""

    shard: int
    connection: int
    position: Lsn


@dataclass(frozen=True, slots=True)
class Failure:
    """What came of a Hello, of the oldest Apply without an answer, or of the connection."""

    shard: int
    connection: int
    error: Exception = field(compare=False)


ToTarget = Hello | Apply | Bye
FromTarget = At | Ack | Failure


def batch_of(message: Apply, empty: pa.RecordBatch) -> Batch:
    """As a target takes it. `empty` is a batch of the stream without rows."""
    batches = [rows for piece in message.pieces for rows in piece.rows]
    rows = join_rows(batches) if batches else empty
    return Batch(message.term, message.after, message.upto, rows)


def join_rows(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch; a single one is not copied."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
