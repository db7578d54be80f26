"""Tests and fixtures that are `async def`, on the event loop that ships.

Owns the loop of such a test. Law: its asynchronous fixtures are made in the task that runs it, in
the order in which they need each other, and left in the opposite order, whatever became of it. A
plain fixture may give an asynchronous context manager, which is entered there, too.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest
import uvloop

#: Far more than such a test needs: a stack of asyncio tells more than one of pytest-timeout.
SECONDS_MAX: Final = 300


@dataclass(frozen=True, eq=False, slots=True)
class _Unmade:
    """A fixture that a test asked for, before there is a loop to make it in."""

    make: Callable[..., AsyncIterator[Any]]
    given: dict[str, Any]


def async_fixture(make: Callable[..., AsyncIterator[Any]]) -> Any:
    """An asynchronous generator as a fixture of asynchronous tests, made anew for each."""

    def fixture(**given: Any) -> _Unmade:
        return _Unmade(make, given)

    fixture.__signature__ = inspect.signature(make)  # type: ignore[attr-defined]
    fixture.__doc__ = make.__doc__
    return pytest.fixture(fixture, name=make.__name__)


def run_async_test(item: pytest.Function) -> bool | None:
    """What `pytest_pyfunc_call` answers: None if it is no such test."""
    if not inspect.iscoroutinefunction(item.obj):
        return None
    names = inspect.signature(item.obj).parameters
    uvloop.run(_run(item.obj, {name: item.funcargs[name] for name in names}))
    return True


async def _run(test: Any, given: dict[str, Any]) -> None:
    async with asyncio.timeout(SECONDS_MAX), AsyncExitStack() as stack:
        made: dict[_Unmade, Any] = {}

        async def resolve(value: Any) -> Any:
            if isinstance(value, AbstractAsyncContextManager):
                return await stack.enter_async_context(value)
            if not isinstance(value, _Unmade):
                return value
            if value not in made:
                given = {name: await resolve(each) for name, each in value.given.items()}
                made[value] = await resolve(asynccontextmanager(value.make)(**given))
            return made[value]

        await test(**{name: await resolve(value) for name, value in given.items()})
