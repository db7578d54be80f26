"""Random histories in every database: after each batch the table is what the model says."""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import closing
from dataclasses import replace

from delivery_histories import (
    KEY,
    SCHEMA,
    Commit,
    History,
    any_histories,
    counted,
    identities,
    keyed_histories,
    last_by_key,
    record_batch,
)
from hypothesis import HealthCheck, given, settings
from target_databases import Database
from target_samples import shard_of

from penstock.delivery.api import Batch, Shard
from penstock.ids import Lsn

NUMBERS = itertools.count()
many = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def play(database: Database, shard: Shard, history: History) -> list[list[dict[str, object]]]:
    """The table after each batch, in which everything comes twice."""
    number = next(NUMBERS)
    shard = replace(shard, delivery=f"delivery {number}", table=f"table {number}")
    tables = []
    with closing(database.target()) as target:
        position = target.open(shard, 1)
        for commits in history.batches():
            rows = record_batch(commits, weighted=shard.changing)
            batch = Batch(1, position, Lsn(position + 1), rows)
            position = target.apply(batch)
            assert target.apply(batch) == position
            tables.append(database.rows(shard))
    return tables


def so_far(history: History) -> list[Commit]:
    return list(itertools.accumulate(history.batches()))


def shown(rows: list[dict[str, object]], names: list[str]) -> list[object]:
    return identities(({name: row[name] for name in SCHEMA.names} for row in rows), names)


@many
@given(keyed_histories())
def test_rows_that_replace_each_other(database: Database, history: History) -> None:
    for strict in (False, True):
        tables = play(database, shard_of(SCHEMA, key=KEY, strict=strict), history)

        for rows, changes in zip(tables, so_far(history), strict=True):
            assert Counter(shown(rows, SCHEMA.names)) == counted(changes)


@many
@given(any_histories())
def test_rows_that_are_counted(database: Database, history: History) -> None:
    tables = play(database, shard_of(SCHEMA, key=()), history)

    for rows, changes in zip(tables, so_far(history), strict=True):
        names = shown(rows, SCHEMA.names)
        counts = {name: row["_count"] for name, row in zip(names, rows, strict=True)}
        assert len(counts) == len(rows)
        assert counts == counted(changes)


@many
@given(any_histories())
def test_rows_that_are_only_added(database: Database, history: History) -> None:
    tables = play(database, shard_of(SCHEMA, key=KEY, changing=False), history)

    for rows, changes in zip(tables, so_far(history), strict=True):
        found = dict(zip(shown(rows, list(KEY)), shown(rows, SCHEMA.names), strict=True))
        assert len(found) == len(rows)
        assert found == last_by_key(changes)
