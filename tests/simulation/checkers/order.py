"""LSNs follow real time: what was asked for after an LSN was known lies above it (I2)."""

from __future__ import annotations

from itertools import pairwise

from penstock.log.records import Appended
from simulation.checkers.evidence import Evidence, Violation


def check_order(evidence: Evidence) -> None:
    for op in evidence.story.appends:
        if isinstance(op.outcome, Appended) and op.outcome.first_lsn < op.known_lsn:
            raise Violation("I2", f"{op} was asked when {op.known_lsn} was known")
    for bounds in evidence.story.bounds:
        if not bounds.known_lsn <= bounds.tail <= evidence.final.tail:
            raise Violation("I4", f"{bounds}: the tail is not where it was seen")
    for left, right in pairwise(evidence.lsns):
        earlier, later = evidence.entries[left], evidence.entries[right]
        if earlier.time_ms > later.time_ms:
            raise Violation("time", f"append times go back: {earlier}, then {later}")
    _check_times(evidence)


def _check_times(evidence: Evidence) -> None:
    """The position of a time: nothing older from there on, nothing younger before."""
    entries = evidence.entries
    trim_max = max((trim.lsn for trim in evidence.story.trims), default=0)
    asked = [(op.time_ms, op.found, op.known_lsn) for op in evidence.story.times]
    tail = evidence.final.tail
    asked += [(time_ms, found, tail) for time_ms, found in evidence.final.by_time.items()]
    for time_ms, found, known_lsn in asked:
        if found < known_lsn and found in entries and entries[found].time_ms < time_ms:
            raise Violation("time", f"lsn {found} for time {time_ms}: {entries[found]} is older")
        before = entries.get(found - 1)
        if before is not None and before.time_ms >= time_ms and found > trim_max:
            raise Violation("time", f"lsn {found} for time {time_ms}: {before} is not older")
