"""What a worker reports of a task, as the coordinator takes it in. Pure.

Owns the names and types of a report's fields; task.py and standby.py write them. A worker may be of
another version, or say nonsense: what is not as it should be counts as not told, each field by
itself. Law: whatever comes in, everything that is kept has its type and is within its bounds, so
that nothing which reads reports can fail by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final

from penstock.limits import VIRTUAL_NODES_MAX
from penstock.runtime.histogram import BOUNDS_MS, BUCKETS

#: No count, position or time is larger.
_MOST: Final = 2**62
_INPUTS_MAX: Final = 64
_NAME_LENGTH_MAX: Final = 200
_TEXT_LENGTH_MAX: Final = 200


def _count(value: Any) -> Any:
    """None: it is none."""
    return value if type(value) is int and 0 <= value <= _MOST else None


def _number(value: Any) -> Any:
    """Of any sign: positions of commits begin at -1, and event time before 1970."""
    return value if type(value) is int and -_MOST <= value <= _MOST else None


def _amount(value: Any) -> Any:
    is_one = type(value) in (int, float) and isfinite(value) and 0 <= value <= _MOST
    return value if is_one else None


def _flag(value: Any) -> Any:
    return value if type(value) is bool else None


def _text(value: Any) -> Any:
    return value[:_TEXT_LENGTH_MAX] if type(value) is str else None


def _histogram(value: Any) -> Any:
    if type(value) is not dict:
        return None
    return {
        place: count
        for place, count in value.items()
        if place.isdecimal() and len(place) <= 3 and int(place) < BUCKETS
        if _count(count) is not None
    }


def _buckets(value: Any) -> Any:
    if type(value) is not list or len(value) != len(BOUNDS_MS) + 1:
        return None
    return value if all(_count(one) is not None for one in value) else None


def _by_node(value: Any) -> Any:
    if type(value) is not list or len(value) != VIRTUAL_NODES_MAX:
        return None
    return value if all(_count(one) is not None for one in value) else None


def _inputs(value: Any) -> Any:
    if type(value) is not dict:
        return None
    return {
        name: _read(one, _INPUT)
        for name, one in list(value.items())[:_INPUTS_MAX]
        if len(name) <= _NAME_LENGTH_MAX and type(one) is dict
    }


_INPUT: Final[Mapping[str, Callable[[Any], Any]]] = {
    "rows": _count,
    "delay_ms": _amount,
    "rows_told": _count,
    "told_by": _count,
}
_FIELDS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "instance": _count,
    "is_running": _flag,
    "reported_at_ms": _number,
    "position": _count,
    "committed_position": _count,
    "committed_at_ms": _number,
    "settled_position": _count,
    "commits_ever": _number,
    "watermark_ms": _number,
    "rows_in": _count,
    "rows_out": _count,
    "rows_late": _count,
    "rows_waiting": _count,
    "source_bytes": _count,
    "dead_letters": _count,
    "virtual_nodes": _count,
    "inputs": _inputs,
    "node_rows": _by_node,
    "lane_rows": _by_node,
    "state_rows": _count,
    "state_bytes": _count,
    "state_rows_unread": _count,
    "state_memory": _count,
    "state_file_bytes": _count,
    "state_mapped_in_bytes": _count,
    "checkpoint_lsn": _count,
    "checkpoint_at_ms": _number,
    "checkpoint_bytes": _count,
    "checkpoint_ms": _amount,
    "checkpoints": _count,
    "checkpoint_failures": _count,
    "checkpoint_error": _text,
    "resume_ms": _amount,
    "from_standby": _flag,
    "busy_ms": _amount,
    "waiting_ms": _amount,
    "blocked_ms": _amount,
    "step_ms": _amount,
    "commit_ms": _histogram,
    "visible_ms": _histogram,
    "visible_counts": _buckets,
    "visible_sum_ms": _amount,
}
_COPY: Final[Mapping[str, Callable[[Any], Any]]] = {
    "lag_ms": _amount,
    "is_ready": _flag,
    "state_rows": _count,
    "state_bytes": _count,
}


def read_report(values: Mapping[str, Any]) -> dict[str, Any]:
    """What of a task's report can be used."""
    return _read(values, _FIELDS)


def read_copy_report(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a standby's, or of a copy that is made ready."""
    return _read(values, _COPY)


def _read(values: Mapping[str, Any], known: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    told = {name: read(values[name]) for name, read in known.items() if name in values}
    return {name: value for name, value in told.items() if value is not None}
