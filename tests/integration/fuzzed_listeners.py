"""Every listener of ours in a process of its own, and who sends it mutated frames.

A frame that counts was taken in: it was answered, or it ended its connection. Most are well-formed
and say strange things, with the right checksum; others are damaged in their bytes.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.frame_wire import ANSWER_SECONDS, FrameProtocol, FrameWire
from harness.http_gateway import GatewayProcess
from harness.kafka_wire import Wire, batch_of, request
from harness.mutation import UNFIT, mutate, odd_message
from harness.remote_targets import SCHEMA, TargetProcess, rows
from harness.server_process import ServerProcess
from kafka_requests import requests

import penstock
from penstock.delivery.remote.row_parts import encode_rows
from penstock.log.group_format import CLAIM, encode_body
from penstock.log.records import Guard, Kind, NewEntry
from penstock.log.serving.directory import Address, read_token
from penstock.stream.schema import encode_schema
from penstock.wire import messages as m
from penstock.wire import target_messages as t
from penstock.wire.frames import encode_frame

#: Frames on their way at once.
_BATCH = 8
_LAST = 2**32 - 1


@dataclass
class Listener(ABC):
    """One that is there; `said`: what its process has said of itself."""

    name: str
    pid: int
    said: Path
    frames: int = 0
    connections: int = 0

    @abstractmethod
    def fuzz(self, draw: random.Random) -> None:
        """Some frames on one connection. Raises TimeoutError if it hangs."""

    @property
    def memory_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"{self.name} has died: {self.said.read_text()[-3000:]}")


@dataclass
class FramedListener(Listener):
    """Of frames: a log server, a proxy, a host of targets."""

    protocol: FrameProtocol | None = None
    port: int = 0
    token: str = ""
    samples: tuple[tuple[Any, bytes], ...] = ()
    #: What is always answered.
    question: Any = None
    #: Of the answer, where it does not say which request it is of.
    answer_kind: int = -1

    def fuzz(self, draw: random.Random) -> None:
        assert self.protocol is not None
        wire = FrameWire(self.protocol, self.port)
        self.connections += 1
        try:
            if draw.random() < 0.9:
                wire.log_in(self.token)
            while self._send(wire, draw):
                pass
        finally:
            wire.close()

    def _send(self, wire: FrameWire, draw: random.Random) -> bool:
        """Some frames; whether the connection is still there. The last may be no frame at all."""
        assert self.protocol is not None
        count = draw.randint(1, _BATCH)
        sent = [self._frame(draw, number) for number in range(count)]
        is_damaged = draw.random() < 0.2
        if is_damaged:
            sent[-1] = mutate(draw, sent[-1])
        wire.send(b"".join(sent))
        self.frames += count
        if is_damaged:
            wire.end()  # it may wait for the rest of a frame that is none
        else:
            wire.send(encode_frame(self.question.KIND, _LAST, self.protocol.encode(self.question)))
        while (frame := wire.receive()) is not None:
            if frame.request == _LAST or frame.kind == self.answer_kind:
                return True
        return False

    def _frame(self, draw: random.Random, number: int) -> bytes:
        assert self.protocol is not None
        message, body = draw.choice(self.samples)
        head = self.protocol.encode(message)
        kind = draw.random()
        if kind < 0.7:
            try:
                head = self.protocol.encode(odd_message(draw, message))
            except UNFIT:
                pass  # it stays as it was
        elif kind < 0.8:
            head = mutate(draw, head)
        if body and draw.random() < 0.7:
            body = mutate(draw, body)
        return encode_frame(message.KIND, number, head, len(body)) + body


@dataclass
class HttpListener(Listener):
    port: int = 0
    token: str = ""

    def fuzz(self, draw: random.Random) -> None:
        sent = mutate(draw, draw.choice(http_samples(self.token)), HTTP_WORDS)
        with socket.create_connection(("127.0.0.1", self.port), ANSWER_SECONDS) as connection:
            self.connections += 1
            self.frames += 1
            try:
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)  # no rest of it will come
                answer = connection.recv(1 << 16)
                while connection.recv(1 << 16):
                    pass
            except ConnectionError:
                return
        assert b" 500 " not in answer.split(b"\r\n")[0], (sent, answer)


HTTP_WORDS = (b"\r\n", b"\r\n\r\n", b"\x00", b"{", b"[", b'"', b":", b"%", b",", b"-1", b"e999")


def http_samples(token: str) -> list[bytes]:
    head = f"HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n"
    body = '[{"n": 1, "s": "x"}, {"n": 2}]'
    asked = [
        f"POST /v1/streams/s/rows {head}Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"Idempotency-Key: f:0\r\n\r\n{body}"
        for kind in ("application/json", "application/x-ndjson")
    ]
    asked += [
        f"GET /v1/streams/s/rows?from=earliest&to=latest&limit=3&format=csv {head}\r\n",
        f"GET /v1/streams/s/rows?from=2026-01-01T00:00:00Z&format=arrow {head}\r\n",
        f"GET /v1/streams/s {head}\r\n",
        f"GET /v1/streams/s/producers/p {head}\r\n",
        f"POST /v1/streams {head}Transfer-Encoding: chunked\r\n\r\n"
        '1c\r\n{"name":"s","ddl":"n long"} \r\n0\r\n\r\n',
    ]
    return [each.encode() for each in asked]


@dataclass
class KafkaListener(Listener):
    port: int = 0
    token: str = ""

    def fuzz(self, draw: random.Random) -> None:
        wire = Wire(Address("127.0.0.1", self.port, False))
        self.connections += 1
        try:
            if draw.random() < 0.9:
                wire.log_in(self.token)
            while self._send(wire, draw):
                pass
        finally:
            wire.socket.close()

    def _send(self, wire: Wire, draw: random.Random) -> bool:
        frame = draw.choice(KAFKA_SAMPLES)
        if draw.random() < 0.9:
            frame = mutate(draw, frame)
        self.frames += 1
        wire.send(frame)
        key = struct.unpack_from(">h", frame.ljust(2, b"\0"))[0]
        # Some wait for others, or for rows, as they are asked to; some ask for no answer.
        if key in (0, 1, 11, 14) or len(frame) < 8:
            return False
        return wire.receive() is not None


def _kafka_samples() -> list[bytes]:
    from penstock.gateway.kafka.schemas import APIS

    found = []
    for each in requests(7, 0, 1 << 16):
        found += [
            request(each.key, version, each.asked)
            for version in {APIS[each.key].first, APIS[each.key].last}
        ]
    once = batch_of(*[b"{}"] * 5, producer_id=9, epoch=0, sequence=0)
    part = {"index": 0, "records": once}
    topics = [{"name": "bids", "partitions": [part]}]
    return [*found, request(0, 9, {"acks": -1, "timeout_ms": 9, "topics": topics})]


KAFKA_SAMPLES = _kafka_samples()


# ---- processes

LOG_FRAMES = FrameProtocol(m.encode_message, m.decode_message, m.Hello("fuzz", log=""))
PROXY_FRAMES = FrameProtocol(m.encode_message, m.decode_message, m.Hello("fuzz", log="main"))
TARGET_FRAMES = FrameProtocol(
    t.encode_target_message, t.decode_target_message, t.TargetHello("fuzz")
)


def _log_samples() -> tuple[tuple[Any, bytes], ...]:
    claim = encode_body(
        producer="p", instance=1, first_seq=0, entries=[NewEntry(b"12345678", (), Kind.CONTROL)],
        flags=CLAIM,
    )  # fmt: skip
    entries = [NewEntry(b"entry", ("tag", "other")), NewEntry(b"", ("s/x",), Kind.STAGED, 3)]
    data = encode_body(producer="p", instance=1, first_seq=0, entries=entries)
    return (
        (m.Append((), 0), claim),
        (m.Append((), 0), data),
        (m.Append((Guard("key", b"value"), Guard("none", None)), 5), data),
        (m.Subscribe(3, ("tag", "other"), 0, 2**62, 1000), b""),
        (m.Subscribe(4, None, 0, 5, 100), b""),
        (m.Credit(3, 100), b""),
        (m.Unsubscribe(3), b""),
        (m.ReadLast("tag", 10), b""),
        (m.FindTime(1), b""),
        (m.Trim(1), b""),
        (m.GetMetadata("k", False), b""),
        (m.GetProducer("p"), b""),
        (m.GetStatus(), b""),
        (m.GetBounds(), b""),
        (m.GetMetrics(), b""),
        (m.Ping(), b""),
        (m.Hello("again"), bytes(32)),
        (m.MeetAs(bytes(32), "pt1.0123456789abcdef"), b""),
    )


def _target_samples() -> tuple[tuple[Any, bytes], ...]:
    good = bytes(encode_rows([rows(1, 2)])[0])
    opening = t.OpenTarget(
        0, 1, 1, "d", 0, 1, 0, encode_schema(SCHEMA), False, (), "t", False
    )  # fmt: skip
    part = t.Part(0, 1, 0, 1, len(good), True)
    return (
        (opening, b""),
        (t.ApplyParts(t.encode_parts([part])), good),
        (t.ApplyParts(t.encode_parts([part, part])), good * 2),
        (t.CloseTarget(0, 1), b""),
        (t.TargetAt(1, 2, 3), b""),
        (t.TargetAcks(t.encode_acks([t.TargetAck(0, 1, 2)])), b""),
    )


@contextmanager
def log_server(directory: Path) -> Iterator[Listener]:
    with ServerProcess(directory / "log") as server:
        address = server.wait_ready()
        token = read_token(server.data_dir / "token")
        yield FramedListener(
            "log server", server.pid, server.output_path, protocol=LOG_FRAMES, port=address.port,
            token=token, samples=_log_samples(), question=m.GetBounds(),
        )  # fmt: skip
        assert server.stop() == 0


@contextmanager
def proxy(directory: Path) -> Iterator[Listener]:
    said = directory / "cluster.txt"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "harness.cluster_process", str(directory)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output,
        )  # fmt: skip
    assert process.stdout is not None and process.stdin is not None
    try:
        line = process.stdout.readline()
        assert line, said.read_text()[-3000:]
        yield FramedListener(
            "proxy", process.pid, said, protocol=PROXY_FRAMES, **json.loads(line),
            samples=_log_samples(), question=m.GetBounds(),
        )  # fmt: skip
        process.stdin.close()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()


@contextmanager
def targets(directory: Path) -> Iterator[Listener]:
    (directory / "targets").mkdir()
    paths = [directory / "targets" / str(number) for number in range(2)]
    with TargetProcess("target", paths, directory, "host") as host:
        yield FramedListener(
            "deliveries", host.pid, host.log, protocol=TARGET_FRAMES, port=host.port,
            token=read_token(host.token_file), samples=_target_samples(), question=m.Ping(),
            answer_kind=m.Pong.KIND,
        )  # fmt: skip
        assert host.stop() == 0


@contextmanager
def gateway(directory: Path, kind: str) -> Iterator[Listener]:
    data = directory / "data"
    said = directory / "gateway.txt"
    with penstock.connect(data) as log:
        log.create_stream("s", "n long, s string")
        log.create_stream("bids", "value BINARY", lanes=1)
        token = read_token(data / "token")
        with GatewayProcess(data, "--kafka-listen", "127.0.0.1:0", said=said) as process:
            kafka, http = process.kafka_ready()
            made = KafkaListener if kind == "kafka" else HttpListener
            port = kafka.port if kind == "kafka" else http.port
            yield made(kind, process.process.pid, said, port=port, token=token)
            code, _ = process.stop()
            assert code == 0


LISTENERS = {
    "log server": log_server,
    "proxy": proxy,
    "deliveries": targets,
    "http": lambda directory: gateway(directory, "http"),
    "kafka": lambda directory: gateway(directory, "kafka"),
}
