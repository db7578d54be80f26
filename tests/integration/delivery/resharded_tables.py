"""What tables must be, of deliveries whose targets change.

A sample is all rows of a table, and the positions of all shards of the delivery that are or were
there, read in one transaction. The judge folds what was committed; of deliveries it knows nothing
but who has which virtual node from where on.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from changing_result import nodes_of
from delivered_tables import COUNT, Committed, Row, parsed

from penstock.protocol.shards import Shards

_KEPT_EVERY = 50


@dataclass(frozen=True)
class Sample:
    #: By shard.
    positions: dict[int, int]
    table: Counter[Row]


def look_at_sqlite(
    path: Path, delivery: str, table: str, columns: Sequence[str], *, is_counted: bool
) -> Sample | None:
    """None: there is no table yet."""
    count = COUNT if is_counted else "1"
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
        try:
            connection.execute("BEGIN")
            positions = connection.execute(
                "SELECT shard, position FROM penstock_positions WHERE delivery = ?", [delivery]
            ).fetchall()
            rows = connection.execute(
                f"SELECT {', '.join([*columns, count])} FROM {table}"
            ).fetchall()
        except sqlite3.OperationalError:
            return None
    return sample_of(positions, [tuple(map(parsed, row)) for row in rows])


def sample_of(positions: Sequence[tuple[int, int]], rows: Sequence[Row]) -> Sample:
    found: Counter[Row] = Counter()
    for *row, count in rows:
        found[tuple(row)] += count
    return Sample(dict(positions), found)


class Judge:
    def __init__(self, commits: Sequence[Committed], layout: Shards, *, keyed: bool) -> None:
        self._commits = list(commits)
        self._lsns = [one.lsn for one in self._commits]
        self._kept: list[Counter[Row]] = [Counter()]
        self._layout = layout
        rows = sorted({row for one in self._commits for row, _ in one.changes})
        self._nodes = dict(zip(rows, nodes_of(rows, keyed=keyed), strict=True))

    def problem(self, sample: Sample) -> str | None:
        """What is wrong with it."""
        wanted: Counter[Row] = Counter()
        for shard, position in sample.positions.items():
            route = self._layout.routes[bisect_left(self._layout.cuts, position)]
            for row, count in self._fold(position).items():
                if route[self._nodes[row]] == shard:
                    wanted[row] += count
        if sample.table == wanted:
            return None
        extra, missing = sample.table - wanted, wanted - sample.table
        return f"at {sample.positions}: {len(extra)} rows too many, {len(missing)} too few"

    def whole(self) -> Counter[Row]:
        return self._fold(self._commits[-1].lsn + 1)

    def _fold(self, position: int) -> Counter[Row]:
        """Of all commits below it, on from the last of the sums that are kept."""
        end = bisect_left(self._lsns, position)
        kept = end // _KEPT_EVERY
        while len(self._kept) <= kept:
            at = (len(self._kept) - 1) * _KEPT_EVERY
            self._kept.append(self._added(self._kept[-1], at, at + _KEPT_EVERY))
        return +self._added(self._kept[kept], kept * _KEPT_EVERY, end)

    def _added(self, table: Counter[Row], first: int, end: int) -> Counter[Row]:
        found = table.copy()
        for one in self._commits[first:end]:
            for row, weight in one.changes:
                found[row] += weight
        return +found
