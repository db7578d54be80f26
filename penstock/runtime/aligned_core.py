"""Aligned checkpoints, the coordinator's side: one on its way at a time. Pure.

    begin ─► barrier to the sources ─► Part of every task ─► complete: one group commits them

Owns when a checkpoint is complete. The markers of all tasks are appended in one group, so a restart
finds the same checkpoint for each of them. Law: only parts of the instances that the checkpoint
was begun with count; a task that gets another instance ends it.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.log.records import Kind, NewEntry
from penstock.protocol.names import TaskId, parse_task
from penstock.runtime.control import Part


class AlignedCheckpoints:
    """Of one run of one query."""

    def __init__(self) -> None:
        self._number = 0
        #: The instances whose parts are waited for; none: no checkpoint is on its way.
        self._instances: dict[TaskId, int] = {}
        self._told: dict[TaskId, NewEntry] = {}

    @property
    def is_idle(self) -> bool:
        return not self._instances

    def begin(self, instances: Mapping[TaskId, int]) -> int:
        """The number for the barriers."""
        assert self.is_idle and instances
        self._number += 1
        self._instances = dict(instances)
        self._told = {}
        return self._number

    def on_part(self, told: Part) -> list[NewEntry] | None:
        """The group that commits the checkpoint, with the last part; append it, then `end`."""
        task = parse_task(told.task)
        if told.number != self._number or self._instances.get(task) != told.instance:
            return None
        tags, marker = tuple(told.commit["tags"]), told.commit["marker"].encode()
        self._told[task] = NewEntry(marker, tags, Kind.MARKER)
        if len(self._told) < len(self._instances):
            return None
        return [self._told[task] for task in sorted(self._told)]

    def end(self) -> None:
        """It is complete, or given up: a task was lost."""
        self._instances = {}
        self._told = {}
