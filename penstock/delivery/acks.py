"""The acks of a delivery: how far its targets are, written to the log now and then. Pure.

Owns what is written, and when: at most once a second if anything has changed, and now and then if
nothing has, so that a player that died can be told from one that waits. It serves trimming, lag and
display. Law: a position that is written was told by the target itself, by this player or an
earlier one. What is exactly once never rests on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock.delivery.player_core import TargetFacts
from penstock.ids import Lsn
from penstock.protocol.deliveries import ALIVE_SECONDS, Delivered

#: Between two acks.
ACK_SECONDS: Final = 1.0


class Acks:
    """Of one life of a player."""

    def __init__(self, term: int, before: Delivered | None) -> None:
        self._term = term
        #: Positions that an earlier player wrote: of targets that did not tell theirs yet.
        self._before = () if before is None else tuple(before.positions)
        self._last: Delivered | None = None
        self._last_at = float("-inf")

    def due(self, facts: Sequence[TargetFacts], now: float, now_ms: int) -> Delivered | None:
        """What to write now; None: nothing."""
        told = self.make(facts, now_ms)
        if now < self._last_at + ACK_SECONDS:
            return None
        last = self._last
        says_the_same = last is not None and replace(told, time_ms=last.time_ms) == last
        if says_the_same and now < self._last_at + ALIVE_SECONDS:
            return None
        self._last, self._last_at = told, now
        return told

    def make(
        self,
        facts: Sequence[TargetFacts],
        now_ms: int,
        *,
        is_running: bool = True,
        error: str | None = None,
    ) -> Delivered:
        """How it stands now."""
        return Delivered(
            term=self._term,
            positions=[self._position(one) for one in facts],
            problems=[one.problem for one in facts],
            rows=[one.rows for one in facts],
            is_running=is_running,
            error=error,
            time_ms=now_ms,
        )

    def _position(self, target: TargetFacts) -> Lsn | None:
        if target.position is not None:
            return target.position
        known = self._before[target.shard] if target.shard < len(self._before) else None
        return None if known is None else Lsn(known)
