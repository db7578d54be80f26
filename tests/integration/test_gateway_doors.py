"""The two listeners of the gateway: who says nothing keeps nobody out, and certificates are read
again when they were replaced."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from harness.http_gateway import HttpClient, gateway_thread
from harness.kafka_clients import produce, settings
from harness.kafka_wire import wire
from harness.waiting import wait_until
from tls_material import Authority, CertificateFiles

import penstock
from penstock.gateway import guests
from penstock.gateway.config import GatewayConfig
from penstock.gateway.kafka import listener
from penstock.log.serving import tls_files
from penstock.log.serving.directory import Address

WAITING, KNOWN, SILENT = 20, 4, 60
#: A client that need not wait for anybody is in long before; a deadline's end would come later.
SECONDS_MAX = 4.0


@dataclass(frozen=True)
class Doors:
    """A gateway's two listeners; with `ca`, both speak TLS."""

    http: Address
    kafka: Address
    token: str
    ca: Path | None

    def ask_http(self) -> int:
        tls = None if self.ca is None else ssl.create_default_context(cafile=self.ca)
        return HttpClient(self.http, self.token, tls).ask("GET", "/v1/streams").status

    def produce(self, name: str) -> None:
        more = {} if self.ca is None else {"ssl.ca.location": str(self.ca)}
        produce(Producer(settings(self.kafka, self.token) | more), name, [b"x"])


@contextlib.contextmanager
def doors(log: penstock.Log, files: CertificateFiles | None, ca: Path | None) -> Iterator[Doors]:
    cert, key = (None, None) if files is None else (files.cert, files.key)
    config = GatewayConfig(target=log.target, port=0, kafka_port=0, tls_cert=cert, tls_key=key)
    found: list[Address] = []
    token = (Path(log.target) / "token").read_text().strip()
    with gateway_thread(config, found.append) as http:
        yield Doors(http, found[0], token, ca)


@contextlib.contextmanager
def silent_sockets(address: Address) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        place = address.host, address.port
        yield [stack.enter_context(socket.create_connection(place, 10)) for _ in range(SILENT)]


def count_closed(sockets: list[socket.socket]) -> int:
    """How many of those who said nothing were cut off."""
    readable, _, _ = select.select(sockets, [], [], 0)
    return len(readable)


@pytest.mark.parametrize("has_tls", [False, True])
def test_sockets_that_say_nothing_keep_no_client_out(
    name: str, module_log: penstock.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    has_tls: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(guests, "WAITING_MAX", WAITING)
    monkeypatch.setattr(listener, "KAFKA_CONNECTIONS_MAX", SILENT)
    module_log.create_stream(f"{name}_{has_tls}", "value STRING", lanes=1)
    authority = Authority(tmp_path, "ours")
    files = authority.issue("gateway", hosts=("127.0.0.1",)) if has_tls else None
    with doors(module_log, files, authority.ca if has_tls else None) as gateway:
        for address in (gateway.kafka, gateway.http) if has_tls else (gateway.kafka,):
            with silent_sockets(address) as silent:
                wait_until(lambda silent=silent: count_closed(silent) >= SILENT - WAITING)
                began = time.monotonic()
                gateway.produce(f"{name}_{has_tls}")
                assert gateway.ask_http() == 200
                assert time.monotonic() - began < SECONDS_MAX


def test_clients_with_a_token_are_as_many_as_the_gateway_takes(
    module_log: penstock.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "KAFKA_CONNECTIONS_MAX", KNOWN)
    with doors(module_log, None, None) as gateway, contextlib.ExitStack() as stack:
        for _ in range(KNOWN):
            client = stack.enter_context(wire(gateway.kafka))
            for _ in range(2):  # who shows its token again takes no second place
                assert client.log_in(gateway.token) is not None
        with wire(gateway.kafka) as crowded:
            assert crowded.log_in(gateway.token) is None
        stack.close()
        deadline = time.monotonic() + SECONDS_MAX
        told = None
        while told is None:
            assert time.monotonic() < deadline, "their places are not free again"
            with wire(gateway.kafka) as client:
                told = client.log_in(gateway.token)


def test_who_is_slow_to_show_a_token_is_cut_off(
    module_log: penstock.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HEAD_SECONDS_MAX", 0.1)
    with doors(module_log, None, None) as gateway:
        with wire(gateway.kafka) as slow:
            slow.ask(17, 1, {"mechanism": "PLAIN"})
            assert slow.receive() is None
        with wire(gateway.kafka) as client:
            client.log_in(gateway.token)
            time.sleep(0.5)
            assert client.ask(3, 12, {"topics": []}) is not None, "who has shown one stays"


def test_a_replaced_certificate_is_shown_without_a_restart(
    name: str, module_log: penstock.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_files, "LOOK_SECONDS", 0.0)
    module_log.create_stream(name, "value STRING", lanes=1)
    old, new = Authority(tmp_path / "old", "old"), Authority(tmp_path / "new", "new")
    files = old.issue("gateway", hosts=("127.0.0.1",))
    with doors(module_log, files, old.ca) as gateway:
        ways = settings(gateway.kafka, gateway.token) | {"ssl.ca.location": str(old.ca)}
        standing = Producer(ways)
        produce(standing, name, [b"1"])
        assert gateway.ask_http() == 200
        fresh = new.issue("gateway", hosts=("127.0.0.1",))
        files.cert.write_bytes(fresh.cert.read_bytes())
        assert gateway.ask_http() == 200, "its key is still the old one, and so is what is shown"
        files.key.write_bytes(fresh.key.read_bytes())
        renewed = Doors(gateway.http, gateway.kafka, gateway.token, new.ca)
        assert renewed.ask_http() == 200
        renewed.produce(name)
        with pytest.raises(ssl.SSLError):
            gateway.ask_http()
        with pytest.raises(KafkaException):
            AdminClient(ways).list_topics(timeout=1)
        produce(standing, name, [b"2"])
    assert module_log.stream(name).read().num_rows == 3, "who is connected stays"
