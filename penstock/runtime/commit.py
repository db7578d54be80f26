"""What a task captured, and how one append commits it. Pure.

A Commit holds everything that came of the input up to the marker's position. How it becomes durable
and visible is the commit protocol's affair (commit_protocol.py); with markers it is cut into one
group, the marker last, and only what does not fit goes ahead of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.log.client.packing import fits, pack
from penstock.log.records import Kind, NewEntry
from penstock.protocol.markers import Marker, Range, encode_marker
from penstock.protocol.names import with_naming
from penstock.state.api import Change


@dataclass(frozen=True, slots=True)
class Commit:
    """All that came of the input up to the marker's position."""

    #: Rows for the next stage or for the result, and rows that failed.
    data: tuple[NewEntry, ...]
    changes: tuple[NewEntry, ...]
    #: Without what it names: that is known once it is in the log.
    marker: Marker
    #: Who must see the marker: the task itself, then others.
    tags: tuple[str, ...]
    #: Whether somebody asked for this marker, and waits for it.
    is_asked: bool = False
    #: Whether the marker's time (watermark, idleness) is another than that of the one before.
    tells_time: bool = False
    #: Whether a checkpoint is due at this marker.
    is_checkpoint: bool = False
    #: The state at this marker, if a checkpoint must have all of it.
    frozen: tuple[Change, ...] | None = None

    def cut(self) -> Cut:
        """One group if the marker fits beside all entries; if not, all of them go ahead of it.

        Data that goes ahead is staged, so that all rows count together, at the marker.
        """
        inline = (*self.data, *self.changes)
        marker = self.marker_entry(inline=len(inline))
        if fits(inline, marker):
            return Cut(self, (), inline, marker)
        staged = [entry._replace(kind=Kind.STAGED) for entry in self.data]
        return Cut(self, tuple(map(tuple, pack([*staged, *self.changes]))), (), marker)

    def marker_entry(
        self, ranges: Sequence[Range] = (), *, inline: int = 0, tags: tuple[str, ...] | None = None
    ) -> NewEntry:
        marker = replace(self.marker, ranges=tuple(ranges)) if ranges else self.marker
        seen = self.tags if tags is None else tags
        payload = encode_marker(marker, inline=inline)
        return NewEntry(payload, with_naming(seen) if ranges else seen, Kind.MARKER)


@dataclass(frozen=True, slots=True)
class Cut:
    """A commit as groups: usually there is but one."""

    commit: Commit
    #: Appended before, and acknowledged, when it is too much for one group.
    ahead: tuple[tuple[NewEntry, ...], ...]
    #: The entries of the last group, before the marker.
    inline: tuple[NewEntry, ...]
    #: The marker's entry, if there is nothing ahead that it must name.
    marker: NewEntry

    def group(self, ranges: Sequence[Range]) -> list[NewEntry]:
        """The last group, once those ahead of it were acknowledged at these ranges."""
        assert len(ranges) == len(self.ahead)
        return [*self.inline, self.commit.marker_entry(ranges) if ranges else self.marker]
