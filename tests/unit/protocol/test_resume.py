"""The state of a task is what its markers commit: neither more, nor less, nor twice."""

from __future__ import annotations

from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.protocol.markers import Marker, Range, encode_marker
from penstock.protocol.resume import ChangeFold


class Life:
    """A task's changes and markers as they stand in a log with other entries between."""

    def __init__(self) -> None:
        self.fold = ChangeFold()
        self.lsn = 0

    def _step(self, kind: Kind, payload: bytes = b"") -> list[int]:
        entry = Entry(Lsn(self.lsn), kind, (), "@t", 1, 0, 0, 0, payload)
        self.lsn += 1
        return [counted.lsn for counted in self.fold.step(entry)]

    def change(self) -> list[int]:
        return self._step(Kind.CHANGE)

    def other(self) -> list[int]:
        return self._step(Kind.STAGED)

    def marker(self, number: int, inline: int, *ranges: tuple[int, int]) -> list[int]:
        named = tuple(Range(Lsn(first), count) for first, count in ranges)
        return self._step(
            Kind.MARKER, encode_marker(Marker("t", 1, number, Lsn(0), inline, ranges=named))
        )


def test_changes_in_the_markers_group_count_with_it() -> None:
    life = Life()
    assert life.change() == []
    assert life.change() == []
    assert life.marker(0, inline=2) == [0, 1]
    assert life.fold.marker is not None and life.fold.marker.number == 0


def test_a_marker_counts_what_it_names_and_drops_the_rest() -> None:
    life = Life()
    life.change()  # 0: flushed by an instance that died
    life.change()  # 1, 2: flushed by the next one
    life.change()
    life.other()
    life.change()  # 4: in the marker's group
    assert life.marker(0, 1, (1, 2)) == [1, 2, 4]


def test_changes_that_no_marker_named_never_count_later() -> None:
    life = Life()
    life.change()
    assert life.marker(0, inline=0) == []
    assert life.marker(1, 0, (0, 1)) == [], "a marker names what came after the one before it"


def test_changes_after_the_last_marker_do_not_count() -> None:
    life = Life()
    life.change()
    assert life.marker(0, inline=1) == [0]
    assert life.change() == []
    assert life.fold.marker is not None and life.fold.marker.inline == 1


def test_entries_of_other_kinds_change_nothing() -> None:
    life = Life()
    life.change()
    assert life.other() == []
    assert life.marker(0, inline=2) == [0]
