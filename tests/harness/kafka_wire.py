"""Kafka's protocol by hand, so that it can be wrong in every place."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from crc32c import crc32c

from harness.kafka_clients import SECONDS
from penstock.gateway.kafka.codec import Reader, read_fields, write_fields
from penstock.gateway.kafka.records import encode_records
from penstock.gateway.kafka.schemas import APIS
from penstock.log.serving.directory import Address


class Wire:
    """A connection, by hand."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection((address.host, address.port), timeout=SECONDS)

    def send(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> bytes | None:
        """None: the gateway has closed it."""
        try:
            head = self._exactly(4)
            return None if head is None else self._exactly(struct.unpack(">i", head)[0])
        except ConnectionError:
            return None

    def _exactly(self, size: int) -> bytes | None:
        found = b""
        while len(found) < size:
            part = self.socket.recv(size - len(found))
            if not part:
                return None
            found += part
        return found

    def ask(self, key: int, version: int, asked: dict[str, Any]) -> dict[str, Any] | None:
        self.send(request(key, version, asked))
        answer = self.receive()
        return None if answer is None else self.decode(key, version, answer)

    @staticmethod
    def decode(key: int, version: int, answer: bytes) -> dict[str, Any]:
        api = APIS[key]
        reader = Reader(answer)
        assert reader.number("i32") == 7
        if api.is_flexible(version) and key != 18:
            reader.skip_tags()
        return read_fields(reader, api.answer, version, api.is_flexible(version))

    def log_in(self, token: str) -> dict[str, Any] | None:
        assert self.ask(17, 1, {"mechanism": "PLAIN"}) is not None
        return self.ask(36, 2, {"auth": b"\0me\0" + token.encode()})


def request(key: int, version: int, asked: dict[str, Any]) -> bytes:
    api = APIS[key]
    out = bytearray(struct.pack(">hhih", key, version, 7, -1))
    if api.is_flexible(version):
        out.append(0)
    write_fields(out, api.request, asked, version, api.is_flexible(version))
    return bytes(out)


@contextmanager
def wire(address: Address) -> Iterator[Wire]:
    made = Wire(address)
    try:
        yield made
    finally:
        made.socket.close()


def batch_of(
    *values: bytes,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    is_transactional: bool = False,
) -> bytes:
    """Records as a producer sends them."""
    count = len(values)
    batch = bytearray(encode_records(0, [0] * count, [None] * count, values))
    struct.pack_into(">h", batch, 21, 0x10 if is_transactional else 0)
    struct.pack_into(">qhi", batch, 43, producer_id, epoch, sequence)
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return bytes(batch)
