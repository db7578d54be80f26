"""A cluster at its limits, each as one schedule: large states, quiet logs, nodes that restart.

What a seed finds in many ways is in test_cluster_world.py ("limits").
"""

from __future__ import annotations

from typing import Any

import pytest
from simulation.cluster.world import ClusterWorld
from test_cluster_pins import append, cluster, do, owner_of, told_by

from penstock.log.group_format import CLAIM
from penstock.log.proxy.owned_log import OwnedLog
from penstock.log.records import Appended
from penstock.log.replication import manifest


def open_blocks(owned: OwnedLog) -> int:
    """Blocks of the open segment that a successor would read."""
    segment = owned.segment
    return int(segment.core.next_block - segment._snapshot_block)


def ask(world: ClusterWorld, owned: OwnedLog, times: int) -> None:
    """Questions that only an owner may answer: each writes a block with nothing in it."""

    async def work() -> None:
        for _ in range(times):
            await owned.make_sure()

    do(world, world.proxies["p0"], work())


def test_a_log_that_is_only_asked_stays_quick_to_take_over() -> None:
    with cluster(snapshot_bytes=4000, block_cost_bytes=100) as world:
        owned = owner_of(world, "p0")
        told_by(world, owned, 0, b"nonce---", CLAIM)
        ask(world, owned, 500)
        assert owned.segment.core.next_block >= 500

        assert open_blocks(owned) <= 50
        world.proxies["p0"].kill()
        newer = owner_of(world, "p1")
        assert newer.durable_lsn == 1
        assert isinstance(told_by(world, newer, 0, b"known"), Appended)


def test_a_log_of_tiny_appends_stays_quick_to_take_over() -> None:
    with cluster(snapshot_bytes=40_000, block_cost_bytes=1000) as world:
        owned = owner_of(world, "p0")
        told_by(world, owned, 0, b"nonce---", CLAIM)
        for seq in range(100):
            assert isinstance(told_by(world, owned, seq, b""), Appended)
            ask(world, owned, 1)

        assert owned.segment.core.next_block >= 200
        assert open_blocks(owned) <= 50
        world.proxies["p0"].kill()
        assert owner_of(world, "p1").durable_lsn == 101


def test_a_snapshot_is_not_taken_ahead_of_what_was_written() -> None:
    """Groups wait in the sequencer while a control block is due: the state has them already."""
    with cluster(snapshot_bytes=400, block_cost_bytes=1000, log_bytes=1) as world:
        owned = owner_of(world, "p0")
        told_by(world, owned, 0, b"nonce---", CLAIM)
        told: list[Any] = []

        def burst() -> None:
            for seq in range(8):
                append(owned, told, seq, bytes(300))
            owned._write_control()

        owned._loop.call_soon(burst)
        world.run_until(lambda: len(told) == 8, seconds=20.0)
        world.proxies["p0"].kill()
        assert owner_of(world, "p1").durable_lsn == 9


# ---- full manifests


def test_a_full_manifest_is_opened_and_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every entry rolls, until there is no room: who takes the log over can read and trim it."""
    monkeypatch.setattr(manifest, "MANIFEST_ROLL_BYTES_MAX", 450)
    monkeypatch.setattr(manifest, "MANIFEST_BYTES_MAX", 650)

    with cluster(segment_bytes=1) as world:
        owned = owner_of(world, "p0")
        told_by(world, owned, 0, b"nonce---", CLAIM)
        told: list[Any] = []

        def more() -> None:
            for seq in range(20):
                append(owned, told, seq, b"%d" % seq)

        owned._loop.call_soon(more)
        world.run_until(lambda: bool(owned.stalled), seconds=20.0)
        assert "trim it" in owned.stalled and not owned.fenced
        ask(world, owned, 3)  # what is there can be asked for and read
        count = len(told)
        assert 0 < count < 20 and owned.durable_lsn == 1 + count

        world.proxies["p0"].kill()
        newer = owner_of(world, "p1")
        assert newer.durable_lsn >= 1 + count
        for seq in range(newer.durable_lsn - 1, 20):
            newer._loop.call_soon(append, newer, told, seq, b"%d" % seq)
        world.run_until(lambda: bool(newer.stalled), seconds=20.0)
        do(world, world.proxies["p1"], newer.trim(newer.durable_lsn))
        world.run_until(lambda: newer.durable_lsn == 21, seconds=20.0)
        assert not newer.stalled and not newer.fenced


def test_who_asks_of_a_full_log_is_told_what_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also who asked before it was full. What waits for a trim is told to nobody."""
    monkeypatch.setattr(manifest, "MANIFEST_ROLL_BYTES_MAX", 450)
    monkeypatch.setattr(manifest, "MANIFEST_BYTES_MAX", 650)

    with cluster(segment_bytes=1) as world:
        owned = owner_of(world, "p0")
        told_by(world, owned, 0, b"nonce---", CLAIM)
        process = world.proxies["p0"].process
        assert process is not None
        told: list[Any] = []
        asked: list[Any] = []

        def more() -> None:
            for seq in range(20):
                append(owned, told, seq, b"%d" % seq)
                asked.append(process.create_task(owned.get_producer("p")))

        owned._loop.call_soon(more)
        world.run_until(lambda: bool(owned.stalled), seconds=20.0)
        world.run_until(lambda: all(task.done() for task in asked), seconds=20.0)
        count = len(told)
        assert 0 < count < 20 and owned.stalled
        assert [task.result().next_seq <= count for task in asked] == [True] * 20
        assert do(world, world.proxies["p0"], owned.get_producer("p")).next_seq == count

        do(world, world.proxies["p0"], owned.trim(owned.durable_lsn))
        world.run_until(lambda: owned.durable_lsn == 21, seconds=20.0)
        assert do(world, world.proxies["p0"], owned.get_producer("p")).next_seq == 20


# ---- nodes that restart


def test_a_restarted_node_gets_what_it_missed_of_the_open_segment() -> None:
    with cluster(replace_seconds=2.0) as world:
        owned = owner_of(world, "p0")
        told_by(world, owned, 0, b"nonce---", CLAIM)
        node = world.nodes["n0"]
        node.stop(power_cut=False)
        for seq in range(10):
            assert isinstance(told_by(world, owned, seq, b"%d" % seq), Appended)
        assert owned.lacking_blocks >= 10
        node.start()

        key = owned.segment.key

        def is_whole() -> bool:
            held = {block for (_, block), names in world.ledger.copies.items() if "n0" in names}
            return all(block in held for block in range(owned.segment.durable_block))

        world.run_until(lambda: owned.lacking_blocks == 0, seconds=10.0)
        assert is_whole(), "it says so only when it is so"
        assert owned.segment.key == key and len(owned.segment.segment.ensembles) == 1


def test_a_node_that_has_lost_its_place_gets_what_it_missed_before() -> None:
    """It restarts in some seconds, and a fourth one stands in for it: older blocks are its own."""
    with cluster(replace_seconds=0.5, nodes=4) as world:
        owned = owner_of(world, "p0")
        told_by(world, owned, 0, b"nonce---", CLAIM)
        name = owned.segment.segment.ensembles[0].nodes[0].partition(":")[0]
        node = world.nodes[name]
        node.stop(power_cut=False)
        seq = 0
        while len(owned.segment.segment.ensembles) == 1:
            assert isinstance(told_by(world, owned, seq, b"%d" % seq), Appended)
            seq += 1
        assert owned.lacking_blocks > 1
        node.start()

        world.run_until(lambda: not owned.lacking_blocks, seconds=60.0)

        held = [len(names) for names in world.ledger.copies.values()]
        assert len(held) > seq and min(held) >= 3
