"""Rooms to run tests in: memory, and mapped files of which everything is let go all the time.

With PENSTOCK_STATE=mapped in the environment, all state of a test process that is given no room is
in mapped files, and queries under fire are started with a bound of one byte.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

from penstock.state import memory
from penstock.state.room import MEMORY, Room
from penstock.state.scratch import Scratch

IS_MAPPED: Final = os.environ.get("PENSTOCK_STATE") == "mapped"
ROOMS: Final = ["in memory", "in mapped files"]
#: Files that a process may have open are few: where there are many small states, the smallest
#: arrays stay in memory.
SMALL_BYTES: Final = 4 * 1024


class Forgetful(Scratch):
    """Lets go of everything whenever it is asked for anything."""

    def __init__(self, small_bytes: int = 1, folder: str | None = None) -> None:
        super().__init__(0, folder, small_bytes=small_bytes, look_seconds=0.0)

    def tidy(self) -> None:
        self.let_go()

    def expect(self, array: npt.NDArray[Any], places: npt.NDArray[np.int64]) -> None:
        super().expect(array, places)
        self.let_go()


def make_room(name: str) -> Room:
    return Forgetful() if name == ROOMS[1] else MEMORY


@contextmanager
def states_are(room: Room) -> Iterator[None]:
    """Where states are that are given no room."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "IN_MEMORY", room)
        yield


def use_asked_room() -> None:
    """In this process, as the environment says."""
    if IS_MAPPED:
        memory.IN_MEMORY = Forgetful(SMALL_BYTES)


def state_memory() -> int | None:
    """What queries are started with."""
    return 1 if IS_MAPPED else None
