"""The peer `flink`: Apache Flink's SQL engine in a local cluster, exactly once by checkpoints.

Runs in its own virtual environment. One session per process: the variant of the first command is
the variant of all. Events come as lines of a growing file (feeder.py), results go to files which
become visible, by a rename, when the checkpoint that covers them is complete. The JVM is that of
PyFlink; source, sink encoding and two aggregates are in java/, compiled here when they changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from java_classes import compiled  # noqa: E402
from queries import MODES, QUERIES, REFUSED, VIEWS, view  # noqa: E402
from talk import Command, Figures, Refusal, serve  # noqa: E402

#: What every variant has: exactly-once, state on the heap, checkpoints in files.
_ALWAYS: Final = {
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "state.backend.type": "hashmap",
    "execution.checkpointing.storage": "filesystem",
    "restart-strategy.type": "none",
    "table.local-time-zone": "UTC",
}
#: The lowest latency that we know how to get.
_BEST: Final = {
    "execution.buffer-timeout.interval": "1 ms",
    "pipeline.auto-watermark-interval": "2 ms",
    "pipeline.object-reuse": "true",
    "parallelism.default": "1",
}
VARIANTS: Final = {
    # The shortest interval that Flink takes.
    "checkpoints_10ms": {**_BEST, "execution.checkpointing.interval": "10 ms"},
    "checkpoints_100ms": {**_BEST, "execution.checkpointing.interval": "100 ms"},
    "checkpoints_1s": {**_BEST, "execution.checkpointing.interval": "1 s"},
    "defaults": {"execution.checkpointing.interval": "1 s", "parallelism.default": "2"},
}
#: No new file for so long, with checkpoints of at most a second: all are there.
_QUIET_SECONDS: Final = 2.5


class Flink:
    """One session, one query at a time."""

    def __init__(self) -> None:
        self._variant: str | None = None
        self._gateway: Any = None
        self._job: Any = None
        self._feeder: subprocess.Popen[str] | None = None
        self._columns: list[str] = []
        self._directory = Path()
        self._settings: dict[str, str] = {}

    def start(self, command: Command) -> Figures:
        if command["query"] not in QUERIES:
            reason = REFUSED.get(command["query"], "it is not written in Flink SQL here")
            raise Refusal(reason)
        wanted = MODES[command["query"]]
        if command.get("mode", wanted) != wanted:
            raise Refusal(f"{command['query']} runs in {wanted} mode here")
        self._directory = Path(command["result"]["directory"])
        (self._directory / "events").touch()
        self._open(command)
        self._gateway.jvm.peer.LineSource.reset()
        self._submit(command["query"])
        return {"mode": wanted, "settings": self._settings}

    def _open(self, command: Command) -> None:
        if self._variant is not None:
            if command["variant"] != self._variant:
                raise Refusal(f"this process runs {self._variant}: one variant each")
            return
        os.environ["HADOOP_CLASSPATH"] = str(_classes())
        os.environ["FLINK_LOG_DIR"] = str(self._directory)
        from pyflink.java_gateway import get_gateway

        self._variant = command["variant"]
        self._settings = {**_ALWAYS, **VARIANTS[self._variant], **command.get("settings", {})}
        self._gateway = get_gateway()

    def _submit(self, query: str) -> None:
        from pyflink.common import Configuration
        from pyflink.datastream import DataStream, StreamExecutionEnvironment
        from pyflink.table import Schema, StreamTableEnvironment

        settings = Configuration()
        for name, value in self._settings.items():
            settings.set_string(name, value)
        checkpoints = (self._directory / "checkpoints").as_uri()
        settings.set_string("execution.checkpointing.dir", checkpoints)
        env = StreamExecutionEnvironment.get_execution_environment(settings)
        tables = StreamTableEnvironment.create(env)
        peer = self._gateway.jvm.peer
        source = peer.LineSource(str(self._directory / "events"))
        java_env = env._j_stream_execution_environment
        stream = java_env.addSource(source, "events", peer.LineSource.type()).setParallelism(1)
        # Ordered by time, so the watermark is just below the newest: a row of the same millisecond
        # is not late.
        schema = (
            Schema.new_builder()
            .column_by_expression("event_time", "CAST(happened AS TIMESTAMP_LTZ(3))")
            .watermark("event_time", "event_time - INTERVAL '0.001' SECOND")
            .build()
        )
        events = tables.from_data_stream(DataStream(stream), schema)
        tables.create_temporary_view("events", events)
        for name in VIEWS:
            tables.execute_sql(view(name))
        for name, java_class in (("newest", "peer.Newest"), ("time_of_max", "peer.TimeOfMax")):
            tables.create_java_temporary_system_function(name, java_class)
        table = tables.sql_query(QUERIES[query])
        self._columns = table.get_schema().get_field_names()
        result = tables.to_changelog_stream(table)
        self._sink(result._j_data_stream, self._directory / "results")
        self._job = env.execute_async(query)

    def _sink(self, stream: Any, directory: Path) -> None:
        jvm = self._gateway.jvm
        files = jvm.org.apache.flink.connector.file.sink.FileSink
        path = jvm.org.apache.flink.core.fs.Path(directory.as_uri())
        policies = jvm.org.apache.flink.streaming.api.functions.sink.filesystem.rollingpolicies
        rolling = policies.OnCheckpointRollingPolicy.build()
        sink = files.forRowFormat(path, jvm.peer.LineEncoder()).withRollingPolicy(rolling).build()
        stream.sinkTo(sink)

    def feed(self, command: Command) -> Figures:
        """Events go into the file from now on, by a process that follows the schedule."""
        arguments = {**command["events"], "path": str(self._directory / "events")}
        self._feeder = subprocess.Popen(
            [command["python"], str(HERE / "feeder.py"), json.dumps(arguments)],
            stdout=subprocess.PIPE,
            text=True,
        )
        return {}

    def settle(self, command: Command) -> Figures:
        """Until the feeder is done, the query has taken all in, and a checkpoint covers it."""
        assert self._feeder is not None
        said, _ = self._feeder.communicate(timeout=command["seconds"])
        if self._feeder.returncode:
            raise RuntimeError("the feeder failed; what it said is above")
        fed = json.loads(said)
        deadline = time.monotonic() + command["seconds"]
        source = self._gateway.jvm.peer.LineSource
        while source.handedOn < fed["lines"]:
            if time.monotonic() > deadline:
                return {**fed, "is_settled": False}
            time.sleep(0.1)
        # What is in flight, then a checkpoint that begins after it, and its commit.
        time.sleep(1.0)
        seen = _visible(self._directory)
        while True:
            time.sleep(_QUIET_SECONDS)
            if (now := _visible(self._directory)) == seen:
                return {**fed, "is_settled": True}
            if time.monotonic() > deadline:
                return {**fed, "is_settled": False}
            seen = now

    def stop(self, command: Command) -> Figures:
        """End the query, and hand over its rows."""
        self._job.cancel().result()
        self._job = None
        return hand_over(self._directory / "results", self._columns, self._directory / "rows.arrow")

    def close(self) -> None:
        if self._feeder is not None and self._feeder.poll() is None:
            self._feeder.kill()
        if self._gateway is not None:
            self._gateway.shutdown()


def _classes() -> Path:
    """Where the compiled Java is."""
    import pyflink

    return compiled(HERE / "java", Path(pyflink.__file__).parent / "lib" / "*")


def _visible(directory: Path) -> int:
    """Files of the result that are there for all to read."""
    return sum(1 for _ in (directory / "results").rglob("part-*"))


def hand_over(results: Path, columns: list[str], target: Path) -> Figures:
    """All rows of the result as one Arrow file: weight, times in microseconds, columns as text.

    A file is visible from its rename on, which sets the time of its inode.
    """
    import pyarrow as pa

    names = ["_weight", "_lat_us", "_visible_us", "_emitted_us", *columns[:-1]]
    rows: list[list[Any]] = [[] for _ in names]
    for file in sorted(results.rglob("part-*"), key=lambda one: one.stat().st_ctime_ns):
        visible_us = file.stat().st_ctime_ns // 1_000
        for line in file.read_text().splitlines():
            kind, emitted_ms, *values, lat_ms = line.split("\t")
            weight = 1 if kind in ("+I", "+U") else -1
            times = (int(lat_ms) * 1_000, visible_us, int(emitted_ms) * 1_000)
            for column, value in zip(rows, (weight, *times, *values), strict=True):
                column.append(value)
    types = [pa.int64()] * 4 + [pa.string()] * (len(names) - 4)
    arrays = [pa.array(column, kind) for column, kind in zip(rows, types, strict=True)]
    table = pa.table(arrays, names=names)
    with pa.OSFile(str(target), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return {"rows": str(target), "results": table.num_rows}


if __name__ == "__main__":
    flink = Flink()
    handlers = {
        "start": flink.start,
        "feed": flink.feed,
        "settle": flink.settle,
        "stop": flink.stop,
    }
    serve(handlers, close=flink.close)
