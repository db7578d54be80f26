"""A report of a query as PySpark has it: its attributes are Spark's, its keys the report's.

    progress.numInputRows, progress.sources[0].endOffset    as in Structured Streaming
    progress["latencyMs"], progress["sources"][0]["lag"]    as runtime/progress.py has it

So code that was written for `lastProgress` or for a StreamingQueryListener runs as it is. Of
Spark's fields, those that only a micro-batch has mean what comes closest: a "batch" is a report,
and what it took is the median of the commits. What nobody counts here is 0.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.listener import (
    SinkProgress,
    SourceProgress,
    StateOperatorProgress,
    StreamingQueryProgress,
)

_UNKNOWN: Any = (None, None, None)


class QueryProgress(StreamingQueryProgress):
    """One report of a query, under the names of Spark's StreamingQueryProgress."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        # Not that of Spark's class, which would put objects of Java's and UUIDs into the keys: a
        # report is JSON, and stays it.
        dict.__init__(self, told)
        self.setdefault("observedMetrics", {})
        self._jprogress = None
        self._jdict = dict(self)

    @property
    def id(self) -> uuid.UUID:
        return uuid.UUID(self["id"])

    @property
    def runId(self) -> uuid.UUID:
        return uuid.UUID(self["runId"])

    @property
    def batchDuration(self) -> int:
        """Of a commit, in the median."""
        return round(self["durationMs"]["commit"]["p50"] or 0)

    @property
    def durationMs(self) -> dict[str, int]:
        """The same, under the name that Spark has for a whole batch."""
        return {"triggerExecution": self.batchDuration}

    @property
    def inputRowsPerSecond(self) -> float:
        return self["inputRowsPerSecond"] or 0.0  # the first report has no rate

    @property
    def processedRowsPerSecond(self) -> float:
        return self["processedRowsPerSecond"] or 0.0

    @property
    def observedMetrics(self) -> dict[str, Row]:
        return {name: Row(**values) for name, values in self["observedMetrics"].items()}

    @property
    def stateOperators(self) -> list[StateOperatorProgress]:
        return [self._state(told) for told in self["stateOperators"]]

    @property
    def sources(self) -> list[SourceProgress]:
        return [self._source(told) for told in self["sources"]]

    @property
    def sink(self) -> SinkProgress:
        told = self["sink"]
        return SinkProgress(told["description"], told["numOutputRows"], {}, jdict=told)

    def _state(self, told: Mapping[str, Any]) -> StateOperatorProgress:
        tasks = sum(f"/{told['operatorName'].split()[-1]}/" in task for task in self["tasks"])
        return StateOperatorProgress(
            operatorName=told["operatorName"], numRowsTotal=told["numRowsTotal"],
            numRowsUpdated=0, numRowsRemoved=0, allUpdatesTimeMs=0, allRemovalsTimeMs=0,
            commitTimeMs=self.batchDuration, memoryUsedBytes=told["memoryUsedBytes"],
            numRowsDroppedByWatermark=told["numRowsDroppedByWatermark"],
            numShufflePartitions=tasks, numStateStoreInstances=tasks, customMetrics={},
            jdict=dict(told),
        )  # fmt: skip

    def _source(self, told: Mapping[str, Any]) -> SourceProgress:
        """With its lag among the metrics. Rows of several sources are not told apart: None."""
        told_apart = len(self["sources"]) == 1
        rates = (self["numInputRows"], self.inputRowsPerSecond, self.processedRowsPerSecond)
        rows, came, worked_on = rates if told_apart else _UNKNOWN
        lag = told.get("lag", {})
        metrics = {f"{name}BehindLatest": str(value) for name, value in lag.items()}
        return SourceProgress(
            description=told["description"], startOffset=json.dumps(told["startOffset"]),
            endOffset=json.dumps(told["endOffset"]), latestOffset=json.dumps(told["latestOffset"]),
            numInputRows=rows, inputRowsPerSecond=came, processedRowsPerSecond=worked_on,
            metrics=metrics, jdict=dict(told),
        )  # fmt: skip
