"""Rows a second by virtual node, from what tasks count."""

from __future__ import annotations

from typing import Any

from simulation.pipeline.queries import make_spec

from penstock.protocol.names import TaskId
from penstock.runtime.node_rates import NodeRates, tell_nodes
from penstock.runtime.spec import Settings
from penstock.runtime.task_report import read_report
from penstock.state.keys import VIRTUAL_NODES

SPEC = make_spec("count", Settings(), lanes=4, workers=2)


def report(ms: float, instance: int = 1, **counts: dict[int, int]) -> dict[str, Any]:
    told = {
        name: [by_node.get(node, 0) for node in range(VIRTUAL_NODES)]
        for name, by_node in counts.items()
    }
    return {
        "instance": instance, "is_running": True, "busy_ms": ms, "waiting_ms": 0.0,
        "blocked_ms": 0.0, **told,
    }  # fmt: skip


def reports(ms: float, rows: int, instance: int = 1) -> dict[TaskId, dict[str, Any]]:
    """Both tasks of the source write `rows` to virtual node 7, and read twice as many in lane 1."""
    counts = {"node_rows": {7: rows}, "lane_rows": {1: 2 * rows}}
    return {
        task: report(ms, instance, **counts) if task.stage == 0 else report(ms, instance)
        for task in SPEC.task_ids
    }


def test_a_stage_gets_what_those_before_it_wrote_and_what_it_read_from_lanes() -> None:
    rates = NodeRates()
    assert rates.update(SPEC, reports(0, 0)) == {}, "one report says nothing"
    found = rates.update(SPEC, reports(2000, 100))
    assert found[1][7] == 100.0 and sum(found[1]) == 100.0
    assert found[0][1] == 200.0 and sum(found[0]) == 200.0
    assert tell_nodes(found) == {"nodes": {"0": {"1": 200.0}, "1": {"7": 100.0}}}


def test_a_report_that_comes_twice_changes_nothing() -> None:
    rates = NodeRates()
    rates.update(SPEC, reports(0, 0))
    first = rates.update(SPEC, reports(1000, 10))
    assert rates.update(SPEC, reports(1000, 10)) == first


def test_a_task_that_began_anew_makes_its_stage_unknown_and_no_rate_is_below_zero() -> None:
    rates = NodeRates()
    rates.update(SPEC, reports(0, 1000))
    assert rates.update(SPEC, reports(1000, 3, instance=2)) == {}
    assert rates.update(SPEC, reports(2000, 3, instance=2))[1] == (0.0,) * VIRTUAL_NODES


def test_counts_of_another_shape_count_as_not_told() -> None:
    for value in ([1], [0] * 65, ["x"] * 64, [-1] * 64, {}, None, [True] * 64):
        assert "node_rows" not in read_report({"node_rows": value})
    assert read_report({"lane_rows": [3] * 64}) == {"lane_rows": [3] * 64}
