"""Adds of a client of a node, on a connection that only remembers."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from harness.waiting import until

from penstock.errors import PenstockError, Unavailable
from penstock.limits import KIB
from penstock.log.node import client as node_client
from penstock.log.node.client import NetworkNodeClient, NodeLink
from penstock.log.replication.manifest import SegmentKey
from penstock.log.replication.node_api import NodeInfo
from penstock.wire import node_messages as n
from penstock.wire.frames import encode_frame

KEY = SegmentKey("main", 0)


class Transport:
    """What was written: the buffers themselves."""

    def __init__(self) -> None:
        self.out: list[Any] = []

    def writelines(self, parts: list[Any]) -> None:
        self.out += parts

    def get_extra_info(self, name: str) -> None:
        """There is no socket."""

    def abort(self) -> None:
        return None


class Client(NetworkNodeClient):
    """Connects when `let_in` says so."""

    def __init__(self) -> None:
        super().__init__(NodeInfo("n0", "c0", "127.0.0.1", 1), token="")
        self.let_in = asyncio.Event()
        self.transport = Transport()
        self.link: NodeLink
        self.told: list[tuple[int, PenstockError | None]] = []

    async def _open(self) -> NodeLink:
        await self.let_in.wait()
        self.link = self._make_link()
        self.link.connection_made(cast(Any, self.transport))
        return self.link

    def add_block(self, number: int, body: bytes) -> None:
        self.add(KEY, 1, [body], lambda error: self.told.append((number, error)))

    def answer(self, request: int) -> None:
        frame = encode_frame(n.BlockAdded.KIND, request, b"")
        self.link.get_buffer(-1)[: len(frame)] = frame
        self.link.buffer_updated(len(frame))

    def bodies(self) -> list[Any]:
        self.link.flush()
        return self.transport.out[1::2]

    def has_sent(self) -> bool:
        """It is connected, and has sent what there was room for."""
        return hasattr(self, "link") and bool(self.bodies())


@pytest.fixture
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two blocks: each counts for 2 KiB more than it has."""
    monkeypatch.setattr(node_client, "INFLIGHT_BYTES_MAX", 8 * KIB)


@pytest.mark.usefixtures("small_window")
async def test_adds_wait_for_the_connection_and_then_for_room_without_a_copy() -> None:
    client = Client()
    bodies = [bytes([number]) * 2 * KIB for number in range(5)]
    for number in range(4):
        client.add_block(number, bodies[number])
    client.let_in.set()
    await until(client.has_sent)
    client.add_block(4, bodies[4])

    for answered in range(6):
        out = client.bodies()
        assert len(out) == min(2 + answered, 5)
        assert all(sent is body for sent, body in zip(out, bodies, strict=False))
        if answered < 5:
            client.answer(answered + 1)
    assert client.told == [(number, None) for number in range(5)]
    client.close()


@pytest.mark.usefixtures("small_window")
async def test_all_adds_end_with_the_connection_also_those_that_were_not_sent() -> None:
    client = Client()
    client.let_in.set()
    for number in range(5):
        client.add_block(number, bytes(2 * KIB))
    await until(client.has_sent)
    assert len(client.bodies()) == 2

    client.link.connection_lost(None)

    assert [number for number, _ in client.told] == [0, 1, 2, 3, 4]
    assert all(isinstance(error, Unavailable) for _, error in client.told)
    client.close()


@pytest.mark.usefixtures("small_window")
async def test_adds_that_wait_for_a_connection_end_with_unavailable() -> None:
    client = Client()
    for number in range(5):
        client.add_block(number, bytes(20 * KIB))
    await asyncio.sleep(0)
    assert client.told == []

    client.close()

    assert [number for number, _ in client.told] == [0, 1, 2, 3, 4]
    assert all(isinstance(error, Unavailable) for _, error in client.told)
