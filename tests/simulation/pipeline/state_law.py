"""The law of state (I11): what an instance found is the fold of the committed input.

Recomputes it from the input, with operators and a state of its own that were never restored, one
task at a time, and compares contents at every recovery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.ops.api import Delta
from penstock.ops.chain import Chain
from penstock.ops.payloads import decode_delta, decode_placed
from penstock.plan import nodes as n
from penstock.plan.nodes import StageInput
from penstock.protocol.markers import Marker
from penstock.protocol.names import TaskId
from penstock.runtime.inputs import decode_source
from penstock.runtime.spec import QuerySpec
from penstock.state.api import Change, Changes
from penstock.state.memory import MemoryState
from simulation.checkers.evidence import Violation
from simulation.pipeline.lineage import predecessors, stages_in
from simulation.pipeline.queries import SOURCE
from simulation.pipeline.story import contents_of

if TYPE_CHECKING:
    from simulation.pipeline.laws import Evidence, Placed

#: The state in which tasks ended, by their last markers: each is folded once, since the ways to an
#: ancestor are more with every layout.
Ends = dict[tuple[TaskId, Lsn], Changes]


def check_recoveries(evidence: Evidence) -> None:
    """Every instance went on after its task's last marker, with the state of that marker."""
    ends: Ends = {}
    for task in evidence.tasks:
        placed = evidence.markers[str(task)]
        fold = _Fold(evidence, task, ends)
        recoveries = [one for one in evidence.world.story.recoveries if one.task == task]
        for found in sorted(recoveries, key=lambda one: (one.marker.number, one.instance)):
            lsn = next((one.lsn for one in placed if one.marker == found.marker), None)
            if lsn is None:
                raise Violation("I11", f"{found.instance} of {task} resumed at no marker")
            late = [
                one.lsn
                for one in placed
                if one.lsn > lsn
                and one.marker.instance < found.instance
                and one.entry.producer == task.producer  # else it stands with a layout
            ]
            if late:
                raise Violation("R22", f"{found.instance} of {task} resumed before {late}")
            counted = _changes_between(evidence, task, found.base, lsn)
            if found.replayed != counted:
                raise Violation(
                    "I11", f"{task} replayed the changes at {found.replayed}, not {counted}"
                )
            wanted = fold.state_at(lsn)
            if found.contents != wanted:
                raise Violation(
                    "I11",
                    f"{task} instance {found.instance} at marker {lsn} found "
                    f"{str(found.contents)[:200]}, not {str(wanted)[:200]}",
                )


def _named(
    part: Change, old: QuerySpec, one: TaskId, new: QuerySpec, task: TaskId
) -> Change | None:
    """A part of a predecessor's state, where its successor has it; None if it has none."""
    stage, name = one.stage, part.name
    if name.startswith("stage-"):
        prefix, _, name = name.partition("/")
        stage = int(prefix.removeprefix("stage-"))
    if stage not in stages_in(new, task):
        return None
    here = name if stage == task.stage else f"stage-{stage}/{name}"
    return Change(here, part.kind, part.rows)


def _changes_between(
    evidence: Evidence, task: TaskId, base: Lsn | None, marker_lsn: Lsn
) -> list[Lsn]:
    """The changes that count, after the checkpoint and up to the marker of a recovery."""
    lsns: list[int] = []
    for placed in evidence.markers[str(task)]:
        if (-1 if base is None else base) < placed.lsn <= marker_lsn:
            marker = placed.marker
            spans = [(one.first_lsn, one.end) for one in marker.ranges]
            for first, end in (*spans, (placed.lsn - marker.inline, placed.lsn)):
                lsns += range(first, end)
    return [Lsn(lsn) for lsn in lsns if evidence.entries[lsn].kind is Kind.CHANGE]


class _Fold:
    """One task's operators over its committed input, marker by marker."""

    def __init__(self, evidence: Evidence, task: TaskId, ends: Ends) -> None:
        self._evidence = evidence
        self._task = task
        self._ends = ends
        self._spec = evidence.spec_of(task)
        self._inputs = self._spec.inputs(task.stage)
        self._state = MemoryState(self._spec.owned(task))
        self._pipeline = Chain(self._spec.running(task.stage), self._state, {})
        self._at: Placed | None = None
        #: Place in the order of the source, leaf, row.
        self._waiting: list[tuple[int, int, Delta]] = []
        self._next = iter(evidence.markers[str(task)])
        if not self._inherit():
            self._pipeline.start()

    def _inherit(self) -> bool:
        """What those had who ran its virtual nodes before, if any did."""
        evidence, task = self._evidence, self._task
        first = next(iter(evidence.markers[str(task)]), None)
        if first is None or not evidence.is_handed_over(first):
            return False
        self._at = next(self._next)
        at = next(i for i, one in enumerate(evidence.layouts) if one.first <= first.lsn < one.end)
        old, new = evidence.layouts[at - 1].spec, evidence.layouts[at].spec
        values: dict[str, list[Change | None]] = {}
        for one in predecessors(old, new, task):
            last = [found for found in evidence.markers[str(one)] if found.lsn < first.lsn][-1]
            parts = self._end_of(one, last.lsn)
            for node in sorted(new.owned(task)):
                named = [_named(part, old, one, new, task) for part in parts.get(node, ())]
                self._state.apply([part for part in named if part is not None])
            kept = {}
            for part in parts.get(-1, ()):
                renamed = _named(part, old, one, new, task)
                if renamed is not None and part.kind == "set":
                    kept[renamed.name] = renamed
            for name in {*values, *kept}:
                values.setdefault(name, []).append(kept.get(name))
        for name, told in values.items():
            numbers = [one.rows.column(0)[0].as_py() for one in told if one is not None]
            if name.endswith("largest_ms"):
                chosen = max(numbers)
            elif len(numbers) < len(told):
                continue
            else:
                chosen = min(numbers)
            batch = pa.record_batch([pa.array([chosen], pa.int64())], names=["value"])
            self._state.apply([Change(name, "set", batch)])
        self._state.forget_log()
        return True

    def _end_of(self, task: TaskId, lsn: Lsn) -> Changes:
        if (task, lsn) not in self._ends:
            fold = _Fold(self._evidence, task, self._ends)
            fold.state_at(lsn)
            self._ends[task, lsn] = fold._state.snapshot()
        return self._ends[task, lsn]

    def state_at(self, lsn: Lsn) -> object:
        """Of the marker there; later ones only after it."""
        if self._at is not None and self._at.lsn == lsn and self._evidence.is_handed_over(self._at):
            return contents_of(self._state)  # nothing was done with it yet
        while self._at is None or self._at.lsn < lsn:
            before, self._at = self._at, next(self._next)
            for place, entry in self._evidence.taken(self._task, before, self._at):
                leaf = self._inputs[place]
                spec = self._evidence.spec_of(self._task, self._at.lsn + 1)
                if isinstance(leaf, StageInput) and spec.orders(leaf.stage):
                    self._keep(place, leaf, entry)
                else:
                    self._pipeline.push(place, self._decode(place, entry))
            self._push_ordered(self._at.marker)
        marker = self._at.marker
        leaves = enumerate(self._inputs)
        # What the marker says of time is what its operators had been told.
        marks = {
            place: marker.watermark_ms if isinstance(leaf, StageInput) else None
            for place, leaf in leaves
        }
        within = self._spec.shared_within(self._task.stage)
        shared = dict.fromkeys(within, (marker.watermark_ms, False))
        self._pipeline.advance(marks, frozenset(), shared)
        return contents_of(self._state)

    def _keep(self, place: int, leaf: StageInput, entry: Entry) -> None:
        delta, order = decode_placed(entry.payload, leaf.schema)
        for row, where in enumerate(order.tolist()):
            self._waiting.append((where, place, Delta(delta.batch.slice(row, 1))))

    def _push_ordered(self, marker: Marker) -> None:
        """Row by row, in the order of the source, as far as all that share it have looked."""
        self._waiting.sort(key=lambda one: one[0])
        while self._waiting:
            where, place, row = self._waiting[0]
            leaf = self._inputs[place]
            assert isinstance(leaf, StageInput)
            assert self._at is not None
            spec = self._evidence.spec_of(self._task, self._at.lsn + 1)
            tasks = [one for one in spec.task_ids if one.stage == leaf.stage]
            words = [marker.heard.get(str(task)) for task in tasks]
            if where >> 20 >= min(0 if word is None else word.looked for word in words):
                return
            del self._waiting[0]
            self._pipeline.push(place, row)

    def _decode(self, place: int, entry: Entry) -> Delta:
        leaf = self._inputs[place]
        if isinstance(leaf, n.Scan):
            return Delta(decode_source(entry, leaf, SOURCE))
        changing = self._evidence.spec.query.stages[leaf.stage].changing
        return decode_delta(entry.payload, leaf.schema, changing=changing)
