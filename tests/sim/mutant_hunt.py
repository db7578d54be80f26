"""How a simulated world is let loose on a mutant, and what a mutant may touch.

Owns the hunt. A mutant names the first seed whose world catches it, so that a test needs one world
and not dozens. When code or worlds change, that seed may catch it no more: the hunt then begins
anew, from seed 0, and says which seed to write down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

SEEDS_MAX = 200
#: Mistakes in a mutant itself, not in what it does to the code.
_BROKEN_MUTANT = (TypeError, AttributeError, NameError, ImportError)
#: Where mutants make their mistakes.
SHIPPED = ("penstock", "penstock_bench")

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
    #: The first seed that catches it.
    seed: int = 0


def hunt(
    name: str,
    recorded: int,
    run: Run,
    capsys: pytest.CaptureFixture[str],
    seeds_max: int = SEEDS_MAX,
) -> None:
    """Fails if no world notices the mutant."""
    for seed in (recorded, *range(seeds_max)):
        caught = _catch(run, seed)
        if caught is None:
            continue
        with capsys.disabled():
            print(f"\nmutant {name!r}: {caught[:120]}")
            if seed != recorded:
                print(f"seed {recorded} did not catch it, seed {seed} does: write it down")
        return
    pytest.fail(f"mutant {name!r} survived seed {recorded} and {seeds_max} others")


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
