"""What a review found in the server's shells, each played on the real ones."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from harness.async_tests import async_fixture
from harness.served_log import served
from harness.threads import no_thread_is_left

from penstock.config import ServerConfig
from penstock.errors import (
    BadConfig,
    BadRequest,
    ChecksumMismatch,
    NotFound,
    PenstockError,
    Trimmed,
    Unavailable,
    Unknown,
)
from penstock.limits import CONNECTION_WAITING_MAX, SEGMENT_BYTES_MIN
from penstock.log.client.client import AsyncLog
from penstock.log.client.reader import AsyncReader
from penstock.log.core.sequencer import OldDuplicate
from penstock.log.core.state import LogState
from penstock.log.embedded import directory_endpoint
from penstock.log.records import NewEntry
from penstock.log.server import owner as owner_module
from penstock.log.server.server import LogServer
from penstock.log.serving import group_commit, served_log
from penstock.log.serving.connection import ServerConnection
from penstock.log.serving.log_metrics import LogMetrics
from penstock.log.serving.log_requests import LogRequests
from penstock.log.serving.process import EXIT_FATAL
from penstock.log.storage import log_storage
from penstock.log.storage.log_storage import LogStorage


@async_fixture
async def server(tmp_path: Path) -> AsyncIterator[LogServer]:
    async with served(ServerConfig(data_dir=tmp_path)) as log:
        yield log.server


@async_fixture
async def log(tmp_path: Path, server: LogServer) -> AsyncIterator[AsyncLog]:
    async with await AsyncLog.connect(directory_endpoint(tmp_path, start=False)) as log:
        yield log


def the_connection(server: LogServer) -> ServerConnection:
    (connection,) = server.listener.connections
    return connection


@pytest.mark.parametrize("kind", [NotFound, Trimmed, ChecksumMismatch])
async def test_a_retry_whose_group_cannot_be_looked_up_is_unknown_and_not_refused(
    monkeypatch: pytest.MonkeyPatch, kind: type[PenstockError], server: LogServer
) -> None:
    def fail(*_: object) -> None:
        raise kind("gone")

    monkeypatch.setattr(served_log, "find_group", fail)

    outcomes: list[object] = []
    old = OldDuplicate("p", 1, 0, 1)
    await server.owner._answer_old(outcomes.append, old)
    assert [type(outcome) for outcome in outcomes] == [Unknown]


async def test_a_connection_that_does_not_read_is_sent_nothing_more_until_it_does(
    tmp_path: Path, server: LogServer, log: AsyncLog
) -> None:
    async def next_payloads(reader: AsyncReader) -> list[bytes]:
        """Of the next batch that has any: a slow append lets one come that says "nothing"."""
        found: list[bytes] = []
        while not found:
            found = [entry.payload for entry in (await anext(reader)).entries]
        return found

    async with log.tail(["t"], start=0) as reader:
        await log.append([NewEntry(b"1", ("t",))])
        assert await next_payloads(reader) == [b"1"]
        connection = the_connection(server)
        connection.pause_writing()
        endpoint = directory_endpoint(tmp_path, start=False)
        async with await AsyncLog.connect(endpoint) as other:
            await other.append([NewEntry(b"2", ("t",))])
        assert server.owner.tails.behind == 1
        connection.resume_writing()
        assert await next_payloads(reader) == [b"2"]


async def test_a_connection_with_many_waiting_requests_is_not_read_until_most_are_answered(
    server: LogServer, log: AsyncLog
) -> None:
    connection, gate = the_connection(server), asyncio.Event()
    requests = cast(LogRequests, connection._requests)

    async def wait() -> None:
        await gate.wait()

    for number in range(CONNECTION_WAITING_MAX + 1):
        assert not connection.halts
        requests._later(number, wait)
    assert connection.halts == {"waiting requests"}
    gate.set()
    await log.bounds()
    assert not connection.halts


def test_a_background_task_that_fails_stops_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: LogStorage) -> list[int]:
        raise RuntimeError("a defect")

    monkeypatch.setattr(LogStorage, "unfinished", fail)
    with pytest.raises(Unavailable, match="a defect"):
        asyncio.run(LogServer(ServerConfig(data_dir=tmp_path)).run())


@pytest.fixture
def slow_housekeeping(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: owner_module.LogOwner) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(owner_module.LogOwner, "_keep_house", never)


@pytest.mark.usefixtures("slow_housekeeping")
async def test_notes_do_not_wait_for_slow_housekeeping(
    monkeypatch: pytest.MonkeyPatch, log: AsyncLog
) -> None:
    noted, note = threading.Event(), LogStorage.note

    def seen(self: LogStorage) -> None:
        note(self)
        noted.set()

    monkeypatch.setattr(LogStorage, "note", seen)

    await log.append([NewEntry(b"1")])
    assert await asyncio.to_thread(noted.wait, 60)


async def test_appends_go_on_while_the_snapshot_of_a_roll_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes, as with very many producers: nobody waits for it."""
    begun, goes_on, encode = threading.Event(), threading.Event(), log_storage.encode_snapshot

    def slowly(state: LogState, *, log_mark: int) -> bytes:
        begun.set()
        assert goes_on.wait(200)
        return encode(state, log_mark=log_mark)

    monkeypatch.setattr(log_storage, "encode_snapshot", slowly)
    monkeypatch.setattr(owner_module, "HOUSEKEEPING_SECONDS", 0.05)
    config = ServerConfig(tmp_path, segment_bytes=SEGMENT_BYTES_MIN)
    async with served(config) as beside, await beside.connect() as log:
        try:
            while not begun.is_set():
                await log.append([NewEntry(bytes(SEGMENT_BYTES_MIN // 4))])
            for _ in range(20):  # further rolls, too
                await log.append([NewEntry(bytes(SEGMENT_BYTES_MIN // 4))])
        finally:
            goes_on.set()


async def test_an_append_that_comes_while_a_note_is_written_is_answered_after_it(
    monkeypatch: pytest.MonkeyPatch, server: LogServer, log: AsyncLog
) -> None:
    """Written on the event loop, as on a fast disk, and no reader whose progress sends answers."""
    monkeypatch.setattr(group_commit, "INLINE_SECONDS", 60.0)
    begun, goes_on, note = threading.Event(), threading.Event(), LogStorage.note

    def slowly(self: LogStorage) -> None:
        begun.set()
        assert goes_on.wait(60)
        note(self)

    monkeypatch.setattr(LogStorage, "note", slowly)  # before there is anything to note
    await log.append([NewEntry(b"1")])
    assert await asyncio.to_thread(begun.wait, 60)
    appending = asyncio.ensure_future(log.append([NewEntry(b"2")]))
    while server.owner.sequencer.is_idle:
        await asyncio.sleep(0.001)
    goes_on.set()
    async with asyncio.timeout(60):
        await appending


async def test_hidden_tags_cannot_be_read(log: AsyncLog) -> None:
    await log.append([NewEntry(b"1", ("t",))])
    with pytest.raises(BadRequest, match="cannot be printed"):
        await log.read(["\x00p/producer"])
    with pytest.raises(BadRequest, match="cannot be printed"):
        await log.read_last("\x00p/producer")


def test_metrics_show_positions_exactly() -> None:
    text = LogMetrics().text({"tail_position": ("First unwritten LSN.", 123_456_789)})
    assert "penstock_tail_position 123456789\n" in text


def test_a_server_that_cannot_listen_says_where_and_leaves_nothing_open(tmp_path: Path) -> None:
    with no_thread_is_left(), socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"port {port}.*in use") as caught:
            asyncio.run(LogServer(ServerConfig(data_dir=tmp_path, port=port)).run())
    assert caught.value.__cause__ is None


def test_every_way_to_serve_a_taken_port_ends_with_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for expected, *command in (
            [5, "penstock.cli.main", "log", "serve", "--dir", str(tmp_path)],
            [EXIT_FATAL, "penstock.log.server", "--data-dir", str(tmp_path)],
        ):
            done = subprocess.run(
                [sys.executable, "-m", *map(str, command), "--port", port],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == expected, done.stderr
            assert f"port {port}: " in done.stderr.splitlines()[-1]
            assert "Traceback" not in done.stderr


def test_a_server_without_its_certificate_says_so_and_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("nothing")
    config = ServerConfig(
        data_dir=tmp_path / "data", tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "cert.pem"
    )
    with no_thread_is_left(), pytest.raises(BadConfig, match=r"cert\.pem"):
        asyncio.run(LogServer(config).run())


async def test_a_trim_above_the_tail_is_a_bad_request(log: AsyncLog) -> None:
    with pytest.raises(BadRequest, match="the tail is 0"):
        await log.trim(1)
