"""What a successor is made ready with: rows of its virtual nodes, whoever has them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.state.api import Change
from penstock.state.keys import hash_columns, virtual_nodes
from penstock.state.memory import MemoryState
from penstock.state.memory_row_set import MemoryRowSet

ROWS = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])
KEYS = np.arange(40)
NODES = virtual_nodes(hash_columns([pa.array(KEYS)], len(KEYS)))
EVEN = frozenset(range(0, 64, 2))
ODD = frozenset(range(1, 64, 2))


def rows(keys: list[int], us: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(keys), pa.array([us] * len(keys), ROWS.field(1).type)], ROWS)


def changes_of(keys: list[int], us: int, evicted_us: int | None = None) -> tuple[Change, ...]:
    """Of a task that took these rows in, and evicted up to a time."""
    state = MemoryState()
    kept = state.row_set("rows", ROWS, [0], event_time=1)
    kept.insert(rows(keys, us), None)
    if evicted_us is not None:
        state.take_log()
        kept.evict(evicted_us)
    return state.take_log()


def heir() -> tuple[MemoryState, MemoryRowSet]:
    state = MemoryState(frozenset(range(64)))
    kept = state.row_set("rows", ROWS, [0], event_time=1)
    assert isinstance(kept, MemoryRowSet)
    return state, kept


def keys_in(kept: MemoryRowSet) -> list[int]:
    return sorted(kept.rows()[0].column(0).to_pylist())


def test_of_each_predecessor_the_rows_of_its_virtual_nodes_are_taken() -> None:
    state, kept = heir()
    everything = changes_of(KEYS.tolist(), 5)
    state.apply(everything, EVEN)
    assert keys_in(kept) == KEYS[NODES % 2 == 0].tolist()
    state.apply(everything, ODD)
    assert keys_in(kept) == KEYS.tolist(), "no row is taken twice"


def test_what_one_predecessor_evicts_strikes_no_row_of_another() -> None:
    state, kept = heir()
    even, odd = (KEYS[which == NODES % 2].tolist() for which in (0, 1))
    state.apply(changes_of(even, 5), EVEN)
    state.apply(changes_of(odd, 5), ODD)
    state.apply(changes_of(even, 7), EVEN)
    state.apply(changes_of(even, 5, evicted_us=6), EVEN)
    assert keys_in(kept) == sorted(even + odd), "rows of a later time stay, too"
    state.apply(changes_of(even, 7, evicted_us=7), EVEN)
    assert keys_in(kept) == odd
    state.apply(changes_of(odd, 5, evicted_us=5), ODD)
    assert keys_in(kept) == [] and kept.fetch([pa.array(odd)])[0].tolist() == []
    state.apply(changes_of(even, 5), EVEN)
    assert keys_in(kept) == even, "a row may come again"


def test_a_change_waits_for_what_it_changes_with_its_virtual_nodes() -> None:
    state = MemoryState(frozenset(range(64)))
    state.apply(changes_of(KEYS.tolist(), 5), ODD)
    kept = state.row_set("rows", ROWS, [0], event_time=1)
    assert isinstance(kept, MemoryRowSet)
    assert keys_in(kept) == KEYS[NODES % 2 == 1].tolist()
