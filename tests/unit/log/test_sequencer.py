"""The edges of the sequencer: sizes, ages, shapes, guards, metadata that lies.

What it does in order is told in tests/transcripts, and compared with a slow, obvious model over
random stories in tests/property/test_sequencer_laws.py.
"""

from __future__ import annotations

import pytest
from sample_groups import claim, group

from penstock.errors import (
    BadRequest,
    GuardFailed,
    PenstockError,
    Refused,
    SeqMismatch,
    StaleInstance,
    TooLarge,
)
from penstock.ids import Lsn
from penstock.limits import VALUE_BYTES_MAX
from penstock.log.core.producers import AppendedGroup
from penstock.log.core.sequencer import SegmentLimits, Sequencer, Write, decide_duplicate
from penstock.log.core.state import LogState
from penstock.log.group_format import Body, meta_entry
from penstock.log.records import Appended, Guard, Kind, NewEntry, SetKey

WIDE = SegmentLimits(bytes=2**30, ms=2**40)


class Bench:
    """A sequencer with an open producer; its invariants are checked after each event."""

    def __init__(
        self, *, limits: SegmentLimits = WIDE, write_bytes_max: int = 2**20, **options: int
    ) -> None:
        self.core = Sequencer(LogState(), limits=limits, write_bytes_max=write_bytes_max, **options)
        self.now_ms = 1000
        self.outcome(claim())

    def append(self, body: Body, *guards: Guard) -> None:
        self.core.append("cause", body, guards=guards, now_ms=self.now_ms)
        self.core.check()

    def take(self) -> Write:
        write = self.core.take_write(self.now_ms)
        self.core.check()
        assert write is not None
        return write

    def writes(self) -> list[Write]:
        """Every write that is due, performed."""
        writes = []
        while self.core.due_ms() is not None:
            writes.append(self.take())
            self.core.written(writes[-1])
            self.core.check()
        return writes

    def outcome(self, body: Body, *guards: Guard) -> object:
        """Append and make durable: the answer, with errors as their class."""
        self.append(body, *guards)
        self.writes()
        outcome = self.core.take_answers()[-1].outcome
        return type(outcome) if isinstance(outcome, PenstockError) else outcome


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_write_stops_growing_at_its_size_and_the_rest_follows_at_once() -> None:
    bench = Bench(write_bytes_max=400)
    for seq in range(5):
        bench.append(group(seq=seq, entries=[NewEntry(bytes(150))]))

    taken = [[group.first_lsn for group in write.groups] for write in bench.writes()]

    assert taken == [[1, 2], [3, 4], [5]]


def test_nothing_is_due_while_a_write_is_in_flight_or_nothing_waits(bench: Bench) -> None:
    assert bench.core.due_ms() is None and bench.core.is_idle
    bench.append(group(seq=0))
    assert bench.core.due_ms() == 1000
    write = bench.take()
    bench.append(group(seq=1))
    assert bench.core.due_ms() is None
    bench.core.written(write)
    assert bench.core.due_ms() == 1000 and not bench.core.is_idle


def test_a_segment_rolls_by_age_counted_from_its_first_group() -> None:
    bench = Bench(limits=SegmentLimits(bytes=2**30, ms=100))
    rolled = []
    for seq, bench.now_ms in enumerate((1099, 1100, 1150, 1199, 1200, 5000)):
        bench.append(group(seq=seq))
        rolled += [write.roll is not None for write in bench.writes()]

    assert rolled == [False, True, False, False, True, True]


@pytest.mark.parametrize(("seq", "entries"), [(1, 1), (1, 2), (0, 2), (0, 4), (2, 5)])
def test_a_seq_used_for_a_group_of_another_shape_is_refused(
    bench: Bench, seq: int, entries: int
) -> None:
    bench.outcome(group(seq=0, entries=3))

    assert bench.outcome(group(seq=seq, entries=entries)) is SeqMismatch
    assert bench.core.state.next_lsn == 4


def test_an_old_group_that_was_found_answers_like_a_recent_one() -> None:
    found = AppendedGroup(first_seq=4, count=2, instance=3, first_lsn=Lsn(40))

    for instance in (3, 4):
        assert decide_duplicate(instance, 2, found) == Appended(Lsn(40), 2, duplicate=True)
    with pytest.raises(SeqMismatch):
        decide_duplicate(3, 1, found)
    with pytest.raises(StaleInstance):
        decide_duplicate(2, 2, found)


@pytest.mark.parametrize(
    ("guards", "passes"),
    [
        ([Guard("k", b"v")], True),
        ([Guard("k", b"v"), Guard("absent", None)], True),
        ([Guard("k", b"v"), Guard("absent", b"")], False),
        ([Guard("k", None)], False),
        ([Guard("k", b"")], False),
        ([Guard("k", b"v"), Guard("k", b"w")], False),
    ],
    ids=str,
)
def test_all_guards_must_hold(bench: Bench, guards: list[Guard], passes: bool) -> None:
    bench.outcome(group(seq=0, entries=[], sets=[SetKey("k", b"v")]))

    outcome = bench.outcome(group(seq=1), *guards)

    assert outcome == (Appended(Lsn(2), 1) if passes else GuardFailed)


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        ([NewEntry(b"\x00\x00", ("m/k",), Kind.META)], BadRequest),
        ([NewEntry(meta_entry([SetKey("k", b"v")]).payload, ("m/j",), Kind.META)], BadRequest),
        ([NewEntry(meta_entry([SetKey("k", b"v")]).payload, (), Kind.META)], BadRequest),
        ([meta_entry([SetKey("k", b"1")]), meta_entry([SetKey("k", b"2")])], BadRequest),
        ([meta_entry([SetKey("k", bytes(VALUE_BYTES_MAX + 1))])], TooLarge),
        ([NewEntry(b"nonsense", ("m/k",), Kind.META)], BadRequest),
    ],
    ids=["untouched", "other", "untagged", "twice", "large", "nonsense"],
)
def test_a_metadata_entry_that_lies_is_refused(
    bench: Bench, entries: list[NewEntry], error: type[Refused]
) -> None:
    before = bench.core.state.copy()

    assert bench.outcome(group(seq=0, entries=entries)) is error
    assert bench.core.state == before


# ---- writes in flight


def test_bytes_in_flight_are_bounded_whatever_the_number_of_writes() -> None:
    bench = Bench(write_bytes_max=1, writes_max=16, in_flight_bytes_max=250)
    for seq in range(6):
        bench.append(group(seq=seq, entries=[NewEntry(bytes(100))]))

    first, second = bench.take(), bench.take()
    assert first.bytes < 250 <= first.bytes + second.bytes
    assert bench.core.take_write(bench.now_ms) is None
    assert bench.core.due_ms() is None

    bench.core.written(first)
    assert bench.core.due_ms() is not None
    third = bench.take()
    for write in (second, third):
        bench.core.written(write)
    assert len(bench.writes()) == 3 and bench.core.is_idle
