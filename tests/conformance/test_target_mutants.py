"""Proof that the suite can fail: mistakes in the shipped files are noticed by a short story.

The story has a batch that comes twice, one that comes late, one that comes too early, and a player
that was replaced.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from target_databases import Database
from target_samples import batch_of, shard_of

from penstock.errors import Fenced

MODULES = "penstock.delivery.targets"


def tell(database: Database, make_target: Callable[[], Any], key: tuple[str, ...]) -> None:
    """Everything that the law of positions says, and nothing else."""
    shard = shard_of(key=key)
    counts = {} if key else {"_count": 1}
    one = {"auction": 1, "seller": "a", "price": 0.5} | counts
    first = batch_of(shard, 10, 20, [(1, *list(one.values())[:3])])
    early = batch_of(shard, 30, 40, [(1, 3, "c", 0.5)])
    late = batch_of(shard, 5, 8, [(-1, *list(one.values())[:3])])
    with closing(make_target()) as target:
        assert target.open(shard, 1) == 10
        assert [target.apply(batch) for batch in (early, first, first, late, early)] == [
            *(10, 20, 20, 20, 20)
        ]
        assert database.rows(shard) == [one]
        with closing(make_target()) as heir:
            assert heir.open(shard, 2) == 20
            with pytest.raises(Fenced):
                target.apply(batch_of(shard, 20, 30, [(1, 2, "b", 0.5)]))
            with pytest.raises(Fenced):
                target.open(shard, 1)
    assert database.stored(shard) == (20, 2)
    assert database.rows(shard) == [one]


#: By database: the file, what is replaced in it, and by what.
MUTANTS = {
    "sqlite": {
        "the position is not compared": ("sqlite", "AND position = ?", "AND ? > 0"),
        "the term is not compared": ("sqlite", "AND term <= ?", "AND ? > 0"),
        "who opens does not set the term": (
            "sqlite",
            "SET term = ? WHERE",
            "SET term = 1 + 0 * ? WHERE",
        ),
        "rows change in any case": ("sqlite", "if moved:", "if True:"),
        "the position stays": ("sqlite", "SET position = ?,", "SET position = position + 0 * ?,"),
    },
    "duckdb": {
        "the position is not compared": ("duckdb", "AND position = ?", "AND ? > 0"),
        "the term is not compared": ("duckdb", "AND term <= ?", "AND ? > 0"),
        "rows change in any case": ("duckdb", "if moved != [(1,)]:", "if False:"),
        "the position stays": ("duckdb", "SET position = ?,", "SET position = position + 0 * ?,"),
    },
    "postgresql": {
        "the position is not compared": ("postgres_sql", "AND position = $4", "AND $4 > 0"),
        "the term is not compared": ("postgres_sql", "AND term <= $6", "AND $6 > 0"),
        "who opens does not set the term": ("postgres_sql", "SET term = $4", "SET term = term"),
        "rows are added in any case": (
            "postgres_sql",
            'terms = ["EXISTS (SELECT FROM moved)"] if guarded else []\n        if self',
            'terms = ["true"] if guarded else []\n        if self',
        ),
        "rows go in any case": (
            "postgres_sql",
            'terms = ["EXISTS (SELECT FROM moved)"] if guarded else []\n        terms +=',
            'terms = ["true"] if guarded else []\n        terms +=',
        ),
        "counted rows go in any case": (
            "postgres_sql",
            'EXISTS (SELECT FROM moved) "\n',
            'true "\n',
        ),
    },
}
KEYS = [("auction",), ()]


@pytest.fixture
def targets(
    sql_database: Database, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str, str], Callable[[], Any]]:
    """What makes targets with a mistake in one file."""

    def mutate(file: str, old: str, new: str) -> Callable[[], Any]:
        original = importlib.import_module(f"{MODULES}.{file}")
        text = Path(str(original.__file__)).read_text()
        assert text.count(old) == 1, text.count(old)
        mutant = ModuleType(f"{file}_mutant")
        monkeypatch.setitem(sys.modules, mutant.__name__, mutant)
        exec(text.replace(old, new), mutant.__dict__)
        if file == "postgres_sql":
            module = importlib.import_module(f"{MODULES}.postgres")
            monkeypatch.setattr(module, "Statements", mutant.__dict__["Statements"])
            return sql_database.target
        kind = next(kind for name, kind in vars(mutant).items() if name.endswith("Target"))
        return lambda: kind(sql_database.path)  # type: ignore[attr-defined]

    return mutate


@pytest.mark.parametrize("key", KEYS)
def test_the_story_holds_as_it_ships(sql_database: Database, key: tuple[str, ...]) -> None:
    tell(sql_database, sql_database.target, key)


@pytest.mark.parametrize(
    ("sql_database", "name"),
    [(database, name) for database, mutants in MUTANTS.items() for name in mutants],
    indirect=["sql_database"],
)
def test_a_mistake_is_noticed(
    sql_database: Database,
    name: str,
    targets: Callable[[str, str, str], Callable[[], Any]],
    request: pytest.FixtureRequest,
) -> None:
    make_target = targets(*MUTANTS[request.node.callspec.params["sql_database"]][name])
    seen = 0
    for key in KEYS:
        try:
            tell(sql_database, make_target, key)
        except (AssertionError, pytest.fail.Exception, KeyError):
            seen += 1
        if sql_database.stored(shard_of()):
            sql_database.run("DROP TABLE results")
            sql_database.run("DELETE FROM penstock_positions")

    assert seen
