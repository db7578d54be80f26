"""Reports of a query, as code that was written for Spark's progress reads them."""

from __future__ import annotations

import json
import uuid
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from penstock.spark.progress import QueryProgress

ID, RUN = str(uuid.uuid4()), str(uuid.uuid4())


def report(**more: Any) -> dict[str, Any]:
    source = {
        "description": "penstock stream bids", "startOffset": 3, "endOffset": 9, "latestOffset": 12,
        "lag": {"records": 4, "seconds": 0.25},
    }  # fmt: skip
    state = {
        "operatorName": "stage 1", "numRowsTotal": 7, "memoryUsedBytes": 900,
        "numRowsDroppedByWatermark": 2,
    }  # fmt: skip
    return {
        "id": ID, "runId": RUN, "name": "hot", "timestamp": "2026-01-01T00:00:00.000Z",
        "batchId": 5, "numInputRows": 100, "numInputRowsTotal": 400, "inputRowsPerSecond": None,
        "processedRowsPerSecond": 100.0, "durationMs": {"commit": {"p50": 2.6, "p99": 9.0}},
        "latencyMs": {"p50": 4.0}, "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
        "stateOperators": [state], "sources": [source],
        "sink": {"description": "penstock stream hot", "numOutputRows": 7},
        "tasks": {"hot.1/0/0": {}, "hot.1/1/0": {}, "hot.1/1/1": {}}, "workers": 2, **more,
    }  # fmt: skip


def test_attributes_are_sparks_and_keys_are_the_reports() -> None:
    told = report()
    progress = QueryProgress(told)

    assert isinstance(progress, StreamingQueryProgress) and isinstance(progress, dict)
    assert (progress.id, progress.runId) == (uuid.UUID(ID), uuid.UUID(RUN))
    assert (progress.name, progress.batchId, progress.numInputRows) == ("hot", 5, 100)
    assert (progress.batchDuration, progress.durationMs) == (3, {"triggerExecution": 3})
    assert (progress.inputRowsPerSecond, progress.processedRowsPerSecond) == (0.0, 100.0)
    assert progress.eventTime["watermark"] == progress.timestamp
    (state,) = progress.stateOperators
    assert (state.numRowsTotal, state.memoryUsedBytes, state.commitTimeMs) == (7, 900, 3)
    assert (state.numRowsDroppedByWatermark, state.numShufflePartitions) == (2, 2)
    (source,) = progress.sources
    assert (source.startOffset, source.endOffset, source.latestOffset) == ("3", "9", "12")
    assert (source.numInputRows, source.metrics["recordsBehindLatest"]) == (100, "4")
    assert (progress.sink.description, progress.sink.numOutputRows) == ("penstock stream hot", 7)
    assert progress.observedMetrics == {}

    for name, value in told.items():
        assert progress[name] == value, name
    assert json.loads(progress.json) == json.loads(json.dumps(progress))
    assert progress["sources"][0]["lag"] == {"records": 4, "seconds": 0.25}
    assert "hot" in str(progress)


def test_rows_of_several_sources_are_not_told_apart() -> None:
    told = report()
    progress = QueryProgress(report(sources=told["sources"] * 2))

    assert progress.numInputRows == 100
    assert [source.numInputRows for source in progress.sources] == [None, None]


def test_observed_metrics_are_rows() -> None:
    progress = QueryProgress(report(observedMetrics={"seen": {"rows": 3, "dear": 1.5}}))

    assert progress.observedMetrics["seen"].rows == 3
    assert progress.observedMetrics["seen"].dear == 1.5
