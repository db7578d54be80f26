"""The history checker finds what it is there to find: each kind of broken log, one test case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from harness.history import History, Outcome, check_counter

from penstock.errors import DeadlineExceeded, GuardFailed, PenstockError, StaleInstance, Unknown
from penstock.ids import Lsn
from penstock.log.api import ReadBatch
from penstock.log.group_format import meta_entry
from penstock.log.records import Appended, Entry, Kind, NewEntry, SetKey


@dataclass(slots=True)
class Run:
    """A sound run of four appends and two readers; each test case breaks one thing."""

    history: History
    final: list[Entry]
    by_tag: dict[str, list[Entry]]


def entry(lsn: int, payload: bytes, tags: tuple[str, ...]) -> Entry:
    return Entry(Lsn(lsn), Kind.DATA, tags, "p", 1, lsn, 1000 + lsn, 0, payload)


def sound_run() -> Run:
    history = History()
    final = [
        entry(0, b"a0", ("x",)),
        entry(1, b"a1", ("x", "y")),
        entry(2, b"b0", ("y",)),
        entry(3, b"u0", ()),
        entry(4, b"u1", ("x",)),
        entry(5, b"c0", ("x",)),
    ]
    first = history.invoke("one", [NewEntry(b"a0", ("x",)), NewEntry(b"a1", ("x", "y"))])
    history.ok(first, Appended(Lsn(0), 2))
    second = history.invoke("two", [NewEntry(b"b0", ("y",))])
    unknown = history.invoke("one", [NewEntry(b"u0"), NewEntry(b"u1", ("x",))])
    history.ok(second, Appended(Lsn(2), 1))
    history.failed(unknown, Unknown("no answer"))
    refused = history.invoke("two", [NewEntry(b"r0", ("x",))])
    history.failed(refused, GuardFailed("no"))
    last = history.invoke("one", [NewEntry(b"c0", ("x",))])
    history.ok(last, Appended(Lsn(5), 1))
    everything = history.reading("everything", None)
    everything.saw(ReadBatch(final[:2], Lsn(2)))
    everything.saw(ReadBatch(final[2:], Lsn(6)))
    tagged = history.reading("y", ["y"], start=1)
    tagged.saw(ReadBatch(final[1:3], Lsn(4)))
    by_tag = {tag: [e for e in final if tag in e.tags] for tag in ("x", "y")}
    return Run(history, final, by_tag)


def replace_entry(run: Run, at: int, **changes: object) -> None:
    run.final[at] = run.final[at]._replace(**changes)


def swap(run: Run, left: int, right: int) -> None:
    one, two = run.final[left], run.final[right]
    replace_entry(run, left, payload=two.payload, tags=two.tags)
    replace_entry(run, right, payload=one.payload, tags=one.tags)


def forget(run: Run, lsn: int) -> None:
    replace_entry(run, lsn, payload=b"", kind=Kind.CONTROL)


def move_acknowledged_below_an_earlier_one(run: Run) -> None:
    swap(run, 2, 5)
    run.history.appends[1].first_lsn = 5
    run.history.appends[4].first_lsn = 2


BREAKS: dict[str, tuple[Callable[[Run], None], str]] = {
    "an acknowledged entry is lost": (lambda run: forget(run, 2), "acknowledged and lost"),
    "half of a group is lost": (lambda run: forget(run, 1), "only 1 of its 2"),
    "half of an unknown group is there": (lambda run: forget(run, 4), "only 1 of its 2"),
    "an entry is there twice": (
        lambda run: run.final.append(entry(6, b"b0", ("y",))),
        "appears 2 times",
    ),
    "an unknown append is there twice": (
        lambda run: run.final.extend([entry(6, b"u0", ()), entry(7, b"u1", ("x",))]),
        "appears 2 times",
    ),
    "a refused entry is there": (
        lambda run: run.final.append(entry(6, b"r0", ("x",))),
        "refused, yet 1",
    ),
    "an entry that nobody wrote": (
        lambda run: run.final.append(entry(6, b"zz", ())),
        "nobody appended what is at lsn [6]",
    ),
    "an entry at another lsn than was told": (lambda run: swap(run, 2, 5), "not 2"),
    "an entry lost a tag": (lambda run: replace_entry(run, 1, tags=("x",)), "has tags ('x',)"),
    "a payload changed": (
        lambda run: replace_entry(run, 5, payload=b"c1"),
        "acknowledged and lost",
    ),
    "a gap in the log": (lambda run: replace_entry(run, 5, lsn=Lsn(6)), "lsn 6 follows 4"),
    "time goes back": (lambda run: replace_entry(run, 5, time_ms=0), "is older than"),
    "real-time order": (move_acknowledged_below_an_earlier_one, "acknowledged before it"),
    "a tag read misses an entry": (lambda run: run.by_tag["x"].pop(), "tag x: 3 entries, not 4"),
    "a tag read shows too much": (
        lambda run: run.by_tag["y"].append(run.final[5]),
        "tag y: 3 entries, not 2",
    ),
    "a tag read is out of order": (lambda run: run.by_tag["x"].reverse(), "they part at entry 0"),
    "a reader missed an entry": (
        lambda run: run.history.readings[0].seen.pop(3),
        "reader everything: 5 entries, not 6",
    ),
    "a reader saw an entry twice": (
        lambda run: run.history.readings[1].seen.append(run.history.readings[1].seen[1]),
        "reader y: 3 entries, not 2",
    ),
    "a reader's progress goes back": (
        lambda run: run.history.readings[0].saw(ReadBatch([], Lsn(3))),
        "was told 3 after 6",
    ),
}


def test_a_sound_history_has_no_problems() -> None:
    run = sound_run()

    assert run.history.check(run.final, run.by_tag) == []


def test_an_unknown_append_may_as_well_be_absent() -> None:
    run = sound_run()
    final = [*run.final[:3], run.final[5]._replace(lsn=Lsn(3))]
    run.history.appends[4].first_lsn = 3
    run.history.readings.clear()

    assert run.history.check(final) == []


@pytest.mark.parametrize("name", BREAKS)
def test_the_checker_finds_that(name: str) -> None:
    run = sound_run()
    breaks, told = BREAKS[name]

    breaks(run)

    assert any(told in problem for problem in run.history.check(run.final, run.by_tag))


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (GuardFailed("x"), Outcome.REFUSED),
        (StaleInstance("x"), Outcome.REFUSED),
        (DeadlineExceeded("x"), Outcome.REFUSED),
        (Unknown("x"), Outcome.UNKNOWN),
        (PenstockError("x"), Outcome.UNKNOWN),
    ],
)
def test_errors_are_classed_as_their_docstrings_say(error: PenstockError, outcome: Outcome) -> None:
    history = History()
    append = history.invoke("one", [NewEntry(b"a")])

    history.failed(append, error)

    assert append.outcome is outcome


def test_a_payload_may_name_one_append_only() -> None:
    history = History()
    history.invoke("one", [NewEntry(b"a")])

    with pytest.raises(ValueError, match="not unique"):
        history.invoke("two", [NewEntry(b"a")])


def counter_log(values: list[bytes]) -> list[Entry]:
    entries = []
    for lsn, value in enumerate(values):
        new = meta_entry([SetKey("count", value)])
        entries.append(Entry(Lsn(lsn), Kind.META, new.tags, "p", 1, lsn, lsn, 0, new.payload))
    return entries


def test_a_counter_that_skips_repeats_or_loses_a_step_is_found() -> None:
    assert check_counter(counter_log([b"1", b"2", b"3"]), "count", ok=2, unknown=1) == []

    assert check_counter(counter_log([b"1", b"3"]), "count", ok=2, unknown=0)
    assert check_counter(counter_log([b"1", b"2", b"2"]), "count", ok=3, unknown=0)
    assert check_counter(counter_log([b"1", b"2"]), "count", ok=3, unknown=0)
    assert check_counter(counter_log([b"1", b"2"]), "count", ok=1, unknown=0)
