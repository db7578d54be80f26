"""What a trim may give up: never what the state must be recovered from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.ids import BlockId, Epoch, Lsn, NodeId, SegmentId
from penstock.log.proxy.owned_log import trimmed
from penstock.log.replication.manifest import Ensemble, LogManifest, Segment

NODES = (Ensemble(BlockId(0), (NodeId("a:1"), NodeId("b:1"), NodeId("c:1"))),)


def segment(number: int, base: int, end: int | None) -> Segment:
    found = Segment(SegmentId(number), Epoch(1), Lsn(base), NODES, 3, 2)
    return (
        found if end is None else replace(found, sealed=True, end_lsn=Lsn(end), blocks=end - base)
    )


LOG = (segment(1, 0, 50), segment(2, 50, 100), segment(3, 100, None))
#: The writer of segment 5 died before its snapshot was whole; without 4 the log could not open.
DIED = (segment(4, 0, 100), segment(5, 100, 100), segment(6, 100, None))
EMPTY = (segment(1, 0, 0), segment(2, 0, None))


@pytest.mark.parametrize(
    ("log", "lsn", "spare", "kept"),
    [
        (LOG, 99, True, [2, 3]),
        (LOG, 100, True, [3]),
        (LOG, 100, False, [2, 3]),
        (DIED, 100, False, [4, 5, 6]),
        (DIED, 100, True, [6]),
        (EMPTY, 0, False, [1, 2]),
    ],
    ids=[
        "a segment that is not below the point stays",
        "whole segments below the point go",
        "the newest sealed one stays until the open one has its snapshot",
        "an empty segment does not stand in for the one with the snapshot",
        "an empty segment goes with the others",
        "a log of empty segments keeps them",
    ],
)
def test_what_a_trim_keeps(
    log: tuple[Segment, ...], lsn: int, spare: bool, kept: list[int]
) -> None:
    manifest = LogManifest(b"x" * 16, Epoch(1), "p", Lsn(0), log[0].id, log)

    found = trimmed(manifest, Lsn(lsn), spare)

    found.check()
    assert trimmed(found, Lsn(lsn), spare) == found
    assert (found.trim_point, found.first_segment) == (lsn, found.segments[0].id)
    assert [segment.id for segment in found.segments] == kept
