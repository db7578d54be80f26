"""Window functions and top-n over rows that come and go: as if computed anew every time."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from engine_samples import LONG, scan

from penstock.ops.api import Delta, ignore_late
from penstock.ops.top_n import ChangingWindow
from penstock.ops.windows import WindowFunctions
from penstock.plan import nodes as n
from penstock.plan.exprs import Column
from penstock.state.keys import key_objects
from penstock.state.memory import MemoryState

ROWS = pa.schema([("k", LONG), ("by", LONG), ("x", LONG)])
CHILD = scan("s", ROWS)
KEY, BY, VALUE = (Column(field.name, field.type) for field in CHILD.schema)
ORDER = (n.Order(BY, descending=False, nulls_first=True),)
LARGEST = n.AggregateCall("Max", (VALUE,), LONG)
CALLS = (
    n.WindowCall("RowNumber", (), pa.int32()),
    n.WindowCall("Max", (), LONG, lower=-1, upper=0, aggregate=LARGEST),
)
SHOWN = pa.schema([*CHILD.schema, ("place", pa.int32()), ("largest", LONG)])
NODES = {
    "window": n.Window(schema=SHOWN, child=CHILD, partition=(KEY,), order=ORDER, calls=CALLS),
    "one partition": n.Window(schema=SHOWN, child=CHILD, partition=(), order=ORDER, calls=CALLS),
    "top 2": n.TopN(
        schema=SHOWN,
        child=CHILD,
        partition=(KEY,),
        order=ORDER,
        function="RowNumber",
        limit=2,
        calls=CALLS,
    ),
}


def counted(batch: pa.RecordBatch, weights: Any) -> Counter[Any]:
    total: Counter[Any] = Counter()
    rows = key_objects(batch.columns, batch.num_rows)
    for row, weight in zip(rows, weights.tolist(), strict=True):
        total[row] += weight
    return Counter({row: weight for row, weight in total.items() if weight})


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [pa.array([row[place] for row in rows], LONG) for place in range(3)]
    return pa.RecordBatch.from_arrays(columns, schema=CHILD.schema)


def all_anew(node: n.Window | n.TopN, there: list[tuple[Any, ...]]) -> Counter[Any]:
    rows = batch_of(there)
    partitions = [row[0] if node.partition else 0 for row in there]
    groups = np.array([0 if key is None else key for key in partitions], np.int64)
    shown = WindowFunctions(node).compute(rows, None, groups)
    return counted(shown, np.ones(shown.num_rows, np.int64))


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
@pytest.mark.parametrize("seed", range(6))
def test_what_is_shown_is_what_all_rows_give(node: n.Window | n.TopN, seed: int) -> None:
    rng = random.Random(seed)
    state = MemoryState()
    operator = ChangingWindow(node, state, ignore_late)
    there: list[tuple[Any, ...]] = []
    total: Counter[Any] = Counter()
    for step in range(40):
        rows, weights = [], []
        for _ in range(rng.randint(1, 6)):
            if there and rng.random() < 0.5:
                rows.append(there.pop(rng.randrange(len(there))))
                weights.append(-1)
            else:  # few values: many rows are equal, and many are peers
                rows.append((rng.choice([1, 2, None]), rng.choice([0, 1, None]), rng.randint(0, 2)))
                times = rng.choice([1, 1, 2])
                weights.append(times)
                there += [rows[-1]] * times
        if step % 9 == 8:
            before, state = state, MemoryState()
            state.restore(before.snapshot())
            operator = ChangingWindow(node, state, ignore_late)
        for delta in operator.on_batch(0, Delta(batch_of(rows), np.array(weights, np.int64))):
            for row, weight in counted(delta.batch, delta.all_weights()).items():
                total[row] += weight

        assert Counter({row: w for row, w in total.items() if w}) == all_anew(node, there)
