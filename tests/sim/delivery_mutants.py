"""Mistakes in a player, made on purpose, and what must notice them."""

from __future__ import annotations

import pytest

from penstock.delivery.player_core import Effect, PlayerCore, _Target
from penstock.ids import Lsn


def resume_at_the_last_ack(patch: pytest.MonkeyPatch) -> None:
    """A player that knows a target's position does not listen to what the target says."""
    opened = PlayerCore._opened

    def open(
        self: PlayerCore, target: _Target, position: Lsn, tail: Lsn, now: float
    ) -> list[Effect]:
        known = target.queue.position
        return opened(self, target, position if known is None else known, tail, now)

    patch.setattr(PlayerCore, "_opened", open)
