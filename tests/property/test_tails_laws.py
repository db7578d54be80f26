"""Many readers of one log, over random interleavings (Impeller 3.2; laws I3 and I4).

Law: each subscription is given exactly the matching entries of [start, end), once, in order;
`looked_up_to` never goes back and always tells the truth; a reader without credit gets nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from sample_groups import group, stored

from penstock.ids import Lsn
from penstock.log.core import tails as tails_module
from penstock.log.core.tails import Deliver, DurableGroup, Effect, ReadBehind, Tails, cut_group
from penstock.log.record_format import decode_record
from penstock.log.records import NewEntry


@dataclass
class Reader:
    """What one subscription asked for and was given."""

    tags: frozenset[str] | None
    start: int
    end: int
    granted: int
    lsns: list[int] = field(default_factory=list)
    looked_up_to: int = 0
    sent: int = 0
    done: bool = False
    reading: ReadBehind | None = None


class TailsMachine(RuleBasedStateMachine):
    """Groups become durable, credit comes, pieces are read, the clock ticks, readers leave."""

    def __init__(self) -> None:
        super().__init__()
        # So small that readers fall out of memory and pieces are cut.
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(tails_module, "RECENT_BYTES", 9_000)
        self.patch.setattr(tails_module, "PIECE_BYTES", 400)
        self.groups: list[DurableGroup] = []
        self.readers: dict[int, Reader] = {}
        self.gone: set[int] = set()
        self.now_ms = 0
        self.largest = 0

    @initialize(tail=st.integers(0, 3))
    def begin(self, tail: int) -> None:
        """A log that may hold groups from before: those are on disk only."""
        for _ in range(tail):
            self.groups.append(stored(group(entries=[NewEntry(b"old", ("a",))] * 2), self.tail))
            self.largest = max(self.largest, size_of(self.groups[-1]))
        self.core = Tails(Lsn(self.tail), progress_ms=10)

    @property
    def tail(self) -> int:
        return self.groups[-1].end_lsn if self.groups else 0

    def matching(self, reader: Reader, end: int) -> list[int]:
        return [
            each.header.first_lsn + index
            for each in self.groups
            for index in range(each.body.count)
            if reader.start <= each.header.first_lsn + index < min(end, reader.end)
            and (reader.tags is None or reader.tags & set(each.body.entry_tags(index)))
        ]

    # ---- events

    @rule(
        batch=st.lists(
            st.lists(st.frozensets(st.sampled_from("abc"), max_size=2), min_size=1, max_size=4),
            min_size=1,
            max_size=3,
        ),
        size=st.sampled_from([1, 1, 90]),
    )
    def durable(self, batch: list[list[frozenset[str]]], size: int) -> None:
        made = []
        for entries in batch:
            body = group(entries=[NewEntry(bytes(size), tuple(sorted(tags))) for tags in entries])
            made.append(stored(body, self.tail))
            self.groups.append(made[-1])
            self.largest = max(self.largest, size_of(made[-1]))
        self.perform(self.core.durable(made, self.now_ms))

    @rule(
        asked=st.lists(
            st.tuples(
                st.none() | st.frozensets(st.sampled_from("abcz"), min_size=1, max_size=3),
                st.integers(-3, 9),
                st.none() | st.integers(0, 12),
                st.sampled_from([1, 200, 500, 10**9]),
            ),
            min_size=1,
            max_size=3,
        )
    )
    def subscribe(self, asked: list[tuple[frozenset[str] | None, int, int | None, int]]) -> None:
        """From somewhere near the tail, for ever or up to somewhere near it."""
        for tags, back, length, credit in asked:
            start = max(self.tail - back, 0)
            end = tails_module.FOREVER if length is None else start + length
            id = len(self.readers)
            self.readers[id] = Reader(tags, start, end, credit, looked_up_to=start)
            self.perform(
                self.core.subscribe(id, tags, start=Lsn(start), end=Lsn(end), credit=credit)
            )

    @precondition(lambda self: self.active())
    @rule(data=st.data(), size=st.sampled_from([1, 100, 1000, 10**9]))
    def credit(self, data: st.DataObject, size: int) -> None:
        id = data.draw(st.sampled_from(self.active()), "reader")
        self.readers[id].granted += size
        self.perform(self.core.credit(id, size))

    @precondition(lambda self: self.reading())
    @rule(data=st.data(), groups_max=st.integers(1, 4))
    def piece_read(self, data: st.DataObject, groups_max: int) -> None:
        """Storage may answer with less than was asked for, and with nothing that matches."""
        self.serve(data.draw(st.sampled_from(self.reading()), "reader"), groups_max)

    @precondition(lambda self: self.active())
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.active()), "reader")
        self.gone.add(id)
        self.core.unsubscribe(id)

    @rule(ms=st.sampled_from([0, 4, 10, 100]))
    def tick(self, ms: int) -> None:
        self.now_ms += ms
        behind = self.core.behind
        self.perform(self.core.tick(self.now_ms))
        # Live readers that have reached their end are gone.
        ended = [id for id in self.active() if self.readers[id].end <= self.tail]
        assert len(ended) <= behind

    # ---- the shell

    def active(self) -> list[int]:
        return [
            id for id, reader in self.readers.items() if not reader.done and id not in self.gone
        ]

    def starved(self) -> list[int]:
        readers = self.readers
        return [id for id in self.active() if readers[id].granted <= readers[id].sent]

    def reading(self) -> list[int]:
        return [id for id, reader in self.readers.items() if reader.reading is not None]

    def serve(self, id: int, groups_max: int) -> None:
        reader = self.readers[id]
        effect = reader.reading
        assert effect is not None
        reader.reading = None
        records: list[bytes | memoryview] = []
        looked = effect.start
        size = taken = 0
        for each in self.groups:
            if each.end_lsn <= effect.start or each.header.first_lsn >= effect.end:
                continue
            if size >= effect.bytes_max or taken == groups_max:
                break
            record = b"".join(map(bytes, cut_group(each, effect.tags, effect.start, effect.end)))
            records += [record] if record else []
            size += len(record)
            looked = Lsn(min(each.end_lsn, effect.end))
            taken += 1
        self.perform(self.core.piece_read(effect, records, looked, self.now_ms))

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect.id, int)
            assert effect.id not in self.gone
            reader = self.readers[effect.id]
            assert not reader.done
            if isinstance(effect, ReadBehind):
                assert reader.reading is None
                assert effect.tags == reader.tags
                assert reader.looked_up_to <= effect.start < effect.end
                assert reader.lsns == self.matching(reader, effect.start)
                assert effect.end <= min(self.tail, reader.end)
                assert 0 < effect.bytes_max <= reader.granted - reader.sent
                reader.reading = effect
            else:
                self.deliver(reader, effect)

    def deliver(self, reader: Reader, effect: Deliver) -> None:
        """Law I3: all matching entries below `looked_up_to`, once, in order, and no others."""
        data = memoryview(b"".join(effect.records))
        reader.sent += len(data)
        assert reader.sent < reader.granted + self.largest
        while data:
            size = int.from_bytes(data[8:12], "little")
            header, body = decode_record(data[:size])
            reader.lsns += [entry.lsn for entry in body.entries(header.first_lsn, 0)]
            data = data[size:]
        assert reader.looked_up_to <= effect.looked_up_to <= max(self.tail, reader.start)
        reader.looked_up_to = effect.looked_up_to
        assert reader.lsns == self.matching(reader, effect.looked_up_to)
        reader.done = effect.done
        assert effect.done == (effect.looked_up_to >= reader.end)

    @invariant()
    def checked(self) -> None:
        if hasattr(self, "core"):
            self.core.check()
            assert self.core.count == len(self.active())

    def teardown(self) -> None:
        """Given credit and time, every reader sees everything up to the tail or its end."""
        if hasattr(self, "core"):
            # Only those that need credit get some: the others must not wait for it.
            while self.reading() or self.starved():
                for id in self.reading():
                    self.serve(id, 3)
                for id in self.starved():
                    self.readers[id].granted += 10**9
                    self.perform(self.core.credit(id, 10**9))
            self.tick(100)
            for id, reader in self.readers.items():
                if id not in self.gone:
                    goal = max(min(self.tail, reader.end), reader.start)
                    assert reader.looked_up_to == goal
                    assert reader.lsns == self.matching(reader, goal)
            assert self.core.behind == 0
        self.patch.undo()


def size_of(stored_group: DurableGroup) -> int:
    """The most bytes that a record of this group takes: a slice has 4 more per entry."""
    return sum(map(len, stored_group.record)) + 4 * stored_group.body.count


class TestTails(TailsMachine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(stateful_step_count=60)
