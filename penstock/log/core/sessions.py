"""Which connection speaks for a client: its newest. What an older one still sends is not heard.

A client that connects again sends everything unanswered again. The copies on its old connection may
lie in a buffer and arrive later still: after a guarded group was refused, when its seq stands for
another group; after a producer retired, when its claim would open it anew. Nothing in such a copy
tells it from a new request, so it must not be decided at all.

Law (I7, I22): once a client is welcomed on a connection, no request that came over an older
connection of its session is decided. A session is one client object; it dies with its process.
"""

from __future__ import annotations

from typing import Generic, TypeVar

C = TypeVar("C")


class Sessions(Generic[C]):
    """The newest connection of every session."""

    def __init__(self) -> None:
        self._newest: dict[str, C] = {}

    def open(self, session: str, connection: C) -> C | None:
        """A client says hello; returns the connection that must not be heard any more, if any.

        An empty name is no session: its connections have nothing to do with each other.
        """
        if not session:
            return None
        older = self._newest.get(session)
        self._newest[session] = connection
        return older

    def close(self, session: str, connection: C) -> None:
        """A connection ended."""
        if self._newest.get(session) is connection:
            del self._newest[session]
