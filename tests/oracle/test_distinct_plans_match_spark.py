"""Several distinct aggregates become one aggregation again; what only looks like them does not."""

from __future__ import annotations

from typing import Any

import pytest
from harness.oracle import assert_same
from plan_strategies import make_tables

from penstock.plan import nodes as n
from penstock.testing.oracle import plan_streaming

WRITTEN = [
    "SELECT k, count(DISTINCT i) a, count(DISTINCT g) b, max(n) c, sum(m) d FROM {t} GROUP BY k",
    "SELECT count(DISTINCT i, k) a, count(DISTINCT g) b, avg(DISTINCT m) c, count(*) d FROM {t}",
]
_CUBE = "(SELECT k, g, b, grouping_id() id, count(*) c FROM {t} GROUP BY CUBE (k, g, b))"
_ROLLUP = "(SELECT k, g, b, grouping_id() id, count(*) c FROM {t} GROUP BY ROLLUP (k, g, b))"
ALIKE = [
    f"SELECT k, count(g) FILTER (WHERE id = 1) c, max(c) FILTER (WHERE id = 2) e FROM {_CUBE}"
    " GROUP BY k",
    f"SELECT k, first(c) FILTER (WHERE id = 3) d FROM {_ROLLUP} GROUP BY k",
    f"SELECT k, count(g) FILTER (WHERE id = 0) d FROM {_ROLLUP} GROUP BY k",
    "SELECT k, count(DISTINCT i) FILTER (WHERE b) a, count(DISTINCT g) b FROM {t} GROUP BY k",
]


def expands(spark: Any, sql: str) -> bool:
    query = plan_streaming(spark, lambda f: spark.sql(sql, **f), make_tables(0, 1, 1)).query
    return any(isinstance(node, n.Expand) for stage in query.stages for node in stage.root.walk())


@pytest.mark.parametrize("sql", WRITTEN + ALIKE)
def test_the_result_is_sparks(spark: Any, sql: str) -> None:
    for seed in range(3):
        assert_same(spark, lambda f: spark.sql(sql, **f), make_tables(seed, 40, 1), seed=seed)


def test_only_spark_s_own_expansion_is_undone(spark: Any) -> None:
    assert [expands(spark, sql) for sql in WRITTEN] == [False, False]
    assert all(expands(spark, sql) for sql in ALIKE)
