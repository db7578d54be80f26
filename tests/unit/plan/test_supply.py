"""Append times and subqueries reach those who ask for them, and nobody else sees them."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from plan_samples import AUCTIONS, BIDS, column, count_by, greater, join, long, scan, where

from penstock.plan import nodes as n
from penstock.plan.exprs import Call, Column, Expr
from penstock.plan.refusals import Refusals
from penstock.plan.supply import PRESENT, TIME, Subquery, supply

VALUE = Subquery(
    Column("max#7", pa.int64()),
    n.Static(schema=pa.schema([("max#7", pa.int64())]), id=0),
)
LATER = greater(PRESENT, PRESENT)
PRICE = column(BIDS, "price#2")


def supplied(root: n.Node, refusals: Refusals | None = None) -> n.Node:
    return supply(root, {VALUE.column.name: VALUE}, ("clocks",), refusals or Refusals())


def shown(child: n.Node, *exprs: Expr) -> n.Project:
    schema = pa.schema([(f"x#{50 + at}", expr.type) for at, expr in enumerate(exprs)])
    return n.Project(schema=schema, child=child, exprs=exprs)


def scans(root: n.Node) -> list[n.Scan]:
    return [node for node in root.walk() if isinstance(node, n.Scan)]


def test_a_plan_that_asks_for_nothing_stays_as_it_is() -> None:
    root = count_by(where(scan(), greater(PRICE, long(1))), "auction#1")
    assert supplied(root) == root


def test_the_append_time_comes_up_from_the_scan_and_is_dropped_above_who_asked() -> None:
    root = where(where(scan(), greater(PRICE, long(1))), LATER)
    made = supplied(root)
    assert made.schema == root.schema
    (leaf,) = scans(made)
    assert leaf.columns[-1] == TIME
    assert leaf.schema.names[-1] == PRESENT.name


def test_it_comes_through_unions_expansions_and_static_joins() -> None:
    wide = n.Expand(schema=BIDS, child=scan(), projections=(n.columns_of(BIDS),) * 2)
    both = n.Union(schema=BIDS, inputs=(wide, scan()))
    with_value = shown(both, PRESENT, VALUE.column)
    refusals = Refusals()
    made = supplied(with_value, refusals)
    assert not refusals.reasons
    assert [leaf.columns[-1] for leaf in scans(made)] == [TIME, TIME]
    (joined,) = [node for node in made.walk() if isinstance(node, n.Join)]
    assert joined.right == VALUE.table


@pytest.mark.parametrize(
    "child",
    [
        count_by(scan(), "auction#1"),
        join(scan(), scan("auctions", AUCTIONS), "auction#1", "id#11"),
    ],
    ids=["aggregate", "join"],
)
def test_what_is_no_row_of_one_stream_has_none(child: n.Node) -> None:
    refusals = Refusals()
    made = supplied(shown(child, PRESENT), refusals)
    (reason,) = refusals.reasons
    assert "no row of one stream" in reason.problem
    assert "max(seen)" in reason.remedy
    assert made.schema.field(0).type == PRESENT.type


def test_a_condition_between_two_streams_has_none() -> None:
    refusals = Refusals()
    both = join(scan(), scan("auctions", AUCTIONS), "auction#1", "id#11")
    supplied(replace(both, condition=LATER), refusals)
    assert len(refusals.reasons) == 1


def test_a_stream_with_a_column_of_that_name_is_refused() -> None:
    refusals = Refusals()
    supplied(shown(scan("clocks"), PRESENT), refusals)
    (reason,) = refusals.reasons
    assert "called _time" in reason.problem


def test_a_date_of_it_is_a_cast() -> None:
    cast = Call("Cast", (PRESENT,), pa.date32(), (("timeZoneId", "UTC"),))
    made = supplied(shown(scan(), cast))
    assert isinstance(made, n.Project)
    assert made.exprs == (cast,)
    assert scans(made)[0].columns[-1] == TIME
