"""A commit is one group, or all of it is staged ahead of its marker."""

from __future__ import annotations

import pytest

from penstock.ids import Lsn
from penstock.log.client import packing
from penstock.log.client.packing import group_bytes
from penstock.log.records import Kind, NewEntry
from penstock.protocol.markers import Marker, Range, decode_marker
from penstock.runtime.commit import Commit

MARKER = Marker("q.1/0/0", 1, 7, Lsn(4), 0)


def entries(count: int, size: int = 10, kind: Kind = Kind.DATA) -> tuple[NewEntry, ...]:
    return tuple(NewEntry(bytes(size), ("t",), kind) for _ in range(count))


def commit(data: int, changes: int = 0) -> Commit:
    return Commit(entries(data), entries(changes, kind=Kind.CHANGE), MARKER, ("T/q.1/0/0", "s/out"))


@pytest.mark.parametrize("data", [0, 3])
def test_what_fits_goes_with_its_marker(data: int) -> None:
    made = commit(data, 2)
    cut = made.cut()
    assert (cut.ahead, cut.inline) == ((), (*made.data, *made.changes))
    *before, last = cut.group([])
    assert before == [*made.data, *made.changes]
    assert decode_marker(last.payload).inline == data + 2
    assert last.tags == made.tags


@pytest.mark.parametrize("limit", ["bytes", "entries"])
def test_what_does_not_fit_is_staged_whole_and_in_order(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = commit(20, 5)
    most = 3 * group_bytes(made.data[:1])
    monkeypatch.setattr(packing, "GROUP_BYTES", most if limit == "bytes" else 10**9)
    monkeypatch.setattr(packing, "GROUP_ENTRIES", 3 if limit == "entries" else 10**9)
    cut = made.cut()
    assert cut.inline == ()
    assert [len(group) for group in cut.ahead] == [3] * 8 + [1]
    kinds = [entry.kind for group in cut.ahead for entry in group]
    assert kinds == [Kind.STAGED] * 20 + [Kind.CHANGE] * 5
    ranges = [Range(Lsn(3 * place), len(group)) for place, group in enumerate(cut.ahead)]
    [last] = cut.group(ranges)
    assert decode_marker(last.payload).ranges == tuple(ranges)
    assert "M/out" in last.tags, "readers of a range find it"


def test_the_marker_is_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    made = commit(3)
    whole = group_bytes(made.cut().group([]))
    monkeypatch.setattr(packing, "GROUP_BYTES", whole)
    assert made.cut().ahead == ()
    monkeypatch.setattr(packing, "GROUP_BYTES", whole - 1)
    assert made.cut().inline == ()
