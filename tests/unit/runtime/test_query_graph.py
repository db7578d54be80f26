"""A query as a graph, and how its nodes and edges stand."""

from __future__ import annotations

from typing import Any

from engine_samples import count_by, scan, spec_of

from penstock.runtime.graph import outline
from penstock.runtime.lag import Lag
from penstock.runtime.progress import Rates, make_progress
from penstock.runtime.time_text import is_shown, time_text

SPEC = spec_of(count_by(scan(), 0), tasks=(1, 2), starts={"in": 3})
SOURCE, FIRST, SECOND = SPEC.task_ids


def running(busy: float, waiting: float, **more: Any) -> dict[str, Any]:
    return {
        "instance": 1, "is_running": True, "busy_ms": busy, "waiting_ms": waiting,
        "blocked_ms": 0.0, **more,
    }  # fmt: skip


def progress(rates: Rates, now_ms: int, reports: Any, **more: Any) -> dict[str, Any]:
    named = {"lags": {}, "tail": 50, "workers": 2, **more}
    return make_progress(
        SPEC, reports, id="i", run_id="r", number=0, now_ms=now_ms, rates=rates, **named
    )


def edge(found: dict[str, Any], giver: str, taker: str) -> dict[str, Any]:
    [one] = [e for e in found["graph"]["edges"] if (e["from"], e["to"]) == (giver, taker)]
    return dict(one)


def node(found: dict[str, Any], id: str) -> dict[str, Any]:
    [one] = [one for one in found["graph"]["nodes"] if one["id"] == id]
    return dict(one)


def test_the_outline_has_streams_stages_and_the_sink_and_edges_between_them() -> None:
    made = outline(SPEC)
    assert list(made.nodes) == ["source:in", "stage:0", "stage:1", "sink:out"]
    assert made.edges == (
        ("source:in", "stage:0"), ("stage:0", "stage:1"), ("stage:1", "sink:out"),
    )  # fmt: skip
    assert made.tasks["stage:1"] == ("q.1/1/0", "q.1/1/1")
    assert made.nodes["stage:0"]["does"][0].startswith("scan in ")


def test_nothing_that_nobody_told_is_a_number() -> None:
    found = progress(Rates(), 0, {})
    for one in found["graph"]["edges"]:
        assert (one["lag"], one["rowsPerSecond"], one["watermark"]) == (None, None, None)
    assert node(found, "stage:0")["busyShare"] is None
    assert node(found, "stage:0")["busiestTask"] is None


def test_a_stage_is_as_busy_as_its_busiest_task() -> None:
    rates = Rates()
    progress(rates, 0, {FIRST: running(0, 0), SECOND: running(0, 0)})
    found = progress(rates, 1000, {FIRST: running(100, 900), SECOND: running(700, 300)})
    stage = node(found, "stage:1")
    assert (stage["busiestTask"], stage["busyShare"]) == (str(SECOND), 0.7)
    assert found["tasks"][str(FIRST)]["busy_share"] == 0.1


def test_a_worker_is_as_busy_as_its_tasks_together() -> None:
    rates = Rates()
    reports = [{FIRST: running(n * 300, n * 700, worker="w"),
                SECOND: running(n * 600, n * 400, worker="w")} for n in range(2)]  # fmt: skip
    members = {"members": {"w": {"slot": 0}, "v": {"slot": 1}}}
    progress(rates, 0, reports[0], more=members)
    found = progress(rates, 1000, reports[1], more=members)
    assert found["members"]["w"]["busyShare"] == 0.9
    assert found["members"]["v"]["busyShare"] is None


def test_rows_a_second_of_an_edge_are_those_of_all_its_readers() -> None:
    def told(rows: int) -> dict[str, Any]:
        return {"stage:0": {"rows": rows}}

    rates = Rates()
    progress(rates, 0, {FIRST: running(0, 0, inputs=told(5)), SECOND: running(0, 0)})
    now = {FIRST: running(0, 2000, inputs=told(205)), SECOND: running(0, 1000, inputs=told(7))}
    found = progress(rates, 2000, now)
    assert edge(found, "stage:0", "stage:1")["rowsPerSecond"] == 107.0


def heard(rows: int, by: int = 1, **more: Any) -> dict[str, Any]:
    told = {"rows": 0, "delay_ms": 1500.0, "rows_told": rows, "told_by": by}
    return running(0, 0, inputs={"stage:0": told}, **more)


def test_the_lag_between_stages_is_that_of_the_reader_furthest_behind() -> None:
    found = progress(
        Rates(), 0, {SOURCE: {"rows_out": 100}, FIRST: heard(90), SECOND: heard(40, step_ms=500)}
    )
    assert edge(found, "stage:0", "stage:1")["lag"] == {"records": 60, "seconds": 2.0}


def test_a_reader_that_has_heard_of_all_is_not_behind() -> None:
    found = progress(Rates(), 0, {SOURCE: {"rows_out": 9}, FIRST: heard(9), SECOND: heard(12)})
    assert edge(found, "stage:0", "stage:1")["lag"] == {"records": 0, "seconds": 0.0}


def test_until_every_reader_has_heard_of_every_task_the_lag_is_not_known() -> None:
    found = progress(Rates(), 0, {SOURCE: {"rows_out": 9}, FIRST: heard(9), SECOND: heard(0, by=0)})
    assert edge(found, "stage:0", "stage:1")["lag"] is None


def test_the_lag_of_a_source_is_that_of_the_stage_that_reads_it() -> None:
    found = progress(
        Rates(), 0, {SOURCE: {"settled_position": 9}}, lags={("in", 0): Lag(5, 0.5, True)}
    )
    told = {"records": 5, "seconds": 0.5, "isLowerBound": True}
    assert edge(found, "source:in", "stage:0")["lag"] == found["sources"][0]["lag"] == told


def test_every_time_can_be_written() -> None:
    assert time_text(-(2**62)) == "0001-01-01T00:00:00.000Z"
    assert time_text(2**62) == "9999-12-31T23:59:59.999Z"
    assert not is_shown(-62_135_596_800_001)


def test_event_time_before_all_calendars_is_no_watermark() -> None:
    """Rows of the year 1, with a delay: such a time once could not be written."""
    found = progress(Rates(), 0, {SOURCE: running(0, 0, watermark_ms=-62_135_596_800_001)})
    assert found["eventTime"] == {}
    assert "watermark_ms" not in found["tasks"][str(SOURCE)]
