"""Everything that anybody ever saw of the log, put together.

Law (I2): one value per LSN for ever. Two readers, or a reader and the final log, that saw different
entries at one LSN break it; so does an entry that a reader saw and a crash took back (I4), since
its LSN is then another's or beyond the tail.
"""

from __future__ import annotations

from penstock.log.records import Entry, Kind
from simulation.log.story import AppendOp, FinalLog, Story

#: Bytes of a claim's payload; a retirement's is empty.
_NONCE_BYTES = 8


class Violation(AssertionError):
    """A law is broken; the message names the law and tells what was seen."""

    def __init__(self, law: str, story: str) -> None:
        super().__init__(f"{law}: {story}")
        self.law = law


def is_claim(entry: Entry) -> bool:
    return entry.kind is Kind.CONTROL and len(entry.payload) == _NONCE_BYTES


def is_retirement(entry: Entry) -> bool:
    return entry.kind is Kind.CONTROL and not entry.payload


class Evidence:
    """The union of all readings and the final log, and which append each entry came from."""

    def __init__(self, story: Story, final: FinalLog) -> None:
        self.story = story
        self.final = final
        #: Every entry that was ever seen, by LSN.
        self.entries: dict[int, Entry] = {}
        for entry in final.entries:
            self._take(entry, "the final log")
        for reading in story.readings:
            for batch in reading.batches:
                for entry in batch.entries:
                    self._take(entry, reading.client)
        for last in story.lasts:
            if last.found is not None:
                self._take(last.found, last.client)
        self.lsns = sorted(self.entries)
        if self.lsns and self.lsns[-1] >= final.tail:
            raise Violation(
                "I4", f"{self.entries[self.lsns[-1]]} was seen, but the log ends at {final.tail}"
            )
        #: Nothing is unknown: the whole history of the log can be folded.
        self.is_complete = self.lsns == list(range(final.tail))
        #: By the unique payload of an entry: the append, and which of its entries it is.
        self.ops: dict[bytes, tuple[AppendOp, int]] = {}
        for op in story.appends:
            for index, new in enumerate(op.entries):
                if new.kind is not Kind.META:
                    self.ops[new.payload] = op, index

    def _take(self, entry: Entry, who: str) -> None:
        known = self.entries.setdefault(entry.lsn, entry)
        if known != entry:
            raise Violation("I2", f"{who} saw {entry}, somebody else {known}")

    def op_of(self, entry: Entry) -> AppendOp | None:
        found = self.ops.get(entry.payload)
        return None if found is None else found[0]

    def first_lsns(self) -> dict[AppendOp, list[int]]:
        """For each append, the LSNs at which its first entry was seen."""
        found: dict[AppendOp, list[int]] = {}
        for lsn in self.lsns:
            hit = self.ops.get(self.entries[lsn].payload)
            if hit is not None and hit[1] == 0:
                found.setdefault(hit[0], []).append(lsn)
        return found

    def asked_us(self, lsn: int) -> int:
        """When the entry was asked for; 0 if that is not known."""
        op = self.op_of(self.entries[lsn]) if lsn in self.entries else None
        return 0 if op is None else op.asked_us
