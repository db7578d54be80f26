"""What a log brings at once is looked at in pieces, and none ends within a commit."""

from __future__ import annotations

import random

import pytest

from penstock.delivery.source import _pieces
from penstock.ids import Lsn
from penstock.log.api import ReadBatch
from penstock.log.records import Entry, Kind


def groups(seed: int) -> list[list[Entry]]:
    """Of two producers, some with the same time; of some groups a reader sees a part."""
    draw = random.Random(seed)
    made, lsn, seqs = [], 0, {"a": 0, "b": 0}
    for time_ms in sorted(draw.choices(range(20), k=40)):
        producer = draw.choice("ab")
        count = draw.randint(1, 5)
        group = [
            Entry(Lsn(lsn + n), Kind.DATA, ("t",), producer, 1, seqs[producer] + n, time_ms, 1, b"")
            for n in range(count)
        ]
        made.append([entry for entry in group if draw.random() < 0.8] or group)
        lsn += count
        seqs[producer] += count
    return made


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("size", [1, 3, 32])
def test_no_piece_ends_within_a_group(seed: int, size: int) -> None:
    made = groups(seed)
    entries = [entry for group in made for entry in group]
    upto = Lsn(entries[-1].lsn + 7)
    pieces = list(_pieces(ReadBatch(entries, upto), size))

    assert [entry for piece in pieces for entry in piece.entries] == entries
    assert pieces[-1].looked_up_to == upto
    for piece in pieces:
        for group in made:
            assert piece.looked_up_to <= group[0].lsn or piece.looked_up_to > group[-1].lsn
            inside = [entry in piece.entries for entry in group]
            assert all(inside) or not any(inside)
    if size < 32:
        assert len(pieces) > 5


def test_a_batch_without_entries_is_one_piece() -> None:
    assert list(_pieces(ReadBatch([], Lsn(9)), 3)) == [ReadBatch([], Lsn(9))]
