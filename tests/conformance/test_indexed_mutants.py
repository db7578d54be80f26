"""Proof that the checks of an indexed store can fail: mistakes in the shipped files are noticed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from indexed_story import (
    DELETIONS_MIN,
    Opener,
    Story,
    check_crashes,
    check_faults,
    check_flips,
    check_gone,
    open_store,
)

from penstock.errors import PenstockError

PACKAGE = "penstock.state.stores"
#: In the order in which they import each other.
MODULES = ("bytes_api", "commit_format", "entry_index", "segments", "collecting", "indexed")
#: The file, what is replaced in it, and by what.
MUTANTS = {
    "a commit is not synced": (
        "indexed",
        "file.append(pieces)\n        file.sync()",
        "file.append(pieces)",
    ),
    "a new file's name is not synced": ("indexed", "        self._disk.sync_dir()", "        pass"),
    "a new file's head is not synced": (
        "indexed",
        "head)])\n        file.sync()",
        "head)])",
    ),
    "what was torn is not cut off": ("indexed", "newest.truncate(found.end)", "pass"),
    "who failed to write goes on": ("indexed", "self._broken = error", "pass"),
    "files that are removed are named": (
        "indexed",
        "[segment for segment in state.files if segment not in census.empty]",
        "list(state.files)",
    ),
    "what is moved hides what is put": ("indexed", "if key in puts or key in gone:", "if False:"),
    "what begins anew takes old rows along": (
        "indexed",
        "                self._leaving.clear()",
        "                pass",
    ),
    "an entry's CRC is not checked": ("commit_format", "if crc32c(row) != crc:", "if False:"),
    "an index's CRC is not checked": ("commit_format", "if crc32c(body) != crc:", "if False:"),
    "a directory's CRC is not checked": (
        "commit_format",
        " or crc32c(data) != head.directory_crc:",
        ":",
    ),
    "the content of the last commit is not checked": (
        "segments",
        "and not _is_whole(file, *commits[-1])",
        "and False",
    ),
    "what is damaged passes as torn": ("segments", "> number:", "> number + 2**40:"),
    "what begins anew clears nothing when it is read again": (
        "segments",
        "            found.directories.clear()\n",
        "            pass\n",
    ),
    "a file that is gone is not missed": ("segments", "    if missing:", "    if False:"),
    "deletions are forgotten at once": (
        "collecting",
        "segments <= oldest_dirty",
        "segments <= newest",
    ),
    "files count as empty too early": ("collecting", "if count == 0 and", "if count <= 1 and"),
    "the first entry of a key counts": (
        "entry_index",
        "table[places[newer]] = rows[newer]",
        "rows[newer]",
    ),
    "of one directory, any entry of a key counts": (
        "entry_index",
        "self._counts[rows[same & (there > rows)]] = False",
        "pass",
    ),
    "the base of a commit is not compared": (
        "bytes_api",
        " or (base is not None and base != have)",
        "",
    ),
}


@contextmanager
def mutated(file: str, old: str, new: str) -> Iterator[Opener]:
    """Opens stores with a mistake in one file; the other files are as they ship."""
    originals = {name: importlib.import_module(f"{PACKAGE}.{name}") for name in MODULES}
    try:
        for name, original in originals.items():
            text = Path(str(original.__file__)).read_text()
            if name == file:
                assert text.count(old) == 1, text.count(old)
                text = text.replace(old, new)
            copy = ModuleType(f"{PACKAGE}.{name}")
            copy.__file__ = original.__file__
            sys.modules[copy.__name__] = copy
            exec(compile(text, f"{name}_mutant", "exec"), copy.__dict__)
            if name == "collecting":
                vars(copy)["DELETIONS_MIN"] = DELETIONS_MIN
        kind: Any = vars(copy)["IndexedEngine"]
    finally:
        for name, original in originals.items():
            sys.modules[f"{PACKAGE}.{name}"] = original
    yield lambda disk: open_store(disk, kind)


def look(open: Opener, commits: int) -> None:
    """Everything that the laws say."""
    for seed in (1, 2, 3):
        check_gone(Story(seed, commits), open)
        check_flips(Story(seed, commits), open, 300, seed=seed)
        check_crashes(Story(seed, commits), open, seed=seed, mixtures=2)
        check_faults(Story(seed, commits), open, every=3)


def test_it_holds_as_it_ships() -> None:
    with mutated("bytes_api", "Laws", "Laws") as open:
        check_crashes(Story(6, 20), open, seed=6, mixtures=1)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_noticed(name: str) -> None:
    errors = (AssertionError, KeyError, PenstockError, pytest.fail.Exception)
    with mutated(*MUTANTS[name]) as open, pytest.raises(errors):
        look(open, 36)
