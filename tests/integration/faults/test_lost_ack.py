"""Requests and replies cut at any byte: every append still takes effect once.

Goal: I7 and I22 over real sockets. Method: a proxy between client and server is armed right before
a request; the client reconnects through the same proxy, which is then whole again, and resends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeVar

import pytest
from fault_workload import follow, settle
from harness.async_tests import async_fixture
from harness.history import History, Outcome, check_counter
from harness.server_process import ServerProcess
from harness.tcp_proxy import Fault, TcpProxy, Way
from harness.waiting import until

from penstock.errors import BadRequest, GuardFailed, Unknown
from penstock.log.client.appender import AsyncAppender
from penstock.log.client.client import AsyncLog, Endpoint
from penstock.log.records import Guard, NewEntry, SetKey
from penstock.log.serving.directory import read_address, read_token

T = TypeVar("T")

#: Step of the cut points over a request; a reply is short enough to be cut at every byte.
STEP_BYTES = 16


#: Where a frame's header says how long it is.
LENGTH_BYTES = frozenset(range(8, 16))


@pytest.fixture(autouse=True)
def _come_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is cut off over and over waits longer each time; here that only costs time."""
    monkeypatch.setattr("penstock.log.client.client.BACKOFF_SECONDS", (0.001,))


@dataclass(frozen=True, slots=True)
class Rig:
    """A client whose bytes pass through a proxy, and one whose bytes do not."""

    server: ServerProcess
    proxy: TcpProxy
    log: AsyncLog
    direct: AsyncLog


@async_fixture
async def on(tmp_path: Path) -> AsyncIterator[Rig]:
    with ServerProcess(tmp_path / "data") as server:
        async with TcpProxy(lambda: read_address(server.data_dir)) as proxy:

            async def resolve() -> Endpoint:
                token = read_token(server.data_dir / "token")
                return Endpoint(proxy.address.host, proxy.address.port, token)

            async with (
                await AsyncLog.connect(resolve) as log,
                await AsyncLog.connect(server.endpoint()) as direct,
            ):
                yield Rig(server, proxy, log, direct)


@async_fixture
async def appender(on: Rig) -> AsyncIterator[AsyncAppender]:
    appender = await on.log.appender("writer")
    yield appender
    await appender.close()


@pytest.fixture
def history() -> History:
    return History()


async def measure(rig: Rig, request: Callable[[], Awaitable[object]]) -> dict[Way, int]:
    """Bytes that a request and its reply take on the wire."""
    before = dict(rig.proxy.counts.forwarded_bytes)
    await request()
    return {way: rig.proxy.counts.forwarded_bytes[way] - before[way] for way in Way}


async def strike(rig: Rig, way: Way, fault: Fault, request: Callable[[], Awaitable[T]]) -> T:
    """Make a request under a cut; returns once the cut has struck and the client is back."""
    counts = rig.proxy.counts
    cuts, connections = counts.cuts, counts.connections
    rig.proxy.arm(way, fault)
    async with asyncio.timeout(20):
        result = await request()
        while counts.cuts == cuts or counts.connections == connections:
            await asyncio.sleep(0.001)
    return result


def cut_points(sizes: dict[Way, int]) -> list[tuple[Way, Fault]]:
    """Every STEP_BYTES-th byte of the request, every byte of the reply; resets and closes."""
    requests = sorted({*range(0, sizes[Way.TO_SERVER], STEP_BYTES), sizes[Way.TO_SERVER] - 1})
    points = [(Way.TO_SERVER, Fault(cut_after=n)) for n in [*requests, sizes[Way.TO_SERVER]]]
    points += [(Way.TO_CLIENT, Fault(cut_after=n)) for n in range(sizes[Way.TO_CLIENT] + 1)]
    return points + [(way, Fault(cut_after=size // 2, reset=False)) for way, size in sizes.items()]


async def test_an_append_cut_at_any_byte_takes_effect_once_and_tells_its_first_lsn(
    on: Rig, appender: AsyncAppender, history: History
) -> None:

    async def append(number: int) -> None:
        entries = [NewEntry(b"%06d/%d" % (number, n), ("t", f"t{n}")) for n in range(3)]
        operation = history.invoke("writer", entries)
        history.ok(operation, await appender.append(entries))

    points = cut_points(await measure(on, lambda: append(0)))
    for number, (way, fault) in enumerate(points, start=1):
        await strike(on, way, fault, partial(append, number))

    assert on.proxy.counts.cuts == len(points)
    tail = (await on.direct.bounds()).tail
    by_tag = {tag: await on.direct.read([tag]) for tag in ("t", "t0", "t1", "t2")}
    assert history.check(await on.direct.read(end=tail), by_tag) == []


async def test_a_delivered_append_whose_reply_is_swallowed_is_found_as_a_duplicate(
    on: Rig, appender: AsyncAppender
) -> None:
    """The lost ack by itself: the request arrives, the reply does not, the connection dies."""
    first = await appender.append([NewEntry(b"told")])
    on.proxy.arm(Way.TO_CLIENT, Fault(drop_after=0))
    waiting = asyncio.create_task(appender.append([NewEntry(b"untold", ("t",))]))
    async for batch in on.direct.tail(["t"], start=0):
        if batch.entries:
            break  # it is durable and visible, and its writer does not know
    while on.proxy.counts.dropped_bytes == 0:
        await asyncio.sleep(0.001)
    assert not waiting.done()

    on.proxy.cut_all()
    done = await waiting

    assert done.duplicate
    assert done.first_lsn == batch.entries[0].lsn == first.first_lsn + 1
    entries = await on.direct.read(["t"])
    assert [entry.payload for entry in entries] == [b"untold"]


async def test_a_pipeline_of_appends_cut_anywhere_stays_in_order_and_whole(
    on: Rig, appender: AsyncAppender, history: History
) -> None:
    number = 0

    async def burst() -> None:
        nonlocal number
        futures = []
        for _ in range(40):
            number += 1
            entry = NewEntry(b"%06d" % number + bytes(200), ("t",))
            operation = history.invoke("writer", [entry])
            futures.append((operation, appender.append_nowait([entry])))
            await asyncio.sleep(0)
        for operation, future in futures:
            history.ok(operation, await future)

    sizes = await measure(on, burst)
    for way, size in sizes.items():
        for cut in range(0, size, max(size // 12, 1)):
            # How a burst is cut into groups varies, so a late cut may miss it.
            on.proxy.arm(way, Fault(cut_after=cut))
            await burst()

    assert on.proxy.counts.cuts >= 12
    assert history.check(await on.direct.read()) == []


async def test_a_guarded_append_cut_at_any_byte_counts_once(
    on: Rig, appender: AsyncAppender
) -> None:
    value = 0

    async def raise_it() -> None:
        nonlocal value
        old = b"%d" % value if value else None
        value += 1
        await appender.append(
            [], guards=[Guard("count", old)], sets=[SetKey("count", b"%d" % value)]
        )

    async def count_in_vain() -> None:
        with pytest.raises(GuardFailed):
            await appender.append([NewEntry(b"never")], guards=[Guard("count", b"no")])

    points = cut_points(await measure(on, raise_it))
    for way, fault in points:
        await strike(on, way, fault, raise_it)
    points = cut_points(await measure(on, count_in_vain))
    for way, fault in points[::4]:
        await strike(on, way, fault, count_in_vain)

    assert b"never" not in [entry.payload for entry in await on.direct.read()]
    found = await on.direct.get("count")
    assert found is not None and found.data == b"%d" % value
    assert check_counter(await on.direct.read(), "count", ok=value, unknown=0) == []


async def test_opening_a_producer_cut_at_any_byte_gives_the_next_instance(on: Rig) -> None:
    """A claim that was told to nobody is recognised when it is sent again: no instance is lost."""

    async def claim() -> int:
        appender = await on.log.appender("owner")
        instance = appender.instance
        await appender.close()
        return instance

    sizes = await measure(on, claim)
    instances = []
    for way, fault in cut_points(sizes)[::3]:
        instances.append(await strike(on, way, fault, claim))

    assert instances == list(range(2, 2 + len(instances)))


async def test_reads_cut_at_any_byte_give_the_same_answer(on: Rig) -> None:
    entries = [NewEntry(b"%03d" % n + bytes(50), ("t",)) for n in range(20)]
    await on.direct.append(entries)
    requests: list[Callable[[], Awaitable[object]]] = [
        lambda: on.log.read(["t"]),
        lambda: on.log.read_last("t"),
        on.log.bounds,
        lambda: on.log.find_time(0),
        lambda: on.log.get("nothing"),
        lambda: on.log.list_metadata(),
    ]
    for request in requests:
        wanted = await request()
        points = cut_points(await measure(on, request))
        for way, fault in points[:: max(len(points) // 25, 1)]:
            assert await strike(on, way, fault, request) == wanted


async def test_a_tail_cut_over_and_over_sees_every_entry_once(on: Rig, history: History) -> None:
    readings = [history.reading("all", None), history.reading("odd", ["odd"])]
    tails = [asyncio.create_task(follow(on.log, reading)) for reading in readings]
    appender = await on.direct.appender("writer")
    number = 0
    for cut in range(0, 1200, STEP_BYTES):
        on.proxy.arm(Way.TO_CLIENT, Fault(cut_after=cut))
        for _ in range(5):
            number += 1
            tags = ("odd",) if number % 2 else ("even", "other")
            entry = NewEntry(b"%06d" % number, tags)
            operation = history.invoke("writer", [entry])
            history.ok(operation, await appender.append([entry]))
        await asyncio.sleep(0)
    final = await on.direct.read()
    await settle(readings, tails, final[-1].lsn + 1)

    assert on.proxy.counts.cuts >= 20
    assert history.check(final) == []
    await appender.close()


async def test_a_flipped_bit_is_noticed_by_whoever_gets_it(on: Rig, history: History) -> None:
    """A damaged reply or request head ends the connection and is sent again.

    A damaged group is refused: a server cannot tell a flipped bit from a client that makes none.
    """
    appender = await on.log.appender("writer")

    async def append(number: int) -> None:
        operation = history.invoke(f"{appender.instance}", [NewEntry(b"%06d" % number)])
        try:
            history.ok(operation, await appender.append(operation.entries))
        except BadRequest as error:
            history.failed(operation, error)

    sizes = await measure(on, partial(append, 0))
    points = [
        (way, at)
        for way, step in ((Way.TO_CLIENT, 1), (Way.TO_SERVER, STEP_BYTES // 4))
        for at in sorted(set(range(0, sizes[way], step)) - LENGTH_BYTES)
    ]
    for number, (way, at) in enumerate(points, start=1):
        on.proxy.arm(way, Fault(flip_at=at))
        await append(number)
        if appender.core.broken is not None:
            await appender.close()
            appender = await on.log.appender("writer")

    assert on.proxy.counts.flips == len(points)
    assert history.count(Outcome.REFUSED) < sizes[Way.TO_SERVER] // 4
    assert history.check(await on.direct.read()) == []
    await appender.close()


async def test_a_flipped_length_makes_an_append_unknown_at_worst(on: Rig, history: History) -> None:
    """A frame that seems longer than it is leaves its receiver waiting: the deadline ends that."""
    patience = on.log.timeout
    for number, (way, at) in enumerate(product(Way, sorted(LENGTH_BYTES))):
        appender = await on.log.appender("writer")
        operation = history.invoke(f"{appender.instance}", [NewEntry(b"%d" % number)])
        on.proxy.arm(way, Fault(flip_at=at))
        on.log.timeout = 0.4
        try:
            history.ok(operation, await appender.append(operation.entries))
        except Unknown as error:
            history.failed(operation, error)
        await until(lambda wanted=number + 1: on.proxy.counts.flips == wanted)
        await appender.close()
        on.log.timeout = patience
        on.proxy.cut_all()  # nobody else would, and the next one needs a whole connection

    assert on.proxy.counts.flips == 2 * len(LENGTH_BYTES)
    assert history.check(await on.direct.read()) == []


async def test_a_slow_and_stalling_network_delays_but_breaks_nothing(
    on: Rig, appender: AsyncAppender, history: History
) -> None:
    reading = history.reading("tail", None)
    tail = asyncio.create_task(follow(on.log, reading))
    on.proxy.arm(Way.TO_SERVER, Fault(delay_seconds=0.01))
    on.proxy.arm(Way.TO_CLIENT, Fault(stall_after=100))

    operations = [history.invoke("writer", [NewEntry(b"%d" % n)]) for n in range(200)]
    futures = [appender.append_nowait(operation.entries) for operation in operations]
    while on.proxy.counts.stalls == 0:
        await asyncio.sleep(0.001)
    on.proxy.arm(Way.TO_CLIENT, Fault(delay_seconds=0.002))
    for operation, future in zip(operations, futures, strict=True):
        history.ok(operation, await future)
    final = await on.direct.read()
    await settle([reading], [tail], final[-1].lsn + 1)

    assert on.proxy.counts.connections == 1
    assert history.check(final) == []
