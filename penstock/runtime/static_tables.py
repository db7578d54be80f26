"""Static tables that a query needs as they were: those that rows are taken back through. Pure.

Static tables are read when a query is started, so a table that has changed meanwhile is seen by all
rows that come after that start. A row that was joined before stays as it was joined. But where rows
are taken back before the join, each must find the partner that it was added with; with another
table it would take back what was never there. So of such tables the log keeps a digest.

Law: tables with the same rows, each as often, have one digest, in whatever order Spark reads them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from penstock.plan import nodes as n
from penstock.plan.changes import is_append_only, is_static
from penstock.plan.stages import Query
from penstock.state.keys import hash_columns


def fixed_tables(query: Query, statics: Mapping[int, pa.Table]) -> dict[str, str]:
    """Digests of the tables that must not change, by their number and columns in the plan."""
    return {
        f"{number}: {', '.join(name.split('#')[0] for name in leaf.schema.names)}": digest(
            statics[leaf.id]
        )
        for number, leaf in enumerate(_fixed(query))
        if leaf.id in statics
    }


def _fixed(query: Query) -> Iterator[n.Static]:
    for stage in query.stages:
        for node in stage.root.walk():
            if not isinstance(node, n.Join):
                continue
            for table, rows in ((node.left, node.right), (node.right, node.left)):
                if is_static(table) and not is_append_only(rows):
                    yield from (leaf for leaf in table.walk() if isinstance(leaf, n.Static))


def digest(table: pa.Table) -> str:
    """The same for the same rows."""
    total = mixed = 0
    for batch in table.to_batches():
        hashes = hash_columns([_hashable(column) for column in batch.columns], batch.num_rows)
        total += int(hashes.sum(dtype=np.uint64))
        mixed += int((hashes * (hashes | np.uint64(1))).sum(dtype=np.uint64))
    text = f"{table.num_rows} {total % 2**64} {mixed % 2**64}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _hashable(column: pa.Array) -> pa.Array:
    if not pa.types.is_interval(column.type):
        return column
    # Row by row, since calendar intervals have no kernels; few tables have them.
    return pa.array([str(value) for value in column.to_pylist()], pa.string())
