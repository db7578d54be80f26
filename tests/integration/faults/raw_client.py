"""A client of bare sockets: says whatever bytes it is told to, right or wrong."""

from __future__ import annotations

import hashlib
import socket
import time
from pathlib import Path
from types import TracebackType

from harness.server_process import ServerProcess

from penstock.errors import PenstockError
from penstock.log.serving.directory import read_address, read_token
from penstock.wire import messages as m
from penstock.wire.errors import error_from_code
from penstock.wire.frames import Frame, FrameReader, encode_frame
from penstock.wire.proof import NONCE_BYTES, Nonces, prove_client

#: Well above every deadline of the server; a test that waits this long has failed.
ANSWER_SECONDS = 20.0
NONCE = b"n" * NONCE_BYTES


class RawClient:
    """One connection. Closed by `with`."""

    def __init__(self, server: ServerProcess) -> None:
        address = read_address(server.data_dir)
        assert address is not None
        self._socket = socket.create_connection((address.host, address.port), ANSWER_SECONDS)
        self._token = read_token(server.data_dir / "token")
        self._reader = FrameReader(authenticated=True)
        self._frames: list[Frame] = []
        self._request = 1

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send; a server that has already closed the connection is no error here."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def send_slowly(self, data: bytes, *, seconds: float) -> int:
        """Send as much as the server takes within some seconds; returns how much that was."""
        deadline = time.monotonic() + seconds
        sent = 0
        self._socket.setblocking(False)
        while sent < len(data) and time.monotonic() < deadline:
            try:
                sent += self._socket.send(data[sent : sent + 4096])
            except BlockingIOError:
                time.sleep(0.01)
        self._socket.settimeout(ANSWER_SECONDS)
        return sent

    def end(self) -> None:
        """Say that no more will be sent."""
        self._socket.shutdown(socket.SHUT_WR)

    def read_all(self) -> bytes:
        """Everything until the server closes the connection."""
        data = b""
        try:
            while piece := self._socket.recv(65536):
                data += piece
        except ConnectionResetError:
            pass
        return data

    def read_frame(self) -> Frame | None:
        """The next frame; None if the server has closed the connection."""
        while not self._frames:
            buffer = self._reader.get_buffer()
            try:
                size = self._socket.recv_into(buffer)
            except ConnectionResetError:
                size = 0
            if not size:
                return None
            self._frames += self._reader.buffer_updated(size)
        return self._frames.pop(0)

    def ask(self, message: m.Message, body: bytes = b"") -> m.Message | PenstockError | None:
        """A well-formed request and its answer; None if the connection was closed instead."""
        self._request += 1
        return self.ask_raw(message.KIND, m.encode_message(message), body, self._request)

    def ask_raw(
        self, kind: int, head: bytes, body: bytes = b"", request: int = 7
    ) -> m.Message | PenstockError | None:
        self.send(encode_frame(kind, request, head, len(body)) + body)
        return self.answer()

    def answer(self) -> m.Message | PenstockError | None:
        frame = self.read_frame()
        if frame is None:
            return None
        message = m.decode_message(frame.kind, frame.head)
        if isinstance(message, m.Failed):
            return error_from_code(message.code, message.message)
        return message

    def prove(self, token: str, name: str = "raw") -> m.Message | PenstockError | None:
        """Say hello with a proof of this token; the answer."""
        head = m.encode_message(m.Hello(name))
        proof = prove_client(token, self.nonces(), m.Hello.KIND, head)
        return self.ask_raw(m.Hello.KIND, head, proof)

    def nonces(self) -> Nonces:
        """Those of this connection, after a challenge."""
        challenge = self.ask(m.Meet(NONCE))
        assert isinstance(challenge, m.Challenge)
        return Nonces(NONCE, challenge.nonce)

    def hello(self) -> RawClient:
        assert isinstance(self.prove(self._token), m.Welcome)
        return self

    def http(self, request: bytes) -> bytes:
        self.send(request)
        return self.read_all()


def read_metrics(server: ServerProcess) -> dict[str, float]:
    """The server's metrics by name, through its own port."""
    token = read_token(server.data_dir / "token")
    with RawClient(server) as client:
        answer = client.http(
            b"GET /metrics HTTP/1.1\r\nAuthorization: Bearer " + token.encode() + b"\r\n\r\n"
        )
    lines = answer.partition(b"\r\n\r\n")[2].decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")
    }


def log_digest(data_dir: Path) -> dict[str, str]:
    """A digest of every file of the log."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((data_dir / "log").iterdir())
    }


def wait_quiet(server: ServerProcess) -> None:
    """Until the server has nothing left to write by itself."""
    deadline = time.monotonic() + ANSWER_SECONDS
    digests = [log_digest(server.data_dir)]
    while digests[-3:] != digests[-1:] * 3:
        assert time.monotonic() < deadline, "the log's files keep changing"
        time.sleep(0.7)  # more than the server waits before its last note, and housekeeping
        read_metrics(server)  # it was not asleep all the time
        digests.append(log_digest(server.data_dir))
