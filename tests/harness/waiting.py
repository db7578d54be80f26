"""Polls for what happens elsewhere, in another process or another task, and has no event."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

_POLL_SECONDS = 0.01


def wait_until(
    happened: Callable[[], object], complaint: str = "in vain", *, seconds: float = 30.0
) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, complaint
        time.sleep(_POLL_SECONDS)


async def until(
    happened: Callable[[], Awaitable[object] | object],
    complaint: str = "in vain",
    *,
    seconds: float = 20.0,
) -> float:
    """The same for a task, which may have to ask somebody; returns how long it took."""
    started = time.monotonic()
    while True:
        answer = happened()
        if await answer if isinstance(answer, Awaitable) else answer:
            return time.monotonic() - started
        assert time.monotonic() < started + seconds, complaint
        await asyncio.sleep(_POLL_SECONDS)
