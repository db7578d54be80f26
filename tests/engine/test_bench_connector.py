"""`penstock bench connector` runs, and its report has every figure; they mean nothing here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from penstock_bench.connector import (
    BASE,
    BATCH,
    BOTH,
    SMALL,
    STREAMING,
    ConnectorBenchSizes,
    ConnectorFigures,
    count_rows_off,
    make_report,
    run_bench,
)
from penstock_bench.connector_queries import count_triggers

PLAN = ConnectorBenchSizes(rounds=1, rows=2_000, warm_triggers=0, triggers=2, warm_round=False)


@pytest.mark.soak  # every pair of sources and sinks once: half a minute
def test_a_tiny_run_measures_every_pair_and_loses_nothing(spark: Any, tmp_path: Path) -> None:
    said: list[str] = []
    report = run_bench(directory=tmp_path, plan=PLAN, say=said.append)

    checks = {check.name: check for check in report.checks}
    assert checks["trigger_p50_over_rate_micro_batch_to_noop"].value > 0
    assert checks["rows_off_balance"].value == 0
    for pair in SMALL:
        figures = report.figures[f"trigger, {pair}"]
        assert figures["triggers"] == PLAN.triggers
        assert figures["rows_per_trigger"] == PLAN.trigger_rows
        assert 0 < figures["p50_ms_of_parts"]["addBatch"] < figures["p90_ms"]
    for kind, pairs in (("streaming", STREAMING), ("batch", BATCH)):
        for pair in pairs:
            assert report.figures[f"{kind}, {pair}"]["rows_per_s"] > 0
    assert said
    assert not list(tmp_path.iterdir()), "it leaves nothing behind"


def _progress(milliseconds: int, rows: int = 100) -> dict[str, Any]:
    return {"numInputRows": rows, "durationMs": {"triggerExecution": milliseconds, "addBatch": 7}}


@pytest.mark.parametrize(("milliseconds", "ok"), [(40, True), (41, False)])
def test_the_bar_is_twice_the_trigger_of_spark_alone(milliseconds: int, ok: bool) -> None:
    figures = ConnectorFigures()
    figures.small[BASE] = [count_triggers([_progress(20)])] * 3
    figures.small[BOTH] = [count_triggers([_progress(milliseconds)])] * 3

    assert make_report(figures, ConnectorBenchSizes()).ok is ok


def test_triggers_without_rows_do_not_count() -> None:
    figures = count_triggers([_progress(20), _progress(1, rows=0), _progress(30)])

    assert (figures.rows, figures.milliseconds) == (200, [20, 30])
    assert (figures.parts["addBatch"], figures.parts["walCommit"]) == ([7, 7], [0, 0])


@pytest.mark.parametrize(
    ("values", "off"), [([3, 1, 2], 0), ([1, 2, 2, 3], 1), ([1, 4], 2), ([1, 1, 3], 2)]
)
def test_rows_that_are_missing_or_there_twice_are_counted(values: list[int], off: int) -> None:
    assert count_rows_off(pa.chunked_array([pa.array(values)])) == off
