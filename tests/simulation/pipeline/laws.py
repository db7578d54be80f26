"""The laws of exactly once over the log that a world left behind (reliability I8 to I12, I15).

Those of every commit protocol, and those of markers; transaction_laws.py and aligned_laws.py judge
what the other protocols promise instead of one group per commit. They read the log, what readers
were shown and what instances found, never the engine's memory, and have their own idea of what
counts. Raise Violation for the first law that is broken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.ids import Lsn
from penstock.log.records import Entry, Kind, meta_tag
from penstock.ops.api import START_MS
from penstock.plan import nodes as n
from penstock.plan.nodes import StageInput
from penstock.protocol.markers import Heard, Marker, decode_marker
from penstock.protocol.names import TaskId, keyed_tag, node_tag, parse_task, run_key
from penstock.runtime.spec import QuerySpec, share_of
from penstock.stream.batches import decode_batch
from penstock.stream.registration import stream_tag
from simulation.checkers.evidence import Violation
from simulation.pipeline.aligned_laws import Cuts, check_cuts, check_heard_in_cuts
from simulation.pipeline.lineage import check_layouts, find_layouts, predecessors
from simulation.pipeline.queries import SOURCE, Rows, add_rows, run_oracle
from simulation.pipeline.state_law import check_recoveries
from simulation.pipeline.story import Witness
from simulation.pipeline.transaction_laws import check_heard_records, check_transactions


@dataclass(frozen=True, slots=True)
class Placed:
    """A marker and where it stands."""

    lsn: Lsn
    marker: Marker
    entry: Entry


class Evidence:
    """The log, with what every marker commits.

    `markers` has one for every commit of a task; with transactions `records` has more.
    """

    def __init__(self, world: Witness) -> None:
        self.world = world
        self.spec = world.spec
        self.entries = world.log.entries
        self.group_starts = frozenset(world.log.groups)
        self.protocol = world.spec.settings.protocol.name
        self.layouts = find_layouts(world.spec, self.entries, world.log.groups)
        #: Of all layouts.
        self.tasks = sorted({task for laid in self.layouts for task in laid.spec.task_ids})
        self.markers: dict[str, list[Placed]] = {str(task): [] for task in self.tasks}
        #: All entries that are markers, by task.
        self.records: dict[str, list[Placed]] = {str(task): [] for task in self.tasks}
        #: By layout and stage, what its tasks read; they are asked for at every marker.
        self._leaves: dict[tuple[int, int], tuple[n.Scan | StageInput, ...]] = {}
        self._tasks_in = [frozenset(laid.spec.task_ids) for laid in self.layouts]
        self._tags: dict[tuple[TaskId, int], frozenset[str]] = {}
        #: Staged entries, at the LSN of the marker that names them.
        self.named_at: dict[Lsn, list[Entry]] = {}
        for entry in self.entries:
            if entry.kind is not Kind.MARKER:
                continue
            marker = decode_marker(entry.payload)
            placed = Placed(entry.lsn, marker, entry)
            self.records[marker.task].append(placed)
            if self.protocol == "marker" or f"T/{marker.task}" in entry.tags:
                self.markers[marker.task].append(placed)
            found = [
                one for span in marker.ranges for one in self.entries[span.first_lsn : span.end]
            ]
            self.named_at[entry.lsn] = [one for one in found if one.kind is Kind.STAGED]
        self.cuts = Cuts(self) if self.protocol == "aligned" else None

    def taken(self, task: TaskId, before: Placed | None, placed: Placed) -> list[tuple[int, Entry]]:
        """(leaf, entry) of all that must be in a marker, and was not in the one before it."""
        if self.cuts is not None:
            return self.cuts.taken(task, before, placed)
        start = 0 if before is None else before.marker.position
        return self.inputs_of(task, start, placed.marker.position)

    def given(self, task: TaskId, before: Placed | None, placed: Placed) -> list[Entry]:
        """What a commit gave to the next stage, or as result."""
        if self.cuts is not None:
            return self.cuts.given(task, before, placed)
        inline = self.entries[placed.lsn - placed.marker.inline : placed.lsn]
        number = placed.marker.number
        records = [one for one in self.records[str(task)] if one.marker.number == number]
        return [*inline, *(staged for one in records for staged in self.named_at[one.lsn])]

    def spec_of(self, task: TaskId, before: int | None = None) -> QuerySpec:
        """Under the newest layout that has the task, of those made before an LSN."""
        end = len(self.entries) if before is None else before
        for laid, tasks in zip(reversed(self.layouts), reversed(self._tasks_in), strict=True):
            if task in tasks and (laid.first < end or not laid.end):
                return laid.spec
        raise Violation("I13", f"{task} is in no layout before {end}")

    def leaves_of(self, spec: QuerySpec, stage: int) -> tuple[n.Scan | StageInput, ...]:
        key = (spec.layout.version, stage)
        if key not in self._leaves:
            self._leaves[key] = spec.inputs(stage)
        return self._leaves[key]

    def upstream_of(self, task: TaskId, before: int | None = None) -> list[TaskId]:
        return self.upstream_in(self.spec_of(task, before), task)

    def upstream_in(self, spec: QuerySpec, task: TaskId) -> list[TaskId]:
        leaves = self.leaves_of(spec, task.stage)
        stages = {leaf.stage for leaf in leaves if isinstance(leaf, StageInput)}
        return [one for one in spec.task_ids if one.stage in stages]

    def is_handed_over(self, placed: Placed) -> bool:
        """Whether a marker is one at which a task goes on under another layout."""
        return any(laid.first <= placed.lsn < laid.end for laid in self.layouts)

    def released(self, tags: frozenset[str], start: int, end: int) -> list[tuple[Lsn, Entry]]:
        """What counts for a reader of these tags between two LSNs, in order."""
        found: list[tuple[Lsn, Entry]] = []
        for entry in self.entries[start:end]:
            if entry.kind is Kind.DATA and not tags.isdisjoint(entry.tags):
                found.append((entry.lsn, entry))
            for staged in self.named_at.get(entry.lsn, ()):
                if not tags.isdisjoint(staged.tags):
                    found.append((entry.lsn, staged))
        return found

    def inputs_of(self, task: TaskId, start: int, end: int) -> list[tuple[int, Entry]]:
        """(leaf, entry) of all that a task must take in between two positions, in order."""
        found: list[tuple[int, Lsn, Entry]] = []
        for place, leaf in enumerate(self.leaves_of(self.spec_of(task), task.stage)):
            if isinstance(leaf, n.Scan):
                tags = frozenset([stream_tag(leaf.stream)])
                found += [
                    (place, lsn, entry)
                    for lsn, entry in self.released(tags, start, end)
                    if self.falls_to(task, entry, leaf.stream)
                ]
            else:
                tags = self._node_tags(task, leaf.stage)
                found += [(place, at, entry) for at, entry in self.released(tags, start, end)]
        return [(place, entry) for place, _, entry in sorted(found, key=lambda one: one[1])]

    def _node_tags(self, task: TaskId, stage: int) -> frozenset[str]:
        """What a task reads of a stage."""
        found = self._tags.get((task, stage))
        if found is None:
            name, version = self.spec.name, self.spec.version
            owned = self.spec_of(task).owned(task)
            tags = (node_tag(name, version, stage, node) for node in owned)
            found = self._tags[task, stage] = frozenset(tags)
        return found

    def falls_to(self, task: TaskId, entry: Entry, stream: str) -> bool:
        """Whether the task takes in an entry of a source: by its lane, or else by its LSN."""
        spec = self.spec_of(task)
        rivals = spec.tasks_of(task.stage)
        prefix = f"l/{stream}/"
        for tag in entry.tags if self.spec.settings.protocol.shares_sources else ():
            if tag.startswith(prefix):
                return int(tag.removeprefix(prefix)) in spec.owned(task)
        return rivals[share_of(entry.lsn, len(rivals))] == task

    def sources(self) -> list[tuple[str, Entry]]:
        tags = {stream_tag(name): name for name in self.spec.query.streams}
        return [
            (tags[entry.tags[0]], entry)
            for entry in self.entries
            if entry.kind is Kind.DATA and entry.tags[0] in tags
        ]


def check_all(world: Witness, evidence: Evidence | None = None) -> None:
    """All laws over a world that has come to rest; its evidence, if it was gathered already."""
    evidence = evidence or Evidence(world)
    check_fenced(evidence)
    check_claims(evidence)
    check_layouts(evidence)
    for task in evidence.tasks:
        check_markers(evidence, task)
        check_checkpoints(evidence, task)
        match evidence.protocol:
            case "marker":
                check_author(evidence, task)
                check_heard(evidence, task)
                check_groups(evidence, task)
            case "transaction":
                check_transactions(evidence, task)
                check_heard_records(evidence, task)
            case _:
                assert evidence.cuts is not None
                check_heard_in_cuts(evidence, evidence.cuts, task)
    if evidence.cuts is not None:
        check_cuts(evidence, evidence.cuts)
    check_data(evidence)
    check_trims(evidence)
    check_recoveries(evidence)
    check_result(evidence)


def check_fenced(evidence: Evidence) -> None:
    """Once an instance is claimed, no older one of the task writes (I5), nor anybody else."""
    claims = {claim.lsn: claim for claim in evidence.world.log.claims}
    newest: dict[str, int] = {}
    for entry in evidence.entries:
        known = newest.get(entry.producer, 0)
        if entry.lsn in claims:
            if entry.instance <= known:
                raise Violation("I5", f"{entry.producer} was claimed as {entry.instance} again")
            newest[entry.producer] = entry.instance
        elif entry.instance != known:
            raise Violation("I5", f"instance {entry.instance} wrote {entry} after {known}")


def check_claims(evidence: Evidence) -> None:
    """A run of the query claims nothing once another has begun: it could not say so any more."""
    claimed = {claim.lsn: claim for claim in evidence.world.log.claims}
    tag = meta_tag(run_key(evidence.spec.name))
    run: int | None = None
    for entry in evidence.entries:
        if tag in entry.tags:
            run = entry.instance
        claim = claimed.get(entry.lsn)
        by = (
            None
            if claim is None
            else evidence.world.story.claims.get((claim.producer, claim.instance))
        )
        if by is not None and by != run:
            raise Violation("I5", f"run {by} claimed {claim} in run {run}")


def check_markers(evidence: Evidence, task: TaskId) -> None:
    """Positions are contiguous, and between two of them everything was taken in once (I9)."""
    before: Placed | None = None
    for placed in evidence.markers[str(task)]:
        marker = placed.marker
        who = f"marker {marker.number} of {task} at {placed.lsn}"
        number, position, rows_in, rows_out, watermark = (
            (-1, Lsn(0), 0, 0, None)
            if before is None
            else (
                before.marker.number, before.marker.position, before.marker.rows_in,
                before.marker.rows_out, before.marker.watermark_ms,
            )
        )  # fmt: skip
        if before is None and evidence.is_handed_over(placed):
            before = placed  # check_layouts has looked at it
            continue
        # With aligned checkpoints there are commits in between that only the next stage sees.
        is_next = marker.number == number + 1 or evidence.cuts is not None
        if not is_next or marker.number <= number or marker.position < position:
            raise Violation("I9", f"{who} at position {marker.position} follows {before}")
        if marker.position > placed.lsn - marker.inline:
            raise Violation("I9", f"{who} has taken in its own group: {marker.position}")
        wanted = sum(entry.rows for _, entry in evidence.taken(task, before, placed))
        if marker.rows_in - rows_in != wanted:
            raise Violation(
                "I9", f"{who} took in {marker.rows_in - rows_in} rows, there are {wanted}"
            )
        given = sum(one.rows for one in evidence.given(task, before, placed))
        if marker.rows_out - rows_out != given:
            raise Violation("I8", f"{who} says {marker.rows_out - rows_out} rows, wrote {given}")
        # Before all upstream tasks have spoken it is not known whether there is a time at all.
        if watermark not in (None, START_MS) and (marker.watermark_ms or START_MS) < watermark:
            raise Violation("I18", f"{who}: time goes back to {marker.watermark_ms}")
        before = placed


def check_author(evidence: Evidence, task: TaskId) -> None:
    """A marker is written by the instance that made it (I10)."""
    for placed in evidence.markers[str(task)]:
        entry = placed.entry
        if evidence.is_handed_over(placed):
            continue
        if entry.producer != task.producer or entry.instance != placed.marker.instance:
            who = f"marker {placed.marker.number} of {task} at {placed.lsn}"
            raise Violation("I10", f"{who} was written by {entry.producer} {entry.instance}")


def check_heard(evidence: Evidence, task: TaskId) -> None:
    """A marker says what was last heard of every upstream task, over all instances (I18).

    Of tasks that share a source: what time each had told where all of them have looked, and
    what it told beyond.
    """
    base: Placed | None = None
    for placed in evidence.markers[str(task)]:
        spec = evidence.spec_of(task, placed.lsn + 1)
        if evidence.is_handed_over(placed):
            check_handed_over(evidence, task, base, placed)
            base = placed
            continue
        start = 0 if base is None else base.marker.position
        known = {} if base is None else base.marker.heard
        position = placed.marker.position
        below = {
            one: _spoken(evidence, one, start, position) for one in evidence.upstream_in(spec, task)
        }
        wanted = dict(known)
        for one, markers in below.items():
            if markers:
                last = markers[-1]
                word = Heard(last.lsn, last.marker.watermark_ms, last.marker.is_idle)
                if spec.tells_looked(one.stage):
                    word = _shared_word(word, one, markers, below, known)
                wanted[str(one)] = word
        for stage in spec.shared_within(task.stage):
            told = _told_within(evidence, spec, task, stage, start)
            wanted |= _words_within(told, position, known)
        if placed.marker.heard != wanted:
            raise Violation("I18", f"{task} at {placed.lsn} heard {placed.marker.heard}: {wanted}")


def _spoken(evidence: Evidence, task: TaskId, start: int, end: int) -> list[Placed]:
    """What readers of the task's stage see of its markers between two LSNs."""
    tag = keyed_tag(task.query, task.version, task.stage)
    found = evidence.markers[str(task)]
    return [one for one in found if start <= one.lsn < end and tag in one.entry.tags]


def check_handed_over(
    evidence: Evidence, task: TaskId, base: Placed | None, placed: Placed
) -> None:
    """What a task goes on with under another layout is what its predecessors had heard (I18)."""
    laid = next(one for one in evidence.layouts if one.first <= placed.lsn < one.end)
    old = evidence.layouts[evidence.layouts.index(laid) - 1].spec
    before = [
        last
        for one in predecessors(old, laid.spec, task)
        for last in [_below(evidence.markers[str(one)], laid.first)[-1]]
    ]
    who = f"{task} at {placed.lsn}"
    times = [
        last.marker.watermark_ms
        for last in before
        if last.marker.task.split("/")[1] == str(task.stage)
    ]
    told = [ms for ms in times if ms is not None]
    if told and len(told) == len(times) and (placed.marker.watermark_ms or START_MS) < min(told):
        raise Violation("I18", f"{who}: time goes back to {placed.marker.watermark_ms}: {told}")
    for stage in {parse_task(name).stage for name in placed.marker.heard}:
        known, heard = before[0].marker.heard, placed.marker.heard
        if old.tasks_of(stage) and old.tasks_of(stage) == laid.spec.tasks_of(stage):
            names = [str(one) for one in old.tasks_of(stage)]
            if any(known.get(name) != heard.get(name) for name in names):
                raise Violation("I18", f"{who}: {heard} was heard of {names}, before {known}")
            continue
        old_words = [word for name, word in known.items() if parse_task(name).stage == stage]
        words = [word for name, word in heard.items() if parse_task(name).stage == stage]
        is_shared = old.tells_looked(stage) or stage in old.shared_within(task.stage)
        was = [word.watermark_ms for word in old_words if word.watermark_ms is not None]
        which = max if is_shared else min
        now = [word.watermark_ms for word in words]
        if was and any(ms is None or ms < which(was) for ms in now):
            raise Violation("I18", f"{who}: {now} was heard of stage {stage}, before {was}")
        if any(word.ahead for word in words):
            raise Violation("I18", f"{who} has words ahead: {words}")


def _below(markers: list[Placed], lsn: Lsn) -> list[Placed]:
    return markers[: bisect_left(markers, lsn, key=lambda one: one.lsn)]


def _told_within(
    evidence: Evidence, spec: QuerySpec, task: TaskId, stage: int, start: int
) -> dict[TaskId, list[Placed]]:
    """Of a stage within the tasks of this one: what they said of it, as if it had its own."""
    return {
        replace(peer, stage=stage): [
            replace(one, marker=replace(one.marker, watermark_ms=ms, is_idle=is_idle))
            for one in evidence.markers[str(peer)]
            if one.lsn >= start and stage in one.marker.sources
            for ms, is_idle in [one.marker.sources[stage]]
        ]
        for peer in spec.tasks_of(task.stage)
    }


def _words_within(
    all_told: dict[TaskId, list[Placed]], below: Lsn, known: Mapping[str, Heard]
) -> dict[str, Heard]:
    told = {one: _below(markers, below) for one, markers in all_told.items()}
    return {
        str(one): _shared_word(
            Heard(markers[-1].lsn, None, markers[-1].marker.is_idle), one, markers, told, known
        )
        for one, markers in told.items()
        if markers
    }


def _shared_word(
    word: Heard,
    task: TaskId,
    markers: list[Placed],
    told: Mapping[TaskId, list[Placed]],
    known: Mapping[str, Heard],
) -> Heard:
    """`known`: what a task went on with under its layout."""

    def looked(one: TaskId) -> int:
        found = told[one]
        base = known.get(str(one))
        return found[-1].marker.position if found else 0 if base is None else base.looked

    reached = min(looked(one) for one in told if one.stage == task.stage)
    base = known.get(str(task))
    before_ms = None if base is None else base.watermark_ms
    rises: list[tuple[Lsn, int]] = []
    for placed in markers:
        ms = placed.marker.watermark_ms
        last = rises[-1][1] if rises else before_ms
        if ms is not None and (last is None or ms > last):
            rises.append((placed.marker.position, ms))
    settled = [ms for looked, ms in rises if looked <= reached]
    return replace(
        word,
        watermark_ms=settled[-1] if settled else before_ms,
        looked=markers[-1].marker.position,
        ahead=tuple(rises[len(settled) :]),
    )


def check_groups(evidence: Evidence, task: TaskId) -> None:
    """What a marker commits is its own instance's, whole, and no other marker's (I8, I10)."""
    starts = evidence.group_starts
    before = Lsn(-1)
    for placed in evidence.markers[str(task)]:
        marker = placed.marker
        first = placed.lsn - marker.inline
        if any(lsn in starts for lsn in range(first + 1, placed.lsn + 1)):
            raise Violation("I8", f"the marker at {placed.lsn} stands apart from its entries")
        for span in marker.ranges:
            if not before < span.first_lsn < span.end <= first or span.first_lsn not in starts:
                raise Violation("I8", f"the marker at {placed.lsn} names {span} after {before}")
            for entry in evidence.entries[span.first_lsn : span.end]:
                if (entry.producer, entry.instance) != (task.producer, marker.instance):
                    raise Violation("I10", f"the marker at {placed.lsn} names {entry}")
        before = placed.lsn


def check_data(evidence: Evidence) -> None:
    """No data of a task counts without its marker (I8)."""
    inline = {
        lsn
        for placed in (one for markers in evidence.markers.values() for one in markers)
        for lsn in range(placed.lsn - placed.marker.inline, placed.lsn)
    }
    outputs = frozenset([stream_tag(evidence.spec.to)])
    for entry in evidence.entries:
        # What goes between stages counts at once with aligned checkpoints, for its cohort alone.
        is_keyed = evidence.cuts is None and any(tag.startswith("k/") for tag in entry.tags)
        is_output = is_keyed or outputs & {*entry.tags}
        if entry.kind is Kind.DATA and is_output and entry.lsn not in inline:
            raise Violation("I8", f"{entry} counts, but no marker commits it")


def check_checkpoints(evidence: Evidence, task: TaskId) -> None:
    """A checkpoint is named after it is durable, and kept for as long as it is named (R37).

    With all files that it needs (R38).
    """
    folder = evidence.world.folder
    for placed in evidence.markers[str(task)]:
        lsns = [int(one["marker_lsn"]) for one in placed.marker.checkpoints]
        if lsns != sorted(lsns, reverse=True):
            raise Violation("R35", f"{task} at {placed.lsn} names checkpoints of {lsns}")
        for found in placed.marker.checkpoints:
            for path in folder.files_of(str(found["path"])) or [found["path"]]:
                published = folder.published.get(path)
                if published is None or published > placed.lsn:
                    raise Violation("R37", f"{task} at {placed.lsn} names {path} too early")
    for path, tail in folder.swept.items():
        if f"/{task}/" in path:
            before = [one for one in evidence.markers[str(task)] if one.lsn < tail]
            after = [one for one in evidence.markers[str(task)] if one.lsn >= tail]
            for placed in (*before[-1:], *after):
                named = [folder.files_of(str(one["path"])) for one in placed.marker.checkpoints]
                if any(path in files for files in named):
                    raise Violation("R38", f"{path} was deleted, the marker {placed.lsn} names it")


def check_trims(evidence: Evidence) -> None:
    """No trim passed what any task could still need when it was made (I15)."""
    for tail, point in evidence.world.log.trims:
        spec = [laid.spec for laid in evidence.layouts if laid.end <= tail][-1]
        for task in spec.task_ids:
            needed = _needed_from(evidence, task, tail)
            if point > needed:
                raise Violation("I15", f"trimmed to {point} at {tail}: {task} needs {needed}")


def _needed_from(evidence: Evidence, task: TaskId, tail: Lsn) -> int:
    markers = [one for one in evidence.markers[str(task)] if one.lsn < tail]
    if not markers:
        return 0
    marker = markers[-1].marker
    needed: list[int] = [marker.position]
    for other in evidence.upstream_of(task, tail):
        needed += [
            span.first_lsn
            for placed in evidence.records[str(other)]
            if placed.lsn >= marker.position
            for span in placed.marker.ranges
        ]
    return min([*needed, *_state_from(evidence, task, markers[-1])])


def _state_from(evidence: Evidence, task: TaskId, placed: Placed) -> list[int]:
    """From where on entries are needed to build the state at a marker."""
    found = evidence.entries[: placed.lsn]
    changes = [int(entry.lsn) for entry in found if task.change_tag in entry.tags]
    if len(placed.marker.checkpoints) == 2:
        return [int(placed.marker.checkpoints[-1]["marker_lsn"]) + 1]
    needed: list[int] = changes[:1]
    first = evidence.markers[str(task)][0]
    for laid, after in zip(evidence.layouts, evidence.layouts[1:], strict=False):
        if after.first <= first.lsn < after.end:
            for one in predecessors(laid.spec, after.spec, task):
                last = _below(evidence.markers[str(one)], after.first)[-1]
                needed += _state_from(evidence, one, last)
    return needed


def check_result(evidence: Evidence) -> None:
    """What readers were shown is what counts (I10), and what one thread would say (I12)."""
    spec = evidence.spec
    counted = evidence.released(frozenset([stream_tag(spec.to)]), 0, len(evidence.entries))
    shown = evidence.world.story.shown
    if shown != [(lsn, entry.payload) for lsn, entry in counted]:
        raise Violation("I10", f"a reader was shown {_lsns(shown)}, {len(counted)} entries count")
    result: Rows = Rows()
    changing = spec.query.stages[-1].changing
    for lsn, entry in counted:
        add_rows(result, decode_batch(entry.payload, spec.to_schema), changing=changing)
        if changing and min(result.values()) < 0:
            raise Violation("I12", f"at {lsn} a row is taken back that was not given")
    found = Rows({row: weight for row, weight in result.items() if weight})
    inputs = [(stream, decode_batch(e.payload, SOURCE)) for stream, e in evidence.sources()]
    wanted = run_oracle(spec, inputs)
    if found != wanted:
        missing = sorted(map(str, (wanted - found).items()))[:3]
        extra = sorted(map(str, (found - wanted).items()))[:3]
        raise Violation("I12", f"the result lacks {missing} and has {extra}")


def _lsns(shown: Sequence[tuple[Lsn, bytes]]) -> str:
    return f"{len(shown)} entries up to {shown[-1][0] if shown else 'none'}"
