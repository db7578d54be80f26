"""What each output mode asks, and that every reason against a plan is told at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_samples import APPEND, AUCTIONS, WINDOWED, count_by, join, scan

from penstock.errors import Unsupported
from penstock.plan.changes import is_append_only
from penstock.plan.modes import check_mode
from penstock.plan.refusals import Refusals
from penstock.plan.rewrites import rewrite


def test_append_mode_shows_windows_when_they_are_final() -> None:
    refusals = Refusals()
    windows = replace(
        count_by(scan("bids", WINDOWED), "window#7", "auction#1"), event_time="window#7"
    )
    check_mode(rewrite(windows, APPEND), "append", refusals)
    assert not refusals.reasons


def test_append_mode_refuses_what_never_becomes_final_with_every_reason() -> None:
    refusals = Refusals()
    counted = count_by(scan(), "auction#1")
    root = join(counted, scan("auctions", AUCTIONS), "auction#1", "id#11", "left")
    check_mode(rewrite(root, APPEND), "append", refusals)
    with pytest.raises(Unsupported) as caught:
        refusals.check()
    assert len(caught.value.reasons) == 2
    assert "needs an aggregation by event time" in str(caught.value)
    assert "needs a left join bounded in event time" in str(caught.value)
    assert "mode='update'" in str(caught.value)


def test_an_inner_join_of_growing_streams_grows() -> None:
    root = join(scan(), scan("auctions", AUCTIONS), "auction#1", "id#11")
    assert is_append_only(root)
    assert not is_append_only(replace(root, kind="left"))


def test_the_same_reason_is_told_once() -> None:
    refusals = Refusals()
    refusals.add("Project", "no function for X")
    refusals.add("Project", "no function for X")
    assert len(refusals.reasons) == 1
