"""Each rule on a plan that it changes and on one that it must leave alone."""

from __future__ import annotations

import pyarrow as pa
from plan_samples import BIDS, column, count_by, greater, long, scan, where

from penstock.plan import nodes as n
from penstock.plan.exprs import Call, Expr
from penstock.plan.rewrites.count_duplicates import count_duplicates
from penstock.plan.rewrites.floor_mod import floor_mod
from penstock.plan.rewrites.prune import prune

PRICE = column(BIDS, "price#2")


def projected(child: n.Node, expr: Expr) -> n.Project:
    return n.Project(schema=pa.schema([("x#50", expr.type)]), child=child, exprs=(expr,))


def window_case(width: Expr, rest_width: Expr | None = None) -> Call:
    rest = Call("Remainder", (PRICE, width), pa.int64())
    other = Call("Remainder", (PRICE, rest_width or width), pa.int64())
    negative = Call("LessThan", (rest, long(0)), pa.bool_())
    wrapped = Call("Add", (rest, width), pa.int64())
    return Call("CaseWhen", (negative, wrapped, other), pa.int64())


def test_a_scan_is_cut_to_the_columns_that_reach_something() -> None:
    root = projected(where(scan(), greater(PRICE, long(1))), column(BIDS, "auction#1"))
    cut = next(node for node in prune(root).walk() if isinstance(node, n.Scan))
    assert cut.columns == ("auction", "price")
    assert cut.schema.names == ["auction#1", "price#2"]


def test_a_scan_of_nothing_still_counts_its_rows() -> None:
    root = projected(scan(), long(1))
    cut = next(node for node in prune(root).walk() if isinstance(node, n.Scan))
    assert cut.columns == ("auction",)


def test_all_columns_stay_where_an_operator_needs_whole_rows() -> None:
    root = n.Deduplicate(schema=BIDS, child=scan(), keys=(PRICE,))
    assert prune(root) == root


def test_the_case_of_a_window_becomes_pmod() -> None:
    root = floor_mod(projected(scan(), window_case(long(10))))
    assert isinstance(root, n.Project)
    (found,) = root.exprs
    assert found == Call("Pmod", (PRICE, long(10)), pa.int64())


def test_a_case_that_only_looks_like_it_stays() -> None:
    for width, other in (
        (long(10), long(11)),
        (long(-10), None),
        (column(BIDS, "auction#1"), None),
    ):
        root = projected(scan(), window_case(width, other))
        assert floor_mod(root) == root


def test_distinct_rows_of_a_changing_stream_are_counted() -> None:
    counts = count_by(scan(), "auction#1")
    keys = n.columns_of(counts.schema)
    found = count_duplicates(n.Deduplicate(schema=counts.schema, child=counts, keys=keys))
    assert isinstance(found, n.Aggregate)
    assert found.keys == keys
    assert found.calls == ()


def test_distinct_rows_of_a_growing_stream_are_remembered() -> None:
    root = n.Deduplicate(schema=BIDS, child=scan(), keys=n.columns_of(BIDS))
    assert count_duplicates(root) == root
