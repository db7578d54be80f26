"""Time between tasks: the slowest counts, the unheard hold it back, the idle step aside."""

from __future__ import annotations

from typing import Any

import pytest
from engine_samples import (
    SETTINGS,
    Wired,
    column,
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

IDLE = Settings(idle_after_ms=5_000)


def counting(tasks: tuple[int, int] = (1, 1), settings: Settings = SETTINGS) -> Wired:
    """Rows per event time, shown when the watermark of stage 0 has passed it."""
    return Wired(spec_of(finals(timed()), mode="append", tasks=tasks, settings=settings))


def say(wired: Wired, index: int, number: int, ms: int | None, *, idle: bool = False) -> Lsn:
    """A marker of a task of stage 0 that tells the time."""
    task = str(TaskId("q", 1, 0, index))
    marker = Marker(task, 1, number, Lsn(0), 0, watermark_ms=ms, is_idle=idle)
    new = NewEntry(encode_marker(marker), (keyed_tag("q", 1, 0),), Kind.MARKER)
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
        [([(0, 50_000, False), (1, 30_000, True)], (50_000, False))],
        [([(0, 50_000, True)], (START_MS, False)), ([(1, 30_000, True)], (50_000, True))],
        [([(0, 50_000, True), (1, START_MS, True)], (50_000, True))],
        [
            ([(0, 50_000, False), (1, 10_000, True)], (50_000, False)),
            ([(1, 20_000, False)], (50_000, False)),
        ],
    ],
    ids=[
        "the slowest upstream task holds time back",
        "a task that was never heard holds time back",
        "an upstream task that is idle steps aside",
        "a stage is idle when all that feed it are",
        "tasks that fall idle together hold nobody back",
        "time does not go back when an idle task speaks again",
    ],
)
def test_time_between_stages(story: list[tuple[Any, tuple[int, bool]]]) -> None:
    """What tasks of stage 0 say, a time and whether they are idle; what stage 1 then says."""
    wired = counting((2, 1))
    for words, answer in story:
        for index, ms, idle in words:
            say(wired, index, len(wired.log), ms, idle=idle)
        wired.take(wired.task(1))
        assert told(wired) == answer


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
    wired = counting((2, 1))
    first = say(wired, 0, 0, 50_000)
    second = say(wired, 1, 0, None, idle=True)
    wired.take(wired.task(1))
    wired.core(1).refresh()
    wired.commit(wired.task(1))
    assert wired.last_marker(1).heard == {
        "q.1/0/0": Heard(first, 50_000, False),
        "q.1/0/1": Heard(second, None, True),
    }


def test_a_source_that_tells_time_is_read_by_one_task() -> None:
    assert count_tasks(spec_of(finals(timed())).query, 4) == (1, 4)
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
    wired = counting((2, 1))
    first = say(wired, 0, 0, 50_000)
    say(wired, 1, 0, 30_000)
    wired.take(wired.task(1))
    assert told(wired) == (30_000, False)
    wired.start(wired.task(1))
    second = say(wired, 1, 1, 45_000)
    wired.take(wired.task(1))
    assert told(wired) == (45_000, False)
    heard = wired.last_marker(1).heard
    assert [heard[f"q.1/0/{index}"].lsn for index in range(2)] == [first, second]
