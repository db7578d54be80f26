"""What an entry of a query means: markers, what they commit, and whether an entry was committed.

Owns the words and a bounded search: the first marker of its task after an entry decides about it. A
task has one commit on its way at a time, and an older instance writes nothing after a newer one, so
no later marker can name what the first one left out (protocol/markers.py).
"""

from __future__ import annotations

from typing import Any, Final

from penstock.cli.output import time_text
from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.log.client.blocking import BlockingLog
from penstock.log.records import Entry, Kind
from penstock.protocol.markers import Marker, decode_marker
from penstock.protocol.names import PLAYER_PREFIX, TaskId, parse_task
from penstock.runtime.control import decode_message

#: Kinds that count when a marker says so.
COMMITTED_KINDS: Final = (Kind.DATA, Kind.CHANGE, Kind.STAGED)
_WHAT: Final = {
    Kind.DATA: "rows given out by task {task}",
    Kind.STAGED: "rows given out by task {task}, staged until a marker names them",
    Kind.CHANGE: "changes to the state of task {task}",
}


def task_of(entry: Entry) -> TaskId | None:
    """The task that wrote the entry; None if it was another kind of producer."""
    if not entry.producer.startswith("@"):
        return None
    try:
        return parse_task(entry.producer[1:])
    except BadFormat:
        return None  # a coordinator


def what_of(entry: Entry) -> str | None:
    """What an entry of a query is, in a sentence; None if it is of no query."""
    if entry.kind is Kind.MARKER:
        marker = _marker_of(entry)
        if marker is None:
            return "a marker with bytes that cannot be read"
        if marker.begins_a_task:
            names = ", ".join(one.task for one in marker.origins)
            return f"where task {marker.task} begins, with the state of {names}"
        end = "" if marker.cut is None else ", where it ends for the next layout"
        who = f"task {marker.task} by its instance {marker.instance}"
        return f"commit {marker.number} of {who}{end}"
    task = task_of(entry)
    if task is not None and entry.kind in _WHAT:
        return _WHAT[entry.kind].format(task=task)
    if entry.kind is Kind.CONTROL and any(tag.startswith("ctl/") for tag in entry.tags):
        who = entry.tags[0].removeprefix("ctl/")
        return f"{_message(entry)}, between the driver and the workers of query {who}"
    if entry.kind is Kind.CONTROL and entry.producer.startswith(PLAYER_PREFIX):
        return f"an ack of delivery {entry.producer.removeprefix(PLAYER_PREFIX)}: how far it is"
    return None


def _marker_of(entry: Entry) -> Marker | None:
    """None for bytes that are no marker: whoever may append may append anything."""
    try:
        return decode_marker(entry.payload)
    except BadFormat:
        return None


def _message(entry: Entry) -> str:
    try:
        message = decode_message(entry.payload)
    except BadFormat:
        return "bytes that cannot be read"
    return "a message of a newer program" if message is None else type(message).__name__.lower()


def marker_facts(entry: Entry) -> dict[str, Any] | None:
    """Everything a marker says; None for an entry that is none."""
    marker = _marker_of(entry) if entry.kind is Kind.MARKER else None
    if marker is None:
        return None
    return {
        "task": marker.task,
        "instance": marker.instance,
        "number": marker.number,
        "position": marker.position,
        "commits": [list(one) for one in committed_ranges(marker, entry.lsn)],
        "watermark": None if marker.watermark_ms is None else _time(marker.watermark_ms),
        "is_idle": marker.is_idle,
        "rows_in": marker.rows_in,
        "rows_out": marker.rows_out,
        "has_state": marker.has_state,
        "checkpoints": list(marker.checkpoints),
        "heard": {task: one.lsn for task, one in marker.heard.items()},
        "needs_from": marker.needs_from,
        "cut": None if marker.cut is None else {"run": marker.cut[0], "layout": marker.cut[1]},
        "origins": {one.task: one.lsn for one in marker.origins},
    }


def _time(ms: int) -> str:
    """Watermarks may be the end of time, which no calendar has."""
    return time_text(ms) if abs(ms) < 10**14 else ("the end" if ms > 0 else "the beginning")


def committed_ranges(marker: Marker, lsn: Lsn) -> list[tuple[int, int]]:
    """[first, last] of what a marker at this LSN commits, in log order."""
    ranges = [(int(one.first_lsn), int(one.end) - 1) for one in marker.ranges]
    if marker.inline:
        ranges.append((lsn - marker.inline, lsn - 1))
    return ranges


def commit_facts(
    client: BlockingLog, entry: Entry, group_end: int, tail: int
) -> dict[str, Any] | None:
    """Whether an entry that a task wrote counts, and since which marker; None for others."""
    task = task_of(entry)
    if task is None or entry.kind not in COMMITTED_KINDS:
        return None
    (last,) = client.read(start=group_end - 1, end=group_end)
    if last.kind is Kind.MARKER:
        return _committed(last)
    if entry.kind is Kind.DATA:
        return {"state": "committed", "why": "without a marker: the query is not exactly once"}
    found = _next_marker(client, task, group_end, tail)
    if found is None:
        return {"state": "open", "why": f"not committed yet: no marker of {task} follows"}
    marker = decode_marker(found.payload)
    if any(first <= entry.lsn <= upto for first, upto in committed_ranges(marker, found.lsn)):
        return _committed(found)
    return {
        "state": "abandoned",
        "why": f"not committed: instance {marker.instance} went on without it "
        f"(marker {marker.number} at LSN {found.lsn})",
    }


def _committed(entry: Entry) -> dict[str, Any]:
    marker = decode_marker(entry.payload)
    return {
        "state": "committed",
        "why": f"by marker {marker.number} of {marker.task} at LSN {entry.lsn}, instance "
        f"{marker.instance}, {time_text(entry.time_ms)}",
        "marker_lsn": entry.lsn,
        "marker_number": marker.number,
    }


def _next_marker(client: BlockingLog, task: TaskId, start: int, tail: int) -> Entry | None:
    with client.tail([task.marker_tag], start=start, end=tail) as reader:
        for batch in reader:
            if batch.entries:
                return batch.entries[0]
    return None


def marker_fields(facts: dict[str, Any]) -> list[tuple[str, object]]:
    """A marker for people."""
    lines: list[tuple[str, object]] = [
        ("commits", f"LSN {first} to {last}, {last - first + 1} entries")
        for first, last in facts["commits"]
    ]
    return [
        *(lines or [("commits", "a position only: no rows, no changes")]),
        ("position", f"all input of {facts['task']} below LSN {facts['position']} is in"),
        ("watermark", f"{facts['watermark']}{', idle' if facts['is_idle'] else ''}"),
        ("so far", f"{facts['rows_in']} rows in, {facts['rows_out']} rows out"),
        *(
            ("checkpoint", f"of the state at LSN {one.get('marker_lsn')}: {one.get('path', one)}")
            for one in facts["checkpoints"]
        ),
    ]
