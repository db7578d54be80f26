"""`penstock explain LSN`: what one entry is, who wrote it, and what stands around it.

Owns the gathering (a few bounded reads) and the words. What follows in the log is looked at up to
SCAN_BYTES, so that the answer takes a moment whatever the log's length.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any, Final

from penstock.cli.explain_delivery import delivery_facts, delivery_fields
from penstock.cli.explain_task import commit_facts, marker_facts, marker_fields, what_of
from penstock.cli.output import (
    NOTHING,
    bytes_text,
    echo,
    show_fields,
    show_table,
    time_text,
)
from penstock.errors import Damaged, NotFound, Trimmed
from penstock.ids import Lsn
from penstock.limits import MIB
from penstock.log.api import Bounds
from penstock.log.client.blocking import BlockingLog
from penstock.log.client.client import AsyncLog
from penstock.log.client.reader import split_records
from penstock.log.group_format import CLAIM, RETIRE, Body, decode_sets
from penstock.log.record_format import RecordHeader
from penstock.log.records import Entry, Kind
from penstock.stream.batches import decode_batch
from penstock.stream.json_lines import rows_to_json_lines
from penstock.stream.registration import TAG_PREFIX
from penstock.stream.session import Log

#: How much of what follows is searched for the producer's next group.
SCAN_BYTES: Final = 16 * MIB
ROWS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class EntrySurroundings:
    """The group of an entry, and what its producer did next."""

    first_lsn: Lsn
    count: int
    flags: int
    #: The producer's next group; None if there was none below `looked_up_to`.
    next: tuple[RecordHeader, Body] | None
    looked_up_to: Lsn


def gather(log: Log, lsn: int) -> dict[str, Any]:
    """All that the log knows of an entry, as JSON has it."""
    client, bounds = log.client, log.bounds()
    if lsn < bounds.trim_point:
        raise Trimmed(f"LSN {lsn} was trimmed: the first readable one is {bounds.trim_point}")
    if lsn >= bounds.tail:
        raise NotFound(f"LSN {lsn} is not written yet: the tail is {bounds.tail}")
    (entry,) = client.read(start=lsn, end=lsn + 1)
    around = client.run(lambda opened: _look_around(opened, entry, bounds))
    stream, rows = _rows(log, entry)
    group_end = around.first_lsn + around.count
    commit = commit_facts(client, entry, group_end, bounds.tail)
    return {
        "lsn": entry.lsn,
        "kind": entry.kind.name.lower(),
        "what": _what(entry, around, stream),
        "time": time_text(entry.time_ms),
        "producer": entry.producer,
        "instance": entry.instance,
        "seq": entry.seq,
        "tags": list(entry.tags),
        "rows": entry.rows,
        "payload_bytes": len(entry.payload),
        "group": {
            "first_lsn": around.first_lsn,
            "count": around.count,
            "claim": bool(around.flags & CLAIM),
            "retire": bool(around.flags & RETIRE),
        },
        "stream": stream,
        "first_rows": rows,
        "sets": _sets(entry),
        "marker": marker_facts(entry),
        "commit": commit,
        "deliveries": delivery_facts(log, entry, commit),
        "producer_next": _next_facts(around),
        "producer_looked_up_to": around.looked_up_to,
        "neighbours": [_neighbours(client, tag, entry.lsn, bounds) for tag in entry.tags],
    }


async def _look_around(log: AsyncLog, entry: Entry, bounds: Bounds) -> EntrySurroundings:
    """The entry's whole group, then forward to the next one of its producer."""
    async with log.tail(None, start=entry.lsn, end=entry.lsn + 1) as reader:
        _, data = await reader.next_delivery()
        header, _ = next(split_records(data))
    start = max(header.first_lsn, bounds.trim_point)
    group: Body | None = None
    looked, size = start, 0
    async with log.tail(None, start=start, end=bounds.tail) as reader:
        while looked < bounds.tail and size < SCAN_BYTES:
            message, data = await reader.next_delivery()
            for header, body in split_records(data):
                if group is None:
                    group, first_lsn = body, header.first_lsn
                elif body.producer == entry.producer:
                    return _surroundings(group, first_lsn, (header, body), header.first_lsn)
            looked, size = Lsn(message.looked_up_to), size + len(data)
    assert group is not None
    return _surroundings(group, first_lsn, None, looked)


def _surroundings(
    group: Body, first_lsn: Lsn, next: tuple[RecordHeader, Body] | None, looked: Lsn
) -> EntrySurroundings:
    # A group whose start was trimmed comes without it; its last place still tells the count.
    count = group.place(group.count - 1) + 1
    return EntrySurroundings(first_lsn, count, group.flags, next, looked)


def _what(entry: Entry, around: EntrySurroundings, stream: str | None) -> str:
    if around.flags & CLAIM:
        return f"the producer was opened: instances below {entry.instance} are fenced from here on"
    if around.flags & RETIRE:
        return "the producer said that it will never write again, and was forgotten"
    if entry.kind is Kind.META:
        return "changes metadata"
    of_query = what_of(entry)
    if stream is not None:
        return f"rows of stream {stream}" if of_query is None else f"{of_query} to stream {stream}"
    return of_query or f"a {entry.kind.name.lower()} entry"


def _rows(log: Log, entry: Entry) -> tuple[str | None, list[Any] | None]:
    """The stream of a data entry and its first rows, if its stream is known and its bytes fit."""
    names = [tag.removeprefix(TAG_PREFIX) for tag in entry.tags if tag.startswith(TAG_PREFIX)]
    if entry.kind not in (Kind.DATA, Kind.STAGED) or not names:
        return None, None
    try:
        batch = decode_batch(entry.payload, log.stream(names[0]).schema)
    except (NotFound, Damaged):
        return None, None
    lines = itertools.islice(rows_to_json_lines(batch), ROWS_SHOWN)
    return names[0], [json.loads(line) for line in lines]


def _sets(entry: Entry) -> list[dict[str, Any]] | None:
    if entry.kind is not Kind.META:
        return None
    return [
        {"key": change.key, "bytes": None if change.value is None else len(change.value)}
        for change in decode_sets(entry.payload)
    ]


def _next_facts(around: EntrySurroundings) -> dict[str, Any] | None:
    if around.next is None:
        return None
    header, body = around.next
    if body.flags & CLAIM:
        what = f"it was opened again, as instance {body.instance}"
    elif body.flags & RETIRE:
        what = "it retired"
    else:
        what = f"it appended {body.count} {'entry' if body.count == 1 else 'entries'}"
    return {
        "lsn": header.first_lsn,
        "what": what,
        "instance": body.instance,
        "count": body.count,
        "time": time_text(header.time_ms),
    }


def _neighbours(client: BlockingLog, tag: str, lsn: int, bounds: Bounds) -> dict[str, Any]:
    previous = client.read_last(tag, end=lsn)
    following: int | None = None
    with client.tail([tag], start=lsn + 1, end=bounds.tail) as reader:
        for batch in reader:
            if batch.entries:
                following = batch.entries[0].lsn
                break
    return {
        "tag": tag,
        "previous_lsn": None if previous is None else previous.lsn,
        "next_lsn": following,
    }


def show(facts: dict[str, Any]) -> None:
    """The same for people."""
    group = facts["group"]
    last = group["first_lsn"] + group["count"] - 1
    members = f"LSN {group['first_lsn']} to {last}, {group['count']} entries, atomic"
    following = facts["producer_next"]
    fields: list[tuple[str, object]] = [
        ("lsn", facts["lsn"]),
        ("kind", f"{facts['kind']}: {facts['what']}"),
        ("time", facts["time"]),
        ("producer", f"{facts['producer']} instance {facts['instance']} seq {facts['seq']}"),
        ("tags", " ".join(facts["tags"]) or NOTHING),
        ("rows", facts["rows"]),
        ("payload", bytes_text(facts["payload_bytes"])),
        ("group", members if group["count"] > 1 else "this entry alone"),
        (
            "then",
            f"LSN {following['lsn']}, {following['time']}: {following['what']}"
            if following
            else f"nothing more of this producer below LSN {facts['producer_looked_up_to']}",
        ),
    ]
    if facts["marker"] is not None:
        fields += marker_fields(facts["marker"])
    if facts["commit"] is not None:
        fields.append(("committed", facts["commit"]["why"]))
    fields += delivery_fields(facts["deliveries"])
    for change in facts["sets"] or ():
        value = "removed" if change["bytes"] is None else bytes_text(change["bytes"])
        fields.append(("sets", f"{change['key']} = {value}"))
    for row in facts["first_rows"] or ():
        fields.append(("row", json.dumps(row, ensure_ascii=False)))
    if facts["first_rows"] and facts["rows"] > ROWS_SHOWN:
        fields.append(("row", f"… {facts['rows'] - ROWS_SHOWN} more"))
    show_fields(fields)
    if facts["neighbours"]:
        echo()
        show_table(
            ["tag", "previous lsn", "next lsn"], [each.values() for each in facts["neighbours"]]
        )
