"""A storage node on a real socket and a real disk: what proxies, operators and strangers meet."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from harness.async_tests import async_fixture
from harness.files import flip_bit
from harness.tcp_proxy import TcpProxy
from harness.waiting import until
from node_blocks import make_block
from served_node import add, add_all, client_of, end_of, serving

from penstock.errors import (
    BadConfig,
    BadRequest,
    DeadlineExceeded,
    Fenced,
    PenstockError,
    Unavailable,
)
from penstock.ids import Epoch, Lsn, SegmentId
from penstock.limits import BLOCK_BYTES_MAX, KIB, MIB, PREAUTH_FRAME_BYTES_MAX
from penstock.log.block_format import BlockKind, check_block
from penstock.log.meta.memory import MemoryMetadata, MemorySession
from penstock.log.node import client as node_client
from penstock.log.node import owner as node_owner
from penstock.log.node import requests as node_requests
from penstock.log.node import segment_store
from penstock.log.node.client import NetworkNodeClient, NetworkNodes
from penstock.log.node.config import NodeConfig
from penstock.log.node.registration import encode_node_info
from penstock.log.node.segment_store import file_name
from penstock.log.node.server import NodeServer
from penstock.log.replication.manifest import LogManifest, SegmentKey, encode_log_manifest
from penstock.log.replication.node_api import Fence, Found
from penstock.log.serving import group_commit
from penstock.log.serving.connection import ServerConnection
from penstock.log.serving.directory import Address
from penstock.wire import messages as m
from penstock.wire import node_messages as n
from penstock.wire.frames import FRAME_HEADER_BYTES, encode_frame
from penstock.wire.proof import NONCE_BYTES, Nonces, prove_client

KEY = SegmentKey("main", 0)
SMALL_JOURNAL = BLOCK_BYTES_MAX


@pytest.fixture
def metadata() -> MemoryMetadata:
    return MemoryMetadata()


@async_fixture
async def server(tmp_path: Path, metadata: MemoryMetadata) -> AsyncIterator[NodeServer]:
    """With a small journal: what does not fit comes into files."""
    async with serving(tmp_path / "n1", metadata, journal_bytes=SMALL_JOURNAL) as server:
        yield server


@async_fixture
async def client(server: NodeServer) -> AsyncIterator[NetworkNodeClient]:
    async with client_of(server) as client:
        yield client


async def fill(client: NetworkNodeClient, log: str, *, journals: int) -> None:
    """Write until the journal was started anew."""
    body = os.urandom(512 * KIB)
    count = journals * SMALL_JOURNAL // len(body) + 2
    for first in range(0, count, 20):
        wanted = range(first, min(first + 20, count))
        blocks = [(SegmentKey(log, 0), make_block(block, body)) for block in wanted]
        assert await add_all(client, blocks) == [None] * len(blocks)


# ---- the wire


async def test_blocks_go_in_and_come_out(server: NodeServer, client: NetworkNodeClient) -> None:
    blocks = [make_block(number, durable_block=number) for number in range(5)]
    assert await add_all(client, [(KEY, block) for block in blocks]) == [None] * 5

    read = await client.read(KEY, 0)
    assert (read.found, read.durable_block) == (Found.HERE, 4)
    assert bytes(read.data) == b"".join(blocks[:4])
    one = await client.read(KEY, 1, bytes_max=1)
    assert check_block(one.data)[0].block == 1
    assert (await client.read(KEY, 4)).found is Found.LATER
    recovery = await client.read(KEY, 4, fence_epoch=2)
    assert bytes(recovery.data) == blocks[4]
    assert isinstance(await add(client, KEY, make_block(5)), Fenced)
    assert await client.fence(KEY, 3) == Fence(4, 5)  # type: ignore[arg-type]
    assert await client.list_blocks(KEY, 1, 99) == [(1, 5)]
    assert (await client.status())["logs"] == 1
    with pytest.raises(Fenced):
        await client.fence(KEY, 2)
    index = SegmentKey("main", 0, 1)
    block = make_block(0, b"index", kind=BlockKind.INDEX)
    assert await add(client, index, block, epoch=3) is None
    assert bytes((await client.read(index, 0, durable_block=1)).data) == block


async def test_a_long_poll_ends_with_the_next_block_or_with_its_time(
    server: NodeServer, client: NetworkNodeClient
) -> None:
    await add(client, KEY, make_block(0))
    started = time.monotonic()
    assert (await client.read(KEY, 0, wait_ms=150)).found is Found.LATER
    assert 0.14 < time.monotonic() - started < 5

    poll = asyncio.create_task(client.read(KEY, 0, wait_ms=20_000))
    await asyncio.sleep(0.05)
    assert not poll.done()
    await add(client, KEY, make_block(1, durable_block=1))
    read = await poll
    assert (read.found, bytes(read.data)) == (Found.HERE, make_block(0))


async def test_numbers_of_requests_that_begin_anew_are_none_that_still_wait(
    server: NodeServer, client: NetworkNodeClient
) -> None:
    await add(client, KEY, make_block(0))
    client._request = 0
    poll = asyncio.create_task(client.read(KEY, 0, wait_ms=20_000))
    await until(lambda: server.owner.core.due_ms() is not None)

    client._request = 2**32 - 2
    assert await client.list_blocks(KEY, 0, 9) == [(0, 1)]
    assert await client.list_blocks(KEY, 0, 9) == [(0, 1)]
    client._request = 2**32 - 1
    await add(client, KEY, make_block(1, durable_block=1))

    async with asyncio.timeout(10):
        assert (await poll).found is Found.HERE


async def test_a_long_poll_ends_when_its_segment_is_given_up(
    monkeypatch: pytest.MonkeyPatch, server: NodeServer, client: NetworkNodeClient
) -> None:
    """The node hears of it by itself: no request comes that would send the answer, only a note."""
    monkeypatch.setattr(group_commit, "INLINE_SECONDS", 60.0)
    await add(client, KEY, make_block(0))
    poll = asyncio.create_task(client.read(KEY, 0, wait_ms=20_000))
    await until(lambda: server.owner.core.due_ms() is not None)

    trimming = server.owner.trim(KEY.log, KEY.segment + 1)
    assert server.listener._turn_due

    async with asyncio.timeout(10):
        await trimming
        assert (await poll).found is not Found.LATER


async def test_a_request_without_an_answer_ends_in_time(
    monkeypatch: pytest.MonkeyPatch, server: NodeServer, client: NetworkNodeClient
) -> None:
    """A socket that takes everything and says nothing: reads time out, adds hear Unavailable."""
    with monkeypatch.context() as quick:
        # Of the connection: it looks every so often whether the node is silent.
        quick.setattr(node_client, "SILENCE_SECONDS", 0.3)
        await until(lambda: was_added(client, make_block(0)))
        server.owner.pump = lambda **_: None  # type: ignore[method-assign]
        quick.setattr(node_client, "REQUEST_SECONDS", 0.2)
        with pytest.raises(DeadlineExceeded):
            await client.fence(KEY, 3)
        assert isinstance(await add(client, KEY, make_block(1)), Unavailable)
    del server.owner.pump  # type: ignore[method-assign]
    assert isinstance(await add(client, KEY, make_block(2)), Fenced)


async def was_added(client: NetworkNodeClient, block: bytes) -> bool:
    return await add(client, KEY, block) is None


async def test_a_connection_that_died_without_a_word_is_left_by_those_who_only_read(
    monkeypatch: pytest.MonkeyPatch, server: NodeServer, client: NetworkNodeClient
) -> None:
    await add(client, KEY, make_block(0))
    assert client._link is not None and client._link._transport is not None
    client._link._transport.pause_reading()  # nothing is heard on it any more
    with monkeypatch.context() as quick:
        quick.setattr(node_client, "REQUEST_SECONDS", 1.0)
        with pytest.raises(DeadlineExceeded):
            await client.list_blocks(KEY, 0, 9)

    assert await client.list_blocks(KEY, 0, 9) == [(0, 1)]


async def test_a_lost_connection_fails_its_adds_and_is_made_again(
    tmp_path: Path, metadata: MemoryMetadata
) -> None:
    where: list[Address] = []
    async with TcpProxy(lambda: where[-1] if where else None) as link:  # one address for both lives
        async with serving(tmp_path / "n1", metadata) as server:
            where.append(Address(server.info.host, server.info.port))
            info = replace(server.info, port=link.address.port)
            client = NetworkNodeClient(info, token=server.listener.token)
            assert await add(client, KEY, make_block(0)) is None
        where.clear()
        assert isinstance(await add(client, KEY, make_block(1)), Unavailable)
        async with serving(tmp_path / "n1", metadata) as server:
            assert server.info.id == info.id
            where.append(Address(server.info.host, server.info.port))
            await until(lambda: was_added(client, make_block(1)))
            assert await client.list_blocks(KEY, 0, 9) == [(0, 2)]
            client.close()
            assert isinstance(await add(client, KEY, make_block(2)), Unavailable)


# ---- strangers


@dataclass(frozen=True)
class Said:
    """What is sent after a challenge: a hello with its proof, between other bytes."""

    hello: n.NodeHello
    token: str
    before: bytes = b""
    after: bytes = b""

    def data(self, nonces: Nonces) -> bytes:
        head = n.encode_node_message(self.hello)
        proof = prove_client(self.token, nonces, self.hello.KIND, head)
        frame = encode_frame(self.hello.KIND, 1, head, len(proof)) + proof
        return self.before + frame + self.after


def hello(
    server: NodeServer,
    *,
    token: str | None = None,
    before: bytes = b"",
    after: bytes = b"",
    **fields: str,
) -> Said:
    message = replace(n.NodeHello("n1", server.info.cookie), **fields)
    shown = server.listener.token if token is None else token
    return Said(message, shown, before, after)


async def challenge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Nonces:
    nonce = bytes(NONCE_BYTES)
    writer.write(encode_frame(m.Meet.KIND, 9, m.encode_message(m.Meet(nonce))))
    header = await reader.readexactly(FRAME_HEADER_BYTES)
    head = await reader.readexactly(struct.unpack_from("<I", header, 8)[0])
    answer = n.decode_node_message(header[3], head)
    assert isinstance(answer, m.Challenge)
    return Nonces(nonce, answer.nonce)


async def exchange(server: NodeServer, data: bytes | Said) -> bytes:
    """All that the node says before it closes the connection."""
    reader, writer = await asyncio.open_connection(server.info.host, server.info.port)
    try:
        if isinstance(data, Said):
            data = data.data(await challenge(reader, writer))
        writer.write(data)
        answer = b""
        try:
            async with asyncio.timeout(20):
                while piece := await reader.read(2**20):
                    answer += piece
        except TimeoutError:
            return b"(open)"
        except ConnectionError:
            pass
        return answer
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass


async def test_strangers_learn_nothing_and_change_nothing(
    server: NodeServer, client: NetworkNodeClient
) -> None:
    await add(client, KEY, make_block(0))
    header = struct.Struct("<HBBIIII")
    fence = n.encode_node_message(n.FenceSegment("main", 0, 9))
    right, wrong = server.listener.token, "0" * 64
    for data in (
        b"\x16\x03\x01\x00\xf8" + bytes(200),
        b"SSH-2.0-x\r\n" * 20,
        os.urandom(300),
        header.pack(0x4B50, 1, 64, 1, 2**31, 0, 0),
        header.pack(0x4B50, 9, 64, 1, 10, 0, 0) + bytes(10),
        encode_frame(64, 1, bytes(PREAUTH_FRAME_BYTES_MAX)),
        encode_frame(64, 1, bytes(8), 32) + bytes(32),
        encode_frame(m.Meet.KIND, 1, bytes(8)),
        hello(server, before=encode_frame(64, 1, b"\xff" * 8)),
        hello(server, token=wrong),
        hello(server, token=""),
        hello(server, token=wrong, after=encode_frame(n.FenceSegment.KIND, 1, fence)),
        hello(server, name="n2"),
        hello(server, cookie="feedfeedfeedfeed"),
        hello(server, before=encode_frame(n.FenceSegment.KIND, 1, fence)),
        hello(server, after=encode_frame(200, 2, b"")),
        hello(server, after=encode_frame(n.FenceSegment.KIND, 2, fence[:-1])),
        hello(server, after=encode_frame(n.AddBlock.KIND, 2, b"\xff" * 40)),
    ):
        answer = await exchange(server, data)
        assert answer != b"(open)", data
        assert right.encode() not in answer
    assert server.metrics.unauthorized >= 3 and server.metrics.bad_frames >= 8
    # Nobody was fenced, and the connection from before still works.
    assert await add(client, KEY, make_block(1)) is None


@pytest.mark.parametrize(
    "message",
    [
        n.FenceSegment("../etc", 0, 9),
        n.FenceSegment("", 0, 9),
        n.ReadBlocks("main", 2**63, 0, 0, 0, 1, 0, 0),
        n.ReadBlocks("main", 0, 7, 0, 0, 1, 0, 0),
        n.ListBlocks("Main", 0, 0, 0, 9),
        n.BlockAdded(),
    ],
)
async def test_requests_that_make_no_sense_are_refused(
    tmp_path: Path, message: n.NodeMessage, server: NodeServer, client: NetworkNodeClient
) -> None:
    with pytest.raises(BadRequest):
        await client._ask(message, n.NodeStatus, 5)
    names = sorted(path.name for path in (tmp_path / "n1" / "segments").iterdir())
    assert names == ["identity.json"]


async def test_a_connection_without_a_cookie_is_for_the_status_only(server: NodeServer) -> None:
    async with client_of(server, "") as client:
        assert (await client.status())["name"] == "n1"
        assert isinstance(await add(client, KEY, make_block(0)), BadRequest)
        for call in (client.fence(KEY, 1), client.read(KEY, 0)):
            with pytest.raises(BadRequest):
                await call


async def test_metrics_need_the_token(server: NodeServer, client: NetworkNodeClient) -> None:
    await add(client, KEY, make_block(0))
    ask = b"GET /metrics HTTP/1.1\r\nAuthorization: Bearer %s\r\n\r\n"
    right = await exchange(server, ask % server.listener.token.encode())
    assert b"200 OK" in right and b"penstock_node_written_records_total 1" in right
    assert right.endswith(b"# EOF\n")
    assert b"401" in await exchange(server, ask % b"wrong")
    assert b"401" in await exchange(server, b"GET /metrics HTTP/1.1\r\n\r\n")
    elsewhere = ask.replace(b"/metrics", b"/etc") % server.listener.token.encode()
    assert b"404" in await exchange(server, elsewhere)


def test_listening_beyond_loopback_needs_tls(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="needs TLS"):
        NodeConfig("n1", tmp_path, host="0.0.0.0").validate()
    with pytest.raises(BadConfig, match="not the name"):
        NodeConfig("../n1", tmp_path).validate()


# ---- flushes, damage, giving up


async def test_blocks_are_flushed_and_journals_dropped(
    tmp_path: Path, metadata: MemoryMetadata
) -> None:
    journals = tmp_path / "n1" / "journal"
    async with (
        serving(tmp_path / "n1", metadata, journal_bytes=SMALL_JOURNAL) as server,
        client_of(server) as client,
    ):
        await add(client, KEY, make_block(0, durable_block=0))
        assert await client.fence(SegmentKey("fenced", 3), 8)
        await fill(client, "filler", journals=3)
        await until(lambda: len(list(journals.glob("journal-*"))) <= 2)
        assert (tmp_path / "n1" / "segments" / file_name(KEY)).exists()
        assert bytes((await client.read(KEY, 0, durable_block=1)).data) == make_block(0)
        filler = SegmentKey("filler", 0)
        at, size = 0, 0
        while (read := await client.read(filler, at, durable_block=999)).data:
            size += len(read.data)
            at += len(read.data) // len(make_block(0, bytes(512 * KIB)))
        assert size > 3 * SMALL_JOURNAL
        assert await add(client, filler, make_block(0)) is not None
    async with serving(tmp_path / "n1", metadata) as server, client_of(server) as client:
        assert bytes((await client.read(KEY, 0, durable_block=1)).data) == make_block(0)
        late = make_block(0, segment=3)
        assert isinstance(await add(client, SegmentKey("fenced", 3), late, epoch=7), Fenced)
        assert len(await client.list_blocks(filler, 0, 999)) == 1


async def test_a_flip_in_a_segment_file_is_never_shown_and_never_denied(
    tmp_path: Path, server: NodeServer, client: NetworkNodeClient
) -> None:
    for number in range(3):
        await add(client, KEY, make_block(number))
    await fill(client, "filler", journals=2)
    path = tmp_path / "n1" / "segments" / file_name(KEY)
    await until(lambda: path.exists() and not server.owner.store._parts[KEY].memory)
    flip_bit(path, len(make_block(0)) + 120)

    first = await client.read(KEY, 0, durable_block=9)
    assert bytes(first.data) == make_block(0)
    assert (await client.read(KEY, 1, durable_block=9)).found is Found.UNKNOWN
    assert (await client.read(KEY, 7, durable_block=9)).found is Found.ABSENT
    assert server.metrics.damaged_blocks == 1
    assert await add(client, KEY, make_block(1)) is None  # repaired by somebody
    assert bytes((await client.read(KEY, 1, durable_block=2)).data) == make_block(1)


async def test_a_segment_file_that_is_gone_is_told_at_the_start(
    tmp_path: Path, metadata: MemoryMetadata
) -> None:
    data_dir = tmp_path / "n1"
    path = data_dir / "segments" / file_name(KEY)
    settings: dict[str, Any] = {"journal_bytes": SMALL_JOURNAL}
    async with serving(data_dir, metadata, **settings) as server, client_of(server) as client:
        for number in range(3):
            assert await add(client, KEY, make_block(number)) is None
        await fill(client, "filler", journals=3)
        await until(lambda: path.exists() and 0 not in server.owner.journal.numbers)
        cookie = server.identity.cookie
    path.unlink()

    async with serving(data_dir, metadata, **settings) as server, client_of(server) as client:
        assert server.identity.cookie == cookie
        (words,) = (await client.status())["problems"]
        assert words == (
            "segment 0 of log main: its file is gone: blocks below 3 that are not here are unknown"
        )
        for block in range(4):
            recovery = await client.read(KEY, block, fence_epoch=2)
            assert recovery.found is (Found.UNKNOWN if block < 3 else Found.ABSENT)
        assert await add(client, KEY, make_block(1), epoch=2) is None
        assert bytes((await client.read(KEY, 1, durable_block=2)).data) == make_block(1)


@pytest.mark.parametrize("log", ["a__b", "a_"])
async def test_logs_of_all_legal_names_are_flushed(
    tmp_path: Path, server: NodeServer, client: NetworkNodeClient, log: str
) -> None:
    key = SegmentKey(log, 0)
    assert await add(client, key, make_block(0)) is None
    await fill(client, "filler", journals=2)

    await until(lambda: (tmp_path / "n1" / "segments" / file_name(key)).exists())
    assert bytes((await client.read(key, 0, durable_block=1)).data) == make_block(0)


@pytest.mark.parametrize("damage", [False, True])
async def test_a_part_whose_file_cannot_be_used_fails_alone_and_loses_nothing(
    tmp_path: Path, metadata: MemoryMetadata, damage: bool
) -> None:
    """Also if the journal is damaged, and is brought into files before anything else."""
    data_dir = tmp_path / "n1"
    settings: dict[str, Any] = {"journal_bytes": SMALL_JOURNAL}
    async with serving(data_dir, metadata, **settings) as server, client_of(server) as client:
        assert await add(client, KEY, make_block(0)) is None
        assert await add(client, SegmentKey("other", 0), make_block(0)) is None
        old = server.info.cookie
    if damage:
        journal = data_dir / "journal" / "journal-0000000000"
        flip_bit(journal, 60)
        flip_bit(journal, end_of(journal, make_block(0)) + 20)
    in_the_way = data_dir / "segments" / file_name(KEY)
    in_the_way.mkdir()

    async with serving(data_dir, metadata, **settings) as server, client_of(server) as client:
        assert (server.info.cookie != old) == damage
        await fill(client, "filler", journals=3)
        await until(lambda: 0 not in server.owner.journal.numbers)
        with pytest.raises(Unavailable, match="cannot be used"):
            await client.read(KEY, 0, durable_block=1)
        assert isinstance(await add(client, KEY, make_block(1)), Unavailable)
        (words,) = (await client.status())["problems"]
        assert "segment 0 of log main" in words and "cannot be used" in words
        other = await client.read(SegmentKey("other", 0), 0, durable_block=1)
        assert bytes(other.data) == make_block(0)
        await until(lambda: server.owner.store.memory_bytes < SMALL_JOURNAL)
    in_the_way.rmdir()

    async with serving(data_dir, metadata, **settings) as server, client_of(server) as client:
        assert bytes((await client.read(KEY, 0, durable_block=1)).data) == make_block(0)
        assert await add(client, KEY, make_block(1)) is None
        assert (await client.status())["problems"] == []


async def test_a_file_that_cannot_be_removed_stays_and_all_else_goes_on(
    tmp_path: Path, metadata: MemoryMetadata
) -> None:
    store = metadata.session()
    await store.create("/logs/main", manifest(1))
    in_the_way = tmp_path / "n1" / "segments" / file_name(KEY)
    in_the_way.mkdir(parents=True)

    async with serving(tmp_path / "n1", metadata) as server, client_of(server) as client:
        await until(lambda: bool(server.owner.problems(9)))
        assert "cannot be removed" in (await client.status())["problems"][0]
        assert await add(client, SegmentKey("main", 1), make_block(0, segment=1)) is None
    await store.close()


def manifest(first_segment: int) -> bytes:
    return encode_log_manifest(
        LogManifest(b"x" * 16, Epoch(1), "owner", Lsn(0), SegmentId(first_segment), ())
    )


async def test_segments_are_given_up_only_when_a_manifest_says_so(
    tmp_path: Path, metadata: MemoryMetadata, client: NetworkNodeClient
) -> None:
    """R40: a missing, unreadable or unreachable manifest means nothing."""
    store = metadata.session()
    keys = [SegmentKey(log, segment) for log in "ab" for segment in range(3)]

    def kept() -> list[SegmentKey]:
        return [key for key in keys if (tmp_path / "n1" / "segments" / file_name(key)).exists()]

    for key in keys:
        assert await add(client, key, make_block(0, segment=key.segment)) is None
    await fill(client, "filler", journals=2)
    await until(lambda: kept() == keys)
    await store.create("/logs/a", b"not a manifest")
    await asyncio.sleep(0.2)
    assert kept() == keys

    await store.set("/logs/a", manifest(2), 0)
    await until(lambda: not any(key in kept() for key in keys[:2]))
    assert kept() == keys[2:]
    assert isinstance(await add(client, keys[0], make_block(1), epoch=99), Fenced)
    await store.delete("/logs/a")
    await asyncio.sleep(0.2)
    assert kept() == keys[2:]
    await store.close()


# ---- the cluster's metadata


async def test_a_lost_session_is_followed_by_another_and_serving_goes_on(
    tmp_path: Path, metadata: MemoryMetadata
) -> None:
    sessions: list[MemorySession] = []
    async with (
        serving(tmp_path / "n1", metadata, sessions=sessions, trim_seconds=60.0) as server,
        client_of(server) as client,
    ):
        assert "/nodes/n1" in metadata.paths()
        sessions[0].expire()
        assert "/nodes/n1" not in metadata.paths()
        assert await add(client, KEY, make_block(0)) is None
        await until(lambda: "/nodes/n1" in metadata.paths())
        assert len(sessions) == 2
    assert "/nodes/n1" not in metadata.paths()
    assert all(session.is_ended for session in sessions)


async def test_a_node_registers_over_its_own_former_life_but_waits_for_anothers(
    tmp_path: Path, metadata: MemoryMetadata
) -> None:
    async with serving(tmp_path / "n1", metadata) as server:
        info = server.info
    left = metadata.session()
    own = encode_node_info(info)
    await left.create("/nodes/n1", own, ephemeral=True)
    async with serving(tmp_path / "n1", metadata):
        assert metadata.paths()["/nodes/n1"].data != own  # another port
    other = encode_node_info(replace(info, cookie="feedfeedfeedfeed"))
    await left.create("/nodes/n1", other, ephemeral=True)
    starting = asyncio.create_task(start_and_stop(tmp_path / "n1", metadata))
    await asyncio.sleep(0.3)
    assert metadata.paths()["/nodes/n1"].data == other
    await left.close()
    await starting


async def start_and_stop(data_dir: Path, metadata: MemoryMetadata) -> None:
    async with serving(data_dir, metadata):
        assert "/nodes/n1" in metadata.paths()


async def test_nodes_come_go_and_drain(tmp_path: Path, metadata: MemoryMetadata) -> None:
    session = metadata.session()
    changes: list[int] = []
    async with serving(tmp_path / "n1", metadata) as one:
        nodes = NetworkNodes(session, token=one.listener.token, delay=lambda info: 0.02)
        nodes.watch(lambda: changes.append(1))
        await nodes.start()
        assert list(nodes.alive()) == [one.info.id]
        client = nodes.client(one.info.id)
        assert client is not None and client is nodes.client(one.info.id)
        started = time.monotonic()
        await client.read(KEY, 0)
        await client.read(KEY, 0)
        assert time.monotonic() - started > 0.1  # the connection and two round trips
        async with serving(tmp_path / "n2", metadata, "n2") as two:
            await until(lambda: len(nodes.alive()) == 2)
            await session.create("/draining/n2", b"")
            await until(lambda: nodes.alive()[two.info.id].draining)
        await until(lambda: list(nodes.alive()) == [one.info.id])
        assert nodes.client(two.info.id) is None
        assert changes
    await until(lambda: not nodes.alive())
    assert isinstance(await add(client, KEY, make_block(0)), PenstockError)
    await nodes.close()
    await session.close()


# ---- many logs


async def test_a_thousand_logs_need_few_descriptors_and_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metadata: MemoryMetadata
) -> None:
    monkeypatch.setattr(segment_store, "FILE_CACHE_COUNT", 32)
    monkeypatch.setattr(segment_store, "PARTS_MAX", 200)

    settings: dict[str, Any] = {"journal_bytes": SMALL_JOURNAL, "trim_seconds": 60.0}
    keys = [SegmentKey(f"log_{number}", 0) for number in range(1000)]
    body = os.urandom(4 * KIB)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with serving(tmp_path / "n1", metadata, **settings) as server:
        descriptors = len(os.listdir("/proc/self/fd"))
        async with client_of(server) as client:
            for block in range(4):
                blocks = [(key, make_block(block, body)) for key in keys]
                assert set(await add_all(client, blocks)) == {None}
            await until(lambda: len(server.owner.store._parts) <= 400)
            for key in keys[::7]:
                read = await client.read(key, 0, durable_block=4)
                assert bytes(read.data) == b"".join(make_block(b, body) for b in range(4))
            assert len(os.listdir("/proc/self/fd")) < descriptors + 50
            assert server.owner.store.open_files <= 32
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * KIB < 150 * MIB
    async with (
        serving(tmp_path / "n1", metadata, **settings) as server,
        client_of(server) as client,
    ):
        for key in keys[::50]:
            assert await client.list_blocks(key, 0, 9) == [(0, 4)]
            assert await add(client, key, make_block(4, body)) is None


@pytest.fixture
def one_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_owner, "UNFLUSHED_JOURNALS_MAX", 1)


@pytest.mark.usefixtures("one_journal")
async def test_a_writer_waits_when_flushes_do_not_keep_up(
    server: NodeServer, client: NetworkNodeClient
) -> None:
    owner = server.owner
    flush_all = owner.store.flush_all
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(work: Any) -> Any:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(30)
        return flush_all(work)

    owner.store.flush_all = slow  # type: ignore[method-assign]
    filling = asyncio.create_task(fill(client, "filler", journals=12))
    try:
        await until(lambda: bool(server.full))
        await asyncio.sleep(0.1)
        assert owner.store.memory_bytes < SMALL_JOURNAL + 12 * MIB
        assert not filling.done()
    finally:
        gate.set()
    await filling


async def test_a_writer_goes_on_after_a_flush_that_found_nothing(
    server: NodeServer, client: NetworkNodeClient
) -> None:
    """A trim made room, and a flush had nothing left to do."""
    assert await add(client, KEY, make_block(0)) is None
    await server.owner.flush()
    (connection,) = server.listener.connections
    connection.halt(node_requests.UNFLUSHED)
    server.full[connection] = None

    await server.owner.flush()

    assert await add(client, KEY, make_block(1)) is None


async def test_a_client_bounds_what_is_unanswered_and_refuses_nothing(
    server: NodeServer, client: NetworkNodeClient
) -> None:
    block = make_block(0, bytes(4 * MIB))
    for connected in (False, True):
        assert await add_all(client, [(KEY, block)] * 12) == [None] * 12, connected
        assert server.listener.inflight_bytes == 0


async def test_a_crowded_node_reads_no_more_and_refuses_nothing(
    server: NodeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_requests, "SERVER_INFLIGHT_BYTES_MAX", 256 * KIB)

    body = os.urandom(100 * KIB)
    most = 0
    halted = ServerConnection.halt

    def halt(connection: ServerConnection, cause: str) -> None:
        nonlocal most
        most = max(most, server.listener.inflight_bytes)
        halted(connection, cause)

    monkeypatch.setattr(ServerConnection, "halt", halt)
    async with client_of(server) as one, client_of(server) as two:
        blocks = [(KEY, make_block(number, body)) for number in range(20)]
        outcomes = await asyncio.gather(add_all(one, blocks), add_all(two, blocks))
    assert outcomes == [[None] * 20] * 2
    assert 256 * KIB < most < MIB
    assert not server.crowded and server.listener.inflight_bytes == 0


async def test_a_port_that_is_taken_is_said_clearly(
    tmp_path: Path, metadata: MemoryMetadata
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Unavailable, match="cannot listen"):
            async with serving(tmp_path / "n1", metadata, port=taken.getsockname()[1]):
                pass
