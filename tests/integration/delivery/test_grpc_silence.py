"""A host that is gone without a word, over gRPC: noticed by pings, as gRPC's core is told to."""

from __future__ import annotations

from pathlib import Path

import pytest
from grpc._cython import cygrpc
from harness.delivery_targets import MemoryTarget
from harness.remote_targets import RemotePlayer, rows, serving
from harness.tcp_proxy import Fault, TcpProxy, Way
from harness.waiting import until

from penstock.delivery.messages import Failure
from penstock.delivery.remote import grpc_host, grpc_server
from penstock.delivery.remote.grpc_messages import PING_MS, PONG_MS, pings
from penstock.errors import Unavailable

#: Half of what gRPC's core waits for an answer to a ping by default, and thirty times what it is
#: told to wait here.
NOTICED_SECONDS = 30.0


@pytest.mark.parametrize("options", [grpc_host.OPTIONS, grpc_server.OPTIONS])
def test_the_installed_core_knows_every_option_that_it_is_given(
    options: tuple[tuple[str, int], ...],
) -> None:
    """It takes any name, and silently ignores those that it does not know."""
    core = Path(cygrpc.__file__).read_bytes()

    assert [name for name, _ in options if name.encode() + b"\0" not in core] == []


@pytest.mark.parametrize("options", [grpc_host.OPTIONS, grpc_server.OPTIONS])
def test_both_sides_are_told_how_long_a_ping_may_take(
    options: tuple[tuple[str, int], ...],
) -> None:
    given = dict(options)

    assert given["grpc.keepalive_time_ms"] == PING_MS
    assert given["grpc.http2.ping_timeout_ms"] == PONG_MS
    assert len(given) == len(options), "an option is given twice"


async def test_a_host_that_swallows_everything_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: pings end a call into nothing. Method: a proxy that throws away all bytes, both ways,
    and no others are ever sent; with pings every second, one of them must go unanswered."""
    others = tuple(option for option in grpc_host.OPTIONS if option not in pings())
    monkeypatch.setattr(grpc_host, "OPTIONS", (*others, *pings(1_000, 1_000)))
    async with (
        serving("grpc", [MemoryTarget()], tmp_path) as server,
        TcpProxy(lambda: server.address) as proxy,
        RemotePlayer("grpc", proxy.address, tmp_path) as player,
    ):
        await player.open(0)
        player.apply(0, 0, 1, rows(1))
        await until(lambda: player.acks(0) == [1])

        for way in Way:
            proxy.arm(way, Fault(drop_after=0))
        await until(
            lambda: any(isinstance(one, Failure) for one in player.of_shard(0)),
            "nobody noticed that the host is gone",
            seconds=NOTICED_SECONDS,
        )
        error = await player.failure(0)

    assert isinstance(error, Unavailable)
    assert "ping" in str(error), "it was noticed otherwise"
    assert proxy.counts.dropped_bytes > 0
    assert proxy.counts.cuts == 0
