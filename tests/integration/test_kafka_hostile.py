"""Whoever has no token, too little of one, or sends what is no request: refused, and nothing else.

What is sent is Kafka's protocol by hand, so that it can be wrong in every place.
"""

from __future__ import annotations

import logging
import random
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from harness.http_gateway import gateway_thread
from harness.kafka_clients import SECONDS, consume, produce, settings
from harness.kafka_wire import Wire, request, wire
from harness.mutation import mutate

import penstock
from penstock.gateway.config import GatewayConfig
from penstock.gateway.kafka.schemas import APIS
from penstock.log.core.rights import allow_caveat
from penstock.log.serving.directory import Address
from penstock.wire.token import ID_LETTERS, make_token

#: A slice: test_mutated_frames.py has the rest.
FRAMES = 6_000


@pytest.fixture(scope="module")
def address(module_log: penstock.Log) -> Iterator[Address]:
    found: list[Address] = []
    config = GatewayConfig(target=module_log.target, port=0, kafka_port=0)
    with gateway_thread(config, found.append):
        yield found[0]


@pytest.fixture
def token(module_log: penstock.Log) -> str:
    return (Path(module_log.target) / "token").read_text().strip()


def test_nothing_is_told_before_a_token(address: Address, token: str) -> None:
    bad = ["", "x", token[:-1], token + "a", token[::-1], "é", "a" * 5000]
    for each in bad:
        with wire(address) as client:
            told = client.log_in(each)
            assert told is not None and told["error"] == 58
            assert client.receive() is None
    for key, api in APIS.items():
        if key in (17, 18, 36):
            continue
        for version in (api.first, api.last):
            with wire(address) as client:
                told = client.ask(key, version, {})
                assert told is not None
                assert (
                    not told.get("topics")
                    and not told.get("brokers")
                    and "cluster" not in (name for name, value in told.items() if value)
                )
                assert client.receive() is None
    with wire(address) as client:
        told = client.ask(36, 2, {"auth": b"\0me\0" + token.encode()})
        assert told is not None and told["error"] == 58  # without a handshake
    with wire(address) as client:
        told = client.ask(17, 1, {"mechanism": "SCRAM-SHA-256"})
        assert told == {"error": 33, "mechanisms": ["PLAIN"]}


def test_what_is_not_served_is_answered(address: Address, token: str) -> None:
    with wire(address) as client:
        told = client.ask(18, 4, {})
        assert told is not None and told["error"] == 0 and len(told["apis"]) == len(APIS)
        client.send(struct.pack(">hhih", 18, 99, 7, -1))
        answer = client.receive()
        assert answer is not None and struct.unpack_from(">ih", answer) == (7, 35)
        client.log_in(token)
        for key, version in ((47, 0), (9999, 0), (3, 99), (0, 0), (-1, -1)):
            client.send(struct.pack(">hhih", key, version, 7, -1))
            assert client.receive() == struct.pack(">ih", 7, 35)
        assert client.ask(3, 12, {"topics": []}) is not None  # it goes on


def test_narrowed_tokens_do_what_they_allow(
    address: Address, token: str, name: str, module_log: penstock.Log
) -> None:
    for each in (name, f"{name}_b"):
        module_log.create_stream(each, "value BINARY", lanes=1)

    def ways(*rights: str) -> dict[str, Any]:
        return settings(
            address, make_token(token, secrets.token_hex(ID_LETTERS // 2), [allow_caveat(rights)])
        )

    writer = Producer(ways(f"append:{name}") | {"enable.idempotence": True})
    produce(writer, name, [b"x", b"y"])
    with pytest.raises(AssertionError, match=r"(?i)topic|unknown"):
        produce(writer, f"{name}_b", [b"x"])
    both = Producer(ways(f"append:{name}*") | {"transactional.id": "t"})
    both.init_transactions(SECONDS)
    both.begin_transaction()
    produce(both, name, [b"z"])
    produce(both, f"{name}_b", [b"z"])
    both.commit_transaction(SECONDS)
    consumer = Consumer(ways(f"read:{name}") | {"group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([name])
    assert [each.value() for each in consume(consumer, 3)] == [b"x", b"y", b"z"]
    consumer.commit(asynchronous=False)
    with pytest.raises(KafkaException):
        consumer.commit(offsets=[TopicPartition(f"{name}_b", 0, 1)], asynchronous=False)
    consumer.close()
    reader = Producer(ways(f"read:{name}") | {"message.timeout.ms": 3000})
    with pytest.raises(AssertionError):
        produce(reader, name, [b"no"])
    assert module_log.stream(name).read().num_rows == 3


def samples(name: str) -> list[bytes]:
    """A request of each kind, in its first and last version."""
    records = bytes.fromhex("00" * 61)
    part = {"index": 0, "records": records, "offset": 0, "time_ms": -1, "max_bytes": 1000}
    asked = {
        "topics": [{"name": name, "partitions": [part], "configs": []}], "acks": -1, "txn": "t",
        "group": "g", "member": "", "keys": ["g"], "mechanism": "PLAIN", "auth": b"\0a\0b",
        "session_ms": 6000, "protocols": [{"name": "range", "metadata": b"x"}],
        "kind": "consumer",
    }  # fmt: skip
    found = []
    for key, api in APIS.items():
        fitting = dict(asked)
        if key in (9, 24):
            fitting["topics"] = [{"name": name, "partitions": [0]}]
        if key == 19:
            fitting["topics"] = [{"name": "9no", "partitions": 1}]
        found += [request(key, version, fitting) for version in {api.first, api.last}]
    return found


def fuzz(address: Address, token: str, name: str, seed: int, count: int) -> None:
    draw = random.Random(seed)
    frames = samples(name)
    client: Wire | None = None
    for _ in range(count):
        if client is None:
            client = Wire(address)
            if draw.random() < 0.9:
                client.log_in(token)
        frame = mutate(draw, draw.choice(frames))
        if len(frame) < 8:
            continue
        key, version = struct.unpack_from(">hh", frame)
        if key == 11 or key == 1:
            continue  # they wait for others, or for rows, as they are asked to
        client.send(frame)
        if key == 0 and 3 <= version <= 11:
            client.socket.close()  # it may ask for no answer
            client = None
        elif client.receive() is None:
            client.socket.close()
            client = None
    if client is not None:
        client.socket.close()
    with wire(address) as last:
        last.log_in(token)
        assert last.ask(3, 12, {"topics": []}) is not None


def test_mutated_frames_do_no_harm(
    address: Address, token: str, name: str, module_log: penstock.Log,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    module_log.create_stream(name, "value BINARY", lanes=1)
    with caplog.at_level(logging.ERROR):
        fuzz(address, token, name, 21, FRAMES)
    assert not caplog.records
