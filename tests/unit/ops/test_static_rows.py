"""Static rows that a query shows by themselves, when its tasks begin at different times."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa

from penstock.ops.api import Delta
from penstock.ops.static_rows import KeepingJoin, StaticSource
from penstock.plan import nodes as n
from penstock.plan.exprs import Column
from penstock.state.keys import VIRTUAL_NODES
from penstock.state.memory import MemoryState

TABLE = pa.table({"id#1": pa.array([*range(40), 3, 3, None]), "n#2": ["a", "b", "c"] * 14 + [None]})
#: The same rows, as Spark may read them when the query is started again.
AGAIN = TABLE.take(pa.array(range(len(TABLE) - 1, -1, -1)))


def half(number: int) -> MemoryState:
    return MemoryState(frozenset(range(number, VIRTUAL_NODES, 2)))


def rows_of(deltas: list[Delta]) -> Counter[tuple[object, ...]]:
    total: Counter[tuple[object, ...]] = Counter()
    for delta in deltas:
        weights = delta.all_weights().tolist()
        for row, weight in zip(delta.batch.to_pylist(), weights, strict=True):
            total[tuple(row.values())] += weight
    return total


def test_tasks_that_read_a_table_in_different_orders_show_every_row_once() -> None:
    """One has committed its first rows when all are stopped, and the other has not."""
    shown = StaticSource(lambda: TABLE, half(0)).on_start()
    shown += StaticSource(lambda: AGAIN, half(1)).on_start()
    assert rows_of(shown) == Counter(tuple(row.values()) for row in TABLE.to_pylist())


def test_rows_without_a_hash_or_any_column_are_shown_by_one_task() -> None:
    intervals = pa.table({"i#1": pa.array([pa.MonthDayNano([1, 2, 3])] * 3)})
    for table in (intervals, TABLE.select([])):
        both = [StaticSource(lambda: table, half(at)).on_start() for at in (0, 1)]  # noqa: B023
        assert sum(len(delta) for deltas in both for delta in deltas) == table.num_rows


def test_kept_rows_of_tasks_that_read_a_table_in_different_orders_are_told_apart() -> None:
    """After their virtual nodes came together in one task."""
    static = n.Static(schema=TABLE.schema, id=0)
    stream = n.Scan(schema=pa.schema([("v#3", pa.int64())]), stream="t", columns=("v",))
    node = n.Join(
        schema=TABLE.schema, left=static, right=stream, kind="anti",
        left_keys=(Column("id#1", pa.int64()),), right_keys=(Column("v#3", pa.int64()),),
        null_safe=(False,),
    )  # fmt: skip
    shown: list[Delta] = []
    state = MemoryState()
    join = KeepingJoin(node, lambda: TABLE, 1, state)
    for number, table in enumerate((TABLE, AGAIN)):
        before = half(number)
        shown += KeepingJoin(node, lambda: table, 1, before).on_start()  # noqa: B023
        state.restore(before.snapshot())
    assert rows_of(shown) == Counter(tuple(row.values()) for row in TABLE.to_pylist())
    arrived = pa.record_batch([pa.array(np.arange(40))], schema=stream.schema)
    shown += join.on_batch(1, Delta(arrived))
    assert rows_of(shown).most_common(1) == [((None, None), 1)]
    shown += join.on_batch(1, Delta(arrived, np.full(40, -1)))
    assert rows_of(shown) == Counter(tuple(row.values()) for row in TABLE.to_pylist())
