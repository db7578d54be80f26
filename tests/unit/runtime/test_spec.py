"""Every virtual node has one owner and every source entry one reader, whatever the numbers."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from engine_samples import (
    SOURCE,
    TIMED,
    column,
    count_by,
    finals,
    join,
    scan,
    spec_of,
    timed,
    watermark,
)
from hypothesis import given
from hypothesis import strategies as st

from penstock.plan import nodes as n
from penstock.protocol.names import TaskId
from penstock.runtime.spec import count_tasks, join_stages, share_of
from penstock.state.keys import VIRTUAL_NODES
from penstock.stream.lanes import Lanes


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


def test_stages_with_one_task_each_run_in_one() -> None:
    query = spec_of(count_by(count_by(scan(), 0), 1, id=91)).query

    assert join_stages(query, (1, 1, 1)) == (0, 0, 1)
    assert join_stages(query, (2, 1, 1)) == (2, 0, 1)
    assert join_stages(query, (1, 1, 2)) == (0, 1, 2)
    assert join_stages(query, (2, 2, 2)) == (2, 2, 2), "rows change their owners"


def test_a_stage_runs_with_its_readers_only_if_those_run_together() -> None:
    query = spec_of(join(count_by(scan(), 0), count_by(scan(id=21), 0, id=92))).query
    counts = [1] * len(query.stages)
    assert join_stages(query, counts) == (*[0] * (len(counts) - 1), 1)


def test_what_runs_inside_a_task_is_not_read_from_the_log() -> None:
    spec = spec_of(finals(join(scan("a", id=11), timed("b"))), mode="append", tasks=(0, 0, 1, 2))

    assert [stage.id for stage in spec.running(2)] == [0, 1, 2]
    assert [leaf.stream for leaf in spec.inputs(2) if isinstance(leaf, n.Scan)] == ["a", "b"]
    assert [stage.id for stage in spec.running(3)] == [3]
    assert spec.running_stages == (2, 3)
    assert {task.stage for task in spec.task_ids} == {2, 3}
    assert spec.readers(2) == 2


def test_a_stage_that_shows_static_rows_has_one_task_where_time_or_order_counts() -> None:
    rows = n.Static(schema=scan().schema, id=0)
    both = n.Union(schema=scan().schema, inputs=(scan(), rows))
    query = spec_of(count_by(both, 0)).query
    assert count_tasks(query, 4, {"in": 16}) == (4, 4)
    last = n.AggregateCall("Last", (column(both, 1),), column(both, 1).type)
    fields = [both.schema.field(0), both.schema.field(1).with_name("Last#9")]
    newest = n.Aggregate(
        schema=pa.schema(fields), child=both, keys=(column(both, 0),), calls=(last,)
    )
    assert count_tasks(spec_of(newest).query, 4, {"in": 16}) == (1, 4)
    source = scan(schema=TIMED)
    static = n.Static(schema=source.schema, id=0)
    timed_rows = finals(watermark(n.Union(schema=source.schema, inputs=(source, static))))
    assert count_tasks(spec_of(timed_rows, mode="append").query, 4, {"in": 16}) == (1, 4)


def keyed(*key: str, lanes: int = 16) -> dict[str, Lanes]:
    return {"in": Lanes("in", lanes, key)}


def test_rows_of_a_keyed_source_do_not_move_to_a_group_that_they_are_in() -> None:
    by_both = spec_of(count_by(scan(), 0, 1)).query

    assert join_stages(by_both, (4, 4), keyed("k", "v")) == (0, 4)
    assert join_stages(by_both, (4, 4), keyed("k")) == (0, 4), "by one means by both"
    assert join_stages(by_both, (4, 4), keyed()) == (4, 4)
    by_one = spec_of(count_by(scan(), 0)).query
    assert join_stages(by_one, (4, 4), keyed("k", "v")) == (4, 4), "by both does not mean by one"
    assert join_stages(by_one, (4, 4), keyed("v")) == (4, 4)


def test_lanes_that_are_no_multiple_of_the_tasks_are_no_owners() -> None:
    by_one = spec_of(count_by(scan(), 0)).query
    assert join_stages(by_one, (3, 3), keyed("k")) == (3, 3)
    assert join_stages(by_one, (3, 3), keyed("k", lanes=6)) == (0, 3)
    assert join_stages(by_one, (4, 2), keyed("k")) == (4, 2), "not as many tasks as readers"


def test_both_sides_of_a_join_are_placed_by_the_same_rule() -> None:
    query = spec_of(join(scan("a", id=11), scan("in"))).query
    left, right = Lanes("a", 8, ("k",)), Lanes("in", 16, ("k",))
    assert join_stages(query, (2, 2, 2), {"a": left, "in": right}) == (0, 0, 2)
    assert join_stages(query, (2, 2, 2), {"in": right}) == (2, 0, 2), "the other side moves"
    more = Lanes("in", 16, ("k", "v"))
    assert join_stages(query, (2, 2, 2), {"a": left, "in": more}) == (0, 2, 2)


def test_rows_of_an_initial_state_find_the_rows_of_their_keys() -> None:
    """They go to the owners of their keys, by all columns of them."""
    source = scan()
    initial = n.Static(schema=source.schema, id=0)
    root = n.TransformWithState(
        schema=source.schema, child=source, processor=None, kind=214, time_mode="none",
        keys=(column(source, 0), column(source, 1)), input_schema=SOURCE, output_schema=SOURCE,
        initial=initial,
    )  # fmt: skip
    query = spec_of(root, mode="append").query
    assert join_stages(query, (4, 4), keyed("k")) == (4, 4)
    assert join_stages(query, (4, 4), keyed("k", "v")) == (0, 4)


def test_static_rows_that_a_join_keeps_find_the_rows_of_their_keys() -> None:
    """They are with the owners of their keys, by all columns of them."""
    source = scan()
    kept = n.Static(schema=scan(id=21).schema, id=0)
    both = pa.schema([*kept.schema, *source.schema])
    root = n.Join(
        schema=both, left=kept, right=source, kind="left",
        left_keys=(column(kept, 0), column(kept, 1)),
        right_keys=(column(source, 0), column(source, 1)), null_safe=(False, False),
    )  # fmt: skip
    query = spec_of(root).query
    assert join_stages(query, (4, 4), keyed("k")) == (4, 4)
    assert join_stages(query, (4, 4), keyed("k", "v")) == (0, 4)


def test_tasks_tell_the_time_of_keyed_sources_together() -> None:
    root = finals(timed())
    spec = spec_of(root, mode="append", tasks=(0, 2))
    assert spec.shared_within(1) == (0,)
    assert spec_of(root, mode="append", tasks=(0, 1)).shared_within(1) == ()
    assert spec_of(count_by(scan(), 0), tasks=(0, 2)).shared_within(1) == ()


def test_a_stage_that_is_read_by_what_runs_inside_has_the_tasks_of_its_home_as_readers() -> None:
    spec = spec_of(count_by(count_by(scan(), 0), 1, id=91), tasks=(3, 0, 1))
    assert spec.readers(0) == 1
