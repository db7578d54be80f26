"""Gateways and the log server die at random while Kafka's clients write, idempotently and in
transactions: nothing is lost, doubled or put in another order, and transactions count whole.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from embedded_server import kill_server
from harness.http_gateway import ForkedGateway
from harness.kafka_clients import SECONDS, settings
from harness.ports import free_ports
from harness.soak import fresh_seeds
from harness.waiting import wait_until

import penstock
from penstock.gateway.config import GatewayConfig
from penstock.log.serving.directory import Address

PRODUCERS = 2
LANES = 2


class Writer(threading.Thread):
    """Sends 0, 1, 2, … to each partition, as fast as they are answered."""

    def __init__(self, name: str, ways: dict[str, Any], done: threading.Event) -> None:
        super().__init__(name=name)
        self._producer = Producer(ways)
        self._done = done
        self.sent = 0
        self.errors: list[Any] = []

    def run(self) -> None:
        while not self._done.is_set() and not self.errors:
            for lane in range(LANES):
                value = f"{self.name}/{lane}/{self.sent}".encode()
                self._producer.produce("s", value, partition=lane, on_delivery=self._answered)
            self.sent += 1
            self._producer.poll(0.002)
        if self._producer.flush(2 * SECONDS):
            self.errors.append("not all were answered")

    def _answered(self, error: Any, _: object) -> None:
        if error is not None:
            self.errors.append(error)


def run_kills(log: penstock.Log, seed: int, *, kills: int) -> None:
    draw = random.Random(seed)
    log.create_stream("s", "value BINARY", lanes=LANES)
    token = (Path(log.target) / "token").read_text().strip()
    ports = free_ports(2)
    configs = [GatewayConfig(target=log.target, port=0, kafka_port=port) for port in ports]
    gateways = [ForkedGateway(config) for config in configs]
    ways = settings(Address("127.0.0.1", ports[0], False), token) | {
        "bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in ports),
        "enable.idempotence": True, "linger.ms": 2, "batch.num.messages": 20,
        "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 10,
    }  # fmt: skip
    done = threading.Event()
    writers = [Writer(f"w{at}", ways, done) for at in range(PRODUCERS)]
    try:
        for writer in writers:
            writer.start()
        time.sleep(0.5)
        for number in range(kills):
            time.sleep(draw.uniform(0.1, 0.4))
            if number % 5 == 4:
                kill_server(Path(log.target))
            else:
                which = draw.randrange(2)
                gateways[which].kill()
                gateways[which] = ForkedGateway(configs[which])
        time.sleep(0.3)
        done.set()
        for writer in writers:
            writer.join(3 * SECONDS)
            assert not writer.is_alive()
            assert not writer.errors, writer.errors[0]
    finally:
        done.set()
        for gateway in gateways:
            gateway.kill()
    found: dict[str, list[int]] = defaultdict(list)
    for row in log.stream("s").read().to_pylist():
        place, _, number = row["value"].decode().rpartition("/")
        found[place].append(int(number))
    assert found == {
        f"{each.name}/{lane}": list(range(each.sent)) for each in writers for lane in range(LANES)
    }


class Pump(threading.Thread):
    """Moves rows from one stream to another, each in a transaction with its offset.

    Whatever goes wrong, it begins anew, as after a crash: from what the log says it has done.
    """

    def __init__(self, ways: dict[str, Any], rows: int) -> None:
        super().__init__(name="pump")
        self._ways = ways
        self._rows = rows
        self.moved = 0
        self.crashes = 0

    def run(self) -> None:
        deadline = time.monotonic() + 3 * SECONDS
        while time.monotonic() < deadline:
            consumer = Consumer(self._ways | {"group.id": "pump", "enable.auto.commit": False})
            try:
                self._pump(consumer)
                return
            except (KafkaException, TimeoutError):
                self.crashes += 1
            finally:
                consumer.close()

    def _pump(self, consumer: Consumer) -> None:
        producer = Producer(self._ways | {"transactional.id": "pump"})
        producer.init_transactions(5)
        (done,) = consumer.committed([TopicPartition("in", 0)], 5)
        start = done.offset if done.offset >= 0 else -2
        consumer.assign([TopicPartition("in", 0, start)])
        while True:
            message = consumer.poll(2)
            if message is None or message.error() is not None:
                if done.offset >= 0 and done.offset & 0xFFFF == self._rows:
                    return
                raise TimeoutError
            producer.begin_transaction()
            producer.produce("out", message.value(), partition=0)
            producer.produce("copy", message.value(), partition=1)
            done = TopicPartition("in", 0, message.offset() + 1)
            producer.send_offsets_to_transaction([done], consumer.consumer_group_metadata(), 5)
            producer.commit_transaction(5)
            self.moved += 1


def run_pump(log: penstock.Log, seed: int, *, kills: int, rows: int) -> int:
    """How often it began anew."""
    draw = random.Random(seed)
    for name in ("in", "out", "copy"):
        log.create_stream(name, "value STRING", lanes=1 if name == "in" else LANES)
    log.stream("in").append([{"value": f"{n}"} for n in range(rows)])
    token = (Path(log.target) / "token").read_text().strip()
    (port,) = free_ports(1)
    config = GatewayConfig(target=log.target, port=0, kafka_port=port)
    gateway = ForkedGateway(config)
    ways = settings(Address("127.0.0.1", port, False), token) | {
        "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 10,
        # librdkafka 2.16 forgets the only broker when it is away, and then waits for good for the
        # group's coordinator, which it remembers as that one.
        "metadata.recovery.strategy": "none",
    }  # fmt: skip
    pump = Pump(ways, rows)
    pump.start()
    try:
        for number in range(kills):
            before = pump.moved
            wait_until(
                lambda before=before: pump.moved > before or not pump.is_alive(),
                seconds=3 * SECONDS,
            )
            time.sleep(draw.uniform(0, 0.1))
            if number % 4 == 3:
                kill_server(Path(log.target))
            else:
                gateway.kill()
                gateway = ForkedGateway(config)
        pump.join(3 * SECONDS)
        assert not pump.is_alive()
    finally:
        gateway.kill()
    for name in ("out", "copy"):
        found = [row["value"] for row in log.stream(name).read().to_pylist()]
        assert found == [f"{n}" for n in range(rows)], name
    return pump.crashes


def test_transactions_count_once_and_whole_whatever_dies(own_log: penstock.Log) -> None:
    run_pump(own_log, 21, kills=3, rows=100)


def test_kills_lose_double_and_reorder_nothing(own_log: penstock.Log) -> None:
    run_kills(own_log, 21, kills=10)


@pytest.mark.soak
def test_many_kills_lose_double_and_reorder_nothing(tmp_path: Path) -> None:
    for seed in fresh_seeds():
        with penstock.connect(tmp_path / str(seed)) as log:
            run_kills(log, seed, kills=50)
        with penstock.connect(tmp_path / f"{seed}-pump") as log:
            run_pump(log, seed, kills=20, rows=1000)
