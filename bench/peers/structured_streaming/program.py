"""The peer `structured_streaming`: Spark's micro-batches over the same stream of the same log.

Runs in Penstock's own Python. One session per process: the variant of the first command is the
variant of all, since settings of the JVM can be given only when it starts.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
# Spark's Python workers load the source, the sink and the processors by name.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(HERE), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
)
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from formulations import WITH_PROCESSORS, make_frame  # noqa: E402
from log_streams import read_stream, write_stream  # noqa: E402
from penstock_bench.driver_process import session_builder  # noqa: E402
from penstock_bench.queries import QUERIES as BENCH_QUERIES  # noqa: E402
from pyspark.errors import AnalysisException  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema  # noqa: E402
from talk import Command, Figures, Refusal, serve  # noqa: E402

from penstock.stream.registration import stream_tag  # noqa: E402
from penstock.stream.session import connect  # noqa: E402

#: The settings with the lowest latency at full guarantees that we know: a checkpoint file manager
#: that forks less, the raw local file system without checksums, Unix domain sockets to the Python
#: workers, the C1 compiler and the serial collector, one shuffle partition. Asynchronous progress
#: is left out: it gives up exactly-once, and Spark refuses it for stateful queries. Defaults change
#: one thing: with the default 200 shuffle partitions no batch ends in time.
VARIANTS: Final = {
    "best": {
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing"
            ".FileSystemBasedCheckpointFileManager"
        ),
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    },
    "defaults": {"spark.sql.shuffle.partitions": "2"},
}
_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_STATES: Final = "org.apache.spark.sql.execution.streaming.state"
#: Where state is, by whether the query has processors: these must have RocksDB, which in turn must
#: have the local file system with checksums.
_STATE: Final = {
    False: {
        _PROVIDER: f"{_STATES}.HDFSBackedStateStoreProvider",
        "fs.file.impl.disable.cache": "false",
    },
    True: {
        _PROVIDER: f"{_STATES}.RocksDBStateStoreProvider",
        "fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
        "fs.file.impl.disable.cache": "true",
    },
}


class StructuredStreaming:
    """One session, one query at a time."""

    def __init__(self) -> None:
        self._variant: str | None = None
        self._spark: SparkSession | None = None
        self._query: Any = None
        self._readers: int | None = None
        self._source = ("", "")
        self._settings: dict[str, str] = {}

    def start(self, command: Command) -> Figures:
        spark = self._session(command)
        source, result = command["source"], command["result"]
        mode = command.get("mode", "append")
        self._readers = command.get("readers")
        with connect(source["log"]) as log:
            schema = from_arrow_schema(log.stream(source["stream"]).schema)
            rows = read_stream(
                spark, source["log"], source["stream"], schema, readers=self._readers
            )
            frame = self._frame(spark, command["query"], mode, rows)
            arrow = to_arrow_schema(frame.schema, timezone="UTC")
            log.create_stream(result["stream"], arrow)
        self._source = (source["log"], source["stream"])
        with_processors = command["query"] in WITH_PROCESSORS
        for name, value in _STATE[with_processors].items():
            spark.conf.set(name, value)
        if not with_processors:
            spark.conf.unset("fs.file.impl")  # the session's own again
        checkpoint = tempfile.mkdtemp(prefix="checkpoint-", dir=result["directory"])
        try:
            self._query = write_stream(
                frame, result["log"], result["stream"], checkpoint, mode=mode
            )
        except AnalysisException as refused:
            raise Refusal(f"Spark refuses it: {_first_line(refused)}") from None
        return {"settings": self._settings}

    def _frame(self, spark: SparkSession, query: str, mode: str, rows: DataFrame) -> DataFrame:
        if query in BENCH_QUERIES:
            return BENCH_QUERIES[query].build(rows)
        try:
            return make_frame(spark, query, mode, rows)
        except AnalysisException as refused:
            raise Refusal(f"Spark refuses it: {_first_line(refused)}") from None

    def _session(self, command: Command) -> SparkSession:
        if self._spark is not None:
            if command["variant"] != self._variant:
                raise Refusal(f"this process runs {self._variant}: one variant each")
            return self._spark
        self._variant = command["variant"]
        self._settings = {**VARIANTS[self._variant], **command.get("settings", {})}
        builder = session_builder("structured-streaming").config("spark.log.level", "ERROR")
        self._spark = builder.config(map=self._settings).getOrCreate()
        return self._spark

    def check(self, command: Command) -> Figures:
        """Raise what the query failed with, if it did."""
        if (failed := self._query.exception()) is not None:
            raise failed
        return {}

    def settle(self, command: Command) -> Figures:
        """Until all that is in the source was processed, or for so long."""
        deadline = time.monotonic() + command["seconds"]
        while not self._has_read_all():
            self.check(command)
            if time.monotonic() > deadline:
                return {"is_settled": False}
            time.sleep(0.1)
        settled = threading.Event()

        def wait() -> None:
            self._query.processAllAvailable()
            settled.set()

        threading.Thread(target=wait, daemon=True).start()
        while not settled.wait(0.1) and time.monotonic() < deadline:
            self.check(command)
        return {"is_settled": settled.is_set()}

    def _has_read_all(self) -> bool:
        """Spark asks the source, which follows the log and may be a moment behind it."""
        log, stream = self._source
        with connect(log) as connected:
            last = connected.client.read_last(stream_tag(stream))
        progress = self._query.lastProgress
        if last is None or progress is None:
            return last is None
        return bool(json.loads(progress["sources"][0]["endOffset"])["lsn"] > last.lsn)

    def stop(self, command: Command) -> Figures:
        self.check(command)
        triggers = [
            float(progress["durationMs"]["triggerExecution"])
            for progress in self._query.recentProgress
            if progress["numInputRows"]
        ]
        self._query.stop()
        # Only the kind of batches whose latency is measured says something.
        if self._readers is not None or not triggers:
            return {}
        return {"trigger_ms_p50": statistics.median(triggers)}

    def close(self) -> None:
        if self._spark is not None:
            self._spark.stop()


def _first_line(error: AnalysisException) -> str:
    return str(error).splitlines()[0]


if __name__ == "__main__":
    engine = StructuredStreaming()
    handlers = {
        "start": engine.start,
        "check": engine.check,
        "settle": engine.settle,
        "stop": engine.stop,
    }
    serve(handlers, close=engine.close)
