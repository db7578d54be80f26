"""A report of a query that fits into one entry of the log, however many tasks there are. Pure.

Law: what is given back takes no more bytes than asked for; what had to be left out is said
(`tasksLeftOut`), and the whole report stays with the driver (`recentProgress`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from penstock.limits import PAYLOAD_BYTES_MAX

#: Half of an entry: the message has more than the report.
REPORT_BYTES_MAX: Final = PAYLOAD_BYTES_MAX // 2
#: Of each task, when there are too many to tell everything.
_FACTS: Final = (
    "worker", "instance", "is_running", "busy_share", "back_pressured_share", "committed_position",
    "commits_ever", "rows_in", "rows_out", "state_bytes",
)  # fmt: skip
#: Without these a report is one all the same.
_LAST_TO_GO: Final = ("members", "moves", "cores", "nodes")


def fitted(report: Mapping[str, Any], bytes_max: int = REPORT_BYTES_MAX) -> dict[str, Any]:
    """The report, with less of its tasks if need be; with the busiest of them, if that helps."""
    made = dict(report)
    if _size(made) <= bytes_max:
        return made
    tasks: Mapping[str, Mapping[str, Any]] = report["tasks"]
    few = {name: {key: one[key] for key in _FACTS if key in one} for name, one in tasks.items()}
    made["graph"] = _without_tasks(report["graph"])
    kept = sorted(few, key=lambda name: few[name].get("busy_share") or 0.0, reverse=True)
    while True:
        shown = set(kept)
        made["tasks"] = {name: one for name, one in few.items() if name in shown}
        if len(kept) < len(tasks):
            made["tasksLeftOut"] = len(tasks) - len(kept)
        if _size(made) <= bytes_max:
            return made
        if not kept:
            break
        kept = kept[: len(kept) // 2]
    for name in _LAST_TO_GO:
        if name in made:
            made[name] = type(made[name])()
    if _size(made) > bytes_max:
        made["graph"] = {"nodes": [], "edges": []}
    return made


def _without_tasks(graph: Mapping[str, Any]) -> dict[str, Any]:
    nodes = [{key: one[key] for key in one if key not in ("tasks", "does")}
             for one in graph["nodes"]]  # fmt: skip
    return {**graph, "nodes": nodes}


def _size(report: Mapping[str, Any]) -> int:
    return len(json.dumps(report, separators=(",", ":")))
