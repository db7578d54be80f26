"""From one layout to the next: the markers at which successors begin. Pure.

All tasks of a stage stand at one position, their cut, and nothing is on its way between stages: the
cut of each stage came after the last markers of those that it reads. So whatever a task has heard
is known to all of its stage, and a successor's first marker follows from its predecessors' last:

    position   the stage's cut
    heard      of each upstream task, one word for its successors: of a shared source, the latest
               time that was told and where all have looked; else the earliest time
    origins    where its state is (inheritance.py)

Law (I13, I18): every row below the cut is in the last markers of one predecessor, every row from it
on is one successor's; and what a successor has heard is not older than what any reader was told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.errors import QueryFailed
from penstock.ids import Lsn
from penstock.plan import nodes as n
from penstock.plan.nodes import StageInput
from penstock.protocol.markers import Heard, Marker, Origin
from penstock.protocol.names import TaskId
from penstock.runtime.layout import Layout, Retired, Shares, evenly
from penstock.runtime.spec import QuerySpec
from penstock.runtime.trim_rule import needed_from


@dataclass(frozen=True, slots=True)
class Last:
    """The last marker of a task, and where it stands."""

    lsn: Lsn
    marker: Marker


Lasts = Mapping[TaskId, Last]


def levels(spec: QuerySpec) -> list[list[int]]:
    """The stages in the order of their cuts: those of one level read none of each other."""
    level: dict[int, int] = {}
    for stage in spec.running_stages:
        read = [leaf.stage for leaf in spec.inputs(stage) if isinstance(leaf, StageInput)]
        level[stage] = 1 + max((level[one] for one in read), default=-1)
    return [[s for s in level if level[s] == one] for one in sorted(set(level.values()))]


def _changed(old: QuerySpec, tasks: Sequence[int]) -> list[int]:
    """The stages that get other tasks when there are to be so many for each."""
    changed = {id for id, count in enumerate(tasks) if count != old.tasks[id]}
    # A stage that gets tasks of its own leaves those in which it ran.
    return sorted(changed | {old.home_of(id) for id in changed if old.tasks[id] == 0})


def shares_for(old: QuerySpec, tasks: Sequence[int]) -> Shares:
    """With so many tasks for each stage; nothing if it has as many."""
    return {id: evenly(tasks[id], old.layout.made[id]) for id in _changed(old, tasks)}


def plan_layout(old: QuerySpec, shares: Shares) -> Layout:
    """Who will have what in the next layout: that is known before anybody has retired."""
    return replace(old.layout.next(shares, (), Lsn(0)), retired=())


def next_layout(old: QuerySpec, shares: Shares, lasts: Lasts, trimmed: Lsn) -> Layout:
    """With these tasks of the stages that change."""
    retired = [
        Retired(task.stage, task.index, lasts[task].lsn, lasts[task].marker.rows_out)
        for task in old.task_ids
        if task.stage in shares
        and old.layout.share(task.stage, task.index) not in shares[task.stage]
    ]
    return old.layout.next(shares, retired, trimmed)


def predecessors(old: QuerySpec, new: QuerySpec, task: TaskId) -> list[TaskId]:
    """Who has of its virtual nodes, of any of its stages; none but itself if it stays."""
    if task in old.task_ids:
        return [task]
    return [one for one in _hosts(old, new, task) if old.holds(one) & new.owned(task)]


def can_follow(old: QuerySpec, new: QuerySpec, task: TaskId) -> bool:
    """Whether its state can be put together while its predecessors run.

    It can if no virtual node is of two: else nothing says whose rows an eviction strikes.
    """
    held = [node for one in predecessors(old, new, task) for node in old.holds(one)]
    return len(held) == len({*held})


def succeed(old: QuerySpec, new: QuerySpec, lasts: Lasts) -> dict[TaskId, Marker]:
    """By task of the next layout, the marker that it goes on from."""
    _check_cut(old, lasts)
    start = Lsn(min((source.start for source in old.sources.values()), default=0))
    markers: dict[TaskId, Marker] = {}
    for task in new.task_ids:
        if task in lasts:
            last = lasts[task].marker
            heard = _heard(old, new, task.stage, [task], lasts)
            # It keeps the cut: an instance that knows the old layout alone goes no further.
            markers[task] = replace(
                last, number=last.number + 1, inline=0, ranges=(), heard=heard, origin_ms=None
            )
        else:
            markers[task] = _first_marker(old, new, task, lasts, start)
    return markers


def _check_cut(old: QuerySpec, lasts: Lasts) -> None:
    for stage in old.running_stages:
        markers = [lasts[task].marker for task in old.tasks_of(stage)]
        if len({marker.position for marker in markers}) != 1:
            raise QueryFailed(f"tasks of stage {stage} stand at different positions")
        if any(marker.reread_from is not None for marker in markers):
            raise QueryFailed(f"tasks of stage {stage} hold rows that wait for others")
        if any(marker.heard != markers[0].heard for marker in markers):
            raise QueryFailed(f"tasks of stage {stage} have heard different things")


def _stages(spec: QuerySpec, stage: int) -> tuple[int, ...]:
    return tuple(one.id for one in spec.running(stage))


def _hosts(old: QuerySpec, new: QuerySpec, task: TaskId) -> list[TaskId]:
    """In which any of its stages run."""
    own = set(_stages(new, task.stage))
    return [one for one in old.task_ids if own & set(_stages(old, one.stage))]


def _first_marker(old: QuerySpec, new: QuerySpec, task: TaskId, lasts: Lasts, start: Lsn) -> Marker:
    hosts, before = _hosts(old, new, task), predecessors(old, new, task)
    stays = [one for one in old.task_ids if one in new.task_ids]
    comes = [one for one in new.tasks_of(task.stage) if one not in stays]
    markers = [lasts[one].marker for one in before]
    alike = [lasts[one].marker for one in before if one.stage == task.stage]
    is_source = any(isinstance(leaf, n.Scan) for leaf in new.inputs(task.stage))
    # What all that end have counted goes on with one of those that come.
    ended = [one for one in hosts if one not in stays] if task == comes[0] else []
    counted = [lasts[one].marker for one in ended]
    return Marker(
        task=str(task),
        instance=0,
        number=0,
        position=min(marker.position for marker in markers),
        inline=0,
        watermark_ms=_together([m.watermark_ms for m in alike], is_largest=is_source),
        is_idle=bool(alike) and all(marker.is_idle for marker in alike),
        heard=_heard(old, new, task.stage, before, lasts),
        has_state=any(marker.has_state for marker in markers),
        rows_in=sum(marker.rows_in for marker in counted),
        rows_out=sum(one.rows_out for one in counted if one.task.split("/")[1] == str(task.stage)),
        origins=tuple(_origin(old, one, lasts[one], start) for one in before),
    )


def _origin(old: QuerySpec, task: TaskId, last: Last, start: Lsn) -> Origin:
    needs = needed_from(last.marker, start) if last.marker.has_state else None
    return replace(plan_origin(old, task), lsn=last.lsn, needs_from=needs)


def plan_origin(old: QuerySpec, task: TaskId) -> Origin:
    """A predecessor that has not ended yet."""
    return Origin(str(task), Lsn(0), _stages(old, task.stage), old.holds(task), None)


def _together(times: Sequence[int | None], *, is_largest: bool) -> int | None:
    told = [ms for ms in times if ms is not None]
    if is_largest:
        return max(told, default=None)
    return min(told) if told and len(told) == len(times) else None


def _heard(
    old: QuerySpec, new: QuerySpec, stage: int, before: Sequence[TaskId], lasts: Lasts
) -> dict[str, Heard]:
    """What was heard, under the names of the next layout; of stages that had no tasks, nothing."""
    known = lasts[before[0]].marker.heard
    heard: dict[str, Heard] = {}
    for leaf in new.inputs(stage):
        if not isinstance(leaf, StageInput) or not old.tasks[leaf.stage]:
            continue
        was, now = old.tasks_of(leaf.stage), new.tasks_of(leaf.stage)
        words = [known[str(task)] for task in was if str(task) in known]
        if was == now:
            heard |= {str(task): known[str(task)] for task in was if str(task) in known}
        elif len(words) == len(was):
            looked = lasts[was[0]].marker.position if new.tells_looked(leaf.stage) else Lsn(0)
            word = _one_word(words, looked, is_largest=old.tells_looked(leaf.stage))
            heard |= {str(task): word for task in now}
    peers = new.tasks_of(stage)
    within = {str(replace(one, stage=id)) for id in new.shared_within(stage) for one in peers}
    return heard | {name: word for name, word in known.items() if name in within}


def _one_word(words: Sequence[Heard], looked: Lsn, *, is_largest: bool) -> Heard:
    """What predecessors have told, as their successors' word."""
    return Heard(
        lsn=Lsn(max(word.lsn for word in words)),
        watermark_ms=_together([word.watermark_ms for word in words], is_largest=is_largest),
        is_idle=all(word.is_idle for word in words),
        looked=looked,
    )
