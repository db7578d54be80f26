"""Rows by key: whatever is added, taken back and evicted, what remains is the sum of weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.state import memory_row_set
from penstock.state.keys import Hashes, hash_columns, key_objects
from penstock.state.memory_row_set import MemoryRowSet, add_up, first_equal

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("number", pa.float64()),
        ("inner", pa.struct([("text", pa.string()), ("list", pa.list_(pa.int32()))])),
        ("time", pa.timestamp("us", tz="UTC")),
    ]
)
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
STEPS = st.lists(WEIGHTED | st.integers(0, 2), max_size=8)


@pytest.fixture(scope="module", params=["the hash", "a hash that many rows share"], autouse=True)
def hashing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Equal hashes must not pass for equal rows."""

    def coarse(columns: Sequence[pa.Array], rows: int) -> Hashes:
        return hash_columns(columns, rows) % np.uint64(2)

    with pytest.MonkeyPatch.context() as patch:
        if request.param != "the hash":
            patch.setattr(memory_row_set, "hash_columns", coarse)
        yield


def batch_of(rows: Iterable[object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)


def total(rows: pa.RecordBatch, weights: Iterable[int]) -> dict[object, int]:
    """The sum of weights by row, without zeros."""
    counts: Counter[object] = Counter()
    for row, weight in zip(key_objects(rows.columns, rows.num_rows), weights, strict=True):
        counts[row] += int(weight)
    return {row: count for row, count in counts.items() if count}


def play(rows: MemoryRowSet, steps: list[object]) -> dict[object, int]:
    """Do the steps, a list adds and a number evicts; returns what should remain."""
    expected: dict[object, int] = {}
    for step in steps:
        if isinstance(step, int):
            rows.evict(step)
            # The event time is the last of a row's objects.
            expected = {r: c for r, c in expected.items() if r[-1] is None or r[-1] > step}  # type: ignore[index]
        elif isinstance(step, list):
            batch, weights = batch_of(row for row, _ in step), [weight for _, weight in step]
            rows.insert(batch, np.array(weights, np.int64))
            added = Counter(expected)
            added.update(total(batch, weights))
            expected = {row: count for row, count in added.items() if count}
    return expected


@given(STEPS)
def test_what_remains_is_the_sum_of_weights(steps: list[object]) -> None:
    rows = MemoryRowSet(SCHEMA, (0,), 3, (0,))

    expected = play(rows, steps)

    assert total(*rows.rows()) == expected


@given(STEPS)
def test_fetch_gives_the_rows_of_each_key_and_no_other(steps: list[object]) -> None:
    rows = MemoryRowSet(SCHEMA, (0,), 3, (0,))
    keys = ["a", "missing", None, "b", "a"]

    expected = play(rows, steps)
    probe, found, weights = rows.fetch([pa.array(keys, pa.string())])

    assert (np.diff(probe) >= 0).all()
    for place, key in enumerate(keys):
        mine = probe == place
        of_key = {row: count for row, count in expected.items() if row[0] == key}  # type: ignore[index]
        assert total(found.filter(pa.array(mine)), weights[mine]) == of_key


@given(STEPS)
def test_a_copy_made_of_changes_or_of_the_export_holds_the_same(steps: list[object]) -> None:
    rows, told, copied = (MemoryRowSet(SCHEMA, (0,), 3, (0,)) for _ in range(3))

    expected = play(rows, steps)
    for change in rows.take_changes("rows"):
        told.apply(change)
    for change in rows.export("rows"):
        copied.apply(change)

    assert total(*told.rows()) == expected
    assert total(*copied.rows()) == expected


@given(st.lists(ROWS, max_size=20))
def test_first_equal_finds_the_first_row_that_is_alike(rows: list[object]) -> None:
    batch = batch_of(rows)
    objects = key_objects(batch.columns, len(rows))

    found = first_equal(batch.columns, len(rows))

    assert found.tolist() == [objects.index(row) for row in objects]


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
