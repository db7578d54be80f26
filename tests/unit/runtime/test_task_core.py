"""One task: what it takes in, what a commit captures, and what counts of it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from engine_samples import (
    Wired,
    count_by,
    pairs,
    plain,
    scan,
    spec_of,
    timed,
    times,
)

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.log.client import packing
from penstock.log.records import Kind, NewEntry
from penstock.ops.api import Delta
from penstock.ops.pipeline import Pipeline
from penstock.plan import nodes as n
from penstock.protocol.committed import Marked, read_entries
from penstock.protocol.markers import Marker, Range, encode_marker
from penstock.protocol.names import TaskId
from penstock.runtime import outputs, task_core
from penstock.runtime.spec import share_of
from penstock.runtime.task_core import check_marker
from penstock.stream.batches import encode_trusted
from penstock.stream.registration import stream_tag


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[Any]]]:
    """What goes into the operators: (leaf, first column of the rows)."""
    found: list[tuple[int, list[Any]]] = []
    push = Pipeline.push

    def spy(self: Pipeline, leaf: int, delta: Delta) -> list[Delta]:
        found.append((leaf, delta.batch.column(0).to_pylist()))
        return push(self, leaf, delta)

    monkeypatch.setattr(Pipeline, "push", spy)
    return found


def passing(**named: Any) -> Wired:
    """A query that passes rows on, with its first commit behind it."""
    wired = Wired(spec_of(scan(), mode="append", **named))
    wired.settle()
    return wired


# ---- taking in


def test_a_fresh_task_says_at_once_that_it_is_there() -> None:
    wired = Wired(spec_of(scan(), mode="append"))
    commit = wired.commit(wired.task())
    assert commit is not None
    assert commit.cut().inline == () and commit.cut().ahead == ()
    assert wired.markers(wired.task()) == [Marker("q.1/0/0", 1, 0, Lsn(0), inline=0)]
    assert wired.commit(wired.task()) is None, "there is nothing new to say"


def test_rows_go_in_and_out_with_their_position() -> None:
    wired = passing()
    lsn = wired.put_through(pairs((1, 10), (2, 20)))
    assert plain(wired.result()) == [(1, 10), (2, 20)]
    marker = wired.last_marker()
    assert (marker.number, marker.position, marker.rows_in, marker.rows_out) == (1, lsn + 1, 2, 2)
    assert (marker.inline, marker.ranges, marker.origin_ms) == (1, (), 1_000)


def test_the_data_of_a_commit_stands_in_one_group_with_its_marker() -> None:
    wired = passing()
    wired.feed(pairs((1, 10)))
    wired.take(wired.task())
    commit = wired.core().take_commit()
    assert commit is not None
    data, marker = commit.cut().group([])
    assert (data.kind, data.tags, data.rows) == (Kind.DATA, ("s/out",), 1)
    assert (marker.kind, marker.tags) == (Kind.MARKER, ("T/q.1/0/0", "s/out"))


def test_entries_that_wait_are_joined(pushed: list[tuple[int, list[Any]]]) -> None:
    wired = passing()
    for key in range(5):
        wired.feed(pairs((key, 0)))
    wired.settle()
    assert pushed == [(0, [0, 1, 2, 3, 4])]


def test_no_more_rows_are_joined_than_fit_the_cache(
    pushed: list[tuple[int, list[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_core, "ROWS_AT_ONCE", 3)
    wired = passing()
    for rows in (1, 2, 1, 5, 1):
        wired.feed(pairs(*[(rows, 0)] * rows))
    wired.settle()
    assert [len(rows) for _, rows in pushed] == [3, 1, 5, 1], "one entry is never cut"


def test_rows_of_several_leaves_stay_in_log_order(pushed: list[tuple[int, list[Any]]]) -> None:
    left, right = scan("a"), scan("b", id=11)
    both = n.Union(schema=left.schema, inputs=(left, right))
    wired = Wired(spec_of(both, mode="append"))
    for stream, key in (("a", 1), ("a", 2), ("b", 3), ("a", 4)):
        wired.feed(pairs((key, 0)), stream)
    wired.settle()
    assert pushed == [(0, [1, 2]), (1, [3]), (0, [4])]


def test_a_stream_that_is_read_twice_feeds_both_leaves() -> None:
    both = n.Union(schema=scan().schema, inputs=(scan(), scan(id=11)))
    wired = Wired(spec_of(both, mode="append"))
    wired.put_through(pairs((1, 1)))
    assert plain(wired.result()) == [(1, 1), (1, 1)]


def test_a_scan_without_columns_still_counts_rows() -> None:
    bare = n.Scan(schema=pa.schema([]), stream="in", columns=())
    spec = spec_of(count_by(bare), tasks=2)
    wired = Wired(spec)
    schema = pa.schema([])
    for rows in (2, 3):
        empty = pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct(schema)))
        wired.feed(empty)
    wired.settle()
    assert plain(wired.result()) == [(5,)]


def test_every_source_entry_is_taken_in_by_one_task() -> None:
    wired = passing(tasks=3)
    lsns = [wired.feed(pairs((key, key))) for key in range(60)]
    wired.settle()
    assert plain(wired.result()) == [(key, key) for key in range(60)]
    shares = [wired.last_marker(0, index).rows_in for index in range(3)]
    wanted = [sum(share_of(lsn, 3) == index for lsn in lsns) for index in range(3)]
    assert shares == wanted
    assert min(shares) > 10, "about evenly"


def test_every_source_begins_where_it_is_told_to() -> None:
    left, right = scan("a"), scan("b", id=11)
    both = n.Union(schema=left.schema, inputs=(left, right))
    wired = Wired(spec_of(both, mode="append", starts={"a": 2, "b": 1}))
    assert wired.core().position == 1
    for stream, key in (("b", 0), ("a", 1), ("a", 2), ("b", 3)):
        wired.feed(pairs((key, key)), stream)
    wired.settle()
    assert plain(wired.result()) == [(2, 2), (3, 3)]


def test_an_entry_is_taken_in_once() -> None:
    wired = passing()
    wired.put_through(pairs((1, 1)))
    with pytest.raises(AssertionError, match="was taken in before"):
        wired.core().take(wired.log[1], None)


def test_a_request_to_flush_is_answered_by_a_marker_behind_it() -> None:
    wired = passing()
    asked = wired.ask_to_flush(0)
    wired.settle()
    assert wired.last_marker().position == asked + 1
    before = len(wired.log)
    wired.settle()
    assert len(wired.log) == before


def test_how_far_a_task_without_input_looked_is_said_when_asked_for() -> None:
    wired = passing()
    wired.feed(pairs((1, 1)), "another")
    wired.take(wired.task())
    assert not wired.core().has_work
    wired.core().refresh()
    wired.commit(wired.task())
    assert wired.last_marker().position == 2
    wired.core().refresh()
    assert not wired.core().has_work, "it was said"


def test_what_was_taken_in_is_in_the_commit_even_if_it_was_not_worked_on() -> None:
    wired = passing()
    lsn = wired.feed(pairs((1, 1)))
    wired.core().take(wired.log[lsn], wired.log[lsn])
    wired.commit(wired.task())
    assert plain(wired.result()) == [(1, 1)]
    assert wired.last_marker().position == lsn + 1


# ---- results of another query as a source


def stage_and_mark(wired: Wired, *rows: tuple[int, int]) -> tuple[Range, Lsn]:
    """Another query's task stages an entry, and later names it in a marker."""
    tags = (stream_tag("in"),)
    staged = [NewEntry(encode_trusted(pairs(*rows)), tags, Kind.STAGED, rows=len(rows))]
    where = wired.append("@other.1/0/0", 1, staged)
    marker = Marker("other.1/0/0", 1, 0, Lsn(0), 0, ranges=(where,))
    marked = wired.append("@other.1/0/0", 1, [NewEntry(encode_marker(marker), tags, Kind.MARKER)])
    return where, marked.first_lsn


def test_staged_rows_of_a_source_count_at_their_marker() -> None:
    wired = passing()
    _, marked = stage_and_mark(wired, (1, 1))
    wired.take(wired.task(), end=marked)
    assert not wired.core().has_work
    wired.settle()
    assert plain(wired.result()) == [(1, 1)]


def test_of_what_was_fetched_only_what_the_marker_names_counts() -> None:
    wired = passing()
    unnamed = NewEntry(encode_trusted(pairs((9, 9))), (stream_tag("in"),), Kind.STAGED, rows=1)
    wired.append("@other.1/0/0", 1, [unnamed])
    where, marked = stage_and_mark(wired, (1, 1))
    counted = read_entries(marked).take(wired.log[marked])
    assert isinstance(counted, Marked) and counted.missing == [where]
    counted.supply(where, wired.log)
    wired.core().take(wired.log[marked], counted)
    wired.commit(wired.task())
    assert plain(wired.result()) == [(1, 1)]


def test_staged_rows_whose_marker_stands_behind_the_start_count() -> None:
    wired = Wired(spec_of(scan(), mode="append", starts={"in": 1}))
    where, marked = stage_and_mark(wired, (1, 1))
    assert (where.first_lsn, marked) == (0, 1)
    wired.settle()
    assert plain(wired.result()) == [(1, 1)]


def test_staged_rows_whose_marker_stands_before_the_start_do_not_count() -> None:
    wired = Wired(spec_of(scan(), mode="append", starts={"in": 2}))
    stage_and_mark(wired, (1, 1))
    wired.settle()
    assert plain(wired.result()) == []


def test_a_marker_of_another_query_tells_no_time() -> None:
    wired = Wired(spec_of(timed(), mode="append"))
    tags = (stream_tag("in"),)
    marker = Marker("other.1/0/0", 1, 0, Lsn(0), 0, watermark_ms=50_000)
    wired.append("@other.1/0/0", 1, [NewEntry(encode_marker(marker), tags, Kind.MARKER)])
    wired.put_through(times(3))
    assert wired.last_marker().heard == {}
    assert wired.last_marker().watermark_ms == 3_000


# ---- latency


def test_a_commit_says_when_its_oldest_source_entry_was_appended() -> None:
    wired = passing()
    wired.feed(pairs((1, 1)))
    wired.now_ms = 2_000
    wired.put_through(pairs((2, 2)))
    assert wired.last_marker().origin_ms == 1_000
    wired.put_through(pairs((3, 3)))
    assert wired.last_marker().origin_ms == 2_000


def test_the_age_of_rows_passes_from_stage_to_stage() -> None:
    wired = Wired(spec_of(count_by(scan(), 0), tasks=2))
    wired.settle()
    wired.feed(pairs((1, 1)))
    wired.now_ms = 1_500
    wired.settle()
    ages = [wired.last_marker(1, index).origin_ms for index in range(2)]
    assert sorted(ages, key=str) == [1_000, None], "one of them had no rows"


def test_rows_are_not_as_old_as_what_others_were_sent_before() -> None:
    wired = Wired(spec_of(count_by(scan(), 0), tasks=(1, 2)))
    wired.settle()
    wired.put_through(pairs((1, 1)))
    idle = next(task for task in (0, 1) if wired.last_marker(1, task).rows_in == 0)
    wired.now_ms = 9_000
    for key in range(2, 20):
        wired.feed(pairs((key, 1)))
    wired.settle()
    marker = wired.last_marker(1, idle)
    assert marker.rows_in > 0
    assert marker.origin_ms == 9_000


# ---- state and outputs


def test_results_over_nothing_are_said_once_in_a_life() -> None:
    wired = Wired(spec_of(count_by(scan())))
    wired.settle()
    assert plain(wired.result()) == [(0,)]
    wired.start(wired.task(1))
    wired.settle()
    assert plain(wired.result()) == [(0,)], "the next instance does not say it again"
    wired.put_through(pairs((1, 1)))
    assert plain(wired.result()) == [(1,)]


def test_only_one_of_several_tasks_speaks_over_nothing() -> None:
    wired = Wired(spec_of(count_by(scan()), tasks=3))
    wired.settle()
    assert plain(wired.result()) == [(0,)]


def test_changes_of_state_stand_in_the_group_of_their_marker() -> None:
    wired = Wired(spec_of(count_by(scan(), 0)))
    wired.settle()
    assert not wired.last_marker(1).has_state
    wired.put_through(pairs((1, 1)))
    marker = wired.last_marker(1)
    kinds = [entry.kind for entry in wired.log if entry.producer == wired.task(1).producer]
    assert kinds[-3:] == [Kind.DATA, Kind.CHANGE, Kind.MARKER]
    assert (marker.has_state, marker.inline) == (True, 2)


def test_a_task_takes_nothing_more_while_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_core, "PENDING_BYTES_MAX", 100)
    wired = passing()
    wired.feed(pairs(*[(key, key) for key in range(20)]))
    wired.take(wired.task())
    assert wired.core().is_full
    wired.commit(wired.task())
    assert not wired.core().is_full


# ---- more than one group holds


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "PAYLOAD_BYTES_MAX", 800)
    monkeypatch.setattr(task_core, "PAYLOAD_BYTES_MAX", 800)
    monkeypatch.setattr(packing, "GROUP_BYTES", 3_000)


@pytest.mark.usefixtures("small_groups")
def test_a_large_result_is_staged_and_counts_at_its_marker_in_order() -> None:
    wired = passing()
    rows = [(key, key) for key in range(300)]
    wired.feed(pairs(*rows))
    wired.take(wired.task())
    before = len(wired.log)
    commit = wired.core().take_commit()
    assert commit is not None and len(commit.cut().ahead) > 2
    assert commit.cut().inline == () and commit.marker.inline == 0
    ranges = [wired.append("@q.1/0/0", 1, group) for group in commit.cut().ahead]
    assert wired.committed("out") == [], "nothing counts before the marker"
    assert {entry.kind for entry in wired.log[before:]} == {Kind.STAGED}
    wired.append("@q.1/0/0", 1, commit.cut().group(ranges))
    assert wired.last_marker().ranges == tuple(ranges)
    found = wired.result().to_pylist()
    assert [tuple(row.values()) for row in found] == rows


@pytest.mark.usefixtures("small_groups")
def test_rows_that_an_instance_staged_before_it_died_never_count() -> None:
    wired = passing()
    wired.feed(pairs(*[(key, key) for key in range(300)]))
    wired.take(wired.task())
    commit = wired.core().take_commit()
    assert commit is not None
    for group in commit.cut().ahead:
        wired.append("@q.1/0/0", 1, group)
    wired.start(wired.task())
    wired.settle()
    assert plain(wired.result()) == [(key, key) for key in range(300)]


# ---- faults in what is read


def test_a_marker_under_the_tag_of_another_task_is_refused() -> None:
    marker = Marker("q.1/0/0", 1, 0, Lsn(0), 0)
    check_marker(marker, TaskId("q", 1, 0, 0))
    with pytest.raises(BadFormat, match=r"a marker of q.1/0/0 stands under the tag of q.1/0/1"):
        check_marker(marker, TaskId("q", 1, 0, 1))
