"""A server that the kernel refuses something: room on disk, or one more descriptor.

Goal: I1 and I22 when a real write fails. Method: resource limits of the live process, set from
outside; a file that may not grow is what a full disk looks like from inside (EFBIG for ENOSPC).
"""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from fault_workload import follow, settle, under_load
from harness.history import History, Outcome
from harness.server_process import ServerProcess
from harness.waiting import wait_until

from penstock.errors import Unavailable, Unknown
from penstock.limits import KIB, SEGMENT_BYTES_MIN
from penstock.log.client.client import AsyncLog
from penstock.log.records import Appended, NewEntry
from penstock.log.serving.process import EXIT_FATAL

SEED = 20260604
PLENTY = 512
#: Appends that must be done for each full disk, also on a busy machine.
OK_MIN = 10


def starve_and_feed(server: ServerProcess, history: History, limits: list[int]) -> list[int]:
    """Take the room away, wait for the server to give up, give it back; the exit codes."""
    codes = []
    for number, limit in enumerate(limits, start=1):
        time.sleep(0.2)  # let it do some work
        wait_until(lambda wanted=number: history.count(Outcome.OK) > OK_MIN * wanted)
        server.limit_file_bytes(limit)
        codes.append(server.wait())
        server.start()
    return codes


@pytest.mark.timeout(120)
async def test_a_disk_without_room_stops_the_server_and_loses_nothing_acknowledged(
    rolling: ServerProcess,
) -> None:
    """Writers go on across eight full disks: in a record, in a manifest, in an index, anywhere."""
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    limits = [rng.randrange(8 * KIB, SEGMENT_BYTES_MIN) for _ in range(5)] + [4000, 400, 1]

    async with under_load(rolling) as load:
        await asyncio.sleep(0.2)
        codes = await asyncio.to_thread(starve_and_feed, rolling, load.history, limits)
    assert load.history.count(Outcome.OK) > OK_MIN * len(limits)
    assert load.history.count(Outcome.UNKNOWN) == 0, "the server came back in time"

    assert codes == [EXIT_FATAL] * len(limits)
    assert rolling.output().count("a write failed, the log stops") >= 3
    assert rolling.stop() == 0


async def test_an_append_that_meets_a_full_disk_is_unknown_and_found_out_later(
    server: ServerProcess,
) -> None:
    """The server does not come back in time: the outcome is unknown, and so it is told."""

    async def append(log: AsyncLog, history: History, client: str, payload: bytes) -> None:
        operation = history.invoke(client, [NewEntry(payload, ("t",))])
        try:
            done: Appended = await log.append(operation.entries)
        except Unknown as error:
            history.failed(operation, error)
        else:
            history.ok(operation, done)

    history = History()
    log = await AsyncLog.connect(server.endpoint())
    for number in range(20):
        await append(log, history, "first", b"%d" % number)
    log.timeout = 1.0
    server.limit_file_bytes(1)
    await append(log, history, "first", b"too much")
    assert history.appends[-1].outcome is Outcome.UNKNOWN
    assert server.wait() == EXIT_FATAL
    with pytest.raises(Unavailable):
        await log.bounds()
    await log.close()

    server.start()
    async with await AsyncLog.connect(server.endpoint()) as again:
        await append(again, history, "second", b"room again")
        entries = await again.read()
        assert history.check(entries, {"t": await again.read(["t"])}) == []
    assert history.count(Outcome.OK) == 21


async def fill_segments(server: ServerProcess, history: History, count: int) -> None:
    """Write until there are `count` sealed segments."""
    async with await AsyncLog.connect(server.endpoint()) as log:
        number = 0
        while len(list((server.data_dir / "log").glob("seg-*.log"))) <= count:
            number += 1
            entry = NewEntry(b"%06d" % number + bytes(8 * KIB), ("t", f"t{number % 7}"))
            operation = history.invoke("filler", [entry])
            history.ok(operation, await log.append([entry]))


async def indexes(server: ServerProcess, count: int) -> None:
    """Wait until so many sealed segments have their index file."""
    while len(list((server.data_dir / "log").glob("seg-*.idx"))) < count:
        await asyncio.sleep(0.01)


@pytest.mark.timeout(60)
async def test_readers_of_a_server_without_descriptors_go_on_once_it_has_some(
    rolling: ServerProcess,
) -> None:
    """A read that fails for want of a descriptor is tried again; it neither ends nor hangs."""
    history = History()
    await fill_segments(rolling, history, 12)
    await indexes(rolling, 12)  # what is missing would be made in the background after a restart
    await asyncio.to_thread(rolling.restart)  # it has opened no sealed segment yet
    async with await AsyncLog.connect(rolling.endpoint()) as log:
        readings = [history.reading("all", None), history.reading("t3", ["t3"])]
        tail = (await log.bounds()).tail
        rolling.limit_descriptors(await asyncio.to_thread(rolling.next_descriptor))

        tails = [asyncio.create_task(follow(log, reading)) for reading in readings]
        last = asyncio.create_task(log.read_last("t3", end=40))
        await asyncio.sleep(0.5)
        assert not last.done() and readings[0].looked_up_to < tail
        rolling.limit_descriptors(PLENTY)

        found = await asyncio.wait_for(last, 30)
        assert found is not None and "t3" in found.tags
        await asyncio.wait_for(settle(readings, tails, tail), 30)
        assert history.check(await log.read()) == []


@pytest.mark.timeout(60)
async def test_a_roll_without_a_descriptor_stops_the_server_and_loses_nothing(
    rolling: ServerProcess,
) -> None:
    async with under_load(rolling, writers=1):
        await asyncio.sleep(0.3)
        rolling.limit_descriptors(await asyncio.to_thread(rolling.next_descriptor))
        assert await asyncio.to_thread(rolling.wait) == EXIT_FATAL
        await asyncio.to_thread(rolling.start)
        await asyncio.sleep(0.3)


@pytest.mark.timeout(60)
async def test_new_clients_get_in_once_there_are_descriptors_again(server: ServerProcess) -> None:
    async with await AsyncLog.connect(server.endpoint()) as old:
        await old.append([NewEntry(b"1", ("t",))])
        server.limit_descriptors(await asyncio.to_thread(server.next_descriptor))
        coming = asyncio.create_task(AsyncLog.connect(server.endpoint()))
        await asyncio.sleep(0.5)
        assert not coming.done()
        await old.append([NewEntry(b"2", ("t",))])  # who is in does not notice
        server.limit_descriptors(PLENTY)
        async with await asyncio.wait_for(coming, 30) as new:
            assert [entry.payload for entry in await new.read(["t"])] == [b"1", b"2"]
