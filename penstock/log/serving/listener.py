"""What every server has: a listening socket, admitted connections, turns of the loop.

Owns admission (limits before and after the token), TLS, and when output is sent: once per turn,
after everything that arrived together was handled. It is given a host, which says what is served.
Laws: connections, from the accept on, never take the descriptors that a server's own files need;
those without a token keep nobody out who has it (arrivals.py); a defect in a callback stops the
server; a turn lets the host do what is due, sends its answers, and only then lets it do what nobody
waits for.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Protocol

from penstock.errors import Defect, Unavailable
from penstock.limits import CONNECTIONS_MAX, PREAUTH_CONNECTIONS_MAX
from penstock.log.core.rights import Rights
from penstock.log.serving.acceptor import Acceptor, listening_sockets
from penstock.log.serving.arrivals import Arrivals
from penstock.log.serving.connection import Requests, ServerConnection
from penstock.log.serving.openmetrics import Metrics
from penstock.log.serving.process import descriptor_limits
from penstock.log.serving.tls_files import ServerTls, TlsFiles

#: Sockets that wait in the kernel until they are accepted.
BACKLOG = 1024


class Listening(Protocol):
    """What `listen` returns: an `asyncio.Server`, or what stands in for it under TLS."""

    @property
    def sockets(self) -> tuple[socket.socket, ...]: ...

    def close(self) -> None: ...


class ListenerHost(Protocol):
    """What is served: the logs of a server or proxy, the blocks of a node."""

    @property
    def metrics(self) -> Metrics: ...

    def meet(self, connection: ServerConnection) -> Requests:
        """Somebody has just connected: what is done with its requests."""

    def turn(self) -> None:
        """All that arrived together was handled: do what is due."""

    def after_turn(self) -> None:
        """The turn's answers went out: what nobody waits for can be done now."""

    def metrics_text(self) -> str:
        """Its counters, and what is to be seen now."""

    async def full_metrics_text(self) -> str:
        """What `GET /metrics` answers: the same, and more that must be looked for."""


class Door(Protocol):
    """What a host that takes narrowed tokens says of them, beside its requests."""

    def allow_metrics(self, rights: Rights) -> None:
        """Raise Unauthorized if who has these rights may not see the metrics."""


class Listener:
    """See the module's docstring."""

    def __init__(self, host: ListenerHost, *, files_max: int) -> None:
        """`files_max`: files that the host may keep open for readers."""
        self.host = host
        self.metrics = host.metrics
        self.token = ""
        #: None: the token itself opens everything, and nothing else opens anything.
        self.door: Door | None = None
        self.inflight_bytes = 0
        #: Connections with output that the next turn must send. In dicts, as all of them: the order
        #: in which peers are served must not hang on where objects lie in memory (I21).
        self.dirty: dict[ServerConnection, None] = {}
        #: Those that have shown the token, and those that have not yet.
        self.connections: dict[ServerConnection, None] = {}
        self._waiting: Arrivals[ServerConnection] = Arrivals()
        self._reserved_descriptors = files_max + 64  # and some to work with
        #: What the server cannot go on after.
        self.fatal: BaseException | None = None
        self.stopped = asyncio.Event()
        self._turn_due = False
        self._loop: asyncio.AbstractEventLoop

    # ---- life

    def begin(self) -> None:
        """First thing on the loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_loop_error)

    def stop(self) -> None:
        self.stopped.set()

    def on_fatal(self, error: BaseException) -> None:
        if self.fatal is None:  # what comes later follows from it
            self.fatal = error
        self.stopped.set()

    def raise_fatal(self, what: str) -> None:
        """Raise Unavailable if the server stopped because it could not go on."""
        if self.fatal is not None:
            raise Unavailable(f"{what} stopped: {self.fatal!r}") from self.fatal

    def on_task_failed(self, error: BaseException) -> None:
        self._on_loop_error(self._loop, {"message": "a request failed", "exception": error})

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback failed: log it; if it was a defect, nothing in memory can be trusted now."""
        loop.default_exception_handler(context)
        error = context.get("exception")
        if isinstance(error, Defect | AssertionError):
            self.on_fatal(error)

    async def listen(self, host: str, port: int, files: TlsFiles | None) -> Listening:
        """`files`: with them it speaks TLS only. Raises BadConfig, Unavailable."""
        tls = None if files is None else ServerTls(files, self._loop.time)
        try:
            if tls is not None:
                return Acceptor(
                    tls,
                    await listening_sockets(host, port, BACKLOG),
                    admit=self._admit_to_handshake,
                    protocol=lambda connection: connection,
                    failed=self.on_task_failed,
                    fatal=self.on_fatal,
                )
            return await self._loop.create_server(
                lambda: ServerConnection(self), host, port, backlog=BACKLOG
            )
        except OSError as error:
            # No cause: nothing is wrong with what is served (see `penstock log serve`).
            reason = error.strerror or error
            raise Unavailable(f"cannot listen on {host} port {port}: {reason}") from None

    def close_connections(self) -> None:
        for connection in [*self.connections, *self._waiting]:
            connection.close()

    # ---- connections

    @property
    def descriptors_wanted(self) -> int:
        return CONNECTIONS_MAX + PREAUTH_CONNECTIONS_MAX + self._reserved_descriptors

    def admit(self, arrival: ServerConnection, peer: str) -> bool:
        """Whether somebody new may stay. Those without a token are few and short-lived; where room
        is short, one that waits makes place (see arrivals.py). Who was asked for before stays."""
        if arrival in self._waiting:
            return True
        if len(self.connections) >= CONNECTIONS_MAX:
            self.metrics.crowded_out += 1
            return False
        # A server that cannot open its next file must stop: it comes first.
        room = descriptor_limits()[0] - self._reserved_descriptors - len(self.connections)
        while len(self._waiting) >= min(PREAUTH_CONNECTIONS_MAX, room):
            self.metrics.crowded_out += 1
            oldest = self._waiting.choose()
            if oldest is None:
                return False
            self._waiting.remove(oldest)
            oldest.silence()
        self._waiting.add(peer, arrival)
        return True

    def _admit_to_handshake(self, peer: str) -> ServerConnection | None:
        connection = ServerConnection(self)
        if not self.admit(connection, peer):
            connection.connection_lost(None)
            return None
        connection.peer = peer
        connection.start_deadline()
        return connection

    def authenticated(self, connection: ServerConnection) -> None:
        self._waiting.remove(connection)
        self.connections[connection] = None

    def dismiss(self, connection: ServerConnection) -> None:
        self._waiting.remove(connection)
        self.connections.pop(connection, None)
        self.dirty.pop(connection, None)

    # ---- turns

    def turn_soon(self) -> None:
        """Write, answer and send, once everything that arrived together was handled."""
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        self.host.turn()
        while self.dirty:
            self.dirty.popitem()[0].flush()
        self.host.after_turn()
