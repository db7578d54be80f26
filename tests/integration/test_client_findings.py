"""What a client does when its connection, its server or its process changes under it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from embedded_server import stop_server
from harness.served_log import served

from penstock.config import ServerConfig
from penstock.errors import GuardFailed, PenstockError, TooLarge, Unavailable
from penstock.ids import Lsn
from penstock.limits import CREDIT_BYTES_DEFAULT, FRAME_HEAD_BYTES_MAX
from penstock.log.client.blocking import BlockingLog
from penstock.log.client.client import AsyncLog, Endpoint
from penstock.log.client.connection import ClientAnswer, ClientConnection, make_connection
from penstock.log.client.reader import AsyncReader
from penstock.log.core.tails import FOREVER
from penstock.log.embedded import directory_endpoint
from penstock.log.records import Guard, Kind, NewEntry, Value
from penstock.wire import messages as m
from penstock.wire.errors import error_code
from penstock.wire.frames import encode_frame


class FakeConnection:
    """Keeps what a reader sends."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[PenstockError] = asyncio.get_running_loop().create_future()
        self.sent: list[m.Message] = []
        self.answers: dict[int, ClientAnswer] = {}

    def send(self, request: int, message: m.Message, answer: ClientAnswer | None = None) -> None:
        if self.closed.done():
            raise Unavailable("the connection is closed")
        self.sent.append(message)
        if answer is not None:
            self.answers[request] = answer

    def forget(self, request: int) -> None:
        self.answers.pop(request, None)

    def is_unanswered(self, request: int) -> bool:
        return request in self.answers

    def credit(self) -> int:
        """All that the server was given for the newest subscription."""
        credit = 0
        for message in self.sent:
            if isinstance(message, m.Subscribe):
                credit = message.credit
            elif isinstance(message, m.Credit):
                credit += message.bytes
        return credit


def reader_of(timeout: float = 30.0) -> AsyncReader:
    log = SimpleNamespace(timeout=timeout, forget_reader=lambda _: None)

    def renumber(reader: AsyncReader) -> None:
        reader.number += 1

    log.renumber_reader = renumber
    return AsyncReader(cast(Any, log), 1, None, start=Lsn(0), end=FOREVER)


def deliver(reader: AsyncReader, size: int) -> None:
    reader.delivered(m.Delivery(reader.number, reader.next_lsn + 1, False), memoryview(bytes(size)))


async def test_only_a_failure_of_request_0_ends_the_connection() -> None:
    class Transport:
        aborted = False

        def get_extra_info(self, name: str) -> None:
            """There is no socket."""

        def abort(self) -> None:
            self.aborted = True

    def receive(connection: ClientConnection, request: int, error: PenstockError) -> None:
        head = m.encode_message(m.Failed(error_code(error), str(error)))
        frame = bytes(encode_frame(m.Failed.KIND, request, head, 0))
        connection.get_buffer(-1)[: len(frame)] = frame
        connection.buffer_updated(len(frame))

    connection, transport = make_connection(lambda *_: None), Transport()
    connection.connection_made(cast(Any, transport))

    receive(connection, 7, Unavailable("too late"))
    assert not connection.closed.done()

    receive(connection, 0, Unavailable("go away"))
    assert str(await connection.closed) == "go away"
    assert transport.aborted


@pytest.mark.parametrize("held", [1, CREDIT_BYTES_DEFAULT - 10, CREDIT_BYTES_DEFAULT + 10])
async def test_a_reader_that_held_much_at_a_reconnection_has_its_whole_credit_again(
    held: int,
) -> None:
    reader = reader_of()
    reader.resume(cast(Any, FakeConnection()))
    half = held // 2
    deliver(reader, half)
    deliver(reader, held - half)

    connection = FakeConnection()
    reader.resume(cast(Any, connection))
    assert connection.credit() == max(CREDIT_BYTES_DEFAULT - held, 0)
    await reader.next_delivery()
    assert connection.credit() + held - half == CREDIT_BYTES_DEFAULT
    await reader.next_delivery()
    assert connection.credit() == CREDIT_BYTES_DEFAULT


async def test_a_subscription_that_is_given_up_again_and_again_fails_with_the_cause() -> None:
    reader, connection = reader_of(timeout=0.2), FakeConnection()
    reader.resume(cast(Any, connection))

    async def refuse() -> None:
        while True:
            for request in list(connection.answers):
                answer = connection.answers.pop(request)
                answer(Unavailable("the disk cannot be read"), memoryview(b""))
            await asyncio.sleep(0)

    refusing = asyncio.create_task(refuse())
    with pytest.raises(Unavailable, match="the disk cannot be read"):
        async with asyncio.timeout(20):
            await reader.next_delivery()
    refusing.cancel()
    assert sum(isinstance(message, m.Subscribe) for message in connection.sent) > 2


async def test_numbers_of_requests_that_begin_anew_are_none_that_are_in_use(
    tmp_path: Path,
) -> None:
    """After 2^32 requests they meet those of readers, and of requests that still wait."""
    log = AsyncLog(directory_endpoint(tmp_path, start=False), name="test", timeout=1.0)
    connection = FakeConnection()
    log._connection = cast(Any, connection)
    readers = [log.tail(start=0) for _ in range(3)]
    taken = {reader.number for reader in readers}
    connection.send(max(taken) + 2, m.GetBounds(), lambda *_: None)
    assert taken <= connection.answers.keys()
    taken = set(connection.answers)

    log._request = 2**32 - 3
    numbers = [log.next_request() for _ in range(2 * len(taken) + 4)]

    assert numbers[:2] == [2**32 - 2, 2**32 - 1]
    assert numbers[2:] == [n for n in range(2, 100) if n not in taken][: len(numbers) - 2]
    readers[0].resume(cast(Any, connection))
    assert readers[0].number not in taken | set(numbers)


@pytest.mark.parametrize("size", [-1, 0, 1])
async def test_guards_beyond_a_frame_are_refused_at_once_and_nobody_else_notices(
    tmp_path: Path, size: int
) -> None:
    """The server closed the connection for them, again and again, and for all of its users."""
    keys = [f"k{number}" for number in range(9)]
    room = FRAME_HEAD_BYTES_MAX - len(m.encode_message(m.Append(_guards(keys, 0), 0)))
    guards = _guards(keys, (room + size) // len(keys), (room + size) % len(keys))
    head = m.encode_message(m.Append(guards, 0))
    assert len(head) == FRAME_HEAD_BYTES_MAX + size
    async with (
        served(ServerConfig(data_dir=tmp_path)) as beside,
        await beside.connect() as log,
        await log.appender("large") as large,
        await log.appender("small") as small,
    ):
        connection = log.connection
        beside_it = small.append([NewEntry(b"1")])
        if size > 0:
            with pytest.raises(TooLarge, match="guards"):
                large.append_nowait([NewEntry(b"2")], guards=guards)
            with pytest.raises(TooLarge):
                await log.claim("claimed", guards=guards)
        else:
            with pytest.raises(GuardFailed):
                await large.append([NewEntry(b"2")], guards=guards)
        await beside_it
        await large.append([NewEntry(b"3")])
        assert log.connection is connection
        assert [e.payload for e in await log.read() if e.kind is Kind.DATA] == [b"1", b"3"]


def _guards(keys: list[str], size: int, more: int = 0) -> tuple[Guard, ...]:
    last = len(keys) - 1
    return tuple(Guard(key, bytes(size + more * (n == last))) for n, key in enumerate(keys))


async def test_whatever_does_not_fit_into_a_frame_fails_alone(tmp_path: Path) -> None:
    async with served(ServerConfig(data_dir=tmp_path)) as beside, await beside.connect() as log:
        connection = log.connection
        tags = [f"{number:0250}" for number in range(20_000)]
        with pytest.raises(TooLarge):
            async with log.tail(tags, start=0) as reader:
                await anext(reader)
        with pytest.raises(TooLarge):
            await log.read_last("x" * (FRAME_HEAD_BYTES_MAX + 1))
        assert (await log.bounds()).tail == 0
        assert log.connection is connection
        assert connection is not None and not connection._answers


async def test_a_reader_opened_as_the_connection_ends_is_resumed_on_the_next_one(
    tmp_path: Path,
) -> None:
    try:
        async with await AsyncLog.connect(directory_endpoint(tmp_path)) as log:
            await log.compare_and_set("k", expected=None, value=b"v")
            log.reconnect()
            async with log.tail(start=0, end=1) as reader, asyncio.timeout(20):
                assert [len(batch.entries) async for batch in reader if batch.entries] == [1]
    finally:
        stop_server(tmp_path)


def test_a_forked_child_that_could_not_connect_at_first_tries_again(tmp_path: Path) -> None:
    parent = os.getpid()
    found = directory_endpoint(tmp_path)
    failures = [Unavailable("not yet")]

    async def resolve() -> Endpoint:
        if os.getpid() != parent and failures:
            error = failures[0]
            await asyncio.sleep(0)
            raise error
        return await found()

    log = BlockingLog(resolve, timeout=30.0)
    try:
        child = os.fork()
        if child == 0:
            os._exit(_child(log, failures))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        log.close()
        stop_server(tmp_path)


def _child(log: BlockingLog, failures: list[Unavailable]) -> int:
    log._timeout = 0.1
    try:
        log.bounds()
        return 1
    except Unavailable:
        pass
    failures.clear()
    log._timeout = 60.0
    try:
        log.bounds()
        log.close()
        return 0
    except BaseException:
        return 2


def test_the_blocking_client_watches_a_key(tmp_path: Path) -> None:
    try:
        with BlockingLog(directory_endpoint(tmp_path)) as log:
            at = log.compare_and_set("k", expected=None, value=b"1")
            log.compare_and_set("other", expected=None, value=b"x")
            log.compare_and_set("k", expected=b"1", value=None)
            changes = log.watch("k", start=0)
            assert [next(changes), next(changes)] == [Value(b"1", at), None]
        changes.close()  # type: ignore[attr-defined]  # after the client, which is no error
    finally:
        stop_server(tmp_path)


async def test_a_cancelled_request_ends_whenever_it_is_cancelled(tmp_path: Path) -> None:
    """A loop of requests must end when it is cancelled, at any of its steps.

    `asyncio.wait_for` in Python 3.11 swallows a cancellation that comes as it is done: now and then
    a query that was stopped went on for ever.
    """

    async def ask_for_ever(log: AsyncLog) -> None:
        while True:
            await log.bounds()

    async with await AsyncLog.connect(directory_endpoint(tmp_path)) as log:
        for steps in range(60):
            asking = asyncio.ensure_future(ask_for_ever(log))
            for _ in range(steps):
                await asyncio.sleep(0)
            asking.cancel()
            done, _ = await asyncio.wait({asking}, timeout=30)
            assert done, f"cancelled after {steps} steps of the loop, it goes on"
    stop_server(tmp_path)


INTERRUPTED = """
import random, signal, sys
from penstock.stream.session import connect

armed = False

def interrupt(*_):
    if armed:
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
count = 0
with connect(sys.argv[1]) as log:
    while count < 2000:
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 4e-4))
            for _ in range(50):
                log.client.get("x")
            armed = False
        except KeyboardInterrupt:
            armed, count = False, count + 1
"""


def test_a_caller_that_is_interrupted_anywhere_leaves_a_client_that_works(tmp_path: Path) -> None:
    """A future of the standard library can leave its lock held: `stream tail` hung on Ctrl-C."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
