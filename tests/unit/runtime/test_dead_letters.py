"""Rows that fail by themselves are set aside, and only those."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from engine_samples import LONG, Wired, column, count_by, pairs, plain, scan, spec_of
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadFormat, EvaluationFailed
from penstock.ids import Lsn
from penstock.log.records import Kind, NewEntry
from penstock.ops.api import Delta
from penstock.plan import nodes as n
from penstock.plan.exprs import Call, Literal
from penstock.protocol.markers import Marker, encode_marker
from penstock.runtime.dead_letters import (
    DEAD_LETTER_DDL,
    DEAD_LETTER_SCHEMA,
    TEXT_MAX,
    find_bad_rows,
)
from penstock.runtime.inputs import Arrival
from penstock.runtime.spec import Settings
from penstock.runtime.task_core import Poisoned
from penstock.stream.batches import decode_batch, encode_trusted
from penstock.stream.ddl import parse_ddl
from penstock.stream.registration import stream_tag

DEAD = Settings(dead_letter="dead")


def dividing(child: n.Node) -> n.Project:
    """(k, 100 / v), which fails where v is 0."""
    hundred = Literal(pa.scalar(100, LONG))
    divided = Call("IntegralDivide", (hundred, column(child, 1)), LONG, (("evalMode", "ANSI"),))
    schema = pa.schema([("k#50", LONG), ("d#51", LONG)])
    return n.Project(schema=schema, child=child, exprs=(column(child, 0), divided))


def run(wired: Wired) -> None:
    """What runtime/task.py does: a task that is poisoned resumes, carefully."""
    for _ in range(10):
        try:
            wired.settle()
            return
        except Poisoned as poison:
            failed = next(task for task in wired.cores if is_in(poison, wired, task.stage))
            wired.start(failed, careful_upto=poison.lsn)
    raise AssertionError("it does not get over its input")


def is_in(poison: Poisoned, wired: Wired, stage: int) -> bool:
    return any(isinstance(node, n.Project) for node in wired.spec.query.stages[stage].root.walk())


def letters(wired: Wired) -> list[dict[str, Any]]:
    found = [decode_batch(entry.payload, DEAD_LETTER_SCHEMA) for entry in wired.committed("dead")]
    return [row for batch in found for row in batch.to_pylist()]


def test_without_a_dead_letter_stream_a_bad_row_poisons_the_task() -> None:
    wired = Wired(spec_of(dividing(scan()), mode="append"))
    wired.feed(pairs((1, 1)))
    lsn = wired.feed(pairs((2, 0)))
    with pytest.raises(Poisoned, match="DIVIDE_BY_ZERO") as caught:
        wired.take(wired.task())
    assert caught.value.lsn == lsn
    assert isinstance(caught.value.cause, EvaluationFailed)


def test_bad_rows_are_set_aside_and_the_others_go_on() -> None:
    wired = Wired(spec_of(dividing(scan()), mode="append", settings=DEAD))
    wired.settle()
    lsn = wired.feed(pairs((1, 10), (2, 0), (3, 20), (4, 0)))
    wired.feed(pairs((5, 50)))
    run(wired)
    assert plain(wired.result()) == [(1, 10), (3, 5), (5, 2)]
    found = letters(wired)
    assert [json.loads(one["row"]) for one in found] == [{"k": 2, "v": 0}, {"k": 4, "v": 0}]
    assert {(one["task"], one["origin"], one["lsn"]) for one in found} == {("q.1/0/0", "in", lsn)}
    assert {one["error"] for one in found} == {"EvaluationFailed"}
    assert all("DIVIDE_BY_ZERO" in one["message"] for one in found)
    assert all("Traceback" in one["traceback"] for one in found)
    assert wired.core().stats.dead_letters == 2
    assert wired.last_marker().rows_in == 3


def test_a_bad_row_that_was_staged_is_found_where_it_counts() -> None:
    """Its own place lies before the position at which the next instance begins."""
    wired = Wired(spec_of(dividing(scan()), mode="append", settings=DEAD))
    tags = (stream_tag("in"),)
    staged = NewEntry(encode_trusted(pairs((1, 10), (2, 0))), tags, Kind.STAGED, rows=2)
    where = wired.append("@o.1/0/0", 1, [staged])
    wired.settle()
    assert wired.last_marker().position > where.first_lsn
    marker = Marker("o.1/0/0", 1, 0, Lsn(0), 0, ranges=(where,))
    named = [NewEntry(encode_marker(marker), tags, Kind.MARKER)]
    lsn = wired.append("@o.1/0/0", 1, named).first_lsn
    with pytest.raises(Poisoned) as caught:
        wired.take(wired.task())
    assert caught.value.lsn == lsn
    wired.start(wired.task(), careful_upto=lsn)
    wired.core().work()  # a tick before anything is read
    wired.settle()
    assert plain(wired.result()) == [(1, 10)]
    assert [letter["lsn"] for letter in letters(wired)] == [lsn]


def test_dead_letters_are_committed_with_the_position_behind_them() -> None:
    wired = Wired(spec_of(dividing(scan()), mode="append", settings=DEAD))
    wired.settle()
    wired.feed(pairs((2, 0)))
    run(wired)
    assert len(letters(wired)) == 1
    marker = next(e for e in reversed(wired.log) if e.kind is Kind.MARKER)
    assert marker.tags == ("T/q.1/0/0", "s/out", "s/dead"), "readers of both see it"
    wired.start(wired.task())
    wired.settle()
    assert len(letters(wired)) == 1, "no instance finds it again"


def test_care_is_taken_only_up_to_the_bad_entry() -> None:
    wired = Wired(spec_of(dividing(scan()), mode="append", settings=DEAD))
    wired.feed(pairs((2, 0)))
    run(wired)
    bad = wired.feed(pairs((3, 0)))
    with pytest.raises(Poisoned) as caught:
        wired.take(wired.task())
    assert caught.value.lsn == bad


def test_bad_rows_between_stages_are_found_in_the_stage_that_fails() -> None:
    source = scan()
    distinct = n.Deduplicate(schema=source.schema, child=source, keys=(column(source, 0),))
    wired = Wired(spec_of(dividing(distinct), mode="append", settings=DEAD))
    wired.feed(pairs((1, 10), (2, 0), (1, 10)))
    run(wired)
    assert plain(wired.result()) == [(1, 10)]
    [letter] = letters(wired)
    assert (letter["task"], letter["origin"]) == ("q.1/1/0", "stage 0")
    assert json.loads(letter["row"]) == {"k": 2, "v": 0}


def test_a_row_that_never_was_in_the_state_is_not_taken_back_from_it() -> None:
    """How many keys have count c, and 100 / (c - 2): no count of 2 gets in, nor out again."""
    counted = count_by(count_by(scan(), 0), 1, id=95)
    count = column(counted, 0)
    less = Call("Subtract", (count, Literal(pa.scalar(2, LONG))), LONG)
    hundred = Literal(pa.scalar(100, LONG))
    divided = Call("IntegralDivide", (hundred, less), LONG, (("evalMode", "ANSI"),))
    schema = pa.schema([("c#60", LONG), ("n#61", LONG), ("d#62", LONG)])
    exprs = (count, column(counted, 1), divided)
    root = n.Project(schema=schema, child=counted, exprs=exprs)
    wired = Wired(spec_of(root, settings=DEAD))
    for shown in ([(1, 1, -100)], [], [(3, 1, 100)]):
        wired.feed(pairs((1, 0)))
        wired.start(wired.task(2), careful_upto=Lsn(10**6))
        wired.settle()
        assert plain(wired.result()) == shown
    bad = [json.loads(letter["row"]) for letter in letters(wired)]
    assert bad == [{"k": 1, "c": 2}] * 2, "when it was given, and when it was taken back"
    state = wired.core(2).state.freeze()
    weights = [row for change in state for row in change.rows.to_pylist()]
    assert [row for row in weights if -1 in row.values()] == []


def test_an_entry_that_is_no_rows_is_set_aside_as_its_bytes() -> None:
    wired = Wired(spec_of(scan(), mode="append", settings=DEAD))
    wired.append("user", 1, [NewEntry(b"no rows", ("s/in",))])
    wired.put_through(pairs((1, 1)))
    assert plain(wired.result()) == [(1, 1)]
    [letter] = letters(wired)
    assert (letter["row"], letter["error"], letter["lsn"]) == ("bm8gcm93cw==", "BadFormat", 0)


def test_an_entry_that_is_no_rows_stops_a_query_without_dead_letters() -> None:
    wired = Wired(spec_of(scan(), mode="append"))
    wired.append("user", 1, [NewEntry(b"no rows", ("s/in",))])
    with pytest.raises(BadFormat, match="stream in, LSN 0"):
        wired.take(wired.task())


# ---- the search


def search(values: list[int], bad: set[int]) -> tuple[Arrival, list[dict[str, Any]], int]:
    tries = 0

    def try_rows(delta: Delta) -> None:
        nonlocal tries
        tries += 1
        for value in delta.batch.column(0).to_pylist():
            if value in bad:
                raise ValueError(f"{value} is bad")

    delta = Delta(pairs(*((value, 0) for value in values)), np.arange(len(values)))
    good, dead = find_bad_rows(Arrival(0, delta, Lsn(3), "in"), try_rows, "t")
    return good, [json.loads(letter.row) for letter in dead], tries


@given(st.lists(st.integers(0, 9), max_size=40), st.sets(st.integers(0, 9)))
def test_exactly_the_bad_rows_are_found_in_order(values: list[int], bad: set[int]) -> None:
    good, dead, _ = search(values, bad)
    assert good.delta.batch.column(0).to_pylist() == [v for v in values if v not in bad]
    weights = [place for place, value in enumerate(values) if value not in bad]
    assert good.delta.all_weights().tolist() == weights
    assert [row["k"] for row in dead] == [v for v in values if v in bad]
    assert (good.place, good.lsn, good.origin) == (0, 3, "in")


def test_one_bad_row_of_many_is_found_in_few_tries() -> None:
    _, dead, tries = search(list(range(1024)), {700})
    assert len(dead) == 1
    assert tries == 21


def test_a_letter_fits_into_an_entry_whatever_the_row_is() -> None:
    def fail(delta: Delta) -> None:
        raise ValueError("x" * 10**6)

    batch = pa.record_batch({"t#1": ["y" * 10**6], "b#2": [b"\xff"]})
    _, [letter] = find_bad_rows(Arrival(0, Delta(batch), Lsn(3), "in"), fail, "t")
    assert max(len(letter.row), len(letter.message), len(letter.traceback)) == TEXT_MAX
    assert letter.row.startswith('{"t": "yyy')


def test_the_stream_of_dead_letters_is_what_its_ddl_says() -> None:
    made = parse_ddl(DEAD_LETTER_DDL)
    assert made.names == DEAD_LETTER_SCHEMA.names
    assert [(f.type, f.nullable) for f in made] == [
        (f.type, f.nullable) for f in DEAD_LETTER_SCHEMA
    ]
