"""Deliveries while processes die: players, log servers; and what trimming leaves to them."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from embedded_server import kill_server, stop_server
from harness.delivery_targets import FileTarget, MemoryTarget, file_rows
from harness.served_log import served
from harness.waiting import until, wait_until

import penstock
from penstock.config import ServerConfig
from penstock.delivery.api import Shard
from penstock.delivery.claim import Claim
from penstock.delivery.local_host import LocalHost
from penstock.delivery.player import Player
from penstock.delivery.registration import list_deliveries, remove_delivery
from penstock.errors import Fenced, NotFound, Trimmed
from penstock.ids import Lsn
from penstock.log.client.client import AsyncLog
from penstock.log.records import Kind, NewEntry, SetKey
from penstock.protocol.deliveries import (
    Delivered,
    RegisteredDelivery,
    decode_delivered,
    encode_delivery,
)
from penstock.protocol.markers import Marker, Range, encode_marker
from penstock.protocol.names import (
    TaskId,
    deliver_key,
    delivered_key,
    player_producer,
    query_key,
    with_naming,
)
from penstock.runtime.registry import RegisteredQuery, encode_query
from penstock.runtime.trim import find_trim_point, trim_consumed
from penstock.stream.batches import encode_batch
from penstock.stream.json_lines import rows_to_json_lines
from penstock.stream.registration import Registration, encode_registration, stream_key, stream_tag
from penstock.stream.schema import normalise
from penstock.stream.stream import Stream

SCHEMA = "k long, v string"
PLAYER = """
import sys, time
from pathlib import Path
import penstock
from harness.delivery_targets import FileTarget
log = penstock.connect(sys.argv[1])
targets = [FileTarget(Path(path)) for path in sys.argv[2:]]
penstock.deliver(log.stream("in"), targets, key="k", name="killed").awaitTermination()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "log"
    stop_server(tmp_path / "log")


def append(stream: Stream, *keys: int) -> None:
    stream.append([{"k": key, "v": f"v{key}"} for key in keys])


# ---- kills


def test_kills_of_players_and_servers_lose_and_repeat_nothing(
    directory: Path, tmp_path: Path
) -> None:
    """At many moments, each file has exactly its rows of the stream below its position."""
    drawn = random.Random(7)
    log = penstock.connect(directory)
    stream = log.create_stream("in", SCHEMA)
    files = [tmp_path / "zero.db", tmp_path / "one.db"]
    looked = 0
    for life in range(7):
        player = subprocess.Popen(
            [sys.executable, "-c", PLAYER, str(directory), *map(str, files)],
            stderr=subprocess.DEVNULL,
        )
        try:
            before = min(positions(files))
            for _ in range(drawn.randrange(4, 12)):
                append(stream, *(drawn.randrange(50) for _ in range(drawn.randrange(1, 20))))
            wait_until(lambda before=before: min(positions(files)) > before)  # type: ignore[misc]
            if life % 3 == 2:
                kill_server(directory)
                append(stream, 1, 2, 3)
            looked += check_files(stream, files)
        finally:
            player.send_signal(signal.SIGKILL)
            player.wait()
    targets = [FileTarget(path) for path in files]
    with penstock.deliver(stream, targets, key="k", name="killed") as delivery:
        delivery.processAllAvailable()
        assert delivery.status()["term"] == 8
    looked += check_files(stream, files)
    log.close()

    assert looked >= 8
    assert sum(len(file_rows(path)[0]) for path in files) == stream_rows(directory)


def positions(files: list[Path]) -> list[int]:
    return [file_rows(path)[1] for path in files]


def stream_rows(directory: Path) -> int:
    with penstock.connect(directory) as log:
        return int(log.stream("in").read().num_rows)


def check_files(stream: Stream, files: list[Path]) -> int:
    """Each has its share of the rows below its position, in order; the shares are disjoint."""
    texts_of: list[list[str]] = []
    for path in files:
        texts, position = file_rows(path)
        below = [
            text
            for batch in stream.read(end=position).to_batches()
            for text in rows_to_json_lines(batch)
        ]
        own = set(texts)
        assert texts == [text for text in below if text in own], path
        texts_of.append(texts)
    assert not set(texts_of[0]) & set(texts_of[1])
    return 1


# ---- the log is away


async def make_delivery(log: AsyncLog, shards: int = 1) -> RegisteredDelivery:
    """A stream `in`, and a delivery of it."""
    schema = normalise(SCHEMA)
    value = encode_registration(Registration("in", schema, 0))
    await log.compare_and_set(stream_key("in"), expected=None, value=value)
    delivery = RegisteredDelivery(
        name="away", id="i", stream="in", query=None, version=None, key=["k"],
        route=[node % shards for node in range(64)], epoch=0, start=0, table="in",
        targets=[f"memory {shard}" for shard in range(shards)], strict=False, dead_letter=None,
        created_ms=0,
    )  # fmt: skip
    data = encode_delivery(delivery)
    await log.compare_and_set(deliver_key("away"), expected=None, value=data)
    return delivery


def host_of(*targets: MemoryTarget) -> LocalHost:
    schema = normalise(SCHEMA)
    shards = [
        Shard("away", index, len(targets), Lsn(0), schema, False, ("k",), "in")
        for index in range(len(targets))
    ]
    return LocalHost(targets, shards, schema)


def entry(key: int) -> NewEntry:
    batch = pa.RecordBatch.from_pylist([{"k": key, "v": "x"}], schema=normalise(SCHEMA))
    return NewEntry(encode_batch(batch), (stream_tag("in"),), rows=1)


async def test_while_the_log_is_away_it_waits_and_says_so(tmp_path: Path) -> None:
    config = ServerConfig(data_dir=tmp_path / "log")
    target = MemoryTarget()
    async with served(config) as server:
        log = await server.connect(timeout=1.0)
        delivery = await make_delivery(log)
        player = await Player.open(log, delivery, [host_of(target)])
        running = asyncio.create_task(player.run())
        await log.append([entry(1)])
        await until(lambda: len(target.rows) == 1)
    await until(lambda: "Waiting for the log" in player.status()["message"])
    flushed = asyncio.create_task(player.flush())  # appends, with an end that it cannot know
    await asyncio.sleep(2.5)  # beyond the client's own patience
    assert not running.done()
    async with served(config) as server:
        async with await server.connect() as other:
            await other.append([entry(2)])
            await until(lambda: len(target.rows) == 2)
            await flushed
            await until(lambda: "Waiting for rows" in player.status()["message"])
            player.stop(30)
            await running
        await log.close()

    assert [row["k"] for row in target.rows] == [1, 2]


async def test_it_can_be_stopped_while_the_log_is_away_from_the_beginning(tmp_path: Path) -> None:
    """The name is claimed, and then nothing can be written."""
    async with served(ServerConfig(data_dir=tmp_path / "log")) as server:
        log = await server.connect(timeout=1.0)
        player = await Player.open(log, await make_delivery(log), [host_of(MemoryTarget())])
    running = asyncio.create_task(player.run())
    await until(lambda: log.connection is None)
    player.stop(0.1)

    async with asyncio.timeout(60):
        await running
        await log.close()


async def test_a_player_without_anything_to_write_notices_another(tmp_path: Path) -> None:
    """By the other's first ack, and also if only its claim is there when it wants to write."""
    async with served(ServerConfig(data_dir=tmp_path / "log")) as server:
        log = await server.connect()
        delivery = await make_delivery(log)
        targets = [MemoryTarget() for _ in range(3)]
        player = await Player.open(log, delivery, [host_of(targets[0])])
        first = asyncio.create_task(player.run())

        async def is_at_rest() -> bool:
            value = await log.get(delivered_key("away"))
            return value is not None and decode_delivered("away", value.data).positions == [0]

        await until(is_at_rest)
        player = await Player.open(log, delivery, [host_of(targets[1])])
        second = asyncio.create_task(player.run())
        with pytest.raises(Fenced, match="instance 1, and goes on in its place"):
            async with asyncio.timeout(30):
                await first
        await until(lambda: player.core.tail is not None)
        await log.claim(player_producer("away"))
        await log.append([entry(1)])  # its position will move, and that is to be written
        with pytest.raises(Fenced, match="another player of delivery away"):
            async with asyncio.timeout(30):
                await second
        await log.close()


async def test_a_player_of_a_removed_delivery_writes_no_ack(tmp_path: Path) -> None:
    """One that is made later under the name would be taken for as far as that."""
    async with served(ServerConfig(data_dir=tmp_path / "log")) as server:
        log = await server.connect()
        delivery = await make_delivery(log)
        claim = await Claim.open(log, delivery)
        ack = Delivered(claim.term, [7], [None], [0], True, None, 0)
        await claim.write(ack)
        removed = [SetKey(deliver_key("away"), None), SetKey(delivered_key("away"), None)]
        await log.append([], sets=removed)

        with pytest.raises(NotFound, match="was removed"):
            await claim.write(ack)
        assert await log.get(delivered_key("away")) is None
        await log.close()


# ---- trimming


def register_query(log: penstock.Log, position: int) -> None:
    """A query that has read `in` up to here."""
    query = RegisteredQuery(
        name="q", id="an-id", version=1, plan="", mode="append", to="out", starts={"in": 0},
        tasks=[1], created_ms=1,
    )  # fmt: skip
    value = log.client.get(query_key("q"))
    expected = None if value is None else value.data
    log.client.compare_and_set(query_key("q"), expected=expected, value=encode_query(query))
    task = TaskId("q", 1, 0, 0)
    with log.client.appender(task.producer) as appender:
        marker = Marker(str(task), appender.instance, 0, Lsn(position), 0)
        appender.append([NewEntry(encode_marker(marker), (task.marker_tag,), Kind.MARKER)])


def test_trimming_spares_what_a_delivery_needs_also_one_that_is_stopped(
    own_log: penstock.Log,
) -> None:
    stream = own_log.create_stream("in", SCHEMA)
    slow, fast = MemoryTarget(), MemoryTarget()
    append(stream, *range(10))
    with penstock.deliver(stream, [slow, fast], key="k", name="d") as delivery:
        delivery.processAllAvailable()
        slow.runs.clear()
        for _ in range(5):
            append(stream, *range(10))
        wait_until(lambda: len(fast.rows) % 6 == 0 and len(fast.rows) > 6)
        register_query(own_log, own_log.bounds().tail)
        held = slow.position
        assert held is not None
        wait_until(lambda: own_log.client.run(find_trim_point) > 0)
        assert own_log.client.run(trim_consumed) <= held
        slow.runs.set()
        delivery.processAllAvailable()
    total = len(slow.rows) + len(fast.rows)
    append(stream, *range(10))
    register_query(own_log, own_log.bounds().tail)
    point = own_log.client.run(trim_consumed)

    assert point == min(slow.position or 0, fast.position or 0), "it is stopped, and still spared"
    with penstock.deliver(stream, [slow, fast], key="k", name="d") as delivery:
        delivery.processAllAvailable()
    assert len(slow.rows) + len(fast.rows) == total + 10 == 70


def test_a_delivery_that_never_ran_is_spared_from_its_start_and_a_removed_one_is_not(
    own_log: penstock.Log,
) -> None:
    stream = own_log.create_stream("in", SCHEMA)
    append(stream, 1)
    with penstock.deliver(stream, MemoryTarget(), name="d"):
        pass
    (delivery, _) = list_deliveries(own_log.client)[0]
    append(stream, *range(10))
    register_query(own_log, own_log.bounds().tail)
    key = "delivered/d"
    value = own_log.client.get(key)
    assert value is not None
    own_log.client.compare_and_set(key, expected=value.data, value=None)

    assert own_log.client.run(find_trim_point) == delivery.start == 0
    remove_delivery(own_log.client, "d")
    assert own_log.client.run(find_trim_point) > delivery.start


def test_without_queries_deliveries_alone_trim_nothing(own_log: penstock.Log) -> None:
    stream = own_log.create_stream("in", SCHEMA)
    append(stream, 1)
    with penstock.deliver(stream, MemoryTarget(), name="d") as delivery:
        delivery.processAllAvailable()

    assert own_log.client.run(find_trim_point) == 0


def test_staged_entries_that_a_later_marker_names_are_spared(own_log: penstock.Log) -> None:
    """The delivery is past them, but what counts at the marker is ahead of it."""
    stream = own_log.create_stream("in", SCHEMA)
    register_query(own_log, 0)
    task = TaskId("q", 1, 0, 0)
    target = MemoryTarget()
    with own_log.client.appender(task.producer) as appender:
        staged = appender.append([entry(7)._replace(kind=Kind.STAGED)])
        append(stream, 1)
        with penstock.deliver(stream, target, name="d") as delivery:
            delivery.processAllAvailable()
        named = (Range(staged.first_lsn, staged.count),)
        tail = own_log.bounds().tail
        marker = Marker(str(task), appender.instance, 1, tail, 0, ranges=named)
        tags = with_naming([task.marker_tag, stream_tag("in")])
        appender.append([NewEntry(encode_marker(marker), tags, Kind.MARKER)])
    assert (target.position or 0) > staged.first_lsn

    assert own_log.client.run(trim_consumed) <= staged.first_lsn
    with penstock.deliver(stream, target, name="d") as delivery:
        delivery.processAllAvailable()
    assert [row["k"] for row in target.rows] == [1, 7]


def test_a_target_below_the_trim_point_stops_and_the_others_run_on(own_log: penstock.Log) -> None:
    stream = own_log.create_stream("in", SCHEMA)
    old, new = MemoryTarget(), MemoryTarget()
    append(stream, *range(10))
    with penstock.deliver(stream, [old, new], key="k", name="d") as delivery:
        delivery.processAllAvailable()
        backup = old.backup()
        append(stream, *range(10))
        delivery.processAllAvailable()
    own_log.trim(min(old.position or 0, new.position or 0))
    old.restore(backup)
    count = len(new.rows)

    with penstock.deliver(stream, [old, new], key="k", name="d") as delivery:
        append(stream, *range(10))
        with pytest.raises(Trimmed, match=f"target 0 stands at LSN {backup[0]}.*newer backup"):
            delivery.processAllAvailable()
        wait_until(lambda: len(new.rows) == count * 3 // 2)
        assert delivery.isActive

    assert len(old.rows) == len(backup[1])


def test_a_trim_by_hand_below_everybody_ends_it_in_words(own_log: penstock.Log) -> None:
    stream = own_log.create_stream("in", SCHEMA)
    append(stream, 1)
    target = MemoryTarget()
    with penstock.deliver(stream, target, name="d") as delivery:
        delivery.processAllAvailable()
    append(stream, *range(10))
    own_log.trim("latest")

    delivery = penstock.deliver(stream, target, name="d")
    with pytest.raises(Trimmed, match="deliver anew"):
        delivery.awaitTermination(30)
    delivery.stop()


def test_a_target_of_another_log_is_told_so(own_log: penstock.Log) -> None:
    stream = own_log.create_stream("in", SCHEMA)
    target = MemoryTarget()
    target.position = Lsn(1_000_000)

    delivery = penstock.deliver(stream, target, name="d")
    with pytest.raises(penstock.Refused, match="another log"):
        delivery.awaitTermination(30)
    delivery.stop()
