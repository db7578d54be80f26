"""Positions as they are typed, and times as milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from penstock.errors import BadRequest
from penstock.stream.positions import Position, parse_position
from penstock.stream.times import from_time_ms, to_time_ms


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("0", 0),
        ("20261115", 20261115),
        ("2026-11-15", datetime(2026, 11, 15)),
        ("2026-11-15T08:00:00Z", datetime(2026, 11, 15, 8, tzinfo=UTC)),
        ("2026-11-15 08:00+01:00", datetime(2026, 11, 15, 7, tzinfo=UTC)),
    ],
)
def test_a_position_is_a_name_an_lsn_or_a_time(text: str, position: Position) -> None:
    assert parse_position(text) == position


@pytest.mark.parametrize("text", ["", "-1", "first", "١", "2026-13-01", "EARLIEST"])
def test_anything_else_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(BadRequest, match="use earliest, latest, an LSN"):
        parse_position(text)


def test_a_time_is_rounded_up_to_the_first_millisecond_that_is_not_before_it() -> None:
    moment = datetime(2026, 11, 15, 8, 0, 0, 5000, tzinfo=UTC)
    exact_ms = to_time_ms(moment)
    assert from_time_ms(exact_ms) == moment
    assert to_time_ms(moment + timedelta(microseconds=1)) == exact_ms + 1
    assert to_time_ms(moment - timedelta(microseconds=1)) == exact_ms


def test_a_time_without_a_zone_is_utc_and_one_before_1970_is_the_start() -> None:
    moment = datetime(2026, 11, 15, 8)
    assert to_time_ms(moment) == to_time_ms(moment.replace(tzinfo=UTC))
    east = timezone(timedelta(hours=2))
    assert to_time_ms(moment.replace(hour=10, tzinfo=east)) == to_time_ms(moment)
    assert to_time_ms(datetime(1969, 1, 1)) == 0
