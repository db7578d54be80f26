"""Who depends on the order of rows, and how many tasks may hand them on."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from plan_samples import AUCTIONS, BIDS, column, count_by, join, scan, where

from penstock.ops import aggregates
from penstock.ops.aggregates.api import AGGREGATES
from penstock.plan import nodes as n
from penstock.plan.exprs import Literal
from penstock.plan.row_order import AGGREGATES_IN_ORDER, depends_on_order
from penstock.plan.stages import Query, cut
from penstock.runtime.commit_protocol import CommitProtocol
from penstock.runtime.spec import count_tasks

PRICE = n.Order(column(BIDS, "price#2"), False, True)
AUCTION = (column(BIDS, "auction#1"),)


def query_of(root: n.Node) -> Query:
    return cut(root, "update", tuple(f"c{at}" for at in range(len(root.schema))))


class Alone(CommitProtocol):
    """Whose tasks cannot put rows in order together."""

    shares_sources = False


def tasks(root: n.Node) -> tuple[int, ...]:
    """Where one task alone must read a source that nobody puts in order, there is a 1."""
    query = query_of(root)
    assert count_tasks(query, 4)[0] == 4, "tasks that share a source say where each row stands"
    return count_tasks(query, 4, protocol=Alone())


def aggregate(function: str, child: n.Node | None = None, key: str = "auction#1") -> n.Aggregate:
    counted = count_by(scan() if child is None else child, key)
    value = column(counted.child.schema, counted.child.schema.names[1])
    return replace(counted, calls=(n.AggregateCall(function, (value,), pa.int64()),))


def dedup(child: n.Node, *keys: str) -> n.Deduplicate:
    chosen = tuple(column(child.schema, key) for key in keys)
    return n.Deduplicate(schema=child.schema, child=child, keys=chosen)


def window(call: n.WindowCall) -> n.Window:
    schema = BIDS.append(pa.field("w#80", call.type))
    return n.Window(schema=schema, child=scan(), partition=AUCTION, order=(PRICE,), calls=(call,))


def top(function: str) -> n.TopN:
    return n.TopN(
        schema=BIDS, child=scan(), partition=AUCTION, order=(PRICE,), function=function, limit=3
    )


@pytest.mark.parametrize("function", sorted(AGGREGATES_IN_ORDER))
def test_a_source_is_read_by_one_task_where_an_aggregate_takes_rows_in_order(function: str) -> None:
    aggregates.load()
    assert any(name == function for name in AGGREGATES)
    assert tasks(aggregate(function)) == (1, 4)


@pytest.mark.parametrize("function", ["Sum", "Count", "Max", "Average", "HyperLogLogPlusPlus"])
def test_other_aggregates_take_rows_as_they_come(function: str) -> None:
    assert tasks(aggregate(function)) == (4, 4)


def test_the_first_row_of_a_key_is_the_first_of_the_source() -> None:
    assert tasks(dedup(scan(), "auction#1")) == (1, 4)
    assert tasks(dedup(scan(), *BIDS.names)) == (4, 4), "rows that are equal in all columns"


def test_rows_that_are_peers_are_told_apart_by_their_order() -> None:
    summed = n.AggregateCall("Sum", (column(BIDS, "price#2"),), pa.int64())
    total = n.WindowCall("Sum", (), pa.int64(), frame="range", aggregate=summed)
    assert tasks(top("RowNumber")) == (1, 4)
    assert tasks(top("Rank")) == (4, 4)
    assert tasks(window(n.WindowCall("Rank", (), pa.int32()))) == (4, 4)
    assert tasks(window(n.WindowCall("Lag", (), pa.int64()))) == (1, 4)
    assert tasks(window(total)) == (4, 4)
    assert tasks(window(replace(total, frame="rows"))) == (1, 4)


def test_order_goes_through_all_stages_that_hand_on_rows() -> None:
    through = where(dedup(scan(), "auction#1"), Literal(pa.scalar(True)))
    assert tasks(aggregate("Last", through, "price#2")) == (1, 1, 4)
    counts = count_tasks(query_of(aggregate("Last", through, "price#2")), 4)
    assert counts == (4, 1, 4), "the one in between puts rows in order and hands them on"


def test_behind_results_there_is_no_order_of_a_source() -> None:
    assert tasks(aggregate("Last", count_by(scan(), "auction#1"), "Count#90")) == (4, 4, 4)
    paired = join(scan(), scan("auctions", AUCTIONS), "auction#1", "id#11")
    assert tasks(aggregate("Last", paired, "price#2")) == (4, 4, 4, 4)


def test_all_that_read_a_stage_have_equally_many_tasks() -> None:
    """One of two readers of the shared stage must be one task; so is the other."""
    first = dedup(scan(), "auction#1")
    last = aggregate("Last", first, "price#2")
    counted = count_by(scan(), "auction#1")
    query = query_of(join(counted, last, "auction#1", "price#2"))
    counts = count_tasks(query, 4)
    for stage in query.stages:
        readers = {
            counts[reader.id]
            for reader in query.stages
            for leaf in reader.inputs
            if isinstance(leaf, n.StageInput) and leaf.stage == stage.id
        }
        assert len(readers) <= 1, query
    assert not depends_on_order(counted)
