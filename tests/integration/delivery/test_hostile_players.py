"""What a host of targets does with what no player says: a typed error, and nobody is hurt."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from harness.async_tests import async_fixture
from harness.delivery_targets import MemoryTarget
from harness.remote_targets import SCHEMA, RemotePlayer, rows, serving
from harness.waiting import until

from penstock.delivery.remote import frames_server, grpc_server
from penstock.delivery.remote.frames_server import TargetServer
from penstock.delivery.remote.grpc_messages import METHOD, FromPlayer, FromTarget, Hello
from penstock.delivery.remote.grpc_server import GrpcTargetServer
from penstock.delivery.remote.row_parts import encode_rows
from penstock.errors import BadFormat, BadRequest, PenstockError, TooLarge
from penstock.limits import PREAUTH_FRAME_BYTES_MAX
from penstock.log.handshake import ask_with_proof
from penstock.log.pairing import PairedConnection
from penstock.log.serving.directory import read_token
from penstock.stream.schema import encode_schema
from penstock.wire import target_messages as t
from penstock.wire.frames import encode_frame
from penstock.wire.messages import Hello as LogHello
from penstock.wire.messages import Ping, Pong
from penstock.wire.proof import Nonces, prove_client

Link = PairedConnection[t.TargetMessage]


class Played:
    """A host with two targets, of which the first hangs if asked to, and a good player on both."""

    def __init__(self, server: Any, targets: list[MemoryTarget], directory: Path) -> None:
        self.server = server
        self.targets = targets
        self.directory = directory
        self.token = read_token(directory / "token")
        self.player: RemotePlayer

    async def check_alive(self) -> None:
        """The good player notices nothing."""
        position = self.targets[1].position or 0
        self.player.apply(1, position, position + 1, rows(position))
        await until(lambda: self.player.acks(1)[-1:] == [position + 1])


async def _played(protocol: str, tmp_path: Path) -> AsyncIterator[Played]:
    targets = [MemoryTarget(), MemoryTarget()]
    async with serving(protocol, targets, tmp_path) as server:
        played = Played(server, targets, tmp_path)
        address = server.address
        async with RemotePlayer(protocol, address, tmp_path, shards=2) as played.player:
            await played.player.open(1)
            yield played
            for target in targets:
                target.runs.set()


@async_fixture
async def framed(tmp_path: Path) -> AsyncIterator[Played]:
    async for played in _played("target", tmp_path):
        yield played


@async_fixture
async def called(tmp_path: Path) -> AsyncIterator[Played]:
    async for played in _played("grpc", tmp_path):
        yield played


# ---- frames


async def connect(played: Played) -> tuple[Link, list[t.TargetMessage]]:
    """With the token, as a player of another name."""
    heard: list[t.TargetMessage] = []
    loop = asyncio.get_running_loop()
    address = played.server.address
    _, link = await loop.create_connection(
        lambda: PairedConnection(
            t.encode_target_message,
            t.decode_target_message,
            unasked=lambda message, body: heard.append(message),
        ),
        address.host,
        address.port,
    )
    welcome = await ask_with_proof(link, 1, t.TargetHello("hostile"), played.token)
    assert welcome == t.TargetWelcome(2)
    return link, heard


def opening(**changes: Any) -> t.OpenTarget:
    fields: dict[str, Any] = {
        "target": 0, "connection": 1, "term": 1, "delivery": "h", "shard": 0, "shards": 1,
        "start": 0, "schema": encode_schema(SCHEMA), "changing": False, "key": (), "table": "t",
        "strict": False,
    }  # fmt: skip
    return t.OpenTarget(**{**fields, **changes})


def post(link: Link, message: t.TargetMessage, body: bytes = b"") -> None:
    link.post(message.KIND, t.encode_target_message(message), [body] if body else [])
    link.flush()


def parts(*parts: t.Part) -> t.ApplyParts:
    return t.ApplyParts(t.encode_parts(parts))


GOOD = bytes(encode_rows([rows(1)])[0])
SIZE = len(GOOD)


@pytest.mark.parametrize(
    ("message", "body", "error"),
    [
        (t.ApplyParts(b"x" * 31), b"", BadFormat),
        (parts(t.Part(0, 1, 0, 1, SIZE + 1, True)), GOOD, BadFormat),
        (parts(t.Part(0, 1, 0, 1, 0, True)), GOOD, BadFormat),
        (parts(t.Part(0, 1, 0, 1, SIZE, 2)), GOOD, BadFormat),  # type: ignore[arg-type]
        (parts(t.Part(0, 1, 1, 1, SIZE, True)), GOOD, BadFormat),
        (parts(t.Part(0, 1, 0, 2**63, SIZE, True)), GOOD, BadFormat),
        (parts(t.Part(1, 1, 0, 1, SIZE, True)), GOOD, BadRequest),
        (parts(t.Part(77, 1, 0, 1, SIZE, True)), GOOD, BadRequest),
        (
            parts(t.Part(0, 1, 0, 1, SIZE, False), t.Part(0, 1, 1, 2, SIZE, True)),
            GOOD * 2,
            BadFormat,
        ),
        (t.TargetAcks(b""), b"", BadRequest),
        (t.TargetHello("again"), b"", BadRequest),
    ],
)
async def test_a_frame_that_makes_no_sense_closes_its_connection_only(
    framed: Played, message: t.TargetMessage, body: bytes, error: type[PenstockError]
) -> None:
    link, heard = await connect(framed)
    post(link, opening())
    await until(lambda: heard)
    post(link, message, body)

    assert type(await link.closed) is error
    await framed.check_alive()
    assert framed.targets[0].rows == []
    assert framed.server.metrics.bad_frames == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": b"no schema"},
        {"schema": os.urandom(500)},
        {"shards": 0},
        {"shard": 3},
        {"shards": 2**40, "shard": 2**39},
        {"key": ("nope",)},
        {"table": ""},
        {"delivery": ""},
        {"start": 2**63},
        {"changing": True},
    ],
)
async def test_an_opening_that_makes_no_sense_is_refused(
    framed: Played, changes: dict[str, Any]
) -> None:
    link, heard = await connect(framed)
    post(link, opening(**changes))
    await until(lambda: heard)
    post(link, Ping())
    await until(lambda: len(heard) == 2)

    assert isinstance(heard[0], t.TargetFailed)
    assert heard[1] == Pong()
    assert framed.targets[0].opens == 0
    link.close()


@pytest.mark.parametrize("body", [b"x", GOOD[:-8], GOOD + bytes(8), os.urandom(SIZE)])
async def test_rows_that_are_none_fail_their_batch_only(framed: Played, body: bytes) -> None:
    link, heard = await connect(framed)
    post(link, opening())
    post(link, parts(t.Part(0, 1, 0, 1, len(body), True)), body)
    await until(lambda: len(heard) == 2)

    answer = heard[1]
    if body == GOOD + bytes(8):  # Arrow reads what it needs
        assert isinstance(answer, t.TargetAcks)
    else:
        assert isinstance(answer, t.TargetFailed)
        assert framed.targets[0].rows == []
    await framed.check_alive()
    link.close()


async def test_a_batch_without_an_end_is_bounded(
    framed: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames_server, "BATCH_BYTES_MAX", 10 * SIZE)
    link, heard = await connect(framed)
    post(link, opening())
    for _ in range(10):
        post(link, parts(t.Part(0, 1, 0, 1, SIZE, False)), GOOD)
    post(link, Ping())
    await until(lambda: Pong() in heard)
    post(link, parts(t.Part(0, 1, 0, 1, SIZE, False)), GOOD)

    assert type(await link.closed) is TooLarge
    await framed.check_alive()


async def test_a_flood_for_a_target_that_hangs_is_held_back(
    framed: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sender is not read on; who is connected besides it is."""
    monkeypatch.setattr(frames_server, "HELD_BYTES_MAX", 1_000_000)
    server: TargetServer = framed.server
    framed.targets[0].runs.clear()
    link, heard = await connect(framed)
    post(link, opening())
    await until(lambda: heard)
    post(link, parts(t.Part(0, 1, 0, 1, SIZE, True)), GOOD)  # hangs
    filler = bytes(10_000)
    for number in range(3000):
        post(link, parts(t.Part(0, 1, number, number + 1, len(filler), True)), filler)
        post(link, t.CloseTarget(0, 99))
    await until(lambda: server.held_bytes > 1_000_000)
    await framed.check_alive()
    for _ in range(20):
        await asyncio.sleep(0.01)
        # What one read brings may come on top of it.
        assert server.held_bytes < 2_500_000
    link.close()
    framed.targets[0].runs.set()
    await until(lambda: server.held_bytes == 0)


async def test_before_the_token_nothing_is_done(framed: Played) -> None:
    address = framed.server.address
    large = encode_frame(t.OpenTarget.KIND, 1, b"x", PREAUTH_FRAME_BYTES_MAX + 1)
    hello = t.encode_target_message(t.TargetHello("p"))
    for data, told in (
        (os.urandom(64), b"not a Penstock frame"),
        (large, b"before a token was shown"),
        (encode_frame(t.TargetHello.KIND, 1, hello), b"no challenge was asked for"),
        (encode_frame(LogHello.KIND, 1, b""), b"no challenge was asked for"),
        (encode_frame(t.OpenTarget.KIND, 1, t.encode_target_message(opening())), b"token"),
    ):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(data)
        assert told in await reader.read()
        writer.close()
        await writer.wait_closed()
    assert framed.targets[0].opens == 0
    await framed.check_alive()


async def test_metrics_are_shown_to_who_has_the_token(framed: Played) -> None:
    address = framed.server.address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(f"GET /metrics HTTP/1.1\r\nauthorization: bearer {framed.token}\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()

    assert "penstock_target_openings_total 1" in text
    assert "penstock_target_targets 2" in text


# ---- gRPC


def hello(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "target": 0, "delivery": "h", "shards": 1, "schema": encode_schema(SCHEMA), "table": "t",
    }  # fmt: skip
    encoded: bytes = Hello(**{**fields, **changes}).SerializeToString()
    return encoded


async def call(played: Played, said: list[bytes], *, token: str, opening: bytes) -> Any:
    """Begin a call, say the rest, and give back its status when it has ended."""
    address = played.server.address
    async with grpc.aio.insecure_channel(f"{address.host}:{address.port}") as channel:
        stream = channel.stream_stream(METHOD)()
        nonce = bytes(32)
        await stream.write(FromPlayer(meet={"nonce": nonce}).SerializeToString())
        challenge = FromTarget.FromString(await stream.read()).challenge
        proof = prove_client(token, Nonces(nonce, challenge.nonce), t.TargetHello.KIND, opening)
        first = FromPlayer(open={"hello": opening, "proof": proof}).SerializeToString()
        heard = []
        try:
            for data in (first, *said):
                await stream.write(data)
            while (data := await stream.read()) is not grpc.aio.EOF:
                heard.append(FromTarget.FromString(data))
        except grpc.aio.AioRpcError:
            pass
        return heard, await stream.code(), await stream.details()


def batch(after: int, upto: int, data: bytes = GOOD, **more: Any) -> bytes:
    said = FromPlayer(batch={"after": after, "upto": upto, "rows": data, **more})
    encoded: bytes = said.SerializeToString()
    return encoded


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([b"\xff\xff\xff"], "not a FromPlayer"),
        ([b""], "batches only"),
        ([FromPlayer(meet={"nonce": bytes(32)}).SerializeToString()], "batches only"),
        ([batch(1, 1)], "a batch from LSN 1 to 1"),
        ([batch(0, 2**63)], "a batch from LSN"),
        ([batch(0, 1, continues=True), batch(1, 2)], "a batch from LSN 1 to 2"),
    ],
)
async def test_a_call_that_makes_no_sense_is_ended_and_no_other(
    called: Played, said: list[bytes], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, code, details = await call(called, said, token=called.token, opening=hello())

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert words in details
    assert called.targets[0].rows == []
    await called.check_alive()
    assert not [one for one in caplog.records if one.exc_info or one.levelno > logging.WARNING]


@pytest.mark.parametrize(
    ("opening", "words"),
    [
        (b"\xff\xff", "not a Hello"),
        (hello(schema=b"none"), "schema"),
        (hello(shard=4), "shard 4 of 1"),
        (hello(key=["nope"]), "nope"),
    ],
)
async def test_a_call_that_opens_nonsense_is_ended(
    called: Played, opening: bytes, words: str
) -> None:
    _, code, details = await call(called, [], token=called.token, opening=opening)

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert words in details
    assert called.targets[0].opens == 0
    await called.check_alive()


async def test_a_call_without_the_token_reaches_no_target(called: Played) -> None:
    _, code, _ = await call(called, [], token="f" * 64, opening=hello())

    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert called.targets[0].opens == 0
    await called.check_alive()


async def test_rows_of_a_call_that_are_none_are_refused(called: Played) -> None:
    heard, code, _ = await call(
        called, [batch(0, 1, b"none"), batch(1, 2)], token=called.token, opening=hello()
    )

    assert code is grpc.StatusCode.OK
    assert [one.WhichOneof("message") for one in heard] == ["at", "refused"]
    assert called.targets[0].rows == []
    await called.check_alive()


async def test_a_call_whose_target_hangs_is_not_read_on(
    called: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "CALL_BYTES_MAX", 100_000)
    server: GrpcTargetServer = called.server
    called.targets[0].runs.clear()
    flood = [batch(0, 1)]  # hangs
    flood += [batch(number, number + 1, bytes(50_000)) for number in range(1, 400)]
    task = asyncio.create_task(call(called, flood, token=called.token, opening=hello()))
    line = server.targets[0]._jobs
    await until(lambda: line.qsize() >= 2)
    for _ in range(20):
        await asyncio.sleep(0.01)
        assert line.qsize() <= 4
    await called.check_alive()
    called.targets[0].runs.set()
    await task

    assert [row["k"] for row in called.targets[0].rows] == [1]
