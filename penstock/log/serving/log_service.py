"""Logs behind a listener: what a log server and a proxy have in common.

Owns which connection of a client is heard, what a client may ask, and which logs a turn has work
for. It is given a host: which log a client gets, and what is told to people. Clients' requests are
in log_requests.py, what logs do in served_log.py. Law: `allow` is asked of every request, with what
it holds, before anything is done; what a token allows is core/rights.py's business.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, Protocol, cast

from penstock.errors import Forbidden, PenstockError, Unauthorized, Unavailable
from penstock.log.core.rights import Rights
from penstock.log.core.sessions import Sessions
from penstock.log.core.tails import Deliver, SubscriptionId
from penstock.log.group_format import Body
from penstock.log.serving.connection import ServerConnection
from penstock.log.serving.listener import Listener
from penstock.log.serving.log_metrics import LogMetrics
from penstock.log.serving.log_requests import LogRequests
from penstock.log.serving.openmetrics import families_text, join_texts
from penstock.log.serving.query_metrics import QueryMetrics
from penstock.log.serving.query_reports import find_all_reports
from penstock.log.serving.served_log import SequencedLog, ServedLog, Surroundings, wall_ms
from penstock.log.storage.log_storage import FILE_CACHE_COUNT
from penstock.plain_text import plain
from penstock.wire import messages as m

Opened = Callable[[ServedLog | PenstockError], None]


#: Of clients that are told of in a server's status, and of their names.
CLIENTS_TOLD: Final = 50
CLIENT_CHARS_MAX: Final = 100


class LogHost(Protocol):
    """Whose logs are served: the one of a server, or the many of a proxy."""

    def open_log(self, hello: m.Hello, opened: Opened, *, may_make: bool) -> None:
        """Find the log that a client wants; `opened` is called once, now or later.

        `may_make`: if there is none, one is made, where logs have names.
        """

    def log_name(self, hello: m.Hello) -> str:
        """What a token calls the log that a client wants: its name, or its id if it has none."""

    def open_logs(self) -> Iterable[ServedLog]:
        """Those that are open here now."""

    def status_json(self, log: ServedLog | None) -> str:
        """For people and tools; `log` is the one that the connection is about."""

    def sequenced_logs(self) -> list[tuple[str | None, SequencedLog]]:
        """Those that are ordered here, with their names if they have any."""

    def metrics_text(self) -> str:
        """The counters, and what is to be seen now."""


class LogService:
    """See the module's docstring. A `ListenerHost`, with the listener that it is the host of."""

    def __init__(self, host: LogHost, wall_ms: Callable[[], int] = wall_ms) -> None:
        self.host = host
        self.metrics = LogMetrics()
        self.listener = Listener(self, files_max=FILE_CACHE_COUNT)
        self.listener.door = self
        self.wall_ms = wall_ms
        #: Logs that the next turn has work for, and whether they must be pumped in it.
        self.due: dict[ServedLog, bool] = {}
        self._turning: dict[ServedLog, bool] = {}
        #: Those whose readers were given something in this turn.
        self._given: dict[LogRequests, None] = {}
        self._sessions: Sessions[LogRequests] = Sessions()
        #: Of everybody who has shown the token.
        self._requests: dict[LogRequests, None] = {}

    # ---- listener.ListenerHost

    def meet(self, connection: ServerConnection) -> LogRequests:
        return LogRequests(self, connection)

    def turn(self) -> None:
        self._turning, self.due = self.due, {}
        for log, is_pumped in self._turning.items():
            if is_pumped:
                log.pump()

    def after_turn(self) -> None:
        given, self._given = self._given, {}
        for requests in given:
            requests.tell_sent()
        for log in self._turning:
            log.after_turn()

    def metrics_text(self) -> str:
        return self.host.metrics_text()

    async def full_metrics_text(self) -> str:
        """With how the queries of the logs stand that are ordered here."""
        found = await find_all_reports(self.host.sequenced_logs())
        made, now_ms = QueryMetrics(), self.wall_ms()
        for report in found.reports:
            made.add_report(report, now_ms)
            await asyncio.sleep(0)  # clients do not wait for all queries to be told
        families = made.families(unreadable=found.unreadable, left_out=found.left_out)
        return join_texts(self.host.metrics_text(), families_text(families))

    # ---- what clients may

    def allow(
        self, rights: Rights, message: m.Message, body: Body | None, logs: Iterable[ServedLog]
    ) -> None:
        """Raise Unauthorized unless who has these rights may ask this, of these logs."""
        if rights.id is None:
            return
        if isinstance(message, m.Hello | m.GetMetrics | m.GetStatus):
            # Metrics and status are a whole server's, be it of one log or of many.
            hello = message if isinstance(message, m.Hello) else m.Hello("")
            reason = rights.refuse_log(self.host.log_name(hello))
            if reason is not None:
                raise Forbidden(f"not allowed: {reason}")
        self.check_valid(rights, logs)
        reason = rights.refuse(message, body)
        if reason is not None:
            self.metrics.forbidden += 1
            raise Forbidden(f"not allowed: {reason}")

    def check_valid(self, rights: Rights, logs: Iterable[ServedLog]) -> None:
        """Raise Unauthorized if the token has expired, or was revoked in one of these logs."""
        if rights.id is None:
            return
        if rights.is_over(self.wall_ms()):
            raise Unauthorized("the token has expired")
        for log in logs:
            is_revoked = log.is_revoked(rights.id)
            if is_revoked:
                raise Unauthorized("the token was revoked")
            if is_revoked is None:
                raise Unavailable("whether the token was revoked is not known here yet")

    def allow_metrics(self, rights: Rights) -> None:
        """A `listener.Door`. Raises Unauthorized."""
        known = (
            log for log in self.host.open_logs() if log.is_revoked(rights.id or "") is not None
        )
        self.allow(rights, m.GetMetrics(), None, known)

    # ---- clients

    def greet(self, session: str, requests: LogRequests) -> None:
        """A client has shown the token: from now on it speaks on this connection only."""
        requests.session = session
        self._requests[requests] = None
        older = self._sessions.open(session, requests)
        if older is not None:
            older.connection.silence()  # see core/sessions.py

    def dismiss(self, requests: LogRequests) -> None:
        self._sessions.close(requests.session, requests)
        self._requests.pop(requests, None)

    def clients(self) -> dict[str, int]:
        """Connections by what their clients call themselves, those with the most first."""
        names = Counter(plain(requests.client[:CLIENT_CHARS_MAX]) for requests in self._requests)
        return dict(names.most_common(CLIENTS_TOLD))

    def tell_sent_soon(self, requests: LogRequests) -> None:
        """How much its socket has taken is asked once this turn's output went out."""
        self._given[requests] = None

    def logs_used(self) -> dict[ServedLog, None]:
        """Those that somebody is connected to."""
        return {requests.log: None for requests in self._requests if requests.log is not None}

    def logs_read(self) -> dict[ServedLog, None]:
        """Those that somebody has subscribed to."""
        return {
            requests.log: None
            for requests in self._requests
            if requests.log is not None and requests.subscriptions
        }

    def close_connections_to(self, log: ServedLog) -> None:
        for requests in list(self._requests):
            if requests.log is log:
                requests.connection.close()

    # ---- logs

    def surroundings(
        self, log: Callable[[], ServedLog | None], on_fatal: Callable[[BaseException], None]
    ) -> Surroundings:
        """What `log()`, which may not exist yet or any more, needs of us."""

        def after_event() -> None:
            served = log()
            if served is not None:
                self.due[served] = True
            self.listener.turn_soon()

        def after_pump() -> None:
            served = log()
            if served is not None:
                self.due.setdefault(served, False)
            self.listener.turn_soon()

        return Surroundings(
            self.metrics,
            self._deliver,
            self._fail_subscription,
            after_event,
            after_pump,
            on_fatal,
            self.wall_ms,
        )

    def _deliver(self, effect: Deliver) -> None:
        requests, number = cast(tuple[LogRequests, int], effect.id)
        requests.deliver(number, effect)

    def _fail_subscription(self, id: SubscriptionId, error: PenstockError) -> None:
        requests, number = cast(tuple[LogRequests, int], id)
        requests.fail_subscription(number, error)
