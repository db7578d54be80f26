"""How many rows a second each virtual node gets, from the counters of tasks. Pure.

Whoever writes rows for a stage counts them by virtual node (outputs.py), as it hashes them anyway;
whoever reads lanes of a source counts by lane, which goes with the virtual node of its number
(taken.py). Laws: what a task counts takes as many numbers as there are virtual nodes, whatever it
reads; a stage of which some task has not told two counts is not known, and never 0; what an older
instance counted is never mixed with what its successor did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.plan import nodes as n
from penstock.plan.nodes import StageInput
from penstock.protocol.names import TaskId
from penstock.runtime.spec import QuerySpec
from penstock.state.keys import VIRTUAL_NODES

#: By virtual node.
ByNode = tuple[float, ...]
#: Shorter intervals say little.
_MS_MIN = 500.0


@dataclass(frozen=True, slots=True)
class _Counted:
    instance: int
    ms: float
    #: Rows written and rows read, by virtual node.
    written: Sequence[int]
    read: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Rate:
    written: ByNode
    read: ByNode


@dataclass(slots=True)
class NodeRates:
    """Of all stages of a query."""

    _counted: dict[TaskId, _Counted] = field(default_factory=dict)
    _rates: dict[TaskId, _Rate] = field(default_factory=dict)

    def update(
        self, spec: QuerySpec, reports: Mapping[TaskId, Mapping[str, Any]]
    ) -> dict[int, ByNode]:
        """By stage, those that are known; a stage whose rows have no virtual node is left out."""
        counted, rates = {}, {}
        for task, report in reports.items():
            now, before = _counted(report), self._counted.get(task)
            if now is None:
                continue
            counted[task] = now
            if before is None or before.instance != now.instance or now.ms < before.ms:
                continue
            if now.ms - before.ms < _MS_MIN:
                counted[task] = before
                if task in self._rates:
                    rates[task] = self._rates[task]
            else:
                seconds = (now.ms - before.ms) / 1000
                rates[task] = _Rate(
                    _grown(before.written, now.written, seconds),
                    _grown(before.read, now.read, seconds),
                )
        self._counted, self._rates = counted, rates
        found = {stage: self._of_stage(spec, stage) for stage in spec.running_stages}
        return {stage: one for stage, one in found.items() if one is not None}

    def _of_stage(self, spec: QuerySpec, stage: int) -> ByNode | None:
        parts: list[ByNode] = []
        for leaf in dict.fromkeys(spec.inputs(stage)):
            writes = isinstance(leaf, StageInput)
            if isinstance(leaf, n.Scan) and spec.sources[leaf.stream].lanes == 1:
                continue
            for task in spec.tasks_of(leaf.stage if isinstance(leaf, StageInput) else stage):
                rate = self._rates.get(task)
                if rate is None:
                    return None
                parts.append(rate.written if writes else rate.read)
            if not writes:
                break  # a task counts all that it reads from lanes together
        return tuple(map(sum, zip(*parts, strict=True))) if parts else None


def _counted(report: Mapping[str, Any]) -> _Counted | None:
    """None: it does not run, or its worker does not tell."""
    names = ("instance", "waiting_ms", "busy_ms", "blocked_ms")
    told: list[Any] = [report.get(name) for name in names]
    if not report.get("is_running") or None in told:
        return None
    none = (0,) * VIRTUAL_NODES
    written, read = report.get("node_rows", none), report.get("lane_rows", none)
    return _Counted(told[0], sum(told[1:]), written, read)


def _grown(before: Sequence[int], now: Sequence[int], seconds: float) -> ByNode:
    return tuple(max(new - old, 0) / seconds for old, new in zip(before, now, strict=True))


def tell_nodes(rates: Mapping[int, ByNode]) -> dict[str, Any]:
    """By stage, the virtual nodes that get rows, with rows a second: the hottest first."""
    told = {}
    for stage in sorted(rates):
        named = [(node, round(rate, 1)) for node, rate in enumerate(rates[stage])]
        ranked = sorted(named, key=lambda one: (-one[1], one[0]))
        told[str(stage)] = {str(node): rate for node, rate in ranked if rate}
    return {"nodes": told} if told else {}
