"""Proof that the checks of stores of rows can fail: mistakes in the shipped file are noticed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from state_actions import TAKE, contents
from test_increment_files import LOG, Writer, _some

from penstock.errors import Damaged, PenstockError
from penstock.state.stores import row_stores, rows
from penstock.state.stores.api import StaleCut

#: What is replaced in rows.py, and by what.
MUTANTS = {
    "what is there is not read before it is changed": (
        "merging = [Change(name, kind, rows), *touching] if rows.num_rows else touching",
        "pass",
    ),
    "keys without rows stay": ("self.deletes |= set(keys) - new.keys()", "pass"),
    "evictions are forgotten": (
        "self._about.evict(name, self._increment.marker_lsn, bound)",
        "pass",
    ),
    "an eviction strikes what came with it": ("if cut > born]", "if cut >= born]"),
    "of evictions only the last counts": (
        "later = [pair for pair in self.bounds.get(name, []) if pair[1] > bound]",
        "later = []",
    ),
    "struck rows are given": ("if kept.all() else batch", "if True else batch"),
    "what is not struck is deleted": (
        "if not _rows_of(self._about, name, [value]).num_rows:",
        "if True:",
    ),
    "a store that lost something passes": ("if cut < wanted:", "if cut == NOTHING:"),
    "rows of other keys are found": ("first[asked:] < asked", "first[asked:] < asked + 10**9"),
    "values of the task are not given": ("if stored is not None:", "if False:"),
    "all virtual nodes are given": ("for node in sorted(nodes)]", "for node in range(64)]"),
    "a commit that came meanwhile is not noticed": ("if engine.cut() == cut:", "if True:"),
    "what makes all adds to what is there": (
        "base=increment.base_lsn,\n",
        "base=have if have < increment.marker_lsn else None,\n",
    ),
}


@contextmanager
def mutated(old: str, new: str, place: Path) -> Iterator[Callable[[], Any]]:
    """Opens stores with a mistake in rows.py."""
    text = Path(str(rows.__file__)).read_text()
    assert text.count(old) == 1, text.count(old)
    mutant = ModuleType("rows_mutant")
    sys.modules[mutant.__name__] = mutant
    try:
        exec(compile(text.replace(old, new), "rows_mutant", "exec"), mutant.__dict__)
        _share_places(mutant)
        root = place / LOG
        yield lambda: mutant.__dict__["RowStore"](
            "indexed", row_stores._InFolders(root, row_stores._open_indexed)
        )
    finally:
        del sys.modules[mutant.__name__]


def _share_places(module: ModuleType) -> None:
    """Keys of one virtual node are at one of two places, as those are whose hashes are alike."""
    mask = ~np.uint64((1 << 57) - 1)
    for name in ("places_of", "find_places"):
        original = module.__dict__[name]
        module.__dict__[name] = lambda *given, original=original: original(*given) & mask


class Racing:
    """A store is put to by somebody else while it is read."""

    def __init__(self, engine: Any, race: list[Callable[[], object]]) -> None:
        self._engine = engine
        self._race = race

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def scan(self, prefix: bytes) -> Any:
        found = list(self._engine.scan(prefix))
        if self._race:
            self._race.pop()()
        return found


def look(open: Callable[[], Any]) -> None:
    """Everything that the laws say."""
    for seed in range(3):
        store = open()
        writer = Writer(store)
        random = Random(seed)
        writer.lsn = seed * 1000
        for _ in range(6):
            writer.do([*_some(random), ("insert", [(1, random.randrange(9), "a", 1)])])
            writer.do([("evict", random.randrange(7)), ("put", [1, 2]), TAKE])
            writer.put()
            writer.check(writer.named[0])
            newer = {**writer.named[0], "marker_lsn": writer.lsn + 1}
            with pytest.raises(Damaged):
                store.load(newer)
        _check_keys(writer)
        zombie = Writer(store)
        zombie.do([("put", [9]), TAKE])
        zombie.lsn = writer.lsn - 15
        with pytest.raises(StaleCut) as caught:
            zombie.put()
        assert caught.value.cut == writer.lsn
        zombie.named, zombie.lsn = [{"marker_lsn": writer.lsn - 3}], writer.lsn
        with pytest.raises(StaleCut):
            zombie.put()
        writer.check(writer.named[0])
        _check_race(writer, store)
        store.close()
    _check_kept(open())


def _check_kept(store: Any) -> None:
    """Of many rows an eviction strikes some; what is deleted bit by bit are those."""
    writer = Writer(store)
    writer.lsn = 10**6
    rows = [(number, number % 10, "a", 1) for number in range(300)]
    writer.do([("insert", rows), TAKE])
    writer.put()
    for key in range(0, 300, 30):  # each shares its place with others
        found = store.find(writer.named[0], "op/rows", [pa.array([key], pa.int64())])
        assert [k for one in found.changes for k in one.rows["k"].to_pylist()] == [key]
    for bound in range(8):
        writer.do([("evict", bound), TAKE])
        writer.put()
        writer.check(writer.named[0])
    store.close()


def _check_keys(writer: Writer) -> None:
    reference = writer.named[0]
    for key in range(4):
        found = writer.files.find(reference, "op/numbers", [pa.array([key], pa.int64())])
        assert {k for one in found.changes for k in one.rows["k"].to_pylist()} <= {key}
    nobody = writer.files.find(reference, "op/numbers", [pa.array([10**6], pa.int64())])
    assert not list(nobody.changes)
    half = frozenset(range(0, 64, 2))
    loaded = [one for one in writer.files.load(reference, half).changes if one.name == "op/numbers"]
    whole = [one for one in writer.files.load(reference).changes if one.name == "op/numbers"]
    rest = writer.files.load(reference, frozenset(range(1, 64, 2))).changes
    other = [one for one in rest if one.name == "op/numbers"]
    counts = [sum(one.rows.num_rows for one in some) for some in (loaded, other, whole)]
    assert counts[0] + counts[1] == counts[2]


def _check_race(writer: Writer, store: Any) -> None:
    """Its rows are of one cut, although another came after the first part was read."""

    def put_more() -> None:
        writer.do([("put", [3, 4]), ("insert", [(2, 8, "late", 1)]), TAKE])
        writer.put()

    task = next(iter(store._engines))
    store._engines[task] = Racing(store._engines[task], [put_more])
    loaded = store.load(writer.named[0])
    writer.check({**writer.named[0], "marker_lsn": loaded.cut})
    held = Writer(store)
    held.store.state.apply(list(loaded.changes))
    assert contents(held.store) == writer.held[loaded.cut]


def test_it_holds_as_it_ships(tmp_path: Path) -> None:
    with mutated("Laws: those", "Laws: those", tmp_path) as open:
        look(open)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_noticed(name: str, tmp_path: Path) -> None:
    errors = (AssertionError, PenstockError, pytest.fail.Exception, NameError, KeyError)
    with mutated(*MUTANTS[name], tmp_path) as open, pytest.raises(errors):
        look(open)
