"""Aggregates whose extremes are taken back: as if all rows of a key were folded anew every time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from engine_samples import LONG, ONE, scan

from penstock.ops.aggregate_calls import bind_calls
from penstock.ops.api import Delta, Operator, ignore_late
from penstock.ops.build import build_operator
from penstock.ops.mended import MendedAggregate, can_mend
from penstock.ops.regroup import build_regroup_aggregate
from penstock.plan import nodes as n
from penstock.plan.exprs import Column
from penstock.state.keys import key_objects
from penstock.state.memory import MemoryState

NUMBER = pa.float64()
ROWS = pa.schema([("k", LONG), ("i", LONG), ("f", NUMBER)])
INTS = [None, -3, 0, 1, 2]
FLOATS = [None, -0.0, 0.0, 1.5, float("nan"), float("inf")]
ADDED_UP = Counter[Any]


def extremes(*, keyed: bool = True) -> n.Aggregate:
    """The largest and smallest number, the average and the count, per key or of all rows."""
    child = scan("s", ROWS)
    key, ints, floats = (Column(field.name, field.type) for field in child.schema)
    calls = (
        n.AggregateCall("Max", (ints,), LONG),
        n.AggregateCall("Min", (floats,), NUMBER),
        n.AggregateCall("Max", (floats,), NUMBER),
        n.AggregateCall("Average", (ints,), NUMBER),
        n.AggregateCall("Count", (ONE,), LONG),
    )
    keys = (key,) if keyed else ()
    fields = [(k.name, k.type) for k in keys] + [(f"c{i}", c.type) for i, c in enumerate(calls)]
    return n.Aggregate(schema=pa.schema(fields), child=child, keys=keys, calls=calls)


def random_deltas(rng: random.Random, count: int) -> list[Delta]:
    """Rows come and go; what goes was there before."""
    there: list[tuple[Any, ...]] = []
    deltas = []
    for _ in range(count):
        rows, weights = [], []
        for _ in range(rng.randint(1, 6)):
            if there and rng.random() < 0.5:
                rows.append(there.pop(rng.randrange(len(there))))
                weights.append(-1)
            else:
                rows.append((rng.choice([1, 2, None]), rng.choice(INTS), rng.choice(FLOATS)))
                weights.append(1)
                there.append(rows[-1])
        columns = [
            pa.array(values, kind)
            for values, kind in zip(zip(*rows, strict=True), ROWS.types, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=extremes().child.schema)
        deltas.append(Delta(batch, np.array(weights, np.int64)))
    return deltas


def add_up(total: ADDED_UP, deltas: list[Delta]) -> None:
    for delta in deltas:
        for row, weight in zip(
            key_objects(delta.batch.columns, len(delta)), delta.all_weights().tolist(), strict=True
        ):
            total[row] += weight


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_what_is_shown_is_what_all_rows_give(seed: int, keyed: bool) -> None:
    node = extremes(keyed=keyed)
    mended, plain = ADDED_UP(), ADDED_UP()
    state = MemoryState()
    operator: Operator = MendedAggregate(node, state, ignore_late)
    anew = build_regroup_aggregate(node, MemoryState(), ignore_late)
    add_up(mended, operator.on_start())
    add_up(plain, anew.on_start())
    for step, delta in enumerate(random_deltas(random.Random(seed), 30)):
        if step % 7 == 6:
            operator, state = restarted(node, state)
        add_up(mended, operator.on_batch(0, delta))
        add_up(plain, anew.on_batch(0, delta))
        assert +mended == +plain
        assert min(mended.values(), default=0) >= 0


def restarted(node: n.Aggregate, state: MemoryState) -> tuple[Operator, MemoryState]:
    after = MemoryState()
    after.restore(state.snapshot())
    return MendedAggregate(node, after, ignore_late), after


def test_a_row_that_was_not_the_extreme_costs_no_look_at_the_others() -> None:
    operator = MendedAggregate(extremes(), MemoryState(), ignore_late)
    operator.on_batch(0, rows((1, 1, 1.0), (1, 2, 2.0), (1, 3, 3.0)))
    operator._kept.rows.fetch = lambda keys: pytest.fail("fetched")  # type: ignore[method-assign]

    out = operator.on_batch(0, Delta(rows((1, 2, 2.0)).batch, np.array([-1])))

    assert [delta.batch.column(1).to_pylist() for delta in out] == [[3, 3]]
    assert [delta.batch.column(5).to_pylist() for delta in out] == [[3, 2]]


def rows(*given: tuple[int, int, float]) -> Delta:
    columns = [pa.array(column) for column in zip(*given, strict=True)]
    return Delta(pa.RecordBatch.from_arrays(columns, schema=extremes().child.schema))


def test_a_result_that_stays_as_it_was_is_not_shown_again() -> None:
    every = extremes()
    node = replace(every, calls=every.calls[:1], schema=pa.schema(list(every.schema)[:2]))
    operator = build_operator(node, MemoryState(), {}, ignore_late, lambda: 0)
    assert operator.on_batch(0, rows((1, 5, 0.0)))
    assert not operator.on_batch(0, rows((1, 4, 0.0), (1, 5, 0.0)))


@pytest.mark.parametrize(("kind", "expected"), [(LONG, True), (pa.string(), False)])
def test_only_numbers_tell_when_they_may_be_lost(kind: pa.DataType, expected: bool) -> None:
    call = n.AggregateCall("Max", (Column("c", kind),), kind)
    assert can_mend(bind_calls((call,), pa.schema([("c", kind)]))) is expected
