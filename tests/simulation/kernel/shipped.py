"""What a world does to shipped code while it runs: other limits, listeners, an ear for its reports.

Laws: everything is put back when the world ends. What other threads of the process do, such as
clients that an earlier test left behind, is neither listened to nor answered for.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any

from simulation.kernel.mistakes import is_mistake
from simulation.kernel.scheduler import Scheduler

#: Where, the name there, and its value for as long as a world runs.
Change = tuple[Any, str, Any]
#: Takes a function, whatever it is at that moment (a mutant's, perhaps), and returns what is called
#: instead.
Tap = Callable[[Callable[..., Any]], Callable[..., Any]]
_INHERITED = object()


@contextmanager
def changed(changes: Iterable[Change]) -> Iterator[None]:
    """Attributes of shipped modules and classes have other values."""
    before: list[Change] = []
    try:
        for place, name, value in changes:
            is_class = isinstance(place, type)
            # As it stands there, not as `getattr` finds it: a class method would be bound for good.
            old = vars(place).get(name, _INHERITED) if is_class else getattr(place, name)
            before.append((place, name, old))
            setattr(place, name, value)
        yield
    finally:
        for place, name, value in reversed(before):
            if value is _INHERITED:
                delattr(place, name)
            else:
                setattr(place, name, value)


def tapped(taps: Iterable[tuple[Any, str, Tap]]) -> AbstractContextManager[None]:
    """Shipped functions are listened to, or answered for, in this thread."""
    return changed(
        (place, name, in_this_thread(tap(function), function))
        for place, name, tap in taps
        for function in [getattr(place, name)]
    )


def in_this_thread(here: Callable[..., Any], elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is one in this thread, and another one in all others."""
    owner = threading.get_ident()

    @wraps(elsewhere)
    def call(*arguments: Any, **options: Any) -> Any:
        function = here if threading.get_ident() == owner else elsewhere
        return function(*arguments, **options)

    return call


def asked(tell: Callable[..., object]) -> Tap:
    """Tell of every call, before it is made."""

    def tap(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            tell(*arguments, **options)
            return function(*arguments, **options)

        return call

    return tap


def told(tell: Callable[..., object]) -> Tap:
    """Tell what every call returned, and what it was given."""

    def tap(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            outcome = function(*arguments, **options)
            tell(outcome, *arguments, **options)
            return outcome

        return call

    return tap


class _Ear(logging.Handler):
    """Hears reports, and fails the world for those that nobody foresaw."""

    def __init__(self, scheduler: Scheduler, foreseen: Callable[[logging.LogRecord], bool]) -> None:
        super().__init__(logging.WARNING)
        self._thread = threading.get_ident()
        self._scheduler = scheduler
        self._foreseen = foreseen

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread != self._thread:
            return
        causes = causes_of(record)
        is_error = record.levelno >= logging.ERROR and not self._foreseen(record)
        if is_error or any(map(is_mistake, causes)):
            cause = causes[0] if causes else None
            self._scheduler.fail_here(cause, f"was reported: {record.getMessage()}")


@contextmanager
def overheard(
    scheduler: Scheduler, foreseen: Callable[[logging.LogRecord], bool]
) -> Iterator[None]:
    """What shipped code survives and only reports ends the world: errors that were not foreseen,
    and whatever was caused by a mistake in the code."""
    logger, ear = logging.getLogger("penstock"), _Ear(scheduler, foreseen)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(ear)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(ear)
        logger.setLevel(level)
        logger.propagate = propagate


def causes_of(record: logging.LogRecord) -> list[BaseException]:
    """The exceptions that a report tells of."""
    values = record.args if isinstance(record.args, tuple) else ()
    logged = [record.exc_info[1]] if record.exc_info else []
    return [cause for cause in (*logged, *values) if isinstance(cause, BaseException)]
