"""Clients that only take up room: half-open ones, and readers that do not read.

Goal: I19, one client cannot stop or swell the server for the others.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fault_workload import clients, under_load
from harness.server_process import ServerProcess, silent_sockets
from harness.waiting import best_below, until
from raw_client import RawClient, read_metrics

from penstock.errors import Overloaded
from penstock.limits import (
    CONNECTIONS_MAX,
    CREDIT_BYTES_DEFAULT,
    KIB,
    MIB,
    PREAUTH_CONNECTIONS_MAX,
    PREAUTH_SECONDS_MAX,
    SUBSCRIPTION_TAGS_MAX,
    SUBSCRIPTIONS_PER_CONNECTION_MAX,
)
from penstock.log.client.client import AsyncLog
from penstock.log.records import NewEntry
from penstock.wire import messages as m
from penstock.wire.frames import encode_frame

HALF_OPEN = 1000
CREDIT = 4 * MIB


@contextmanager
def half_open(server: ServerProcess, count: int) -> Iterator[list[socket.socket]]:
    """Connections that never say a word, or stop in the middle of a header."""
    with silent_sockets(server, count) as sockets:
        for one in sockets[1::2]:
            try:
                one.sendall(encode_frame(m.Hello.KIND, 1, bytes(100))[:10])
            except OSError:
                pass  # one too many: the server has closed it already
        yield sockets


def wait_closed(one: socket.socket, deadline: float) -> bool:
    """Whether the server ends this connection before the deadline."""
    one.settimeout(max(deadline - time.monotonic(), 0.001))
    try:
        while one.recv(4096):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.timeout(120)
async def test_a_thousand_half_open_connections_are_closed_in_time_and_hurt_nobody(
    server: ServerProcess,
) -> None:
    before = server.descriptor_count()
    async with under_load(server, writers=1) as load:
        await asyncio.sleep(0.5)
        memory = server.memory_bytes()
        latencies = load.writers[0].latencies
        calm = len(latencies)

        unclosed, peak = await asyncio.to_thread(crowd, server)
        crowded = latencies[calm:]

    assert unclosed == 0
    print(f"memory grew by {(peak - memory) / MIB:.1f} MiB")
    assert peak - memory < 48 * MIB
    print(f"appends meanwhile: {len(crowded)}, median {statistics.median(crowded):.4f} s")
    assert len(crowded) > 100
    assert statistics.median(crowded) < 0.5
    assert max(crowded) < PREAUTH_SECONDS_MAX
    await until(lambda: read_metrics(server)["penstock_connections"] == 0)
    assert server.descriptor_count() <= before + 8, "descriptors leak"
    assert server.stop() == 0


def crowd(server: ServerProcess) -> tuple[int, int]:
    """Half-open connections until the server has ended them all: those it did not, peak memory."""
    with half_open(server, HALF_OPEN) as sockets:
        deadline = time.monotonic() + 3 * PREAUTH_SECONDS_MAX
        peak = server.memory_bytes()
        assert server.descriptor_count() < PREAUTH_CONNECTIONS_MAX + 200, "no cap on the half-open"
        unclosed = sum(not wait_closed(one, deadline) for one in sockets)
        return unclosed, max(peak, server.memory_bytes())


@pytest.mark.timeout(60)
async def test_half_open_connections_do_not_take_the_descriptors_that_the_log_needs(
    rolling: ServerProcess,
) -> None:
    """Where the kernel grants few descriptors, connections are refused before segments are."""

    def segments() -> int:
        return len(list((rolling.data_dir / "log").glob("seg-*.log")))

    async with under_load(rolling, writers=1):
        rolling.limit_descriptors(256)
        with half_open(rolling, 400):
            wanted = segments() + 5
            await until(lambda: segments() >= wanted, seconds=50)
            assert rolling.descriptor_count() < 256
    assert rolling.stop() == 0


def test_a_server_asks_for_as_many_descriptors_as_its_limits_promise(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))  # what its process is born with
    try:
        with ServerProcess(tmp_path / "data") as server:
            granted, _ = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert granted == hard or granted > CONNECTIONS_MAX + PREAUTH_CONNECTIONS_MAX


@pytest.mark.timeout(60)
async def test_a_new_client_gets_in_once_the_half_open_ones_are_gone(server: ServerProcess) -> None:
    started = time.monotonic()
    with half_open(server, PREAUTH_CONNECTIONS_MAX):
        async with await AsyncLog.connect(server.endpoint()) as log:
            await log.append([NewEntry(b"in")])
    assert time.monotonic() - started < 2 * PREAUTH_SECONDS_MAX + 2


@pytest.mark.timeout(120)
async def test_a_reader_that_does_not_read_costs_its_credit_and_delays_nobody(
    server: ServerProcess,
) -> None:
    """Goal: a stalled reader holds at most its credit in the server, while others read on.

    Method: it subscribes to everything from the start and then leaves its socket alone, while
    60 MiB are written and read by somebody else.
    """
    payload = bytes(64 * KIB)
    groups = 60 * MIB // len(payload)

    async with clients(server.endpoint(), 2) as (writer, reader):
        await load(writer, reader, groups // 4, payload)  # warm: caches are filled
        memory = server.memory_bytes()
        plain = await load(writer, reader, groups, payload)
        grown = server.memory_bytes() - memory
        stalled = [RawClient(server).hello() for _ in range(4)]
        for one in stalled:
            message = m.Subscribe(5, None, 0, 2**62, CREDIT_BYTES_DEFAULT)
            one.send(encode_frame(message.KIND, 5, m.encode_message(message)))

        beside = await best_below(4 * plain + 2.0, lambda: load(writer, reader, groups, payload))

        more = server.memory_bytes() - memory - grown
        print(f"alone {plain:.2f} s, beside stalled readers {beside:.2f} s; {more / MIB:.1f} MiB")
        # One piece may overdraw the credit; pieces and socket buffers are beside it.
        assert more < len(stalled) * (CREDIT_BYTES_DEFAULT + 4 * MIB) + 16 * MIB
        assert read_metrics(server)["penstock_subscriptions_behind"] == len(stalled)
        for one in stalled:
            one.close()


@pytest.mark.timeout(120)
async def test_many_readers_of_a_connection_that_does_not_read_hold_what_one_does(
    server: ServerProcess,
) -> None:
    """Some lie far behind and are read for from disk, some nearly caught up, some live."""
    payload = bytes(512 * KIB)
    async with clients(server.endpoint(), 1) as (writer,):
        for _ in range(48):
            await writer.append([NewEntry(payload, ("t",)), NewEntry(payload)])
        await writer.read(["t"])  # caches are filled
        memory = server.memory_bytes()
        with RawClient(server) as rude, RawClient(server) as other:
            rude.hello()
            other.hello()
            subscriptions = (
                m.Subscribe(
                    number, (None, ("t",))[number % 2], (0, 90, 96)[number % 3], 2**62, CREDIT
                )
                for number in range(SUBSCRIPTIONS_PER_CONNECTION_MAX)
            )
            rude.send(
                b"".join(
                    encode_frame(each.KIND, each.subscription, m.encode_message(each))
                    for each in subscriptions
                )
            )
            grown = peak_memory(server, seconds=1.0) - memory
            for _ in range(8):
                await writer.append([NewEntry(payload, ("t",)), NewEntry(payload)])
            grown = max(grown, peak_memory(server, seconds=1.0) - memory)

            assert isinstance(other.ask(m.GetBounds()), m.LogBounds)
            print(f"memory grew by {grown / MIB:.1f} MiB")
            assert grown < 64 * MIB
            await read_on(rude, SUBSCRIPTIONS_PER_CONNECTION_MAX)
    assert server.stop() == 0


def test_the_tags_of_all_readers_of_a_connection_are_bounded(server: ServerProcess) -> None:
    with RawClient(server) as client:
        client.hello()
        tags = [tuple(f"{n}/{i}" for i in range(SUBSCRIPTION_TAGS_MAX)) for n in range(10)]
        for number, some in enumerate(tags):
            message = m.Subscribe(number, some, 0, 2**62, CREDIT)
            client.send(encode_frame(message.KIND, number, m.encode_message(message)))
        assert isinstance(client.ask(m.Subscribe(99, ("more",), 0, 2**62, CREDIT)), Overloaded)
        client.send(encode_frame(m.Unsubscribe.KIND, 3, m.encode_message(m.Unsubscribe(3))))
        client.send(
            encode_frame(
                m.Subscribe.KIND, 99, m.encode_message(m.Subscribe(99, ("more",), 0, 9, 1))
            )
        )
        assert isinstance(client.ask(m.Ping()), m.Pong)


async def read_on(rude: RawClient, readers: int) -> None:
    """It reads after all: every one of its readers has its turn."""
    given = dict.fromkeys(range(readers), 0)

    def read() -> None:
        while not all(given.values()):
            frame = rude.read_frame()
            assert frame is not None
            message = m.decode_message(frame.kind, frame.head)
            assert isinstance(message, m.Delivery), message
            given[message.subscription] += len(frame.body)

    await asyncio.wait_for(asyncio.to_thread(read), 60)


async def load(writer: AsyncLog, reader: AsyncLog, groups: int, payload: bytes) -> float:
    """Write groups while another client reads them all; returns the seconds it took."""
    start = (await writer.bounds()).tail
    started = time.monotonic()

    async def write() -> None:
        appender = await writer.own_appender()
        for _ in range(groups):
            await appender.append([NewEntry(payload, ("t",))])

    work = asyncio.create_task(write())
    seen = 0
    async with reader.tail(["t"], start=start) as tail:
        async for batch in tail:
            seen += len(batch.entries)
            if seen == groups:
                break
    await work
    return time.monotonic() - started


@pytest.mark.timeout(60)
async def test_answers_that_nobody_reads_do_not_pile_up_in_the_server(
    server: ServerProcess,
) -> None:
    """A client with the token asks for the same large answer over and over, and reads none."""
    wanted = 2000
    async with await AsyncLog.connect(server.endpoint()) as log:
        await log.append([NewEntry(bytes(512 * KIB), ("large",))])
    memory = server.memory_bytes()
    message = m.ReadLast("large", 2**62)
    question = encode_frame(message.KIND, 9, m.encode_message(message))
    with RawClient(server) as rude, RawClient(server) as other:
        rude.hello()
        other.hello()
        rude.send_slowly(question * wanted, seconds=1.0)
        grown = peak_memory(server, seconds=1.5) - memory

        assert isinstance(other.ask(m.GetBounds()), m.LogBounds)
        print(f"memory grew by {grown / MIB:.1f} MiB")
        assert grown < 128 * MIB
    assert server.stop() == 0


def peak_memory(server: ServerProcess, *, seconds: float) -> int:
    deadline = time.monotonic() + seconds
    peak = 0
    while time.monotonic() < deadline:
        peak = max(peak, server.memory_bytes())
        time.sleep(0.05)
    return peak
