"""Which shard a row belongs to: key → hash → virtual node → shard. Pure.

The hash and the virtual nodes are those of keyed streams (state/keys.py). A *route* says which
shard has which virtual node; which one holds where is in protocol/shards.py. Without a key the hash
is over all columns but the weight, so that a row and what takes it back meet in one shard.

Law: rows of one key are in one shard, in log order. All rows that count at one place are in one
piece of each shard. Rows that all go to one shard are not copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.delivery.messages import Piece, Places, join_rows
from penstock.errors import BadRequest
from penstock.ids import Lsn
from penstock.state.keys import VIRTUAL_NODES, hash_columns, virtual_nodes

#: The column of a changing stream: how often its row counts from here on, more or less.
WEIGHT: Final = "_weight"
SHARDS_MAX: Final = VIRTUAL_NODES


def first_route(count: int) -> tuple[int, ...]:
    """Virtual nodes by turns over so many shards: the shard of each."""
    if not 1 <= count <= SHARDS_MAX:
        raise BadRequest(f"{count} targets: a delivery has 1 to {SHARDS_MAX}")
    return tuple(node % count for node in range(VIRTUAL_NODES))


@dataclass(frozen=True, slots=True)
class Commit:
    """What counts at one place of the log: rows in one or more batches, and their payload bytes."""

    lsn: Lsn
    batches: tuple[pa.RecordBatch, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Span:
    """All that counts in [after, upto), routed. A shard without a piece has no rows there."""

    after: Lsn
    upto: Lsn
    pieces: Mapping[int, Piece] = field(default_factory=dict)
    #: How many commits have rows here, for whichever shard.
    commits: int = 0


class Router:
    """Cuts commits into pieces for shards."""

    def __init__(self, schema: pa.Schema, key: Sequence[str], route: Sequence[int]) -> None:
        """The stream's schema, the columns of the key (none: all of them), and the shard of each
        virtual node."""
        by = tuple(key) or tuple(name for name in schema.names if name != WEIGHT)
        self._columns = [schema.get_field_index(name) for name in by]
        self._shards = np.array(route, np.int64)
        self._is_single = len(set(route)) == 1

    def nodes(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The virtual node of each row."""
        columns = [rows.column(place) for place in self._columns]
        return virtual_nodes(hash_columns(columns, rows.num_rows))

    def route(
        self, commits: Sequence[Commit], *, after: Lsn, upto: Lsn, only: int | None = None
    ) -> Span:
        """The pieces of all shards, or of one."""
        commits = [commit for commit in commits if _count(commit.batches)]
        if not commits:
            return Span(after, upto)
        batches = [rows for commit in commits for rows in commit.batches if rows.num_rows]
        size = sum(commit.bytes for commit in commits)
        counts = [_count(commit.batches) for commit in commits]
        starts = tuple(accumulate(counts[:-1], initial=0))
        places = Places(tuple(commit.lsn for commit in commits), starts)
        pieces: dict[int, Piece] = {}
        for shard, rows, indexes in self._split(batches, sum(counts)):
            if only is None or shard == only:
                part = size if indexes is None else size * len(indexes) // sum(counts)
                pieces[shard] = Piece(after, upto, rows, part, places, indexes)
        return Span(after, upto, pieces, len(commits))

    def _split(
        self, batches: list[pa.RecordBatch], count: int
    ) -> Iterator[tuple[int, tuple[pa.RecordBatch, ...], npt.NDArray[np.int64] | None]]:
        if self._is_single:
            yield int(self._shards[0]), tuple(batches), None
            return
        joined = join_rows(batches)
        shards = self._shards[self.nodes(joined)]
        changes = np.flatnonzero(shards[1:] != shards[:-1]) + 1
        if not len(changes):
            yield int(shards[0]), tuple(batches), None
            return
        if len(changes) < SHARDS_MAX:
            firsts = [0, *changes.tolist()]
            owners = shards[firsts].tolist()
            if len({*owners}) == len(owners):
                # The rows of each stand together, as in small commits: nothing is copied.
                for shard, first, end in zip(owners, firsts, [*firsts[1:], count], strict=True):
                    yield shard, (joined.slice(first, end - first),), np.arange(first, end)
                return
        counts = np.bincount(shards)
        present = np.flatnonzero(counts).tolist()
        # One take for all shards; the sort is stable, so each keeps the order of the log.
        order = np.argsort(shards, kind="stable")
        sorted_rows = joined.take(pa.array(order))
        ends = np.cumsum(counts)
        for shard in present:
            end, size = int(ends[shard]), int(counts[shard])
            yield shard, (sorted_rows.slice(end - size, size),), order[end - size : end]


def _count(batches: Sequence[pa.RecordBatch]) -> int:
    return sum(rows.num_rows for rows in batches)
