"""Two results are the same if every row is there as often in both, in whatever order."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from penstock_bench.nexmark.multiset import difference

SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(23, 3))],
)
ROWS = [(1, "a", 1), (2, "b", 2), (2, "b", 2), (3, None, None)]


def table(rows: list[tuple[Any, ...]]) -> pa.Table:
    made = [
        {"id": id, "name": name, "price": None if price is None else Decimal(price)}
        for id, name, price in rows
    ]
    return pa.Table.from_pylist(made, schema=SCHEMA)


def test_rows_in_another_order_are_the_same() -> None:
    assert difference(table(ROWS), table(ROWS[::-1])) is None


def test_nothing_is_the_same_as_nothing() -> None:
    assert difference(table([]), table([])) is None


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (ROWS[1:], "1 rows missing, first (1, 'a', Decimal('1.000'))"),
        (ROWS[:1] + ROWS[2:], "1 rows missing, first (2, 'b', Decimal('2.000'))"),
        ([*ROWS, (1, "a", 1)], "1 rows too many, first (1, 'a', Decimal('1.000'))"),
        (ROWS[:3], "1 rows missing, first (3, None, None)"),
    ],
    ids=["missing", "missing once", "extra", "null missing"],
)
def test_a_row_too_few_or_too_many_is_told(rows: list[tuple[Any, ...]], told: str) -> None:
    assert difference(table(rows), table(ROWS)) == told


def test_a_changed_row_is_missing_and_too_many() -> None:
    differences = difference(table([(1, "x", 1), *ROWS[1:]]), table(ROWS))

    assert differences is not None
    assert "1 rows missing, first (1, 'a'" in differences
    assert "1 rows too many, first (1, 'x'" in differences


def test_weights_add_up() -> None:
    changes = table([(1, "a", 1), (1, "a", 1), (2, "b", 2), (7, "gone", 7), (7, "gone", 7)])
    weights = pa.array([2, -1, 2, 1, -1], pa.int64())
    expected = table([(1, "a", 1), (2, "b", 2), (2, "b", 2)])

    assert difference(changes, expected, weights) is None
    assert difference(changes, expected, pa.array([1, 1, 2, 1, -1], pa.int64())) is not None


def test_a_row_taken_back_too_often_is_told() -> None:
    changes, weights = table([(1, "a", 1), (1, "a", 1)]), pa.array([1, -2], pa.int64())

    differences = difference(changes, table([]), weights)

    assert differences == "1 rows missing, first (1, 'a', Decimal('1.000'))"


def test_other_columns_are_told() -> None:
    differences = difference(table(ROWS).rename_columns(["id", "x", "price"]), table(ROWS))

    assert differences == "columns ['id', 'x', 'price'], expected ['id', 'name', 'price']"
