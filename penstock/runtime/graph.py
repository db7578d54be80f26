"""A query as a graph of streams, stages and its sink, for people. Pure.

Owns the ids: `source:<stream>`, `stage:<number>`, `sink:<stream>`. A node is what has tasks of its
own, with the stages that run in them; an edge is what is read from the log, and the result.
Law: every edge is between nodes of the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from penstock.plan import nodes as n
from penstock.plan.explain import describe_stage
from penstock.plan.nodes import StageInput
from penstock.plan.stages import Stage
from penstock.runtime.spec import QuerySpec

#: Of what a node does: a report comes every second, and `explain` has all of it.
_LINES_MAX: Final = 12
_LINE_LENGTH_MAX: Final = 100


def id_of(leaf: n.Scan | StageInput) -> str:
    """The node that is read."""
    return f"source:{leaf.stream}" if isinstance(leaf, n.Scan) else stage_id(leaf.stage)


def stage_id(stage: int) -> str:
    return f"stage:{stage}"


@dataclass(frozen=True, slots=True)
class Outline:
    """What of the graph stays the same under one layout."""

    #: By id, as reports show them.
    nodes: dict[str, dict[str, Any]]
    #: From where to where, each once.
    edges: tuple[tuple[str, str], ...]
    #: By id of a node with tasks: their names.
    tasks: dict[str, tuple[str, ...]]


def outline(spec: QuerySpec) -> Outline:
    nodes: dict[str, dict[str, Any]] = {}
    edges: dict[tuple[str, str], None] = {}
    tasks: dict[str, tuple[str, ...]] = {}
    for stream in spec.query.streams:
        nodes[f"source:{stream}"] = {"kind": "source", "name": stream}
    for stage in spec.running_stages:
        id, inside = stage_id(stage), spec.running(stage)
        tasks[id] = tuple(str(task) for task in spec.tasks_of(stage))
        nodes[id] = {
            "kind": "stage",
            "name": f"stage {stage}",
            "stages": [one.id for one in inside],
            "does": _steps(inside),
            "tasks": list(tasks[id]),
        }
        for leaf in spec.inputs(stage):
            edges[id_of(leaf), id] = None
    sink = f"sink:{spec.to}"
    nodes[sink] = {"kind": "sink", "name": spec.to}
    edges[stage_id(len(spec.tasks) - 1), sink] = None
    return Outline(nodes, tuple(edges), tasks)


def _steps(stages: tuple[Stage, ...]) -> list[str]:
    """In the order in which rows pass them."""
    lines = [line for stage in stages for line in describe_stage(stage)]
    if len(lines) > _LINES_MAX:
        left_out = len(lines) - _LINES_MAX + 1
        lines = [*lines[: _LINES_MAX - 1], f"and {left_out} more: see the plan"]
    return [
        line if len(line) <= _LINE_LENGTH_MAX else f"{line[: _LINE_LENGTH_MAX - 1]}…"
        for line in lines
    ]
