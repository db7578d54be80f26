"""The laws of exactly once, over all entries of a log: what tasks may have written, and what not.

Reads the log as it stands after any number of crashes, and nothing else; it may not have been
trimmed. Every function gives the sentences that say what is wrong, none if all is well.

    numbers    a task's markers are 0, 1, 2, … over all its instances (I9)
    positions  they never go back, and never past the marker itself (I9)
    instances  neither markers nor anything else of a task come from an older instance (I5); only a
               coordinator writes markers for others, those that tasks of a new layout go on from
    groups     what a task writes for others stands in one group with a marker, whole, or is staged
    ranges     staged groups are named by one marker at most, of the instance that staged them (I8)
    heard      a task never forgets how far it has heard another (I9), unless that has successors
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.protocol.markers import Marker, decode_marker
from penstock.protocol.names import coordinator_producer, parse_task


@dataclass(frozen=True, slots=True)
class MarkerAt:
    """A marker and the entry that it is."""

    entry: Entry
    marker: Marker

    @property
    def is_handed_over(self) -> bool:
        """Written with a new layout, by the coordinator."""
        query = parse_task(self.marker.task).query
        return self.entry.producer == coordinator_producer(query) and not self.marker.inline

    def __str__(self) -> str:
        return f"marker {self.marker.number} of {self.marker.task} at LSN {self.entry.lsn}"


def check_engine(entries: Sequence[Entry]) -> list[str]:
    """Every law; `entries` are all of the log, in its order."""
    markers = find_markers(entries)
    tasks = by_task(markers)
    return [
        *check_numbers(tasks),
        *check_positions(tasks),
        *check_instances(entries, tasks),
        *check_groups(entries, markers),
        *check_ranges(entries, markers),
        *check_heard(tasks),
    ]


def find_markers(entries: Iterable[Entry]) -> list[MarkerAt]:
    return [
        MarkerAt(entry, decode_marker(entry.payload))
        for entry in entries
        if entry.kind is Kind.MARKER
    ]


def by_task(markers: Iterable[MarkerAt]) -> dict[str, list[MarkerAt]]:
    found: dict[str, list[MarkerAt]] = defaultdict(list)
    for at in markers:
        found[at.marker.task].append(at)
    return dict(found)


def check_numbers(tasks: dict[str, list[MarkerAt]]) -> list[str]:
    return [
        f"{at} should have number {expected}"
        for markers in tasks.values()
        for expected, at in enumerate(markers)
        if at.marker.number != expected
    ]


def check_positions(tasks: dict[str, list[MarkerAt]]) -> list[str]:
    problems = []
    for markers in tasks.values():
        for at in markers:
            if at.marker.position > at.entry.lsn:
                problems.append(f"{at} took in {at.marker.position}, which is after it")
        for before, after in pairwise(markers):
            if after.marker.position < before.marker.position:
                problems.append(
                    f"{after} goes back from {before.marker.position} to {after.marker.position}"
                )
    return problems


def check_instances(entries: Iterable[Entry], tasks: dict[str, list[MarkerAt]]) -> list[str]:
    problems = []
    for task, markers in tasks.items():
        for at in markers:
            written_by = (at.entry.producer, at.entry.instance)
            if not at.is_handed_over and written_by != (
                parse_task(task).producer,
                at.marker.instance,
            ):
                problems.append(f"{at} says instance {at.marker.instance}, {written_by} wrote it")
        for before, after in pairwise(markers):
            if after.marker.instance < before.marker.instance:
                problems.append(f"{after} is of an older instance than {before}")
    newest: dict[str, int] = {}
    for entry in entries:
        if _is_task(entry.producer):
            if entry.instance < newest.get(entry.producer, 0):
                problems.append(
                    f"LSN {entry.lsn} is of instance {entry.instance} of {entry.producer}, after "
                    f"instance {newest[entry.producer]} has written"
                )
            newest[entry.producer] = max(entry.instance, newest.get(entry.producer, 0))
    return problems


def check_groups(entries: Sequence[Entry], markers: Sequence[MarkerAt]) -> list[str]:
    """The `inline` entries before a marker are its own, and no other data of a task counts."""
    problems = []
    inline: set[int] = set()
    by_lsn = {entry.lsn: entry for entry in entries}
    for at in markers:
        entry = at.entry
        for back in range(1, at.marker.inline + 1):
            one = by_lsn.get(Lsn(entry.lsn - back))
            inline.add(entry.lsn - back)
            if one is None or _origin(one) != _origin(entry) or one.seq != entry.seq - back:
                problems.append(f"{at} commits LSN {entry.lsn - back}, which is not its group's")
            elif one.kind not in (Kind.DATA, Kind.CHANGE):
                problems.append(f"{at} commits LSN {one.lsn}, which is {one.kind.name}")
    for entry in entries:
        if entry.kind is Kind.DATA and _is_task(entry.producer) and entry.lsn not in inline:
            problems.append(f"LSN {entry.lsn} of {entry.producer} counts without a marker")
    return problems


def check_ranges(entries: Sequence[Entry], markers: Sequence[MarkerAt]) -> list[str]:
    problems = []
    named_by: dict[int, MarkerAt] = {}
    by_lsn = {entry.lsn: entry for entry in entries}
    for at in markers:
        entry = at.entry
        for one in at.marker.ranges:
            for lsn in range(one.first_lsn, one.end):
                found = by_lsn.get(Lsn(lsn))
                if lsn in named_by:
                    problems.append(f"{at} names LSN {lsn} again, after {named_by[lsn]}")
                named_by[lsn] = at
                if found is None or lsn > entry.lsn or _origin(found) != _origin(entry):
                    problems.append(f"{at} names LSN {lsn}, which its instance has not written")
                elif found.kind not in (Kind.STAGED, Kind.CHANGE):
                    problems.append(f"{at} names LSN {lsn}, which is {found.kind.name}")
    return problems


def check_heard(tasks: dict[str, list[MarkerAt]]) -> list[str]:
    problems = []
    for markers in tasks.values():
        for at in markers:
            for upstream, heard in at.marker.heard.items():
                if heard.lsn >= at.marker.position:
                    problems.append(
                        f"{at} has heard {upstream} at {heard.lsn}, and taken in up to "
                        f"{at.marker.position} only"
                    )
        for before, after in pairwise(markers):
            for upstream, heard in before.marker.heard.items():
                now = after.marker.heard.get(upstream)
                is_gone = now is None and after.is_handed_over
                if not is_gone and (now is None or now.lsn < heard.lsn):
                    problems.append(
                        f"{after} has forgotten that it heard {upstream} at {heard.lsn}"
                    )
    return problems


def _origin(entry: Entry) -> tuple[str, int]:
    return entry.producer, entry.instance


def _is_task(producer: str) -> bool:
    """Whether a task writes under this name; a coordinator's has no stage and index."""
    return producer.startswith("@") and producer.count("/") == 2
