"""Staged entries that a reader was shown, kept until a marker names them; and the note of a writer
that it has some. Pure.

A marker says where its staged entries are, and a reader can always fetch them; but it was usually
shown them a moment before, on its way to the marker. Law: `find` gives exactly the entries that a
fetch would, or None if it cannot know: what was evicted, or stood before the reader began.
"""

from __future__ import annotations

import json
from typing import Any, Final

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.limits import GROUP_ENTRIES_MAX, MIB
from penstock.log.records import Entry, Kind, Value
from penstock.protocol.markers import Range

KEPT_BYTES: Final = 8 * MIB


class StagedEntries:
    """Of one reader that sees all entries under its tags from `start` on, in order."""

    def __init__(self, start: Lsn, bytes_max: int = KEPT_BYTES) -> None:
        #: Every staged entry from here on that the reader was shown is kept.
        self._from = start
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: dict[int, Entry] = {}

    def show(self, entry: Entry) -> None:
        if entry.kind is not Kind.STAGED:
            return
        self._kept[entry.lsn] = entry
        self._bytes += len(entry.payload)
        while self._bytes > self._bytes_max:
            oldest = self._kept.pop(next(iter(self._kept)))
            self._bytes -= len(oldest.payload)
            self._from = Lsn(oldest.lsn + 1)

    def find(self, named: Range) -> list[Entry] | None:
        """The entries of a range that a marker after it names; None: fetch them."""
        if named.first_lsn < self._from or named.count > GROUP_ENTRIES_MAX:
            return None  # the count is the log's word, and a range is one group or some of one task
        places = range(named.first_lsn, named.end)
        return [self._kept[lsn] for lsn in places if lsn in self._kept]


def encode_note(entries: int, token: str) -> bytes:
    """The note that comes in one group after so many staged entries; no two are alike."""
    return json.dumps({"entries": entries, "token": token}).encode()


def staged_from(note: Value) -> Lsn:
    """The first staged entry that the writer of this note may have."""
    try:
        found: Any = json.loads(note.data)
        entries = int(found["entries"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadFormat(f"bytes that are no note of staged entries: {error}") from error
    return Lsn(note.lsn - entries)
