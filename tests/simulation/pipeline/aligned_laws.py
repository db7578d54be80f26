"""What aligned checkpoints promise, over the log that a world left behind.

Has its own idea of a cut: where a checkpoint's barriers stand in the log, of the sources and of
every task. Raises Violation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock_bench.protocols.aligned_core import Part, decode_part

from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.plan import nodes as n
from penstock.protocol.markers import Heard
from penstock.protocol.names import (
    TaskId,
    control_tag,
    coordinator_producer,
    keyed_tag,
    node_tag,
    parse_task,
)
from penstock.stream.registration import stream_tag
from simulation.checkers.evidence import Violation

if TYPE_CHECKING:
    from simulation.pipeline.laws import Evidence, Placed


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One that was completed."""

    number: int
    markers: dict[TaskId, Placed]
    #: Where the sources were cut.
    source_lsn: Lsn
    #: Where each task that passes barriers on has passed this one on.
    barriers: dict[TaskId, Lsn]


class Cuts:
    """All complete checkpoints of a query, in order."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._spec = evidence.spec
        #: By who wrote it, and its number: LSN.
        self._barriers: dict[tuple[str, int, int], Lsn] = {}
        #: By the text of its marker.
        self.parts: dict[bytes, tuple[Lsn, Part]] = {}
        for entry in evidence.entries:
            if entry.kind is Kind.CONTROL and entry.payload.startswith(b'{"barrier"'):
                number = json.loads(entry.payload)["barrier"]
                self._barriers[entry.producer, entry.instance, number] = entry.lsn
            elif control_tag(self._spec.name) in entry.tags:
                told = decode_part(entry.payload)
                if told is not None:
                    self.parts[told.commit["marker"].encode()] = (entry.lsn, told)
        self.all = self._find()
        self._at = {
            placed.lsn: place
            for place, one in enumerate(self.all)
            for placed in one.markers.values()
        }

    def _find(self) -> list[Checkpoint]:
        """The n-th marker of every task is of the n-th checkpoint: there is no other marker."""
        markers = self._evidence.markers
        counts = {len(found) for found in markers.values()}
        if len(counts) != 1:
            raise Violation("I9", f"tasks are at different checkpoints: {counts}")
        rows = zip(*(markers[str(task)] for task in self._spec.task_ids), strict=True)
        return [self._make(row) for row in rows]

    def _make(self, row: tuple[Placed, ...]) -> Checkpoint:
        numbers = set()
        for placed in row:
            if placed.entry.payload not in self.parts:
                raise Violation("I8", f"the marker at {placed.lsn} was told by no task")
            numbers.add(self.parts[placed.entry.payload][1].number)
        if len(numbers) != 1:
            raise Violation("I9", f"markers of checkpoints {numbers} at {row[0].lsn}")
        (number,) = numbers
        run = row[0].entry
        barriers = {}
        for placed in row:
            task = parse_task(placed.marker.task)
            lsn = self._barriers.get((task.producer, placed.marker.instance, number))
            if lsn is not None:
                barriers[task] = lsn
        source = self._barriers.get((coordinator_producer(self._spec.name), run.instance, number))
        if source is None:
            raise Violation("I9", f"checkpoint {number} at {run.lsn} had no barrier")
        by_task = {parse_task(placed.marker.task): placed for placed in row}
        return Checkpoint(number, by_task, source, barriers)

    def between(self, task: TaskId, now: Checkpoint, before: Checkpoint | None) -> range:
        """Where a task's instance wrote what is in one checkpoint, and not in the one before."""
        instance = now.markers[task].marker.instance
        first = 0
        if before is not None and before.markers[task].marker.instance == instance:
            first = before.barriers[task] + 1
        return range(first, now.barriers[task])

    def _pair(self, before: Placed | None, placed: Placed) -> tuple[Checkpoint, Checkpoint | None]:
        now = self.all[self._at[placed.lsn]]
        return now, None if before is None else self.all[self._at[before.lsn]]

    def written(self, task: TaskId, now: Checkpoint, before: Checkpoint | None) -> list[Entry]:
        """Data that a task's instance gave to the next stage between two cuts."""
        instance = now.markers[task].marker.instance
        places = self.between(task, now, before)
        return [
            entry
            for entry in self._evidence.entries[places.start : places.stop]
            if (entry.producer, entry.instance, entry.kind) == (task.producer, instance, Kind.DATA)
        ]

    def taken(self, task: TaskId, before: Placed | None, placed: Placed) -> list[tuple[int, Entry]]:
        """(leaf, entry) of all between two cuts, in log order."""
        now, last = self._pair(before, placed)
        spec, found = self._spec, []
        for place, leaf in enumerate(spec.inputs(task.stage)):
            if isinstance(leaf, n.Scan):
                first = 0 if last is None else last.source_lsn
                tags = frozenset([stream_tag(leaf.stream)])
                counted = self._evidence.released(tags, first, now.source_lsn)
                found += [
                    (place, entry)
                    for _, entry in counted
                    if self._evidence.falls_to(task, entry, leaf.stream)
                ]
                continue
            nodes = {
                node_tag(spec.name, spec.version, leaf.stage, node) for node in spec.owned(task)
            }
            for other in self._evidence.upstream_of(task):
                if other.stage == leaf.stage:
                    found += [
                        (place, entry)
                        for entry in self.written(other, now, last)
                        if not nodes.isdisjoint(entry.tags)
                    ]
        return sorted(found, key=lambda one: one[1].lsn)

    def given(self, task: TaskId, before: Placed | None, placed: Placed) -> list[Entry]:
        now, last = self._pair(before, placed)
        if self._spec.query.stages[task.stage].keys is None:
            return self._evidence.named_at[placed.lsn]
        return self.written(task, now, last)


def check_cuts(evidence: Evidence, cuts: Cuts) -> None:
    """A checkpoint is committed in one group, for instances that nobody has replaced."""
    voice = coordinator_producer(evidence.spec.name)
    before = Lsn(-1)
    for one in cuts.all:
        lsns = [placed.lsn for placed in one.markers.values()]
        if lsns != list(range(lsns[0], lsns[0] + len(lsns))) or any(
            lsn in evidence.group_starts for lsn in lsns[1:]
        ):
            raise Violation("I9", f"the markers of checkpoint {one.number} stand apart: {lsns}")
        for task, placed in one.markers.items():
            _check_marker(evidence, cuts, task, placed, before)
            if placed.entry.producer != voice:
                raise Violation("I10", f"{placed.entry.producer} completed at {placed.lsn}")
        before = lsns[-1]
    complete = {placed.lsn for one in cuts.all for placed in one.markers.values()}
    for records in evidence.records.values():
        for placed in records:
            if placed.lsn not in complete and (placed.marker.ranges or placed.marker.inline):
                raise Violation("I8", f"the marker at {placed.lsn} commits without a checkpoint")


def _check_marker(
    evidence: Evidence, cuts: Cuts, task: TaskId, placed: Placed, before: Lsn
) -> None:
    marker, who = placed.marker, f"marker {placed.marker.number} of {task} at {placed.lsn}"
    for claim in evidence.world.log.claims:
        replaced = claim.producer == task.producer and claim.instance > marker.instance
        if replaced and claim.lsn < placed.lsn:
            raise Violation("I9", f"{who} came after the claim at {claim.lsn}")
    told_lsn, told = cuts.parts[placed.entry.payload]
    if (told.task, told.instance) != (str(task), marker.instance):
        raise Violation("I10", f"{who} was told by {told.task} {told.instance}")
    (reference,) = marker.checkpoints
    published = evidence.world.folder.published.get(str(reference["path"]))
    if published is None or published > told_lsn:
        raise Violation("R37", f"{who} was told at {told_lsn}, before its state was durable")
    for span in marker.ranges:
        if span.end > told_lsn:
            raise Violation("I8", f"{who} names {span} after {told_lsn}")
        for entry in evidence.entries[span.first_lsn : span.end]:
            if (entry.producer, entry.instance) != (task.producer, marker.instance):
                raise Violation("I10", f"{who} names {entry}")
    reads_sources = any(isinstance(leaf, n.Scan) for leaf in evidence.spec.inputs(task.stage))
    cut = cuts.all[cuts._at[placed.lsn]].source_lsn
    if reads_sources and marker.position != cut + 1:
        raise Violation("I9", f"{who} is at {marker.position}, the sources were cut at {cut}")
    if before >= cut:
        raise Violation("I9", f"{who} was begun at {cut}, before {before} was complete")


def check_heard_in_cuts(evidence: Evidence, cuts: Cuts, task: TaskId) -> None:
    """A part says what was last heard of every upstream task before its barrier (I18)."""
    spec = evidence.spec
    heard: dict[str, Heard] = {}
    last: Checkpoint | None = None
    for now in cuts.all:
        for other in evidence.upstream_of(task):
            tag = keyed_tag(spec.name, spec.version, other.stage)
            places = cuts.between(other, now, last)
            instance = now.markers[other].marker.instance
            for one in evidence.records[str(other)]:
                is_one = one.entry.instance == instance and tag in one.entry.tags
                if is_one and one.lsn in places:
                    marker = one.marker
                    heard[str(other)] = Heard(one.lsn, marker.watermark_ms, marker.is_idle)
        found = now.markers[task].marker.heard
        if found != heard:
            raise Violation("I18", f"{task} in {now.number} heard {found}: {heard}")
        last = now
