"""How long a join remembers rows: never shorter than the last partner that may come."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pyarrow as pa
import pytest
from plan_samples import AUCTIONS, BIDS, column, join, scan

from penstock.plan import nodes as n
from penstock.plan.exprs import Call, Expr, Literal
from penstock.plan.time_bounds import find_time_bounds

LEFT, RIGHT = column(BIDS, "ts#3"), column(AUCTIONS, "t#13")
TIMED = ({"ts#3"}, {"t#13"})


def shifted(expr: Expr, seconds: int) -> Expr:
    length = Literal(pa.scalar(dt.timedelta(seconds=seconds), pa.duration("us")))
    return Call("TimestampAddInterval", (expr, length), expr.type)


def compare(function: str, left: Expr, right: Expr) -> Call:
    return Call(function, (left, right), pa.bool_())


def bounded(kind: n.JoinKind, *conditions: Call) -> n.Join:
    plain = join(scan(), scan("auctions", AUCTIONS), "auction#1", "id#11", kind)
    return find_time_bounds(plain, list(conditions), *TIMED)


#: -1 second to 5 seconds around the left time, seen from either side.
BAND = (
    compare("GreaterThanOrEqual", RIGHT, shifted(LEFT, -1)),
    compare("LessThanOrEqual", RIGHT, shifted(LEFT, 5)),
)
SAME_BAND = (
    compare("LessThanOrEqual", shifted(LEFT, -1), RIGHT),
    compare("GreaterThanOrEqual", shifted(LEFT, 5), RIGHT),
)


@pytest.mark.parametrize("band", [BAND, SAME_BAND], ids=["from the right", "from the left"])
def test_a_band_around_the_left_time_bounds_both_sides(band: tuple[Call, ...]) -> None:
    bounds = bounded("inner", *band)
    assert bounds.left_time == n.EventTime("ts#3", 5000, 5000)
    assert bounds.right_time == n.EventTime("t#13", 1000, 1000)


def test_half_a_band_bounds_one_side_only() -> None:
    bounds = bounded("inner", compare("LessThan", RIGHT, shifted(LEFT, 5)))
    assert bounds.left_time == n.EventTime("ts#3", 5000, 5000)
    assert bounds.right_time is None


@pytest.mark.parametrize("kind", ["left", "right", "full", "semi", "anti"])
def test_where_absence_matters_a_row_outlives_the_partners_it_decides(kind: n.JoinKind) -> None:
    bounds = bounded(kind, *BAND)
    assert bounds.left_time == n.EventTime("ts#3", 5000, 6000)
    assert bounds.right_time == n.EventTime("t#13", 1000, 6000)


def test_without_a_watermark_nothing_is_forgotten() -> None:
    plain = join(scan(), scan("auctions", AUCTIONS), "auction#1", "id#11")
    condition = compare("LessThanOrEqual", RIGHT, shifted(LEFT, 5))
    assert find_time_bounds(plain, [condition], set(), set()) == plain
    assert find_time_bounds(plain, [condition], {"ts#3"}, set()) == plain


def test_equal_event_times_bound_both_sides() -> None:
    plain = replace(
        join(scan(), scan("auctions", AUCTIONS), "auction#1", "id#11"),
        left_keys=(LEFT,),
        right_keys=(RIGHT,),
    )
    bounds = find_time_bounds(plain, [], *TIMED)
    assert bounds.left_time == n.EventTime("ts#3", 0, 0)
    assert bounds.right_time == n.EventTime("t#13", 0, 0)


def test_a_calendar_month_has_no_length() -> None:
    month = Literal(pa.scalar((1, 0, 0), pa.month_day_nano_interval()))
    condition = compare(
        "LessThanOrEqual", RIGHT, Call("TimestampAddInterval", (LEFT, month), LEFT.type)
    )
    assert bounded("inner", condition).left_time is None
