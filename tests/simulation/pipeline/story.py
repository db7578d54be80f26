"""What happened in a world of tasks, for the checkers: recoveries, trims, what a reader was shown.

Owns copies only; nothing in the world reads it.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from penstock.ids import Lsn
from penstock.protocol.markers import Marker
from penstock.protocol.names import TaskId
from penstock.runtime.spec import QuerySpec
from penstock.state.memory import MemoryState
from penstock.state.memory_table import MemoryTable
from penstock.state.unread import Unread
from simulation.pipeline.log import LogRecord
from simulation.pipeline.store import SimFolder

#: By part and kind of change, its rows, sorted: two equal states have equal contents.
Contents = dict[tuple[str, str], list[tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class Recovery:
    """An instance found its state, at its task's last marker."""

    task: TaskId
    instance: int
    marker: Marker
    #: LSN of the marker of the checkpoint that was used, and of the changes applied after it.
    base: Lsn | None
    replayed: list[Lsn]
    contents: Contents


@dataclass(slots=True)
class PipelineStory:
    """One world's."""

    recoveries: list[Recovery] = field(default_factory=list)
    #: Instances that began to run, by task.
    instances: dict[TaskId, list[int]] = field(default_factory=dict)
    #: By producer and instance: the run of the query that claimed it.
    claims: dict[tuple[str, int], int] = field(default_factory=dict)
    #: What a reader of the result was shown: LSN at which it counted, payload.
    shown: list[tuple[Lsn, bytes]] = field(default_factory=list)


class Witness(Protocol):
    """What the laws are asked about: a world, or a bench."""

    spec: QuerySpec

    @property
    def log(self) -> LogRecord: ...

    folder: SimFolder
    story: PipelineStory


def contents_of(state: MemoryState) -> Contents:
    """All that it holds; what is unread stays so. Raises UnreadLost if it is not to be read."""
    found: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    waiting = {name: table.unread for name, table in state._tables().items() if table.unread}
    with ExitStack() as stack:
        for name, unread in waiting.items():
            table = state._tables()[name]
            table._unread = None
            stack.callback(setattr, table, "_unread", unread)
        for node, changes in state.snapshot().items():
            for change in changes:
                rows = found.setdefault((change.name, change.kind), [])
                rows += [(str(node), *map(str, row.values())) for row in change.rows.to_pylist()]
    for name, unread in waiting.items():
        rows = found.setdefault((name, "put"), [])
        for node in unread.nodes:
            read = _read_rows(state._tables()[name], unread, node)
            rows += [(str(node), *map(str, row.values())) for row in read]
    return {name: sorted(rows) for name, rows in sorted(found.items()) if rows}


def _read_rows(table: MemoryTable, unread: Unread, node: int) -> list[dict[str, object]]:
    held, held_bytes = unread._held.copy(), unread._held_bytes
    rows = unread.read_node(node)
    unread._held, unread._held_bytes = held, held_bytes  # as if nobody had looked
    if rows is None:
        return []
    keys = rows.columns[: len(unread.part.keys)]
    mask = (table._find(keys) < 0) & ~unread.is_gone(keys)
    found: list[dict[str, object]] = rows.filter(pa.array(mask)).to_pylist()
    return found
