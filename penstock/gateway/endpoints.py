"""Requests that show a token: each is served with the session of its token, or refused in words.

Owns the order of checks (room, then token, then the rest), and that every answer that is no success
is a problem with a cause and a remedy. The log is asked with the caller's token only.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.errors import Overloaded, Unauthorized
from penstock.gateway.config import REQUESTS_MAX
from penstock.gateway.problems import MEDIA_TYPE, Problem, problem_of
from penstock.gateway.sessions import Session, Sessions

logger = logging.getLogger(__name__)

#: Does the work of a request; what it returns is then sent, while the session is still held.
Handler = Callable[[Request, Session], Awaitable[ASGIApp]]


class RequestCounts(Protocol):
    """What is counted of requests."""

    requests: int
    unauthorized: int
    refused: int
    failed: int


class Endpoints:
    """Of one application."""

    def __init__(self, sessions: Sessions, counts: RequestCounts) -> None:
        self._sessions = sessions
        self._counts = counts
        #: Requests under way.
        self.open = 0

    def route(self, path: str, **handlers: Handler) -> Route:
        """One path, and what does the work of each of its methods."""
        return Route(path, _Endpoint(self, handlers), methods=list(handlers))

    async def serve(self, handler: Handler, scope: Scope, receive: Receive, send: Send) -> None:
        self._counts.requests += 1
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        request = Request(scope, receive)
        self.open += 1
        try:
            if self.open > REQUESTS_MAX:
                raise Overloaded(f"{REQUESTS_MAX} requests are under way")
            async with self._sessions.enter(bearer_token(request)) as session:
                response = await handler(request, session)
                await response(scope, receive, sending)
        except ClientDisconnect:
            pass  # nobody is there to be told
        except Exception as error:
            self._count(error)
            if not started:
                await problem_response(problem_of(error))(scope, receive, send)
        finally:
            self.open -= 1

    def _count(self, error: Exception) -> None:
        status = problem_of(error).status
        if isinstance(error, Unauthorized):
            self._counts.unauthorized += 1
        elif status < 500:
            self._counts.refused += 1
        else:
            self._counts.failed += 1
        if status == 500:
            logger.error("a request failed cause=%r", error, exc_info=error)


class _Endpoint:
    """One path, as ASGI has it: the answer is sent while the session is held."""

    def __init__(self, endpoints: Endpoints, handlers: Mapping[str, Handler]) -> None:
        self._endpoints = endpoints
        head = {"HEAD": handlers["GET"]} if "GET" in handlers else {}
        self._handlers = {**handlers, **head}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoints.serve(self._handlers[scope["method"]], scope, receive, send)


def bearer_token(request: Request) -> str:
    """Raises Unauthorized."""
    shown = request.headers.getlist("authorization")
    if len(shown) != 1:
        raise Unauthorized("there is no Authorization" if not shown else "several Authorizations")
    scheme, _, token = shown[0].partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthorized("Authorization is not of the form: Bearer TOKEN")
    return token.strip()


# ---- answers


def json_response(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
    return Response(body.encode(), status, headers, "application/json")


def problem_response(problem: Problem) -> Response:
    return Response(problem.body(), problem.status, dict(problem.headers), MEDIA_TYPE)


def static(path: str, body: bytes, kind: str, policy: str) -> Route:
    """What anybody may have, under a content security policy."""
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",  # after an upgrade, no file of before goes with one of now
    }

    async def answer(request: Request) -> Response:
        return Response(body, media_type=kind, headers=headers)

    return Route(path, answer)


def application(routes: Sequence[BaseRoute], remedy: str) -> Starlette:
    """`remedy`: what to do about a path that is not there."""

    async def no_route(request: Request, error: Exception) -> Response:
        detail = f"there is nothing at {request.url.path[:200]}"
        return problem_response(Problem(404, "no-such-path", detail, remedy))

    async def no_method(request: Request, error: Exception) -> Response:
        detail = f"{request.method[:20]} is not for {request.url.path[:200]}"
        headers = dict(getattr(error, "headers", None) or {})
        return problem_response(Problem(405, "no-such-method", detail, remedy, headers))

    app = Starlette(routes=routes, exception_handlers={404: no_route, 405: no_method})
    app.router.redirect_slashes = False  # it would send clients wherever their Host says
    return app
