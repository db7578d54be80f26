"""Where targets are: what a player asks of a host of some of its targets.

Owns the seam. A host is inside the player's process (local_host.py), or stands for one elsewhere.
Duties of a host: messages of a target are done in their order; each Hello has one answer, an At or
a Failure, and each Apply one, an Ack or a Failure; after a Failure, what else was sent on that
connection has none. Answers are told in the player's event loop, never from inside `send`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.delivery.messages import Failure, FromTarget, Hello, ToTarget

Tell = Callable[[FromTarget], None]


class TargetHost(Protocol):
    """A host of one or more targets."""

    @property
    def window(self) -> int:
        """How many batches of a target may be under way."""

    def start(self, tell: Tell) -> None:
        """Called once, in the player's event loop, before the first message."""

    def send(self, messages: Sequence[ToTarget]) -> None:
        """All that is due to its targets now. Returns at once."""

    async def close(self) -> None:
        """Let go of everything, within the caller's deadline. Idempotent."""


class NoHost:
    """Of a target that cannot be reached from here at all: its address or driver is not right."""

    window = 1

    def __init__(self, error: Exception) -> None:
        self._error = error
        self._tell: Tell | None = None

    def start(self, tell: Tell) -> None:
        self._tell = tell

    def send(self, messages: Sequence[ToTarget]) -> None:
        for message in messages:
            if isinstance(message, Hello) and self._tell is not None:
                failure = Failure(message.shard, message.connection, self._error)
                asyncio.get_running_loop().call_soon(self._tell, failure)

    async def close(self) -> None:
        self._tell = None
