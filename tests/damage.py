"""Damaged bytes, tried exhaustively, and the memory that lies may take.

group_strategies.py draws larger damage at random.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator


def flips(data: bytes) -> Iterator[bytes]:
    """The bytes with one bit flipped, for every bit."""
    for at in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[at // 8] ^= 1 << at % 8
        yield bytes(damaged)


def cuts(data: bytes) -> Iterator[bytes]:
    """Every beginning of the bytes, and the bytes with more behind them."""
    yield from (data[:size] for size in range(len(data)))
    yield from (data + b"\x00", data + bytes(64))


def peak_bytes(action: Callable[[], object]) -> int:
    """The most that the action had allocated at once."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
