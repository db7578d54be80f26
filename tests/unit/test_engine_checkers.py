"""Every law of exactly once is seen to fail: on a history in which one thing was made wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from harness.engine_checkers import check_engine

from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.protocol.markers import Heard, Marker, Range, decode_marker, encode_marker

ONE, TWO = "q.1/0/0", "q.1/1/0"


class Writer:
    """Makes a log by hand: groups of tasks, one after the other."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._seqs: dict[tuple[str, int], int] = {}

    def add(self, kind: Kind, producer: str, instance: int, payload: bytes = b"") -> Entry:
        seq = self._seqs[producer, instance] = self._seqs.get((producer, instance), -1) + 1
        lsn = Lsn(len(self.entries))
        self.entries.append(Entry(lsn, kind, ("t",), producer, instance, seq, 0, 1, payload))
        return self.entries[-1]

    def commit(self, marker: Marker, *kinds: Kind) -> None:
        producer = f"@{marker.task}"
        for kind in kinds:
            self.add(kind, producer, marker.instance)
        said = encode_marker(replace(marker, inline=len(kinds)))
        self.add(Kind.MARKER, producer, marker.instance, said)


def history() -> list[Entry]:
    """Two tasks, one staged group, one new instance that left a staged group behind."""
    log = Writer()
    log.add(Kind.DATA, "user", 1)  # 0
    log.commit(Marker(ONE, 1, 0, Lsn(1), 0), Kind.DATA, Kind.CHANGE)  # 1 2 3
    heard = {ONE: Heard(Lsn(3), None, False)}
    log.commit(Marker(TWO, 1, 0, Lsn(4), 0, heard=heard), Kind.DATA)  # 4 5
    log.add(Kind.DATA, "user", 1)  # 6
    log.add(Kind.STAGED, f"@{ONE}", 1)  # 7
    log.add(Kind.CHANGE, f"@{ONE}", 1)  # 8
    log.commit(Marker(ONE, 1, 1, Lsn(7), 0, (Range(Lsn(7), 2),)))  # 9
    heard = {ONE: Heard(Lsn(9), None, False)}
    log.commit(Marker(TWO, 1, 1, Lsn(10), 0, heard=heard))  # 10
    log.add(Kind.STAGED, f"@{ONE}", 1)  # 11
    log.add(Kind.CONTROL, "@q", 1)  # 12
    log.add(Kind.STAGED, f"@{ONE}", 2)  # 13
    log.commit(Marker(ONE, 2, 2, Lsn(10), 0, (Range(Lsn(13), 1),)))  # 14
    heard = {ONE: Heard(Lsn(14), None, False)}
    log.commit(Marker(TWO, 1, 2, Lsn(15), 0, heard=heard), Kind.DATA, Kind.CHANGE)  # 15 16 17
    return log.entries


def with_marker(lsn: int, **changes: Any) -> Callable[[list[Entry]], None]:
    def doctor(entries: list[Entry]) -> None:
        marker = replace(decode_marker(entries[lsn].payload), **changes)
        entries[lsn] = entries[lsn]._replace(payload=encode_marker(marker))

    return doctor


def with_entry(lsn: int, **changes: Any) -> Callable[[list[Entry]], None]:
    def doctor(entries: list[Entry]) -> None:
        entries[lsn] = entries[lsn]._replace(**changes)

    return doctor


def without(lsn: int) -> Callable[[list[Entry]], None]:
    return lambda entries: entries.__delitem__(lsn)


def handed_over(producer: str) -> list[Entry]:
    """A layout is changed: task one has a successor, and task two has heard of that since."""
    log = Writer()
    log.entries = history()
    log.add(Kind.MARKER, producer, 1, encode_marker(Marker("q.1/0/1", 0, 0, Lsn(10), 0)))  # 18
    heard = {"q.1/0/1": Heard(Lsn(14), None, False)}
    log.add(Kind.MARKER, producer, 1, encode_marker(Marker(TWO, 1, 3, Lsn(15), 0, heard=heard)))
    log.commit(Marker("q.1/0/1", 4, 1, Lsn(18), 0))
    return log.entries


def test_a_coordinator_hands_tasks_over_and_nobody_else() -> None:
    assert check_engine(handed_over("@q")) == []
    problems = check_engine(handed_over("@r"))
    assert any("wrote it" in one for one in problems)
    assert any("has forgotten that it heard q.1/0/0" in one for one in problems)


DOCTORED = [
    ("should have number 1", with_marker(9, number=2)),
    ("should have number 2", with_marker(14, number=1)),
    ("should have number 1", without(9)),
    ("goes back from 7 to 5", with_marker(14, position=5)),
    ("which is after it", with_marker(9, position=10)),
    ("says instance 3", with_marker(14, instance=3)),
    ("is of an older instance", with_marker(9, instance=4)),
    ("after instance 3 has written", with_entry(11, instance=3)),
    ("which is not its group's", with_marker(3, inline=3)),
    ("which is not its group's", with_entry(2, seq=7)),
    ("which is not its group's", with_entry(4, producer="user")),
    ("which is STAGED", with_entry(15, kind=Kind.STAGED)),
    ("counts without a marker", with_entry(11, kind=Kind.DATA)),
    ("counts without a marker", with_marker(3, inline=0)),
    ("names LSN 7 again", with_marker(14, ranges=(Range(Lsn(7), 1),))),
    ("which its instance has not written", with_marker(14, ranges=(Range(Lsn(11), 1),))),
    ("which its instance has not written", with_marker(14, ranges=(Range(Lsn(99), 1),))),
    ("which is DATA", with_entry(13, kind=Kind.DATA)),
    ("has heard q.1/0/0 at 14", with_marker(17, position=14)),
    ("has forgotten", with_marker(17, heard={})),
    ("has forgotten", with_marker(10, heard={ONE: Heard(Lsn(2), None, False)})),
]


def test_a_history_with_a_crash_and_staged_groups_keeps_every_law() -> None:
    assert check_engine(history()) == []


@pytest.mark.parametrize(("expected", "doctor"), DOCTORED)
def test_a_doctored_history_is_noticed(
    expected: str, doctor: Callable[[list[Entry]], None]
) -> None:
    entries = history()
    doctor(entries)

    problems = check_engine(entries)

    assert any(expected in problem for problem in problems), problems
