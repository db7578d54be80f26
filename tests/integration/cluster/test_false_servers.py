"""Entries of the metadata that name somebody else's port: whoever listens there learns no token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
from harness.in_process_cluster import InProcessCluster, in_process_cluster

from penstock.cli.cluster_facts import find_facts
from penstock.cli.cluster_target import Cluster
from penstock.errors import BadFormat, PenstockError, Unauthorized, Unavailable
from penstock.log.client.client import TIMEOUT_SECONDS, AsyncLog, Endpoint
from penstock.log.meta.open import ClusterAddress
from penstock.log.node.client import NetworkNodeClient, NetworkNodes
from penstock.log.records import NewEntry
from penstock.log.replication.node_api import NodeInfo
from penstock.log.replication.routing import ProxyInfo
from penstock.wire import messages as m
from penstock.wire import node_messages as n
from penstock.wire.errors import error_code
from penstock.wire.frames import Frame, FrameReader, encode_frame
from penstock.wire.proof import NONCE_BYTES

TOKEN = "5" * 64


@dataclass
class FalseServer:
    """Says yes to whatever it is asked, and keeps every byte."""

    heard: bytearray = field(default_factory=bytearray)
    frames: list[Frame] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader(authenticated=True)
        try:
            while data := await reader.read(65536):
                self.heard += data
                if data.startswith(b"GET "):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                    break
                frames.get_buffer()[: len(data)] = data
                for frame in frames.buffer_updated(len(data)):
                    self.frames.append(frame)
                    writer.write(self.answer(frame))
        except (PenstockError, OSError):
            pass
        finally:
            writer.close()

    def answer(self, frame: Frame) -> bytes:
        said: m.Message | n.NodeMessage
        match frame.kind:
            case m.Meet.KIND:
                said = m.Challenge(bytes(NONCE_BYTES), bytes(32))
            case n.NodeHello.KIND:
                said = n.NodeWelcome("n0", "feed", True)
            case m.Hello.KIND:
                said = m.Welcome(bytes(16), 1, 0, 0)
            case _:
                return b""
        head = m.encode_as(type(said), said)
        return encode_frame(said.KIND, frame.request, head)


@asynccontextmanager
async def false_server() -> AsyncIterator[FalseServer]:
    false = FalseServer()
    server = await asyncio.start_server(false.serve, "127.0.0.1", 0)
    false.port = server.sockets[0].getsockname()[1]
    try:
        yield false
    finally:
        server.close()


async def lie(cluster: InProcessCluster, proxy_port: int, node_port: int) -> None:
    """The metadata names a proxy, an owner, and a node in the place of a true one."""
    store = await cluster.open_store()
    proxy = {**asdict(ProxyInfo("false", "127.0.0.1", proxy_port)), "claim": 1}
    await store.create("/proxies/false", json.dumps(proxy).encode())
    await store.create("/owners/main", json.dumps(proxy).encode())
    found = await store.get("/nodes/n0")
    assert found is not None
    node = json.loads(found.data) | {"host": "127.0.0.1", "port": node_port}
    await store.set("/nodes/n0", json.dumps(node).encode(), found.version)


async def test_false_entries_of_the_metadata_collect_no_token(tmp_path: Path) -> None:
    async with (
        in_process_cluster(tmp_path, proxies=0) as cluster,
        false_server() as proxy,
        false_server() as node,
    ):
        tokens = [(tmp_path / "node-token").read_text().strip()]
        await lie(cluster, proxy.port, node.port)
        with pytest.raises(PenstockError):
            await cluster.connect()
        tokens.append((tmp_path / "token").read_text().strip())
        await cluster.start_proxy()
        await ask_for_status(cluster, tokens)
        await append_through_a_true_proxy(cluster, tokens[1])

        for false in (proxy, node):
            assert false.frames, "nobody was deceived: this test shows nothing"
            for token in tokens:
                assert token.encode() not in false.heard
            # A nonce, and that the other side is not believed.
            assert {frame.kind for frame in false.frames} <= {m.Meet.KIND, m.Failed.KIND}


async def ask_for_status(cluster: InProcessCluster, tokens: list[str]) -> None:
    store = await cluster.open_store()
    nodes = NetworkNodes(store, token=tokens[0])
    await nodes.start()
    try:
        address = ClusterAddress(("memory:1",), "/memory")
        facts = await find_facts(Cluster(address, store, tokens[1], nodes, None, 20.0))
    finally:
        await nodes.close()
    states = {proxy["id"]: proxy for proxy in facts["proxies"]}
    problem = states.pop("false")["problem"]
    assert "false server" in problem
    (true,) = states.values()
    assert true["state"] == "up" and true["connections"] is not None
    assert any("false server" in (one["problem"] or "") for one in facts["nodes"])


async def append_through_a_true_proxy(cluster: InProcessCluster, token: str) -> None:
    """The other two nodes are enough; the false one is asked, and left."""
    (server, _) = cluster.proxies[0]
    store = await cluster.open_store()
    await store.delete("/owners/main")

    async def resolve() -> Endpoint:
        return Endpoint("127.0.0.1", server.info.port, token, log="main")

    async with await AsyncLog.connect(resolve) as log:
        await log.append([NewEntry(b"true", ("t",))])


async def test_a_false_server_is_noticed_at_once(tmp_path: Path) -> None:
    async with false_server() as false:

        async def resolve() -> Endpoint:
            return Endpoint("127.0.0.1", false.port, TOKEN)

        async with asyncio.timeout(TIMEOUT_SECONDS - 10):
            with pytest.raises(Unauthorized, match="false server"):
                await AsyncLog.connect(resolve)
        node = NetworkNodeClient(
            NodeInfo("n0", "feed", "127.0.0.1", false.port, False), token=TOKEN
        )
        try:
            with pytest.raises(Unavailable, match="false server"):
                await node.status()
        finally:
            node.close()
        assert TOKEN.encode() not in false.heard


class OldServer(FalseServer):
    """As they were before the challenge: an unknown kind is told, and the connection closed."""

    def answer(self, frame: Frame) -> bytes:
        error = BadFormat(f"message kind {frame.kind} is not known")
        head = m.encode_as(m.Failed, m.Failed(error_code(error), str(error)))
        return encode_frame(m.Failed.KIND, 0, head)


async def test_an_older_server_is_told_from_a_false_one(tmp_path: Path) -> None:
    old = OldServer()
    server = await asyncio.start_server(old.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def resolve() -> Endpoint:
        return Endpoint("127.0.0.1", port, TOKEN)

    try:
        async with asyncio.timeout(TIMEOUT_SECONDS - 10):
            with pytest.raises(Unauthorized, match="older than this client, and must be upgraded"):
                await AsyncLog.connect(resolve)
    finally:
        server.close()
    assert TOKEN.encode() not in old.heard
