"""How long `make soak` goes on: every long test repeats itself, with fresh seeds, for so long."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from typing import Final

SOAK_SECONDS: Final = float(os.environ.get("SOAK_SECONDS", "60"))


def fresh_seeds() -> Iterator[int]:
    """Seeds until the time is up, at least one; each is printed, to be repeated by hand."""
    deadline = time.monotonic() + SOAK_SECONDS
    while True:
        seed = random.SystemRandom().randrange(2**32)
        print(f"seed {seed}")
        yield seed
        if time.monotonic() >= deadline:
            return
