"""Who has connected and not shown the token yet: counted by peer from the accept on.

Owns who must go when too many wait. Knows no sockets. Law: those who wait never keep a newcomer
out; the oldest one of the peer that has most of them goes instead, so whoever has the token gets in
however many do nothing but wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

A = TypeVar("A")


class Arrivals(Generic[A]):
    """All that wait, in TLS handshakes too."""

    def __init__(self) -> None:
        self._peers: dict[A, str] = {}
        #: By peer, in the order in which they came, with the number of each arrival.
        self._waiting: dict[str, dict[A, int]] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._peers)

    def __contains__(self, arrival: object) -> bool:
        return arrival in self._peers

    def __iter__(self) -> Iterator[A]:
        return iter(self._peers)

    def add(self, peer: str, arrival: A) -> None:
        self._number += 1
        self._peers[arrival] = peer
        self._waiting.setdefault(peer, {})[arrival] = self._number

    def remove(self, arrival: A) -> None:
        """It was let in, or has gone; nothing happens if it does not wait."""
        peer = self._peers.pop(arrival, None)
        if peer is None:
            return
        of_peer = self._waiting[peer]
        del of_peer[arrival]
        if not of_peer:
            del self._waiting[peer]

    def choose(self) -> A | None:
        """Who must go first; None if nobody waits."""

        def rank(of_peer: dict[A, int]) -> tuple[int, int]:
            return len(of_peer), -next(iter(of_peer.values()))

        most = max(self._waiting.values(), key=rank, default=None)
        return None if most is None else next(iter(most))
