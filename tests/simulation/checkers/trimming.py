"""Nothing at or above the trim point is missing; what is trimmed was given up by somebody (I15)."""

from __future__ import annotations

from penstock.errors import Trimmed
from simulation.checkers.evidence import Evidence, Violation


def check_trimming(evidence: Evidence) -> None:
    final, story = evidence.final, evidence.story
    lsns = [entry.lsn for entry in final.entries]
    if lsns != list(range(final.trim_point, final.tail)):
        raise Violation("trim", f"[{final.trim_point}, {final.tail}) reads as {lsns}")
    asked_max = max((trim.lsn for trim in story.trims), default=0)
    if final.trim_point > asked_max:
        raise Violation("trim", f"trimmed at {final.trim_point}, asked for {asked_max}")
    for trim in story.trims:
        if trim.point is not None and not trim.lsn <= trim.point <= final.trim_point:
            raise Violation("trim", f"{trim}, but the trim point is {final.trim_point}")
    for bounds in story.bounds:
        assert bounds.ended_us is not None
        answered = [t for t in story.trims if t.ended_us and t.ended_us < bounds.asked_us]
        lowest = max((t.point or 0 for t in answered), default=0)
        highest = max((t.lsn for t in story.trims if t.asked_us <= bounds.ended_us), default=0)
        if not lowest <= bounds.trim_point <= highest:
            raise Violation("trim", f"{bounds}: trims say {lowest} to {highest}")
    for reading in story.readings:
        if isinstance(reading.error, Trimmed) and reading.looked_up_to >= asked_max:
            raise Violation("trim", f"{reading.client} at {reading.looked_up_to}: {reading.error}")
