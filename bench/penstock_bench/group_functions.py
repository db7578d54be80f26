"""What a call of a function over a group costs: `applyInPandas` here, and by Spark in the same run.

Every group has about ten rows. Spark runs the DataFrame in batch over cached rows, `local[1]`, with
its Python worker warm, into its noop sink. Here all rows come as one batch, so that each function
is called as often as Spark calls it; and in small batches, where a group that gets more rows is
called again with all of them. Decoding and encoding between stages is included.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock_bench.report import Check, Report, Say

ROWS_OF_A_GROUP: Final = 10
NAME: Final = "applyInPandas, cost of a group"
_RESULT: Final = "k long, n long, total double"


def build(groups: int) -> Callable[[Mapping[str, Any]], Any]:
    """A sum per group, in pandas."""

    def total(frame: Any) -> Any:
        import pandas as pd  # type: ignore[import-untyped]

        row = [frame["k"].iloc[0], len(frame), frame["value"].sum()]
        return pd.DataFrame([row], columns=["k", "n", "total"])

    def build(frames: Mapping[str, Any]) -> Any:
        keyed = frames["events"].selectExpr(f"key % {groups} AS k", "value")
        return keyed.groupBy("k").applyInPandas(total, _RESULT)

    return build


def calls(rows: pa.Table, groups: int, size: int) -> int:
    """How often the function is called: once for every group of every batch."""
    keys = rows["key"].to_numpy() % groups
    return sum(len(np.unique(keys[at : at + size])) for at in range(0, len(keys), size))


def measure(
    rows: pa.Table,
    groups: int,
    small: int,
    rounds: int,
    ours: Callable[[int], float],
    theirs: Callable[[], float],
) -> dict[str, float]:
    """Microseconds for each call, medians over rounds, from seconds for all rows; once if small.

    `ours` is told how many rows a batch has.
    """
    theirs()  # its worker starts
    whole = len(rows)
    pairs = [(ours(whole), theirs()) for _ in range(rounds)]
    here, there = (statistics.median(each) for each in zip(*pairs, strict=True))
    once = calls(rows, groups, whole)
    return {
        "one batch": here / once * 1e6,
        f"{small} rows a batch": ours(small) / calls(rows, groups, small) * 1e6,
        "Spark batch": there / once * 1e6,
    }


def judge(costs: Mapping[str, float], report: Report, say: Say) -> None:
    """Ours must not cost more than Spark's, measured beside it."""
    for name, micros in costs.items():
        report.figures[f"{NAME}, {name}, µs"] = round(micros, 1)
    detail = "one batch, beside Spark in batch; decode and encode included"
    check = Check(NAME, costs["one batch"], costs["Spark batch"], "at most", "µs", detail)
    report.judge(check, say)


def timed(work: Callable[[], object]) -> float:
    """The seconds that it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
