"""What else a process takes from its machine: the time of day, and randomness."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from simulation.kernel.scheduler import Scheduler
from simulation.kernel.shipped import Change, changed, in_this_thread

#: Some time in the past, so that jumps in both directions stay in range.
START_MS = 1_700_000_000_000


class WallClock:
    """One machine's time of day: virtual time plus whatever somebody set it to."""

    def __init__(self, scheduler: Scheduler, start_ms: int = START_MS) -> None:
        self._scheduler = scheduler
        self._offset_ms = start_ms

    def jump(self, ms: int) -> None:
        self._offset_ms = max(self._offset_ms + ms, 1)

    def wall_ms(self) -> int:
        return self._offset_ms + int(self._scheduler.now * 1000)


@contextmanager
def seeded_secrets(random: Random) -> Iterator[None]:
    """Names and nonces that shipped code makes up in this thread come from the seed, for as long as
    this lasts."""

    def token_bytes(nbytes: int | None = None) -> bytes:
        return random.randbytes(32 if nbytes is None else nbytes)

    def token_hex(nbytes: int | None = None) -> str:
        return token_bytes(nbytes).hex()

    def uuid4() -> uuid.UUID:
        return uuid.UUID(bytes=random.randbytes(16), version=4)

    seeded: list[Change] = [
        (secrets, "token_bytes", token_bytes),
        (secrets, "token_hex", token_hex),
        (uuid, "uuid4", uuid4),
    ]
    with changed(
        (place, name, in_this_thread(drawn, getattr(place, name))) for place, name, drawn in seeded
    ):
        yield
