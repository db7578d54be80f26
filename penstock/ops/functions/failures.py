"""Spark's error conditions, and Arrow's errors turned into them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import EvaluationFailed
from penstock.ops.functions.registry import Datum


def fail(condition: str, message: str = "") -> NoReturn:
    """Raise Spark's error condition, e.g. DIVIDE_BY_ZERO."""
    raise EvaluationFailed(condition, message)


def fail_where(mask: Datum, condition: str, message: Callable[[int], str] | str = "") -> None:
    """Fail if any element of the mask is true; `message` may be made from its position."""
    if isinstance(mask, pa.Scalar):
        if mask.as_py() is True:
            fail(condition, message if isinstance(message, str) else message(0))
        return
    if pc.any(mask).as_py() is True:
        if isinstance(message, str):
            fail(condition, message)
        fail(condition, message(pc.index(mask, True).as_py()))


@contextmanager
def arrow_errors(condition: str, message: str = "") -> Iterator[None]:
    """Inside, Arrow's complaint about a value is this condition."""
    try:
        yield
    except pa.ArrowInvalid as error:
        raise EvaluationFailed(condition, message or str(error)) from error
