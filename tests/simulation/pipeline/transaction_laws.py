"""What transactions promise, over the log that a world left behind.

Has its own idea of a transaction: what stands between its coordinator's notes. Raises Violation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock_bench.protocols.transaction_records import (
    TransactionRecord,
    decode_record,
    position_tag,
    transaction_tag,
)

from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.protocol.markers import Heard, Marker, decode_marker
from penstock.protocol.names import TaskId, node_tag
from simulation.checkers.evidence import Violation

if TYPE_CHECKING:
    from simulation.pipeline.laws import Evidence


@dataclass(slots=True)
class _Transaction:
    """One that was begun, and all that its task wrote until the next one."""

    begun: Entry
    number: int
    #: Its entries, before it was prepared.
    body: list[Entry] = field(default_factory=list)
    prepared: Entry | None = None
    #: Commit records, in log order.
    records: list[Entry] = field(default_factory=list)
    done: Entry | None = None


def check_transactions(evidence: Evidence, task: TaskId) -> None:
    """Every transaction that was prepared has all its commit records, once; no other has any."""
    found = _find(evidence, task)
    for place, one in enumerate(found):
        is_last = place == len(found) - 1
        if one.prepared is None:
            if one.records or one.done is not None:
                raise Violation("I8", f"{task}: {one.number} was committed, never prepared")
            continue
        _check_records(task, one, one.prepared, is_last=is_last)
        _check_named(evidence, task, one, one.prepared)


def _find(evidence: Evidence, task: TaskId) -> list[_Transaction]:
    """In order; also that its notes come in order (begun, prepared, done)."""
    found: list[_Transaction] = []
    claims = {claim.lsn for claim in evidence.world.log.claims}
    for entry in evidence.entries:
        if entry.producer != task.producer or entry.lsn in claims:
            continue
        if transaction_tag(task) in entry.tags:
            _note(found, entry, decode_record(entry.payload), task)
        elif not found:
            raise Violation("I8", f"{task} wrote {entry} before any transaction")
        elif entry.kind is Kind.MARKER:
            found[-1].records.append(entry)
        elif found[-1].prepared is None:
            found[-1].body.append(entry)
        else:
            raise Violation("I8", f"{task} wrote {entry} after {found[-1].number} was prepared")
    return found


def _note(found: list[_Transaction], entry: Entry, record: TransactionRecord, task: TaskId) -> None:
    last = found[-1] if found else None
    match record.state:
        case "begun":
            if last is not None and last.prepared is not None and last.done is None:
                raise Violation("I8", f"{task}: {record.number} begins, {last.number} is open")
            found.append(_Transaction(entry, record.number))
        case "prepared" if last is not None and last.prepared is None:
            same = (last.number, last.begun.instance) == (record.number, entry.instance)
            if not same:
                raise Violation("I8", f"{task}: {record.number} is prepared, never begun")
            last.prepared = entry
        case "done" if last is not None and last.prepared is not None and last.done is None:
            last.done = entry
        case _:
            raise Violation("I8", f"{task}: {record.state} {record.number} after {last}")


def _check_records(task: TaskId, one: _Transaction, prepared: Entry, *, is_last: bool) -> None:
    promised = [
        (record.tags, record.marker.encode()) for record in decode_record(prepared.payload).records
    ]
    written = [(entry.tags, entry.payload) for entry in one.records]
    who = f"{task}: transaction {one.number} of {prepared.instance}"
    if len({*written}) != len(written) or not {*written} <= {*promised}:
        raise Violation("I8", f"{who} has records {_tags(written)}, promised {_tags(promised)}")
    is_open = one.done is None and is_last  # the world ended here
    if {*written} != {*promised} and not is_open:
        raise Violation("I8", f"{who} lacks records: {_tags(written)} of {_tags(promised)}")
    own = [at for at, (tags, _) in enumerate(written) if task.marker_tag in tags]
    if own and (own != [len(promised) - 1]):
        # Whoever waits for the task's own marker finds everything else there.
        raise Violation("I8", f"{who}: its own record comes before others: {_tags(written)}")
    if one.done is not None and one.records and one.done.lsn < one.records[-1].lsn:
        raise Violation("I8", f"{who} was done before its last record")


def _check_named(evidence: Evidence, task: TaskId, one: _Transaction, prepared: Entry) -> None:
    """Its records name exactly the entries of this transaction, each under its own stream."""
    named: list[Lsn] = []
    for record in decode_record(prepared.payload).records:
        marker = decode_marker(record.marker.encode())
        if (marker.task, marker.instance, marker.number) != (
            str(task), prepared.instance, one.number,
        ):  # fmt: skip
            raise Violation("I10", f"{task}: {marker.number} of {marker.instance} at {prepared}")
        wanted = _reads(evidence, task, record.tags[0])
        for span in marker.ranges:
            for entry in evidence.entries[span.first_lsn : span.end]:
                if wanted.isdisjoint(entry.tags):
                    raise Violation("I8", f"{task}: the record {record.tags} names {entry}")
                named.append(entry.lsn)
    body = [entry.lsn for entry in one.body if position_tag(task) not in entry.tags]
    if sorted(named) != body or len({*named}) != len(named):
        raise Violation("I8", f"{task}: {one.number} names {sorted(named)}, wrote {body}")


def _reads(evidence: Evidence, task: TaskId, tag: str) -> set[str]:
    """What the readers of a commit record's stream read."""
    if tag == task.marker_tag:
        return {task.change_tag}
    return next((nodes for nodes in _substreams(evidence, task.stage) if tag in nodes), {tag})


def _substreams(evidence: Evidence, stage: int) -> list[set[str]]:
    spec = evidence.spec
    if spec.query.stages[stage].keys is None:
        return []
    readers = [
        one for one in spec.task_ids if stage in {up.stage for up in evidence.upstream_of(one)}
    ]
    return [
        {node_tag(spec.name, spec.version, stage, node) for node in spec.owned(reader)}
        for reader in readers
    ]


def check_heard_records(evidence: Evidence, task: TaskId) -> None:
    """A marker says what was last heard of every upstream task, in this task's substream (I18)."""
    spec = evidence.spec
    for placed in evidence.markers[str(task)]:
        wanted: dict[str, Heard] = {}
        for other in evidence.upstream_of(task):
            nodes = {
                node_tag(spec.name, spec.version, other.stage, node) for node in spec.owned(task)
            }
            for one in evidence.records[str(other)]:
                if one.lsn < placed.marker.position and not nodes.isdisjoint(one.entry.tags):
                    wanted[str(other)] = _heard(one.lsn, one.marker)
        if placed.marker.heard != wanted:
            raise Violation("I18", f"{task} at {placed.lsn} heard {placed.marker.heard}: {wanted}")


def _heard(lsn: Lsn, marker: Marker) -> Heard:
    return Heard(lsn, marker.watermark_ms, marker.is_idle)


def _tags(records: Sequence[tuple[tuple[str, ...], bytes]]) -> list[str]:
    return [tags[0] for tags, _ in records]
