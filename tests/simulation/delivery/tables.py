"""Targets of a world of deliveries: tables that crash, are slow, lose answers, and are restored.

Owns what a target must promise (delivery/api.py), and the law that is checked with every
transaction: the rows of a table are those of its shard that count below its position, each once and
in order, of whole commits (I14); a position goes back only where a backup is restored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from penstock.delivery.api import Batch, Shard
from penstock.delivery.routing import WEIGHT
from penstock.errors import BadRow, Fenced, Unavailable
from penstock.ids import Lsn
from simulation.checkers.evidence import Violation
from simulation.delivery.rows import Oracle, is_bad


@dataclass(frozen=True, slots=True)
class Contents:
    """What a table holds, or a backup of it."""

    position: Lsn = Lsn(0)
    rows: tuple[int, ...] = ()


@dataclass
class Table:
    """The storage of one shard. It outlives players, and its own crashes."""

    shard: int
    oracle: Oracle
    knows_terms: bool
    #: Whether it refuses some rows.
    refuses: bool
    count: Callable[[str], None]
    #: Whether the shards of its delivery do.
    changes: bool = False
    contents: Contents = Contents()
    term: int = 0
    is_up: bool = True
    #: Grows with every crash: connections of before are dead.
    life: int = 0
    backups: list[Contents] = field(default_factory=list)
    #: Every position that it ever had.
    positions: set[int] = field(default_factory=set)
    was_restored: bool = False

    def __post_init__(self) -> None:
        self.backups.append(self.contents)
        self.positions.add(self.contents.position)

    def crash(self) -> None:
        self.is_up = False
        self.life += 1

    def back_up(self) -> None:
        self.backups.append(self.contents)

    def restore(self, contents: Contents) -> None:
        self.life += 1
        self.was_restored |= contents.position < self.contents.position
        self.contents = contents
        self.positions.add(contents.position)

    def greet(self, term: int) -> None:
        if self.knows_terms:
            if term < self.term:
                self.count("target fenced")
                raise Fenced(f"term {term}, but {self.term} was here")
            self.term = term

    def apply(self, batch: Batch) -> Lsn:
        """One transaction."""
        self.greet(batch.term)
        if batch.after != self.contents.position:
            self.count("batch refused")
            return self.contents.position
        rows: list[int] = batch.rows["row"].to_pylist()
        if self.changes:
            return self._change(batch, rows)
        for number, row in enumerate(rows):
            if self.refuses and is_bad(row):
                raise BadRow(f"row {row} does not fit", number)
        if batch.upto <= batch.after:
            raise Violation(
                "I14", f"shard {self.shard} would go from {batch.after} to {batch.upto}"
            )
        expected = self.oracle.between(self.shard, batch.after, batch.upto)
        if rows != expected:
            raise Violation(
                "I14",
                f"shard {self.shard} gets rows {rows} of LSN {batch.after} to {batch.upto - 1}, "
                f"where {expected} count",
            )
        self.count("batch applied" if rows else "position moved")
        self.contents = Contents(batch.upto, (*self.contents.rows, *rows))
        self.positions.add(batch.upto)
        return batch.upto

    def _change(self, batch: Batch, rows: list[int]) -> Lsn:
        """Of a delivery whose shards change: rows are taken back where they move."""
        left = Counter(self.contents.rows)
        for row, weight in zip(rows, batch.rows[WEIGHT].to_pylist(), strict=True):
            left[row] += weight
            if weight < 0:
                self.count("row given away")
        found = sorted(left.elements())
        expected = self.oracle.contents(self.shard, batch.upto)
        if found != expected or min(left.values(), default=0) < 0:
            raise Violation(
                "I14",
                f"shard {self.shard} would have {found} at {batch.upto}, not {expected}, by "
                f"{len(rows)} rows from LSN {batch.after} on",
            )
        self.count("batch applied" if rows else "position moved")
        self.contents = Contents(batch.upto, tuple(found))
        self.positions.add(batch.upto)
        return batch.upto

    def check(self) -> None:
        """All of it, not only what came last."""
        rows, position = self.contents.rows, self.contents.position
        if self.changes:
            if list(rows) != self.oracle.contents(self.shard, position):
                raise Violation("I14", f"shard {self.shard} at {position} has {rows}")
            return
        if list(rows) != self.oracle.between(self.shard, 0, position):
            raise Violation("I14", f"shard {self.shard} at {position} has {rows}")


class Nature(Protocol):
    """What may befall a call of a target: a world."""

    def before_call(self) -> None:
        """Raises Unavailable if the call fails, and nothing is done."""

    def after_call(self) -> None:
        """Raises Unavailable if it was done and nobody is told."""

    def on_the_way(self, apply: Callable[[], object]) -> None:
        """The batch may come once more, much later; or only then, and this raises Unavailable."""

    def broken(self, law: Violation) -> None:
        """A law is. Whoever called would take it for a failure of the target."""


class SimTarget:
    """A player's way to a table (delivery/api.py)."""

    def __init__(self, table: Table, nature: Nature) -> None:
        self._table = table
        self._nature = nature
        self._life: int | None = None

    def open(self, shard: Shard, term: int) -> Lsn:
        self._nature.before_call()
        if not self._table.is_up:
            raise Unavailable("the table does not answer")
        self._table.greet(term)
        self._life = self._table.life
        self._nature.after_call()
        return self._table.contents.position

    def apply(self, batch: Batch) -> Lsn:
        if self._life != self._table.life or not self._table.is_up:
            raise Unavailable("the table ended the connection")
        self._nature.before_call()
        self._nature.on_the_way(lambda: self._apply_late(batch))
        position = self._apply(batch)
        self._nature.after_call()
        return position

    def _apply(self, batch: Batch) -> Lsn:
        try:
            return self._table.apply(batch)
        except Violation as law:
            self._nature.broken(law)
            raise

    def _apply_late(self, batch: Batch) -> None:
        """It was on its way for long: nobody hears the answer."""
        if self._table.is_up:
            try:
                self._apply(batch)
            except (Fenced, BadRow):
                pass

    def close(self) -> None:
        self._life = None
