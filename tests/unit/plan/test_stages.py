"""Rows that meet in an operator's state sit by the same keys; stages are cut nowhere else."""

from __future__ import annotations

import pyarrow as pa
from plan_samples import AUCTIONS, BIDS, column, count_by, greater, join, long, scan, where

from penstock.plan import nodes as n
from penstock.plan.stages import StageInput, cut, partitioning


def names(node: n.Node) -> tuple[str, ...]:
    return tuple(f"c{index}" for index in range(len(node.schema)))


def test_a_query_without_keys_is_one_stage() -> None:
    root = where(scan(), greater(column(BIDS, "price#2"), long(5)))
    query = cut(root, "append", names(root))
    assert len(query.stages) == 1
    assert query.stages[0].keys is None
    assert not query.stages[0].changing
    assert query.streams == ("bids",)


def test_an_aggregation_reads_rows_that_sit_by_its_keys() -> None:
    root = count_by(scan(), "auction#1")
    query = cut(root, "update", names(root))
    first, last = query.stages
    assert first.keys == (column(BIDS, "auction#1"),)
    assert isinstance(last.root.children[0], StageInput)
    assert last.changing
    assert not first.changing


def test_rows_that_sit_by_some_of_the_keys_need_not_move_again() -> None:
    inner = count_by(scan(), "auction#1", "price#2")
    root = count_by(inner, "auction#1")
    again = count_by(count_by(scan(), "auction#1"), "auction#1", "Count#90")
    assert len(cut(root, "update", names(root)).stages) == 3, "by both does not mean by one"
    assert len(cut(again, "update", names(again)).stages) == 2, "by one means by both"


def test_an_aggregation_of_everything_meets_in_one_virtual_node() -> None:
    root = count_by(scan())
    first, _ = cut(root, "update", names(root)).stages
    assert first.keys == ()


def test_both_sides_of_a_join_are_placed_by_the_same_rule() -> None:
    counted = count_by(scan(), "auction#1")
    root = join(counted, scan("auctions", AUCTIONS), "auction#1", "id#11")
    stages = cut(root, "update", names(root)).stages
    assert [stage.keys for stage in stages] == [
        (column(BIDS, "auction#1"),),
        (column(AUCTIONS, "id#11"),),
        None,
    ]
    assert not isinstance(stages[2].root.children[0], StageInput), "counts already sit by auction"


def test_a_join_with_a_static_table_moves_nothing() -> None:
    static = n.Static(schema=AUCTIONS, id=0)
    root = join(scan(), static, "auction#1", "id#11")
    assert len(cut(root, "append", names(root)).stages) == 1


def test_a_projection_that_drops_the_key_forgets_where_rows_sit() -> None:
    counted = count_by(scan(), "auction#1")
    stage = cut(counted, "update", names(counted)).stages[1]
    kept = n.Project(
        schema=pa.schema([("renamed#9", pa.int64())]),
        child=stage.root,
        exprs=(column(BIDS, "auction#1"),),
    )
    dropped = n.Project(
        schema=pa.schema([("count#9", pa.int64())]),
        child=stage.root,
        exprs=(column(counted.schema, "Count#90"),),
    )
    assert partitioning(kept) == (column(kept.schema, "renamed#9"),)
    assert partitioning(dropped) is None
