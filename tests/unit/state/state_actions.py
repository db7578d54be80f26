"""A small store with every kind of part, things that may happen to it, and what it then holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from penstock.state.api import RowSet, Table, Value
from penstock.state.keys import key_objects
from penstock.state.memory import MemoryState

_TIME = pa.timestamp("us")
_ROW = pa.schema([("k", pa.int64()), ("t", _TIME), ("v", pa.string())])
_COLUMNS = {"n": pa.int64(), "s": pa.string(), "l": pa.list_(pa.int64())}

_ROWS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.none() | st.integers(0, 9),
        st.sampled_from([None, "", "a", "ä"]),
        st.sampled_from([1, 1, 2, -1]),
    ),
    min_size=1,
    max_size=4,
)
_KEYS = st.lists(st.none() | st.integers(0, 5), min_size=1, max_size=4)
#: What may happen: a verb, then what it is done to. TAKE is when changes are asked for.
TAKE = ("take", None)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), _KEYS),
        st.tuples(st.just("make"), _KEYS),
        st.tuples(st.just("delete"), _KEYS),
        st.tuples(st.just("insert"), _ROWS),
        st.tuples(st.just("evict"), st.integers(0, 9)),
        st.tuples(st.just("set"), st.integers(-(2**63), 2**63 - 1)),
        st.just(TAKE),
    ),
    max_size=14,
)


@dataclass(frozen=True, slots=True)
class Store:
    """A state and its parts."""

    state: MemoryState
    numbers: Table
    texts: Table
    one: Table
    rows: RowSet
    value: Value


def make_parts(state: MemoryState) -> Store:
    inner = state.within("op")
    return Store(
        state,
        inner.table("numbers", pa.schema([("k", pa.int64())]), dict(_COLUMNS)),
        inner.table("texts", pa.schema([("k", pa.string())]), {}),
        inner.table("one", pa.schema([]), {"n": pa.int64()}),
        inner.row_set("rows", _ROW, [0], 1),
        inner.value("largest"),
    )


def make_store() -> Store:
    return make_parts(MemoryState())


def do(store: Store, action: tuple[str, Any], number: int) -> None:
    """One action; `number` makes what is written differ from what was before."""
    verb, given = action
    if verb in ("put", "make"):
        for table, keys in _tables(store, given):
            slots, _ = table.locate(keys)
            if verb == "put":
                _write(table, np.unique(slots), number)
    elif verb == "delete":
        for table, keys in _tables(store, given):
            found = np.unique(table.find(keys))
            table.delete(found[found >= 0])
    elif verb == "insert":
        store.rows.insert(make_rows([row[:3] for row in given]), np.array([r[3] for r in given]))
    elif verb == "evict":
        store.rows.evict(given)
    elif verb == "set":
        store.value.set(given)


def make_rows(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    arrays = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(_ROW)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ROW)


def _tables(store: Store, keys: list[int | None]) -> list[tuple[Table, list[pa.Array]]]:
    texts = [None if key is None else f"key {key}" for key in keys]
    return [
        (store.numbers, [pa.array(keys, pa.int64())]),
        (store.texts, [pa.array(texts, pa.string())]),
        (store.one, []),
    ]


def _write(table: Table, slots: Any, number: int) -> None:
    values = {"n": number, "s": f"text {number}", "l": [number, number + 1]}
    for name, value in values.items():
        try:
            table.read(name, slots)
        except KeyError:
            continue
        column = np.empty(len(slots), np.int64 if name == "n" else object)
        for place in range(len(slots)):
            column[place] = value
        table.write(name, slots, column)
    table.touch(slots)


def contents(store: Store) -> Any:
    """All that a store holds, in a form that can be compared."""
    tables = []
    for table, names in ((store.numbers, _COLUMNS), (store.texts, {}), (store.one, {"n": 0})):
        slots = table.slots()
        columns = [table.read(name, slots).tolist() for name in names]
        keys = key_objects(table.keys(slots), len(slots))
        tables.append({key: [c[i] for c in columns] for i, key in enumerate(keys)})
    rows, weights = store.rows.rows()
    counted: Counter[Any] = Counter()
    for key, weight in zip(key_objects(rows.columns, rows.num_rows), weights.tolist(), strict=True):
        counted[key] += weight
    return tables, {key: n for key, n in counted.items() if n}, store.value.get()
