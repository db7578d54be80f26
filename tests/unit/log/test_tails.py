"""Many readers of one log: events in, deliveries and reads out; `check()` after each event.

What readers are given over random interleavings is in tests/property/test_tails_laws.py; here is
how and when, at the edges.
"""

from __future__ import annotations

import pytest
from sample_groups import entries_of, group, stored

from penstock.errors import InvariantBroken
from penstock.ids import Lsn
from penstock.limits import CREDIT_BYTES_MAX
from penstock.log.core.tails import (
    FOREVER,
    PIECE_BYTES,
    RECENT_BYTES,
    Deliver,
    DurableGroup,
    Effect,
    ReadBehind,
    Room,
    Tails,
    cut_group,
)
from penstock.log.record_format import decode_record
from penstock.log.records import NewEntry

PLENTY = 2**30


def tagged(first_lsn: int, *tags: str, payload: bytes = b"x") -> DurableGroup:
    """A group of one entry per argument; an argument names the tags of its entry, by letter."""
    entries = [NewEntry(payload, tuple(letters)) for letters in tags]
    return stored(group(entries=entries), first_lsn)


def delivered(effects: list[Effect]) -> list[tuple[object, list[int], int, bool]]:
    """Each delivery as (subscription, LSNs, looked up to, done)."""
    found = []
    for effect in effects:
        assert isinstance(effect, Deliver), effect
        found.append((effect.id, lsns(effect), effect.looked_up_to, effect.done))
    return found


def lsns(effect: Deliver) -> list[int]:
    data = memoryview(b"".join(effect.records))
    found: list[int] = []
    while data:
        size = int.from_bytes(data[8:12], "little")
        header, body = decode_record(data[:size])
        found += [entry.lsn for entry in body.entries(header.first_lsn, 0)]
        data = data[size:]
    return found


class Bench:
    """Tails with `check()` after each event, on a clock that stands still unless told."""

    def __init__(self, tail: int = 0) -> None:
        self.core = Tails(Lsn(tail), progress_ms=10)
        self.now_ms = 1000
        #: What is being read, by reader.
        self.reads: dict[object, ReadBehind] = {}

    def seen(self, effects: list[Effect]) -> list[Effect]:
        self.core.check()
        self.reads |= {effect.id: effect for effect in effects if isinstance(effect, ReadBehind)}
        return effects

    def subscribe(
        self, id: str, tags: str | None, start: int, end: int = FOREVER, credit: int = PLENTY
    ) -> list[Effect]:
        wanted = None if tags is None else frozenset(tags)
        effects = self.core.subscribe(id, wanted, start=Lsn(start), end=Lsn(end), credit=credit)
        return self.seen(effects)

    def durable(self, *groups: DurableGroup) -> list[Effect]:
        return self.seen(self.core.durable(groups, self.now_ms))

    def credit(self, id: str, size: int) -> list[Effect]:
        return self.seen(self.core.credit(id, size))

    def piece(self, id: str, groups: list[DurableGroup], looked_up_to: int) -> list[Effect]:
        records = [b"".join(map(bytes, group.record)) for group in groups]
        read = self.reads.pop(id)
        return self.seen(self.core.piece_read(read, records, Lsn(looked_up_to), self.now_ms))

    def tick(self, after_ms: int = 10) -> list[Effect]:
        self.now_ms += after_ms
        return self.seen(self.core.tick(self.now_ms))


@pytest.fixture
def bench() -> Bench:
    return Bench()


# ---- live readers


def test_a_live_reader_gets_a_group_as_it_lies_in_the_log(bench: Bench) -> None:
    assert bench.subscribe("r", None, 0) == []
    first = tagged(0, "a", "b")

    assert bench.durable(first) == [Deliver("r", first.record, Lsn(2))]


def test_a_group_out_of_order_is_a_defect(bench: Bench) -> None:
    with pytest.raises(InvariantBroken):
        bench.durable(tagged(1, "a"))


def test_the_same_subscription_twice_is_a_defect(bench: Bench) -> None:
    bench.subscribe("r", None, 0)

    with pytest.raises(InvariantBroken):
        bench.subscribe("r", "a", 0)


def test_after_unsubscribing_nothing_comes() -> None:
    bench = Bench(tail=1)
    bench.subscribe("r", "ab", 0)
    bench.core.unsubscribe("r")
    bench.core.unsubscribe("r")

    assert bench.durable(tagged(1, "a")) == []
    assert bench.credit("r", 10) == []
    assert bench.piece("r", [], 1) == []
    assert bench.core.count == 0


# ---- progress


def test_a_quiet_reader_is_told_how_far_was_looked(bench: Bench) -> None:
    bench.subscribe("r", "z", 0)
    assert bench.durable(tagged(0, "a")) == []

    assert delivered(bench.tick()) == [("r", [], 1, False)]
    bench.durable(tagged(1, "a"))
    assert bench.tick(5) == [], "no more often than asked"
    assert delivered(bench.tick(5)) == [("r", [], 2, False)]
    assert bench.tick() == [], "it was told"


# ---- behind


@pytest.mark.parametrize(("credit", "bytes_max"), [(500, 500), (PLENTY, PIECE_BYTES)])
def test_old_entries_are_read_from_storage_as_much_as_the_reader_takes(
    credit: int, bytes_max: int
) -> None:
    bench = Bench(tail=10)

    effects = bench.subscribe("r", "a", 4, credit=credit)

    assert effects == [ReadBehind("r", frozenset("a"), Lsn(4), Lsn(10), bytes_max)]
    assert bench.core.behind == 1


def test_only_what_no_longer_fits_in_memory_is_read_from_storage(bench: Bench) -> None:
    bench.durable(tagged(0, "a"), tagged(1, "b"), tagged(2, "a"))
    assert delivered(bench.subscribe("q", "a", 0)) == [("q", [0, 2], 3, False)]
    large = bytes(RECENT_BYTES // 8)
    for lsn in range(3, 13):
        bench.durable(tagged(lsn, "b", payload=large))

    assert bench.subscribe("r", None, 0) == [ReadBehind("r", None, Lsn(0), Lsn(13), PIECE_BYTES)]
    assert delivered(bench.subscribe("s", None, 12)) == [("s", [12], 13, False)]


# ---- credit: a slow reader costs nobody


def test_an_empty_range_is_done_at_once(bench: Bench) -> None:
    assert delivered(bench.subscribe("r", None, 0, end=0)) == [("r", [], 0, True)]
    assert delivered(bench.subscribe("s", None, 7, end=7)) == [("s", [], 7, True)]
    assert bench.core.count == 0


def test_credit_lets_a_stopped_reader_go_on_where_it_was(bench: Bench) -> None:
    bench.subscribe("r", None, 0, credit=1)
    one = tagged(0, "a")
    size = sum(map(len, one.record))
    bench.durable(one, tagged(1, "a"))
    bench.durable(tagged(2, "a"))

    assert bench.credit("r", size - 1) == []
    assert delivered(bench.credit("r", 1)) == [("r", [1], 2, False)]
    assert delivered(bench.credit("r", PLENTY)) == [("r", [2], 3, False)]
    assert bench.core.behind == 0


# ---- cutting groups


@pytest.mark.parametrize(
    ("tags", "start", "end", "expected"),
    [
        (None, 0, FOREVER, [10, 11, 12]),
        (None, 11, FOREVER, [11, 12]),
        (None, 0, 12, [10, 11]),
        (None, 13, FOREVER, []),
        ("b", 0, FOREVER, [11, 12]),
        ("b", 12, FOREVER, [12]),
        ("ab", 0, FOREVER, [10, 11, 12]),
        ("z", 0, FOREVER, []),
    ],
)
def test_a_group_is_cut_to_tags_and_range(
    tags: str | None, start: int, end: int, expected: list[int]
) -> None:
    whole = tagged(10, "a", "ab", "b")

    record = cut_group(whole, None if tags is None else frozenset(tags), start, end)

    assert lsns(Deliver("r", record, Lsn(0))) == expected
    assert (record == whole.record) == (len(expected) == 3)
    assert len(entries_of([whole])) == 3


# ---- bounds


def test_credit_never_grows_beyond_its_limit(bench: Bench) -> None:
    """However much a reader promises to take, one subscription is sent no more than the limit."""
    bench.subscribe("r", None, 100, credit=CREDIT_BYTES_MAX)
    for _ in range(3):
        bench.credit("r", CREDIT_BYTES_MAX)
    assert bench.core._all["r"].credit == CREDIT_BYTES_MAX


def test_a_paused_reader_gets_nothing_until_it_is_resumed_and_then_everything(
    bench: Bench,
) -> None:
    first, second = tagged(0, "a"), tagged(1, "a")
    bench.subscribe("r", None, 0)
    bench.core.pause("r")
    assert bench.durable(first, second) == []
    assert bench.credit("r", 1) == bench.tick() == []
    assert bench.core.resume("r") == [Deliver("r", first.record + second.record, Lsn(2))]
    bench.core.check()
    third = tagged(2, "a")
    assert bench.durable(third) == [Deliver("r", third.record, Lsn(3))]


def test_a_pause_lets_only_the_piece_that_is_being_read_through() -> None:
    late = Bench(tail=10)
    (read,) = late.subscribe("r", None, 0)
    assert isinstance(read, ReadBehind)
    late.core.pause("r")
    group = tagged(0, "a")
    (delivery,) = late.piece("r", [group], 1)
    assert isinstance(delivery, Deliver)
    (again,) = late.core.resume("r")
    assert isinstance(again, ReadBehind)
    assert again.start == 1


# ---- readers that share a connection


def test_readers_of_a_connection_share_its_room_and_go_on_in_turns(bench: Bench) -> None:
    """One record may overdraw the room; who finds it full is behind until the socket has taken."""
    room = Room(10)
    for id in "abc":
        assert bench.core.subscribe(id, None, start=Lsn(0), credit=PLENTY, room=room) == []
    size = sum(map(len, tagged(0, "x").record))

    assert delivered(bench.durable(tagged(0, "x"))) == [("a", [0], 1, False)]
    assert (room.unsent, list(room.waiting), bench.core.behind) == (size, ["b", "c"], 2)

    assert bench.core.sent(room, 11) == []
    assert delivered(bench.core.sent(room, 10)) == [("b", [0], 1, False)]
    bench.core.check()
    assert delivered(bench.core.sent(room, 0)) == [("c", [0], 1, False)]
    assert (list(room.waiting), bench.core.behind) == ([], 0)


def test_what_is_being_read_takes_room_until_it_is_there_also_if_nobody_wants_it() -> None:
    bench = Bench(tail=100)
    room = Room(PIECE_BYTES)
    reads = [
        bench.seen(bench.core.subscribe(id, None, start=Lsn(0), credit=PLENTY, room=room))
        for id in "abcd"
    ]

    assert [len(effects) for effects in reads] == [1, 1, 0, 0]
    assert (room.reading, list(room.waiting)) == (2 * PIECE_BYTES, ["c", "d"])
    bench.core.unsubscribe("a")
    bench.core.unsubscribe("c")
    assert (room.reading, list(room.waiting)) == (2 * PIECE_BYTES, ["d"])
    assert bench.seen(bench.core.sent(room, 0)) == []
    assert [effect.id for effect in bench.piece("a", [tagged(0, "x")], 1)] == ["d"]
    assert (room.reading, room.unsent, list(room.waiting)) == (2 * PIECE_BYTES, 0, [])
    bench.core.unsubscribe("d")
    assert bench.core.read_failed(bench.reads["d"]) == (False, [])
    assert bench.core.read_failed(bench.reads["b"]) == (True, [])
    assert (room.reading, bench.core.count) == (0, 0)


def test_reads_under_way_are_bounded_also_of_readers_that_left() -> None:
    bench = Bench(tail=100)
    room = Room(4 * PIECE_BYTES)
    for number in range(1000):
        bench.seen(bench.core.subscribe(number, None, start=Lsn(0), credit=PLENTY, room=room))
        bench.core.unsubscribe(number)

    assert sum(read.bytes_max for read in bench.reads.values()) == 5 * PIECE_BYTES


def test_a_piece_is_for_who_asked_and_not_for_who_has_its_name_now() -> None:
    bench = Bench(tail=3)
    bench.subscribe("r", "a", 0)
    old = bench.reads.pop("r")
    bench.core.unsubscribe("r")
    bench.subscribe("r", "b", 1)

    record = b"".join(map(bytes, tagged(0, "a").record))
    assert bench.seen(bench.core.piece_read(old, [record], Lsn(3), 0)) == []
    assert bench.core.read_failed(old) == (False, [])
    assert delivered(bench.piece("r", [tagged(1, "b")], 3)) == [("r", [1], 3, False)]


def test_a_full_room_holds_nobody_of_another_connection(bench: Bench) -> None:
    full = Room(0)
    full.unsent = 1
    bench.core.subscribe("stuck", None, start=Lsn(0), credit=PLENTY, room=full)
    bench.core.subscribe("other", None, start=Lsn(0), credit=PLENTY, room=Room(0))

    assert delivered(bench.durable(tagged(0, "x"))) == [("other", [0], 1, False)]
