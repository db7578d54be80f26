"""Errors of the source and the sinks, as Spark shows them: the cause, without the way to it.

Spark prints the traceback of whatever a data source raises, and drops its own frames from it. Ours
say nothing to a user either, as long as the error is meant for one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from penstock.errors import Defect, PenstockError

P = ParamSpec("P")
T = TypeVar("T")


def only_cause(method: Callable[P, T]) -> Callable[P, T]:
    """Let a method that Spark calls raise errors of ours with one line of traceback."""

    @functools.wraps(method)
    def told(*args: P.args, **options: P.kwargs) -> T:
        try:
            return method(*args, **options)
        except Defect:
            raise  # our bug: the report needs to say where
        except PenstockError as error:
            raise error.with_traceback(None) from None

    return told
