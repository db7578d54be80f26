"""Where targets are: what a player asks of a host of some of its targets.

Owns the seam. A host is inside the player's process (local_host.py), or stands for one elsewhere.
Duties of a host: messages of a target are done in their order; each Hello has one answer, an At or
a Failure, and each Apply one, an Ack or a Failure; after a Failure, what else was sent on that
connection has none. Answers are told in the player's event loop, never from inside `send`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.delivery.messages import FromTarget, ToTarget

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
