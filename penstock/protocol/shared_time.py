"""The time of a source that several tasks share: a function of the log, not of who reads how fast.

A marker of such a task says how far in the log it has looked, and what time its own rows told up to
there. Whoever reads the markers takes time at the smallest position that all have looked up to, and
there it is the latest that any of them had told. A task without rows has looked, and so holds
nobody back; one that is away holds back time, and so makes nobody's rows late.

Law: the time at a position depends on the rows below it alone: not on how many tasks there are, nor
on how far one of them is ahead. What was told ahead of the others is kept, and is part of the
reader's own marker. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock.ids import Lsn
from penstock.protocol.markers import Heard, Marker

#: Words of a task that wait for the others. With more, neighbours become one, told by the later.
AHEAD_MAX: Final = 16


def hear(word: Heard | None, lsn: Lsn, marker: Marker) -> Heard:
    """What is known of a task after its next marker, which stands at `lsn`."""
    before = Heard(lsn, None, False) if word is None else word
    told_ms = before.ahead[-1][1] if before.ahead else before.watermark_ms
    ahead = before.ahead
    if marker.watermark_ms is not None and (told_ms is None or marker.watermark_ms > told_ms):
        ahead = (*ahead, (marker.position, marker.watermark_ms))
        if len(ahead) > AHEAD_MAX:
            ahead = (*ahead[1:-1:2], ahead[-1])
    return Heard(lsn, before.watermark_ms, marker.is_idle, marker.position, ahead)


def settle(words: Sequence[Heard | None]) -> list[Heard | None]:
    """The same words; what was told up to the position that all have reached is their time."""
    reached = looked_by_all(words)
    return [None if word is None else _settle(word, reached) for word in words]


def _settle(word: Heard, reached: Lsn) -> Heard:
    if not word.ahead or word.ahead[0][0] > reached:
        return word
    settled = [ms for looked, ms in word.ahead if looked <= reached]
    return replace(word, watermark_ms=settled[-1], ahead=word.ahead[len(settled) :])


def looked_by_all(words: Sequence[Heard | None]) -> Lsn:
    """All rows of the source below it are in the log, in the output of the tasks."""
    return Lsn(min((0 if word is None else word.looked for word in words), default=0))


def time_of(words: Sequence[Heard | None]) -> int | None:
    """By settled words; None: nobody has told any."""
    times = [word.watermark_ms for word in words if word is not None]
    return max((ms for ms in times if ms is not None), default=None)
