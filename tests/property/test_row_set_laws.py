"""Rows by key: whatever is added, taken back and evicted, what remains is the sum of weights."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness.rooms import ROOMS, make_room
from hypothesis import given
from hypothesis import strategies as st

from penstock.state import equal_rows, memory_row_set, run
from penstock.state.equal_rows import add_up, first_equal, group_rows
from penstock.state.keys import Hashes, key_objects
from penstock.state.memory_row_set import MemoryRowSet
from penstock.state.room import MEMORY

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("number", pa.float64()),
        ("inner", pa.struct([("text", pa.string()), ("list", pa.list_(pa.int32()))])),
        ("time", pa.timestamp("us", tz="UTC")),
    ]
)
#: Weights by row, a row being a tuple of objects.
Totals = dict[Any, int]
MIX_IN = equal_rows._mix_in
TEXTS = st.sampled_from(["a", "b", "", None])
ROWS = st.fixed_dictionaries(
    {
        "key": TEXTS,
        "number": st.sampled_from([0.0, -0.0, float("nan"), 1.5, None]),
        "inner": st.none()
        | st.fixed_dictionaries(
            {"text": TEXTS, "list": st.none() | st.lists(st.integers(0, 1), max_size=2)}
        ),
        "time": st.integers(0, 3) | st.none(),
    }
)
WEIGHTED = st.lists(st.tuples(ROWS, st.sampled_from([1, 1, 2, -1])), max_size=12)
#: The key of this row is sought, and some of what is found is dropped.
DROPS = st.tuples(ROWS, st.lists(st.integers(0, 5), min_size=1, max_size=3))
#: Rows are added, an event time is passed, changes are taken.
TAKE = "take"
STEPS = st.lists(WEIGHTED | st.integers(0, 2) | DROPS | st.just(TAKE), max_size=8)


HASHINGS = ["the hash", "a hash that many rows share", "an index of every run", ROOMS[1]]
#: Where rows are.
ROOM = MEMORY


@pytest.fixture(scope="module", params=HASHINGS, autouse=True)
def hashing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Equal hashes must not pass for equal rows; a few rows are found as many are."""

    def coarse(hashes: Hashes, numbers: Hashes) -> Hashes:
        return MIX_IN(hashes, numbers) % np.uint64(2)

    with pytest.MonkeyPatch.context() as patch:
        if request.param != "the hash":
            patch.setattr(equal_rows, "_mix_in", coarse)
        if request.param == "an index of every run":
            patch.setattr(run, "_SORTED_MAX", 0)
            patch.setattr(equal_rows, "_COMPARED_MAX", 0)
            patch.setattr(equal_rows, "_SORTED_MAX", 0)
            patch.setattr(memory_row_set, "_SHORT_ROWS", 0)
        if request.param == ROOMS[1]:
            patch.setattr(sys.modules[__name__], "ROOM", make_room(ROOMS[1]))
            patch.setattr(memory_row_set, "_WAITING_ROWS_MAX", 2)
            patch.setattr(memory_row_set, "_MERGED_ROWS_MAX", 5)
            patch.setattr(run, "_BLOCK_ROWS", 1)
        yield


def batch_of(rows: Iterable[object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)


def total(rows: pa.RecordBatch, weights: Iterable[int]) -> Totals:
    """The sum of weights by row, without zeros."""
    counts: Counter[Any] = Counter()
    for row, weight in zip(key_objects(rows.columns, rows.num_rows), weights, strict=True):
        counts[row] += int(weight)
    return {row: count for row, count in counts.items() if count}


def drop_some(rows: MemoryRowSet, like: object, numbers: list[int]) -> Totals:
    """Drop rows that are found with the key of this row; what is dropped."""
    sought = batch_of([like])
    _, found, weights = rows.fetch([sought.column(key) for key in rows._keys])
    there = np.flatnonzero(weights > 0)
    places = np.unique(there[[n % len(there) for n in numbers]]) if len(there) else there
    dropped = found.take(pa.array(places))
    rows.drop(dropped, places, np.ones(len(places), np.int64))
    return total(dropped, [1] * len(places))


def play(rows: MemoryRowSet, steps: list[object], expected: Totals) -> Totals:
    """Do the steps: a list adds, a pair drops, a number evicts; returns what should remain."""
    for step in steps:
        if isinstance(step, tuple):
            left = Counter(expected)
            left.subtract(drop_some(rows, *step))
            expected = {row: count for row, count in left.items() if count}
        if isinstance(step, int):
            rows.evict(step)
            # The event time is the last of a row's objects.
            expected = {r: c for r, c in expected.items() if r[-1] is None or r[-1] > step}
        elif isinstance(step, list):
            batch, weights = batch_of(row for row, _ in step), [weight for _, weight in step]
            rows.insert(batch, np.array(weights, np.int64))
            added = Counter(expected)
            added.update(total(batch, weights))
            expected = {row: count for row, count in added.items() if count}
    return expected


@pytest.mark.parametrize("keys", [(0,), (1, 2)], ids=["by a text", "by a number and a struct"])
@given(STEPS, st.lists(ROWS, min_size=1, max_size=3), st.integers(-1, 4))
def test_what_remains_is_the_sum_of_weights_by_key_and_time_and_in_copies(
    keys: tuple[int, ...], steps: list[object], probes: list[object], bound: int
) -> None:
    rows, told, copied = (MemoryRowSet(SCHEMA, keys, 3, keys, ROOM) for _ in range(3))
    expected: Totals = {}
    for step in steps:
        expected = play(rows, [step], expected)
        assert total(*rows.rows()) == expected
        if step == TAKE:
            for change in rows.take_changes("rows"):
                told.apply(change)
            assert total(*told.rows()) == expected
            assert not list(rows.take_changes("rows"))
    for change in rows.export("rows"):
        copied.apply(change)
    assert total(*copied.rows()) == expected

    passed = {row: n for row, n in expected.items() if row[-1] is not None and row[-1] <= bound}
    assert total(*rows.expired(bound)) == passed

    added = [row for step in steps if isinstance(step, list) for row, _ in step]
    sought = batch_of([*probes, *added])
    wanted = [sought.column(key) for key in keys]
    probe, found, weights = rows.fetch(wanted)
    assert (np.diff(probe) >= 0).all()
    objects = key_objects(wanted, sought.num_rows)
    key_of = dict(zip(key_objects(sought.columns, sought.num_rows), objects, strict=True))
    for place, key in enumerate(objects):
        mine = probe == place
        of_key = {row: count for row, count in expected.items() if key_of[row] == key}
        assert total(found.filter(pa.array(mine)), weights[mine]) == of_key


@given(st.lists(ROWS, max_size=20))
def test_equal_rows_are_one_group_numbered_in_order_of_appearance(rows: list[object]) -> None:
    batch = batch_of(rows)
    objects = key_objects(batch.columns, len(rows))
    distinct = list(dict.fromkeys(objects))

    first, groups = group_rows(batch.columns, len(rows))

    assert first_equal(batch.columns, len(rows)).tolist() == [objects.index(row) for row in objects]
    assert first.tolist() == [objects.index(row) for row in distinct]
    assert groups.tolist() == [distinct.index(row) for row in objects]


def test_rows_are_found_in_runs_of_more_buckets_than_one_digit_can_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(equal_rows, "_mix_in", MIX_IN)
    count = 1 << 17
    schema = pa.schema([("key", pa.int64()), ("time", pa.timestamp("us"))])
    numbers = pa.array(np.arange(count))
    rows = MemoryRowSet(schema, (0,), 1, (0,), ROOM)
    times = numbers.view(pa.timestamp("us"))
    rows.insert(pa.RecordBatch.from_arrays([numbers, times], schema=schema), None)
    rows.evict(999)

    probe, found, _ = rows.fetch([pa.array(np.arange(-500, count, 97))])

    sought = np.arange(-500, count, 97)
    assert found.column(0).to_pylist() == sought[sought > 999].tolist()
    assert sought[probe].tolist() == found.column(0).to_pylist()


@given(WEIGHTED)
def test_adding_up_leaves_each_row_once_if_any_was_taken_back(
    weighted: list[tuple[object, int]],
) -> None:
    batch, weights = batch_of(row for row, _ in weighted), [weight for _, weight in weighted]

    rows, left = add_up(batch, np.array(weights, np.int64))

    assert total(rows, left) == total(batch, weights)
    assert left.all()
    if min(weights, default=0) < 0:
        assert rows.num_rows == len(total(batch, weights))
