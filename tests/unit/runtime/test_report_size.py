"""A report of very many tasks fits into an entry, and says what it leaves out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.limits import PAYLOAD_BYTES_MAX
from penstock.runtime.control import Pulse, encode_message
from penstock.runtime.report_size import REPORT_BYTES_MAX, fitted


def report(tasks: int) -> dict[str, Any]:
    one = {
        "worker": "17-0123456789ab", "instance": 3, "is_running": True, "rows_in": 10**9,
        "inputs": {"source:bids": {"rows": 10**9, "delay_ms": 12.5}}, "checkpoint_error": "x" * 200,
    }  # fmt: skip
    named = {f"q.1/0/{n}": {**one, "busy_share": n / tasks} for n in range(tasks)}
    graph = {"nodes": [{"id": "stage:0", "tasks": [*named], "does": ["scan"]}], "edges": []}
    members = {f"{n}-0123456789ab": {"slot": n} for n in range(tasks)}
    return {"id": "i", "tasks": named, "graph": graph, "members": members, "stateOperators": []}


def test_a_report_that_fits_is_told_as_it_is() -> None:
    assert fitted(report(10)) == report(10)


@pytest.mark.parametrize("tasks", [2_000, 5_000, 40_000])
def test_a_report_of_very_many_tasks_fits_into_an_entry(tasks: int) -> None:
    found = fitted(report(tasks))
    assert len(json.dumps(found, separators=(",", ":"))) <= REPORT_BYTES_MAX
    assert len(encode_message(Pulse(found))) < PAYLOAD_BYTES_MAX
    assert len(found["tasks"]) + found.get("tasksLeftOut", 0) == tasks
    assert found.keys() >= report(1).keys()


def test_the_busiest_tasks_are_kept() -> None:
    found = fitted(report(1_000), 60_000)
    assert 0 < len(found["tasks"]) < 1_000
    assert min(one["busy_share"] for one in found["tasks"].values()) >= 0.5


def test_a_report_that_has_nothing_more_to_leave_out_is_a_report() -> None:
    found = fitted(report(100), 100)
    assert found["tasks"] == {} and found["tasksLeftOut"] == 100
    assert found["graph"] == {"nodes": [], "edges": []}
