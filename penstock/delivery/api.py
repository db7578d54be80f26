"""Delivery: what a batch is, and what a target does with it. Pure.

A target is one shard of a delivery: a database, or a part of one. It keeps a *position* beside its
rows: all that counts in the stream below this LSN, and is the shard's, was applied to it.

    stored position == batch.after ?  ── yes ─►  rows and `upto` in ONE transaction; answer upto
                                     └── no ─►  change nothing; answer the stored position

Law (I14): that comparison, made inside the target's own transaction, is all that exactly once
needs. Batches may come twice, late, after a reconnection, or from a player that was replaced: none
of them changes anything. (A model check of the LogPlayer paper has shown that its rule, by which
targets need not compare, breaks as soon as batches are in flight over a reconnection.) A term only
stops a replaced player early.

Law: a batch holds whole commits, and so does every transaction of a target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from penstock.ids import Lsn


@dataclass(frozen=True, slots=True)
class Shard:
    """What a target is told before its first batch: which rows it will get, and as what table."""

    #: Name of the delivery; positions of several deliveries can stand in one database.
    delivery: str
    #: Its number, and of how many.
    index: int
    count: int
    #: Where the delivery begins: the position of a target that has stored none.
    start: Lsn
    #: The stream's columns, without `_weight`.
    schema: pa.Schema
    #: Whether batches have the column `_weight`: 1 adds a row, -1 takes one back.
    changing: bool
    #: The columns by which rows replace each other; none: all rows are kept, as often as they came.
    key: tuple[str, ...]
    #: The table, if the target has tables.
    table: str
    #: Whether a key that has two rows, or a row that is taken back and not there, is an error.
    strict: bool = False
    #: Which delivery of that name it is: one that was removed, or is of another log, had another.
    id: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """All of the shard's rows that count in [after, upto), in log order.

    Without rows it only moves the position (the paper's dummy entry).
    """

    #: Instance of the player, numbered by its claim in the log; larger wins.
    term: int
    after: Lsn
    upto: Lsn
    #: The stream's columns, `_weight` included if it is changing. May have no rows.
    rows: pa.RecordBatch


@runtime_checkable
class Target(Protocol):
    """One shard's storage. Called from one thread at a time, always the same one; may block.

    Errors tell the player what to do: `Unavailable` asks it to close, wait and open again;
    `BadRow` (with the index of the row, if it is known) says that these rows will never be
    taken; any other `Refused` that somebody must change something first; `Fenced` that a newer
    player was here. Whatever else is raised is told to the user and counts as `Unavailable`. After
    an error nothing is known of the batch: the position tells.
    """

    def open(self, shard: Shard, term: int) -> Lsn:
        """Connect, make what is missing, and answer the stored position, or `shard.start`.

        From now on older terms are refused. Called again after `close`.
        """

    def apply(self, batch: Batch) -> Lsn:
        """See the picture above. Returns after the transaction is durable."""

    def close(self) -> None:
        """Let go of connections. Idempotent; never raises."""
