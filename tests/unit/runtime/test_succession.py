"""Where successors begin: positions, what was heard, and whose state they have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulation.pipeline.queries import make_spec

from penstock.errors import QueryFailed
from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.protocol.markers import Heard, Marker
from penstock.protocol.names import TaskId, coordinator_producer, flush_tag
from penstock.runtime.layout import cut_payload
from penstock.runtime.spec import QuerySpec, Settings, rescaled_tasks
from penstock.runtime.succession import (
    Last,
    can_follow,
    levels,
    next_layout,
    plan_layout,
    predecessors,
    shares_for,
    succeed,
)
from penstock.runtime.task_core import TaskCore


def lasts(spec: QuerySpec) -> dict[TaskId, Last]:
    """All tasks have ended: those of stage 0 at 50, those of stage 1 at 60."""
    found = {}
    for at, task in enumerate(spec.task_ids):
        heard = {}
        if task.stage == 1:
            heard = {
                str(one): Heard(Lsn(51), 1000 * (one.index + 1), False, Lsn(50))
                for one in spec.tasks_of(0)
            }
        marker = Marker(
            task=str(task), instance=1, number=7, position=Lsn(50 + 10 * task.stage), inline=0,
            watermark_ms=1000 * (task.index + 1), heard=heard, has_state=True, rows_in=10,
            rows_out=3, cut=(1, 0),
        )  # fmt: skip
        found[task] = Last(Lsn(52 + 10 * task.stage + at), marker)
    return found


def rescaled(spec: QuerySpec, workers: int) -> QuerySpec:
    tasks = rescaled_tasks(spec, workers)
    return spec.under(next_layout(spec, shares_for(spec, tasks), lasts(spec), Lsn(0)))


def test_a_stage_is_cut_after_those_that_it_reads() -> None:
    assert levels(make_spec("join", Settings())) == [[0, 1], [2]]
    assert levels(make_spec("count", Settings(), workers=1)) == [[1]]


def test_two_tasks_become_four() -> None:
    old = make_spec("window", Settings(), lanes=4)
    new = rescaled(old, 4)
    assert new.tasks == (4, 4) and new.layout.version == 1

    markers = succeed(old, new, lasts(old))
    for task in new.tasks_of(1):
        marker = markers[task]
        assert (marker.position, marker.number, marker.instance) == (60, 0, 0)
        (origin,) = marker.origins  # a remainder by 4 is in one remainder by 2
        assert origin.task == f"window.1/1/{new.layout.rank(1, task.index) % 2}"
        assert origin.nodes >= new.owned(task)
        # The latest time that was told of the source, and where all of its tasks had looked.
        assert {*marker.heard} == {str(one) for one in new.tasks_of(0)}
        assert {(w.watermark_ms, w.looked) for w in marker.heard.values()} == {(2000, 50)}
    assert sum(markers[task].rows_in for task in new.tasks_of(1)) == 20, "counters go on"


def test_four_tasks_become_one() -> None:
    old = make_spec("window", Settings(), lanes=4, workers=4)
    new = rescaled(old, 1)
    assert new.tasks == (1, 1), "stages that had tasks of their own keep some"

    markers = succeed(old, new, lasts(old))
    (source,), (last,) = new.tasks_of(0), new.tasks_of(1)
    assert markers[source].watermark_ms == 4000, "of rows of a source the latest"
    assert markers[last].watermark_ms == 1000, "of others the earliest"
    assert [one.task for one in markers[last].origins] == [str(one) for one in old.tasks_of(1)]
    assert markers[last].heard == {str(source): Heard(Lsn(51), 4000, False)}


def test_stages_of_one_task_are_set_apart() -> None:
    old = make_spec("count", Settings(), lanes=4, workers=1)
    assert old.tasks == (0, 1)
    new = rescaled(old, 2)
    assert new.tasks == (2, 2)

    markers = succeed(old, new, lasts(old))
    for task, marker in markers.items():
        assert [(one.task, one.stages) for one in marker.origins] == [("count.1/1/0", (0, 1))]
        assert marker.position == 60 and not marker.heard
        assert marker.watermark_ms is None or task.stage == 1


def test_a_task_that_stays_goes_on_under_its_name() -> None:
    old = make_spec("window", Settings(), lanes=4)
    new = old.under(next_layout(old, shares_for(old, (4, 2)), lasts(old), Lsn(0)))
    task = old.tasks_of(1)[0]

    marker = succeed(old, new, lasts(old))[task]
    assert (marker.number, marker.origins) == (8, ())
    assert {*marker.heard} == {str(one) for one in new.tasks_of(0)}


def test_a_task_that_stays_is_not_begun_by_who_knows_the_old_layout() -> None:
    """It was placed once more after its cut, begins late, and is fenced only a moment later."""
    old = make_spec("window", Settings(), lanes=4)
    new = old.under(next_layout(old, shares_for(old, (4, 2)), lasts(old), Lsn(0)))
    task = old.tasks_of(1)[0]
    marker = succeed(old, new, lasts(old))[task]
    for spec, ends in ((old, True), (new, False)):
        core = TaskCore(spec, task, 2, lambda: 0)
        core.run = 1
        core.begin(marker)
        assert core.is_cut == ends


@pytest.mark.parametrize(
    ("producer", "run", "version", "ends"),
    [
        ("!coordinator", 1, 0, True),
        ("somebody", 1, 0, False),
        ("!coordinator", 2, 0, False),
        ("!coordinator", 1, 1, False),
    ],
    ids=["its own", "of anybody else", "of another run", "of another layout"],
)
def test_a_task_ends_at_a_cut_of_its_coordinator(
    producer: str, run: int, version: int, ends: bool
) -> None:
    spec = make_spec("count", Settings(), lanes=4)
    core = TaskCore(spec, spec.tasks_of(0)[0], 1, lambda: 0)
    core.run = 1
    core.begin(None)
    who = coordinator_producer("count") if producer == "!coordinator" else producer
    tags = (flush_tag("count", 1, 0),)
    core.take(Entry(Lsn(3), Kind.CONTROL, tags, who, run, 0, 0, 0, cut_payload(version)), None)
    assert core.is_cut == ends
    commit = core.take_commit()
    assert commit is not None and commit.marker.position == 4, "it commits there in any case"
    assert commit.marker.cut == ((1, 0) if ends else None)


def test_tasks_that_are_not_at_one_cut_have_no_successors() -> None:
    old = make_spec("window", Settings(), lanes=4)
    new = rescaled(old, 4)
    task = old.tasks_of(1)[0]
    for wrong in ({"position": Lsn(59)}, {"reread_from": Lsn(3)}, {"heard": {}}):
        found = lasts(old)
        marker = replace(found[task].marker, **wrong)  # type: ignore[arg-type]
        found[task] = replace(found[task], marker=marker)
        with pytest.raises(QueryFailed, match="tasks of stage 1"):
            succeed(old, new, found)


def test_queries_that_cannot_be_rescaled_keep_their_tasks() -> None:
    before = replace(make_spec("window", Settings(), lanes=4), shares_sources=False)
    assert rescaled_tasks(before, 4) == before.tasks


@pytest.mark.parametrize("workers", [1, 3, 4])
def test_who_will_have_what_is_known_before_anybody_has_ended(workers: int) -> None:
    old = make_spec("window", Settings(), lanes=4)
    new = rescaled(old, workers)
    planned = plan_layout(old, shares_for(old, rescaled_tasks(old, workers)))
    assert (planned.version, planned.stages) == (new.layout.version, new.layout.stages)
    markers = succeed(old, new, lasts(old))
    for task in new.task_ids:
        before = [str(one) for one in predecessors(old, new, task)]
        assert before == [origin.task for origin in markers[task].origins]
        assert can_follow(old, new, task)


def test_where_two_tasks_may_hold_rows_of_a_virtual_node_their_successors_are_not_made_ready() -> (
    None
):
    """Their stages run together by the lanes of a key: rows are placed by a part of it."""
    old = make_spec("count", Settings(), lanes=4, keyed=True)
    new = rescaled(old, 4)
    assert old.tasks == (0, 2) and new.tasks == (4, 4)
    assert not any(can_follow(old, new, task) for task in new.task_ids)
    one = make_spec("count", Settings(), workers=1)
    two = rescaled(one, 2)
    assert one.tasks == (0, 1) and all(can_follow(one, two, task) for task in two.task_ids)
