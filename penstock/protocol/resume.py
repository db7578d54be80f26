"""Which change entries of a task count: a fold over its changes and markers, in log order.

Owns the rule for state: what a marker commits is applied, in order; changes that no marker names
were written by an instance that died before it committed, and are dropped with the next marker.
Law (I11): the changes handed out between two markers are exactly those of the inputs between their
positions. Impeller 3.3.4.
"""

from __future__ import annotations

from penstock.log.records import Entry, Kind
from penstock.protocol.markers import Marker, decode_marker


class ChangeFold:
    """Feed it the entries tagged with a task's changes and markers, from a marker on."""

    def __init__(self) -> None:
        self._waiting: list[Entry] = []
        #: The last marker that was fed.
        self.marker: Marker | None = None

    def step(self, entry: Entry) -> list[Entry]:
        """The change entries that count now."""
        if entry.kind is Kind.CHANGE:
            self._waiting.append(entry)
            return []
        if entry.kind is not Kind.MARKER:
            return []
        marker = decode_marker(entry.payload)
        first = entry.lsn - marker.inline
        counted = [
            waiting
            for waiting in self._waiting
            if first <= waiting.lsn < entry.lsn
            or any(named.first_lsn <= waiting.lsn < named.end for named in marker.ranges)
        ]
        self._waiting = []
        self.marker = marker
        return counted
