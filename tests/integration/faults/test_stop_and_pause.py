"""A server that is asked to stop, and one that falls asleep: nobody loses anything by it."""

from __future__ import annotations

import asyncio
import random
import signal
import time

import pytest
from fault_workload import under_load
from harness.history import History, Outcome
from harness.server_process import ServerProcess
from harness.waiting import wait_until
from raw_client import RawClient

from penstock.errors import DeadlineExceeded, Retryable, Unknown
from penstock.log.client.client import AsyncLog
from penstock.log.group_format import CLAIM, encode_body
from penstock.log.records import Flush, Kind, NewEntry
from penstock.log.storage.disk import RealDisk
from penstock.log.storage.manifest import FileManifestStore
from penstock.log.storage.segment_file import segment_name
from penstock.wire import messages as m
from penstock.wire.frames import encode_frame

SEED = 20260605


def check_clean(server: ServerProcess) -> None:
    """The manifest of a stopped server vouches for every byte of the open segment."""
    disk = RealDisk(server.data_dir / "log")
    manifest = FileManifestStore(disk).read()
    assert manifest is not None
    file = disk.open(segment_name(manifest.segments[-1].id))
    size = file.size
    file.close()
    assert manifest.clean_bytes == size > 0
    assert not (server.data_dir / "server.json").exists()


async def test_a_stop_answers_what_is_in_flight_before_it_ends(server: ServerProcess) -> None:
    """An append that waits for company is made durable at once, and told, when SIGTERM comes."""
    async with await AsyncLog.connect(server.endpoint()) as log:
        appender = await log.appender("writer")
        first = await appender.append([NewEntry(b"first", ("t",))])
        waiting = appender.append_nowait([NewEntry(b"waits", ("t",))], flush=Flush(10_000))
        await log.bounds()  # answered behind it: the server has it
        started = time.monotonic()

        assert await asyncio.to_thread(server.stop) == 0
        assert (await waiting).first_lsn == first.first_lsn + 1
        assert not (await waiting).duplicate, "it was told by the server that stopped"

        assert time.monotonic() - started < 9, "it waited for company"
        check_clean(server)
        await asyncio.to_thread(server.start)
        assert [e.payload for e in await log.read(["t"])] == [b"first", b"waits"]
        await appender.close()
    assert "torn tail" not in server.output()


@pytest.mark.timeout(60)
async def test_stops_under_load_are_clean_and_lose_nothing(rolling: ServerProcess) -> None:
    print(f"seed {SEED}")

    def stop_often() -> None:
        rng = random.Random(SEED)
        for number in range(6):
            time.sleep(rng.uniform(0.05, 0.4))
            wait_until(lambda wanted=20 * number: load.history.count(Outcome.OK) > wanted)
            signal_stop(rolling, signal.SIGINT if number % 2 else signal.SIGTERM)
            check_clean(rolling)
            rolling.start()

    async with under_load(rolling) as load:
        await asyncio.to_thread(stop_often)
    assert load.history.count(Outcome.UNKNOWN) == 0
    assert load.history.count(Outcome.OK) > 100
    assert "torn tail" not in rolling.output()


def signal_stop(server: ServerProcess, number: signal.Signals) -> None:
    """A stop by signal ends with code 0, whoever is connected."""
    server.signal(number)
    assert server.wait() == 0


async def test_an_append_refused_by_a_stopping_server_is_not_in_the_log(
    server: ServerProcess,
) -> None:
    """I22 at the edge: each of many pipelined appends is done, refused or unanswered.

    Done ones are in the log, refused ones are not, and nothing is there twice.
    """
    with RawClient(server) as client:
        client.hello()
        claim = [NewEntry(b"12345678", (), Kind.CONTROL)]
        body = encode_body(producer="raw", instance=1, first_seq=0, entries=claim, flags=CLAIM)
        assert isinstance(client.ask(m.Append((), 0), body), m.AppendDone)
        head = m.encode_message(m.Append((), 0))
        for seq in range(3000):
            entries = [NewEntry(b"%d" % seq, ("raw",))]
            body = encode_body(producer="raw", instance=1, first_seq=seq, entries=entries)
            client.send(encode_frame(m.Append.KIND, seq, head, len(body)) + body)
            if seq == 1500:
                server.signal(signal.SIGTERM)
        done, refused = set(), set()
        while (frame := client.read_frame()) is not None:
            failed = frame.kind == m.Failed.KIND
            (refused if failed else done).add(frame.request)
    assert server.wait() == 0
    check_clean(server)

    server.start()
    async with await AsyncLog.connect(server.endpoint()) as log:
        payloads = [entry.payload for entry in await log.read(["raw"])]
    assert len(payloads) == len(set(payloads))
    found = set(map(int, payloads))
    assert done, "nothing was answered"
    assert done <= found
    assert not refused & found
    assert payloads == [b"%d" % number for number in range(len(payloads))]


@pytest.mark.timeout(60)
async def test_clients_survive_a_server_that_falls_asleep_and_wakes_up(
    rolling: ServerProcess,
) -> None:
    def pause_often() -> None:
        rng = random.Random(SEED)
        for number in range(6):
            time.sleep(rng.uniform(0.05, 0.2))
            wait_until(lambda wanted=20 * number: load.history.count(Outcome.OK) > wanted)
            rolling.pause()
            time.sleep(rng.uniform(0.1, 0.6))
            rolling.resume()

    async with under_load(rolling) as load:
        before = [log.connection for log in load.logs]
        await asyncio.to_thread(pause_often)
    assert load.connections == before, "a nap is no reason to reconnect"
    assert load.history.count(Outcome.UNKNOWN) == 0
    assert load.history.count(Outcome.OK) > 100


@pytest.mark.timeout(60)
async def test_a_sleep_longer_than_the_deadline_makes_appends_unknown_and_reads_late(
    server: ServerProcess,
) -> None:
    history = History()
    async with await AsyncLog.connect(server.endpoint()) as log:
        patience = log.timeout
        appender = await log.appender("writer")
        for number in range(10):
            operation = history.invoke("1", [NewEntry(b"%d" % number, ("t",))])
            history.ok(operation, await appender.append(operation.entries))
        connection = log.connection
        log.timeout = 0.8
        server.pause()
        lost = history.invoke("1", [NewEntry(b"into the dark", ("t",))])
        sleeping = asyncio.create_task(appender.append(lost.entries))
        with pytest.raises(DeadlineExceeded):
            await log.bounds()
        with pytest.raises(Unknown) as caught:
            await sleeping
        history.failed(lost, caught.value)
        log.timeout = patience
        server.resume()

        # What comes late is nobody's answer any more, and no reason to drop the connection.
        assert (await log.bounds()).tail > 10
        assert log.connection is connection
        await appender.close()
        again = await log.appender("writer")
        assert again.instance == 2
        operation = history.invoke("2", [NewEntry(b"awake", ("t",))])
        history.ok(operation, await again.append(operation.entries))
        await again.close()
        final = await log.read()
        assert history.check(final, {"t": await log.read(["t"])}) == []


async def test_nobody_can_connect_to_a_sleeping_server_and_is_told_so(
    server: ServerProcess,
) -> None:
    server.pause()
    with pytest.raises(Retryable):
        await AsyncLog.connect(server.endpoint(), timeout=0.5)
    server.resume()

    async with await AsyncLog.connect(server.endpoint()) as log:
        assert (await log.bounds()).tail == 0
