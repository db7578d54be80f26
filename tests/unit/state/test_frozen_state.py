"""Logs of changes and frozen copies of a store: what they do to another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness.rooms import ROOMS, make_room, states_are
from hypothesis import given, settings
from state_actions import ACTIONS, TAKE, contents, do, make_parts, make_rows, make_store

from penstock.state.memory import MemoryState


@pytest.fixture(params=ROOMS, scope="module", autouse=True)
def room(request: pytest.FixtureRequest) -> Iterator[None]:
    with states_are(make_room(request.param)):
        yield


@settings(max_examples=150)
@given(actions=ACTIONS, splits=ACTIONS)
def test_a_copy_that_applies_every_log_is_equal(actions: list[Any], splits: list[Any]) -> None:
    store, copy, by_node = make_store(), make_store(), make_store()
    for number, action in enumerate([*actions, TAKE, *splits, TAKE]):
        do(store, action, number)
        if action == TAKE and number <= len(actions):
            log = store.state.take_log()
            copy.state.apply(log)
            by_node.state.apply(log)
            assert contents(copy) == contents(store)
            assert store.state.take_log() == ()
        elif action == TAKE:
            changes = store.state.take_changes()
            by_node.state.restore(changes)
            assert contents(by_node) == contents(store)
            assert store.state.take_changes() == {}
    assert copy.state.take_log() == ()  # what was done elsewhere is not done again


@settings(max_examples=100)
@given(before=ACTIONS, after=ACTIONS)
def test_a_frozen_state_is_the_state_of_that_moment(before: list[Any], after: list[Any]) -> None:
    store = make_store()
    for number, action in enumerate(before):
        do(store, action, number)
    held = contents(store)

    frozen = store.state.freeze()
    for number, action in enumerate([*after, ("delete", [None, *range(6)]), ("evict", 9)]):
        do(store, action, 100 + number)

    copy = make_store()
    copy.state.apply(frozen)
    assert contents(copy) == held
    late = MemoryState()
    late.apply(frozen)  # before the operators have said what they keep
    assert contents(make_parts(late)) == held


def test_freezing_takes_nothing_from_the_log() -> None:
    store, copy = make_store(), make_store()
    do(store, ("put", [1, 2]), 0)
    do(store, ("insert", [(1, 2, "a", 1)]), 0)

    store.state.freeze()

    copy.state.apply(store.state.take_log())
    assert contents(copy) == contents(store)


@pytest.mark.parametrize("take", ["log", "changes"])
def test_an_eviction_strikes_what_was_added_before_it_and_not_after(take: str) -> None:
    store, copy = make_store(), make_store()
    store.rows.insert(make_rows([(1, 3, "old"), (2, 9, "new")]), None)
    store.rows.evict(5)
    store.rows.insert(make_rows([(3, 4, "late")]), None)

    if take == "log":
        copy.state.apply(store.state.take_log())
    else:
        copy.state.restore(store.state.take_changes())

    assert sorted(copy.rows.rows()[0].column("v").to_pylist()) == ["late", "new"]
    assert contents(copy) == contents(store)


def test_a_row_that_was_deleted_and_made_again_is_empty_in_the_copy() -> None:
    store, copy = make_store(), make_store()
    do(store, ("put", [1]), 7)
    copy.state.apply(store.state.take_log())

    do(store, ("delete", [1]), 0)
    store.numbers.locate([pa.array([1])])  # nothing is written to it

    copy.state.apply(store.state.take_log())
    assert copy.numbers.read("n", copy.numbers.find([pa.array([1])])).tolist() == [0]


def test_rows_that_were_evicted_at_once_are_not_in_the_log() -> None:
    store = make_store()
    store.rows.insert(make_rows([(1, 3, "a")]), None)
    store.rows.evict(5)

    (eviction,) = store.state.take_log()

    assert (eviction.name, eviction.kind) == ("op/rows", "evict")


def test_additions_of_one_commit_become_one_change() -> None:
    store = make_store()
    for number in range(3):
        store.rows.insert(make_rows([(number, 3, "a")]), np.array([number + 1]))

    (addition,) = store.state.take_log()

    assert addition.rows.column("weight").to_pylist() == [1, 2, 3]


def test_more_rows_than_are_applied_at_once_arrive() -> None:
    count = 150_000  # three pieces
    store, copy = make_store(), make_store()
    slots, _ = store.numbers.locate([pa.array(np.arange(count))])
    store.numbers.write("n", slots, np.arange(count) * 2)
    store.numbers.touch(slots)

    copy.state.apply(store.state.take_log())

    keys = [pa.array([0, 65_535, 65_536, count - 1])]
    assert len(copy.numbers) == count
    assert copy.numbers.read("n", copy.numbers.find(keys)).tolist() == [
        *(0, 131_070, 131_072, 2 * count - 2)
    ]
