"""Aggregate functions.

api.py          what an aggregate function is; the registry
values.py       values of any type inside buffers, and their order
sums.py         count, sum, avg, product
bits.py         bit_and, bit_or, bit_xor
bitmaps.py      bitmap_construct_agg, bitmap_or_agg, bitmap_and_agg
extremes.py     min, max
picks.py        first, last, max_by, min_by, pivots
collections.py  collect_list, collect_set, listagg, approx_count_distinct
histograms.py   how often each value occurs: mode, median, percentiles
summaries.py    percentile_approx, from a summary of a bounded size
numeric_histograms.py  histogram_numeric
moments.py      variance, deviation, covariance, correlation, skewness, kurtosis, regression
python.py       the user's own functions of a group's columns
"""

from __future__ import annotations

import importlib
from functools import cache

_MODULES = (
    "sums",
    "bits",
    "bitmaps",
    "extremes",
    "picks",
    "collections",
    "histograms",
    "summaries",
    "numeric_histograms",
    "moments",
    "python",
)


@cache
def load() -> None:
    """Register everything, once."""
    for name in _MODULES:
        importlib.import_module(f"penstock.ops.aggregates.{name}")
