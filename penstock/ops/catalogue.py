"""The functions that queries may use, as documentation: printed from the registries, never written.

docs/functions.md is the output of `penstock plan functions`; a test keeps them equal.
"""

from __future__ import annotations

from penstock.ops import aggregates, functions
from penstock.ops.aggregates.api import AGGREGATES
from penstock.ops.functions.registry import FUNCTIONS
from penstock.ops.window_calls import WINDOW_NAMES

_GENERATOR_NAMES = (
    "explode",
    "explode_outer",
    "inline",
    "inline_outer",
    "json_tuple",
    "posexplode",
    "posexplode_outer",
    "stack",
)
#: They become the time at which the log took a row (plan/supply.py).
_PRESENT_NAMES = ("current_timestamp", "now", "current_date", "curdate", "localtimestamp")
_HEAD = """# Functions

What a query may call, with Spark's semantics in ANSI mode and without it. Everything else is
refused by name before the query starts. Printed by `penstock plan functions`; the oracle tests
compare each of them with batch Spark.
"""


def catalogue() -> dict[str, list[str]]:
    """SQL names by kind, sorted."""
    functions.load()
    aggregates.load()
    return {
        "functions": sorted({*_PRESENT_NAMES, *(n for f in FUNCTIONS.values() for n in f.sql)}),
        "aggregate functions": sorted(
            {name for function in AGGREGATES.values() for name in function.sql}
        ),
        "window functions": sorted(WINDOW_NAMES),
        "generators": sorted(_GENERATOR_NAMES),
    }


def catalogue_markdown() -> str:
    """The documentation page."""
    parts = [_HEAD]
    for kind, names in catalogue().items():
        listed = ", ".join(f"`{name}`" for name in names)
        parts.append(f"## {len(names)} {kind}\n\n{listed}\n")
    return "\n".join(parts)
