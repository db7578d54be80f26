"""The changes that a task has committed since its last checkpoint, as it has encoded them. Pure.

They are in the log as well: so no more than TRAIL_BYTES_MAX of them are held, and what is not held
is read from there. Then the next checkpoint waits for the log instead of memory for the store.

Law: `between(a, b)` gives the payloads of all markers in (a, b], in order, or None.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock.limits import MIB

#: About as much as a task writes between two checkpoints at 3 MB/s of changes.
TRAIL_BYTES_MAX: Final = 32 * MIB
#: Stands for the beginning of a task that has no predecessors.
BEGINNING: Final = -1


class Trail:
    """Of one instance of a task."""

    def __init__(self, after_lsn: int) -> None:
        """Nothing is held of markers up to this one."""
        self._after = after_lsn
        self._held: deque[tuple[int, Sequence[bytes]]] = deque()
        self._bytes = 0

    def add(self, marker_lsn: int, payloads: Sequence[bytes]) -> None:
        """What a marker has committed; markers come in order."""
        if payloads:
            self._held.append((marker_lsn, payloads))
            self._bytes += sum(map(len, payloads))
        if self._bytes > TRAIL_BYTES_MAX:
            self.forget(marker_lsn)

    def between(self, after_lsn: int, upto_lsn: int) -> list[bytes] | None:
        """None if not all of it is held."""
        if after_lsn < self._after:
            return None
        return [
            payload
            for lsn, payloads in self._held
            if after_lsn < lsn <= upto_lsn
            for payload in payloads
        ]

    def forget(self, upto_lsn: int) -> None:
        """What markers up to this one have committed is not needed, or too much."""
        while self._held and self._held[0][0] <= upto_lsn:
            _, payloads = self._held.popleft()
            self._bytes -= sum(map(len, payloads))
        self._after = max(self._after, upto_lsn)
