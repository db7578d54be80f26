"""Queries whose hot virtual nodes get other tasks, on Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from harness.waiting import wait_until
from pyspark.sql import functions as F
from small_queries import BIDS, T0, by_batch, check, running

import penstock
from penstock.state.keys import hash_columns, virtual_nodes
from penstock.testing.oracle import assert_equal

pytestmark = pytest.mark.usefixtures("interpreted")


def counts(frame: Any) -> Any:
    return frame.groupBy("auction").agg(F.count("*"), F.sum("price"))


def node_of(key: int) -> int:
    return int(virtual_nodes(hash_columns([pa.array([key])], 1))[0])


def keys_of_one_task(wanted: int) -> list[int]:
    """Of virtual nodes that are all with the first of two tasks, and each with another key."""
    found: dict[int, int] = {}
    for key in count():
        if node_of(key) % 2 == 0:
            found.setdefault(node_of(key), key)
        if len(found) == wanted:
            return list(found.values())
    raise AssertionError


@contextmanager
def fed(stream: penstock.Stream, keys: list[int]) -> Iterator[None]:
    """Rows of these keys, about 2,000 a second, for as long as it lasts."""
    enough = threading.Event()

    def feed() -> None:
        while not enough.wait(0.05):
            rows = [{"auction": keys[n % len(keys)], "price": n, "ts": T0} for n in range(100)]
            stream.append(rows)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def progress(query: penstock.StreamingQuery) -> dict[str, Any]:
    return dict(query.lastProgress or {})


def taken(query: penstock.StreamingQuery) -> list[int]:
    """Rows that each task of the second stage has taken in."""
    tasks = progress(query).get("tasks", {})
    return [
        sum(one["rows"] for one in task.get("inputs", {}).values())
        for name, task in tasks.items()
        if "/1/" in name
    ]


def busiest_share(query: penstock.StreamingQuery, rows: int = 4000) -> float:
    """Of so many rows from now on, the part that the busiest task takes."""
    before = taken(query)
    wait_until(lambda: sum(taken(query)) - sum(before) > rows)
    grown = [new - old for new, old in zip(taken(query), before, strict=True)]
    return max(grown) / sum(grown)


def test_hot_virtual_nodes_move_and_tasks_take_as_much_as_each_other(
    spark: Any, log: penstock.Log
) -> None:
    source = log.create_stream("skewed_in", BIDS)
    keys = keys_of_one_task(4)
    with running(counts(source.df(spark)), to="skewed", workers=2, balance=True) as query:
        with fed(source, keys):
            wait_until(lambda: sum(taken(query)) > 1000)
            assert busiest_share(query) > 0.95
            wait_until(lambda: "nodes" in progress(query))
            hot = progress(query)["nodes"]["1"]
            assert {*map(int, hot)} == {node_of(key) for key in keys}

            wait_until(lambda: progress(query)["balance"]["last"] is not None)
            last = progress(query)["balance"]["last"]
            assert last["why"].startswith("automatically: the busiest task of stage 1 took 2.0")
            assert last["count"] == 2 and last["cutMs"] > 0
            assert {one["node"] for one in last["nodes"]} < {node_of(key) for key in keys}
            wait_until(lambda: len(taken(query)) == 2 and min(taken(query)) > 0)
            assert busiest_share(query) < 0.65
        check(spark, query, counts, source)
        assert progress(query)["layout"]["version"] == 1, "it moves once"


def test_one_hot_key_is_told_of_and_not_moved(spark: Any, log: penstock.Log) -> None:
    source = log.create_stream("lonely_key_in", BIDS)
    [key] = keys_of_one_task(1)
    with running(counts(source.df(spark)), to="lonely_key", workers=2) as query:
        with fed(source, [key]):
            wait_until(lambda: "1" in progress(query).get("nodes", {}))
            query.balance()
            wait_until(lambda: progress(query)["balance"]["told"] is not None)
            told = progress(query)["balance"]["told"]
            assert f"virtual node {node_of(key)} alone takes 100%" in told, told
            assert progress(query)["balance"]["last"] is None
        query.processAllAvailable()
    assert_equal(query.result(), by_batch(spark, counts, source), "lonely_key")
