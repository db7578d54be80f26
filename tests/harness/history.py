"""What clients did and saw, and the check of it against the final log.

Owns the record of every append (invoked, then ok, refused or unknown) and of every reader, and the
checkers I1, I2, I3, I7, I8 and I22 over them. Knows the log only as its readers do: entries with
LSNs. Payloads must be unique, for they name the appends. Every checker returns all it found, as
sentences; an empty list is the proof.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from crc32c import crc32c

from penstock.errors import Fenced, PenstockError, Refused, Retryable
from penstock.log.api import ReadBatch
from penstock.log.group_format import decode_sets
from penstock.log.records import Appended, Entry, Kind, NewEntry, meta_tag

#: Findings of one kind that are told; a broken log breaks in thousands of places.
_TOLD_MAX = 10


class Outcome(Enum):
    """How an append ended (I22). Pending is unknown to whoever asks now."""

    PENDING = "pending"
    OK = "ok"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Append:
    """One append of one client; `invoked` and `completed` count events of the whole history."""

    client: str
    entries: tuple[NewEntry, ...]
    invoked: int
    outcome: Outcome = Outcome.PENDING
    completed: int | None = None
    first_lsn: int | None = None

    def __str__(self) -> str:
        first = self.entries[0].payload[:40]
        return f"append {first!r} of {self.client} ({self.outcome.value} at {self.first_lsn})"


#: What a reader saw of an entry: enough to tell it from every other.
Seen = tuple[int, tuple[str, ...], int]


def fingerprint(entry: Entry) -> Seen:
    return entry.lsn, entry.tags, crc32c(entry.payload)


@dataclass(slots=True)
class Reading:
    """All that one tail was given, over any number of reconnections."""

    name: str
    tags: frozenset[str] | None
    start: int
    seen: list[Seen] = field(default_factory=list)
    looked_up_to: int = 0
    problems: list[str] = field(default_factory=list)

    def saw(self, batch: ReadBatch) -> None:
        if batch.looked_up_to < self.looked_up_to:
            self.problems.append(
                f"reader {self.name} was told {batch.looked_up_to} after {self.looked_up_to}"
            )
        self.looked_up_to = batch.looked_up_to
        self.seen += map(fingerprint, batch.entries)


class History:
    """The events of one run. One per test; not for several threads at once."""

    def __init__(self) -> None:
        self.appends: list[Append] = []
        self.readings: list[Reading] = []
        self._payloads: set[bytes] = set()
        self._clock = 0

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def invoke(self, client: str, entries: Iterable[NewEntry]) -> Append:
        """A client is about to append."""
        append = Append(client, tuple(entries), self._tick())
        for entry in append.entries:
            if entry.payload in self._payloads:
                raise ValueError(f"payload {entry.payload[:40]!r} is not unique")
            self._payloads.add(entry.payload)
        self.appends.append(append)
        return append

    def ok(self, append: Append, done: Appended) -> None:
        append.outcome, append.completed = Outcome.OK, self._tick()
        append.first_lsn = done.first_lsn

    def failed(self, append: Append, error: PenstockError) -> None:
        """Class the error as errors.py does: retryable means that nothing happened."""
        sure = isinstance(error, Refused | Fenced | Retryable)
        append.outcome = Outcome.REFUSED if sure else Outcome.UNKNOWN
        append.completed = self._tick()

    def reading(self, name: str, tags: Iterable[str] | None, start: int = 0) -> Reading:
        reading = Reading(name, None if tags is None else frozenset(tags), start)
        reading.looked_up_to = start
        self.readings.append(reading)
        return reading

    def count(self, outcome: Outcome) -> int:
        return sum(append.outcome is outcome for append in self.appends)

    def check(
        self, final: Sequence[Entry], by_tag: Mapping[str, Sequence[Entry]] | None = None
    ) -> list[str]:
        """Every problem of this history, given the final log and final reads by tag."""
        placed = _Placement(self.appends, final)
        seen = [*map(fingerprint, final)]
        problems = [
            *check_dense(final),
            *placed.problems,
            *check_order(self.appends, placed.lsns),
            *check_tags(final, by_tag or {}),
        ]
        for reading in self.readings:
            problems += check_reading(reading, seen)
        return problems


class _Placement:
    """Where the appends ended up in the final log: I1, I7, I8, I22."""

    def __init__(self, appends: Sequence[Append], final: Sequence[Entry]) -> None:
        self.problems: list[str] = []
        #: First LSN of every append that is in the log, by its place in the history.
        self.lsns: dict[int, int] = {}
        found: dict[bytes, list[Entry]] = defaultdict(list)
        for entry in final:
            if entry.kind is Kind.DATA:
                found[entry.payload].append(entry)
        for number, append in enumerate(appends):
            for problem in self._place(number, append, found):
                if len(self.problems) < _TOLD_MAX:
                    self.problems.append(problem)
        if found:
            strays = [entry.lsn for entries in found.values() for entry in entries]
            self.problems.append(f"nobody appended what is at lsn {sorted(strays)[:_TOLD_MAX]}")

    def _place(self, number: int, append: Append, found: dict[bytes, list[Entry]]) -> Iterable[str]:
        places = [found.pop(entry.payload, []) for entry in append.entries]
        for entries in places:
            if len(entries) > 1:
                yield f"{append}: appears {len(entries)} times, at {[e.lsn for e in entries]}"
        present = sum(map(bool, places))
        if present and append.outcome is Outcome.REFUSED:
            yield f"{append}: refused, yet {present} of its entries are in the log"
        if 0 < present < len(places):
            yield f"{append}: only {present} of its {len(places)} entries are in the log"
        if not present:
            if append.outcome is Outcome.OK:
                yield f"{append}: acknowledged and lost"
            return
        first = next(entries[0] for entries in places if entries)
        base = first.lsn if append.first_lsn is None else append.first_lsn
        self.lsns[number] = base
        for index, (wanted, entries) in enumerate(zip(append.entries, places, strict=True)):
            for entry in entries[:1]:
                if entry.lsn != base + index:
                    yield f"{append}: entry {index} is at {entry.lsn}, not {base + index}"
                if entry.tags != wanted.tags or entry.rows != wanted.rows:
                    yield f"{append}: entry {index} has tags {entry.tags}, not {wanted.tags}"


def check_dense(final: Sequence[Entry]) -> list[str]:
    """One entry per LSN, without a gap, times in order (I2)."""
    problems = []
    for left, right in pairwise(final):
        if right.lsn != left.lsn + 1:
            problems.append(f"lsn {right.lsn} follows {left.lsn} in the final log")
        if right.time_ms < left.time_ms:
            problems.append(f"lsn {right.lsn} is older than the one before it")
    return problems[:_TOLD_MAX]


def check_order(appends: Sequence[Append], lsns: Mapping[int, int]) -> list[str]:
    """What was acknowledged before another was asked for comes first; so do a client's own (I2)."""
    events: list[tuple[int, bool, int]] = []
    for number, append in enumerate(appends):
        if number not in lsns:
            continue
        events.append((append.invoked, False, number))
        if append.outcome is Outcome.OK and append.completed is not None:
            events.append((append.completed, True, number))
    problems = []
    acknowledged = -1
    own: dict[str, int] = {}
    for _, completed, number in sorted(events):
        append, lsn = appends[number], lsns[number]
        if completed:
            acknowledged = max(acknowledged, lsn)
            continue
        if lsn <= acknowledged:
            problems.append(f"{append} is at {lsn}, below {acknowledged}, acknowledged before it")
        if lsn <= own.get(append.client, -1):
            problems.append(f"{append} is at {lsn}, below what this client appended before")
        own[append.client] = lsn
    return problems[:_TOLD_MAX]


def check_tags(final: Sequence[Entry], by_tag: Mapping[str, Sequence[Entry]]) -> list[str]:
    """Read(tag) = filter(full log, tag) (I3)."""
    wanted: dict[str, list[Entry]] = {tag: [] for tag in by_tag}
    for entry in final:
        for tag in entry.tags:
            if tag in wanted:
                wanted[tag].append(entry)
    return [
        f"tag {tag}: {_difference([*map(fingerprint, wanted[tag])], [*map(fingerprint, got)])}"
        for tag, got in by_tag.items()
        if list(got) != wanted[tag]
    ]


def check_reading(reading: Reading, final: Sequence[Seen]) -> list[str]:
    """A tail saw all of its entries in [start, looked up to), once, in order, as they are (I3)."""
    tags = reading.tags
    wanted = [
        seen
        for seen in final
        if reading.start <= seen[0] < reading.looked_up_to
        and (tags is None or not tags.isdisjoint(seen[1]))
    ]
    problems = list(reading.problems)
    if wanted != reading.seen:
        problems.append(f"reader {reading.name}: {_difference(wanted, reading.seen)}")
    return problems


def _difference(wanted: list[Seen], got: list[Seen]) -> str:
    pairs = zip(wanted, got, strict=False)
    at = next(
        (n for n, (left, right) in enumerate(pairs) if left != right), min(len(wanted), len(got))
    )
    return (
        f"{len(got)} entries, not {len(wanted)}; they part at entry {at}: "
        f"{got[at : at + 2]} instead of {wanted[at : at + 2]}"
    )


def check_counter(final: Sequence[Entry], key: str, *, ok: int, unknown: int) -> list[str]:
    """A counter that is only changed under a guard on its value: no step lost, none done twice."""
    values = [
        change.value
        for entry in final
        if meta_tag(key) in entry.tags and entry.kind is Kind.META
        for change in decode_sets(entry.payload)
        if change.key == key
    ]
    problems = []
    if values != [b"%d" % number for number in range(1, len(values) + 1)]:
        problems.append(f"counter {key} did not go up by one each time: {values[:20]} …")
    if not ok <= len(values) <= ok + unknown:
        problems.append(
            f"counter {key} was raised {len(values)} times: {ok} acknowledged, {unknown} unknown"
        )
    return problems
