"""Which rows make a step fail: found by halving. Pure.

Only for steps that can be tried again: they keep nothing, or what they keep is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from penstock.errors import Retryable
from penstock.ops.api import Delta


def set_bad_rows_aside(
    delta: Delta, try_rows: Callable[[Delta], object]
) -> tuple[Delta, list[tuple[Delta, Exception]]]:
    """The rows that do not fail, and each of the others with its error."""
    bad: list[tuple[Delta, Exception]] = []
    good = np.ones(len(delta), bool)

    def search(first: int, last: int) -> None:
        rows = delta.take(np.arange(first, last))
        try:
            try_rows(rows)
        except Retryable:
            raise  # no fault of these rows: the disk of the state is full
        except Exception as error:
            if last - first > 1:
                middle = (first + last) // 2
                search(first, middle)
                search(middle, last)
            else:
                good[first] = False
                bad.append((rows, error))

    if len(good):
        search(0, len(good))
    return delta.where(good), bad
