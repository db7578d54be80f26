"""Polls for what happens elsewhere, in another process or another task, and has no event."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable

import pytest

_POLL_SECONDS = 0.01
#: Measurements of a time: a machine that is busy for a moment spoils one of them.
TRIES = 3


def wait_until(
    happened: Callable[[], object], complaint: str = "in vain", *, seconds: float = 45.0
) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, complaint
        time.sleep(_POLL_SECONDS)


async def until(
    happened: Callable[[], Awaitable[object] | object],
    complaint: str = "in vain",
    *,
    seconds: float = 45.0,
) -> float:
    """The same for a task, which may have to ask somebody; returns how long it took."""
    started = time.monotonic()
    while True:
        answer = happened()
        if await answer if isinstance(answer, Awaitable) else answer:
            return time.monotonic() - started
        assert time.monotonic() < started + seconds, complaint
        await asyncio.sleep(_POLL_SECONDS)


async def until_refused(
    attempt: Callable[[], Awaitable[object]], error: type[Exception], words: str
) -> None:
    """Until an attempt, all of which must fail, says this: a short one may end before it knows."""

    async def is_said() -> bool:
        with pytest.raises(error) as caught:
            await attempt()
        return re.search(words, str(caught.value)) is not None

    await until(is_said, f"it was not said: {words}")


async def best_below(seconds: float, measure: Callable[[], Awaitable[float]]) -> float:
    """A measured time below the limit, at the first try or one of the next.

    For laws that something does not wait for something else: who waits does so at every try.
    """
    best = math.inf
    for _ in range(TRIES):
        best = min(best, await measure())
        if best < seconds:
            return best
    raise AssertionError(f"it took {best:.3f} s at best, and should have taken {seconds:g} s")
