"""How queries stand, as OpenMetrics text: from reports of the log, whatever stands in them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from engine_samples import count_by, scan, spec_of
from hypothesis import given
from hypothesis import strategies as st
from openmetrics_rules import check_openmetrics

from penstock.log.serving import query_metrics as module
from penstock.log.serving.openmetrics import families_text
from penstock.log.serving.query_metrics import METRICS, QueryReport, query_metrics
from penstock.runtime.histogram import Buckets, Histogram
from penstock.runtime.lag import Lag
from penstock.runtime.progress import Rates, make_progress

NOW_MS = 1_700_000_000_000
SPEC = spec_of(count_by(scan(), 0), tasks=(1, 1))


def full_report() -> dict[str, Any]:
    """Of a query that tells everything."""
    latency, buckets, rates = Histogram(), Buckets(), Rates()
    latency.add(8.0)
    buckets.add(8.0)
    for second in range(2):
        reports = {
            task: {
                "worker": "w", "instance": 2, "is_running": True, "watermark_ms": NOW_MS - 4_000,
                "busy_ms": 600.0 * second, "waiting_ms": 300.0 * second, "step_ms": 2_500.0,
                "blocked_ms": 100.0 * second, "rows_in": 10, "rows_out": 20, "rows_late": 1,
                "dead_letters": 2, "settled_position": 5, "committed_at_ms": NOW_MS - 3_000,
                "state_rows": 7, "state_bytes": 700, "checkpoint_bytes": 70, "checkpoints": 3,
                "state_rows_unread": 4, "state_memory": 500, "state_file_bytes": 900,
                "state_mapped_in_bytes": 300,
                "checkpoint_failures": 1, "checkpoint_ms": 30.0, "resume_ms": 12.0,
                "checkpoint_at_ms": NOW_MS - 9_000, "standbys": {"v": {"is_ready": True}},
                "inputs": {
                    "source:in": {"rows": 10 * second, "delay_ms": 1.0},
                    "stage:0": {"rows": 5 * second, "delay_ms": 500.0, "rows_told": 8,
                                "told_by": 1},
                },
                "visible_ms": latency.to_json(), "commit_ms": latency.to_json(),
                "visible_counts": buckets.counts, "visible_sum_ms": buckets.sum_ms,
            }
            for task in SPEC.task_ids
        }  # fmt: skip
        found = make_progress(
            SPEC, reports, id="i", run_id="r", number=second, now_ms=NOW_MS + second * 1000,
            tail=9, lags={("in", 0): Lag(12, 1.5)}, workers=1, rates=rates,
            more={"workersWanted": 2, "members": {"w": {"slot": 3}}},
        )  # fmt: skip
    return found


def samples(*reports: QueryReport, **options: Any) -> dict[str, float]:
    text = families_text(query_metrics(reports, NOW_MS + 1000, **options))
    check_openmetrics(text)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_every_metric_is_told_of_a_query_that_tells_everything() -> None:
    found = samples(QueryReport("q", "running", NOW_MS, full_report()))
    told = {re.split(r"[{ ]", name)[0] for name in found}
    suffixes = {"counter": "_total", "histogram": "_count"}
    wanted = {f"penstock_{name}{suffixes.get(one.kind, '')}" for name, one in METRICS.items()}
    assert wanted <= told
    task, edge = '{query="q",task="q.1/1/0"}', '{query="q",from="stage:0",to="stage:1"}'
    expected = {
        f"task_busy_ratio{task}": 0.6,
        f"task_back_pressured_ratio{task}": 0.1,
        f"task_step_seconds{task}": 2.5,
        f"task_commit_age_seconds{task}": 4.0,
        f"state_checkpoint_age_seconds{task}": 10.0,
        f"state_checkpoint_failures_total{task}": 1,
        f"task_standbys_ready{task}": 1,
        f"state_rows_unread{task}": 4,
        'worker_state_limit_bytes{query="q",slot="3"}': 500,
        'worker_state_file_bytes{query="q",slot="3"}': 900,
        'worker_state_mapped_in_bytes{query="q",slot="3"}': 300,
        'query_source_lag_rows{query="q",source="in"}': 12,
        'query_source_lag_seconds{query="q",source="in"}': 1.5,
        f"query_edge_lag_rows{edge}": 12,
        f"query_edge_lag_seconds{edge}": 3.0,
        f"query_edge_rows_per_second{edge}": 5,
        'query_watermark_age_seconds{query="q"}': 5.0,
        'query_latency_seconds_bucket{query="q",le="0.005"}': 0,
        'query_latency_seconds_bucket{query="q",le="0.01"}': 2,
        'query_latency_seconds_count{query="q"}': 2,
        'query_report_age_seconds{query="q"}': 1.0,
        'query_state{query="q",penstock_query_state="running"}': 1,
        'query_state{query="q",penstock_query_state="lost"}': 0,
    }
    assert {name: found[f"penstock_{name}"] for name in expected} == expected


def test_what_is_not_known_has_no_sample() -> None:
    nothing = make_progress(
        SPEC, {}, id="i", run_id="r", number=0, now_ms=0, tail=None, lags={}, workers=0,
        rates=Rates(),
    )  # fmt: skip
    found = samples(QueryReport("q", "running", NOW_MS, nothing))
    told = {name.split("{")[0].removeprefix("penstock_") for name in found}
    assert told == {
        "query_state", "query_report_age_seconds", "query_workers", "query_tasks",
        "query_tasks_running", "query_input_rows_total", "query_output_rows_total",
        "query_left_out", "query_unreadable",
    }  # fmt: skip


def test_a_query_that_never_ran_has_a_state_and_nothing_else() -> None:
    found = samples(QueryReport("q", "new", None, None))
    assert found.pop('penstock_query_state{query="q",penstock_query_state="new"}') == 1
    assert sum(found.values()) == 0


def test_logs_of_a_proxy_are_told_apart() -> None:
    reports = [QueryReport("q", "running", NOW_MS, full_report(), log) for log in ("a", "b")]
    found = samples(*reports)
    assert found['penstock_query_workers{query="q",log="a"}'] == 1
    assert found['penstock_query_workers{query="q",log="b"}'] == 1


def test_what_is_beyond_the_bounds_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUERIES_MAX", 2)
    monkeypatch.setattr(module, "TASKS_MAX", 3)
    reports = [QueryReport(name, "running", NOW_MS, full_report()) for name in "abcd"]
    found = samples(*reports, unreadable=5, left_out=10)
    assert found["penstock_query_left_out"] == 10 + 2 + 1
    assert found["penstock_query_unreadable"] == 5
    assert sum("task_running" in name for name in found) == 3


def test_markup_and_ends_of_lines_in_a_label_are_escaped() -> None:
    report = full_report()
    report["tasks"] = {'a"} 1\nb\\\x1b[31m': {"state_rows": 7}}
    found = samples(QueryReport("q", "running", NOW_MS, report))
    [name] = [name for name in found if "state_rows" in name]
    assert name == r'penstock_state_rows{query="q",task="a\"} 1\\nb\\\\x1b[31m"}'


def test_nothing_in_a_report_makes_more_lines_or_longer_ones_than_are_promised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "EDGES_MAX", 4)
    edges = [{"from": str(one), "to": "x", "rowsPerSecond": 1.0} for one in range(6)]
    sources = [{"description": "penstock stream in", "lag": {"records": 1}}]
    buckets = {"boundsMs": list(range(99)), "counts": [1] * 100, "sumMs": 1.0}
    made_up = {
        "graph": {"edges": edges}, "sources": sources, "latencyBuckets": buckets,
        "tasks": {"x" * 5_000: {"state_rows": 1}}, "numInputRowsTotal": -5,
    }  # fmt: skip
    found = samples(QueryReport("q", "running", NOW_MS, made_up))
    assert sum("edge_rows_per_second" in name for name in found) == 3
    assert found["penstock_query_left_out"] == 3
    assert not any("latency" in name or "input_rows" in name for name in found)
    assert max(map(len, found)) < 300


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["tasks", "records", "lag", "from", "to", "boundsMs", "counts", "sumMs", "p50",
                 "watermark", "description", "edges", "state_rows", "step_ms", "standbys"]
            ) | st.text(max_size=3),
            inner, max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@given(changes=st.dictionaries(st.sampled_from([*full_report(), "x"]), ANYTHING, max_size=6))
def test_whatever_stands_in_a_report_the_text_is_openmetrics(changes: dict[str, Any]) -> None:
    report = QueryReport("q", "running", NOW_MS, {**full_report(), **changes})
    check_openmetrics(families_text(query_metrics([report], NOW_MS)))
