"""What every server of logs has: a listening socket, admitted connections, turns of the loop.

Owns admission (token, limits, sessions), TLS, and when output is sent: once per turn, after
everything that arrived together was handled. Which log a connection is for, and what logs are, is
up to the classes below: server.py (one log in files), the proxy (many logs on nodes).
"""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from penstock.errors import BadConfig, Defect, PenstockError, Unavailable
from penstock.limits import CONNECTIONS_MAX, PREAUTH_CONNECTIONS_MAX, PREAUTH_SECONDS_MAX
from penstock.log.core.sessions import Sessions
from penstock.log.core.tails import Deliver, SubscriptionId
from penstock.log.server.connection import ServerConnection
from penstock.log.server.metrics import ServerMetrics
from penstock.log.server.served_log import ServedLog, Surroundings
from penstock.log.storage.log_storage import FILE_CACHE_COUNT
from penstock.wire import messages as m

logger = logging.getLogger(__name__)

#: Descriptors kept for the log's own files: those cached for readers, and some to work with.
RESERVED_DESCRIPTORS = FILE_CACHE_COUNT + 64


class Listener(ABC):
    """See the module's docstring."""

    def __init__(self) -> None:
        self.metrics = ServerMetrics()
        self.inflight_bytes = 0
        #: Connections with output that the next turn must send, and logs to pump before.
        self.dirty: set[ServerConnection] = set()
        self._due: dict[ServedLog, None] = {}
        self._connections: set[ServerConnection] = set()
        self._waiting: set[ServerConnection] = set()
        self._sessions: Sessions[ServerConnection] = Sessions()
        self._fatal: BaseException | None = None
        self.token = ""
        self._turn_due = False
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event

    # ---- what the classes below say

    @abstractmethod
    def open_log(
        self,
        hello: m.Hello,
        connection: ServerConnection,
        opened: Callable[[ServedLog | PenstockError], None],
    ) -> None:
        """Find the log that a client wants; `opened` is called once, now or later."""

    @abstractmethod
    def status_json(self) -> str: ...

    @abstractmethod
    def metrics_text(self) -> str: ...

    # ---- life

    def begin(self) -> None:
        """First thing on the loop."""
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._loop.set_exception_handler(self._on_loop_error)

    def stop(self) -> None:
        self._stop.set()

    def on_fatal(self, error: BaseException) -> None:
        self._fatal = error
        self._stop.set()

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback failed: log it; if it was a defect, nothing in memory can be trusted now."""
        loop.default_exception_handler(context)
        error = context.get("exception")
        if isinstance(error, Defect | AssertionError):
            self.on_fatal(error)

    async def listen(
        self, host: str, port: int, tls_cert: Path | None, tls_key: Path | None
    ) -> asyncio.Server:
        tls = server_tls(tls_cert, tls_key)
        # Handshakes come before connection.py's deadline and have the same one.
        deadline = PREAUTH_SECONDS_MAX if tls is not None else None
        try:
            return await self._loop.create_server(
                lambda: ServerConnection(self),
                host,
                port,
                ssl=tls,
                ssl_handshake_timeout=deadline,
                ssl_shutdown_timeout=deadline,
                backlog=1024,
            )
        except OSError as error:
            # No cause: nothing is wrong with the log (see `penstock log serve`).
            reason = error.strerror or error
            raise Unavailable(f"cannot listen on {host} port {port}: {reason}") from None

    def close_connections(self) -> None:
        for connection in list(self._connections):
            connection.flush()
            connection.close()

    # ---- connections

    def admit(self, connection: ServerConnection) -> bool:
        """Whether a new connection may stay; those without a token are few and short-lived."""
        waiting, connected = len(self._waiting), len(self._connections)
        descriptors, _ = descriptor_limits()
        if (
            waiting >= PREAUTH_CONNECTIONS_MAX
            or connected >= CONNECTIONS_MAX
            # A log that cannot open its next segment must stop: it comes first.
            or waiting + connected >= descriptors - RESERVED_DESCRIPTORS
        ):
            return False
        self._waiting.add(connection)
        return True

    def authenticated(self, connection: ServerConnection) -> None:
        self._waiting.discard(connection)
        self._connections.add(connection)
        older = self._sessions.open(connection.session, connection)
        if older is not None:
            older.silence()

    def dismiss(self, connection: ServerConnection) -> None:
        self._sessions.close(connection.session, connection)
        self._waiting.discard(connection)
        self._connections.discard(connection)
        self.dirty.discard(connection)
        if connection.log is not None:
            for number in connection.subscriptions:
                connection.log.tails.unsubscribe((connection, number))

    def after_event(self, log: ServedLog | None = None) -> None:
        """Write, answer and send, once everything that arrived together was handled."""
        if log is not None:
            self._due[log] = None
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        due, self._due = self._due, {}
        for log in due:
            log.pump()
        while self.dirty:
            self.dirty.pop().flush()
        for log in due:
            log.after_turn()

    def surroundings(
        self, log: Callable[[], ServedLog | None], on_fatal: Callable[[BaseException], None]
    ) -> Surroundings:
        """What `log()`, which may not exist yet or any more, needs of us."""
        return Surroundings(
            self.metrics,
            self._deliver,
            self._fail_subscription,
            lambda: self.after_event(log()),
            on_fatal,
        )

    def _deliver(self, effect: Deliver) -> None:
        connection, number = cast(tuple[ServerConnection, int], effect.id)
        connection.deliver(number, effect)

    def _fail_subscription(self, id: SubscriptionId, error: PenstockError) -> None:
        connection, number = cast(tuple[ServerConnection, int], id)
        connection.fail_subscription(number, error)


def server_tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:
        raise BadConfig(f"cannot load certificate {cert}: {error}") from None
    return context


def descriptor_limits() -> tuple[int, int]:
    """Descriptors that this process may have open, and may ask for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    return (sys.maxsize if soft == endless else soft, sys.maxsize if hard == endless else hard)


def raise_descriptor_limit(wanted: int) -> None:
    """Many systems grant 1024 until one asks."""
    granted, most = descriptor_limits()
    if granted < wanted:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, most), hard))
