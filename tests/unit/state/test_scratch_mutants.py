"""Proof that the tests of mapped state can fail: each mistake is noticed by one of them."""

from __future__ import annotations

import inspect
import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import test_scratch
from harness.rooms import Forgetful

from penstock.errors import PenstockError
from penstock.state import scratch
from penstock.state.columns import Columns
from penstock.state.int_index import IntIndex
from penstock.state.scratch import Scratch

Patch = pytest.MonkeyPatch


def growth_loses_the_tail(patch: Patch) -> None:
    original = Scratch.grown

    def grown(self: Scratch, array: Any, rows: int) -> Any:
        wider = original(self, array, rows)
        wider[len(array) - 1] = 0
        return wider

    patch.setattr(Scratch, "grown", grown)


def growth_makes_another_file(patch: Patch) -> None:
    """So who holds the shorter array has a stale view of what is written afterwards."""

    def grown(self: Scratch, array: Any, rows: int) -> Any:
        wider = self.zeros((rows, *array.shape[1:]), array.dtype)
        wider[: len(array)] = array
        return wider

    patch.setattr(Scratch, "grown", grown)


def what_is_let_go_was_never_written(patch: Patch) -> None:
    """Private mappings lose what was changed in them."""

    def of(cls: Any, file: Any, size: int) -> Any:
        mapping = cls(file.fd, size, flags=mmap.MAP_PRIVATE)
        mapping.file = file
        return mapping

    patch.setattr(scratch._Mapping, "of", classmethod(of))


def disk_space_is_not_taken(patch: Patch) -> None:
    patch.setattr(scratch._File, "take", lambda self, start, end: os.ftruncate(self.fd, end))


def a_join_begins_with_the_last_part(patch: Patch) -> None:
    original = Scratch.joined

    def joined(self: Scratch, parts: Sequence[Any], axis: int = 0) -> Any:
        return original(self, parts[::-1], axis)

    patch.setattr(Scratch, "joined", joined)


def texts_stay_in_memory(patch: Patch) -> None:
    patch.setattr(Scratch, "keep", lambda self, rows: rows)


def files_have_names(patch: Patch) -> None:
    def named(buffering: int, dir: str) -> Any:
        return tempfile.NamedTemporaryFile(buffering=0, dir=dir, delete=False)

    patch.setattr(scratch.tempfile, "TemporaryFile", named)


def files_outlive_their_arrays(patch: Patch) -> None:
    patch.setattr(scratch.weakref, "finalize", lambda *given: None)


def the_bound_is_not_looked_at(patch: Patch) -> None:
    patch.setattr(Scratch, "tidy", lambda self: None)


def one_chunk_is_let_go_again_and_again(patch: Patch) -> None:
    original = Scratch._round
    patch.setattr(Scratch, "_round", lambda self: original(self)[:1])


def columns_are_those_from_before_the_growth(patch: Patch) -> None:
    original = Columns._look_into_rows

    def look(self: Columns) -> None:
        if not set(self._together) <= set(self._columns):
            original(self)

    patch.setattr(Columns, "_look_into_rows", look)


def a_rebuilt_index_misses_the_first_slot(patch: Patch) -> None:
    original = IntIndex._put

    def put(self: IntIndex, hashes: Any, slots: Any) -> None:
        kept = slots > 0
        original(self, hashes[kept], slots[kept])

    patch.setattr(IntIndex, "_put", put)


MUTANTS: list[Callable[[Patch], None]] = [
    growth_loses_the_tail,
    growth_makes_another_file,
    what_is_let_go_was_never_written,
    disk_space_is_not_taken,
    a_join_begins_with_the_last_part,
    texts_stay_in_memory,
    files_have_names,
    files_outlive_their_arrays,
    the_bound_is_not_looked_at,
    one_chunk_is_let_go_again_and_again,
    columns_are_those_from_before_the_growth,
    a_rebuilt_index_misses_the_first_slot,
]


def findings(place: Path) -> list[str]:
    """The tests that fail, with a room or a folder of their own each."""
    failed = []
    for name, test in vars(test_scratch).items():
        wanted = [*inspect.signature(test).parameters] if name.startswith("test_") else []
        if not wanted or hasattr(test, "hypothesis") or "killed" in name:  # another process
            continue
        if "caplog" in wanted:
            continue
        folder = place / name
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            given = {
                "room": Forgetful(folder=str(folder)),
                "tmp_path": folder,
                "monkeypatch": patch,
            }
            try:
                test(**{one: given[one] for one in wanted})
                assert not list(folder.iterdir())
            except (AssertionError, IndexError, OSError, PenstockError, pytest.fail.Exception):
                failed.append(name)
    return failed


def test_nothing_fails_without_a_mistake(tmp_path: Path) -> None:
    assert findings(tmp_path) == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_every_mistake_is_noticed(mutant: Callable[[Patch], None], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        assert findings(tmp_path)
