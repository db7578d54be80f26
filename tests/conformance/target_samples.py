"""Shards and batches for tests of targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from target_databases import Database, Row, flat

from penstock.delivery.api import Batch, Shard
from penstock.ids import Lsn

SCHEMA = pa.schema(
    [
        pa.field("auction", pa.int64(), nullable=False),
        pa.field("seller", pa.string()),
        pa.field("price", pa.float64()),
    ]
)
#: A row without its weight, or with it.
Values = tuple[Any, ...]


def shard_of(
    schema: pa.Schema = SCHEMA,
    *,
    key: Sequence[str] = ("auction",),
    changing: bool = True,
    strict: bool = False,
    **others: Any,
) -> Shard:
    shard = Shard("bids", 0, 1, Lsn(10), schema, changing, tuple(key), "results", strict)
    return replace(shard, **others)


def batch_of(
    shard: Shard, after: int, upto: int, rows: Iterable[Values] = (), *, term: int = 1
) -> Batch:
    """Rows are tuples; of a changing stream, the weight comes first."""
    names = shard.schema.names
    dicts = []
    for row in rows:
        weight, values = (row[0], row[1:]) if shard.changing else (1, row)
        dicts.append(dict(zip(names, values, strict=True)) | {"_weight": weight})
    schema = shard.schema
    if shard.changing:
        schema = schema.append(pa.field("_weight", pa.int64(), nullable=False))
    records = pa.RecordBatch.from_pylist(dicts, schema=schema)
    return Batch(term, Lsn(after), Lsn(upto), records)


def table_of(database: Database, shard: Shard) -> list[Row]:
    """In the order of what rows look like."""
    return sorted(database.rows(shard), key=repr)


def expected(shard: Shard, rows: Iterable[Values]) -> list[Row]:
    names = shard.schema.names
    return sorted((flat(dict(zip(names, row, strict=True)), shard) for row in rows), key=repr)
