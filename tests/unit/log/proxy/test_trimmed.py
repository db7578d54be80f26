"""What a trim may give up: never what the state must be recovered from."""

from __future__ import annotations

from dataclasses import replace

from penstock.ids import BlockId, Epoch, Lsn, NodeId, SegmentId
from penstock.log.proxy.owned_log import trimmed
from penstock.log.replication.manifest import Ensemble, LogManifest, Segment

NODES = (Ensemble(BlockId(0), (NodeId("a:1"), NodeId("b:1"), NodeId("c:1"))),)


def segment(number: int, base: int, end: int | None) -> Segment:
    found = Segment(SegmentId(number), Epoch(1), Lsn(base), NODES, 3, 2)
    return (
        found if end is None else replace(found, sealed=True, end_lsn=Lsn(end), blocks=end - base)
    )


def ids(*segments: Segment, lsn: int, spare: bool) -> list[int]:
    manifest = LogManifest(b"x" * 16, Epoch(1), "p", Lsn(0), segments[0].id, segments)
    found = trimmed(manifest, Lsn(lsn), spare)
    found.check()
    assert trimmed(found, Lsn(lsn), spare) == found
    assert (found.trim_point, found.first_segment) == (lsn, found.segments[0].id)
    return [kept.id for kept in found.segments]


def test_whole_segments_below_the_point_go() -> None:
    log = (segment(1, 0, 50), segment(2, 50, 100), segment(3, 100, None))

    assert ids(*log, lsn=99, spare=True) == [2, 3]
    assert ids(*log, lsn=100, spare=True) == [3]


def test_the_newest_sealed_one_stays_until_the_open_one_has_its_snapshot() -> None:
    log = (segment(1, 0, 50), segment(2, 50, 100), segment(3, 100, None))

    assert ids(*log, lsn=100, spare=False) == [2, 3]


def test_an_empty_segment_does_not_stand_in_for_the_one_with_the_snapshot() -> None:
    """Its writer died before its snapshot was whole; without segment 4 the log could not open."""
    log = (segment(4, 0, 100), segment(5, 100, 100), segment(6, 100, None))

    assert ids(*log, lsn=100, spare=False) == [4, 5, 6]
    assert ids(*log, lsn=100, spare=True) == [6]


def test_a_log_of_empty_segments_keeps_them() -> None:
    log = (segment(1, 0, 0), segment(2, 0, None))

    assert ids(*log, lsn=0, spare=False) == [1, 2]
