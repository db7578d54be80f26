"""What an instance of a task has done and taken in, for its reports. Pure.

Owns counters; nothing is decided by them. Law: costs are per entry and per batch, never per row:
the clock is asked by whoever calls, once for what was taken in together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from penstock.ids import Lsn
from penstock.plan import nodes as n
from penstock.plan.nodes import StageInput
from penstock.runtime.dead_letters import DeadLetter
from penstock.runtime.graph import id_of
from penstock.state.keys import VIRTUAL_NODES
from penstock.stream.lanes import lane_tag


@dataclass(slots=True)
class Stats:
    """What a task has done since its instance began; the worker reports it."""

    rows_in: int = 0
    rows_out: int = 0
    rows_late: int = 0
    dead_letters: int = 0
    commits: int = 0
    #: Bytes of source entries that were read, whoever they were for.
    source_bytes: int = 0


@dataclass(slots=True)
class Uncommitted:
    """Since the last commit was captured."""

    position: Lsn
    rows_in: int = 0
    origin_ms: int | None = None
    dead: list[DeadLetter] = field(default_factory=list)
    is_due: bool = False
    #: Somebody waits for a marker.
    is_asked: bool = False


class Taken:
    """By input of a task."""

    def __init__(
        self,
        inputs: Sequence[n.Scan | StageInput],
        lanes: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`lanes`: by stream that is read in lanes, how many it has."""
        self._inputs = inputs
        self._lanes = {lane_tag(one, lane): lane for one in lanes for lane in range(lanes[one])}
        #: By lane, rows that were ever read from it.
        self.lane_rows = [0] * (VIRTUAL_NODES if self._lanes else 0)
        self._rows = [0] * len(inputs)
        #: When the oldest entry was appended that came since the operators ran last.
        self._oldest_ms: list[int | None] = [None] * len(inputs)
        self._delay_ms: list[int | None] = [None] * len(inputs)
        #: By upstream task, how many rows it said to have given out, over all its instances.
        self._told: dict[str, int] = {}

    def came(self, place: int, time_ms: int) -> None:
        """An entry for this input, appended at this time."""
        oldest = self._oldest_ms[place]
        if oldest is None or time_ms < oldest:
            self._oldest_ms[place] = time_ms

    def came_by_lane(self, tags: Sequence[str], rows: int) -> None:
        """Rows of an entry with these tags, if they are of a lane."""
        lanes = self._lanes
        for tag in tags:
            if tag in lanes:
                self.lane_rows[lanes[tag]] += rows
                return

    def took(self, place: int, rows: int) -> None:
        """The operators have them."""
        self._rows[place] += rows

    def heard(self, task: str, rows_out: int) -> None:
        """An upstream task's marker was taken in, with all rows that it and those before tell."""
        self._told[task] = rows_out

    def settle(self, now_ms: Callable[[], int]) -> None:
        """What came so far was worked on."""
        for place, oldest in enumerate(self._oldest_ms):
            if oldest is not None:
                self._delay_ms[place] = max(0, now_ms() - oldest)
                self._oldest_ms[place] = None

    def report(self, tasks_of: Callable[[int], Sequence[str]]) -> dict[str, dict[str, Any]]:
        """By input, for a report; `tasks_of` a stage are those that write what is read."""
        told: dict[str, dict[str, Any]] = {}
        for place, leaf in enumerate(self._inputs):
            here = told.setdefault(id_of(leaf), {"rows": 0, "delay_ms": None})
            here["rows"] += self._rows[place]
            delays = [ms for ms in (here["delay_ms"], self._delay_ms[place]) if ms is not None]
            here["delay_ms"] = max(delays, default=None)
            if isinstance(leaf, StageInput):
                words = [self._told[task] for task in tasks_of(leaf.stage) if task in self._told]
                here |= {"rows_told": sum(words), "told_by": len(words)}
        return told
