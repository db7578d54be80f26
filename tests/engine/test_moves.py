"""Tasks that move, or go on at a copy of their state, while a query runs on Spark."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from harness.waiting import wait_until
from small_queries import BIDS, append_bids, check, running

import penstock
from penstock.errors import BadRequest

pytestmark = pytest.mark.usefixtures("interpreted")


def counts(frame: Any) -> Any:
    return frame.groupBy("auction").count()


def tasks_of(query: penstock.StreamingQuery) -> dict[str, dict[str, Any]]:
    tasks: dict[str, dict[str, Any]] = (query.lastProgress or {}).get("tasks", {})
    return tasks


def has_copies(query: penstock.StreamingQuery) -> bool:
    """Of every task that runs, one that is ready."""
    found = [task.get("standbys", {}) for task in tasks_of(query).values()]
    return bool(found) and all(
        any(report.get("is_ready") for report in standbys.values()) for standbys in found
    )


def test_a_task_moves_by_hand_and_goes_on_there(spark: Any, log: penstock.Log) -> None:
    source = log.create_stream("moves_in", BIDS)
    with running(counts(source.df(spark)), to="moves", workers=2, replicas=1) as query:
        append_bids(source, 0, 300)
        query.processAllAvailable()
        wait_until(lambda: has_copies(query))
        tasks = tasks_of(query)
        task, here = next((name, one["worker"]) for name, one in tasks.items() if "/1/" in name)
        there = next(one["worker"] for one in tasks.values() if one["worker"] != here)

        query.move(task, there)
        append_bids(source, 300, 300)
        wait_until(lambda: tasks_of(query)[task]["worker"] == there)
        wait_until(lambda: (query.lastProgress or {})["moves"][-1]["resumeMs"] is not None)
        [moved] = (query.lastProgress or {})["moves"]
        assert (moved["task"], moved["from"], moved["to"]) == (task, here, there)
        assert moved["why"] == "by hand" and moved["fromStandby"]
        check(spark, query, counts, source)

        with pytest.raises(BadRequest, match="no worker 7: there are 0"):
            query.move(task, 7)
        with pytest.raises(BadRequest, match=r"no task moves.1/9/9: there are moves.1/0/0"):
            query.move("moves.1/9/9", 0)


def test_the_tasks_of_a_killed_worker_go_on_at_their_copies(spark: Any, log: penstock.Log) -> None:
    source = log.create_stream("standby_in", BIDS)
    with running(counts(source.df(spark)), to="standby", workers=2, replicas=1) as query:
        append_bids(source, 0, 300)
        query.processAllAvailable()
        wait_until(lambda: has_copies(query))
        before = tasks_of(query)
        victim = before["standby.1/1/0"]["worker"]

        os.kill((query.lastProgress or {})["members"][victim]["pid"], signal.SIGKILL)
        append_bids(source, 300, 300)
        check(spark, query, counts, source)
        theirs = {name for name, one in before.items() if one["worker"] == victim}

        def lost() -> list[dict[str, Any]]:
            moves = (query.lastProgress or {}).get("moves", [])
            return [one for one in moves if one["from"] == victim]

        wait_until(lambda: {one["task"] for one in lost()} >= theirs)
        assert all(one["to"] != victim for one in lost())


def test_copies_need_another_worker_to_keep_them(spark: Any, log: penstock.Log) -> None:
    source = log.create_stream("lonely_in", BIDS)
    with pytest.raises(BadRequest, match="use at least workers=2"):
        penstock.start(source.df(spark), to="lonely", name="lonely", workers=1, replicas=1)
    with (
        running(source.df(spark), to="lonely", mode="append", workers=1) as query,
        pytest.raises(BadRequest, match="start it with replicas=1"),
    ):
        query.move("lonely.1/0/0", 0)
