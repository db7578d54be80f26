"""The layouts that a world's query had, over the log that it left, and the law of handover (I13).

Has its own idea of who succeeds whom: by virtual nodes, of one layout and the next. Raises
Violation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.ids import Lsn
from penstock.log.group_format import decode_sets
from penstock.log.records import Entry, meta_tag
from penstock.protocol.names import TaskId, coordinator_producer, layout_key
from penstock.runtime.layout import read_layout
from penstock.runtime.spec import QuerySpec
from penstock.state.keys import VIRTUAL_NODES
from simulation.checkers.evidence import Violation

if TYPE_CHECKING:
    from simulation.pipeline.laws import Evidence


@dataclass(frozen=True, slots=True)
class Laid:
    """A layout, and the group that made it: its first LSN, and that of its end."""

    spec: QuerySpec
    first: Lsn
    end: Lsn


def find_layouts(spec: QuerySpec, entries: list[Entry], groups: list[Lsn]) -> list[Laid]:
    """All that there were, in order; the first is that of the registration."""
    found = [Laid(spec, Lsn(0), Lsn(0))]
    ends = dict(zip(groups, [*groups[1:], Lsn(len(entries))], strict=True))
    tag, first = meta_tag(layout_key(spec.name)), Lsn(0)
    for entry in entries:
        first = entry.lsn if entry.lsn in ends else first
        if tag in entry.tags:
            for change in decode_sets(entry.payload):
                if change.key == layout_key(spec.name) and change.value is not None:
                    layout = read_layout(change.value, spec.version)
                    assert layout is not None
                    found.append(Laid(spec.under(layout), first, ends[first]))
    return found


def stages_in(spec: QuerySpec, task: TaskId) -> frozenset[int]:
    return frozenset(stage.id for stage in spec.running(task.stage))


def predecessors(old: QuerySpec, new: QuerySpec, task: TaskId) -> list[TaskId]:
    """Who ran any of the task's virtual nodes, of any of its stages."""
    return [
        one
        for one in old.task_ids
        if stages_in(old, one) & stages_in(new, task)
        and (old.owned(one) & new.owned(task) or len(stages_in(old, one)) > 1)
    ]


def check_layouts(evidence: Evidence) -> None:
    """Each virtual node has one owner at each moment, and goes on where the last one ended."""
    voice = coordinator_producer(evidence.spec.name)
    for before, laid in zip(evidence.layouts, evidence.layouts[1:], strict=False):
        for stage in laid.spec.running_stages:
            owned = [n for task in laid.spec.tasks_of(stage) for n in laid.spec.owned(task)]
            if sorted(owned) != list(range(VIRTUAL_NODES)):
                raise Violation("I13", f"layout at {laid.first}: stage {stage} has {owned}")
        if laid.spec.layout.version != before.spec.layout.version + 1:
            raise Violation("I13", f"layout {laid.spec.layout.version} follows {before}")
        old, new = set(before.spec.task_ids), set(laid.spec.task_ids)
        for task in sorted(old - new):
            if any(placed.lsn >= laid.first for placed in evidence.markers[str(task)]):
                raise Violation("I13", f"{task} committed after its successors at {laid.first}")
        for entry in evidence.entries[laid.first : laid.end]:
            if entry.producer != voice:
                raise Violation("I13", f"{entry} changes the layout")
        for task in sorted(new):
            found = evidence.markers[str(task)]
            first = next((one for one in found if one.lsn >= laid.first), None)
            if first is None or not laid.first <= first.lsn < laid.end:
                raise Violation("I13", f"{task} begins at {first}, not with its layout {laid}")
            for one in predecessors(before.spec, laid.spec, task):
                last = [placed for placed in evidence.markers[str(one)] if placed.lsn < laid.first]
                if not last or last[-1].marker.position != first.marker.position:
                    raise Violation("I13", f"{task} begins at {first.marker.position}, not {last}")
                _check_in_flight(evidence, before.spec, one, last[-1].marker.position, laid)


def _check_in_flight(
    evidence: Evidence, old: QuerySpec, task: TaskId, position: Lsn, laid: Laid
) -> None:
    """Nothing of an upstream stage was committed that the old tasks had not taken in."""
    for upstream in evidence.upstream_in(old, task):
        for placed in evidence.markers[str(upstream)]:
            if position <= placed.lsn < laid.first:
                raise Violation("I13", f"{task} ends at {position}, before {placed.lsn}")


def count_layouts(evidence: Evidence) -> list[str]:
    """What happened, for campaigns."""
    found = []
    for before, laid in zip(evidence.layouts, evidence.layouts[1:], strict=False):
        found.append("layout changed")
        for stage, (was, now) in enumerate(zip(before.spec.tasks, laid.spec.tasks, strict=True)):
            if now > was:
                found.append("stage split" if was else "stage set apart")
            elif now < was:
                found.append("stage merged")
            elif now and before.spec.tasks_of(stage) == laid.spec.tasks_of(stage):
                found.append("stage kept")
            elif now:
                found.append("nodes moved")
    return found
