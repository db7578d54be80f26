"""Aligned checkpoints, the coordinator's side: one on its way at a time. Pure.

    begin ─► barrier to the sources ─► Part of every task ─► complete: one group commits them

Owns when a checkpoint is complete. The markers of all tasks are appended in one group, so a restart
finds the same checkpoint for each of them. Law: only parts of the instances that the checkpoint
was begun with count; a task that gets another instance ends it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.errors import BadFormat
from penstock.log.records import Kind, NewEntry
from penstock.protocol.names import TaskId, parse_task


@dataclass(frozen=True, slots=True)
class Part:
    """A task's word that its part of a checkpoint is durable: a control entry.

    `commit` is the task's marker for this checkpoint, as text, and the tags that it goes to.
    """

    task: str
    instance: int
    number: int
    commit: dict[str, Any]


def encode_part(part: Part) -> bytes:
    return json.dumps({"kind": "part", **asdict(part)}, separators=(",", ":")).encode()


def decode_part(payload: bytes) -> Part | None:
    """None: a control entry of another kind."""
    try:
        fields: Any = json.loads(payload)
        if fields.pop("kind") != "part":
            return None
        part = Part(**fields)
        texts = [part.task, part.commit["marker"], *part.commit["tags"]]
        counts = [part.instance, part.number]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadFormat(f"bytes that are no part of a checkpoint: {error}") from error
    if any(type(text) is not str for text in texts) or any(type(n) is not int for n in counts):
        raise BadFormat(f"a part of a checkpoint of other types: {part}")
    return part


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
