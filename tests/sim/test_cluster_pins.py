"""Known subtle bugs of replicated logs, each as one schedule (reliability section 3, R01 to R20).

The schedules of nodes, writer and recoverers run the pure cores step by step; those that need a
whole proxy run in a simulated cluster in which nothing fails by itself. R02 is also found by
test_cluster_fencing_search.py; R11 and R12 are about indexes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from harness.disk import ALL_LOST, SimDisk
from node_blocks import LocalNode
from simulation.cluster.metadata import LOG
from simulation.cluster.proxies import SimProxy
from simulation.cluster.swarm import ClusterSwarm
from simulation.cluster.world import ClusterWorld
from test_cluster_fencing_search import KEY, MARK, NODES, SEGMENT, MemoryStore, block

from penstock.errors import Fenced, SeqGap, Unavailable
from penstock.ids import BlockId, Epoch, Lsn, NodeId, SegmentId
from penstock.log.core.sequencer import decide_seq
from penstock.log.group_format import CLAIM, decode_body, encode_body
from penstock.log.meta.memory import MemoryMetadata
from penstock.log.proxy.followed_log import FollowedLog
from penstock.log.proxy.log_view import LogView
from penstock.log.proxy.manifest_register import ManifestRegister
from penstock.log.proxy.open_log import Replication
from penstock.log.proxy.owned_log import OwnedLog, trimmed
from penstock.log.records import IMMEDIATE, Appended, Kind, NewEntry
from penstock.log.replication.manifest import Ensemble, LogManifest, Segment
from penstock.log.replication.node_api import Blocks, Fence, Found
from penstock.log.replication.node_core import FenceRecord, NodeCore, ReadPlan, ReadRequest
from penstock.log.replication.segment_recovery import AddBack, ReadBlock, SegmentRecovery
from penstock.log.replication.segment_writer import SegmentWriter

N0, N1, N2 = NODES
ABSENT = Blocks(Found.ABSENT, BlockId(0))


class Node:
    """One storage node whose disk is quick."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.core = NodeCore(self.store)

    def _answer(self) -> Any:
        while (write := self.core.take_write()) is not None:
            self.core.written(write)
        (answer,) = self.core.take_answers()
        return answer.outcome

    def add(self, epoch: int, data: bytes) -> Any:
        self.core.add("", KEY, epoch, data)
        return self._answer()

    def fence(self, epoch: int, *, trusted: bool = True) -> Any:
        self.core.fence("", "main", 0, epoch, trusted=trusted)
        return self._answer()

    def read(self, number: int, epoch: int = 0, *, trusted: bool = True, durable: int = 0) -> Any:
        request = ReadRequest(KEY, number, durable, fence_epoch=epoch)
        self.core.read("", request, trusted=trusted)
        plan = self._answer()
        if not isinstance(plan, ReadPlan):
            return plan
        found = self.store.blocks.get(number) if plan.found is Found.HERE else None
        return Blocks(plan.found, plan.durable_block, b"" if found is None else found.data)


def looking_for_block_0(recovery: SegmentRecovery) -> None:
    recovery.start()
    recovery.fenced(N0, Fence(BlockId(0), BlockId(0)))
    assert recovery.fenced(N1, Fence(BlockId(0), BlockId(0)))


# ---- nodes, writer and recovery


def test_r02_a_negative_read_binds() -> None:
    """The fence to n2 was lost; n2 is asked by a recovery read, and the writer's add comes late."""
    node = Node()

    assert node.read(0, epoch=2).found is Found.ABSENT
    assert isinstance(node.add(1, block(0, 0)), Fenced)


@pytest.mark.parametrize("first", [N0, N2])
def test_r03_two_recoverers_who_see_different_nodes_keep_or_drop_the_tail_for_good(
    first: NodeId,
) -> None:
    """Block 0 is on n0 only. Whoever decides first decides by what it makes durable."""
    nodes = {node: Node() for node in NODES}
    nodes[N0].add(1, block(0, 0))
    ends = []
    for epoch in (2, 3):
        recovery = SegmentRecovery(SEGMENT, Epoch(epoch), MARK)
        recovery.start()
        asked: list[Any] = []
        for node in (N1, N2):
            asked = recovery.fenced(node, nodes[node].fence(epoch)) or asked
        order = sorted(asked, key=lambda effect: effect.node != first)
        while order and recovery.end is None:
            effect = order.pop(0)
            node = nodes[effect.node]
            if isinstance(effect, ReadBlock):
                order += recovery.read(effect.node, effect.block, node.read(effect.block, epoch))
            elif isinstance(effect, AddBack):
                assert node.add(epoch, bytes(effect.data)) is None
                order += recovery.added(effect.node, effect.block)
        ends.append(recovery.end)
    # Who saw it has written it back, so that the next one sees it wherever it looks.
    assert ends[0] is not None and ends[0] <= ends[1]
    assert first != N0 or ends == [1, 1]


def test_r04_a_node_that_does_not_answer_is_not_needed_and_never_counted() -> None:
    recovery = SegmentRecovery(SEGMENT, Epoch(2), MARK)
    looking_for_block_0(recovery)

    recovery.read(N0, 0, ABSENT)
    recovery.failed(ReadBlock(N2, BlockId(0)))
    assert recovery.end is None
    assert recovery.retry() == [ReadBlock(N2, BlockId(0))]
    recovery.read(N1, 0, ABSENT)
    assert recovery.end == 0


def test_r05_a_node_that_lost_its_disk_never_says_no() -> None:
    """Asked under the name of its last life, it says that it does not know, and fences nothing."""
    wiped = Node()
    recovery = SegmentRecovery(SEGMENT, Epoch(2), MARK)
    looking_for_block_0(recovery)

    assert isinstance(wiped.fence(2, trusted=False), Unavailable)
    answer = wiped.read(0, epoch=2, trusted=False)
    assert answer.found is Found.UNKNOWN
    recovery.read(N0, 0, ABSENT)
    recovery.read(N2, 0, answer)
    assert recovery.end is None


def test_r05_a_node_that_lost_one_block_does_not_deny_it() -> None:
    node = Node()
    node.add(1, block(0, 0))

    node.core.lost(KEY, 0)

    assert node.read(0, epoch=2).found is Found.UNKNOWN
    assert node.read(7, epoch=2).found is Found.ABSENT


def test_two_nodes_that_lost_one_block_each_do_not_keep_a_segment_from_its_end() -> None:
    """Every block has a good copy, and everybody knows what never was there."""
    nodes = {node: Node() for node in NODES}
    for node in nodes.values():
        for number in range(3):
            node.add(1, block(number, 0))
    nodes[N0].core.lost(KEY, 0)
    nodes[N1].core.lost(KEY, 2)
    recovery = SegmentRecovery(SEGMENT, Epoch(2), MARK)
    recovery.start()
    asked: list[Any] = []
    for name in (N0, N1):
        asked = recovery.fenced(name, nodes[name].fence(2)) or asked
    while asked and recovery.end is None:
        effect = asked.pop(0)
        node = nodes[effect.node]
        if isinstance(effect, ReadBlock):
            asked += recovery.read(effect.node, effect.block, node.read(effect.block, 2))
        elif isinstance(effect, AddBack):
            assert node.add(2, bytes(effect.data)) is None
            asked += recovery.added(effect.node, effect.block)

    assert recovery.end == 3


def test_r06_acks_stop_below_the_quorum_and_a_lost_node_takes_its_own_back() -> None:
    writer = SegmentWriter(SEGMENT)
    writer.add((block(0, 0),))

    assert writer.added(N0, 0) == 0
    writer.lost(N0)
    assert writer.added(N1, 0) == 0  # n0 may be replaced: the block must do without it
    assert [send.block for send in writer.back(N0)] == [0]
    assert writer.added(N0, 0) == 1


def test_r07_a_node_shows_nothing_that_is_not_known_to_be_acknowledged() -> None:
    node = Node()
    node.add(1, block(0, 0))

    assert node.read(0).found is Found.LATER
    node.add(1, block(1, 1))  # tells that block 0 was acknowledged
    assert node.read(0).found is Found.HERE
    assert node.read(1).found is Found.LATER


def test_r08_what_is_known_to_be_durable_outlives_a_restart() -> None:
    """A node that has restarted knows the LAC from the blocks that it has."""
    disk = SimDisk()
    node = LocalNode(disk)
    node.add(KEY, block(0, 0))
    node.add(KEY, block(1, 1))

    again = LocalNode(disk.crash(Random(1), ALL_LOST))
    again.core.read("", ReadRequest(KEY, 0))
    (answer,) = again.core.take_answers()

    assert isinstance(answer.outcome, ReadPlan)
    assert (answer.outcome.found, answer.outcome.durable_block) == (Found.HERE, 1)


def test_r09_a_changed_ensemble_starts_at_the_first_block_that_is_not_durable() -> None:
    """And recovery starts there at the earliest: what came before was acknowledged elsewhere."""
    writer = SegmentWriter(SEGMENT)
    for number in range(2):
        writer.add((block(number, 0),))
    writer.added(N0, 0)
    writer.added(N1, 0)
    writer.lost(N2)
    segment = writer.replacement(N2, NodeId("n3:c"))

    assert [e.first_block for e in segment.ensembles] == [0, 1]
    assert [send.block for send in writer.replaced(segment)] == [1]
    recovery = SegmentRecovery(segment, Epoch(2), MARK)
    recovery.start()
    recovery.fenced(N0, Fence(BlockId(0), BlockId(0)))
    asked = recovery.fenced(NodeId("n3:c"), Fence(BlockId(0), BlockId(0)))
    assert {effect.block for effect in asked if isinstance(effect, ReadBlock)} == {1}


def test_r09_a_second_change_at_the_same_block_leaves_no_two_ensembles_there() -> None:
    writer = SegmentWriter(SEGMENT)
    writer.lost(N2)
    writer.replaced(writer.replacement(N2, NodeId("n3:c")))
    writer.lost(N1)

    segment = writer.replacement(N1, NodeId("n4:c"))

    assert segment.ensembles == (Ensemble(BlockId(0), (N0, NodeId("n4:c"), NodeId("n3:c"))),)


def test_r10_nothing_is_cut_by_what_a_node_believes_to_be_durable() -> None:
    """Two failovers before any node heard of a LAC: the block stays where it is."""
    nodes = [Node() for _ in range(2)]
    for node in nodes:
        node.add(1, block(0, 0))
    for epoch in (2, 3):
        for node in nodes:
            assert node.fence(epoch) == Fence(BlockId(0), BlockId(1))
    assert all(node.read(0, epoch=3).found is Found.HERE for node in nodes)


def test_r13_what_was_given_up_is_never_taken_again() -> None:
    node = Node()
    node.core.trim("", "main", 1)
    node._answer()

    assert isinstance(node.add(9, block(0, 0)), Fenced)
    again = NodeCore(MemoryStore())
    for record in node.core.snapshot():
        again.restore(record)
    again.add("", KEY, 9, block(0, 0))
    (answer,) = again.take_answers()
    assert isinstance(answer.outcome, Fenced)


def test_r01_a_fence_outlives_a_restart() -> None:
    node = Node()
    node.fence(2)

    again = NodeCore(MemoryStore())
    for record in node.core.snapshot():
        assert record == FenceRecord("main", 0, 2)
        again.restore(record)
    again.add("", KEY, 1, block(0, 0))
    (answer,) = again.take_answers()
    assert isinstance(answer.outcome, Fenced)


def test_r20_a_block_is_sent_again_byte_for_byte() -> None:
    writer = SegmentWriter(SEGMENT)
    data = (block(0, 0),)
    (first, *_) = writer.add(data)
    writer.lost(first.node)

    (again,) = writer.back(first.node)

    assert again.data is data


# ---- the manifest


def manifest_of(*segments: Segment) -> LogManifest:
    return LogManifest(bytes(16), Epoch(1), "w", Lsn(0), SegmentId(0), segments)


def test_r14_the_last_sealed_segment_stays_until_the_open_one_has_its_snapshot() -> None:
    old = replace(SEGMENT, sealed=True, end_lsn=Lsn(5), blocks=2)
    new = replace(SEGMENT, id=SegmentId(1), base_lsn=Lsn(5))
    manifest = manifest_of(old, new)

    assert trimmed(manifest, Lsn(5), False).segments == (old, new)
    assert trimmed(manifest, Lsn(5), True).segments == (new,)


@pytest.mark.parametrize("fault", ["lose_replies", "lose_requests"])
def test_r16_an_unclear_change_of_the_manifest_is_made_once(fault: str) -> None:
    async def play() -> None:
        tree = MemoryMetadata()
        session = tree.session()
        getattr(session, fault)(1)
        register = await ManifestRegister.take(lambda: session, "main", "one", bytes(16))
        assert (register.manifest.epoch, register.manifest.owner) == (1, "one")
        getattr(session, fault)(1)
        wanted = replace(SEGMENT, epoch=Epoch(1))
        await register.update(lambda known: replace(known, segments=(wanted,)))
        assert register.manifest.segments == (wanted,)

    asyncio.run(play())


def test_r16_an_owner_that_lost_changes_nothing_however_often_it_tries() -> None:
    async def play() -> None:
        tree = MemoryMetadata()
        session = tree.session()
        old = await ManifestRegister.take(lambda: session, "main", "old", bytes(16))
        new = await ManifestRegister.take(lambda: session, "main", "new", bytes(16))
        for _ in range(2):
            with pytest.raises(Fenced):
                await old.update(lambda known: replace(known, trim_point=Lsn(9)))
        await new.refresh()
        assert new.manifest.trim_point == 0

    asyncio.run(play())


def test_r18_an_unknown_producer_is_refused() -> None:
    body = decode_body(
        encode_body(producer="p", instance=1, first_seq=3, entries=[NewEntry(b"x", ())])
    )
    with pytest.raises(SeqGap):
        decide_seq(body, None)


# ---- whole proxies


@contextmanager
def cluster(**changes: Any) -> Iterator[ClusterWorld]:
    """A cluster without faults and without clients."""
    swarm = ClusterSwarm(
        replication=Replication(3, 3, 2, segment_bytes=changes.pop("segment_bytes", 64000)),
        nodes=changes.pop("nodes", 3),
        has_archive=False,
        writers=0,
        counters=0,
        readers=0,
        scanners=0,
        late_odds=0.0,
        **changes,
    )
    world = ClusterWorld(1, swarm=swarm)
    with world._inside():
        world.begin()
        world.run_until(world.is_started, seconds=20.0)
        yield world


def do(world: ClusterWorld, proxy: SimProxy, work: Coroutine[Any, Any, Any]) -> Any:
    """Run something in the process of a proxy until it ends."""
    assert proxy.process is not None
    task = proxy.process.create_task(work)
    world.run_until(task.done, seconds=20.0)
    return task.result()


def append(owned: OwnedLog, told: list[Any], seq: int, payload: bytes, flags: int = 0) -> None:
    kind = Kind.CONTROL if flags else Kind.DATA
    body = encode_body(
        producer="p",
        instance=1,
        first_seq=seq,
        entries=[NewEntry(payload, (), kind)],
        flags=flags,
    )
    owned.append(told.append, decode_body(body), (), IMMEDIATE)
    owned.pump()


def owner_of(world: ClusterWorld, name: str) -> OwnedLog:
    """Open the log at a proxy, and claim the producer."""
    proxy = world.proxies[name]
    owned = do(world, proxy, proxy.take())
    assert isinstance(owned, OwnedLog)
    return owned


def follower_of(world: ClusterWorld, name: str) -> FollowedLog:
    proxy = world.proxies[name]
    assert proxy.work is not None
    followed = do(world, proxy, proxy.work.logs._follow(LOG))
    assert isinstance(followed, FollowedLog)
    return followed


def told_by(world: ClusterWorld, owned: OwnedLog, seq: int, payload: bytes, flags: int = 0) -> Any:
    told: list[Any] = []
    owned._loop.call_soon(append, owned, told, seq, payload, flags)
    world.run_until(lambda: bool(told), seconds=20.0)
    return told[0]


def test_r01_a_zombie_acknowledges_nothing_and_lets_go() -> None:
    """p0 sleeps with an append under way; p1 fences, seals and goes on; p0 wakes."""
    with cluster() as world:
        zombie = owner_of(world, "p0")
        assert isinstance(told_by(world, zombie, 0, b"nonce---", CLAIM), Appended)
        p0 = world.proxies["p0"]
        assert p0.process is not None
        told: list[Any] = []
        p0.process.call_soon(append, zombie, told, 0, b"of the zombie")
        p0.process.pause()
        newer = owner_of(world, "p1")
        assert isinstance(told_by(world, newer, 0, b"of the newer"), Appended)
        p0.process.resume()
        world.run_until(lambda: zombie.fenced, seconds=20.0)
        world.run_until(lambda: p0.owned is None, seconds=20.0)

        assert told == []
        assert not newer.fenced


def test_r17_a_retry_after_a_failover_takes_effect_once() -> None:
    """The group is on a quorum, its owner dies before it says so; the producer sends it again."""
    with cluster() as world:
        first = owner_of(world, "p0")
        told_by(world, first, 0, b"nonce---", CLAIM)
        told: list[Any] = []
        first._loop.call_soon(append, first, told, 0, b"once")
        copies = world.ledger.copies
        before = len(copies)
        world.run_until(lambda: any(len(c) >= 2 for c in list(copies.values())[before:]))
        world.proxies["p0"].kill()
        second = owner_of(world, "p1")

        answer = told_by(world, second, 0, b"once")

        assert answer == Appended(Lsn(1), 1, duplicate=True)
        assert second.durable_lsn == 2


def test_r14_r15_a_follower_crosses_each_segment_once_and_in_order() -> None:
    """Every entry rolls: the next segment is open while the last one is being sealed."""
    with cluster(segment_bytes=1) as world:
        owned = owner_of(world, "p0")
        told_by(world, owned, 0, b"nonce---", CLAIM)
        followed = follower_of(world, "p1")
        for seq in range(6):
            assert isinstance(told_by(world, owned, seq, b"%d" % seq), Appended)
        world.run_until(lambda: followed.durable_lsn == 7, seconds=20.0)

        assert isinstance(followed.view, LogView)
        assert len(owned.manifest.segments) >= 6


def test_r08_the_last_entry_is_seen_without_a_next_one() -> None:
    with cluster() as world:
        owned = owner_of(world, "p0")
        followed = follower_of(world, "p1")
        told_by(world, owned, 0, b"nonce---", CLAIM)

        world.run_until(lambda: followed.durable_lsn == 1, seconds=2.0)


def test_r19_an_epoch_is_taken_only_by_a_durable_change() -> None:
    """Two proxies that open at once get two epochs, and the lower one ends fenced."""
    with cluster() as world:
        first, second = owner_of(world, "p0"), owner_of(world, "p1")

        assert first.manifest.epoch < second.manifest.epoch
        told: list[Any] = []
        first._loop.call_soon(append, first, told, 0, b"nonce---", CLAIM)
        world.run_until(lambda: first.fenced, seconds=20.0)
        assert told == []
