"""A client's connection, kept alive over cuts, and requests that are repeated until a deadline.

Mirrors penstock/log/client/client.py and client/connection.py. Law: every request ends with an
answer or, when the connection ends, with Unavailable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from penstock.errors import DeadlineExceeded, PenstockError, Retryable, Unavailable
from penstock.log.client.client import BACKOFF_SECONDS
from penstock.wire import messages as m
from penstock.wire.errors import error_from_code
from simulation.log.network import Connection, Packet

if TYPE_CHECKING:
    from simulation.log.world import World

Answer = Callable[[m.Message | PenstockError, bytes], None]


class LinkUser(Protocol):
    """What lives on a link and cares when it breaks: an appender or a reader."""

    def connected(self) -> None: ...

    def disconnected(self) -> None: ...


class Link:
    """One client process's connection to the server."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        #: The connection, once the server has welcomed us on it.
        self.connection: Connection | None = None
        self._dialled: Connection | None = None
        self._answers: dict[int, Answer] = {}
        self._request = 1
        self._attempt = 0
        self._users: list[LinkUser] = []
        self._calls: list[_Call] = []
        #: Readers by subscription number.
        self.readers: dict[int, Callable[[m.Delivery, bytes], None]] = {}

    def join(self, user: LinkUser) -> None:
        self._users.append(user)

    def leave(self, user: LinkUser) -> None:
        self._users.remove(user)

    # ---- connection

    def dial(self) -> None:
        self.world.network.connect(self, self._made, self._dial_later)

    def _dial_later(self) -> None:
        wait_us = int(BACKOFF_SECONDS[min(self._attempt, len(BACKOFF_SECONDS) - 1)] * 1_000_000)
        self._attempt += 1
        self.world.after(wait_us, f"{self.name} dials", self.dial)

    def _made(self, connection: Connection) -> None:
        self._dialled = connection
        self._answers = {1: self._welcomed}
        connection.to_server.send(Packet.of(1, m.Hello("token", self.name, self.name)))

    def _welcomed(self, message: m.Message | PenstockError, _: bytes) -> None:
        if isinstance(message, PenstockError):
            return
        assert isinstance(message, m.Welcome)
        self.world.story.know(message.tail)
        self._attempt = 0
        self.connection = self._dialled
        for user in list(self._users):
            user.connected()
        for call in list(self._calls):
            call.attempt()

    def connection_lost(self, connection: Connection) -> None:
        if connection is not self._dialled:
            return
        welcomed = self.connection is not None
        self._dialled = self.connection = None
        answers, self._answers = self._answers, {}
        error = Unavailable("the connection was lost")
        for answer in answers.values():
            answer(error, b"")
        for user in list(self._users):
            user.disconnected()
        if welcomed:
            self.dial()
        else:
            self._dial_later()

    def reconnect(self) -> None:
        """Drop the connection and open another."""
        connection = self._dialled
        if connection is not None:
            self.world.count("reconnected on purpose")
            connection.close_by_client()
            self.connection_lost(connection)

    # ---- requests

    def next_request(self) -> int:
        self._request += 1
        return self._request

    def send(
        self, request: int, message: m.Message, answer: Answer | None = None, body: bytes = b""
    ) -> None:
        """Send on the live connection; raises Unavailable if there is none."""
        if self.connection is None:
            raise Unavailable("the connection is closed")
        if answer is not None:
            self._answers[request] = answer
        self.connection.to_server.send(Packet.of(request, message, body))

    def forget(self, request: int) -> None:
        self._answers.pop(request, None)

    def receive(
        self, connection: Connection, request: int, message: m.Message, body: bytes
    ) -> None:
        if connection is not self._dialled:
            return
        if isinstance(message, m.Delivery):
            reader = self.readers.get(message.subscription)
            if reader is not None:
                reader(message, body)
            return
        answer = self._answers.pop(request, None)
        if answer is None:
            return  # a call that gave up, or a reader that was closed
        if isinstance(message, m.Failed):
            answer(error_from_code(message.code, message.message), body)
        else:
            answer(message, body)

    def call(self, message: m.Message, done: Answer, body: bytes = b"") -> None:
        """A request that may be repeated; `done` is called once, before the timeout has passed."""
        call = _Call(self, message, done, body)
        self._calls.append(call)
        self.world.after(
            self.world.swarm.timeout_ms * 1000, f"{self.name} call timeout", call.give_up
        )
        call.attempt()

    def end_call(self, call: _Call) -> None:
        self._calls.remove(call)


class _Call:
    """client.py `call`: sent again on every connection until it is answered."""

    def __init__(self, link: Link, message: m.Message, done: Answer, body: bytes) -> None:
        self._link = link
        self._message = message
        self._done = done
        self._body = body
        self._request: int | None = None
        self._ended = False

    def attempt(self) -> None:
        if self._ended or self._request is not None or self._link.connection is None:
            return
        self._request = self._link.next_request()
        self._link.send(self._request, self._message, self._answered, self._body)

    def _answered(self, message: m.Message | PenstockError, body: bytes) -> None:
        self._request = None
        if self._ended:
            return
        if isinstance(message, Retryable):
            backoff_us = int(BACKOFF_SECONDS[0] * 1_000_000)
            self._link.world.after(backoff_us, f"{self._link.name} calls again", self.attempt)
            return
        self._end(message, body)

    def give_up(self) -> None:
        if not self._ended:
            if self._request is not None:
                self._link.forget(self._request)
            name = type(self._message).__name__
            self._end(DeadlineExceeded(f"no answer to {name} in time"), b"")

    def _end(self, message: m.Message | PenstockError, body: bytes) -> None:
        self._ended = True
        self._link.end_call(self)
        self._done(message, body)
