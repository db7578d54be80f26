"""The oracle was seen to fail: each of these breaks one law on purpose, and is found."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from harness.oracle import ask_spark
from plan_strategies import make_tables

from penstock.ops import join, mended, regroup
from penstock.ops.aggregates import sums
from penstock.ops.api import Delta
from penstock.ops.driver import Driver
from penstock.ops.functions import branches
from penstock.ops.functions.alignment import as_array
from penstock.ops.functions.registry import FUNCTIONS
from penstock.plan import stages
from penstock.plan.nodes import Mode
from penstock.state import memory_row_set, memory_table
from penstock.testing.oracle import assert_equal, plan_streaming, run_ours

SEEDS = range(12)
COUNTS = "SELECT k, g, count(*) AS c, sum(i) AS s FROM {t} GROUP BY k, g"
COUNTED = "(SELECT k, g, count(*) AS c FROM {t} GROUP BY k, g)"
CHAINED = f"SELECT c, count(*) AS n FROM {COUNTED} GROUP BY c"
SMALLEST = f"SELECT min(c) AS m, k FROM {COUNTED} GROUP BY k"
LARGEST_TEXT = f"SELECT max(string(c)) AS m, k FROM {COUNTED} GROUP BY k"
WINDOWS = "SELECT window.start AS w, count(*) AS c FROM {t} GROUP BY window(ts, '10 seconds')"
OUTER = "SELECT a.k, a.i, z.w FROM {t} a LEFT JOIN {u} z ON a.k = z.k AND a.i > z.w"
INNER = "SELECT a.k, a.i, z.w FROM {t} a JOIN {u} z ON a.g = z.g"
LAZY = "SELECT if(i = 0, 0, 10 / i) AS x FROM {t}"
OVERFLOW = "SELECT j + 1 AS x FROM {t}"


def _without_last_row(original: Callable[..., Any]) -> Callable[..., Any]:
    def broken(*args: Any) -> Any:
        rows = original(*args)
        return [replace(c, rows=c.rows.slice(0, max(c.rows.num_rows - 1, 0))) for c in rows]

    return broken


def _nothing(*args: Any, **named: Any) -> list[Any]:
    return []


def _everywhere(compiled: Any, batch: Any, rows: Any, type: Any) -> Any:
    return as_array(compiled(batch), batch.num_rows)


def _unchecked(call: Any, left: Any, right: Any) -> Any:
    import pyarrow.compute as pc

    return pc.add(left, right)


def _everything_fits(node: Any, keys: Any, *, exact: bool) -> bool:
    return True


def _none_lost(bound: Any, best: Any, taken: Any, groups: Any) -> Any:
    return groups[:0]


def _only_added(old: Any, new: Any) -> list[Delta]:
    return [Delta(new)] if new.num_rows else []


#: Spark's results, by query and seed: no mutant changes them.
_EXPECTED: dict[tuple[str, int], Any] = {}
#: What breaks: where, what, by what, and a query that must show it.
MUTANTS: dict[str, tuple[Any, str, Any, str]] = {
    "a snapshot forgets a row of a table": (
        memory_table.MemoryTable,
        "export",
        _without_last_row(memory_table.MemoryTable.export),
        COUNTS,
    ),
    "a follower of changes misses a row of a table": (
        memory_table.MemoryTable,
        "take_changes",
        _without_last_row(memory_table.MemoryTable.take_changes),
        COUNTS,
    ),
    "a snapshot forgets a row of a row set": (
        memory_row_set.MemoryRowSet,
        "export",
        _without_last_row(memory_row_set.MemoryRowSet.export),
        INNER,
    ),
    "a follower of changes misses rows of a row set": (
        memory_row_set.MemoryRowSet,
        "take_changes",
        _nothing,
        INNER,
    ),
    "a lookup skips the newest rows": (
        memory_row_set.MemoryRowSet,
        "_may_wait",
        lambda self, hashes: False,
        INNER,
    ),
    "an outer join never takes its padding back": (
        join.JoinOperator,
        "_transitions",
        _nothing,
        OUTER,
    ),
    "a count adds what it should take back": (
        sums._Count,
        "invert",
        lambda self, buffers: buffers,
        CHAINED,
    ),
    "a regrouped result keeps its old rows": (regroup, "difference", _only_added, LARGEST_TEXT),
    "an extreme stays when it is taken back": (mended, "_losers", _none_lost, SMALLEST),
    "rows are not moved to the owner of their key": (stages, "_sits_by", _everything_fits, CHAINED),
    "a branch is evaluated for rows that do not take it": (
        branches,
        "evaluate_where",
        _everywhere,
        LAZY,
    ),
    "an overflow passes": (FUNCTIONS, "Add", _unchecked, OVERFLOW),
    "an end closes no window": (Driver, "finish", lambda self: None, WINDOWS),
}


def differs(spark: Any, sql: str, seeds: range) -> bool:
    """Whether some seed shows a result that is not Spark's."""
    mode: Mode = "append" if sql == WINDOWS else "update"
    planned = None

    def build(frames: Any) -> Any:
        marked = {**frames, "t": frames["t"].withWatermark("ts", "1 hour")}
        return spark.sql(sql, **marked)

    for seed in seeds:
        tables = make_tables(seed, 30, 12)
        if (sql, seed) not in _EXPECTED:
            _EXPECTED[sql, seed] = ask_spark(spark, build, tables)
        expected = _EXPECTED[sql, seed]
        try:
            planned = planned or plan_streaming(spark, build, tables, mode)
            assert_equal(run_ours(planned, tables, random.Random(seed)), expected, sql)
        except AssertionError:
            return True
    return False


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_broken_law_is_found(spark: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    owner, attribute, broken, sql = MUTANTS[name]
    assert not differs(spark, sql, range(2)), "the query must be right before it is broken"
    if owner is FUNCTIONS:
        monkeypatch.setitem(FUNCTIONS, attribute, replace(FUNCTIONS[attribute], evaluate=broken))
    else:
        monkeypatch.setattr(owner, attribute, broken)
    assert differs(spark, sql, SEEDS)


def test_what_is_compared_is_not_empty() -> None:
    tables = make_tables(0, 30, 12)
    assert tables["t"].num_rows == 30
    assert all(column.null_count < 30 for column in tables["t"].columns)
    assert np.unique(tables["t"].column("g").drop_null().to_numpy()).size > 1
