"""What the page shows of facts, and that nothing in them can make it lie or fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ui_samples import NOW_MS, a_progress, a_query, a_task, everything, moment, some_facts

from penstock.ui.view import LOG, Book
from penstock.ui.view.figures import UNKNOWN, count, event_time, rate, seconds, share, span
from penstock.ui.view.graph import EDGES_MAX, NODES_MAX
from penstock.ui.view.history import POINTS_MAX, Counters, Series


def page_of(facts: dict[str, Any], query: str | None = "hot") -> dict[str, Any]:
    book = Book()
    book.take(facts)
    return book.page(query, NOW_MS)


def figures_of(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, dict):
        for one in value.values():
            yield from figures_of(one)
    elif isinstance(value, list):
        if len(value) == 3 and isinstance(value[0], str) and isinstance(value[2], str):
            yield value
        else:
            for one in value:
                yield from figures_of(one)


def fact_at(facts: Any, path: str) -> Any:
    """By its path; names of tasks and workers have dots of their own."""
    if not path or facts is None:
        return facts
    if isinstance(facts, list):
        head, _, rest = path.partition(".")
        return fact_at(facts[int(head)], rest)
    names = [name for name in facts if path == name or path.startswith(f"{name}.")]
    if not names:
        return None
    name = max(names, key=len)
    return fact_at(facts[name], path[len(name) + 1 :])


def test_every_figure_says_where_it_stands_and_what_stands_there() -> None:
    query = a_query()
    page = page_of(some_facts(query))

    told = [figure for figure in figures_of(page["query"]) if figure[2]]
    assert len(told) > 40
    for _, value, where in told:
        assert value == fact_at(query, where), where


def test_what_is_not_known_is_not_zero() -> None:
    bare = a_query({"timestamp": "2026-01-01T00:00:00.000Z", "tasks": {"hot.1/0/0": {}}})
    page = page_of(some_facts(bare))

    task = page["query"]["tasks"][0]["figures"]
    assert {task[name][0] for name in task if name != "copies"} == {UNKNOWN}
    line = page["queries"][0]["figures"]
    assert line["lag"] == [UNKNOWN, None, ""]
    (reader,) = page["streams"][0]["readers"]
    assert reader["lag"][0] == UNKNOWN
    for text, value, _ in figures_of(page):
        assert (text == UNKNOWN) == (value is None), text


def test_zero_is_told_as_zero() -> None:
    assert count(0)[0] == "0"
    assert rate(0.0)[0] == "0 rows/s"
    assert seconds(0)[0] == "0.0 ms"
    assert share(0.0)[0] == "0 %"


def test_numbers_that_are_none_are_not_known() -> None:
    for value in (float("nan"), float("inf"), True, "7", [], 10**400):
        assert span(value) == [UNKNOWN, None, ""]


def test_a_query_that_is_lost_has_no_lag_though_its_last_report_had() -> None:
    page = page_of(some_facts(a_query(state="lost")))
    (reader,) = page["streams"][0]["readers"]
    assert reader["lag"] == [UNKNOWN, None, ""]

    measured = {"hot": {"bids": {"records": 7, "seconds": 0, "isLowerBound": True}}}
    page = page_of(some_facts(a_query(state="lost"), idle_lags=measured))
    (reader,) = page["streams"][0]["readers"]
    assert (reader["rows"][0], reader["lag"][1]) == ("7+", 0)


def test_a_rate_of_a_task_is_what_it_grew_by_between_two_reports() -> None:
    book = Book()
    for second, rows in enumerate((100, 350)):
        at = f"2026-01-01T00:00:0{second * 2}.000Z"
        tasks = {"hot.1/0/0": a_task(rows_in=rows)}
        book.take(some_facts(a_query(a_progress(tasks, timestamp=at))))
    assert book.page("hot", NOW_MS)["query"]["tasks"][0]["figures"]["rate"][0] == "125 rows/s"


def test_the_same_report_twice_is_one_point_and_keeps_the_rate() -> None:
    book = Book()
    for rows, second in ((100, 0), (350, 2), (350, 2)):
        at = f"2026-01-01T00:00:0{second}.000Z"
        tasks = {"hot.1/0/0": a_task(rows_in=rows)}
        book.take(some_facts(a_query(a_progress(tasks, timestamp=at))))
    series = book.series("hot")
    assert series is not None
    assert series.count == 2
    assert book.page("hot", NOW_MS)["query"]["tasks"][0]["figures"]["rate"][1] == 125


def test_queries_that_are_gone_are_forgotten() -> None:
    book = Book()
    book.take(some_facts(a_query()))
    book.take(some_facts())
    assert book.series("hot") is None
    assert book.series(LOG) is not None
    assert book.page("hot", NOW_MS)["query"] is None


def test_a_chart_is_bounded_and_who_missed_points_is_told_all_that_is_left() -> None:
    series = Series(("a",))
    for number in range(2 * POINTS_MAX):
        series.add(number, {"a": None if number % 2 else number})
    whole = series.after(3)
    assert whole["reset"] is True
    assert len(whole["columns"]["a"]) == POINTS_MAX
    assert whole["columns"]["a"][1] is None
    some = series.after(series.count - 2)
    assert (some["reset"], some["columns"]["at"]) == (False, [1198, 1199])
    assert series.after(series.count)["columns"] == {"at": [], "a": []}


def test_a_counter_that_falls_has_no_rate() -> None:
    counters = Counters()
    counters.take(0, {"a": 10})
    counters.take(1000, {"a": 4})
    assert counters.rate("a") is None
    counters.take(2000, {"a": 9})
    assert counters.rate("a") == 5


METRICS = """\
# TYPE penstock_appended_entries counter
penstock_appended_entries_total {entries}
penstock_fsync_duration_seconds_bucket{{le="0.001"}} {fast}
penstock_fsync_duration_seconds_bucket{{le="0.005"}} {slow}
penstock_fsync_duration_seconds_bucket{{le="+Inf"}} {slow}
# EOF
"""


def test_fsync_times_are_of_what_came_since_the_last_time() -> None:
    book = Book()
    for second, (entries, fast, slow) in enumerate(((100, 90, 90), (300, 91, 191))):
        metrics = METRICS.format(entries=entries, fast=fast, slow=slow)
        log = {"target": "here", "status": None, "metrics": metrics}
        book.take(some_facts(log=log, at_ms=NOW_MS + 1000 * second))
    head = dict(book.page(None, NOW_MS)["log"]["head"])
    assert head["entries"][1] == 200
    assert head["fsync p50"][1] == 5.0
    assert head["tail"] == [UNKNOWN, None, ""]


def test_a_name_with_markup_and_controls_is_shown_as_text_and_kept_as_it_is() -> None:
    name = "<b onload=x>\x1b[2J\u202e\ud800"
    facts = some_facts(a_query(name=name), streams=[{"name": name, "ddl": name}])
    page = page_of(facts, name)
    assert page["query"]["key"] == name
    assert page["query"]["name"] == "<b onload=x>\\x1b[2J\\u202e\\ud800"
    assert page["streams"][0]["name"] == page["query"]["name"]
    json.dumps(page, allow_nan=False).encode()


#: What may stand where something else is looked for.
ODD = (True, [[]])


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for name, one in inner:
        yield (*at, name)
        if isinstance(one, dict | list):
            yield from places(one, (*at, name))


def replaced(value: Any, at: tuple[str | int, ...], new: Any) -> Any:
    if not at:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = replaced(value[at[0]], at[1:], new)
    return copy


def test_whatever_stands_in_one_place_the_page_is_shown() -> None:
    """Who may run one query may report anything of it; the page of all others is shown still."""
    good, tried = everything(), 0
    for at in places(good):
        for odd in ODD:
            book = Book()
            book.take(replaced(good, at, odd))
            json.dumps(book.page("hot", NOW_MS), allow_nan=False).encode()
            tried += 1
    assert tried > 400


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
OBJECTS = st.dictionaries(st.text(max_size=8), LEAVES, max_size=3)
ANYTHING = LEAVES | OBJECTS | st.lists(LEAVES | OBJECTS, max_size=3)


@st.composite
def spoilt(draw: st.DrawFn) -> Any:
    """Good facts in which any one thing was replaced by anything."""

    def spoil(value: Any, depth: int) -> Any:
        if depth == 0 or not isinstance(value, dict | list) or not value:
            return draw(ANYTHING)
        if isinstance(value, dict):
            name = draw(st.sampled_from(sorted(value)))
            return {**value, name: spoil(value[name], depth - 1)}
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], spoil(value[at], depth - 1), *value[at + 1 :]]

    facts: Any = some_facts(a_query(), deliveries=[{"name": "d", "stream": "bids", "lag": {}}])
    for _ in range(draw(st.integers(1, 3))):
        facts = spoil(facts, draw(st.integers(0, 8)))
        if not isinstance(facts, dict):
            facts = some_facts()
    return facts


@given(facts=spoilt())
def test_whatever_the_log_holds_the_page_is_shown(facts: Any) -> None:
    book = Book()
    book.take(facts)
    book.take(facts)
    page = book.page("hot", NOW_MS)
    json.dumps(page, allow_nan=False).encode()
    for text, value, _ in figures_of(page):
        assert (text == UNKNOWN) <= (value is None)


@pytest.mark.parametrize("state", ["lost", "stopped", "failed"])
def test_what_a_query_did_when_it_ran_is_not_shown_as_if_it_did_it_now(state: str) -> None:
    ran = a_progress({"hot.1/0/0": a_task(busy_share=0.95)}, timestamp=moment(NOW_MS - 7_300_000))
    page = page_of(some_facts(a_query(ran, state=state), idle_lags={"hot": {"bids": LAG}}))

    line, query = page["queries"][0], page["query"]
    for name in ("rate", "p50", "p99", "busiest task", "workers"):
        assert line["figures"][name][0] == UNKNOWN, name
    assert (line["figures"]["lag"][1], line["figures"]["lag rows"][1], line["heat"]) == (60, 7, "")
    assert "its last report, 2 h 2 min ago" in query["past"]
    assert [node["heat"] for node in query["graph"]["nodes"]] == ["", "unknown", ""]
    assert (query["tasks"][0]["level"], query["tasks"][0]["runs"]) == ("idle", False)
    assert page_of(some_facts(a_query(ran)))["query"]["past"] is None


LAG = {"records": 7, "seconds": 60}


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 3_600_000])
def test_a_driver_whose_clock_is_wrong_makes_no_age_wrong(ahead_ms: int) -> None:
    there = NOW_MS + ahead_ms
    tasks = {"hot.1/0/0": a_task(committed_at_ms=there - 2_000)}
    ran = a_progress(tasks, timestamp=moment(there - 300))
    query = page_of(some_facts(a_query(ran)))["query"]

    assert query["tasks"][0]["figures"]["committed"][0] == "1.7 s ago"
    assert ("60 min behind" in query["clock"]) == (ahead_ms < 0)
    assert page_of(some_facts(a_query()))["query"]["clock"] is None


def test_a_clock_that_was_set_back_stops_no_chart_and_no_rate() -> None:
    book, rows = Book(), 0
    for at_ms in (NOW_MS, NOW_MS + 1000, NOW_MS - 3_600_000, NOW_MS - 3_599_000):
        rows += 100
        tasks = {"hot.1/0/0": a_task(rows_in=rows)}
        book.take(some_facts(a_query(a_progress(tasks, timestamp=moment(at_ms)))))
        if at_ms == NOW_MS - 3_600_000:
            assert book.page("hot", NOW_MS)["query"]["tasks"][0]["figures"]["rate"][1] is None
    assert book.page("hot", NOW_MS)["query"]["tasks"][0]["figures"]["rate"][1] == 100
    series = book.series("hot")
    assert series is not None
    at = series.after(0)["columns"]["at"]
    assert at == [NOW_MS / 1000 - 3600, NOW_MS / 1000 - 3599]


def test_a_while_of_which_nothing_is_known_is_a_gap_in_the_chart() -> None:
    series = Series(("a",))
    for at in (1, 2, 1.5, 2, 60):
        series.add(at, {"a": at})
    assert series.after(0)["columns"] == {"at": [1, 2, 3, 60], "a": [1, 2, None, 60]}


def test_a_watermark_may_be_ahead_of_every_clock() -> None:
    assert event_time(moment(NOW_MS + 7_200_000), NOW_MS)[0] == "2 h 0 min ahead"
    assert event_time(moment(NOW_MS - 2_000), NOW_MS)[0] == "2.0 s ago"
    assert event_time(None, NOW_MS)[0] == UNKNOWN


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0.0 ms"), (99_900, "99.9 s"), (119_600, "2 min 0 s"), (149_000, "2 min 29 s"),
        (3_600_000, "60 min"), (9_000_000, "2 h 30 min"), (864_000_000, "10 days"),
    ],
)  # fmt: skip
def test_a_span_is_told_as_exactly_as_people_ask(ms: float, text: str) -> None:
    assert span(ms)[0] == text


def test_a_graph_without_end_is_cut() -> None:
    nodes = [{"id": str(one), "kind": "stage", "name": "x"} for one in range(5_000)]
    edges = [{"from": str(one), "to": str(one + 1)} for one in range(5_000)]
    page = page_of(some_facts(a_query(a_progress(graph={"nodes": nodes, "edges": edges}))))
    assert len(page["query"]["graph"]["nodes"]) == NODES_MAX
    assert len(page["query"]["graph"]["edges"]) < EDGES_MAX


def test_why_virtual_nodes_moved_or_not_is_shown() -> None:
    told = "even: the busiest task of a stage takes 1.10 times the mean"
    page = page_of(some_facts(a_query(a_progress(balance={"told": told}))))
    assert ["balance", [told, told, "progress.balance.told"]] in page["query"]["head"]
    why = "by hand: the busiest task of stage 1 took 2.0 times the mean"
    moved = page_of(some_facts(a_query(a_progress(balance={"told": None, "last": {"why": why}}))))
    figure = [why, why, "progress.balance.last.why"]
    assert ["balanced last", figure] in moved["query"]["head"]


def test_a_suspended_query_is_shown_as_one_and_its_tasks_are_to_blame_for_nothing() -> None:
    suspended = {"at": "2026-01-01T00:00:00.000Z"}
    tasks = {"hot.1/0/0": a_task(is_running=False)}
    page = page_of(some_facts(a_query(a_progress(tasks, suspended=suspended))))
    assert [one["state"] for one in page["queries"]] == ["suspended"]
    assert page["query"]["past"].startswith("It is suspended")
    assert [one["level"] for one in page["query"]["tasks"]] == ["idle"]
