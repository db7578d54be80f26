"""The health line: what is wrong, in words, and what to do about it."""

from __future__ import annotations

from typing import Any

import pytest
from ui_samples import NOW_MS, a_progress, a_query, a_task, some_facts

from penstock.ui.view import Book

LATE = [
    {"description": "penstock stream bids", "endOffset": 90, "lag": {"records": 9, "seconds": 30}}
]


def health(*takes: dict[str, Any], away: dict[str, Any] | None = None) -> dict[str, Any]:
    book = Book()
    for facts in takes:
        book.take(facts)
    found: dict[str, Any] = book.page(None, NOW_MS, away)["health"]
    return found


def started(**more: Any) -> dict[str, Any]:
    """Of two tasks one runs, of the other nothing has come yet."""
    tasks = {"hot.1/0/0": a_task(), "hot.1/0/1": {}}
    return a_query(a_progress(tasks, workersWanted=2, **more))


def test_all_is_well() -> None:
    assert health(some_facts(a_query()))["level"] == "good"
    assert "1 of 1 query running" in health(some_facts(a_query()))["title"]
    assert "No query" in health(some_facts())["title"]


def test_a_log_that_is_away_is_the_only_news() -> None:
    failed = a_query(state="failed")
    found = health(some_facts(failed), away={"why": "no server runs", "for_ms": 4200})
    assert (found["level"], found["count"]) == ("down", 1)
    assert "4.2 s" in found["title"]
    assert "no server runs" in found["title"]
    assert "penstock log serve" in found["problems"][0]["do"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (a_query(a_progress(exception="ZeroDivisionError"), state="failed"), "ZeroDivisionError"),
        (a_query(state="lost"), "no driver runs it"),
        (a_query(a_progress(workersWanted=2)), "1 of 2 workers"),
        (a_query(a_progress(workersWanted=2, cores={"waiting": "2 wanted, 1 had"})), "1 had"),
        (a_query(a_progress({"hot.1/0/0": a_task(is_running=False)})), "does not run now"),
    ],
)
def test_what_does_not_go_on_is_bad_and_names_the_query(query: dict[str, Any], words: str) -> None:
    found = health(some_facts(query))
    assert found["level"] == "bad"
    assert words in found["title"]
    assert found["problems"][0]["query"] == "hot"
    assert found["problems"][0]["do"]


def test_a_query_that_starts_has_lost_nothing() -> None:
    progress = a_progress({"hot.1/0/0": {}}, workersWanted=2, workers=0)
    found = health(some_facts(a_query(progress)))
    assert found["level"] == "warn"
    assert "is starting" in found["title"]


def test_a_step_that_lasts_is_a_slow_function_and_its_step_is_named() -> None:
    progress = a_progress({"hot.1/0/0": a_task(step_ms=4200, busy_share=None)})
    found = health(some_facts(a_query(progress)))
    assert "4.2 s" in found["title"]
    assert "python slow(price)" in found["problems"][0]["do"]


def test_a_task_that_says_nothing_while_its_worker_lives_is_in_a_long_step() -> None:
    silent = a_task(is_running=False, reported_at_ms=NOW_MS - 9_300, busy_share=None)
    found = health(some_facts(a_query(a_progress({"hot.1/0/0": silent}))))
    assert "one step of task hot.1/0/0 has lasted 9.0 s" in found["title"]
    gone = a_progress({"hot.1/0/0": {**silent, "worker": "0-dead"}})
    assert "does not run now" in health(some_facts(a_query(gone)))["title"]


def test_a_stage_that_works_all_the_time_while_rows_wait_is_the_bottleneck() -> None:
    progress = a_progress({"hot.1/0/0": a_task(busy_share=0.97)}, sources=LATE)
    found = health(some_facts(a_query(progress)))
    assert "stage 0 is the bottleneck" in found["title"]
    assert "97 %" in found["title"]
    assert "rescale" in found["problems"][0]["do"]


def test_a_stage_that_works_all_the_time_and_keeps_up_is_no_problem() -> None:
    progress = a_progress({"hot.1/0/0": a_task(busy_share=0.97)})
    assert health(some_facts(a_query(progress)))["level"] == "good"


def skewed(rows: tuple[int, int], busy: float, second: int) -> dict[str, Any]:
    tasks = {
        "hot.1/0/0": a_task(rows_in=rows[0], busy_share=busy),
        "hot.1/0/1": a_task(rows_in=rows[1], busy_share=0.01),
    }
    at = f"2026-01-01T00:00:0{second}.000Z"
    return some_facts(a_query(a_progress(tasks, sources=LATE, timestamp=at)))


def test_a_key_that_is_in_most_rows_is_told_from_a_slow_function() -> None:
    found = health(skewed((0, 0), 0.99, 0), skewed((9_500, 500), 0.99, 1))
    assert "takes 95 % of the rows" in found["title"]
    assert "fair share were 50 %" in found["title"]
    assert "penstock query balance hot" in found["problems"][0]["do"]
    assert "More workers do not help" in found["problems"][0]["do"]


def test_equal_shares_are_no_skew() -> None:
    found = health(skewed((0, 0), 0.99, 0), skewed((5_500, 4_500), 0.99, 1))
    assert "bottleneck" in found["title"]


def test_a_query_that_is_behind_without_a_busy_task_is_told_so() -> None:
    found = health(some_facts(a_query(a_progress(sources=LATE))))
    assert found["level"] == "warn"
    assert "30.0 s behind" in found["title"]


def test_the_worst_comes_first() -> None:
    slow = a_query(a_progress(sources=LATE), name="slow")
    lost = a_query(state="lost", name="lost")
    found = health(some_facts(slow, lost))
    assert [one["query"] for one in found["problems"]] == ["lost", "slow"]
    assert found["title"].endswith("And 1 more.")


def test_deliveries_clusters_and_stalled_logs_are_told_of() -> None:
    facts = some_facts(
        deliveries=[
            {"name": "a", "state": "failed", "error": "no such table"},
            {"name": "b", "state": "lost"},
            {"name": "c", "state": "running", "targets": [{"target": "db", "problem": "away"}]},
        ],
        cluster={"problems": ["node n1 does not answer"]},
        log={"status": {"stalled": "too few nodes"}},
    )
    found = health(facts)
    assert found["level"] == "down"
    words = " ".join(one["what"] for one in found["problems"])
    for one in ("too few nodes", "no such table", "b is not heard", "away", "n1 does not answer"):
        assert one in words


def test_while_a_query_starts_no_worker_was_lost() -> None:
    found = health(some_facts(started()))
    assert (found["level"], found["count"]) == ("warn", 1)
    assert "is starting" in found["title"]
    both = {"hot.1/0/0": a_task(), "hot.1/0/1": a_task(is_running=False)}
    lost = health(some_facts(a_query(a_progress(both, workersWanted=2))))
    assert "a worker was lost" in lost["title"]


def test_a_suspended_query_is_told_with_what_brings_it_back() -> None:
    suspended = {"at": "2026-01-01T00:00:00.000Z"}
    both = {"hot.1/0/0": a_task(is_running=False)}
    found = health(some_facts(a_query(a_progress(both, workersWanted=0, suspended=suspended))))
    assert (found["level"], found["count"]) == ("warn", 1)
    assert "is suspended" in found["title"]
    assert "query rescale" in found["problems"][0]["do"]


def test_workers_that_a_rescale_asked_for_were_not_lost() -> None:
    progress = a_progress(workers=1, workersWanted=3, rescaling={"workers": 3})
    found = health(some_facts(a_query(progress)))
    assert (found["level"], found["count"]) == ("warn", 1)
    assert "is being rescaled to 3 workers" in found["title"]


def test_a_task_that_waits_for_its_commits_is_told_from_one_that_works() -> None:
    held = a_task(busy_share=0.2, back_pressured_share=0.75)
    found = health(some_facts(a_query(a_progress({"hot.1/0/0": held}, sources=LATE))))
    assert "held up 75 % of its time" in found["title"]
    assert "fsync" in found["problems"][0]["do"]
    assert found["count"] == 1


def test_rows_that_were_set_aside_are_told_of() -> None:
    found = health(some_facts(a_query(a_progress({"hot.1/0/0": a_task(dead_letters=3)}))))
    assert "set aside 3 rows" in found["title"]


def test_figures_of_before_are_not_shown_as_if_all_were_well() -> None:
    assert health(some_facts(a_query(), at_ms=NOW_MS - 2_000))["level"] == "good"
    found = health(some_facts(a_query(), at_ms=NOW_MS - 4_200))
    assert found["level"] == "warn"
    assert "4.2 s old" in found["title"]


def test_a_slow_disk_is_told_of_until_nothing_is_written() -> None:
    def written(count: int, second: int) -> dict[str, Any]:
        name = "penstock_fsync_duration_seconds_bucket"
        lines = [
            f'{name}{{le="0.1"}} 0',
            f'{name}{{le="2.5"}} {count}',
            f'{name}{{le="+Inf"}} {count}',
        ]
        log = {"target": "here", "status": None, "metrics": "\n".join(lines)}
        return some_facts(log=log, at_ms=NOW_MS + 1000 * second)

    takes = [written(10, 0), written(20, 1)]
    assert "one fsync in a hundred takes 2.5 s" in health(*takes)["title"]
    assert health(*takes, *(written(20, 2 + n) for n in range(15)))["level"] == "good"
