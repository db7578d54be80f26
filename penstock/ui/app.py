"""Which request does what.

Owns the routes. The page itself is anybody's, and tells nothing; every figure needs a token, which
the page asks for once, keeps in its memory, and shows with each request, as programs do.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from penstock.errors import BadRequest, NotFound, Overloaded, Unauthorized
from penstock.gateway.bodies import Budget, parse_object, read_body
from penstock.gateway.endpoints import (
    Endpoints,
    application,
    bearer_token,
    json_response,
    problem_response,
)
from penstock.gateway.problems import problem_of
from penstock.gateway.reading import LoopTail
from penstock.gateway.replies import EVENTS
from penstock.gateway.sessions import Session, Sessions
from penstock.gateway.streaming import PieceByPiece
from penstock.ids import Lsn
from penstock.log.client.blocking import BlockingLog
from penstock.log.client.client import AsyncLog, Resolve
from penstock.stream.registration import Registration, stream_tag
from penstock.stream.session import Log
from penstock.ui.asking import ask_query, may_ask, request_of
from penstock.ui.assets import asset_routes
from penstock.ui.clusters import ClusterLooker, is_cluster
from penstock.ui.config import (
    FILTER_CHARS_MAX,
    LIVES_MAX,
    NAME_CHARS_MAX,
    PAGES_MAX,
    SESSION_IDLE_SECONDS,
    THREADS,
    UiConfig,
)
from penstock.ui.gather import Gatherer
from penstock.ui.live import Live
from penstock.ui.tailing import tail_events
from penstock.ui.tickets import Ticket

T = TypeVar("T")


async def _nothing() -> None:
    """There is nothing to close."""


_BODY_BYTES_MAX = 4096
_NO_STORE = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@dataclass(slots=True)
class UiCounts:
    """What a page's server counts."""

    requests: int = 0
    unauthorized: int = 0
    refused: int = 0
    failed: int = 0
    slow_pages: int = 0


def _told(value: object, status: int = 200) -> Response:
    """In ASCII, and without NaN: not all that a log holds is text or a number to a browser."""
    text = json.dumps(_plain(value), allow_nan=False)
    return Response(text.encode(), status, _NO_STORE, "application/json")


def _plain(value: object) -> object:
    match value:
        case float() if not math.isfinite(value):
            return {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
        case dict():
            return {str(name): _plain(one) for name, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
    return value


async def _tailed(
    log: AsyncLog, found: Registration, start: Lsn, wanted: str
) -> AsyncGenerator[bytes, None]:
    tail = LoopTail(log, found, start=start)
    async with tail, aclosing(tail_events(tail, wanted)) as events:
        async for event in events:
            yield event


class Ui:
    """The application; `server.py` runs it."""

    def __init__(
        self,
        config: UiConfig,
        resolve_for: Callable[[str], Resolve],
        ticket: Ticket | None = None,
    ) -> None:
        self._config = config
        self._ticket = ticket
        if ticket is not None:
            ticket.since = asyncio.get_running_loop().time()
        self.counts = UiCounts()
        self.sessions = Sessions(
            resolve_for,
            timeout=config.timeout_seconds,
            idle_seconds=SESSION_IDLE_SECONDS,
            name="page",
        )
        self._endpoints = Endpoints(self.sessions, self.counts)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-ui")
        self._asking = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-ui-ask")
        self._budget = Budget()
        self._lives: WeakKeyDictionary[Session, Live] = WeakKeyDictionary()
        #: Answers without an end that are open or about to be: pages, and tails of streams.
        self._open = {"pages": 0, "streams": 0}
        self.stopping = asyncio.Event()
        self.app = self._routes()

    def _routes(self) -> Starlette:
        route = self._endpoints.route
        return application(
            [
                *asset_routes(),
                route("/v1/events", GET=self._events),
                route("/v1/facts", GET=self._facts),
                route("/v1/explain/{lsn}", GET=self._explain),
                route("/v1/streams/{name}/tail", GET=self._tail),
                route("/v1/queries/{name}/plan", GET=self._plan),
                route("/v1/queries/{name}/{what}", POST=self._ask),
                Route("/v1/ticket", self._redeem, methods=["POST"]),
                Route("/healthz", self._health),
            ],
            "The page is at /.",
        )

    def stop(self) -> None:
        """Pages end: they try again until another server is there."""
        self.stopping.set()

    async def close(self) -> None:
        for live in list(self._lives.values()):
            await live.close()
        await self.sessions.close()
        # Whoever still waits for the log was just told that it is closed.
        for threads in (self._threads, self._asking):
            threads.shutdown(wait=False, cancel_futures=True)

    # ---- who looks

    def _live(self, request: Request, session: Session) -> Live:
        live = self._lives.get(session)
        if live is None:
            if len([one for one in self._lives.values() if one.is_running]) >= LIVES_MAX:
                raise Overloaded(f"{LIVES_MAX} tokens look at the page")
            token = bearer_token(request)
            looker = self._cluster(session, token)
            gatherer = self._gatherer(session, looker)
            live = Live(
                session.log,
                gatherer.gather,
                self._threads,
                may_ask=lambda query: may_ask(token, query),
                ended=_nothing if looker is None else looker.close,
            )
            self._lives[session] = live
        return live

    def _cluster(self, session: Session, token: str) -> ClusterLooker | None:
        config = self._config
        if config.target is None or not is_cluster(config.target):
            return None
        return ClusterLooker(
            session.log, config.target, token, config.tls_ca, config.timeout_seconds
        )

    def _gatherer(self, session: Session, looker: ClusterLooker | None) -> Gatherer:
        client = self._lend(session)
        if looker is None:
            return Gatherer(client, self._target())
        return Gatherer(client, self._target(), lambda: client.run(lambda _: looker.facts()))

    def _lend(self, session: Session) -> BlockingLog:
        return BlockingLog.lend(session.log, asyncio.get_running_loop())

    def _target(self) -> str:
        return self._config.target or "the user's own log"

    async def _beside(self, session: Session, work: Callable[[BlockingLog], T]) -> T:
        """Code that waits, on a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._asking, work, self._lend(session))

    # ---- what is shown

    async def _events(self, request: Request, session: Session) -> ASGIApp:
        # A query may have any name by which it stands in the log, also one that nobody may give.
        query = request.query_params.get("query")
        if query is not None and len(query) > NAME_CHARS_MAX:
            raise BadRequest(f"a query's name has {NAME_CHARS_MAX} characters at most")
        # Who may use nothing is told so with a status, not in the first event.
        await session.log.bounds()
        return self._stream("pages", lambda: self._live(request, session).events(query))

    def _stream(self, kind: str, begin: Callable[[], AsyncGenerator[bytes, None]]) -> ASGIApp:
        """Law: between being let in and being counted nothing is awaited, so nobody slips in."""
        if self._open[kind] >= PAGES_MAX:
            raise Overloaded(f"{PAGES_MAX} {kind} are being followed")
        source = begin()
        self._open[kind] += 1

        async def close() -> None:
            self._open[kind] -= 1
            await source.aclose()

        return PieceByPiece(
            source, media_type=EVENTS, headers=_NO_STORE, close=close, ended=self.stopping,
            on_slow=self._slow,
        )  # fmt: skip

    def _slow(self) -> None:
        self.counts.slow_pages += 1

    async def _facts(self, request: Request, session: Session) -> Response:
        """All that the page is made of, as of now."""
        looker = self._cluster(session, bearer_token(request))
        gatherer = self._gatherer(session, looker)
        loop = asyncio.get_running_loop()
        try:
            facts = await loop.run_in_executor(self._asking, gatherer.gather)
        finally:
            if looker is not None:
                await looker.close()
        return _told(facts)

    async def _plan(self, request: Request, session: Session) -> Response:
        from penstock.cli.query_facts import find_query

        name = request.path_params["name"]
        found = await self._beside(session, lambda client: find_query(client, name))
        return _told({"query": name, "plan": found.registered.plan})

    async def _explain(self, request: Request, session: Session) -> Response:
        from penstock.cli.explain_entry import gather

        text = request.path_params["lsn"]
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise BadRequest(f"LSN {text[:40]!r} is no number")
        target = self._config.target or ""
        facts: dict[str, Any] = await self._beside(
            session, lambda client: gather(Log(client, target), int(text))
        )
        return _told(facts)

    async def _tail(self, request: Request, session: Session) -> ASGIApp:
        wanted = request.query_params.get("filter", "")[:FILTER_CHARS_MAX]
        found = await session.stream(request.path_params["name"])
        await session.log.read_last(stream_tag(found.name))  # who may not is told with a status
        start = (await session.log.bounds()).tail
        return self._stream("streams", lambda: _tailed(session.log, found, start, wanted))

    # ---- what is asked for

    async def _ask(self, request: Request, session: Session) -> Response:
        name, what = request.path_params["name"], request.path_params["what"]
        if what not in ("stop", "rescale"):
            raise NotFound(f"nothing called {what[:40]!r} can be asked of a query")
        async with read_body(request, self._budget, _BODY_BYTES_MAX) as body:
            message = request_of(what, parse_object(body) if body else {})
        done = await self._beside(session, lambda client: ask_query(client, name, message))
        return _told(done, 202)

    async def _redeem(self, request: Request) -> Response:
        try:
            async with read_body(request, self._budget, _BODY_BYTES_MAX) as body:
                code = body.decode(errors="replace")
        except Exception as refused:
            return problem_response(problem_of(refused))
        now = asyncio.get_running_loop().time()
        token = None if self._ticket is None else self._ticket.redeem(code, now)
        if token is None:
            error = Unauthorized("this ticket is wrong, was used, or came too late")
            return problem_response(problem_of(error))
        return _told({"token": token})

    async def _health(self, request: Request) -> Response:
        if self.stopping.is_set():
            return json_response({"status": "stopping"}, 503)
        return json_response({"status": "ok"})
