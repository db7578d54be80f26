"""Rows of a shared source are let go once, in the order of the source, however they came."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest
from engine_samples import LONG, Wired, column, count_by, pairs, plain, scan, spec_of
from hypothesis import given
from hypothesis import strategies as st

from penstock.ids import Lsn
from penstock.log.records import NewEntry
from penstock.ops.api import Delta
from penstock.ops.partial import buffer_columns
from penstock.plan import nodes as n
from penstock.plan.rewrites import rewrite
from penstock.plan.rewrites.aim import Aim
from penstock.protocol.names import TaskId
from penstock.runtime.row_merge import RowMerge, place_of
from penstock.runtime.task_core import Poisoned
from penstock.stream.lanes import Lanes


def rows(*values: int) -> Delta:
    return Delta(pa.RecordBatch.from_pydict({"v": list(values)}))


def values(released: list[tuple[Lsn, Delta]]) -> list[int]:
    return [value for _, delta in released for value in delta.batch.column(0).to_pylist()]


def places(*lsns: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([place_of(Lsn(lsn), 0) for lsn in lsns], np.int64)


def test_rows_wait_until_all_have_looked_and_go_in_order() -> None:
    merge = RowMerge(Lsn(0))
    merge.add(Lsn(20), rows(3, 7), places(3, 7), Lsn(20))
    merge.add(Lsn(30), rows(1, 5), places(1, 5), Lsn(30))
    assert values(merge.release(Lsn(3))) == [1]
    assert merge.held_from == 20 and len(merge) == 3
    assert values(merge.release(Lsn(6))) == [3, 5]
    assert values(merge.release(Lsn(6))) == []
    assert values(merge.release(Lsn(8))) == [7]
    assert merge.held_from is None


def test_rows_of_one_place_stay_as_they_are() -> None:
    merge = RowMerge(Lsn(0))
    merge.add(Lsn(20), rows(*range(25)), places(*[4] * 25), Lsn(20))
    merge.add(Lsn(21), rows(*range(25, 50)), places(*[2] * 25), Lsn(21))
    assert values(merge.release(Lsn(9))) == [*range(25, 50), *range(25)]


def test_rows_of_each_entry_can_be_let_go_with_its_own() -> None:
    merge = RowMerge(Lsn(0))
    merge.add(Lsn(10), rows(3, 7), places(3, 7), Lsn(21))
    merge.add(Lsn(10), rows(1, 5, 6), places(1, 5, 6), Lsn(22))
    released = merge.release(Lsn(9), apart=True)
    assert [(lsn, values([(lsn, delta)])) for lsn, delta in released] == [
        (22, [1]),
        (21, [3]),
        (22, [5, 6]),
        (21, [7]),
    ]


def test_rows_that_were_let_go_before_do_not_count_again() -> None:
    merge = RowMerge(Lsn(5))
    merge.add(Lsn(20), rows(3, 7), places(3, 7), Lsn(20))
    merge.add(Lsn(21), rows(1, 2), places(1, 2), Lsn(21))
    assert values(merge.release(Lsn(9))) == [7]


@given(st.integers(0, 2**40), st.integers(0, 2**22), st.integers(0, 2**22))
def test_places_are_in_the_order_in_which_entries_count(at: int, first: int, second: int) -> None:
    first, second = sorted((first, second))
    assert place_of(Lsn(at), first) <= place_of(Lsn(at), second) < place_of(Lsn(at + 1), 0)
    assert place_of(Lsn(at), second) >> 20 == at


def last_of_each(tasks: tuple[int, int]) -> Wired:
    """By key the last value, and all of them, by tasks that share the source."""
    counted = count_by(scan(), 0)
    value = column(counted.child, 1)
    calls = (
        n.AggregateCall("Last", (value,), pa.int64()),
        n.AggregateCall("CollectList", (value,), pa.list_(pa.int64())),
    )
    schema = pa.schema(
        [counted.schema.field(0), ("last#90", pa.int64()), ("all#91", calls[1].type)]
    )
    root = n.Aggregate(schema=schema, child=counted.child, keys=counted.keys, calls=calls)
    return Wired(spec_of(root, tasks=tasks))


def test_tasks_that_share_a_source_in_any_turn_give_what_one_gives() -> None:
    for seed in range(20):
        chance = Random(seed)
        wired = last_of_each((3, 2))
        wanted: dict[int, list[int]] = {}
        for number in range(30):
            wired.feed(pairs((number % 4, number)))
            wanted.setdefault(number % 4, []).append(number)
            for task in chance.sample(list(wired.cores), 2):
                if chance.random() < 0.15:
                    wired.start(task)
                wired.take(task)
                wired.commit(task)
        wired.settle()
        assert plain(wired.result()) == [(key, all[-1], all) for key, all in sorted(wanted.items())]


def test_rows_that_wait_are_counted_once_and_read_again() -> None:
    wired = last_of_each((2, 1))
    wired.settle()
    for number in range(8):
        wired.feed(pairs((1, number)))
    ahead, behind = wired.task(0, 0), wired.task(0, 1)
    wired.take(ahead)
    wired.commit(ahead)
    reader = wired.task(1)
    wired.take(reader)
    wired.core(1).refresh()
    wired.commit(reader)
    marker = wired.last_marker(1)
    assert marker.rows_in > 0 and marker.rows_out == 0
    assert marker.reread_from is not None and marker.reread_from < marker.position
    assert marker.needs_from <= marker.reread_from
    wired.start(reader)
    wired.take(behind)
    wired.commit(behind)
    wired.settle()
    assert plain(wired.result()) == [(1, 7, list(range(8)))]
    assert wired.last_marker(1).rows_in == 8


def held_back() -> tuple[Wired, TaskId]:
    """A reader whose marker says that a row waits, for a task that has not looked yet."""
    wired = last_of_each((2, 1))
    wired.settle()
    wired.feed(pairs((1, 1)), lanes=Lanes("in"))
    holder = next(
        i for i in range(2) if wired.spec.takes(wired.task(0, i), "in", len(wired.log) - 1)
    )
    wired.take(wired.task(0, holder))
    wired.commit(wired.task(0, holder))
    reader = wired.task(1)
    wired.take(reader)
    wired.core(1).refresh()
    wired.commit(reader)
    assert wired.last_marker(1).reread_from is not None
    return wired, reader


def test_a_commit_before_rows_were_read_again_does_not_forget_them() -> None:
    """Time may pass, and something be due, before an instance has read anything."""
    wired, reader = held_back()
    core = wired.start(reader)
    core._next.is_due = True
    wired.commit(reader)
    marker = wired.last_marker(1)
    assert marker.reread_from is not None, "the next instance still has to read them"
    wired.start(reader)
    wired.settle()
    assert plain(wired.result()) == [(1, 1, [1])]


def test_rows_that_make_a_stage_fail_again_are_the_same_failure() -> None:
    """However much was appended meanwhile: a task that looks for rows to blame must end."""
    wired, reader = held_back()
    failures = []
    for _ in range(3):
        core = wired.start(reader)

        def fail(place: int, delta: Delta) -> list[Delta]:
            raise ValueError("user code")

        core._pipeline.push = fail  # type: ignore[method-assign]
        wired.take(wired.task(0, 0))
        wired.take(wired.task(0, 1))
        wired.commit(wired.task(0, 0))
        wired.commit(wired.task(0, 1))
        wired.append("somebody", 1, [NewEntry(b"", ("elsewhere",))])
        with pytest.raises(Poisoned) as caught:
            wired.take(reader)
        failures.append(caught.value.lsn)
    assert len(set(failures)) == 1


@pytest.mark.parametrize("tasks", [1, 2])
def test_what_depends_on_order_is_not_folded_by_each_task(tasks: int) -> None:
    """The last of all rows, without a key: the task that has it may be the faster one."""
    source = scan()
    value = column(source, 1)
    calls = (
        n.AggregateCall("Last", (value,), LONG),
        n.AggregateCall("CollectList", (value,), pa.list_(LONG)),
    )
    schema = pa.schema([("last#90", LONG), ("all#91", calls[1].type)])
    plan = n.Aggregate(schema=schema, child=source, keys=(), calls=calls)
    root = rewrite(plan, Aim("update", buffer_columns))
    wired = Wired(spec_of(root, tasks=(tasks, 1)))
    wired.settle()
    for number in range(8):
        wired.feed(pairs((1, number)))
    newest = len(wired.log) - 1
    readers = [wired.task(0, index) for index in range(tasks)]
    for task in sorted(readers, key=lambda task: not wired.spec.takes(task, "in", newest)):
        wired.take(task)
        wired.commit(task)
    wired.settle()

    assert plain(wired.result()) == [(7, list(range(8)))]
