"""What the auditor takes from a source: nothing that is damaged, or another's, or out of place."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from node_blocks import make_block

from penstock.errors import PenstockError, Unavailable
from penstock.ids import BlockId, Epoch, Lsn, NodeId, SegmentId
from penstock.log.block_format import BLOCK_HEADER_BYTES, check_block
from penstock.log.meta.memory import MemoryMetadata
from penstock.log.proxy.auditor import Auditor, RollCall
from penstock.log.proxy.evacuation import with_moves
from penstock.log.replication.manifest import Ensemble, LogManifest, Segment, SegmentKey
from penstock.log.replication.node_api import Added, Blocks, Found, NodeInfo
from penstock.log.replication.repair import Copy, Refill

LOG_ID = bytes(range(16))
MARK = int.from_bytes(LOG_ID[:8], "little")
KEY = SegmentKey("main", 3)
NODES = tuple(NodeId(f"n{number}:c") for number in range(3))
SEGMENT = Segment(
    SegmentId(3),
    Epoch(5),
    Lsn(0),
    (Ensemble(BlockId(0), NODES),),
    3,
    2,
    sealed=True,
    blocks=4,
    end_lsn=Lsn(4),
)
MANIFEST = LogManifest(LOG_ID, Epoch(9), "p", Lsn(0), SegmentId(3), (SEGMENT,))


def block(number: int, *, mark: int = MARK, segment: int = 3, epoch: int = 5) -> bytes:
    return make_block(number, bytes([number]) * 100, mark=mark, segment=segment, epoch=epoch)


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


class Source:
    """A node that shows these blocks, whatever it is asked for."""

    def __init__(self, node: NodeId, *blocks: bytes, found: Found = Found.HERE) -> None:
        self.node = node
        self.blocks = blocks
        self.found = found
        self.taken: list[tuple[int, bytes]] = []

    async def read(self, key: SegmentKey, first: int, **_: Any) -> Blocks:
        data = b"".join(self.blocks[first:])
        return Blocks(self.found, BlockId(4), data if self.found is Found.HERE else b"")

    def add(self, key: SegmentKey, epoch: int, data: Any, added: Added) -> None:
        self.taken.append((epoch, b"".join(map(bytes, data))))
        added(None)


def copy_from(*sources: Source) -> tuple[Source, PenstockError | None]:
    """Let the auditor copy the segment to n2; returns what n2 got, and what went wrong."""
    target = Source(NODES[2])
    clients = {source.node: source for source in (*sources, target)}
    nodes = SimpleNamespace(client=clients.get, alive=dict)

    async def scenario() -> PenstockError | None:
        store = MemoryMetadata().session()

        async def adopt(log: str) -> None:
            raise AssertionError

        auditor = Auditor(
            lambda: store,
            nodes,  # type: ignore[arg-type]
            RollCall(lambda: 0.0),
            proxy="p",
            adopt=adopt,
        )
        copy = Copy(KEY, 0, 4, tuple(source.node for source in sources))
        try:
            await auditor._repair(Refill("main", 3, target.node, (copy,), 1), MANIFEST)
        except PenstockError as error:
            return error
        finally:
            await store.close()
        return None

    return target, asyncio.run(scenario())


GOOD = [block(number) for number in range(4)]


def test_whole_blocks_are_copied_as_they_are_under_the_manifests_epoch() -> None:
    target, problem = copy_from(Source(NODES[0], *GOOD))
    assert problem is None
    assert target.taken == [(9, data) for data in GOOD]


@pytest.mark.parametrize(
    "bad",
    [
        flipped(GOOD[2], BLOCK_HEADER_BYTES + 50),
        flipped(GOOD[2], 40),
        GOOD[2][:-1],
        GOOD[3],
        block(2, mark=MARK + 1),
        block(2, segment=4),
        block(2, epoch=6),
    ],
    ids=["body", "header", "cut", "place", "log", "segment", "epoch"],
)
def test_a_bad_block_is_never_copied_and_another_source_is_asked(bad: bytes) -> None:
    liar = Source(NODES[0], *GOOD[:2], bad, GOOD[3])
    alone, problem = copy_from(liar)
    assert isinstance(problem, Unavailable)
    for _, data in alone.taken:
        header, _ = check_block(data)
        assert data == GOOD[header.block]

    helped, problem = copy_from(liar, Source(NODES[1], *GOOD))
    assert problem is None
    assert [data for _, data in helped.taken] == GOOD


@pytest.mark.parametrize("found", [Found.ABSENT, Found.UNKNOWN, Found.LATER])
def test_a_source_that_does_not_show_a_block_is_passed_over(found: Found) -> None:
    silent = Source(NODES[0], found=found)
    assert isinstance(copy_from(silent)[1], Unavailable)
    target, problem = copy_from(silent, Source(NODES[1], *GOOD))
    assert problem is None and len(target.taken) == 4


def test_an_owner_takes_over_places_of_sealed_segments_and_nothing_else() -> None:
    opened = replace(SEGMENT, id=SegmentId(4), base_lsn=Lsn(4), sealed=False, blocks=0)
    known = replace(MANIFEST, segments=(SEGMENT, opened))
    moved = (Ensemble(BlockId(0), (*NODES[:2], NodeId("n3:c"))),)
    newer = replace(
        known,
        epoch=Epoch(12),
        trim_point=Lsn(3),
        segments=(replace(SEGMENT, ensembles=moved), replace(opened, ensembles=moved)),
    )
    merged = with_moves(known, newer)
    assert merged == replace(known, segments=(replace(SEGMENT, ensembles=moved), opened))
    # One that does not know the open segment yet takes nothing away.
    assert with_moves(known, MANIFEST) == known
    assert with_moves(known, replace(newer, log_id=bytes(16))) == known


def test_a_node_away_for_a_moment_is_not_gone() -> None:
    now = [0.0]
    old, other = NodeInfo("n0", "a", "h", 1), NodeInfo("n1", "b", "h", 2)
    call = RollCall(lambda: now[0], gone_seconds=10.0)
    call.call({old.id: old, other.id: other}, [old.id])
    assert not call.is_gone(old.id)
    call.call({other.id: other}, [old.id])
    now[0] = 9.0
    assert not call.is_leaving(old.id)
    now[0] = 10.0
    assert call.is_leaving(old.id)
    call.call({old.id: old}, [old.id])
    assert not call.is_gone(old.id)


def test_a_node_that_came_back_with_another_disk_is_gone_at_once() -> None:
    old, renewed = NodeInfo("n0", "a", "h", 1), NodeInfo("n0", "c", "h", 1)
    call = RollCall(lambda: 0.0, gone_seconds=10.0)
    call.call({renewed.id: renewed}, [old.id])
    assert call.is_gone(old.id) and not call.is_gone(renewed.id)
    assert not call.is_gone(NodeId("never:seen"))


def test_a_draining_node_leaves_and_is_not_gone() -> None:
    draining = NodeInfo("n2", "d", "h", 3, draining=True)
    call = RollCall(lambda: 0.0)
    call.call({draining.id: draining}, [])
    assert call.is_leaving(draining.id) and not call.is_gone(draining.id)
