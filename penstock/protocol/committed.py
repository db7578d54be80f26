"""Which entries of a stream count, and when: the committed reader, one step per entry.

    DATA     counts where it stands: a plain producer's, or in one group with the marker that
             commits it (atomic groups: it is durable if and only if its marker is)
    STAGED   counts nowhere by itself
    MARKER   the staged entries that it names count here, at the marker's own place
    other    nothing to a reader of the stream

Law (I8, I10): what is released is the same for every reader and every replay, in the order of the
LSNs of DATA entries and markers. Nothing is held back meanwhile: a marker says where its entries
are, and the reader fetches them. So a task that dies between staging and marker delays nobody (pin
R26), and a position is one LSN: everything below it was released.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.protocol.markers import Marker, Range, decode_marker


@dataclass(frozen=True, slots=True)
class Counts:
    """This data entry counts, here."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Marked:
    """A task committed: what it staged in `marker.ranges` counts here; fetch it first."""

    lsn: Lsn
    marker: Marker


def judge(entry: Entry) -> Counts | Marked | None:
    """What an entry of a stream means to its readers."""
    match entry.kind:
        case Kind.DATA:
            return Counts(entry)
        case Kind.MARKER:
            return Marked(entry.lsn, decode_marker(entry.payload))
        case _:
            return None


def is_named(entry: Entry, named: Range) -> bool:
    """Whether an entry that was fetched for this range of a marker counts."""
    return entry.kind is Kind.STAGED and named.first_lsn <= entry.lsn < named.end
