"""Who is heard of, when clocks differ."""

from __future__ import annotations

import pytest

from penstock.ui.hearing import Hearing


@pytest.mark.parametrize("ahead_ms", [-600_000, 0, 600_000])
def test_who_speaks_runs_and_who_does_not_is_lost_whatever_the_clocks_say(ahead_ms: int) -> None:
    """`ahead_ms`: how far our clock is ahead of the log's."""
    hearing, told = Hearing(silence=2.0), []
    for second in range(20):
        spoke_ms = 1000 * min(second, 10)  # then it dies
        by_clock = "running" if 1000 * second + ahead_ms - spoke_ms <= 2000 else "lost"
        told.append(hearing.judge("q", by_clock, spoke_ms, 1000.0 + second))
    assert set(told[1:11]) == {"running"}
    assert set(told[14:]) == {"lost"}


def test_what_is_over_is_over() -> None:
    hearing = Hearing(silence=2.0)
    for second in range(3):
        assert hearing.judge("q", "stopped", second, float(second)) == "stopped"
        assert hearing.judge("new", "new", None, float(second)) == "new"


def test_who_is_gone_is_forgotten() -> None:
    hearing = Hearing(silence=2.0)
    hearing.judge("q", "lost", 1, 0.0)
    hearing.keep([])
    assert hearing.judge("q", "lost", 2, 0.1) == "lost", "it was never heard before"
