"""What a task may still read, by its last marker: the rule of trimming. Pure.

Law (I15): neither the task, nor any later instance of it, reads an entry below `needed_from`: not
as input, not as a staged group that an upstream marker names later, not as a change of its state,
even if its newest checkpoint turns out to be damaged. Impeller 3.5.
"""

from __future__ import annotations

from penstock.ids import Lsn
from penstock.protocol.markers import Marker


def needed_from(marker: Marker | None, start: Lsn) -> Lsn:
    """The first LSN that a task may need; `start` is where it began to read."""
    if marker is None:
        return start
    if not marker.has_state:
        return marker.needs_from
    if len(marker.checkpoints) < 2 and marker.origins:
        # Changes of its own stand after those of its predecessors.
        states = [one.needs_from for one in marker.origins if one.needs_from is not None]
        return Lsn(min([marker.needs_from, *(states or [start])]))
    if len(marker.checkpoints) < 2:
        # The changes since its first marker, or since its only checkpoint should that be damaged.
        return start
    return Lsn(min(marker.needs_from, int(marker.checkpoints[-1]["marker_lsn"])))


def below_named(point: Lsn, marker: Marker) -> Lsn:
    """A trim point that spares what a marker of a task's first commit at or after `point` names.

    Whoever reads that marker later fetches it. Later commits of the task name groups after it.
    Beside a commit protocol for which that does not hold nothing is trimmed.
    """
    return Lsn(min([point, *(named.first_lsn for named in marker.ranges)]))
