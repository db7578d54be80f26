"""Time between tasks: the slowest counts, the unheard hold it back, the idle step aside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from engine_samples import (
    SETTINGS,
    Wired,
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

from penstock.ids import Lsn
from penstock.log.records import Kind, NewEntry
from penstock.ops.api import START_MS
from penstock.plan import nodes as n
from penstock.protocol.markers import Heard, Marker, encode_marker
from penstock.protocol.names import TaskId, keyed_tag
from penstock.runtime.spec import Settings, count_tasks
from penstock.stream.lanes import Lanes

IDLE = Settings(idle_after_ms=5_000)


def counting(tasks: tuple[int, int] = (1, 1), settings: Settings = SETTINGS) -> Wired:
    """Rows per event time, shown when the watermark of stage 0 has passed it."""
    return Wired(spec_of(finals(timed()), mode="append", tasks=tasks, settings=settings))


def twice(tasks: tuple[int, int, int] = (1, 2, 1)) -> Wired:
    """The same of distinct rows, found by the tasks of stage 1."""
    rows = timed()
    keys = tuple(column(rows, at) for at in range(len(rows.schema)))
    distinct = n.Deduplicate(schema=rows.schema, child=rows, keys=keys)
    return Wired(spec_of(finals(distinct), mode="append", tasks=tasks))


def say(
    wired: Wired,
    index: int,
    ms: int | None,
    *,
    idle: bool = False,
    stage: int = 1,
    looked: int = 0,
    rows_in: int = 0,
) -> Lsn:
    """A marker of a task of an earlier stage that tells the time, and how far it has looked."""
    task = str(TaskId("q", 1, stage, index))
    marker = Marker(
        task, 1, len(wired.log), Lsn(looked), 0, watermark_ms=ms, is_idle=idle, rows_in=rows_in
    )
    new = NewEntry(encode_marker(marker), (keyed_tag("q", 1, stage),), Kind.MARKER)
    return wired.append(f"@{task}", 1, [new]).first_lsn


def told(wired: Wired, stage: int = 1) -> tuple[int | None, bool]:
    """What the next commit of a stage says of time."""
    wired.core(stage).refresh()
    wired.commit(wired.task(stage))
    marker = wired.last_marker(stage)
    return marker.watermark_ms, marker.is_idle


def test_a_result_is_shown_once_its_time_has_passed() -> None:
    wired = counting()
    wired.put_through(times(1, 1, 2))
    assert plain(wired.result()) == [(1, 2), (2, 1)]
    assert wired.last_marker(0).watermark_ms == 2_000
    heard = wired.last_marker(1).heard
    assert heard["q.1/0/0"].watermark_ms == 2_000


@pytest.mark.parametrize(
    "story",
    [
        [
            ([(0, 50_000, False), (1, 30_000, False)], (30_000, False)),
            ([(1, 70_000, False)], (50_000, False)),
        ],
        [([(0, 50_000, False)], (START_MS, False))],
        [
            ([(0, 50_000, False), (1, 30_000, True)], (30_000, False)),
            ([(1, 50_000, False)], (50_000, False)),
        ],
        [([(0, 50_000, True)], (START_MS, False)), ([(1, 30_000, True)], (50_000, True))],
        [([(0, 50_000, True), (1, START_MS, True)], (50_000, True))],
        [
            ([(0, 50_000, True), (1, 10_000, True)], (50_000, True)),
            ([(1, 20_000, False)], (50_000, False)),
        ],
    ],
    ids=[
        "the slowest upstream task holds time back",
        "a task that was never heard holds time back",
        "a task that has not heard yet what woke another holds time back",
        "a stage is idle when all that feed it are",
        "tasks that fall idle together hold nobody back",
        "time does not go back when an idle task speaks again",
    ],
)
def test_time_between_stages(story: list[tuple[Any, tuple[int, bool]]]) -> None:
    """What tasks of stage 1 say, a time and whether they are idle; what stage 2 then says."""
    wired = twice()
    for words, answer in story:
        for index, ms, idle in words:
            say(wired, index, ms, idle=idle)
        wired.take(wired.task(2))
        assert told(wired, 2) == answer


@pytest.mark.parametrize(
    "story",
    [
        [
            ([(0, 10, 50_000, False)], START_MS),
            ([(1, 4, 30_000, False)], 30_000),
            ([(1, 10, 31_000, False)], 50_000),
        ],
        [([(0, 10, 50_000, False), (1, 10, START_MS, False)], 50_000)],
        [([(0, 10, 50_000, False), (0, 20, 60_000, False), (1, 15, 1_000, False)], 50_000)],
        [([(0, 10, 50_000, False), (1, 9, START_MS, True)], START_MS)],
        [([(0, 10, 50_000, False), (1, 30, 90_000, False)], 50_000)],
    ],
    ids=[
        "time is taken where all have looked, and is the latest that one told up to there",
        "a share without rows holds nobody back, since it has looked",
        "what was told beyond waits",
        "a share that is idle has looked no farther than it says",
        "time that one told ahead is not yet the time of all",
    ],
)
def test_time_of_a_source_that_tasks_share(story: list[tuple[Any, int]]) -> None:
    """What tasks of stage 0 say: how far they looked, a time, whether they are idle."""
    wired = counting((2, 1))
    for words, answer in story:
        for index, looked, ms, idle in words:
            say(wired, index, ms, idle=idle, stage=0, looked=looked)
        wired.take(wired.task(1))
        assert told(wired)[0] == answer


def test_a_source_is_idle_when_all_its_shares_are() -> None:
    wired = counting((2, 1))
    say(wired, 0, 50_000, stage=0, looked=10, idle=True)
    say(wired, 1, START_MS, stage=0, looked=10)
    wired.take(wired.task(1))
    assert told(wired) == (50_000, False)
    say(wired, 1, START_MS, stage=0, looked=10, idle=True)
    wired.take(wired.task(1))
    assert told(wired) == (50_000, True)


def test_what_was_told_ahead_is_known_to_the_next_instance() -> None:
    wired = counting((2, 1))
    say(wired, 0, 50_000, stage=0, looked=10)
    say(wired, 0, 60_000, stage=0, looked=20)
    say(wired, 1, 40_000, stage=0, looked=5)
    wired.take(wired.task(1))
    assert told(wired)[0] == 40_000
    wired.start(wired.task(1))
    say(wired, 1, 40_000, stage=0, looked=12)
    wired.take(wired.task(1))
    assert told(wired)[0] == 50_000


def test_a_task_without_rows_says_how_far_it_looked_when_another_read_some() -> None:
    wired = counting((2, 1))
    wired.settle()
    before = wired.last_marker(0, 1).number
    say(wired, 0, 9_000, stage=0, looked=len(wired.log), rows_in=3)
    wired.take(wired.task(0, 1))
    assert wired.core(0, 1).has_work
    wired.commit(wired.task(0, 1))
    answer = wired.last_marker(0, 1)
    assert answer.number == before + 1
    assert answer.position > wired.last_marker(0, 0).position
    say(wired, 0, 9_000, stage=0, looked=len(wired.log), rows_in=3)
    wired.take(wired.task(0, 1))
    assert not wired.core(0, 1).has_work, "that was an answer itself: all would go on for ever"


def test_a_source_without_rows_for_so_long_steps_aside() -> None:
    fast, slow = timed("fast"), timed("slow", 11)
    both = n.Union(schema=fast.schema, inputs=(fast, slow))
    wired = Wired(spec_of(finals(both), mode="append", settings=IDLE))
    wired.put_through(times(10), "fast")
    assert plain(wired.result()) == [], "the slow stream may still bring something"
    wired.now_ms += 4_999
    wired.put_through(times(11), "fast")
    assert plain(wired.result()) == []
    wired.now_ms += 1
    wired.settle()
    assert plain(wired.result()) == [(10, 1), (11, 1)]


def test_a_query_whose_sources_are_all_silent_says_that_it_is_idle() -> None:
    wired = counting(settings=IDLE)
    wired.put_through(times(10))
    assert not wired.last_marker(1).is_idle
    wired.now_ms += 5_000
    wired.settle()
    assert wired.last_marker(0).is_idle
    assert wired.last_marker(1).is_idle
    wired.put_through(times(20))
    assert not wired.last_marker(1).is_idle


def test_without_the_setting_nobody_is_idle() -> None:
    wired = counting()
    wired.now_ms += 10**9
    wired.settle()
    assert not wired.last_marker(1).is_idle


def test_a_side_of_a_join_that_says_nothing_holds_the_other_back() -> None:
    pair = join(timed("a"), timed("b", 11))
    wired = Wired(spec_of(finals(pair), mode="append"))
    wired.put_through(times(50), "a")
    assert wired.last_marker(2).watermark_ms == START_MS
    wired.put_through(times(40), "b")
    assert wired.last_marker(2).watermark_ms == 40_000


def test_a_query_without_event_time_tells_none() -> None:
    wired = Wired(spec_of(scan(), mode="append"))
    wired.put_through(pairs((1, 1)))
    assert wired.last_marker().watermark_ms is None


def test_late_rows_are_counted() -> None:
    wired = counting()
    wired.put_through(times(10))
    wired.put_through(times(3, 10, 11))
    assert wired.core(1).stats.rows_late == 2
    assert plain(wired.result()) == [(10, 1), (11, 1)]


def test_every_marker_of_an_upstream_task_is_remembered_with_its_place() -> None:
    wired = twice()
    first = say(wired, 0, 50_000)
    second = say(wired, 1, None, idle=True)
    wired.take(wired.task(2))
    wired.core(2).refresh()
    wired.commit(wired.task(2))
    assert wired.last_marker(2).heard == {
        "q.1/1/0": Heard(first, 50_000, False),
        "q.1/1/1": Heard(second, None, True),
    }


def test_how_many_tasks_read_a_source() -> None:
    timed_rows = spec_of(finals(timed())).query
    assert count_tasks(timed_rows, 4, {"in": 16}) == (4, 4)
    assert count_tasks(timed_rows, 4, {"in": 3}) == (3, 4), "no more than it has lanes"
    assert count_tasks(timed_rows, 4) == (4, 4), "one from before lanes is shared by LSN"
    two = n.Union(schema=timed().schema, inputs=(timed("fast"), timed("slow", 11)))
    assert count_tasks(spec_of(finals(two)).query, 4) == (1, 4), (
        "the time of one is not that of two"
    )
    assert count_tasks(spec_of(scan()).query, 4) == (4,)
    assert count_tasks(spec_of(scan()).query, 1_000) == (64,), "no more than virtual nodes"


def test_a_side_that_tells_no_time_holds_nobody_back() -> None:
    """Even behind a stage that keeps state, from the first moment of the query on."""
    untimed = scan("a", id=11)
    distinct = n.Deduplicate(schema=untimed.schema, child=untimed, keys=(column(untimed, 0),))
    wired = Wired(spec_of(finals(join(distinct, timed("b"))), mode="append"))
    wired.settle()
    wired.feed(pairs((1, 1)), "a")
    wired.put_through(times(10, 20), "b")
    assert plain(wired.result()) == [(10, 1), (20, 1)]


def test_what_upstream_tasks_said_is_known_to_the_next_instance() -> None:
    wired = twice()
    first = say(wired, 0, 50_000)
    say(wired, 1, 30_000)
    wired.take(wired.task(2))
    assert told(wired, 2) == (30_000, False)
    wired.start(wired.task(2))
    second = say(wired, 1, 45_000)
    wired.take(wired.task(2))
    assert told(wired, 2) == (45_000, False)
    heard = wired.last_marker(2).heard
    assert [heard[f"q.1/1/{index}"].lsn for index in range(2)] == [first, second]


def test_a_query_from_before_sources_were_shared_tells_time_as_it_did() -> None:
    spec = spec_of(finals(timed()), mode="append", tasks=(2, 1))
    assert spec.tells_looked(0)
    old = replace(spec, shares_sources=False)
    assert not old.tells_looked(0)
    assert old.source_tags(TaskId("q", 1, 0, 1), "in") == ("s/in",)


@pytest.mark.parametrize("tasks", [(1, 2, 1), (2, 2, 1), (0, 2, 1)])
@pytest.mark.parametrize("slow", [0, 1])
def test_who_was_woken_waits_for_who_still_sleeps(tasks: tuple[int, ...], slow: int) -> None:
    """All step aside; then rows come, and one task hears of them later than its sibling."""
    below = _by_time(timed(), 0, 1)
    root = _by_time(below, 1, id=95)
    spec = spec_of(root, mode="append", tasks=tasks, settings=IDLE)
    sources = {name: replace(source, lanes=16) for name, source in spec.sources.items()}
    wired = Wired(replace(spec, sources=sources))
    lanes = Lanes("in", 16, ("k",))
    wired.settle()
    for second in (10, 30):
        for key in range(8):
            wired.feed(times(second, key=key), "in", lanes)
        wired.settle()
    wired.now_ms += 6_000
    wired.settle()
    for key in range(4):
        wired.feed(times(50, key=key), "in", lanes)
    late = wired.task(1, slow)
    for task in [task for task in wired.cores if task != late] * 6:
        wired.take(task)
        wired.commit(task)
    wired.settle()
    for second in (500, 900):
        wired.feed(times(second, key=3), "in", lanes)
        wired.settle()

    assert {row for row in plain(wired.result()) if row[0] <= 50} == {(10, 8), (30, 8), (50, 4)}


def _by_time(child: n.Node, *places: int, id: int = 90) -> n.Aggregate:
    """Rows by these columns, the last of which is a time, shown once it has passed."""
    counted = count_by(child, *places, id=id)
    return replace(counted, event_time=counted.keys[-1].name, emit="finals")


def test_a_task_without_rows_of_a_keyed_source_says_that_it_has_looked() -> None:
    """Or else the windows of the others would never close."""
    spec = spec_of(_by_time(timed(), 0, 1), mode="append", tasks=(0, 2))
    sources = {name: replace(source, lanes=16) for name, source in spec.sources.items()}
    wired = Wired(replace(spec, sources=sources))
    wired.settle()
    for second in (1, 2, 9):
        wired.feed(times(second, key=1), "in", Lanes("in", 16, ("k",)))
        wired.settle()

    assert plain(wired.result()) == [(1, 1, 1), (1, 2, 1), (1, 9, 1)]
    markers = len(wired.log)
    wired.settle()
    assert len(wired.log) == markers, "when all is quiet, nobody speaks"
