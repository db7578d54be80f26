"""Aggregate functions.

api.py        what an aggregate function is; the registry
sums.py       count, sum, avg
extremes.py   min, max
picks.py      first, last, max_by, min_by, any_value
collections.py  collect_list, collect_set, and what needs all values: percentile, mode, listagg
moments.py    variance, deviation, covariance, correlation, skewness, kurtosis
"""

from __future__ import annotations

import importlib

_MODULES = ("sums", "extremes", "picks", "collections", "moments")


def load() -> None:
    """Register everything; cheap when done before."""
    for name in _MODULES:
        importlib.import_module(f"penstock.ops.aggregates.{name}")
