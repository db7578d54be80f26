"""Every reader was given the filter of the log: each entry once, in order, none left out (I3)."""

from __future__ import annotations

from simulation.checkers.evidence import Evidence, Violation
from simulation.log.story import LastOp, Reading


def check_readers(evidence: Evidence) -> None:
    for reading in evidence.story.readings:
        _check_progress(reading)
        _check_complete(evidence, reading)
    for tag, entries in evidence.final.by_tag.items():
        wanted = [entry for entry in evidence.final.entries if tag in entry.tags]
        if entries != wanted:
            seen, right = [e.lsn for e in entries], [e.lsn for e in wanted]
            raise Violation("I3", f"tag {tag} reads {seen}, the log has {right}")
        newest = wanted[-1] if wanted else None
        if evidence.final.last_by_tag[tag] != newest:
            raise Violation(
                "I3", f"the newest of tag {tag} is {newest}, not {evidence.final.last_by_tag[tag]}"
            )
    for last in evidence.story.lasts:
        _check_last(evidence, last)


def _check_progress(reading: Reading) -> None:
    """Entries lie between the progress before and after; progress never goes back."""
    who = f"{reading.client} {reading.tags} from {reading.start}"
    position = reading.start
    for batch in reading.batches:
        if batch.looked_up_to < position:
            raise Violation("I4", f"{who}: progress goes back, {position} to {batch}")
        lsns = [entry.lsn for entry in batch.entries]
        if lsns != sorted(set(lsns)) or (
            lsns and not (position <= lsns[0] and lsns[-1] < batch.looked_up_to)
        ):
            raise Violation("I3", f"{who}: {lsns} in [{position}, {batch.looked_up_to})")
        position = batch.looked_up_to
    if reading.end is not None and position > reading.end:
        raise Violation("I3", f"{who}: looked up to {position}, beyond {reading.end}")
    if reading.done and position != reading.end:
        raise Violation("I3", f"{who}: done at {position}, not at {reading.end}")


def _check_complete(evidence: Evidence, reading: Reading) -> None:
    seen = [entry.lsn for batch in reading.batches for entry in batch.entries]
    tags = None if reading.tags is None else set(reading.tags)
    wanted = [
        lsn
        for lsn in range(reading.start, reading.looked_up_to)
        if lsn in evidence.entries
        and (tags is None or not tags.isdisjoint(evidence.entries[lsn].tags))
    ]
    if seen != wanted:
        missing, extra = sorted(set(wanted) - set(seen)), sorted(set(seen) - set(wanted))
        raise Violation(
            "I3",
            f"{reading.client} {reading.tags} in [{reading.start}, {reading.looked_up_to}): "
            f"missing {missing}, extra {extra}",
        )


def _check_last(evidence: Evidence, last: LastOp) -> None:
    """At least as new as what was known, unless that may have been trimmed meanwhile."""
    if last.found is not None and last.tag not in last.found.tags:
        raise Violation("I3", f"{last}: the entry does not carry the tag")
    assert last.ended_us is not None
    trim_max = max(
        (trim.lsn for trim in evidence.story.trims if trim.asked_us <= last.ended_us), default=0
    )
    known = [
        lsn
        for lsn in evidence.lsns
        if trim_max <= lsn < last.known_lsn and last.tag in evidence.entries[lsn].tags
    ]
    if known and (last.found is None or last.found.lsn < known[-1]):
        raise Violation("I3", f"{last}: lsn {known[-1]} was known before")
