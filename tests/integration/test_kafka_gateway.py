"""Unchanged clients of Kafka at the gateway, on a real log and real sockets."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioTopic
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from harness.http_gateway import gateway_thread
from harness.kafka_clients import SECONDS, consume, produce, settings
from harness.kafka_member import Member
from harness.waiting import wait_until
from tls_material import Authority

import penstock
from penstock.errors import BadConfig
from penstock.gateway.config import GatewayConfig
from penstock.gateway.kafka import producing
from penstock.log.core.rights import allow_caveat
from penstock.log.serving.directory import Address
from penstock.wire.token import ID_LETTERS, make_token


@pytest.fixture(scope="module")
def address(module_log: penstock.Log) -> Iterator[Address]:
    found: list[Address] = []
    config = GatewayConfig(target=module_log.target, port=0, kafka_port=0)
    with gateway_thread(config, found.append):
        yield found[0]


@pytest.fixture
def token(module_log: penstock.Log) -> str:
    return (Path(module_log.target) / "token").read_text().strip()


@pytest.fixture
def ways(address: Address, token: str) -> dict[str, Any]:
    return settings(address, token)


def reader(ways: dict[str, Any], topic: str, lanes: int = 1, **more: Any) -> Consumer:
    given = {"group.id": "nobody", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer(ways | given | more)
    consumer.assign([TopicPartition(topic, lane, -2) for lane in range(lanes)])
    return consumer


def test_records_go_in_and_come_out(
    ways: dict[str, Any], name: str, module_log: penstock.Log
) -> None:
    admin = AdminClient(ways)
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(SECONDS)
    found = admin.list_topics(timeout=SECONDS).topics[name]
    assert sorted(found.partitions) == [0, 1, 2]
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer(ways | {"enable.idempotence": True, "compression.type": codec})
        sent = produce(
            producer, name, [f"{codec}-{n}".encode() * 20 for n in range(50)],
            key=b"k", headers=[("h", b"x"), ("none", None)], timestamp=1_700_000_000_123,
            partition=1,
        )  # fmt: skip
        assert len(sent) == 50
    consumer = reader(ways, name, 3)
    read = consume(consumer, 250)
    assert [each.value() for each in read[:50]] == [b"none-%d" % n * 20 for n in range(50)]
    assert {each.partition() for each in read} == {1}
    assert read[0].headers() == [("h", b"x"), ("none", None)]
    assert read[0].timestamp() == (1, 1_700_000_000_123)
    offsets = [each.offset() for each in read]
    assert offsets == sorted(set(offsets))
    consumer.close()
    rows = module_log.stream(name).read().to_pylist()
    assert rows[0]["key"] == b"k" and len(rows) == 250
    assert rows[0]["headers"] == [{"key": "h", "value": b"x"}, {"key": "none", "value": None}]


def test_values_of_json_are_rows_of_the_stream(
    ways: dict[str, Any], name: str, module_log: penstock.Log
) -> None:
    stream = module_log.create_stream(name, "n long NOT NULL, s string", lanes=1)
    produce(Producer(ways), name, [b'{"n": 1, "s": "\xc3\xa9"}', b'{"n": 2}'])
    assert stream.read().to_pylist() == [{"n": 1, "s": "é"}, {"n": 2, "s": None}]
    stream.append([{"n": 3, "s": "x"}])
    consumer = reader(ways, name)
    read = [json.loads(each.value()) for each in consume(consumer, 3)]
    assert [each["n"] for each in read] == [1, 2, 3]
    consumer.close()
    with pytest.raises(AssertionError, match="INVALID_RECORD"):
        produce(Producer(ways), name, [b'{"n": "no"}'])


def test_a_group_shares_partitions_and_goes_on_without_a_member(
    ways: dict[str, Any], name: str
) -> None:
    admin = AdminClient(ways)
    admin.create_topics([NewTopic(name, 6, 1)])[name].result(SECONDS)
    producer = Producer(ways)
    for lane in range(6):
        produce(producer, name, [b"%d-%d" % (lane, n) for n in range(20)], partition=lane)
    given = {
        "group.id": f"of-{name}", "auto.offset.reset": "earliest", "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 300, "enable.auto.commit": False,
    }  # fmt: skip
    members = [Consumer(ways | given) for _ in range(3)]
    for each in members:
        each.subscribe([name])
    found: list[bytes] = []
    wait_until(lambda: poll_all(members, found) and shared_out(members) == [2, 2, 2])
    wait_until(lambda: poll_all(members, found) and len(found) >= 120)
    assert len(found) == len(set(found)) == 120
    members.pop().close()
    wait_until(lambda: poll_all(members, found) and shared_out(members) == [3, 3])
    produce(producer, name, [b"more"], partition=5)
    wait_until(lambda: poll_all(members, found) and found[-1] == b"more")
    assert len(found) == 121  # nothing that was committed came again
    for each in members:
        each.close()


def test_a_group_goes_on_when_a_member_is_killed(ways: dict[str, Any], name: str) -> None:
    """Its partitions go to the others. Of what it had read, only what it was about to commit comes
    again; nothing else comes twice, is lost, or changes its order."""
    lanes, each_lane = 6, 60
    admin = AdminClient(ways)
    admin.create_topics([NewTopic(name, lanes, 1)])[name].result(SECONDS)
    producer = Producer(ways)
    given = {
        "group.id": f"of-{name}", "auto.offset.reset": "earliest", "enable.auto.commit": False,
        "session.timeout.ms": 3000, "heartbeat.interval.ms": 300,
    }  # fmt: skip
    members = [Member(ways | given, name) for _ in range(3)]
    try:
        wait_until(lambda: [len(one.partitions) for one in members] == [2, 2, 2])
        for at in range(each_lane):
            for lane in range(lanes):
                producer.produce(name, b"%d" % at, partition=lane)
            producer.poll(0.01)
            if at == each_lane // 3:
                wait_until(lambda: len({lane for lane, _ in members[0].read[4:]}) == 2)
                members[0].kill()
        assert not producer.flush(SECONDS)
        killed, *others = members
        wait_until(lambda: [len(one.partitions) for one in others] == [3, 3])
        by_killed = Counter(killed.read)
        lost = set(killed.partitions)
        whole = {(lane, str(at)) for lane in range(lanes) for at in range(each_lane)}
        wait_until(lambda: whole <= {*by_killed, *others[0].read, *others[1].read})
        read = by_killed + Counter(others[0].read) + Counter(others[1].read)
        assert set(read) == whole
        twice = {place for place, times in read.items() if times > 1}
        assert max(read.values()) <= 2 and twice <= set(killed.read[-1:])
        for one in members:
            for lane in range(lanes):
                own = [int(value) for at, value in one.read if at == lane]
                assert own == sorted(own)
        assert {lane for lane, _ in killed.read} == lost
    finally:
        for one in members:
            one.kill()


def poll_all(members: list[Consumer], found: list[bytes]) -> bool:
    for each in members:
        message = each.poll(0.02)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message.value())
            each.commit(message=message, asynchronous=False)
    return True


def shared_out(members: list[Consumer]) -> list[int]:
    """How many partitions each has."""
    return [len(each.assignment()) for each in members]


def test_a_transaction_counts_as_a_whole_with_its_offsets(
    ways: dict[str, Any], name: str, module_log: penstock.Log
) -> None:
    for each in (f"{name}_in", f"{name}_a", f"{name}_b"):
        module_log.create_stream(each, "value BINARY", lanes=2)
    produce(Producer(ways), f"{name}_in", [b"1", b"2"], partition=0)
    given = {"group.id": f"of-{name}", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer(ways | given)
    consumer.subscribe([f"{name}_in"])
    consume(consumer, 2)
    old = Producer(ways | {"transactional.id": name})
    old.init_transactions(SECONDS)
    old.begin_transaction()
    produce(old, f"{name}_a", [b"aborted"])
    old.abort_transaction(SECONDS)
    old.begin_transaction()
    produce(old, f"{name}_a", [b"x", b"y"], partition=0)
    produce(old, f"{name}_b", [b"z"], partition=1)
    a, b = module_log.stream(f"{name}_a"), module_log.stream(f"{name}_b")
    assert not a.read().num_rows
    positions = consumer.position(consumer.assignment())
    old.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), SECONDS)
    assert consumer.committed([TopicPartition(f"{name}_in", 0)], SECONDS)[0].offset < 0
    old.commit_transaction(SECONDS)
    assert [row["value"] for row in a.read().to_pylist()] == [b"x", b"y"]
    assert [row["value"] for row in b.read().to_pylist()] == [b"z"]
    committed = consumer.committed([TopicPartition(f"{name}_in", 0)], SECONDS)[0].offset
    assert committed == max(each.offset for each in positions)
    consumer.close()
    # A newer producer of the id fences the older, whatever it has begun.
    old.begin_transaction()
    produce(old, f"{name}_a", [b"zombie"])
    new = Producer(ways | {"transactional.id": name})
    new.init_transactions(SECONDS)
    with pytest.raises(KafkaException):
        old.commit_transaction(SECONDS)
    new.begin_transaction()
    produce(new, f"{name}_a", [b"new"])
    new.commit_transaction(SECONDS)
    assert [row["value"] for row in a.read().to_pylist()] == [b"x", b"y", b"new"]


def test_aiokafka_writes_reads_and_commits(address: Address, token: str, name: str) -> None:
    ways: dict[str, Any] = {
        "bootstrap_servers": f"{address.host}:{address.port}", "sasl_plain_username": "me",
        "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN",
        "sasl_plain_password": token,
    }  # fmt: skip

    group = {"group_id": f"of-{name}", "auto_offset_reset": "earliest"}
    isolated = {"isolation_level": "read_committed", "enable_auto_commit": False}
    lanes = [AioPartition(name, lane) for lane in range(2)]

    async def run() -> None:
        admin = AIOKafkaAdminClient(**ways)
        await admin.start()
        await admin.create_topics([AioTopic(name, 2, 1)])
        await admin.close()
        producer = AIOKafkaProducer(**ways, transactional_id=name)
        await producer.start()
        async with producer.transaction():
            for n in range(10):
                await producer.send_and_wait(name, b"%d" % n, partition=n % 2)
        async with AIOKafkaConsumer(name, **ways, **group, **isolated) as consumer:
            read = [await consumer.getone() for _ in range(10)]
            assert sorted(each.value for each in read) == [b"%d" % n for n in range(10)]
            await consumer.commit()
            assert {lane: await consumer.committed(lane) for lane in lanes} == behind(read)
            assert await consumer.end_offsets(lanes) == behind(read)
            found = await consumer.offsets_for_times({lanes[0]: 0})
            begins = await consumer.beginning_offsets(lanes)
            assert found[lanes[0]].offset == begins[lanes[0]]
        async with producer.transaction():
            for lane in range(2):
                await producer.send_and_wait(name, b"more", partition=lane)
        await producer.stop()
        # What was committed does not come again.
        async with AIOKafkaConsumer(name, **ways, **group, **isolated) as consumer:
            read = [await consumer.getone() for _ in range(2)]
            assert sorted((each.partition, each.value) for each in read) == [
                (0, b"more"), (1, b"more"),
            ]  # fmt: skip
            assert not await consumer.getmany(timeout_ms=200)
            await consumer.commit()
            assert {lane: await consumer.committed(lane) for lane in lanes} == behind(read)

    asyncio.run(run())


def behind(read: list[Any]) -> dict[AioPartition, int]:
    """Of each partition, the offset behind the last record that was read."""
    return {
        AioPartition(each.topic, each.partition): each.offset + 1
        for each in sorted(read, key=lambda each: each.offset)
    }


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (Debian: kcat)")
def test_kcat_lists_writes_and_reads_to_the_end(ways: dict[str, Any], name: str) -> None:
    admin = AdminClient(ways)
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(SECONDS)
    options = [f"-X{key}={value}" for key, value in ways.items() if key != "bootstrap.servers"]
    command = ["kcat", "-b", ways["bootstrap.servers"], *options]

    def run(*more: str, text: str = "") -> str:
        done = subprocess.run(
            [*command, *more], input=text, capture_output=True, text=True, timeout=SECONDS
        )
        assert not done.returncode, done.stderr
        return done.stdout

    assert f'topic "{name}" with 2 partitions' in run("-L", "-t", name)
    run("-P", "-t", name, "-K:", text="a:1\nb:2\na:3\n")
    # -e: until the end of each partition, which it must be told.
    read = run("-C", "-t", name, "-e", "-q", "-f", "%k=%s\n")
    assert sorted(read.split()) == ["a=1", "a=3", "b=2"]


def test_clients_speak_tls_and_take_only_a_certificate_that_they_trust(
    module_log: penstock.Log, token: str, name: str, tmp_path: Path
) -> None:
    stream = module_log.create_stream(name, "value STRING", lanes=1)
    authority = Authority(tmp_path / "ca", "test")
    files = authority.issue("gateway", hosts=("127.0.0.1",))
    config = GatewayConfig(
        target=module_log.target, port=0, kafka_port=0, tls_cert=files.cert, tls_key=files.key
    )
    found: list[Address] = []
    with gateway_thread(config, found.append):
        ways = settings(found[0], token)
        assert ways["security.protocol"] == "SASL_SSL"
        produce(Producer(ways | {"ssl.ca.location": str(authority.ca)}), name, [b"x"])
        with pytest.raises(KafkaException):
            AdminClient(ways).list_topics(timeout=1)
    assert stream.read().to_pylist() == [{"value": "x"}]


def test_it_listens_on_this_machine_only_unless_it_has_a_certificate() -> None:
    with pytest.raises(BadConfig, match="needs TLS"):
        GatewayConfig(kafka_host="0.0.0.0", kafka_port=9092).validate()
    with pytest.raises(BadConfig, match="kafka_advertise"):
        GatewayConfig(kafka_port=9092, kafka_advertise="nowhere").validate()


def test_producers_that_are_silent_are_forgotten(
    ways: dict[str, Any], name: str, module_log: penstock.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    module_log.create_stream(name, "value STRING", lanes=1)
    idle = Producer(ways | {"enable.idempotence": True})
    produce(idle, name, [b"x"])
    prefix = f"kafka/seq/{name}/"

    def kept() -> int:
        return sum(key.startswith(prefix) for key in module_log.client.list_metadata(prefix))

    assert kept() == 1
    monkeypatch.setattr(producing, "IDLE_MS", 0)
    monkeypatch.setattr(producing, "_LOOK_MS", 0)
    time.sleep(0.01)
    # Opens a producer, and so looks: the session's own time to look has not come, another's has.
    id = "f" * ID_LETTERS
    other = ways | {
        "sasl.password": make_token(ways["sasl.password"], id, [allow_caveat(["append:*"])])
    }
    produce(Producer(other | {"enable.idempotence": True}), name, [b"y"])
    assert kept() == 1  # the newer one's
