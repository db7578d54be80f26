"""`penstock nexmark saturate`: the highest rate that a query holds.

Owns the search: from a first rate it grows by a factor until a rate is not held (or falls until one
is), then it halves the gap. Law: the rate that is reported was measured and held, and a rate at
most a tenth above it was measured and not held, unless the search was cut short: then it says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock_bench.nexmark.run import Bench, Run
from penstock_bench.nexmark.timed import STATELESS
from penstock_bench.report import Say, commit, machine_class

FACTOR: Final = 2.0
#: The gap at which the search ends.
WITHIN: Final = 0.1
RATE_MIN: Final = 50.0
RATE_MAX: Final = 2_000_000.0
_STEPS_MAX: Final = 20
#: Bids that are joined with their auctions cost most.
_HEAVY: Final = ("q4", "q6", "q9")


@dataclass(frozen=True, slots=True)
class Step:
    """A rate, and whether it was held."""

    rate: float
    is_held: bool


def first_rate(query: str) -> float:
    """Where to start if nothing is known."""
    if query in STATELESS:
        return 20_000
    return 2_000 if query in _HEAVY else 10_000


def next_rate(first: float, steps: Sequence[Step]) -> float | None:
    """What to try after these steps; None: nothing, the answer is known as well as it will be."""
    held = max((step.rate for step in steps if step.is_held), default=None)
    # A rate that failed below one that was held was bad luck.
    failed = min(
        (step.rate for step in steps if not step.is_held and step.rate > (held or 0.0)),
        default=None,
    )
    if held is None and failed is None:
        return first
    if failed is None:
        assert held is not None
        return held * FACTOR if held * FACTOR <= RATE_MAX else None
    if held is None:
        return failed / FACTOR if failed / FACTOR >= RATE_MIN else None
    if failed <= held * (1 + WITHIN):
        return None
    return _round(math.sqrt(held * failed))


def _round(rate: float) -> float:
    """Three digits: a rate is there to be typed again."""
    unit = 10.0 ** (math.floor(math.log10(rate)) - 2)
    return round(rate / unit) * unit


def find_saturation(
    bench: Bench, run: Run, say: Say, *, first: float | None = None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Search with runs like this one. The result object, and those of all steps.

    The oracle looks at the first step only: the later ones differ from it in their rate.
    """
    first = first or first_rate(run.query)
    steps: list[Step] = []
    results: list[dict[str, Any]] = []
    while len(steps) < _STEPS_MAX and (rate := next_rate(first, steps)) is not None:
        result = bench.run(replace(run, rate=rate, oracle=run.oracle and not steps))
        results.append(result)
        steps.append(Step(rate, bool(result["is_sustained"])))
        say(_tell(result))
    best = max((step.rate for step in steps if step.is_held), default=None)
    # Without a rate above it that failed, the highest rate that was tried is no limit.
    has_failed = any(not step.is_held and step.rate > (best or 0.0) for step in steps)
    is_final = next_rate(first, steps) is None and best is not None and has_failed
    figures = {
        "bench": "nexmark saturate",
        "system": "penstock",
        "variant": run.protocol,
        "query": run.query,
        "mode": run.output_mode,
        "saturation_events_per_s": best,
        "is_final": is_final,
        "oracle": results[0]["oracle"],
        "oracle_reason": results[0]["oracle_reason"],
        "steps": results,
        "commit": commit(),
        "machine": machine_class(),
    }
    return figures, results


def _tell(result: dict[str, Any]) -> str:
    missed = [check["name"] for check in result["checks"] if not check["ok"]]
    return f"{result['rate']:,.0f}/s: {'missed ' + ', '.join(missed) if missed else 'held'}"
