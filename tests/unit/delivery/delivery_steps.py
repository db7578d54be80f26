"""Spans of rows for tests of the player's core: one row per LSN, in the shard that is asked for."""

from __future__ import annotations

import pyarrow as pa

from penstock.delivery.messages import Piece, Places
from penstock.delivery.routing import Span
from penstock.ids import Lsn

SCHEMA = pa.schema([("lsn", pa.int64()), ("shard", pa.int64())])


def piece(after: int, upto: int, shard: int, *lsns: int, bytes: int = 10) -> Piece:
    """Rows of a shard, one commit each."""
    rows = pa.RecordBatch.from_pydict(
        {"lsn": list(lsns), "shard": [shard] * len(lsns)}, schema=SCHEMA
    )
    places = Places(tuple(map(Lsn, lsns)), tuple(range(len(lsns))))
    return Piece(Lsn(after), Lsn(upto), (rows,), bytes * len(lsns), places)


def span(after: int, upto: int, rows: dict[int, int] | None = None, *, bytes: int = 10) -> Span:
    """[after, upto) with a row at each of these LSNs, for that shard."""
    by_shard: dict[int, list[int]] = {}
    for lsn, shard in (rows or {}).items():
        assert after <= lsn < upto
        by_shard.setdefault(shard, []).append(lsn)
    pieces = {
        shard: piece(after, upto, shard, *lsns, bytes=bytes) for shard, lsns in by_shard.items()
    }
    return Span(Lsn(after), Lsn(upto), pieces, len(rows or {}))
