"""What a strict delivery says if the table is not what the stream says it must be. Pure."""

from __future__ import annotations

import pyarrow as pa

from penstock.delivery.api import Batch
from penstock.delivery.targets.changes import where
from penstock.delivery.targets.columns import COUNT, ROW, described
from penstock.errors import Refused
from penstock.plain_text import plain_line


def not_as_it_was(batch: Batch, keys: pa.RecordBatch, index: int) -> Refused:
    """A row that is taken back is not there, or another one has its key."""
    return Refused(
        f"the row with key {described(keys, index)} that is taken back {where(batch)} is not in "
        "the table as it was: somebody else changed the table, or the key is not unique; deliver "
        "to a new table, or without strict"
    )


def meets_another(batch: Batch, key: str) -> Refused:
    """A row that is added has the key of a row that is there."""
    return Refused(
        f"a row that is added {where(batch)} meets another one of its key: "
        f"{plain_line(key).rstrip('.')}; deliver by a key that is unique, or without strict"
    )


def taken_too_often(batch: Batch, rows: pa.RecordBatch, index: int) -> Refused:
    """Of a multiset."""
    own = rows.drop_columns([ROW, COUNT])
    return Refused(
        f"the row {described(own, index)} is taken back {where(batch)} more often than it is in "
        "the table: somebody else changed the table; deliver to a new table, or without strict"
    )
