"""Both ends of a connection let the kernel ask whether the other one is still there.

Goal: whoever vanished without a word does not count among a server's connections for ever. Method:
the options of real sockets; that the kernel keeps to them is the kernel's business.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from pathlib import Path

import pytest
from harness.in_process_cluster import in_process_cluster
from harness.served_log import served

from penstock.config import ServerConfig
from penstock.log import keep_alive
from penstock.log.pairing import PairedConnection
from penstock.log.records import NewEntry
from penstock.log.serving.connection import ServerConnection

#: A dead peer is gone after about a minute.
SECONDS_MAX = 60
pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="not on this system")


def seconds_until_gone(transport: asyncio.Transport | None) -> int:
    """Of a peer that says nothing more; 0: never."""
    assert transport is not None
    connected: socket.socket = transport.get_extra_info("socket")
    if not connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
        return 0
    idle, interval, probes = (
        connected.getsockopt(socket.IPPROTO_TCP, option)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    )
    return idle + interval * probes


def transports() -> list[asyncio.Transport]:
    """Of all open sockets in this process, both ends of each.

    A simulation that ran in the same process leaves transports behind that have no socket.
    """
    ends = [one for one in gc.get_objects() if isinstance(one, ServerConnection | PairedConnection)]
    found = [one.transport if isinstance(one, ServerConnection) else one._transport for one in ends]
    opened = [one for one in found if one is not None and not one.is_closing()]
    return [one for one in opened if one.get_extra_info("socket") is not None]


async def test_a_log_server_and_its_client_notice_who_vanished(tmp_path: Path) -> None:
    others = transports()
    async with served(ServerConfig(data_dir=tmp_path)) as beside, await beside.connect() as log:
        await log.append([NewEntry(b"")])
        gone = [seconds_until_gone(each) for each in transports() if each not in others]

    assert len(gone) >= 2, "both ends"
    assert set(gone) == {SECONDS_MAX}


async def test_nodes_and_proxies_notice_who_vanished(tmp_path: Path) -> None:
    others = transports()
    async with in_process_cluster(tmp_path) as cluster, await cluster.connect() as log:
        await log.append([NewEntry(b"")])
        gone = [seconds_until_gone(each) for each in transports() if each not in others]

    assert len(gone) >= 8, "a client and a proxy, the proxy and three nodes"
    assert all(0 < seconds <= SECONDS_MAX for seconds in gone)


def test_the_numbers_are_those_that_operators_are_told() -> None:
    assert keep_alive.IDLE_SECONDS + keep_alive.INTERVAL_SECONDS * keep_alive.PROBES == SECONDS_MAX
