"""Answers that are sent piece by piece, to clients that may be slow or gone.

Law: a client that takes nothing costs one piece and its reader's credit, for SEND_SECONDS_MAX; then
it is cut off. An answer that cannot be finished is cut off, too, so that nobody takes it for whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from starlette.types import Receive, Scope, Send

from penstock.gateway.config import SEND_SECONDS_MAX

#: Under this key of a scope, what drops the connection at once.
ABORT = "penstock.abort"


class PieceByPiece:
    """An ASGI answer. `close` is called in the end; `ended` ends it early, as if the source had."""

    def __init__(
        self,
        source: AsyncIterator[bytes],
        *,
        media_type: str,
        headers: Mapping[str, str],
        close: Callable[[], Awaitable[None]],
        ended: asyncio.Event | None = None,
        on_slow: Callable[[], None] = lambda: None,
    ) -> None:
        self._source = source
        self._headers = {"content-type": media_type, **headers}
        self._close = close
        self._ended = ended
        self._on_slow = on_slow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._send(scope, receive, send)
        finally:
            await self._close()

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = [(name.lower().encode(), value.encode()) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        loop = asyncio.get_running_loop()
        pumping = loop.create_task(self._pump(send))
        waiting = [loop.create_task(_left(receive))]
        if self._ended is not None:
            waiting.append(loop.create_task(self._ended.wait()))  # type: ignore[arg-type]
        try:
            await asyncio.wait([pumping, *waiting], return_when=asyncio.FIRST_COMPLETED)
            if pumping.done():
                pumping.result()
                is_whole = True
            else:
                pumping.cancel()
                await asyncio.wait([pumping])
                is_whole = not waiting[0].done()
            if is_whole:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            self._on_slow()
            _abort(scope)
        except BaseException:
            _abort(scope)
            raise
        finally:
            for task in (pumping, *waiting):
                task.cancel()
            await asyncio.wait([pumping])

    async def _pump(self, send: Send) -> None:
        async for piece in self._source:
            if piece:
                async with asyncio.timeout(SEND_SECONDS_MAX):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})


def _abort(scope: Scope) -> None:
    abort = scope.get(ABORT)
    if abort is not None:
        abort()


async def _left(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
