"""How a simulated world is let loose on a mutant, and what a mutant may touch.

Owns the hunt, and mutant_seeds.json: which seed's world catches a mutant, so that a test needs one
world and not dozens. When code or worlds change, that seed may catch it no more: the hunt then
begins anew, from seed 0, and says so. `make seeds` writes down other seeds for those; of the seeds
that catch a mutant it takes the one that needs least time. With ANEW=1 it looks for better ones for
all. A mutant that is not in the list is caught by seed 0.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SEEDS_MAX = 200
#: Mistakes in a mutant itself, not in what it does to the code.
_BROKEN_MUTANT = (TypeError, AttributeError, NameError, ImportError)
#: Where mutants make their mistakes.
SHIPPED = ("penstock", "penstock_bench")

SEEDS = Path(__file__).with_name("mutant_seeds.json")
#: "write": seeds that catch no more are replaced in the list; "anew": all are.
SEARCH = os.environ.get("PENSTOCK_SEEDS", "")
#: Of so many seeds that catch a mutant the quickest one is written down.
_CATCHES = 3

#: Runs the world of a seed; raises what it finds.
Run = Callable[[int], None]


@dataclass(frozen=True)
class Mutant:
    """One mistake: a sentence, how to make it, and which worlds show it."""

    name: str
    apply: Callable[[pytest.MonkeyPatch], None]
    #: Whose worlds, if a simulator has several kinds.
    protocol: Any = ""
    #: Changes to the drawn swarm.
    swarm: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.apply.__module__.removeprefix('test_')}: {self.name}"

    @property
    def seed(self) -> int:
        """The one that is known to catch it."""
        return _seeds().get(self.key, 0)


def hunt(
    mutant: Mutant, run: Run, capsys: pytest.CaptureFixture[str], seeds_max: int = SEEDS_MAX
) -> None:
    """Fails if no world notices the mutant."""
    recorded, known = mutant.seed, () if SEARCH == "anew" else (mutant.seed,)
    catches = _catches(run, (*known, *range(seeds_max)))
    found = list(islice(catches, 1))
    if not found:
        pytest.fail(f"mutant {mutant.name!r} survived seed {recorded} and {seeds_max} others")
    if SEARCH == "anew" or (SEARCH and found[0][1] != recorded):
        found += islice(catches, _CATCHES - 1)
    _, seed, caught = min(found)
    with capsys.disabled():
        print(f"\nmutant {mutant.name!r}: {caught[:120]}")
        if seed != recorded:
            print(f"seed {recorded} is no longer the one to begin with, seed {seed} is: make seeds")
    if SEARCH and seed != recorded:
        _write_down(mutant.key, seed)


def _catches(run: Run, seeds: Iterable[int]) -> Iterator[tuple[float, int, str]]:
    """The seeds that catch it: how long each takes, the seed, and what it finds."""
    for seed in seeds:
        started = time.process_time()
        if (caught := _catch(run, seed)) is not None:
            yield time.process_time() - started, seed, caught


@cache
def _seeds() -> dict[str, int]:
    known: dict[str, int] = json.loads(SEEDS.read_text())
    return known


def _write_down(key: str, seed: int) -> None:
    """Tests in other processes write at the same time."""
    with SEEDS.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        known = {**json.load(file), key: seed}
        file.seek(0)
        json.dump({one: known[one] for one in sorted(known) if known[one]}, file, indent=1)
        file.write("\n")
        file.truncate()


def one_of_each_world(mutants: Iterable[Mutant]) -> list[Mutant]:
    """Those that are caught by the same world of the same seed need it once without them."""
    worlds = {(str(one.protocol), repr(one.swarm), one.seed): one for one in mutants}
    return list(worlds.values())


def _catch(run: Run, seed: int) -> str | None:
    try:
        run(seed)
    except Exception as caught:
        for error in (caught, caught.__cause__):
            if isinstance(error, _BROKEN_MUTANT):
                raise
        return f"{type(caught).__name__}: {caught}".splitlines()[0]
    return None


def foreign_homes(apply: Callable[[pytest.MonkeyPatch], None]) -> list[str]:
    """Modules that a mutant changes and that are not shipped code."""
    with pytest.MonkeyPatch.context() as patch:
        apply(patch)
        assert patch._setattr, "a mutant that changes nothing"
        # Nobody can tell whose mapping it is: a mutant sets attributes.
        assert not patch._setitem
        homes = [_home(target) for target, _, _ in patch._setattr]
    return [home for home in homes if home.split(".")[0] not in SHIPPED]


def _home(target: object) -> str:
    if isinstance(target, ModuleType):
        return target.__name__
    return target.__module__ if isinstance(target, type) else type(target).__module__
