"""Functions with Spark's semantics over Arrow arrays.

registry.py    how a function is registered; what it owes
failures.py    Spark's error conditions, and Arrow's errors turned into them
branches.py    special forms: and, or, if, case, coalesce and their kin
lambdas.py     higher-order functions over arrays and maps
numbers.py     arithmetic, comparison, rounding, mathematics
casts.py       CAST and try_cast, all pairs
text.py        strings and binary
patterns.py    LIKE, RLIKE, regular expressions
times.py       dates, timestamps, intervals
formats.py     date and time patterns
nested.py      structs, arrays, maps
hashes.py      hash functions
"""

from __future__ import annotations

import importlib

from penstock.ops.functions.branches import and_where
from penstock.ops.functions.lambdas import compile_lambda_call

_MODULES = (
    "branches",
    "lambdas",
    "numbers",
    "casts",
    "text",
    "patterns",
    "times",
    "formats",
    "nested",
    "hashes",
)


def load() -> None:
    """Register everything; cheap when done before."""
    for name in _MODULES:
        importlib.import_module(f"penstock.ops.functions.{name}")


__all__ = ["and_where", "compile_lambda_call", "load"]
