"""What no fault ever causes: mistakes in code, and how they are noticed wherever they are made.

Shipped code survives much. It ends one connection, starts a task anew, gathers what others raised
and forgets it. None of that may hide an assertion that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from penstock.errors import Defect, PenstockError

T = TypeVar("T")


def is_mistake(error: BaseException | None) -> bool:
    """An assertion, a broken invariant, a wrong type: nothing that a fault explains."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_mistake, error.exceptions))
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):  # what failed on the way is told together with where it did
        return is_mistake(cause)
    if isinstance(error, PenstockError):
        return isinstance(error, Defect)
    return isinstance(error, Exception) and not isinstance(error, OSError | EOFError)


class Watched(Coroutine[Any, Any, T]):
    """A coroutine; a mistake that ends it is told, whatever is made of it by those who wait."""

    __slots__ = ("_coroutine", "_tell")

    def __init__(
        self,
        coroutine: Generator[Any, None, T] | Coroutine[Any, Any, T],
        tell: Callable[[BaseException], None],
    ) -> None:
        self._coroutine = coroutine
        self._tell = tell

    def send(self, value: Any) -> Any:
        try:
            return self._coroutine.send(value)
        except StopIteration:
            raise
        except BaseException as error:
            self._tell(error)
            raise

    def throw(self, *values: Any) -> Any:
        try:
            return self._coroutine.throw(*values)
        except StopIteration:
            raise
        except BaseException as error:
            self._tell(error)
            raise

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, None, T]:
        raise NotImplementedError("only tasks run it")

    def __repr__(self) -> str:
        return repr(self._coroutine)
