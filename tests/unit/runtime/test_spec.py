"""Every virtual node has one owner and every source entry one reader, whatever the numbers."""

from __future__ import annotations

from collections import Counter

import pytest
from engine_samples import count_by, finals, join, scan, spec_of, timed
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.names import TaskId
from penstock.runtime.spec import share_of
from penstock.state.keys import VIRTUAL_NODES


@given(st.integers(1, VIRTUAL_NODES))
def test_every_virtual_node_belongs_to_one_task(tasks: int) -> None:
    spec = spec_of(scan(), tasks=tasks)
    owners = Counter(node for task in spec.task_ids for node in spec.owned(task))
    assert owners == Counter(range(VIRTUAL_NODES))


@given(st.integers(0, 2**62), st.integers(1, 64))
def test_every_source_entry_has_one_reader(lsn: int, tasks: int) -> None:
    assert 0 <= share_of(lsn, tasks) < tasks
    assert share_of(lsn, tasks) == share_of(lsn, tasks)


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 64])
def test_shares_are_even_whatever_stands_between_the_entries(stride: int) -> None:
    shares = Counter(share_of(at * stride, 4) for at in range(4_000))
    assert all(850 < shares[task] < 1_150 for task in range(4)), shares


def test_tasks_are_numbered_by_stage_and_index() -> None:
    spec = spec_of(count_by(scan(), 0), tasks=(1, 2))
    assert spec.task_ids == (TaskId("q", 1, 0, 0), TaskId("q", 1, 1, 0), TaskId("q", 1, 1, 1))
    assert spec.readers(0) == 2
    with pytest.raises(AssertionError, match="nobody reads stage 1"):
        spec.readers(1)


def test_a_stage_tells_time_if_anything_below_it_does() -> None:
    spec = spec_of(finals(join(scan("a", id=11), timed("b"))), mode="append")
    assert [spec.tells_time(stage.id) for stage in spec.query.stages] == [False, True, True, True]
