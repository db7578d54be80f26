"""Rows that meet in an operator's state sit by the same keys; stages are cut nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest
from plan_samples import AUCTIONS, BIDS, column, count_by, greater, join, long, scan, where

from penstock.plan import nodes as n
from penstock.plan.exprs import Call, Column, Literal
from penstock.plan.nodes import StageInput
from penstock.plan.sharing import _Numbering
from penstock.plan.stages import Query, cut, partitioning


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


#: The same stream, read a second time: Catalyst gives its columns new ids.
AGAIN = pa.schema([field.with_name(f"{field.name}00") for field in BIDS])


def pick(child: n.Node, *chosen: str) -> n.Project:
    """Some of the child's columns, under new names."""
    exprs = tuple(column(child.schema, name) for name in chosen)
    fields = [(f"{name}9", expr.type) for name, expr in zip(chosen, exprs, strict=True)]
    return n.Project(schema=pa.schema(fields), child=child, exprs=exprs)


def readers_of(query: Query, stage: int) -> list[int]:
    return [
        reader.id
        for reader in query.stages
        for leaf in reader.inputs
        if isinstance(leaf, StageInput) and leaf.stage == stage
    ]


def test_what_is_asked_for_twice_by_the_same_keys_is_one_stage() -> None:
    left = count_by(scan(), "auction#1")
    right = pick(count_by(scan(schema=AGAIN), "auction#100"), "auction#100")
    root = join(left, right, "auction#1", "auction#1009")

    query = cut(root, "update", names(root))

    assert len(query.stages) == 2
    assert readers_of(query, 0) == [1, 1]
    assert [leaf.schema.names[0] for leaf in query.stages[1].inputs] == ["auction#1", "auction#100"]


def test_readers_project_for_themselves_what_a_shared_aggregation_gives() -> None:
    """As q5: counts by two keys, joined by one of them with what is counted of the counts."""
    counts = count_by(scan(), "auction#1", "price#2")
    copies = count_by(scan(schema=AGAIN), "auction#100", "price#200")
    present = where(pick(counts, "price#2"), Call("IsNotNull", (long(1),), pa.bool_()))
    per_price = count_by(pick(copies, "price#200", "Count#90"), "price#2009")
    root = join(present, per_price, "price#29", "price#2009")

    query = cut(root, "update", names(root))

    assert [len(stage.keys or ()) for stage in query.stages] == [2, 1, 0]
    assert isinstance(query.stages[1].root, n.Aggregate), "projections are left to the readers"
    assert readers_of(query, 1) == [2, 2]


@pytest.mark.parametrize(
    "other",
    [
        count_by(scan("others", AGAIN), "auction#100"),
        count_by(where(scan(schema=AGAIN), greater(long(5), long(4))), "auction#100"),
        count_by(scan(schema=AGAIN), "price#200"),
    ],
    ids=["another stream", "fewer rows", "another key"],
)
def test_what_differs_in_more_than_names_is_not_shared(other: n.Aggregate) -> None:
    root = join(count_by(scan(), "auction#1"), other, "auction#1", other.keys[0].name)
    assert len(cut(root, "update", names(root)).stages) == 3


def test_constants_that_only_python_calls_equal_are_not_shared() -> None:
    def above(schema: pa.Schema, name: str, zero: float) -> n.Node:
        limit = Literal(pa.scalar(zero))
        return where(scan(schema=schema), greater(Column(name, pa.float64()), limit))

    left, right = above(BIDS, "price#2", 0.0), above(AGAIN, "price#200", -0.0)
    root = join(
        count_by(left, "auction#1"), count_by(right, "auction#100"), "auction#1", "auction#100"
    )
    assert len(cut(root, "update", names(root)).stages) == 3


def test_a_stage_that_reads_a_source_too_shares_nothing() -> None:
    """Its number of tasks may differ from that of other readers, and with it who owns which row."""
    left = count_by(scan(), "auction#1")
    right = count_by(scan(schema=AGAIN), "auction#100")
    more = n.Union(schema=left.schema, inputs=(left, pick(scan(), "auction#1", "price#2")))
    root = join(pick(more, "Count#90"), pick(right, "Count#90"), "Count#909", "Count#909")

    query = cut(root, "update", names(root))

    assert len(query.stages) == 5
    assert all(len(readers_of(query, stage.id)) == 1 for stage in query.stages[:-1])


def test_objects_of_users_are_like_themselves_alone() -> None:
    """Two classes of one name with equal fields may do different things."""

    def make(result: int) -> object:
        @dataclass(frozen=True)
        class Processor:
            size: int = 3

            def process(self) -> int:
                return result

        return Processor()

    numbering = _Numbering(set())
    first, other = make(1), make(2)
    assert numbering.form(first) == numbering.form(first)
    assert numbering.form(first) != numbering.form(other)
    assert numbering.form(first) != numbering.form(make(1))


STATIC = n.Static(schema=AUCTIONS, id=0)


@pytest.mark.parametrize(("kind", "changes"), [("left", True), ("anti", True), ("semi", False)])
def test_rows_meet_the_static_rows_that_a_join_keeps(kind: n.JoinKind, changes: bool) -> None:
    root = join(STATIC, scan(), "id#11", "auction#1", kind)
    first, last = cut(root, "update", names(root)).stages
    assert first.keys == (column(BIDS, "auction#1"),)
    assert last.changing == changes
    assert partitioning(last.root) is None, "some rows have no partner, and no key of it"


def test_rows_stay_where_they_are_if_a_join_keeps_no_static_rows() -> None:
    root = join(scan(), STATIC, "auction#1", "id#11", "left")
    assert len(cut(root, "append", names(root)).stages) == 1
