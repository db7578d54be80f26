"""The columns by which rows of a result replace each other."""

from __future__ import annotations

import pyarrow as pa
from plan_samples import AUCTIONS, BIDS, column, count_by, greater, join, long, scan, where

from penstock.plan import nodes as n
from penstock.plan.exprs import Call, Expr
from penstock.plan.result_key import result_key
from penstock.plan.stages import cut


def key_of(root: n.Node) -> tuple[str, ...]:
    return result_key(cut(root, "update", tuple(name.split("#")[0] for name in root.schema.names)))


def project(child: n.Node, *exprs: tuple[str, str | Expr]) -> n.Project:
    chosen = [column(child.schema, expr) if isinstance(expr, str) else expr for _, expr in exprs]
    fields = [(name, expr.type) for (name, _), expr in zip(exprs, chosen, strict=True)]
    return n.Project(schema=pa.schema(fields), child=child, exprs=tuple(chosen))


COUNTED = count_by(scan(), "auction#1", "price#2")


def test_it_is_what_rows_are_grouped_by() -> None:
    assert key_of(COUNTED) == ("auction", "price")


def test_it_has_the_names_of_the_result_and_stays_over_filters() -> None:
    renamed = project(COUNTED, ("n#5", "Count#90"), ("item#6", "auction#1"), ("cost#7", "price#2"))

    assert key_of(where(renamed, greater(column(renamed.schema, "n#5"), long(1)))) == (
        "item", "cost",
    )  # fmt: skip


def test_without_one_of_the_columns_there_is_none() -> None:
    assert key_of(project(COUNTED, ("a#5", "auction#1"), ("n#6", "Count#90"))) == ()


def test_a_column_that_was_computed_is_none() -> None:
    half = Call("Divide", (column(COUNTED.schema, "price#2"), long(2)), pa.int64())

    assert key_of(project(COUNTED, ("a#5", "auction#1"), ("p#6", half))) == ()


def test_rows_that_were_not_grouped_have_none() -> None:
    assert key_of(scan()) == ()
    assert key_of(join(scan("bids", BIDS), scan("auctions", AUCTIONS), "auction#1", "id#11")) == ()


def test_one_row_in_all_has_no_columns_to_name() -> None:
    assert key_of(count_by(scan())) == ()
