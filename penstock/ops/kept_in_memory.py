"""What of a query's state stays in memory although `state_memory` is given; known before it runs.

Numbers are in mapped files, and so are all rows of joins, windows and top-N, whatever their columns
are. Python's objects are not: keys of tables with a text, a decimal, a list or a map, values of
aggregates that are none of long, double and boolean, and whatever users' processors keep.

Law: what is not named here is in arrays of the state's room (state/room.py) as soon as it is large.
Operators are built to be asked, but never those that would run users' code.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.ops.api import ignore_late
from penstock.ops.pipeline import Pipeline
from penstock.plain_text import plain
from penstock.plan import nodes as n
from penstock.plan.stages import Query, Stage
from penstock.state.columns import dtype_of
from penstock.state.key_index import ObjectIndex, make_index
from penstock.state.memory import MemoryState
from penstock.state.parts import TABLE, Part

_USERS = (n.TransformWithState, n.GroupedMapWithState)


def kept_in_memory(query: Query) -> list[str]:
    """One line for each table of which something stays in memory."""
    return [
        f"stage {stage.id}, {found}"
        for stage in query.stages
        for found in _of_stage(stage)
    ]  # fmt: skip


def _of_stage(stage: Stage) -> Iterator[str]:
    nodes = list(stage.root.walk())
    if any(isinstance(node, _USERS) for node in nodes):
        yield "all that its processor or function keeps"
        return
    state = MemoryState()
    statics = {
        node.id: node.schema.empty_table() for node in nodes if isinstance(node, n.Static)
    }  # fmt: skip
    Pipeline(stage.root, state, statics, ignore_late, lambda: 0, None)
    for name, part in state.parts().items():
        if part.kind == TABLE and (columns := _in_memory(part)):
            yield f"{name.rpartition('/')[2]}: {', '.join(columns)}"


def _in_memory(part: Part) -> list[str]:
    width = len(part.keys)
    keys = pa.schema([part.rows.field(at) for at in range(width)])
    are_objects = bool(width) and isinstance(make_index(keys), ObjectIndex)
    values = [field.name for field in list(part.rows)[width:] if dtype_of(field.type) is object]
    names = keys.names if are_objects else []
    return [*(f"key {plain(name.rsplit('#', 1)[0])}" for name in names), *values]


def told_in_memory(query: Query) -> str:
    """The same for people."""
    found = kept_in_memory(query)
    if not found:
        return "with state_memory, all that grows with its keys is on disk"
    return "\n  ".join(["with state_memory, in memory all the same:", *found])
