"""A client of any protocol of frames, by hand: of log servers, proxies, hosts of targets."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.wire import messages as m
from penstock.wire.frames import Frame, FrameReader, encode_frame
from penstock.wire.proof import NONCE_BYTES, Nonces, prove_client

#: Well above every deadline of a server: who waits so long has found one that hangs.
ANSWER_SECONDS = 30.0
NONCE = b"n" * NONCE_BYTES


@dataclass(frozen=True)
class FrameProtocol:
    """Which messages there are, and how somebody says who it is."""

    encode: Callable[[Any], bytes]
    decode: Callable[[int, bytes], Any]
    hello: Any


class FrameWire:
    """One connection. Closed by `close`."""

    def __init__(self, protocol: FrameProtocol, port: int) -> None:
        self._protocol = protocol
        self._socket = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS)
        self._reader = FrameReader(authenticated=True)
        self._frames: list[Frame] = []

    def close(self) -> None:
        self._socket.close()

    def log_in(self, token: str) -> None:
        """Both sides prove the token."""
        self.send(encode_frame(m.Meet.KIND, 1, self._protocol.encode(m.Meet(NONCE))))
        frame = self.receive()
        assert frame is not None
        challenge = self._protocol.decode(frame.kind, frame.head)
        hello = self._protocol.hello
        head = self._protocol.encode(hello)
        proof = prove_client(token, Nonces(NONCE, challenge.nonce), hello.KIND, head)
        self.send(encode_frame(hello.KIND, 2, head, len(proof)) + proof)
        welcome = self.receive()
        assert welcome is not None and welcome.kind != m.Failed.KIND

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it was closed, which reading will show

    def end(self) -> None:
        """Say that no more will be sent."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def receive(self) -> Frame | None:
        """None: it was closed. Raises TimeoutError."""
        while not self._frames:
            try:
                size = self._socket.recv_into(self._reader.get_buffer())
            except ConnectionResetError:
                return None
            if not size:
                return None
            self._frames += self._reader.buffer_updated(size)
        return self._frames.pop(0)
