"""Rows that fail by themselves are set aside, and only those."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from engine_samples import (
    LONG,
    SOURCE,
    TIMED,
    TIMESTAMP,
    Wired,
    column,
    count_by,
    finals,
    pairs,
    plain,
    scan,
    spec_of,
    timed,
    times,
)
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from penstock.errors import BadFormat, EvaluationFailed
from penstock.ids import Lsn
from penstock.log.records import Kind, NewEntry
from penstock.ops.api import Delta
from penstock.ops.bad_rows import set_bad_rows_aside
from penstock.ops.payloads import PLACE
from penstock.plan import nodes as n
from penstock.plan.exprs import Call, Literal
from penstock.protocol.markers import Marker, encode_marker
from penstock.runtime.dead_letters import (
    DEAD_LETTER_DDL,
    DEAD_LETTER_SCHEMA,
    TEXT_MAX,
    letter_of_row,
)
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


def test_rows_of_entries_that_were_joined_are_told_by_their_own_entry() -> None:
    wired = Wired(spec_of(dividing(scan()), mode="append", settings=DEAD))
    wired.settle()
    places = [wired.feed(pairs((key, key % 3))) for key in range(1, 7)]
    wired.settle()
    assert plain(wired.result()) == [(1, 100), (2, 50), (4, 100), (5, 50)]
    assert [letter["lsn"] for letter in letters(wired)] == [places[2], places[5]]


def summing() -> n.Aggregate:
    """(k, sum(100 / v)): a step with state fails where v is 0."""
    divided = dividing(scan()).exprs[1]
    counted = count_by(scan(), 0)
    return replace(counted, calls=(n.AggregateCall("Sum", (divided,), LONG),))


def test_a_row_that_fails_in_a_step_with_state_is_found_carefully() -> None:
    wired = Wired(spec_of(summing(), settings=DEAD))
    wired.settle()
    wired.feed(pairs((1, 10), (2, 0)))
    wired.take(wired.task(0))
    wired.commit(wired.task(0))
    with pytest.raises(Poisoned) as caught:
        wired.take(wired.task(1))
    wired.start(wired.task(1), careful_upto=caught.value.lsn)
    wired.core(1).work()  # a tick before anything is read
    wired.settle()
    assert plain(wired.result()) == [(1, 10)]
    assert [json.loads(letter["row"]) for letter in letters(wired)] == [{"k": 2, "v": 0}]
    wired.feed(pairs((3, 0)))
    with pytest.raises(Poisoned):
        wired.settle()  # care was taken up to the bad entry only


def ratio() -> n.Project:
    """(k, 100 / sum(v)), which fails while the sum is 0."""
    counted = count_by(scan(), 0)
    call = n.AggregateCall(
        "Sum", (column(counted.child, 1),), LONG, options=(("evalMode", "ANSI"),)
    )
    return dividing(replace(counted, calls=(call,)))


def test_a_result_that_fails_for_a_moment_is_not_shown_for_that_moment() -> None:
    wired = Wired(spec_of(ratio(), settings=DEAD))
    for values, shown in (
        ([(1, 10), (2, 5)], [(1, 10), (2, 20)]),
        ([(1, -10)], [(2, 20)]),
        ([(1, 0)], [(2, 20)]),
        ([(1, 25), (2, 5)], [(1, 4), (2, 10)]),
    ):
        wired.feed(pairs(*values))
        wired.settle()
        assert plain(wired.result()) == shown
    assert {letter["task"] for letter in letters(wired)} == {"q.1/1/0"}
    rows = [json.loads(letter["row"]) for letter in letters(wired)]
    assert rows == [{"k": 1, "c": 0}] * 2, "each time that it was given, never when taken back"


def test_a_row_whose_share_alone_would_fail_counts_all_the_same() -> None:
    """Its own 100 / sum(v) fails; with the others it does not, and care must not drop it."""
    wired = Wired(spec_of(ratio(), settings=DEAD))
    wired.feed(pairs((1, 10), (1, 0)))
    wired.start(wired.task(1), careful_upto=Lsn(10**6))
    wired.settle()
    assert plain(wired.result()) == [(1, 10)]
    assert letters(wired) == []


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
    assert bad == [{"c": 1}], "when it was given, not when it was taken back"
    state = wired.core(2).state.freeze()
    weights = [row for change in state for row in change.rows.to_pylist()]
    assert [row for row in weights if -1 in row.values()] == []


def test_a_row_that_is_set_aside_has_not_moved_time() -> None:
    """A row that is garbage often has a time that is garbage, too."""
    source = timed()
    hundred = Literal(pa.scalar(100, LONG))
    divided = Call("IntegralDivide", (hundred, column(source, 0)), LONG, (("evalMode", "ANSI"),))
    schema = pa.schema([("d#50", LONG), ("ts#51", TIMESTAMP)])
    kept = n.Project(schema=schema, child=source, exprs=(divided, column(source, 1)))
    for tasks in ((1, 1), (0, 1)):
        wired = Wired(spec_of(finals(kept), mode="append", settings=DEAD, tasks=tasks))
        wired.feed(times(10))
        wired.feed(times(1_000, key=0))
        run(wired)
        assert len(letters(wired)) == 1
        for second in (20, 30):
            wired.feed(times(second))
        run(wired)
        assert sum(core.stats.rows_late for core in wired.cores.values()) == 0
        assert plain(wired.result()) == [(10, 1), (20, 1), (30, 1)]


class Sessions(StatefulProcessor):
    """v 0 opens a key; other values are passed on; one before the opening is an error."""

    def init(self, handle: Any) -> None:
        self._open = handle.getValueState("open", "v long")

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:  # Spark's name
        for row in rows:
            if row.v == 0:
                self._open.update((1,))
            elif not self._open.exists():
                raise ValueError(f"{key} was never opened")
            else:
                yield Row(k=key[0], v=row.v)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("tasks", [(1, 1), (0, 1)])
def test_rows_that_need_the_state_of_their_key_find_it(tasks: tuple[int, int]) -> None:
    source = scan()
    root = n.TransformWithState(
        schema=pa.schema([("k#70", LONG), ("v#71", LONG)]), child=source, processor=Sessions(),
        kind=213, keys=(column(source, 0),), time_mode="none", input_schema=SOURCE,
        output_schema=SOURCE,
    )  # fmt: skip
    wired = Wired(spec_of(root, mode="append", settings=DEAD, tasks=tasks))
    wired.put_through(pairs((1, 0), (2, 0)))
    wired.feed(pairs((1, 10), (3, 30), (2, 20), (4, 0), (4, 40)))  # 3 was never opened
    try:
        wired.settle()
    except Poisoned as poison:
        wired.start(wired.task(1), careful_upto=poison.lsn)
        wired.settle()

    assert [json.loads(letter["row"]) for letter in letters(wired)] == [{"k": 3, "v": 30}]
    assert plain(wired.result()) == [(1, 10), (2, 20), (4, 40)]


class Picky(StatefulProcessor):
    """13 is bad, and so are more than two rows at once; the first row of a key opens it."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:  # Spark's name
        taken = list(rows)
        if len(taken) > 2:
            raise ValueError("many")
        for row in taken:
            if 13 in tuple(row):
                raise ValueError("13")
            yield Row(k=key[0], v=1)

    def close(self) -> None:
        pass


def processed(child: n.Node, processor: StatefulProcessor, **options: Any) -> n.TransformWithState:
    """Its rows, by their first column, through a processor."""
    return n.TransformWithState(
        schema=pa.schema([("k#70", LONG), ("v#71", LONG)]), child=child, processor=processor,
        kind=213, keys=(column(child, 0),), output_schema=SOURCE,
        **{"time_mode": "none", "input_schema": SOURCE, **options},
    )  # fmt: skip


def run_or_stop(wired: Wired) -> None:
    """As runtime/task.py does: a second failure at one place stops the query."""
    upto: Lsn | None = None
    while True:
        try:
            return wired.settle()
        except Poisoned as poison:
            if poison.lsn is None or (upto is not None and poison.lsn <= upto):
                raise
            upto = poison.lsn
            wired.start(wired.task(1), careful_upto=upto)


APART_AND_JOINED = pytest.mark.parametrize("tasks", [(1, 1), (0, 1)])


@APART_AND_JOINED
def test_rows_of_one_batch_may_fail_in_different_stages(tasks: tuple[int, int]) -> None:
    root = processed(dividing(scan()), Picky())
    wired = Wired(spec_of(root, mode="append", settings=DEAD, tasks=tasks))
    wired.settle()
    wired.feed(pairs((1, 0), (13, 100), (3, 10)))
    run_or_stop(wired)
    assert plain(wired.result()) == [(3, 1)]
    assert len(letters(wired)) == 2


@APART_AND_JOINED
def test_rows_that_fail_only_together_go_in_one_by_one(tasks: tuple[int, int]) -> None:
    root = processed(scan(), Picky())
    wired = Wired(spec_of(root, mode="append", settings=DEAD, tasks=tasks))
    wired.settle()
    wired.feed(pairs((1, 10), (1, 20), (1, 30), (1, 13)))
    run_or_stop(wired)
    assert plain(wired.result()) == [(1, 1)] * 3
    assert [json.loads(letter["row"])["v"] for letter in letters(wired)] == [13]


@APART_AND_JOINED
def test_rows_are_tried_at_the_time_of_the_state(tasks: tuple[int, int]) -> None:
    """They come together with the marker that would make them late a moment later."""
    child = timed()
    options = {"time_mode": "eventtime", "event_time": child.schema.names[-1]}
    root = processed(child, Picky(), input_schema=TIMED, **options)
    wired = Wired(spec_of(root, mode="append", settings=DEAD, tasks=tasks))
    wired.settle()
    wired.feed(times(10, key=13))
    wired.feed(times(100, key=1))
    run_or_stop(wired)
    assert plain(wired.result()) == [(1, 1)]
    assert len(letters(wired)) == 1


class Open(StatefulProcessor):
    """0 opens a key for a second of the clock; 13, or a value while it is closed, is an error."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._open = handle.getValueState("open", "v long")

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:  # Spark's name
        for row in rows:
            if row.v == 0:
                self._open.update((1,))
                self._handle.registerTimer(timers.getCurrentProcessingTimeInMs() + 1000)
            elif row.v == 13 or not self._open.exists():
                raise ValueError(str(row.v))
            else:
                yield Row(k=key[0], v=row.v)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        self._open.clear()
        yield Row(k=key[0], v=-1)

    def close(self) -> None:
        pass


def test_a_trial_fires_no_timer_that_has_not_fired() -> None:
    root = processed(scan(), Open(), time_mode="processingtime")
    wired = Wired(spec_of(root, mode="append", settings=DEAD, tasks=(0, 1)))
    wired.put_through(pairs((1, 0), (2, 0)))
    wired.feed(pairs((1, 10), (2, 13)))
    with pytest.raises(Poisoned) as caught:
        wired.settle()
    wired.start(wired.task(1), careful_upto=caught.value.lsn)
    wired.now_ms += 1_500
    wired.settle()
    assert plain(wired.result()) == [(1, -1), (1, 10), (2, -1)]
    assert [json.loads(letter["row"]) for letter in letters(wired)] == [{"k": 2, "v": 13}]


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_letter_names_the_entry_of_its_row_also_where_rows_were_put_in_order(tasks: int) -> None:
    source = scan()
    distinct = n.Deduplicate(schema=source.schema, child=source, keys=(column(source, 0),))
    wired = Wired(spec_of(dividing(distinct), mode="append", tasks=(tasks, 1), settings=DEAD))
    wired.settle()
    for key in range(1, 9):
        wired.feed(pairs((key, 0 if key == 7 else key)))
    for index in range(tasks):
        wired.take(wired.task(0, index))
        wired.commit(wired.task(0, index))
    wired.settle()

    (letter,) = letters(wired)

    assert json.loads(letter["row"])["k"] == 7
    schema = SOURCE if tasks == 1 else SOURCE.append(PLACE)
    payload = wired.log[letter["lsn"]].payload
    assert 7 in pa.ipc.read_record_batch(pa.py_buffer(payload), schema).column(0).to_pylist()


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


def search(values: list[int], bad: set[int]) -> tuple[Delta, list[int], int]:
    tries = 0

    def try_rows(delta: Delta) -> None:
        nonlocal tries
        tries += 1
        for value in delta.batch.column(0).to_pylist():
            if value in bad:
                raise ValueError(f"{value} is bad")

    delta = Delta(pairs(*((value, 0) for value in values)), np.arange(len(values)))
    good, aside = set_bad_rows_aside(delta, try_rows)
    return good, [row.batch.column(0)[0].as_py() for row, _ in aside], tries


@given(st.lists(st.integers(0, 9), max_size=40), st.sets(st.integers(0, 9)))
def test_exactly_the_bad_rows_are_found_in_order(values: list[int], bad: set[int]) -> None:
    good, dead, _ = search(values, bad)
    assert good.batch.column(0).to_pylist() == [v for v in values if v not in bad]
    weights = [place for place, value in enumerate(values) if value not in bad]
    assert good.all_weights().tolist() == weights
    assert dead == [v for v in values if v in bad]


def test_one_bad_row_of_many_is_found_in_few_tries() -> None:
    _, dead, tries = search(list(range(1024)), {700})
    assert len(dead) == 1
    assert tries == 21


def test_a_letter_fits_into_an_entry_whatever_the_row_is() -> None:
    error = ValueError("x" * 10**6)
    batch = pa.record_batch({"t#1": ["y" * 10**6], "b#2": [b"\xff"]})
    letter = letter_of_row(Delta(batch), error, origin="in", lsn=Lsn(3), task="t")
    assert max(map(len, (letter.row, letter.message, letter.traceback))) == TEXT_MAX
    assert letter.row.startswith('{"t": "yyy')


def test_the_stream_of_dead_letters_is_what_its_ddl_says() -> None:
    made = parse_ddl(DEAD_LETTER_DDL)
    assert made.names == DEAD_LETTER_SCHEMA.names
    assert [(f.type, f.nullable) for f in made] == [
        (f.type, f.nullable) for f in DEAD_LETTER_SCHEMA
    ]
