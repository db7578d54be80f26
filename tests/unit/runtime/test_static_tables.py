"""Digests of static tables: the same for the same rows, in any order."""

from __future__ import annotations

import random
from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.runtime.static_tables import digest

ROWS = [
    {
        "n": n if n % 4 else None, "text": f"naïve ☃ {n % 3}", "d": Decimal(n) / 4,
        "at": datetime(2026, 1, 1 + n), "nested": {"tags": ["a"] * (n % 3), "m": [("k", n)]},
    }
    for n in range(9)
]  # fmt: skip
SCHEMA = pa.schema(
    {
        "n": pa.int64(), "text": pa.string(), "d": pa.decimal128(10, 2), "at": pa.timestamp("us"),
        "nested": pa.struct(
            {"tags": pa.list_(pa.string()), "m": pa.map_(pa.string(), pa.int32())}
        ),
    }
)  # fmt: skip


def table(rows: list[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


def test_order_and_batches_do_not_matter() -> None:
    shuffled = random.Random(3).sample(ROWS, len(ROWS))
    in_batches = pa.concat_tables([table(shuffled[:4]), table(shuffled[4:])])

    assert digest(table(ROWS)) == digest(in_batches)


@pytest.mark.parametrize(
    "rows",
    [
        ROWS[:-1],
        [*ROWS, ROWS[0]],
        [],
        [*ROWS[:-1], {**ROWS[-1], "text": "other"}],
        [*ROWS[:-1], {**ROWS[-1], "n": 8}],
        [*ROWS[:-1], {**ROWS[-1], "nested": {"tags": [], "m": [("k", 9)]}}],
    ],
)
def test_a_row_more_less_or_other_does(rows: list[dict[str, object]]) -> None:
    assert digest(table(rows)) != digest(table(ROWS))


def test_calendar_intervals_are_told_apart() -> None:
    def of(days: int) -> pa.Table:
        return pa.table({"every": pa.array([(0, days, 0), None], pa.month_day_nano_interval())})

    assert digest(of(1)) == digest(of(1)) != digest(of(2))
