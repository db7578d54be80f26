"""One update a second, shared by all pages that show the same token.

    gather (thread) ──► Book (view/page.py) ──► one text per chosen query ──► every page

Laws: facts are gathered once, however many pages look, and not at all while none does. A page that
is slow gets the newest update when it is ready for one, and costs nobody anything: nothing waits
for it, and nothing is kept for it. While the log is away, pages are told so every second.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Executor
from typing import Any

from penstock.errors import PenstockError, Retryable
from penstock.gateway.problems import problem_of
from penstock.gateway.replies import problem_event
from penstock.log.client.client import AsyncLog
from penstock.ui.config import LINGER_SECONDS, PATIENCE_SECONDS, UPDATE_SECONDS
from penstock.ui.view import LOG, Book
from penstock.ui.view.history import Series

logger = logging.getLogger(__name__)

Gather = Callable[[], dict[str, Any]]


def _wall_ms() -> float:
    return time.time_ns() / 1_000_000


class Live:
    """The updates of one token.

    `may_ask`: whether it may stop and rescale a query. `ended`: called when nobody looks any more.
    """

    def __init__(
        self,
        log: AsyncLog,
        gather: Gather,
        threads: Executor,
        *,
        may_ask: Callable[[str], bool],
        ended: Callable[[], Awaitable[None]],
    ) -> None:
        self._log = log
        self._gather = gather
        self._threads = threads
        self._may_ask = may_ask
        self._close_beside = ended
        self.book = Book()
        self.pages = 0
        self._alone_since = 0.0
        self._task: asyncio.Task[None] | None = None
        self._gathering: asyncio.Future[dict[str, Any]] | None = None
        #: A log with so much that facts take longer than an update is asked for half of the time.
        self._began = self._rests_until = 0.0
        self._away: dict[str, Any] | None = None
        self._away_since: float | None = None
        #: Updates there were, and a future that the next one resolves.
        self._number = 0
        self._told_ms = 0.0
        self._next: asyncio.Future[None] | None = None
        #: Why there will be no more.
        self._ended: Exception | None = None
        #: Of this update, by chosen query.
        self._texts: dict[str | None, bytes] = {}

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    # ---- pages

    async def events(self, query: str | None) -> AsyncGenerator[bytes, None]:
        """What one page is sent; ends with a problem when the token is good no more."""
        self._begin()
        try:
            yield b"retry: 1000\n\n"
            seen = 0
            charts = [_Told(self.book, LOG)] + ([] if query is None else [_Told(self.book, query)])
            while True:
                await self._newer(seen)
                if self._ended is not None:
                    yield problem_event(problem_of(self._ended).body())
                    return
                seen = self._number
                yield self._text(query)
                for chart in charts:
                    points = chart.newer()
                    if points is not None:
                        yield _event("points", points)
        finally:
            self.pages -= 1
            self._alone_since = asyncio.get_running_loop().time()

    def _begin(self) -> None:
        self.pages += 1
        if not self.is_running:
            # What was gathered when somebody last looked is not shown as if it were of now.
            self._ended, self._number = None, 0
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _newer(self, seen: int) -> None:
        while self._number <= seen and self._ended is None:
            if self._next is None or self._next.done():
                self._next = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._next)

    def _text(self, query: str | None) -> bytes:
        text = self._texts.get(query)
        if text is None:
            page = self.book.page(query, self._told_ms, self._away)
            page["may_ask"] = query is not None and self._may_ask(query)
            text = self._texts[query] = _event("page", page)
        return text

    # ---- updates

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        try:
            while self.pages or loop.time() - self._alone_since < LINGER_SECONDS:
                await self._update()
                if self._log.broken is not None:
                    self._ended = self._log.broken
                    return
                due = max(due + UPDATE_SECONDS, loop.time())
                await asyncio.sleep(due - loop.time())
        except PenstockError as error:
            self._ended = error
        except Exception as error:
            logger.error("updates of the page failed cause=%r", error, exc_info=error)
            self._ended = error
        finally:
            self._tell()
            await self._close_beside()

    async def _update(self) -> None:
        loop = asyncio.get_running_loop()
        gathering = self._gathering
        if gathering is None:
            if loop.time() < self._rests_until:
                return
            self._began = loop.time()
            gathering = self._gathering = loop.run_in_executor(self._threads, self._gather)
            gathering.add_done_callback(_heed)
        await asyncio.wait([gathering], timeout=PATIENCE_SECONDS)
        reason: str | None = None
        if gathering.done():
            self._gathering = None
            self._rests_until = 2 * loop.time() - self._began - UPDATE_SECONDS
            try:
                self.book.take(gathering.result())
            except Retryable as error:
                reason = str(error)
        elif self._log.connection is None:
            reason = self._log.last_error
        elif self._away is not None:
            reason = self._away["why"]
        if reason is None and gathering.done():
            self._away = self._away_since = None
        elif reason is not None:
            since = self._away_since = self._away_since or loop.time()
            self._away = {"why": reason, "for_ms": round(1000 * (loop.time() - since))}
        self._tell()

    def _tell(self) -> None:
        self._number += 1
        self._told_ms = _wall_ms()
        self._texts.clear()
        if self._next is not None and not self._next.done():
            self._next.set_result(None)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def _heed(gathering: asyncio.Future[dict[str, Any]]) -> None:
    """If all pages have gone by then, nobody need complain of what became of it."""
    if not gathering.cancelled():
        gathering.exception()


class _Told:
    """Of one chart, what a page was told of; it is told the rest, however much it missed."""

    def __init__(self, book: Book, of: str) -> None:
        self._book = book
        self._of = of
        self._series: Series | None = None
        self._count = 0

    def newer(self) -> dict[str, Any] | None:
        """None: nothing."""
        found = self._book.series(self._of)
        if found is not self._series:
            self._series, self._count = found, 0
        if found is None or found.count == self._count:
            return None
        points = found.after(self._count)
        self._count = found.count
        return {"of": None if self._of == LOG else self._of, **points}


def _event(name: str, value: object) -> bytes:
    """In ASCII: whatever a name holds, it ends no line of ours, and can be encoded."""
    return f"event: {name}\ndata: {json.dumps(value, allow_nan=False)}\n\n".encode()
