"""Filters that Spark pushes down: what is taken is exact, the rest is given back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.types import StructType

from penstock.connector.batch_reader import PenstockPushingReader
from penstock.connector.options import BATCH_READ, read_options
from penstock.connector.partitions import Span

COMPARISONS: dict[Any, Any] = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Times:
    """A log with one entry every millisecond, from 1000 ms on: entry n at 1000 + n."""

    client: Any

    def __init__(self) -> None:
        self.client = self

    def find_time(self, time_ms: int) -> int:
        return max(time_ms - 1000, 0)


def reader(metadata: str = "_lsn,_time") -> PenstockPushingReader:
    said = {"stream": "s", "metadata": metadata, "pushFilters": "true"}
    return PenstockPushingReader(read_options(said, BATCH_READ), StructType())


def narrowed(*filters: Filter) -> tuple[Span, list[Filter]]:
    made = reader()
    back = list(made.pushFilters(list(filters)))
    return made._narrowed(Times(), Span(0, 100)), back  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", COMPARISONS)
@pytest.mark.parametrize("value", [-5, 0, 1, 50, 99, 100, 1 << 63])
def test_places_are_taken_to_the_letter(kind: Any, value: int) -> None:
    span, back = narrowed(kind(("_lsn",), value))
    assert back == []
    assert list(range(span.first, span.end)) == [
        lsn for lsn in range(100) if COMPARISONS[kind](lsn, value)
    ]


def test_filters_on_places_add_up() -> None:
    span, back = narrowed(
        GreaterThan(("_lsn",), 3), LessThan(("_lsn",), 50), GreaterThanOrEqual(("_lsn",), 2)
    )
    assert (span, back) == (Span(4, 50), [])


@pytest.mark.parametrize("kind", COMPARISONS)
@pytest.mark.parametrize("micros", [-1, 0, 1_000_000, 1_049_999, 1_050_000, 1_050_500, 1_200_000])
def test_times_narrow_and_are_left_to_spark(kind: Any, micros: int) -> None:
    moment = EPOCH + timedelta(microseconds=micros)
    asked = kind(("_time",), moment.astimezone(timezone(timedelta(hours=2))))
    span, back = narrowed(asked)
    assert len(back) == 1 and back[0] is asked
    passing = [n for n in range(100) if COMPARISONS[kind](1_000_000 + 1000 * n, micros)]
    assert set(passing) <= set(range(span.first, span.end))
    if passing:
        assert span.end - span.first <= len(passing) + 1, "it narrows"


def test_filters_on_times_add_up() -> None:
    def at(ms: int) -> datetime:
        return EPOCH + timedelta(milliseconds=ms)

    span, _ = narrowed(
        GreaterThanOrEqual(("_time",), at(1010)),
        LessThanOrEqual(("_time",), at(1020)),
        LessThanOrEqual(("_time",), at(1030)),
        GreaterThanOrEqual(("_time",), at(1005)),
    )
    assert span == Span(10, 21)


@pytest.mark.parametrize(
    "asked",
    [
        In(("_lsn",), (1, 2)),
        IsNotNull(("_lsn",)),
        Not(EqualTo(("_lsn",), 1)),
        EqualTo(("k",), 1),
        EqualTo(("_lsn", "x"), 1),
        EqualTo(("_lsn",), 1.5),
        EqualTo(("_lsn",), True),
        GreaterThan(("_time",), datetime(2026, 1, 1)),
        EqualTo(("_producer",), "p"),
    ],
)
def test_all_else_is_given_back_by_reference(asked: Filter) -> None:
    span, back = narrowed(asked)
    assert len(back) == 1 and back[0] is asked
    assert span == Span(0, 100)


def test_a_column_of_the_stream_by_that_name_is_no_place() -> None:
    asked = GreaterThan(("_lsn",), 5)
    assert list(reader("").pushFilters([asked])) == [asked]
