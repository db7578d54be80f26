"""What only the coordinator knows of a run, for its progress reports. Pure.

Owns the words for members, moves, and what happens to the layout.
"""

from __future__ import annotations

from typing import Any

from penstock.runtime.balancing import Advice
from penstock.runtime.coordinator_core import CoordinatorCore, Moved
from penstock.runtime.layout import Layout
from penstock.runtime.time_text import time_text

#: Virtual nodes that are named, of those that went to other tasks.
_NODES_TOLD = 64


def tell_run(
    core: CoordinatorCore,
    layout: Layout,
    rescaled: dict[str, Any] | None = None,
    refused: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Who is there, the layout if there was another one before, and the last moves; when it was
    rescaled last, and which request was refused last."""
    told: dict[str, Any] = {"members": tell_members(core), "workersWanted": core.wanted}
    if layout.version:
        told["layout"] = {"version": layout.version, "tasks": list(layout.tasks)}
    if core.moves:
        told["moves"] = [_tell_move(core, moved) for moved in core.moves]
    if rescaled is not None:
        told["rescaled"] = rescaled
    if refused is not None:
        told["refused"] = refused
    return told


def tell_members(core: CoordinatorCore) -> dict[str, dict[str, Any]]:
    """The workers that count as alive, by name."""
    members = sorted(core.members.values(), key=lambda member: member.slot)
    return {
        one.worker: {
            "slot": one.slot, "host": one.host, "pid": one.pid, "executor": one.executor
        }
        for one in members
    }  # fmt: skip


def _tell_move(core: CoordinatorCore, moved: Moved) -> dict[str, Any]:
    """`resumeMs`: how long its new instance took to begin; None: it has not said so yet."""
    state = core.tasks.get(moved.task)
    report = {} if state is None else state.report
    is_here = report.get("instance") == moved.instance and report.get("is_running")
    return {
        "task": str(moved.task),
        "from": moved.left,
        "to": moved.to,
        "why": moved.why,
        "at": None if moved.at_ms is None else time_text(moved.at_ms),
        "resumeMs": report.get("resume_ms") if is_here else None,
        "fromStandby": bool(report.get("from_standby")) if is_here else None,
    }


def tell_suspended(query: str, since_ms: int) -> dict[str, Any]:
    """And what brings it back."""
    return {"at": time_text(since_ms), "resume": f"penstock query rescale {query} --workers N"}


def tell_balanced(advice: Advice, changed: dict[str, Any]) -> dict[str, Any]:
    """Which virtual nodes went where, and how long all tasks paused for it."""
    nodes = [
        {"node": one.node, "from": str(one.left), "to": str(one.to), "rows": round(one.rate, 1)}
        for one in advice.moved[:_NODES_TOLD]
    ]
    return {**changed, "why": advice.why, "nodes": nodes, "count": len(advice.moved)}
