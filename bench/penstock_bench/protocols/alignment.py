"""Aligned checkpoints, a task's side: barriers in the input, and what waits behind them. Pure.

Owns the cut. A checkpoint's barrier comes once through every channel of a task: from each upstream
task, and, if the task reads sources, from the coordinator (its entry stands among the sources' own,
so its LSN is the cut in them). Between the first barrier and the last, what comes through channels
that have delivered theirs is held: it belongs to the next checkpoint. Carbone et al., 2015.

Entries of older instances of the upstream tasks are dropped: after a failure all tasks start anew
from the last complete checkpoint, and those of the cohort say everything after it again.

A barrier is JSON, {"barrier": number}: under f/<query>.<version>/<stage> to the sources, and under
k/<query>.<version>/<stage> to the next stage.

Law: when `step` says COMPLETE, exactly the entries before the barrier of each channel were taken.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from enum import Enum, auto
from typing import Final

from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.log.records import Entry, Kind, NewEntry
from penstock.protocol.committed import Counted
from penstock.runtime.commit_protocol import Cohort

#: The channel of all sources together.
SOURCES: Final = ""


class Step(Enum):
    """What is to be done with an entry."""

    TAKE = auto()
    HOLD = auto()
    DROP = auto()
    #: It was a barrier, and others are still to come.
    WAIT = auto()
    #: It was the last barrier of its checkpoint: capture now.
    COMPLETE = auto()


class Alignment:
    """Of one instance of one task."""

    def __init__(self, cohort: Cohort, upstream: Collection[str], tags: Collection[str]) -> None:
        self._cohort = cohort
        self._upstream = {f"@{task}": cohort.instances.get(task) for task in upstream}
        self._reads_sources = any(tag.startswith("s/") for tag in tags)
        self._channels = {*self._upstream, *([SOURCES] if self._reads_sources else [])}
        #: The checkpoint on its way, and where each channel's barrier stood.
        self.number: int | None = None
        self._barriers: dict[str, Lsn] = {}
        self._held: list[tuple[Entry, Counted]] = []

    @property
    def source_cut(self) -> Lsn | None:
        """Sources were taken in up to here; None before their barrier, or without sources."""
        lsn = self._barriers.get(SOURCES)
        return None if lsn is None else Lsn(lsn + 1)

    def step(self, entry: Entry) -> Step:
        channel = entry.producer if entry.producer in self._upstream else SOURCES
        if channel != SOURCES and entry.instance != self._upstream[channel]:
            return Step.DROP
        number = decode_barrier(entry)
        if number is None:
            return Step.HOLD if channel in self._barriers else Step.TAKE
        if channel == SOURCES and (entry.lsn <= self._cohort.lsn or not self._reads_sources):
            return Step.DROP  # it was meant for the cohort before
        if self.number not in (None, number) or channel in self._barriers:
            raise BadFormat(f"barrier {number} of {channel!r} while {self.number} is on its way")
        self.number = number
        self._barriers[channel] = entry.lsn
        return Step.COMPLETE if len(self._barriers) == len(self._channels) else Step.WAIT

    def hold(self, entry: Entry, counted: Counted) -> None:
        self._held.append((entry, counted))

    def release(self) -> list[tuple[Entry, Counted]]:
        """What was held, once the task has captured its state."""
        held, self._held = self._held, []
        self.number = None
        self._barriers = {}
        return held


def barrier_entry(number: int, tags: tuple[str, ...]) -> NewEntry:
    return NewEntry(json.dumps({"barrier": number}).encode(), tags, Kind.CONTROL)


def decode_barrier(entry: Entry) -> int | None:
    """The checkpoint that an entry is a barrier of; None: it is none."""
    if entry.kind is not Kind.CONTROL or not entry.payload:
        return None
    try:
        number = json.loads(entry.payload)["barrier"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadFormat(f"LSN {entry.lsn}: bytes that are no barrier: {error}") from error
    if type(number) is not int:
        raise BadFormat(f"LSN {entry.lsn}: barrier {number!r}")
    return number
