"""Calls that a log or a store must refuse."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from penstock.errors import PenstockError


async def refused(error: type[PenstockError], *calls: Awaitable[object]) -> None:
    """Each of the calls fails like this, one after the other."""
    for call in calls:
        with pytest.raises(error):
            await call
