"""Who is heard of, when clocks of two machines differ. Pure.

    the state by the clocks    its last word    it is
    lost                       newer than the last time we looked, a moment ago    running
    running                    the same for longer than it may be silent           lost

Law: only the moments of words are compared with each other, and only our own time that never goes
back with itself; so a clock that is wrong makes nobody dead or alive, once he was looked at twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_RUNNING: Final = "running"
_LOST: Final = "lost"


@dataclass(slots=True)
class _Word:
    said_ms: int
    #: When we first had it.
    since: float
    #: Whether there was another before it.
    is_newer: bool


class Hearing:
    """Of all of one kind; `silence` seconds are allowed."""

    def __init__(self, silence: float) -> None:
        self._silence = silence
        self._words: dict[str, _Word] = {}

    @property
    def names(self) -> frozenset[str]:
        """Those of whom anything was ever heard."""
        return frozenset(self._words)

    def judge(self, name: str, state: str, said_ms: int | None, now: float) -> str:
        """The state of one; `state` is what the clocks say, `said_ms` the time of its last word."""
        if said_ms is None:
            return state
        word = self._words.get(name)
        if word is None or word.said_ms != said_ms:
            word = self._words[name] = _Word(said_ms, now, word is not None)
        silent = now - word.since
        if state == _LOST and word.is_newer and silent <= self._silence:
            return _RUNNING
        if state == _RUNNING and silent > self._silence + 1:
            return _LOST
        return state

    def keep(self, names: Iterable[str]) -> None:
        """Forget all others."""
        wanted = frozenset(names)
        self._words = {name: word for name, word in self._words.items() if name in wanted}
