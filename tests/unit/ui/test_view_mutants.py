"""The tests of the view notice when it is broken."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import test_graph
import test_health
import test_page_view

from penstock.ui.view import facts, figures, graph, health, history, queries, streams


def _zero(where: str = "") -> list[Any]:
    return ["0", 0, where]


def _always_late(told: object, *names: str) -> Any:
    return {"seconds": 1} if names[0] == "idle_lags" else facts.sub(told, *names)


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[], None]]] = {
    "unknown is zero": (
        lambda patch: patch.setattr(figures, "unknown", _zero),
        test_page_view.test_what_is_not_known_is_not_zero,
    ),
    "zero is unknown": (
        lambda patch: patch.setattr(figures, "finite", lambda value: value or None),
        test_page_view.test_zero_is_told_as_zero,
    ),
    "not a number is a number": (
        lambda patch: patch.setattr(figures, "finite", lambda value: value),
        test_page_view.test_numbers_that_are_none_are_not_known,
    ),
    "controls are shown": (
        lambda patch: patch.setattr(queries, "shown", lambda value: value),
        test_page_view.test_a_name_with_markup_and_controls_is_shown_as_text_and_kept_as_it_is,
    ),
    "a figure of another place": (
        lambda patch: patch.setattr(
            queries, "number", lambda one, *names: (facts.number(one, *names) or 0) + 1
        ),
        test_page_view.test_every_figure_says_where_it_stands_and_what_stands_there,
    ),
    "charts without an end": (
        lambda patch: patch.setattr(history, "deque", lambda maxlen: deque()),
        test_page_view.test_a_chart_is_bounded_and_who_missed_points_is_told_all_that_is_left,
    ),
    "lags of the lost": (
        lambda patch: patch.setattr(streams, "sub", _always_late),
        test_page_view.test_a_query_that_is_lost_has_no_lag_though_its_last_report_had,
    ),
    "any order": (
        lambda patch: patch.setattr(health, "_ORDER", {"down": 0, "bad": 1, "warn": -1}),
        test_health.test_the_worst_comes_first,
    ),
    "no skew": (
        lambda patch: patch.setattr(health, "_skewed", lambda *given: None),
        test_health.test_a_key_that_is_in_most_rows_is_told_from_a_slow_function,
    ),
    "old news of a log that is away": (
        lambda patch: patch.setattr(health, "_away", lambda away: health.Trouble("bad", "", "")),
        test_health.test_a_log_that_is_away_is_the_only_news,
    ),
    "what was is what is": (
        lambda patch: patch.setattr(queries, "is_running", lambda query: True),
        lambda: test_page_view.test_what_a_query_did_when_it_ran_is_not_shown_as_if_it_did_it_now(
            "lost"
        ),
    ),
    "one clock for all": (
        lambda patch: patch.setattr(queries, "skew_ms", lambda *given: 0.0),
        lambda: test_page_view.test_a_driver_whose_clock_is_wrong_makes_no_age_wrong(3_600_000),
    ),
    "a clock never goes back": (
        lambda patch: patch.setattr(history.Series, "is_of_another_clock", lambda *given: False),
        test_page_view.test_a_clock_that_was_set_back_stops_no_chart_and_no_rate,
    ),
    "stale is good": (
        lambda patch: patch.setattr(health, "_stale", lambda *given: ()),
        test_health.test_figures_of_before_are_not_shown_as_if_all_were_well,
    ),
    "a start is a loss": (
        lambda patch: patch.setattr(health, "_has_begun", lambda progress: True),
        test_health.test_while_a_query_starts_no_worker_was_lost,
    ),
    "circles": (
        lambda patch: patch.setattr(graph, "_without_circles", lambda nodes, edges: list(edges)),
        test_graph.test_edges_that_make_a_circle_are_left_out,
    ),
    "one row": (
        lambda patch: patch.setattr(graph, "enumerate", lambda some: ((0, one) for one in some),
                                    raising=False),
        test_graph.test_a_join_stands_behind_both_of_its_sides,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_view_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, check = MUTANTS[name]
    check()
    mutate(monkeypatch)
    with pytest.raises((AssertionError, TypeError, KeyError)):
        check()
