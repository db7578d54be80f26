"""Rows that are in files still are found by every key that the table's index would find."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from simulation.pipeline.store import SimFolder

from penstock.state import checkpoint_store
from penstock.state.api import Table
from penstock.state.checkpoint_store import CheckpointStore
from penstock.state.keys import normalise_floats
from penstock.state.memory import MemoryState
from penstock.state.stores.api import Increment, Reference

LOG = "0123456789abcdef" * 2
TASK = "hot.1/0/2"
COLUMNS = {"n": pa.int64()}
TIME = pa.timestamp("us", "UTC")
WINDOW = pa.struct([("start", TIME), ("end", TIME)])
#: As a batch may have it: none of its times is null.
EXACT = pa.struct([pa.field("start", TIME, nullable=False), pa.field("end", TIME, nullable=False)])
FLOATS = [0.0, -0.0, 1.5, -1.5, float("nan"), -float("nan"), float("inf"), None]
INTS = [0, 1, -1, 127, -128, None]
WINDOWS = [{"start": n, "end": n and n + 1} for n in (0, 5, -7, None)] + [None]
#: Types as the table has them and as a batch has them, and values of keys.
CASES: dict[str, list[tuple[pa.DataType, pa.DataType, list[Any]]]] = {
    "double": [(pa.float64(), pa.float64(), FLOATS)],
    "float and short": [(pa.float32(), pa.float32(), FLOATS), (pa.int16(), pa.int16(), INTS)],
    "boolean": [(pa.bool_(), pa.bool_(), [True, False, None])],
    "byte, of a wider batch": [(pa.int8(), pa.int64(), INTS)],
    "date and time": [
        (pa.date32(), pa.date32(), INTS),
        (TIME, TIME, INTS),
        (pa.time64("ns"), pa.time64("ns"), [0, 1, None]),
    ],
    "window": [(WINDOW, WINDOW, WINDOWS)],
    "window without nulls in a batch": [(WINDOW, EXACT, WINDOWS[:3])],
    "window and double": [(WINDOW, WINDOW, WINDOWS), (pa.float64(), pa.float64(), FLOATS)],
}

Columns = Sequence[tuple[pa.DataType, pa.DataType, list[Any]]]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_store, "LAZY_BYTES_MIN", 0)
    monkeypatch.setattr("penstock.state.checkpoint_format.SECTION_BYTES", 300)


def _state(columns: Columns, partition: Sequence[int]) -> tuple[MemoryState, Table]:
    state = MemoryState()
    keys = pa.schema([(f"k{at}", kept) for at, (kept, _, _) in enumerate(columns)])
    return state, state.table("t", keys, COLUMNS, partition, is_by_key=True)


def _keys(columns: Columns, random: Random) -> list[pa.Array]:
    count = random.randrange(1, 9)
    drawn = [pa.array(random.choices(values, k=count), kind) for _, kind, values in columns]
    return [normalise_floats(column) for column in drawn]


def _written(columns: Columns, partition: Sequence[int], random: Random) -> tuple[Any, Reference]:
    files = CheckpointStore("memory", LOG, SimFolder())
    state, table = _state(columns, partition)
    reference: Reference | None = None
    for lsn in range(10, 40, 10):
        for _ in range(4):
            slots = np.unique(table.locate(_keys(columns, random))[0])
            table.write("n", slots, np.full(len(slots), random.randrange(1000)))
            table.touch(slots)
        slots = np.unique(table.find(_keys(columns, random)))
        table.delete(slots[slots >= 0])
        base = None if reference is None else lsn - 10
        changes = list(state.take_log())
        reference = files.put(Increment(TASK, base, lsn, 1, "f", state.parts(), changes), reference)
    assert reference is not None
    return files, reference


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_key_is_found_in_files(name: str) -> None:
    columns, random = CASES[name], Random(7)
    for seed in range(6):
        partition = list(range(len(columns)))[: 1 + seed % len(columns)]
        files, reference = _written(columns, partition, random)
        whole, all_read = _state(columns, partition)
        whole.apply(list(files.load(reference).changes))
        lazy, unread = _state(columns, partition)
        loaded = files.load_lazily(reference, lazy.tables_that_may_wait())
        lazy.lend(loaded.unread)
        for _ in range(10):
            keys = _keys(columns, random)
            found, expected = unread.find(keys), all_read.find(keys)
            assert (found < 0).tolist() == (expected < 0).tolist()
            kept = expected >= 0
            values = unread.read("n", found[kept]), all_read.read("n", expected[kept])
            assert values[0].tolist() == values[1].tolist()
            assert unread.locate(keys)[1].tolist() == all_read.locate(keys)[1].tolist()
        assert len(unread) == len(all_read)
