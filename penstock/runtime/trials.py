"""Which rows fail where state is kept: they are tried on a copy of it, before they count. Pure.

Only after a failure, for what was read up to there (task_core.py): a copy costs as much as a
checkpoint. Law: as long as all that passes is done to the state as well, rows fail on the copy if
and only if they would fail on the state. So a row that needs the state of its key finds it.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import Retryable
from penstock.ops.api import Delta
from penstock.ops.chain import Chain, NothingDone


class Trial:
    """A copy, made anew after a failure: what failed may have changed a part of it."""

    def __init__(self, copy: Callable[[], Chain]) -> None:
        self._copy = copy
        self._chain: Chain | None = None

    def failure_of(self, place: int, rows: Delta) -> Exception | None:
        """What these rows fail with; None: they pass, and are in the copy from here on."""
        if self._chain is None:
            self._chain = self._copy()
        try:
            self._chain.push(place, rows)
        except Retryable:
            raise  # no fault of these rows
        except Exception as error:
            self._chain = None
            return error.cause if isinstance(error, NothingDone) else error
        return None
