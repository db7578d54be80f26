"""Connections to the log, one for each token that callers show.

Owns who is let in: nobody but the log can say. A token is tried by connecting with it, which proves
it both ways and sends it nowhere (decision 0025); while the connection lasts, it is good. What a
token may do is the log's business on every request, so one that was narrowed is used like any
other; where the log ends its session, it is tried anew.

Laws: a token is kept as a keyed hash and inside of its own client, never in a log line or a
message; the cache is bounded, and only what nobody uses makes place.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from penstock.errors import Overloaded, PenstockError, Unauthorized, Unavailable
from penstock.gateway.appending import KeyedProducers
from penstock.gateway.config import (
    OPENINGS_MAX,
    SESSION_IDLE_SECONDS,
    SESSION_REQUESTS_MAX,
    SESSIONS_MAX,
)
from penstock.gateway.problems import RETRY_AFTER, refuse
from penstock.log.client.client import AsyncLog, Resolve
from penstock.log.embedded import endpoint
from penstock.stream.registration import Registration
from penstock.stream.registry import find_stream
from penstock.wire.token import TEXT_MAX

logger = logging.getLogger(__name__)

#: What a stream is made with stays; that it is there is looked up this often.
_STREAM_SECONDS = 5.0
_SWEEP_SECONDS = 15.0

T = TypeVar("T")


def resolver(
    target: str | None, tls_ca: Path | None, *, start: bool = True
) -> Callable[[str], Resolve]:
    """Where the log is, for a caller's token; not `start`: without a server, it is down."""
    place = target if target is None or "://" in target else Path(target)

    def resolve_for(token: str) -> Resolve:
        return endpoint(place, tls_ca=tls_ca, start=start, token=token)

    return resolve_for


class Session:
    """One token's connection to the log, and what hangs on it."""

    def __init__(self, log: AsyncLog) -> None:
        self.log = log
        self.producers = KeyedProducers(log)
        self.users = 0
        self.used_at = 0.0
        self._streams: dict[str, tuple[float, Registration]] = {}
        self._beside: dict[object, object] = {}

    def beside(self, kind: Callable[[AsyncLog], T]) -> T:
        """The one of its kind that this session has, made of its log on first use."""
        found: Any = self._beside.get(kind)
        if found is None:
            found = self._beside[kind] = kind(self.log)
        return cast(T, found)

    async def stream(self, name: str, *, fresh: bool = True) -> Registration:
        """Raises NotFound. Not `fresh`: for what never changes of it, its columns and lanes."""
        now = asyncio.get_running_loop().time()
        seen_at, known = self._streams.get(name, (0.0, None))
        if fresh or known is None or now - seen_at > _STREAM_SECONDS:
            known = await find_stream(self.log, name)
            if len(self._streams) > 1000:
                self._streams.clear()
            self._streams[name] = (now, known)
        return known

    async def close(self) -> None:
        await self.producers.close()
        await self.log.close()


class Sessions:
    """See the module's docstring."""

    def __init__(
        self,
        resolve_for: Callable[[str], Resolve],
        *,
        timeout: float,
        idle_seconds: float = SESSION_IDLE_SECONDS,
        name: str = "gateway",
    ) -> None:
        """`name`: what it calls itself, to the log and to who is refused."""
        self._resolve_for = resolve_for
        self._timeout = timeout
        self._idle_seconds = idle_seconds
        self._name = name
        self._key = secrets.token_bytes(32)
        self._open: OrderedDict[bytes, Session] = OrderedDict()
        self._opening: dict[bytes, asyncio.Task[Session]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    def start(self) -> None:
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    @asynccontextmanager
    async def enter(self, token: str) -> AsyncIterator[Session]:
        """The session of a token, while a request uses it. Raises Unauthorized, Overloaded."""
        if not 1 <= len(token) <= TEXT_MAX or not token.isascii():
            raise Unauthorized("the token is missing or none of ours")
        mark = hashlib.blake2b(token.encode(), key=self._key).digest()
        session = self._open.get(mark)
        if session is not None and session.log.broken is not None:
            self._drop(mark)
            session = None
        if session is None:
            session = await self._opened(mark, token)
        if session.users >= SESSION_REQUESTS_MAX:
            raise refuse(
                429,
                "too-many-requests",
                f"{session.users} requests with this token are under way",
                "Wait for answers, then send the request again.",
                RETRY_AFTER,
            )
        session.users += 1
        if mark in self._open:
            self._open.move_to_end(mark)
        try:
            yield session
        except Unauthorized:
            if session.log.broken is not None:
                self._drop(mark)
            raise
        finally:
            session.users -= 1
            session.used_at = asyncio.get_running_loop().time()

    async def _opened(self, mark: bytes, token: str) -> Session:
        opening = self._opening.get(mark)
        if opening is None:
            if len(self._opening) >= OPENINGS_MAX:
                raise Overloaded("too many tokens are being tried at once")
            opening = asyncio.get_running_loop().create_task(self._try(mark, token))
            self._opening[mark] = opening
            opening.add_done_callback(lambda done: self._tried(mark, done))
        try:
            # One try for all that came with the same token, whoever of them goes away.
            return await asyncio.shield(opening)
        except (Unauthorized, Overloaded) as error:
            # A copy: one error for many would gather all their tracebacks.
            raise type(error)(str(error)) from None
        except PenstockError as error:
            # Who asks has shown nothing yet, and need not know where the log is.
            logger.warning("the log cannot be reached cause=%s", error)
            raise Unavailable(f"the {self._name} cannot reach its log now") from None

    def _tried(self, mark: bytes, done: asyncio.Task[Session]) -> None:
        del self._opening[mark]
        if not done.cancelled():
            done.exception()  # all who waited may have gone: nobody need complain

    async def _try(self, mark: bytes, token: str) -> Session:
        self._make_room()
        name = f"{self._name}-{os.getpid()}"
        resolve = self._resolve_for(token)
        log = await AsyncLog.connect(resolve, name=name, timeout=self._timeout)
        session = Session(log)
        session.used_at = asyncio.get_running_loop().time()
        self._open[mark] = session
        return session

    def _make_room(self) -> None:
        if len(self._open) < SESSIONS_MAX:
            return
        unused = next((mark for mark, each in self._open.items() if not each.users), None)
        if unused is None:
            raise Overloaded("as many tokens are in use as the gateway takes")
        self._drop(unused)

    def _drop(self, mark: bytes) -> None:
        session = self._open.pop(mark, None)
        if session is not None:
            closing = asyncio.get_running_loop().create_task(session.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            old = loop.time() - self._idle_seconds
            for mark, session in list(self._open.items()):
                if not session.users and session.used_at < old:
                    self._drop(mark)

    async def close(self) -> None:
        """Finish what was submitted, then disconnect."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for mark in list(self._open):
            self._drop(mark)
        await asyncio.gather(*self._closing, return_exceptions=True)
