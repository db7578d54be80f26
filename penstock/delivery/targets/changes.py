"""What a batch changes in a table, in the table's own columns: the fold, mapped. Pure.

Law: what a target gets from here it can put into its table as it is, each kind with one command; a
row that the table cannot hold was refused before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.delivery.api import Batch, Shard
from penstock.delivery.fold import WEIGHT, Changes, KeyTwice, fold
from penstock.delivery.targets.columns import COUNT, ROW, TableShape, described, table_rows
from penstock.delivery.targets.digests import row_digests
from penstock.errors import BadRequest, Refused
from penstock.stream.schema import describe_difference

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TableChanges:
    """In the columns of the table."""

    #: All columns. Of a multiset: `_count` is added to what is there, and a row with 0 goes.
    upserts: pa.RecordBatch
    #: The columns of the key; if strict, all columns of rows that must be there.
    deletes: pa.RecordBatch
    #: The index in the batch of each of them, for messages.
    upsert_places: Ints
    delete_places: Ints


def table_changes(batch: Batch, shard: Shard, shape: TableShape) -> TableChanges:
    """Raises BadRow; strict: Refused for a key that has two rows."""
    _check(batch, shard)
    try:
        net = fold(batch.rows, key=shard.key, changing=shard.changing, strict=shard.strict)
    except KeyTwice as error:
        keys = batch.rows.select(list(shard.key))
        raise Refused(
            f"key {described(keys, error.place)} has more than one row {where(batch)}: deliver by "
            "a key that is unique, or without strict"
        ) from None
    names = shard.schema.names
    if isinstance(net, Changes):
        deleted = [name for name in names if name in net.deletes.schema.names]
        return TableChanges(
            upserts=table_rows(net.upserts, shard, net.upsert_places, names=names),
            deletes=table_rows(net.deletes, shard, net.delete_places, names=deleted),
            upsert_places=net.upsert_places,
            delete_places=net.delete_places,
        )
    rows = table_rows(net.rows, shard, net.places, names=names)
    rows = rows.append_column(ROW, row_digests(net.rows))
    rows = rows.append_column(COUNT, pa.array(net.deltas))
    return TableChanges(rows, rows.slice(0, 0), net.places, net.places[:0])


def where(batch: Batch) -> str:
    """For messages: which part of the log it is about."""
    return f"in LSNs {batch.after} to {batch.upto}"


def _check(batch: Batch, shard: Shard) -> None:
    wanted = shard.schema
    if shard.changing:
        wanted = wanted.append(pa.field(WEIGHT, pa.int64(), nullable=False))
    given = batch.rows.schema
    if given.names != wanted.names or given.types != wanted.types:
        raise BadRequest(
            f"a batch has other columns than its shard: {describe_difference(wanted, given)}; "
            "open the target again"
        )
    if batch.upto < batch.after or (batch.upto == batch.after and batch.rows.num_rows):
        raise BadRequest(f"no rows lie {where(batch)}")
