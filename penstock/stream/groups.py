"""Rows to the groups of entries that an append makes of them.

Owns the cut: one entry per batch, batches split to the size of a payload, entries packed into
groups (log/client/packing.py). All checking and encoding happens here, before anything is sent.
Law: the same rows, given in the same form, are cut the same way each time, so a replay has the
shape of what it repeats; with the same turns, its entries are in the same lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.ids import Lsn
from penstock.limits import PAYLOAD_BYTES_MAX
from penstock.log.client.packing import pack
from penstock.log.records import Appended, NewEntry
from penstock.stream.batches import encode_batch, split_batch
from penstock.stream.lanes import Lanes
from penstock.stream.rows import to_batches

Group = list[NewEntry]


@dataclass(frozen=True, slots=True)
class RowsAppended:
    """Rows that are durable and visible, and where they went."""

    rows: int
    #: One per group, in order; none if there were no rows. Other entries may lie between groups.
    groups: tuple[Appended, ...]

    @property
    def first_lsn(self) -> Lsn | None:
        """LSN of the first batch; None if there were no rows."""
        return self.groups[0].first_lsn if self.groups else None

    @property
    def last_lsn(self) -> Lsn | None:
        """LSN of the last batch; None if there were no rows."""
        if not self.groups:
            return None
        return Lsn(self.groups[-1].first_lsn + self.groups[-1].count - 1)

    @property
    def duplicate(self) -> bool:
        """All of it had been appended by an earlier attempt, and was not appended again."""
        return bool(self.groups) and all(group.duplicate for group in self.groups)


def make_groups(
    rows: object, *, schema: pa.Schema, lanes: Lanes, turns: Iterator[int]
) -> list[Group]:
    """The groups to append, in order. Raises BadRow, BadRequest or TooLarge."""
    entries: list[NewEntry] = []
    first_row = 0
    for batch in to_batches(rows, schema):
        for whole in split_batch(batch, PAYLOAD_BYTES_MAX, first_row=first_row):
            for piece, tags in lanes.split(whole, next(turns)):
                entries.append(NewEntry(encode_batch(piece), tags, rows=piece.num_rows))
        first_row += batch.num_rows
    return list(pack(entries))


def append_groups(groups: list[Group], append: Callable[[Group], Appended]) -> RowsAppended:
    """Append one after the other. An error says how much had been appended before it."""
    done: list[Appended] = []
    rows = 0
    for group in groups:
        try:
            done.append(append(group))
        except PenstockError as error:
            if not done:
                raise
            total = sum(entry.rows for each in groups for entry in each)
            raise type(error)(
                f"{error}; the first {rows} of {total} rows were appended before"
            ) from error
        rows += sum(entry.rows for entry in group)
    return RowsAppended(rows, tuple(done))
