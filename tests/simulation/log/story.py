"""What every client asked, was told and saw: the histories that the checkers read.

Owns one record per operation, with the virtual times at which it was asked and answered, and the
*known LSN*: everything below it had been told to somebody before. Whatever is asked later must
rest on at least that prefix of the log; this is what makes linearizability cheap to check on a log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.errors import PenstockError
from penstock.log.records import Appended, Entry, Guard, NewEntry, Value


@dataclass(slots=True, eq=False)
class Asked:
    """When an operation was asked, what was known by then, and when it ended."""

    client: str
    asked_us: int
    #: Everything below was known to somebody when this was asked.
    known_lsn: int
    ended_us: int | None = None


@dataclass(slots=True, eq=False)
class AppendOp(Asked):
    """One append. No outcome at the end of a run counts as unknown."""

    producer: str = ""
    instance: int = 0
    entries: tuple[NewEntry, ...] = ()
    guards: tuple[Guard, ...] = ()
    flush_ms: int = 0
    outcome: Appended | PenstockError | None = None


@dataclass(slots=True, eq=False)
class ClaimOp(Asked):
    """One opening of a producer; `won` if the claim was acknowledged."""

    producer: str = ""
    instance: int = 0
    nonce: bytes = b""
    won: bool = False


@dataclass(slots=True, eq=False)
class GetOp(Asked):
    """A read of one metadata key."""

    key: str = ""
    found: Value | None = None


@dataclass(slots=True, eq=False)
class LastOp(Asked):
    """The newest entry of a tag."""

    tag: str = ""
    found: Entry | None = None


@dataclass(slots=True, eq=False)
class BoundsOp(Asked):
    """What can be read."""

    trim_point: int = 0
    tail: int = 0


@dataclass(slots=True, eq=False)
class FindTimeOp(Asked):
    """The position of a time."""

    time_ms: int = 0
    found: int = 0


@dataclass(slots=True, eq=False)
class TrimOp(Asked):
    """A trim; `point` is what the server answered."""

    lsn: int = 0
    point: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """What a reader was handed at once."""

    entries: tuple[Entry, ...]
    looked_up_to: int
    at_us: int


@dataclass(slots=True, eq=False)
class Reading:
    """One reader from its start to its end, over all reconnections."""

    client: str
    tags: tuple[str, ...] | None
    start: int
    end: int | None
    batches: list[Batch] = field(default_factory=list)
    error: PenstockError | None = None
    done: bool = False

    @property
    def looked_up_to(self) -> int:
        return self.batches[-1].looked_up_to if self.batches else self.start


@dataclass(slots=True)
class FinalLog:
    """The log after everything healed, read from its files, by every way there is to read it."""

    trim_point: int
    tail: int
    entries: list[Entry]
    by_tag: dict[str, list[Entry]]
    last_by_tag: dict[str, Entry | None]
    by_time: dict[int, int]
    metadata: dict[str, Value]


class Story:
    """All operations of a run, in the order in which they were asked."""

    def __init__(self) -> None:
        self.appends: list[AppendOp] = []
        self.claims: list[ClaimOp] = []
        self.gets: list[GetOp] = []
        self.lasts: list[LastOp] = []
        self.bounds: list[BoundsOp] = []
        self.times: list[FindTimeOp] = []
        self.trims: list[TrimOp] = []
        self.readings: list[Reading] = []
        #: Everything below was told to somebody.
        self.known_lsn = 0

    def know(self, lsn: int) -> None:
        """Somebody was told that the log reaches `lsn`."""
        self.known_lsn = max(self.known_lsn, lsn)

    def saw(self, reading: Reading, entries: Sequence[Entry], looked_up_to: int, at: int) -> None:
        reading.batches.append(Batch(tuple(entries), looked_up_to, at))
        self.know(looked_up_to)
