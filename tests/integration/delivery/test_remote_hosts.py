"""Targets in other processes, over frames and over gRPC: the same laws as beside the player."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from harness.delivery_targets import MemoryTarget
from harness.remote_targets import PROTOCOLS, SCHEMA, RemotePlayer, rows, serving
from harness.tcp_proxy import Fault, TcpProxy, Way
from harness.waiting import until
from tls_material import Authority

from penstock.delivery.api import Batch
from penstock.delivery.remote import frames_host
from penstock.delivery.remote.row_parts import PART_BYTES_MAX
from penstock.delivery.remote.served_target import ERROR_TEXT_MAX
from penstock.errors import BadRow, Fenced, Refused, Unauthorized, Unavailable
from penstock.ids import Lsn
from penstock.log.embedded import client_tls

pytestmark = pytest.mark.parametrize("protocol", PROTOCOLS)


def keys_of(target: MemoryTarget) -> list[int]:
    return [row["k"] for row in target.rows]


async def test_batches_in_flight_are_applied_in_order_each_with_its_ack(
    protocol: str, tmp_path: Path
) -> None:
    targets = [MemoryTarget() for _ in range(3)]
    async with (
        serving(protocol, targets, tmp_path) as server,
        RemotePlayer(protocol, server.address, tmp_path, shards=3) as player,
    ):
        assert await player.open(0, 1, 2) == [0, 0, 0]
        for step in range(20):
            player.host.send(
                [player.batch(shard, step, step + 1, rows(step)) for shard in (0, 1, 2)]
            )
        await until(lambda: all(len(player.acks(shard)) == 20 for shard in range(3)))

    for shard, target in enumerate(targets):
        assert keys_of(target) == [*range(20)]
        assert player.acks(shard) == [*range(1, 21)]
        assert target.shard is not None
        assert (target.shard.index, target.shard.count, target.shard.schema) == (shard, 3, SCHEMA)


async def test_a_batch_without_rows_moves_the_position(protocol: str, tmp_path: Path) -> None:
    target = MemoryTarget()
    async with (
        serving(protocol, [target], tmp_path) as server,
        RemotePlayer(protocol, server.address, tmp_path) as player,
    ):
        await player.open(0)
        player.apply(0, 0, 7)
        await until(lambda: player.acks(0) == [7])

    assert (target.rows, target.position) == ([], 7)


async def test_a_batch_that_does_not_meet_the_position_changes_nothing(
    protocol: str, tmp_path: Path
) -> None:
    target = MemoryTarget()
    async with (
        serving(protocol, [target], tmp_path) as server,
        RemotePlayer(protocol, server.address, tmp_path) as player,
    ):
        await player.open(0)
        for after, upto in ((0, 1), (0, 1), (5, 6), (1, 2)):
            player.apply(0, after, upto, rows(upto))
        await until(lambda: player.acks(0) == [1, 1, 1, 2])

    assert keys_of(target) == [1, 2]


async def test_large_batches_and_many_small_ones_arrive_whole(
    protocol: str, tmp_path: Path
) -> None:
    target = MemoryTarget()
    long = "x" * 500_000
    large = pa.RecordBatch.from_pydict({"k": [*range(12)], "v": [long] * 12}, SCHEMA)
    assert large.nbytes > 2 * PART_BYTES_MAX
    async with (
        serving(protocol, [target], tmp_path) as server,
        RemotePlayer(protocol, server.address, tmp_path) as player,
    ):
        await player.open(0)
        player.apply(0, 0, 1, rows(-1), large, rows(-2), large.slice(3, 5))
        player.apply(0, 1, 2, *(rows(key) for key in range(300)))
        await until(lambda: player.acks(0) == [1, 2])

    assert keys_of(target) == [-1, *range(12), -2, *range(3, 8), *range(300)]
    assert {row["v"] for row in target.rows[1:13]} == {long}


async def test_a_lost_connection_with_batches_in_flight_is_told_once_and_nothing_is_lost(
    protocol: str, tmp_path: Path
) -> None:
    targets = [MemoryTarget(), MemoryTarget()]
    targets[0].runs.clear()
    async with (
        serving(protocol, targets, tmp_path) as server,
        TcpProxy(lambda: server.address) as proxy,
        RemotePlayer(protocol, proxy.address, tmp_path, shards=2) as player,
    ):
        await player.open(0, 1)
        for step in range(3):
            player.host.send([player.batch(shard, step, step + 1, rows(step)) for shard in (0, 1)])
        await until(lambda: player.acks(1) == [1, 2, 3])
        proxy.cut_all()
        assert isinstance(await player.failure(0), Unavailable)
        assert isinstance(await player.failure(1), Unavailable)

        player.hello(0, 1)
        assert await player.position(1) == 3
        targets[0].runs.set()
        position = await player.position(0)
        for step in range(position, 5):
            player.apply(0, step, step + 1, rows(step))
        await until(lambda: player.acks(0)[-1:] == [5])

    assert position >= 1, "the batch that it was at work on is applied before it is opened again"
    assert keys_of(targets[0]) == [*range(5)]
    assert keys_of(targets[1]) == [*range(3)]
    for shard in (0, 1):
        first = [type(one).__name__ for one in player.of_shard(shard, 1)]
        assert first.count("Failure") == 1
        assert first[-1] == "Failure", "nothing of the old connection is told after its end"


async def test_what_is_said_on_an_earlier_connection_changes_nothing(
    protocol: str, tmp_path: Path
) -> None:
    """Late batches: closed and opened again while they were on their way."""
    target = MemoryTarget()
    async with (
        serving(protocol, [target], tmp_path) as server,
        RemotePlayer(protocol, server.address, tmp_path) as player,
    ):
        await player.open(0)
        late = player.batch(0, 0, 1, rows(0))
        player.bye(0)
        assert await player.open(0) == [0]
        player.host.send([late])
        player.apply(0, 0, 1, rows(100))
        await until(lambda: player.acks(0) == [1])

    assert keys_of(target) == [100]
    assert target.opens == 2
    assert player.of_shard(0, 1) == player.told[:1]


async def test_a_newer_player_fences_the_older_at_once(protocol: str, tmp_path: Path) -> None:
    target = MemoryTarget()
    async with (
        serving(protocol, [target], tmp_path) as server,
        RemotePlayer(protocol, server.address, tmp_path, term=4) as old,
        RemotePlayer(protocol, server.address, tmp_path, term=5) as new,
    ):
        await old.open(0)
        await new.open(0)
        assert isinstance(await old.failure(0), Fenced)
        old.apply(0, 0, 1, rows(0))
        old.hello(0)
        with pytest.raises(Fenced, match="instance 5, which is newer than 4"):
            await old.position(0)
        new.apply(0, 0, 1, rows(100))
        await until(lambda: new.acks(0) == [1])

    assert keys_of(target) == [100]
    assert target.term == 5


async def test_a_zombie_is_refused_by_the_target_after_a_restart_of_its_host(
    protocol: str, tmp_path: Path
) -> None:
    target = MemoryTarget()
    target.term = 7
    async with (
        serving(protocol, [target], tmp_path) as server,
        RemotePlayer(protocol, server.address, tmp_path, term=6) as zombie,
    ):
        zombie.hello(0)
        with pytest.raises(Fenced, match="term 6, but 7 was here"):
            await zombie.position(0)


async def test_a_target_is_in_use_by_one_delivery_until_that_is_gone(
    protocol: str, tmp_path: Path
) -> None:
    async with (
        serving(protocol, [MemoryTarget()], tmp_path) as server,
        RemotePlayer(protocol, server.address, tmp_path) as first,
        RemotePlayer(protocol, server.address, tmp_path, delivery="e") as second,
    ):
        await first.open(0)
        second.hello(0)
        with pytest.raises(Refused, match="in use by shard 0 of delivery d"):
            await second.position(0)
        first.apply(0, 0, 1, rows(1))
        await until(lambda: first.acks(0) == [1])
        await first.host.close()

        async def is_free() -> bool:
            second.hello(0)
            try:
                await second.position(0)
            except Refused:
                return False
            return True

        await until(is_free)


async def test_without_the_token_nothing_is_opened(protocol: str, tmp_path: Path) -> None:
    target = MemoryTarget()
    async with (
        serving(protocol, [target], tmp_path) as server,
        RemotePlayer(protocol, server.address, tmp_path, token="f" * 64) as stranger,
        RemotePlayer(protocol, server.address, tmp_path) as player,
    ):
        stranger.hello(0)
        with pytest.raises(Unauthorized, match="does not have this token"):
            await stranger.position(0)
        assert target.opens == 0
        assert await player.open(0) == [0]


async def test_a_target_that_hangs_delays_no_other_of_its_host(
    protocol: str, tmp_path: Path
) -> None:
    hanging, other = MemoryTarget(), MemoryTarget()
    hanging.runs.clear()
    async with (
        serving(protocol, [hanging, other], tmp_path) as server,
        RemotePlayer(protocol, server.address, tmp_path, shards=2) as player,
    ):
        await player.open(0, 1)
        for step in range(4):
            player.apply(0, step, step + 1, rows(step))
        for step in range(50):
            player.apply(1, step, step + 1, rows(step))
        await until(lambda: player.acks(1)[-1:] == [50])
        assert player.acks(0) == []
        hanging.runs.set()
        await until(lambda: player.acks(0) == [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("raised", "told", "words"),
    [
        (BadRow("v is too long", row=3), BadRow, "v is too long"),
        (BadRow("some row is bad"), BadRow, "some row is bad"),
        (Refused("no such role"), Refused, "no such role"),
        (Fenced("term 9 was here"), Fenced, "term 9"),
        (Unavailable("down"), Unavailable, "down"),
        (ValueError("a bug\nof two lines"), Unavailable, "ValueError: a bug of two lines"),
        (SystemExit(3), Unavailable, "SystemExit: 3"),
        (Refused("x" * 10_000), Refused, "x" * ERROR_TEXT_MAX),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
async def test_what_a_target_raises_is_told_and_ends_the_connection_only(
    protocol: str, tmp_path: Path, raised: BaseException, told: type[Exception], words: str
) -> None:
    def fault(*_: object) -> None:
        raise raised

    target = MemoryTarget()
    target.before += [lambda batch: None, fault]
    async with (
        serving(protocol, [target], tmp_path) as server,
        RemotePlayer(protocol, server.address, tmp_path) as player,
    ):
        await player.open(0)
        for step in range(4):
            player.apply(0, step, step + 1, rows(step))
        error = await player.failure(0)
        assert await player.open(0) == [1]
        player.apply(0, 1, 2, rows(1))
        await until(lambda: player.acks(0) == [2])

    assert type(error) is told
    assert str(error) == words or words in str(error)
    if isinstance(raised, BadRow):
        assert isinstance(error, BadRow)
        assert error.row == raised.row
    assert keys_of(target) == [0, 1]
    assert [type(one).__name__ for one in player.of_shard(0, 1)] == ["At", "Ack", "Failure"]


async def test_a_target_that_cannot_be_opened_says_why_and_may_be_tried_again(
    protocol: str, tmp_path: Path
) -> None:
    target = MemoryTarget()
    problems = iter([Unavailable("the database is away")])

    def at_open() -> None:
        for problem in problems:
            raise problem

    target.at_open = at_open
    async with (
        serving(protocol, [target], tmp_path) as server,
        RemotePlayer(protocol, server.address, tmp_path) as player,
    ):
        player.hello(0)
        with pytest.raises(Unavailable, match="the database is away"):
            await player.position(0)
        assert await player.open(0) == [0]


async def test_a_number_that_no_target_has_is_refused(protocol: str, tmp_path: Path) -> None:
    async with (
        serving(protocol, [MemoryTarget()], tmp_path) as server,
        RemotePlayer(protocol, server.address, tmp_path, shards=2) as player,
    ):
        player.hello(0, 1)
        assert await player.position(0) == 0
        with pytest.raises(Refused, match="no target 1, only 0 to 0"):
            await player.position(1)


async def test_a_host_that_is_not_there_is_unavailable(protocol: str, tmp_path: Path) -> None:
    async with serving(protocol, [MemoryTarget()], tmp_path) as server:
        gone = server.address
    async with RemotePlayer(protocol, gone, tmp_path) as player:
        player.hello(0)
        with pytest.raises(Unavailable):
            await player.position(0)


async def test_what_is_no_host_of_targets_is_unavailable(protocol: str, tmp_path: Path) -> None:
    """The other protocol, for one."""
    other = "grpc" if protocol == "target" else "target"
    async with (
        serving(other, [MemoryTarget()], tmp_path) as server,
        RemotePlayer(protocol, server.address, tmp_path) as player,
    ):
        player.hello(0)
        with pytest.raises(Unavailable):
            await player.position(0)


async def test_over_tls_the_authority_must_be_right(protocol: str, tmp_path: Path) -> None:
    authority, false = Authority(tmp_path, "true"), Authority(tmp_path, "false")
    files = authority.issue("host", hosts=("127.0.0.1",))
    async with serving(
        protocol, [MemoryTarget()], tmp_path, tls_cert=files.cert, tls_key=files.key
    ) as server:
        for ca in (authority.ca, false.ca):
            async with RemotePlayer(
                protocol, server.address, tmp_path, tls_ca=str(ca), tls=client_tls(ca)
            ) as player:
                player.hello(0)
                if ca is authority.ca:
                    assert await player.position(0) == 0
                    player.apply(0, 0, 1, rows(1))
                    await until(lambda player=player: player.acks(0) == [1])
                else:
                    with pytest.raises(Unavailable):
                        await player.position(0)


async def test_a_host_that_vanished_without_a_word_is_noticed(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if protocol == "grpc":
        pytest.skip("gRPC's own pings; at most one in ten seconds")
    monkeypatch.setattr(frames_host, "SILENCE_SECONDS", 0.4)
    target = MemoryTarget()
    async with (
        serving(protocol, [target], tmp_path) as server,
        TcpProxy(lambda: server.address) as proxy,
        RemotePlayer(protocol, proxy.address, tmp_path) as player,
    ):
        await player.open(0)
        target.runs.clear()
        player.apply(0, 0, 1, rows(0))
        with pytest.raises(AssertionError, match="no failure"):
            await until_failed(player, seconds=1.2)
        proxy.arm(Way.TO_CLIENT, Fault(stall_after=0))
        error = await player.failure(0)
        target.runs.set()

    assert isinstance(error, Unavailable)
    assert "has said nothing for 0.4 s" in str(error)


async def until_failed(player: RemotePlayer, *, seconds: float) -> None:
    await until(lambda: len(player.told) > 1, "no failure", seconds=seconds)


class WatchedTarget(MemoryTarget):
    """Says when it has begun a batch."""

    has_begun = False

    def apply(self, batch: Batch) -> Lsn:
        self.has_begun = True
        return super().apply(batch)


async def test_the_end_of_a_host_lets_targets_finish_what_they_are_at(
    protocol: str, tmp_path: Path
) -> None:
    target = WatchedTarget()
    target.runs.clear()
    async with (
        serving(protocol, [target], tmp_path) as server,
        RemotePlayer(protocol, server.address, tmp_path) as player,
    ):
        await player.open(0)
        player.apply(0, 0, 1, rows(0))
        await until(lambda: target.has_begun)
        player.apply(0, 1, 2, rows(1))
        server.stop()
        await until(lambda: server.targets[0].is_ending)
        target.runs.set()
        assert isinstance(await player.failure(0), Unavailable)

    assert keys_of(target) == [0]
