"""An argument that would fail is not evaluated for rows where Spark does not look at it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.testing.oracle import assert_expressions, assert_fails

TABLE = pa.table(
    {
        "i": pa.array([None, 1, 2], pa.int32()),
        "n": pa.array([[], [3], [4]], pa.list_(pa.int32())),
        "z": pa.array([0, 1, 2], pa.int32()),
        "t": pa.array([False, True, None]),
    }
)


def test_arguments_after_a_null_are_not_evaluated(spark: Any) -> None:
    assert_expressions(
        spark,
        [
            "i + n[0]",
            "i = n[0]",
            "i < n[0]",
            "substring('abc', i, n[0])",
            "n[0] / i",
            "n[0] % i",
            "i * (10 / z)",
            "date_add(date'2024-01-01', i + n[0])",
        ],
        TABLE,
    )


def test_branches_that_are_not_taken_are_not_evaluated(spark: Any) -> None:
    assert_expressions(
        spark,
        [
            "if(z = 0, 0, 10 / z)",
            "CASE WHEN z = 0 THEN 0 WHEN 10 / z > 5 THEN 1 ELSE 10 / z END",
            "z > 0 AND 10 / z > 1",
            "t AND 10 / z > 1",
            "z = 0 OR 10 / z > 1",
            "coalesce(z, 10 / 0)",
            "if(t, n[0], 7)",
            "z <> 0 AND (t OR n[0] > 3)",
            "nullif(z, if(z = 0, 0, 10 / z))",
        ],
        TABLE,
    )


@pytest.mark.parametrize(
    ("expression", "condition"),
    [
        ("z + n[0]", "INVALID_ARRAY_INDEX"),
        ("if(z = 1, 0, 10 / z)", "DIVIDE_BY_ZERO"),
        ("z >= 0 AND 10 / z > 1", "DIVIDE_BY_ZERO"),
        ("coalesce(i, 10 / z)", "DIVIDE_BY_ZERO"),
    ],
)
def test_those_that_are_taken_fail(spark: Any, expression: str, condition: str) -> None:
    assert_fails(spark, expression, TABLE, condition)
