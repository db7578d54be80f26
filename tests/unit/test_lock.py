"""The lock files name all that `make install` needs, by version and hash, and nobody's host."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements-build.lock", "requirements.lock")
_PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;]+)(?: ; (?P<marker>[^\\]+?))? \\\Z")
_HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?\Z")


def pins(name: str) -> dict[str, Version]:
    """What the lock installs here."""
    found = {}
    for line in (ROOT / name).read_text().splitlines():
        match = _PIN.match(line)
        if match and (match["marker"] is None or Marker(match["marker"]).evaluate()):
            found[canonicalize_name(match["name"])] = Version(match["version"])
    return found


def project(path: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / path).read_text())


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_is_a_pin_or_a_hash(name: str) -> None:
    head, *lines = (ROOT / name).read_text().splitlines()
    assert head.startswith("# Made by `make lock`")
    assert lines
    pinned = True
    for line in lines:
        if _HASH.match(line):
            pinned = True
        else:
            assert pinned and _PIN.match(line), line
            pinned = False  # hashes must follow
    assert pinned


def test_what_the_projects_ask_for_is_locked() -> None:
    ours, bench = project("pyproject.toml"), project("bench/pyproject.toml")["project"]
    asked = ours["project"]["dependencies"] + ours["project"]["optional-dependencies"]["dev"]
    asked += [one for one in bench["dependencies"] if one != "penstock"]
    for name, texts in zip(LOCKS, (ours["build-system"]["requires"], asked), strict=True):
        locked = pins(name)
        for text in texts:
            wanted = Requirement(text)
            found = locked.get(canonicalize_name(wanted.name))
            assert found is not None, f"{text}: run `make lock`"
            assert wanted.specifier.contains(found), f"{text} is locked at {found}: `make lock`"


def test_both_locks_agree() -> None:
    build, rest = map(pins, LOCKS)
    assert all(rest.get(name, locked) == locked for name, locked in build.items())
