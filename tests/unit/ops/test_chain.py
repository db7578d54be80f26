"""Stages in one task give what they give one after the other, with an exchange in between."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from engine_samples import (
    TIMED,
    column,
    count_by,
    finals,
    join,
    pairs,
    plain,
    scan,
    spec_of,
    timed,
    times,
)

from penstock.ops.api import Delta
from penstock.ops.chain import Chain, outer_inputs
from penstock.ops.driver import Driver
from penstock.plan import nodes as n
from penstock.plan.stages import Query
from penstock.state.memory import MemoryState


def chain_of(query: Query) -> Chain:
    return Chain(query.stages, MemoryState(), {})


def results(query: Query, feeds: list[tuple[str, pa.RecordBatch]]) -> list[list[Any]]:
    """Of the stages apart, and joined."""
    found = []
    for joined in (False, True):
        driver = Driver(query, {}, joined=joined)
        for stream, rows in feeds:
            driver.feed(stream, rows)
        found.append(plain(driver.result()))
    return found


def max_of(counts: n.Aggregate) -> n.Aggregate:
    """The largest count of all."""
    call = n.AggregateCall("Max", (column(counts, len(counts.schema) - 1),), pa.int64())
    return n.Aggregate(
        schema=pa.schema([("m#95", pa.int64())]), child=counts, keys=(), calls=(call,)
    )


def test_rows_pass_all_stages_in_one_push() -> None:
    query = spec_of(count_by(count_by(scan(), 0), 1, id=91)).query
    assert len(query.stages) == 3
    feeds = [("in", pairs((1, 1), (2, 1), (1, 2))), ("in", pairs((2, 2), (3, 1)))]

    apart, joined = results(query, feeds)

    assert joined == apart == [(1, 1), (2, 2)]


def test_a_stage_that_two_read_is_one_stage_here_too() -> None:
    """As q5 has it: the counts beside the largest of them."""
    query = spec_of(join(count_by(scan(), 0), count_by(scan(id=21), 0, id=92))).query
    readers = [leaf for stage in query.stages for leaf in stage.inputs]
    assert len(readers) > len(query.stages)

    apart, joined = results(query, [("in", pairs((1, 1), (2, 1), (1, 2)))])

    assert joined == apart == [(1, 2, 1, 2), (2, 1, 2, 1)]


def test_what_there_is_before_any_row_is_handed_on() -> None:
    """A count of nothing is 0, and so is the largest of it."""
    query = spec_of(max_of(count_by(scan()))).query
    apart, joined = results(query, [])
    assert joined == apart == [(0,)]


def test_a_window_closed_below_is_counted_before_time_passes_above() -> None:
    below = finals(timed())
    above = finals(
        n.Project(
            schema=pa.schema([below.schema.field(1), below.schema.field(0)]),
            child=below,
            exprs=(column(below, 1), column(below, 0)),
        )
    )
    query = spec_of(above, mode="append").query
    feeds = [("in", times(1, 1, 2)), ("in", times(9))]

    apart, joined = results(query, feeds)

    assert joined == apart
    assert [row[0] for row in joined] == [1, 2, 9]


def test_an_input_that_steps_aside_does_so_for_the_stages_behind_it() -> None:
    query = spec_of(finals(join(timed("a", id=11), timed("b")))).query
    chain = chain_of(query)
    leaves = outer_inputs(query.stages)
    assert [leaf.stream for leaf in leaves if isinstance(leaf, n.Scan)] == ["a", "b"]
    chain.start()
    chain.push(0, Delta(times(5)))
    chain.advance({0: None, 1: None})
    assert not chain.is_idle
    chain.advance({0: None, 1: None}, frozenset({0, 1}))
    assert chain.is_idle


def test_each_stage_keeps_its_state_under_a_name_of_its_own() -> None:
    query = spec_of(count_by(count_by(scan(), 0), 1, id=91)).query
    state = MemoryState()
    chain = Chain(query.stages, state, {})
    chain.push(0, Delta(pairs((1, 1))))

    names = {change.name for change in state.take_log()}

    assert {name.split("/")[0] for name in names} == {"stage-1", "0"}


def test_what_was_kept_is_found_again() -> None:
    query = spec_of(count_by(count_by(scan(), 0), 1, id=91)).query
    first = Driver(query, {}, joined=True)
    first.feed("in", pairs((1, 1), (2, 1)))
    second = Driver(query, {}, joined=True, resume=first.snapshot())
    second.feed("in", pairs((2, 2)))

    outputs = [*first.outputs, *second.outputs]
    second.outputs[:] = outputs

    assert plain(second.result()) == [(1, 1), (2, 1)]


def test_one_stage_is_a_chain_of_one() -> None:
    query = spec_of(scan("in", TIMED)).query
    chain = chain_of(query)
    (out,) = chain.push(0, Delta(times(1, 2)))
    assert len(out) == 2
