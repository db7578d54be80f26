"""The segment that is written, with nodes that answer when they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from harness.waiting import until

from penstock.errors import Overloaded, PenstockError, Unavailable
from penstock.ids import BlockId, Epoch, Lsn, NodeId, SegmentId
from penstock.log.block_format import BlockHeader, BlockKind, decode_block_header
from penstock.log.group_format import Buffer
from penstock.log.proxy import open_segment
from penstock.log.proxy.block_source import Block
from penstock.log.proxy.open_segment import OpenSegment
from penstock.log.replication.manifest import Ensemble, Segment, SegmentKey
from penstock.log.replication.node_api import Added, NodeInfo

NODES = tuple(NodeId(f"n{number}:c") for number in range(3))


class FakeNode:
    """Keeps what it is asked to add until the test answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, Added]] = []

    def add(self, key: SegmentKey, epoch: int, block: Sequence[Buffer], added: Added) -> None:
        self.asked.append((decode_block_header(block[0]).block, added))

    def answer(self, error: PenstockError | None = None) -> int:
        """The oldest request; returns its block."""
        block, added = self.asked.pop(0)
        added(error)
        return block


class FakeNodes:
    """Three of them."""

    def __init__(self) -> None:
        self.nodes = {node: FakeNode() for node in NODES}

    def client(self, node: NodeId) -> FakeNode:
        return self.nodes[node]

    def alive(self) -> dict[NodeId, NodeInfo]:
        return {node: NodeInfo(*node.split(":"), "", 0) for node in NODES}

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


class Bench:
    """An open segment, three nodes, an ack quorum of two."""

    def __init__(self) -> None:
        self.nodes = FakeNodes()
        self.durable = 0
        self.headers: list[BlockHeader] = []
        self.fetched: list[int] = []
        first = Ensemble(BlockId(0), NODES)
        self.open = OpenSegment(
            "main",
            7,
            Segment(SegmentId(0), Epoch(1), Lsn(0), (first,), 3, 2),
            cast(Any, self.nodes),
            on_durable=lambda one: setattr(self, "durable", int(one.durable_block)),
            on_fenced=lambda error: pytest.fail(str(error)),
            fetch=self._fetch,
            choose=lambda ensemble, lost: pytest.fail("nobody is to be replaced"),
            publish=lambda segment: pytest.fail("nothing is to be published"),
        )

    async def _fetch(self, segment: Segment, block: int) -> Block:
        self.fetched.append(block)
        return Block(self.headers[block], memoryview(b""))

    def write(self, count: int) -> None:
        zero = Lsn(0)
        for _ in range(count):
            self.headers.append(
                self.open.write(BlockKind.CONTROL, [], base_lsn=zero, end_lsn=zero, time_ms=0)
            )

    def node(self, number: int) -> FakeNode:
        return self.nodes.nodes[NODES[number]]


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_segment, "RETRY_SECONDS", 0.01)
    # Nobody is lost for so long, however slow the machine is.
    monkeypatch.setattr(open_segment, "REPLACE_SECONDS", 3600.0)


@pytest.mark.usefixtures("quick_retries")
async def test_a_node_without_room_is_not_lost_and_gets_only_that_block_again() -> None:
    bench = Bench()
    bench.write(3)
    n0, n1 = bench.node(0), bench.node(1)
    for node in (n0, n1):
        assert node.answer() == 0
        assert node.answer(Overloaded("full")) == 1
        assert node.answer() == 2
    assert bench.durable == 1 and not bench.open.core.lost_nodes

    await until(lambda: n0.asked and n1.asked)
    assert [block for block, _ in n0.asked] == [block for block, _ in n1.asked] == [1]
    n0.answer(Overloaded("still full"))
    await until(lambda: n0.asked)

    n0.answer()
    n1.answer()
    assert bench.durable == 3  # the third was acknowledged before, and still is
    assert bench.open.close() is None


@pytest.mark.usefixtures("quick_retries")
async def test_a_block_is_not_sent_again_to_who_needs_it_no_more() -> None:
    bench = Bench()
    bench.write(2)
    n0, n1, n2 = map(bench.node, range(3))
    n0.answer(Overloaded("full"))
    n1.answer()
    n2.answer()
    assert bench.durable == 1
    n1.answer(Overloaded("full"))
    n1.asked.clear()
    bench.open.close()
    await asyncio.sleep(0.05)
    assert n0.asked and [block for block, _ in n0.asked] == [1]  # never answered
    assert n1.asked == []


@pytest.mark.usefixtures("quick_retries")
async def test_a_lost_node_that_is_back_gets_the_block_with_all_others() -> None:
    bench = Bench()
    bench.write(2)
    n0 = bench.node(0)
    n0.answer(Overloaded("full"))
    n0.answer(Unavailable("gone"))
    assert bench.open.core.lost_nodes == {NODES[0]}
    await until(lambda: sorted({block for block, _ in n0.asked}) == [0, 1])
    assert not bench.open.core.lost_nodes
    mender = bench.open.close()
    if mender is not None:
        await asyncio.gather(mender, return_exceptions=True)


@pytest.mark.usefixtures("quick_retries")
async def test_a_node_that_is_back_gets_what_became_durable_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    n0, n1, n2 = map(bench.node, range(3))
    bench.write(3)
    assert n0.answer() == 0
    for node in (n1, n2):
        for _ in range(3):
            node.answer()
    assert bench.durable == 3
    n0.answer(Unavailable("gone"))  # the second and third were on their way
    n0.answer(Unavailable("gone"))
    bench.write(2)
    n1.answer()
    n2.answer()
    assert bench.durable == 4 and bench.open.core.count_lacking() == 3

    await until(lambda: len(n0.asked) >= 2)
    # First what is not durable, then what is: one after the other.
    assert [block for block, _ in n0.asked] == [4, 1]
    monkeypatch.setattr(open_segment, "REPLACE_SECONDS", 0.01)  # nobody is lost any more
    n0.asked.pop(1)[1](Overloaded("full"))
    for wanted in (1, 2, 3):
        await until(lambda: len(n0.asked) >= 2)
        block, added = n0.asked.pop(1)
        assert block == wanted and bench.open.core.count_lacking() == 4 - wanted
        added(None)
    await until(lambda: bench.open.core.count_lacking() == 0)
    assert len(n0.asked) == 1
    assert bench.fetched == [1, 1, 2, 3]
    bench.open.close()


@pytest.mark.usefixtures("quick_retries")
async def test_who_is_lost_again_misses_what_it_had_not_got_yet() -> None:
    bench = Bench()
    n0, n1, n2 = map(bench.node, range(3))
    bench.write(2)
    for node in (n1, n2):
        node.answer()
        node.answer()
    n0.answer(Unavailable("gone"))
    n0.answer(Unavailable("gone"))
    await until(lambda: n0.asked)
    assert [block for block, _ in n0.asked] == [0]
    n0.answer(Unavailable("gone again"))
    bench.open._lost(NODES[0])
    await until(lambda: n0.asked and not bench.open.core.lost_nodes)
    assert n0.asked[0][0] == 0
    assert bench.open.core.count_lacking() == 2
    bench.open.close()
