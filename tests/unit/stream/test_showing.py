"""`Stream.show` prints values as Spark's DataFrame.show does."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from penstock.stream.showing import grid

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "type", "shown"),
    [
        ([("a", 1), ("b", None)], pa.map_(pa.string(), pa.int32()), "{a -> 1, b -> NULL}"),
        ({"x": None, "y": [True]}, pa.struct({"x": pa.int8(), "y": pa.list_(pa.bool_())}),
         "{NULL, [true]}"),
        (b"\x00\xff", pa.binary(), "[00 FF]"),
        (NOON, pa.timestamp("us", "UTC"), "2026-01-01 12:00:00"),
        (NOON.replace(microsecond=120_000), pa.timestamp("us", "UTC"), "2026-01-01 12:00:00.12"),
        (NOON.replace(tzinfo=None), pa.timestamp("us"), "2026-01-01 12:00:00"),
        (date(2026, 1, 1), pa.date32(), "2026-01-01"),
        ("nl\n\x1b[31m", pa.string(), "nl\\n\\x1b[31m"),
        (None, pa.string(), "NULL"),
        (False, pa.bool_(), "false"),
        (1.0, pa.float64(), "1.0"),
    ],
)  # fmt: skip
def test_a_value_is_shown_as_spark_shows_it(value: object, type: pa.DataType, shown: str) -> None:
    table = pa.table({"c": pa.array([value], type)})
    assert grid(table, truncate=False).splitlines()[3] == f"|{shown:>3}|"


def test_cells_are_cut_as_long_as_is_asked_for() -> None:
    table = pa.table({"c": ["x" * 30]})
    cells = [grid(table, truncate=most).splitlines()[3] for most in (True, 5, 2, 0, False)]
    x = "x"
    assert cells == [f"|{x * 17}...|", "|xx...|", "| xx|", f"|{x * 30}|", f"|{x * 30}|"]


def test_a_stream_without_rows_has_a_head() -> None:
    table = pa.table({"id": pa.array([], pa.int64())})
    assert grid(table) == "+---+\n| id|\n+---+\n+---+\n"
