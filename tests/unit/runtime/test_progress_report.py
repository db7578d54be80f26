"""How a query stands: what the tasks reported, under Spark's names."""

from __future__ import annotations

from typing import Any

from engine_samples import count_by, scan, spec_of

from penstock.ops.api import START_MS
from penstock.protocol.names import TaskId
from penstock.runtime.histogram import Histogram
from penstock.runtime.lag import Lag
from penstock.runtime.progress import Rates, make_progress, source_position

SPEC = spec_of(count_by(scan(), 0), tasks=(1, 2), starts={"in": 3})
SOURCE, FIRST, SECOND = SPEC.task_ids


def report(rows_in: int, rows_out: int, **more: Any) -> dict[str, Any]:
    return {"rows_in": rows_in, "rows_out": rows_out, **more}


def progress(
    reports: dict[TaskId, dict[str, Any]], rates: Rates | None = None, now_ms: int = 0, **more: Any
) -> dict[str, Any]:
    named = {"lags": {}, "tail": 50, "workers": 2, **more}
    return make_progress(
        SPEC, reports, id="i", run_id="r", number=7, now_ms=now_ms, rates=rates or Rates(), **named
    )


def test_a_query_that_has_just_begun_has_no_numbers_yet() -> None:
    found = progress({})
    assert (found["name"], found["batchId"], found["timestamp"]) == (
        "q", 7, "1970-01-01T00:00:00.000Z",
    )  # fmt: skip
    assert (found["numInputRows"], found["inputRowsPerSecond"]) == (0, None)
    assert found["latencyMs"] == {"p50": None, "p95": None, "p99": None}
    assert found["eventTime"] == {}
    assert found["sources"] == [
        {"description": "penstock stream in", "startOffset": 3, "endOffset": None,
         "latestOffset": 50}
    ]  # fmt: skip


def test_rates_are_differences_between_two_reports() -> None:
    rates = Rates()
    progress({SOURCE: report(10, 10), FIRST: report(6, 8), SECOND: report(4, 0)}, rates, 1_000)
    found = progress(
        {SOURCE: report(30, 30), FIRST: report(9, 14), SECOND: report(4, 2)}, rates, 3_000
    )
    assert found["numInputRows"] == 20
    assert found["numInputRowsTotal"] == 30, "rows between stages are not input"
    assert found["inputRowsPerSecond"] == 10.0
    assert found["sink"]["numOutputRows"] == 16
    assert found["processedRowsPerSecond"] == 10.0
    assert found["sink"]["outputRowsPerSecond"] == 4.0


def test_a_task_that_resumes_takes_nothing_back() -> None:
    rates = Rates()
    progress({SOURCE: report(100, 100)}, rates, 1_000)
    dip = progress({SOURCE: report(0, 0)}, rates, 2_000)
    assert (dip["numInputRows"], dip["numInputRowsTotal"], dip["inputRowsPerSecond"]) == (0, 100, 0)
    back = progress({SOURCE: report(101, 101)}, rates, 3_000)
    assert (back["numInputRows"], back["inputRowsPerSecond"]) == (1, 1.0)


def test_latencies_of_the_last_stage_add_up() -> None:
    slow, fast, other = Histogram(), Histogram(), Histogram()
    slow.add(100.0)
    fast.add(1.0, 99)
    other.add(5_000.0, 1_000)
    found = progress(
        {
            SOURCE: report(0, 0, visible_ms=other.to_json()),
            FIRST: report(0, 0, visible_ms=slow.to_json()),
            SECOND: report(0, 0, visible_ms=fast.to_json()),
        }
    )
    assert found["latencyMs"] == slow.merge([fast]).summary()


def test_the_watermark_is_the_earliest_that_is_known() -> None:
    found = progress(
        {
            SOURCE: report(0, 0, watermark_ms=5_000),
            FIRST: report(0, 0, watermark_ms=3_000),
            SECOND: report(0, 0, watermark_ms=START_MS),
        }
    )
    assert found["eventTime"] == {"watermark": "1970-01-01T00:00:03.000Z"}


def test_state_is_summed_by_stage() -> None:
    found = progress(
        {
            FIRST: report(0, 0, state_rows=2, state_bytes=20, rows_late=1),
            SECOND: report(0, 0, state_rows=3, state_bytes=30, rows_late=0),
        }
    )
    assert found["stateOperators"][1] == {
        "operatorName": "stage 1",
        "numRowsTotal": 5,
        "memoryUsedBytes": 50,
        "numRowsDroppedByWatermark": 1,
    }


def test_a_source_is_as_far_as_its_slowest_reader() -> None:
    spec = spec_of(scan(), mode="append", tasks=2)
    one, two = spec.task_ids
    assert source_position(spec, {one: {"settled_position": 9}}, "in") is None
    both = {one: {"settled_position": 9}, two: {"settled_position": 4}}
    assert source_position(spec, both, "in") == 4
    assert source_position(spec, both, "other") is None


def test_lag_is_shown_where_it_was_measured() -> None:
    lags = {("in", 0): Lag(12, 0.12345, is_lower_bound=True)}
    found = progress({SOURCE: report(0, 0, settled_position=8)}, lags=lags)
    [source] = found["sources"]
    assert source["endOffset"] == 8
    assert source["lag"] == {"records": 12, "seconds": 0.123, "isLowerBound": True}


def test_of_a_task_its_facts_are_shown_and_not_its_histograms() -> None:
    found = progress({FIRST: report(1, 2, worker="w", commit_ms={"3": 4}, instance=5)})
    assert found["tasks"] == {
        "q.1/1/0": {"worker": "w", "instance": 5, "rows_in": 1, "rows_out": 2}
    }


def test_of_a_worker_with_a_bound_what_its_newest_report_says_is_told() -> None:
    def told(worker: str, at_ms: int, **facts: int) -> dict[str, Any]:
        return report(0, 0, worker=worker, reported_at_ms=at_ms, **facts)

    members = {"v": {"slot": 0}, "w": {"slot": 1}}
    reports = {
        SOURCE: told("v", 1),
        FIRST: told("w", 5, state_memory=64, state_file_bytes=100, state_mapped_in_bytes=60),
        SECOND: told("w", 4, state_memory=64, state_file_bytes=90, state_mapped_in_bytes=50),
    }
    found = progress(reports, more={"members": members})["members"]
    assert found["w"] == {
        "slot": 1, "busyShare": None,
        "stateMemory": 64, "stateFileBytes": 100, "stateMappedInBytes": 60,
    }  # fmt: skip
    assert found["v"] == {"slot": 0, "busyShare": None}
