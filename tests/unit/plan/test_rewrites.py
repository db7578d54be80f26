"""Each rule on a plan that it changes and on one that it must leave alone."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from plan_samples import (
    APPEND,
    AUCTIONS,
    BIDS,
    TIMESTAMP,
    UPDATE,
    WINDOWED,
    column,
    count_by,
    greater,
    join,
    long,
    scan,
    where,
)

from penstock.plan import nodes as n
from penstock.plan.exprs import Call, Column, Expr, Literal
from penstock.plan.rewrites.aggregate_early import aggregate_early
from penstock.plan.rewrites.aim import Aim
from penstock.plan.rewrites.choose_emit import choose_emit
from penstock.plan.rewrites.close_keys import close_keys
from penstock.plan.rewrites.collapse_distinct import collapse_distinct
from penstock.plan.rewrites.count_duplicates import count_duplicates
from penstock.plan.rewrites.floor_mod import floor_mod
from penstock.plan.rewrites.fuse_top_n import fuse_top_n
from penstock.plan.rewrites.open_keys import open_keys
from penstock.plan.rewrites.prune import prune

PRICE = column(BIDS, "price#2")
BY_PRICE = (n.Order(PRICE, descending=True, nulls_first=False),)


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
    cut = next(node for node in prune(root, UPDATE).walk() if isinstance(node, n.Scan))
    assert cut.columns == ("auction", "price")
    assert cut.schema.names == ["auction#1", "price#2"]


def test_a_scan_of_nothing_still_counts_its_rows() -> None:
    root = projected(scan(), long(1))
    cut = next(node for node in prune(root, UPDATE).walk() if isinstance(node, n.Scan))
    assert cut.columns == ("auction",)


def test_all_columns_stay_where_an_operator_needs_whole_rows() -> None:
    root = n.Deduplicate(schema=BIDS, child=scan(), keys=(PRICE,))
    assert prune(root, UPDATE) == root


def test_the_case_of_a_window_becomes_pmod() -> None:
    root = floor_mod(projected(scan(), window_case(long(10))), UPDATE)
    assert isinstance(root, n.Project)
    (expr,) = root.exprs
    assert expr == Call("Pmod", (PRICE, long(10)), pa.int64())


def test_a_case_that_only_looks_like_it_stays() -> None:
    for width, other in (
        (long(10), long(11)),
        (long(-10), None),
        (column(BIDS, "auction#1"), None),
    ):
        root = projected(scan(), window_case(width, other))
        assert floor_mod(root, UPDATE) == root


def distinct(child: n.Node) -> n.Deduplicate:
    return n.Deduplicate(schema=child.schema, child=child, keys=n.columns_of(child.schema))


def test_distinct_rows_of_a_changing_stream_are_counted() -> None:
    root = distinct(count_by(scan(), "auction#1"))
    counted = count_duplicates(root, UPDATE)
    assert isinstance(counted, n.Aggregate)
    assert (counted.keys, counted.calls) == (root.keys, ())


def test_distinct_rows_of_a_growing_stream_are_remembered() -> None:
    root = distinct(scan())
    assert count_duplicates(root, UPDATE) == root


def test_append_mode_counts_no_rows_that_it_cannot_show() -> None:
    root = distinct(count_by(scan(), "auction#1"))
    assert count_duplicates(root, APPEND) == root


@pytest.mark.parametrize(("aim", "emit"), [(UPDATE, "changes"), (APPEND, "finals")])
def test_every_operator_with_the_choice_emits_what_the_mode_can_show(aim: Aim, emit: str) -> None:
    counts = count_by(count_by(scan(), "auction#1", "price#2"), "auction#1")
    root = choose_emit(join(counts, scan("auctions", AUCTIONS), "auction#1", "id#11"), aim)
    chosen = [node.emit for node in root.walk() if isinstance(node, n.Aggregate | n.Join)]
    assert chosen == [emit] * 3


def ranked(child: n.Node, *partition: str) -> n.Window:
    """row_number() over (partition by ... order by price)."""
    keys = tuple(column(BIDS, name) for name in partition)
    call = n.WindowCall("RowNumber", (), pa.int32())
    schema = BIDS.append(pa.field("rank#60", pa.int32()))
    return n.Window(schema=schema, child=child, partition=keys, order=BY_PRICE, calls=(call,))


def best(limit: int, *partition: str) -> n.TopN:
    keys = tuple(column(BIDS, name) for name in partition)
    return n.TopN(
        schema=BIDS,
        child=scan(),
        partition=keys,
        order=BY_PRICE,
        function="RowNumber",
        limit=limit,
    )


def first_of_sorted(limit: int, offset: int = 0) -> n.Limit:
    ordered = n.Sort(schema=BIDS, child=scan(), order=BY_PRICE)
    return n.Limit(schema=BIDS, child=ordered, count=limit, offset=offset)


@pytest.mark.parametrize(
    ("root", "partition"),
    [
        (ranked(best(3, "auction#1"), "auction#1"), ("auction#1",)),
        (ranked(first_of_sorted(3)), ()),
    ],
    ids=["partitioned", "limit"],
)
def test_ranks_over_the_best_rows_are_one_operator(
    root: n.Window, partition: tuple[str, ...]
) -> None:
    cut = best(3, *partition)
    assert fuse_top_n(root, UPDATE) == replace(cut, schema=root.schema, calls=root.calls)


@pytest.mark.parametrize(
    "root",
    [
        ranked(scan(), "auction#1"),
        ranked(best(3, "auction#1"), "price#2"),
        ranked(replace(best(3), order=())),
        ranked(replace(best(3), calls=(n.WindowCall("Rank", (), pa.int32()),))),
        ranked(first_of_sorted(3), "auction#1"),
        ranked(first_of_sorted(3, offset=1)),
        first_of_sorted(3),
    ],
    ids=["all", "partition", "order", "calls", "limit", "offset", "no-window"],
)
def test_other_cuts_below_a_window_stay(root: n.Node) -> None:
    assert fuse_top_n(root, UPDATE) == root


def two_distincts(gids: tuple[int, int]) -> n.Aggregate:
    """count(distinct price), max(ts) by auction, as Catalyst writes them."""
    gid, auction = Column("gid#70", pa.int32()), column(BIDS, "auction#1")
    price, ts = Column("price#71", pa.int64()), Column("ts#72", BIDS.field("ts#3").type)
    copies = pa.schema([(c.name, c.type) for c in (auction, price, gid, ts)])
    nothing = Literal(pa.scalar(None, pa.int64()))
    projections = (
        (auction, nothing, Literal(pa.scalar(gids[0], pa.int32())), column(BIDS, "ts#3")),
        (
            auction,
            PRICE,
            Literal(pa.scalar(gids[1], pa.int32())),
            Literal(pa.scalar(None, ts.type)),
        ),
    )
    expand = n.Expand(schema=copies, child=scan(), projections=projections)
    latest = n.AggregateCall("Max", (ts,), ts.type)
    inner = n.Aggregate(
        schema=pa.schema([(c.name, c.type) for c in (auction, price, gid)] + [("m#73", ts.type)]),
        child=expand,
        keys=(auction, price, gid),
        calls=(latest,),
    )

    def of_copy(number: int) -> Call:
        return Call("EqualTo", (gid, Literal(pa.scalar(number, pa.int32()))), pa.bool_())

    calls = (
        n.AggregateCall("Count", (price,), pa.int64(), filter=of_copy(1)),
        n.AggregateCall("First", (Column("m#73", ts.type),), ts.type, filter=of_copy(0)),
    )
    fields = [("auction#1", pa.int64()), ("c#74", pa.int64()), ("m#75", ts.type)]
    return n.Aggregate(schema=pa.schema(fields), child=inner, keys=(auction,), calls=calls)


def test_several_distinct_aggregates_are_one_aggregation_as_the_user_wrote_it() -> None:
    root = two_distincts((0, 1))
    ts = column(BIDS, "ts#3")
    assert collapse_distinct(root, UPDATE) == replace(
        root,
        child=scan(),
        calls=(
            n.AggregateCall("Count", (PRICE,), pa.int64(), distinct=True),
            n.AggregateCall("Max", (ts,), ts.type),
        ),
    )


def test_copies_that_no_gid_tells_apart_stay() -> None:
    root = two_distincts((0, 7))
    assert collapse_distinct(root, UPDATE) == root


def test_two_aggregations_of_the_users_own_stay() -> None:
    root = count_by(count_by(scan(), "auction#1", "price#2"), "auction#1")
    assert collapse_distinct(root, UPDATE) == root


def is_split(root: n.Node) -> bool:
    split = aggregate_early(root, UPDATE)
    if not isinstance(split, n.Aggregate) or not split.merges:
        return False
    assert isinstance(split.child, n.PartialAggregate)
    assert split.schema == root.schema
    return True


def windows(*keys: str) -> n.Aggregate:
    return count_by(scan("bids", WINDOWED), "window#7", *keys)


TOTAL = count_by(scan())
AVERAGED = replace(TOTAL.calls[0], function="Average")


@pytest.mark.parametrize(
    ("root", "is_early"),
    [
        (TOTAL, True),
        (windows(), True),
        # Nothing says that there are few.
        (count_by(scan(), "auction#1"), False),
        (windows("auction#1"), False),
        # Late rows are counted and handed over.
        (replace(windows(), event_time="window#7"), False),
        (count_by(count_by(scan(), "auction#1")), False),
        (replace(TOTAL, calls=(*TOTAL.calls, AVERAGED)), False),
    ],
    ids=[
        *("totals", "windows", "other keys", "other keys beside windows", "rows that may be late"),
        *("rows that are taken back", "a function that cannot be folded in parts"),
    ],
)
def test_what_is_folded_early(root: n.Aggregate, is_early: bool) -> None:
    assert is_split(root) is is_early


def by_day(watermarked: bool = True) -> n.Aggregate:
    """Bids by the day of their event time."""
    time = column(BIDS, "ts#3")
    rows: n.Node = scan()
    if watermarked:
        rows = n.Watermark(schema=BIDS, child=rows, column=time.name, delay_ms=0)
    day = Call("Cast", (time,), pa.date32(), (("timeZoneId", "UTC"),))
    return count_by(projected(rows, day), "x#50")


def test_a_key_that_rises_with_event_time_closes_in_append_mode() -> None:
    before = by_day()
    made = close_keys(before, APPEND)
    assert made.schema == before.schema
    (aggregate,) = [node for node in made.walk() if isinstance(node, n.Aggregate)]
    assert aggregate.event_time == "x#50#closes"
    assert [key.name for key in aggregate.keys] == ["x#50", "x#50#closes"]
    assert close_keys(before, UPDATE) == before


def test_a_key_of_rows_without_a_watermark_never_closes() -> None:
    before = by_day(watermarked=False)
    assert close_keys(before, APPEND) == before


BY_TIME = n.EventTime("ts#3", 0, 0), n.EventTime("t#13", 0, 0)


def above_join(time: str, left: n.EventTime | None, right: n.EventTime | None) -> n.Aggregate:
    """Groups by a time of bids joined with auctions."""
    pairs = join(scan(), scan("auctions", AUCTIONS), "auction#1", "id#11")
    pairs = replace(pairs, left_time=left, right_time=right)
    return replace(count_by(pairs, time), event_time=time)


def test_a_group_closes_only_by_times_of_sides_that_a_join_forgets() -> None:
    left, right = BY_TIME
    for before in (above_join("ts#3", left, right), above_join("t#13", None, right)):
        assert open_keys(before, APPEND) == before
    for before in (above_join("ts#3", None, right), above_join("t#13", left, None)):
        assert open_keys(before, UPDATE) == replace(before, event_time=None)


def test_a_time_that_is_told_anew_above_a_join_closes_groups() -> None:
    before = above_join("ts#3", None, None)
    told = n.Watermark(schema=before.child.schema, child=before.child, column="ts#3", delay_ms=0)
    assert open_keys(replace(before, child=told), UPDATE) == replace(before, child=told)


def test_a_join_above_keeps_what_comes_late_from_the_one_below() -> None:
    below = above_join("ts#3", None, None).child
    other = scan("sales", pa.schema([("sold#21", pa.int64()), ("at#22", TIMESTAMP)]))
    above = join(below, other, "auction#1", "sold#21")
    above = replace(above, left_time=BY_TIME[0], right_time=n.EventTime("at#22", 0, 0))
    assert open_keys(above, UPDATE) == replace(above, left_time=None, right_time=None)
