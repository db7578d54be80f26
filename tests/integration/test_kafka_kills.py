"""Gateways and the log server die at random while idempotent producers of Kafka's write: nothing is
lost, doubled or put in another order.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from embedded_server import kill_server
from harness.http_gateway import ForkedGateway
from harness.kafka_clients import SECONDS, settings
from harness.soak import fresh_seeds

import penstock
from penstock.gateway.config import GatewayConfig
from penstock.log.serving.directory import Address

PRODUCERS = 2
LANES = 2


def free_ports(count: int) -> list[int]:
    """Gateways come back where they were, as under a supervisor."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


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


def test_kills_lose_double_and_reorder_nothing(own_log: penstock.Log) -> None:
    run_kills(own_log, 21, kills=10)


@pytest.mark.soak
def test_many_kills_lose_double_and_reorder_nothing(tmp_path: Path) -> None:
    for seed in fresh_seeds():
        with penstock.connect(tmp_path / str(seed)) as log:
            run_kills(log, seed, kills=50)
