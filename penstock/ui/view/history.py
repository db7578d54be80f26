"""What figures were a moment ago: for charts, and for rates of what is only counted. Pure.

Law: it holds POINTS_MAX points of each of SERIES_MAX series, whatever comes; a series of which
nothing is told any more is forgotten. A value that was not known is a gap, not a zero.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

#: Ten minutes.
POINTS_MAX: Final = 600
SERIES_MAX: Final = 500
#: What was not told of for so long is a gap.
GAP_SECONDS: Final = 5.0
#: A clock that is set right goes back by little; one that goes back by more is another machine's.
BACK_SECONDS: Final = 10.0

Value = float | int | None


class Series:
    """One chart: values of a few names at a few moments."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._points: deque[tuple[float, *tuple[Value, ...]]] = deque(maxlen=POINTS_MAX)
        #: Points that were ever added: who was told of so many lacks the rest.
        self.count = 0

    def add(self, at_s: float, values: Mapping[str, Value]) -> None:
        """A moment is after the one before, or is left out."""
        last_s = self._points[-1][0] if self._points else None
        if last_s is not None:
            if at_s <= last_s:
                return
            if at_s - last_s > GAP_SECONDS:
                self._append((last_s + 1, *(None for _ in self.names)))
        self._append((at_s, *(values.get(name) for name in self.names)))

    def is_of_another_clock(self, at_s: float) -> bool:
        """Whether a moment is so long before the last one that it cannot be put beside it."""
        return bool(self._points) and at_s < self._points[-1][0] - BACK_SECONDS

    def _append(self, point: tuple[float, *tuple[Value, ...]]) -> None:
        self._points.append(point)
        self.count += 1

    def after(self, count: int) -> dict[str, Any]:
        """The points since there were so many, column by column."""
        lacking = min(max(self.count - count, 0), len(self._points))
        is_whole = self.count - count > len(self._points) or count <= 0
        points = list(self._points)[len(self._points) - lacking :] if lacking else []
        columns = [list(column) for column in zip(*points, strict=True)]
        names = ("at", *self.names)
        return {
            "reset": is_whole,
            "columns": dict(zip(names, columns or [[] for _ in names], strict=True)),
        }


class Counters:
    """Counters of the last time, for their rates."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}
        self._rates: dict[str, float] = {}

    def take(self, at_ms: float, counts: Mapping[str, Value]) -> None:
        """Counts at one moment. Those of a later moment give rates; those that fall began anew."""
        for name, value in counts.items():
            if value is None:
                self._before.pop(name, None)
                self._rates.pop(name, None)
                continue
            before = self._before.get(name)
            if before is not None and before[0] - 1000 * BACK_SECONDS <= at_ms <= before[0]:
                continue  # the same report as the last time
            self._before[name] = (at_ms, value)
            if before is not None and at_ms > before[0] and value >= before[1]:
                self._rates[name] = (value - before[1]) * 1000 / (at_ms - before[0])
            else:
                self._rates.pop(name, None)

    def rate(self, name: str) -> float | None:
        """How much it grew in a second."""
        return self._rates.get(name)

    def keep(self, prefix: str, names: Iterable[str]) -> None:
        """Forget the counters below a prefix that are not of these."""
        wanted = frozenset(names)
        for name in [one for one in self._before if one.startswith(prefix) and one not in wanted]:
            del self._before[name]
            self._rates.pop(name, None)
