"""Histories of a stream: commits of rows that come and go, and the table that is left of them.

The model is a dictionary that looks at one row after the other; keys and rows are equal as Spark
groups them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from penstock.state.keys import key_objects

SCHEMA = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("rank", pa.float64()),
        pa.field("number", pa.float64()),
        pa.field("list", pa.list_(pa.field("element", pa.float64()))),
    ]
)
KEY = ("name", "rank")
WEIGHTED = SCHEMA.append(pa.field("_weight", pa.int64(), nullable=False))
#: A row of the stream, and how often it is added.
Change = tuple[dict[str, Any], int]
Commit = list[Change]

NUMBERS = st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("-inf"), None])
KEYS = st.fixed_dictionaries({"name": st.sampled_from(["a", "", "b", None]), "rank": NUMBERS})
VALUES = st.fixed_dictionaries(
    {"number": NUMBERS, "list": st.none() | st.lists(NUMBERS, max_size=2)}
)
ROWS = st.builds(lambda key, values: key | values, KEYS, VALUES)


@dataclass(frozen=True)
class History:
    commits: list[Commit]
    #: Whether each commit is the last of its batch.
    cuts: list[bool]

    def batches(self) -> list[Commit]:
        """The commits, joined to batches."""
        batches: list[Commit] = []
        joined: Commit = []
        for commit, is_last in zip(self.commits, self.cuts, strict=True):
            joined = joined + commit
            if is_last:
                batches.append(joined)
                joined = []
        return [*batches, joined]

    def everything(self) -> Commit:
        return [change for commit in self.commits for change in commit]


def record_batch(changes: Sequence[Change], *, weighted: bool = True) -> pa.RecordBatch:
    if not weighted:
        return pa.RecordBatch.from_pylist([row for row, _ in changes], schema=SCHEMA)
    rows = [row | {"_weight": weight} for row, weight in changes]
    return pa.RecordBatch.from_pylist(rows, schema=WEIGHTED)


def identities(rows: Iterable[dict[str, Any]], names: Sequence[str]) -> list[object]:
    """Equal where grouping has it so."""
    batch = pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA).select(list(names))
    return key_objects(batch.columns, batch.num_rows)


@st.composite
def keyed_histories(draw: st.DrawFn) -> History:
    """Every commit leaves at most one row of each key. Within a commit, rows have no order."""
    table: dict[object, dict[str, Any]] = {}
    commits = []
    for _ in range(draw(st.integers(0, 5))):
        commit: Commit = []
        for key in draw(st.lists(KEYS, max_size=5)):
            (identity,) = identities([key], KEY)
            values = draw(st.none() | VALUES)
            if identity in table:
                commit.append((table.pop(identity), -1))
            if values is not None:
                table[identity] = key | values
                commit.append((table[identity], 1))
        commits.append(draw(st.permutations(commit)))
    return History(commits, _cuts(draw, commits))


@st.composite
def any_histories(draw: st.DrawFn) -> History:
    weights = st.sampled_from([1, 1, 2, -1, -2])
    commits = draw(st.lists(st.lists(st.tuples(ROWS, weights), max_size=6), max_size=5))
    return History(commits, _cuts(draw, commits))


def _cuts(draw: st.DrawFn, commits: list[Commit]) -> list[bool]:
    return draw(st.lists(st.booleans(), min_size=len(commits), max_size=len(commits)))


def counted(changes: Iterable[Change]) -> Counter[object]:
    """The multiset that is left: how often each row is there, also if that is less than never."""
    changes = list(changes)
    left: Counter[object] = Counter()
    names = SCHEMA.names
    for identity, (_, weight) in zip(
        identities((row for row, _ in changes), names), changes, strict=True
    ):
        left[identity] += weight
    return Counter({identity: count for identity, count in left.items() if count})


def last_by_key(changes: Iterable[Change]) -> dict[object, object]:
    """Of rows that are only added: the last of each key."""
    rows = [row for row, _ in changes]
    return dict(zip(identities(rows, KEY), identities(rows, SCHEMA.names), strict=True))
