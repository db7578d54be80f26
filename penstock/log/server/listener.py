"""What every server of logs has: sessions, deliveries, and turns that pump the logs.

Owns which connection of a client is heard, and which logs a turn has work for. Law: a turn pumps
its logs, sends their answers, and only then lets them go on. Which log a connection is for, and
what logs are, is up to the classes below: server.py (one log in files), the proxy (many logs on
nodes). The socket and admission are in serving/listener.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import cast

from penstock.errors import PenstockError
from penstock.log.core.sessions import Sessions
from penstock.log.core.tails import Deliver, SubscriptionId
from penstock.log.server.connection import ServerConnection
from penstock.log.server.metrics import ServerMetrics
from penstock.log.server.served_log import ServedLog, Surroundings, wall_ms
from penstock.log.serving.listener import Listener
from penstock.log.storage.log_storage import FILE_CACHE_COUNT
from penstock.wire import messages as m


class LogListener(Listener[ServerConnection]):
    """See the module's docstring."""

    metrics: ServerMetrics

    def __init__(self, wall_ms: Callable[[], int] = wall_ms) -> None:
        super().__init__(ServerMetrics(), files_max=FILE_CACHE_COUNT)
        self._wall_ms = wall_ms
        #: Logs to pump in the next turn.
        self._due: dict[ServedLog, None] = {}
        self._sessions: Sessions[ServerConnection] = Sessions()

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
    def status_json(self, log: ServedLog | None) -> str:
        """For people and tools; `log` is the one that the connection is about."""

    # ---- connections and turns

    def connection(self) -> ServerConnection:
        return ServerConnection(self)

    def authenticated(self, connection: ServerConnection) -> None:
        super().authenticated(connection)
        older = self._sessions.open(connection.session, connection)
        if older is not None:
            older.silence()  # its client speaks on this one now (core/sessions.py)

    def dismiss(self, connection: ServerConnection) -> None:
        super().dismiss(connection)
        self._sessions.close(connection.session, connection)
        if connection.log is not None:
            for number in connection.subscriptions:
                connection.log.tails.unsubscribe((connection, number))

    def after_event(self, log: ServedLog | None) -> None:
        """A turn is due, and `log` must be pumped in it."""
        if log is not None:
            self._due[log] = None
        self.turn_soon()

    def turn(self) -> None:
        due, self._due = self._due, {}
        for log in due:
            log.pump()
        self.send_dirty()
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
            self._wall_ms,
        )

    def _deliver(self, effect: Deliver) -> None:
        connection, number = cast(tuple[ServerConnection, int], effect.id)
        connection.deliver(number, effect)

    def _fail_subscription(self, id: SubscriptionId, error: PenstockError) -> None:
        connection, number = cast(tuple[ServerConnection, int], id)
        connection.fail_subscription(number, error)
