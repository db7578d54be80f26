"""Rows expire when their time has passed, and only few of the others are looked at for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ops import watermarks
from penstock.ops.watermarks import Expiry
from penstock.state.memory import MemoryState

KEYS = pa.schema([("k", pa.int64())])
#: Keys with their times, whether the process begins anew, or how far time has come.
STEPS = st.lists(
    st.dictionaries(st.integers(0, 40) | st.none(), st.integers(0, 30), min_size=1, max_size=12)
    | st.integers(0, 30)
    | st.just("restart"),
    max_size=20,
)


def make_table() -> Any:
    return MemoryState().table("t", KEYS, {"time": pa.int64()})


@given(STEPS)
def test_what_passes_is_what_a_look_at_all_rows_finds(steps: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watermarks, "_BLOCK_SLOTS", 4)
        table, times = make_table(), dict[int | None, int]()
        expiry = Expiry(table, "time")
        for step in steps:
            if step == "restart":
                expiry = Expiry(table, "time")
            elif isinstance(step, dict):
                slots, _ = table.locate([pa.array(list(step), pa.int64())])
                expiry.note(slots, np.array(list(step.values())))
                times |= step
            else:
                gone = expiry.passed(step)
                assert len(set(gone.tolist())) == len(gone)
                found = set(table.keys(gone)[0].to_pylist()) if len(gone) else set()
                assert found == {key for key, time in times.items() if time <= step}
                table.delete(gone)
                times = {key: time for key, time in times.items() if time > step}


def test_rows_that_came_much_later_are_not_looked_at() -> None:
    table = make_table()
    expiry = Expiry(table, "time")
    assert not len(expiry.passed(0))
    numbers = np.arange(100_000)
    slots, _ = table.locate([pa.array(numbers)])
    expiry.note(slots, numbers)
    read: list[int] = []
    original = table.read

    def count(name: str, slots: Any) -> Any:
        read.append(len(slots))
        return original(name, slots)

    table.read = count
    for bound in range(0, 2_000, 10):
        table.delete(expiry.passed(bound))

    assert len(table) == 100_000 - 1_991
    assert max(read) <= 2 * watermarks._BLOCK_SLOTS
