"""How often Python looks for objects that hold each other: less often than it would by itself.

Nothing that exists once all tests are collected (modules, tests, strategies) ever becomes garbage,
so it is never looked at. Law: garbage goes all the same, only later.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: New objects between two looks at the young; Python's own number is 700.
_YOUNG: Final = 10_000


@contextmanager
def collected_once() -> Iterator[None]:
    """What is made here stays for good."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(_YOUNG, 10, 10)
        gc.enable()
