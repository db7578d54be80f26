"""Laws of the store, in memory and in mapped files, against plain dictionaries."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness.rooms import ROOMS, make_room, states_are
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.state.api import RowSet, Table, Value
from penstock.state.keys import VIRTUAL_NODES, hash_columns, key_objects, virtual_nodes
from penstock.state.memory import MemoryState


@pytest.fixture(params=ROOMS, scope="module", autouse=True)
def room(request: pytest.FixtureRequest) -> Iterator[None]:
    with states_are(make_room(request.param)):
        yield


_SMALL = st.integers(-3, 3)
_FLOATS = st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf, -math.inf])
_TEXTS = st.sampled_from(["", "a", "ä", "𝄞"])
_STRUCT = pa.struct([("p", pa.int32()), ("q", pa.string())])
_WINDOW = pa.struct([("start", pa.timestamp("us")), ("end", pa.timestamp("us"))])
#: Key columns and what they may hold.
_KEYS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int64(), st.sampled_from([-(2**63), -1, 0, 1, 2, 2**63 - 1])),
    "float": (pa.float64(), _FLOATS),
    "text": (pa.string(), _TEXTS),
    "binary": (pa.binary(), st.sampled_from([b"", b"\x00", b"\xff\x00"])),
    "flag": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates()),
    "time": (pa.timestamp("us", tz="UTC"), st.integers(-(2**62), 2**62)),
    "decimal": (pa.decimal128(5, 2), st.decimals(-9, 9, places=2)),
    "list": (pa.list_(pa.int32()), st.lists(_SMALL, max_size=2)),
    "window": (_WINDOW, st.fixed_dictionaries({"start": st.none() | _SMALL, "end": _SMALL})),
    "struct": (_STRUCT, st.fixed_dictionaries({"p": st.none() | _SMALL, "q": st.none() | _TEXTS})),
}
_COLUMNS = {
    "n": pa.int64(),
    "f": pa.float64(),
    "b": pa.bool_(),
    "s": pa.string(),
    "l": pa.list_(pa.int64()),
}
_SHAPES = [
    *((), ("int",), ("float",), ("window", "int", "date", "flag"), ("text", "float")),
    *(("window",), ("struct", "int"), ("list",), tuple(_KEYS)),
]


def _schema(shape: tuple[str, ...]) -> pa.Schema:
    return pa.schema([(name, _KEYS[name][0]) for name in shape])


def _rows(shape: tuple[str, ...]) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    values = [st.none() | _KEYS[name][1] for name in shape]
    return st.lists(st.tuples(*values), min_size=1, max_size=6)


def _arrays(shape: tuple[str, ...], rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    return [
        pa.array([row[place] for row in rows], _KEYS[name][0]) for place, name in enumerate(shape)
    ]


def _make_table(state: MemoryState, shape: tuple[str, ...]) -> Table:
    return state.within("op").table("t", _schema(shape), dict(_COLUMNS))


def _values(number: int) -> dict[str, Any]:
    """A row's columns, all made from one number."""
    listed = None if number % 3 == 0 else list(range(number % 3))
    return {"n": number, "f": number / 2, "b": number % 2 == 1, "s": str(number), "l": listed}


def _write(table: Table, shape: tuple[str, ...], rows: list[tuple[Any, ...]], number: int) -> None:
    slots, _ = table.locate(_arrays(shape, rows))
    unique = np.unique(slots)
    for name, value in _values(number).items():
        dtype = {"n": np.int64, "f": np.float64, "b": np.bool_}.get(name, object)
        column = np.empty(len(unique), dtype)
        for place in range(len(unique)):
            column[place] = value
        table.write(name, unique, column)
    table.touch(unique)


def _contents(table: Table) -> dict[Any, Any]:
    slots = table.slots()
    keys = key_objects(table.keys(slots), len(slots))
    columns = [table.read(name, slots).tolist() for name in _COLUMNS]
    return dict(zip(keys, zip(*columns, strict=True), strict=True))


def _copies(state: MemoryState, shape: tuple[str, ...]) -> Table:
    """The table as a snapshot restores it."""
    restored = MemoryState()
    restored.restore(state.snapshot())
    return _make_table(restored, shape)


@pytest.mark.parametrize("shape", _SHAPES, ids="-".join)
@settings(max_examples=25)
@given(data=st.data())
def test_a_table_is_a_dictionary_and_so_are_its_copies(
    shape: tuple[str, ...], data: st.DataObject
) -> None:
    state, follower = MemoryState(), MemoryState()
    table, copy = _make_table(state, shape), _make_table(follower, shape)
    model: dict[Any, Any] = {}
    for number in range(data.draw(st.integers(1, 8))):
        rows = data.draw(_rows(shape)) if shape else [()]
        keys = key_objects(_arrays(shape, rows), len(rows))
        if data.draw(st.integers(0, 3)):
            _write(table, shape, rows, number)
            model |= {key: tuple(_values(number).values()) for key in keys}
        else:
            slots = table.find(_arrays(shape, rows))
            assert (slots >= 0).tolist() == [key in model for key in keys]
            table.delete(np.unique(slots[slots >= 0]))
            for key in keys:
                model.pop(key, None)
        assert _contents(table) == model
        assert len(table) == len(model)
        if data.draw(st.booleans()):
            for changes in state.take_changes().values():
                follower.apply(changes)
            assert _contents(copy) == model
            assert not state.take_changes()
    assert _contents(_copies(state, shape)) == model


def test_a_snapshot_holds_each_key_under_its_virtual_node() -> None:
    state = MemoryState()
    table = _make_table(state, ("int",))
    keys = pa.array(range(1000), pa.int64())
    slots, is_new = table.locate([keys])
    assert is_new.all()
    table.touch(slots)
    homes = virtual_nodes(hash_columns([keys], 1000))
    snapshot = state.snapshot()
    assert set(snapshot) == set(homes.tolist())
    for node, kept in snapshot.items():
        (part,) = kept
        held = set(part.rows.column(0).to_pylist())
        assert held == set(np.flatnonzero(homes == node).tolist())
    assert max(snapshot) < VIRTUAL_NODES
    half = MemoryState()
    half.restore({node: kept for node, kept in snapshot.items() if node % 2})
    assert len(_make_table(half, ("int",))) == int((homes % 2 == 1).sum())


def test_a_slot_of_a_deleted_row_starts_anew() -> None:
    table = _make_table(MemoryState(), ("int",))
    _write(table, ("int",), [(1,), (2,)], 5)
    table.delete(table.find([pa.array([1])]))
    slots, is_new = table.locate([pa.array([3, 2, 3])])
    assert is_new.tolist() == [True, False, True]
    assert table.read("n", slots).tolist() == [0, 5, 0]
    assert table.read("s", slots).tolist() == [None, "5", None]


def test_row_sets_and_values_survive_too() -> None:
    """What rows remain in a row set is in tests/property/test_row_set_laws.py."""
    schema = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us"))])
    times = pa.array([5, 6, 7], pa.timestamp("us"))

    def parts(state: MemoryState) -> tuple[RowSet, Value]:
        return state.within("op").row_set("r", schema, [0], 1), state.value("largest")

    state, follower, restored = MemoryState(), MemoryState(), MemoryState()
    rows, value = parts(state)
    assert value.get() is None

    rows.insert(pa.record_batch([pa.array([1, 2, 3]), times], schema=schema), np.array([1, 2, 1]))
    rows.evict(5)
    value.set(7)
    for changes in state.take_changes().values():
        follower.apply(changes)
    restored.restore(state.snapshot())

    assert not state.take_changes()
    for kept, copy in ((rows, value), parts(follower), parts(restored)):
        found, weights = kept.rows()
        held = dict(zip(found.column(0).to_pylist(), weights.tolist(), strict=True))
        assert (held, copy.get()) == ({2: 2, 3: 1}, 7)
