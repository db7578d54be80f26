"""What was acknowledged is there, unchanged; what was refused is not; groups are whole or absent.

I1 and I22, and I8 for groups. An unknown outcome may be either, but never half.
"""

from __future__ import annotations

from penstock.errors import PenstockError, Unknown
from penstock.log.records import Appended, Entry, NewEntry
from simulation.checkers.evidence import Evidence, Violation
from simulation.log.story import AppendOp


def check_durable(evidence: Evidence) -> None:
    found = evidence.first_lsns()
    for op in evidence.story.appends:
        lsns = found.get(op, [])
        if len(lsns) > 1:
            raise Violation("I7", f"{op} took effect at {lsns}")
        outcome = op.outcome
        if isinstance(outcome, Appended):
            _check_present(evidence, op, outcome.first_lsn, "I1")
            if outcome.count != len(op.entries):
                raise Violation("I1", f"{op}: {outcome.count} entries were acknowledged")
        elif isinstance(outcome, PenstockError) and not isinstance(outcome, Unknown):
            _check_absent(evidence, op)
        elif lsns:
            _check_present(evidence, op, lsns[0], "I8")
    for lsn in evidence.lsns:
        _check_origin(evidence, evidence.entries[lsn])


def _check_present(evidence: Evidence, op: AppendOp, first_lsn: int, law: str) -> None:
    """All entries of the group lie there, one after the other; below the trim point if seen."""
    for lsn, new in enumerate(op.entries, start=first_lsn):
        entry = evidence.entries.get(lsn)
        if entry is None:
            if lsn >= evidence.final.trim_point:
                raise Violation(law, f"{op}: nothing is at {lsn}")
        elif not _is_same(entry, new, op):
            raise Violation(law, f"{op}: at {lsn} is {entry}")


def _is_same(entry: Entry, new: NewEntry, op: AppendOp) -> bool:
    return (entry.payload, entry.tags, entry.kind, entry.rows, entry.producer, entry.instance) == (
        new.payload,
        new.tags,
        new.kind,
        new.rows,
        op.producer,
        op.instance,
    )


def _check_absent(evidence: Evidence, op: AppendOp) -> None:
    payloads = {new.payload for new in op.entries}
    for entry in evidence.entries.values():
        hit = evidence.ops.get(entry.payload)
        if entry.payload in payloads and hit is not None and hit[0] is op:
            raise Violation("I22", f"{op} was refused, but is in the log: {entry}")


def _check_origin(evidence: Evidence, entry: Entry) -> None:
    """Its neighbours of the same group are there too: no group is cut (I8)."""
    hit = evidence.ops.get(entry.payload)
    if hit is None:
        return
    op, index = hit
    first = entry.lsn - index
    for lsn, new in enumerate(op.entries, start=first):
        other = evidence.entries.get(lsn)
        if other is None and lsn < evidence.final.trim_point:
            continue
        if other is None or other.payload != new.payload:
            raise Violation("I8", f"{op} is in the log in part: {entry}, but at {lsn} {other}")
