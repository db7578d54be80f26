"""A gateway for tests, on a thread or as a process to be killed, and a client of its own."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import multiprocessing
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import uvloop

from penstock.gateway.config import GatewayConfig
from penstock.gateway.server import GatewayServer, run_gateway
from penstock.log.serving.directory import Address

_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class HttpClient:
    """One connection for each request, so that nothing is left over from the one before."""

    address: Address
    token: str | None = None
    tls: ssl.SSLContext | None = None

    def connection(self) -> http.client.HTTPConnection:
        host, port = self.address.host, self.address.port
        if self.tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=self.tls)
        return http.client.HTTPConnection(host, port, timeout=_SECONDS)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        shown = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        connection = self.connection()
        try:
            connection.request(method, path, body, {**shown, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def append(
        self, stream: str, rows: object, key: str | None = None, kind: str = "application/json"
    ) -> Answer:
        body = rows if isinstance(rows, bytes) else json.dumps(rows).encode()
        headers = {"Content-Type": kind}
        if key is not None:
            headers["Idempotency-Key"] = key
        return self.ask("POST", f"/v1/streams/{stream}/rows", body, headers)


class Stoppable(Protocol):
    """What runs until it is told to stop."""

    async def run(self) -> None: ...

    def stop(self) -> None: ...


def gateway_thread(
    config: GatewayConfig, on_kafka: Callable[[Address], None] = lambda address: None
) -> AbstractContextManager[Address]:
    """A gateway in this process; stops, and waits for it, in the end."""
    return serving_thread(lambda announce: GatewayServer(config, announce, on_kafka))


@contextmanager
def serving_thread(make: Callable[[Callable[[Address], None]], Stoppable]) -> Iterator[Address]:
    """The same for any server, which is made with what it is to tell where it listens."""
    ready: list[Address] = []
    event = threading.Event()

    def announce(address: Address) -> None:
        ready.append(address)
        event.set()

    server = make(announce)
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        try:
            await server.run()
        finally:
            event.set()

    thread = threading.Thread(target=lambda: uvloop.run(run()), name="server")
    thread.start()
    assert event.wait(_SECONDS)
    assert ready, "the server did not start"
    try:
        yield ready[0]
    finally:
        loops[0].call_soon_threadsafe(server.stop)
        thread.join(_SECONDS)
        assert not thread.is_alive()


def _serve(config: GatewayConfig, told: Connection) -> None:
    run_gateway(config, told.send)


class ForkedGateway:
    """A gateway as a process that starts at once: forked from one that has imported it."""

    def __init__(self, config: GatewayConfig) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["penstock.gateway.server"])
        heard, told = context.Pipe(duplex=False)
        self._process = context.Process(target=_serve, args=(config, told), daemon=True)
        self._process.start()
        told.close()
        with heard:
            self.address: Address = heard.recv()

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.join()
        self._process.close()


class GatewayProcess:
    """`penstock gateway`, or another server, for a data directory; leaving `with` kills it.

    What it says on standard error is kept until it ends, or goes to the file `said`.
    """

    def __init__(
        self, data_dir: Path, *options: str, said: Path | None = None, server: str = "gateway"
    ) -> None:
        command = [sys.executable, "-m", "penstock.cli.main", server, "--dir", str(data_dir)]
        command += ["--listen", "127.0.0.1:0", "--json", "--log-level", "warning", *options]
        with said.open("w") if said is not None else contextlib.nullcontext() as file:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=file or subprocess.PIPE, text=True
            )

    def ready(self) -> Address:
        return self._announced("url")

    def kafka_ready(self) -> tuple[Address, Address]:
        """For Kafka's clients, and over HTTP."""
        return self._announced("kafka"), self._announced("url")

    def _announced(self, name: str) -> Address:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        host, _, port = json.loads(line)[name].rpartition("/")[2].rpartition(":")
        return Address(host, int(port), False)

    def kill(self) -> None:
        """kill -9."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def stop(self) -> tuple[int, str]:
        """SIGTERM; its exit code, and what it said on standard error."""
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=_SECONDS)
        return self.process.returncode, said

    def __enter__(self) -> GatewayProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event."""

    id: int | None
    event: str
    data: list[str]


def read_events(lines: Iterator[bytes]) -> Iterator[Event]:
    """As browsers read them; those without data only move the id."""
    last: int | None = None
    name, data = "message", []
    for raw in lines:
        line = raw.decode().rstrip("\n")
        field, _, value = line.partition(": ")
        if field == "id":
            last = int(value)
        elif field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif not line:
            yield Event(last, name, data)
            name, data = "message", []
