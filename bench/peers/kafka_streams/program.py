"""The peer `kafka_streams`: a Kafka Streams application over one broker, exactly once.

Runs in its own virtual environment. One session per process: the variant of the first command is
the variant of all. The broker and the application are a JVM each, for all queries of a session;
events come through a topic (feeder.py), and the result is a topic whose reader (reader.py), a
thread of this process, takes what is committed. The topologies are in java/, compiled here when
they changed. Law: both JVMs end with this process, however it ends: they watch their input.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from broker import Broker, end_process, java_command, write_settings  # noqa: E402
from confluent_kafka import Consumer, TopicPartition  # noqa: E402
from reader import Reader  # noqa: E402
from rows import hand_over  # noqa: E402
from settings import STREAMS, VARIANTS, Variant  # noqa: E402
from talk import Command, Figures, Refusal, serve  # noqa: E402

#: The columns of each, as the application writes them, before `lat_ts`.
QUERIES: Final = {
    "q1": ("auction", "bidder", "price", "dateTime", "extra"),
    "q3": ("name", "city", "state", "id"),
    "q5": ("auction", "num", "starttime", "endtime"),
    "q8": ("id", "name", "starttime"),
}
_MODE: Final = "append"
#: No new row for so long after all events were committed: all are there.
_QUIET_SECONDS: Final = 1.5
_LOOK_SECONDS: Final = 0.1
#: Together less than what the harness gives a program to end.
_END_SECONDS: Final = 4.0


class KafkaStreams:
    """One broker and one application, one query at a time."""

    def __init__(self) -> None:
        self._variant: str | None = None
        self._setup = Variant()
        self._bootstrap = ""
        self._broker: Broker | None = None
        self._streams: subprocess.Popen[str] | None = None
        self._feeder: subprocess.Popen[str] | None = None
        self._reader: Reader | None = None
        self._query = ""
        self._runs = 0
        self._directory = Path()

    @property
    def _application(self) -> str:
        return f"{self._query}-{self._runs}"

    @property
    def _events(self) -> str:
        return f"events-{self._runs}"

    def start(self, command: Command) -> Figures:
        if command["query"] not in QUERIES:
            written = ", ".join(QUERIES)
            raise Refusal(f"it is not written for Kafka Streams here: {written} are")
        if command.get("mode", _MODE) != _MODE:
            raise Refusal(f"{command['query']} runs in {_MODE} mode here")
        self._directory = Path(command["result"]["directory"])
        self._open(command)
        self._query = command["query"]
        self._runs += 1
        settings = {**STREAMS, **self._setup.streams, **command.get("settings", {})}
        result = f"result-{self._runs}"
        ours = {
            "bootstrap.servers": self._bootstrap,
            "application.id": self._application,
            "state.dir": str(self._directory / "state"),
            "peer.query": self._query,
            "peer.events": self._events,
            "peer.result": result,
        }
        path = write_settings(self._directory / "streams.properties", {**settings, **ours})
        self._tell(f"start {path}")
        self._reader = Reader(self._bootstrap, result, self._directory / "rows")
        return {"mode": _MODE, "settings": {**settings, "broker": self._setup.broker}}

    def _open(self, command: Command) -> None:
        """Bring up broker and application, once."""
        if self._variant is not None:
            if command["variant"] != self._variant:
                raise Refusal(f"this process runs {self._variant}: one variant each")
            return
        self._setup = VARIANTS[command["variant"]]
        self._broker = Broker(self._directory, self._setup.broker, self._setup.java)
        self._bootstrap = self._broker.bootstrap
        self._streams = subprocess.Popen(
            [*java_command(self._setup.java), "peer.Program"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._variant = command["variant"]

    def _tell(self, command: str) -> None:
        """Have the application do it."""
        assert self._streams is not None
        assert self._streams.stdin is not None and self._streams.stdout is not None
        self._streams.stdin.write(command + "\n")
        self._streams.stdin.flush()
        if self._streams.stdout.readline().strip() != "done":
            raise RuntimeError(f"the application died at {command!r}; what it said is above")

    def feed(self, command: Command) -> Figures:
        """Events go to the topic from now on, by a process that follows the schedule."""
        arguments = {
            **command["events"],
            "packages": sysconfig.get_paths()["platlib"],
            "bootstrap": self._bootstrap,
            "topic": self._events,
        }
        self._feeder = subprocess.Popen(
            [command["python"], str(HERE / "feeder.py"), json.dumps(arguments)],
            stdout=subprocess.PIPE,
            text=True,
        )
        return {}

    def settle(self, command: Command) -> Figures:
        """Until all events are fed, the application has committed them, and no row comes after."""
        assert self._feeder is not None and self._reader is not None
        deadline = time.monotonic() + command["seconds"]
        said, _ = self._feeder.communicate(timeout=command["seconds"])
        if self._feeder.returncode:
            raise RuntimeError("the feeder failed; what it said is above")
        fed = json.loads(said)
        is_settled = self._wait_committed(fed["lines"], deadline)
        seen, since = self._reader.rows, time.monotonic()
        while is_settled and time.monotonic() < since + _QUIET_SECONDS:
            self._check()
            time.sleep(_LOOK_SECONDS)
            if (now := self._reader.rows) != seen:
                seen, since = now, time.monotonic()
            is_settled = time.monotonic() < deadline
        return {**fed, "is_settled": is_settled}

    def _wait_committed(self, lines: int, deadline: float) -> bool:
        """Whether it has: events are no transaction, so their positions are dense."""
        group = Consumer({"bootstrap.servers": self._bootstrap, "group.id": self._application})
        try:
            while time.monotonic() < deadline:
                self._check()
                known = group.committed([TopicPartition(self._events, 0)], timeout=10)
                if known[0].offset >= lines:
                    return True
                time.sleep(_LOOK_SECONDS)
            return False
        finally:
            group.close()

    def _check(self) -> None:
        """Raise if something that a result needs has died."""
        assert self._reader is not None
        self._reader.check()
        broker = None if self._broker is None else self._broker.process
        for name, process in (("broker", broker), ("application", self._streams)):
            if process is None or process.poll() is not None:
                raise RuntimeError(f"the {name} died; what it said is above")

    def stop(self, command: Command) -> Figures:
        """End the query, and hand over its rows."""
        assert self._reader is not None
        self._tell("stop")
        self._reader.close()
        self._reader.check()
        self._reader = None
        return hand_over(
            self._directory / "rows", QUERIES[self._query], self._directory / "rows.arrow"
        )

    def close(self) -> None:
        """End what was started: the application first, which says goodbye to the broker."""
        if self._feeder is not None and self._feeder.poll() is None:
            self._feeder.kill()
        if self._streams is not None:
            end_process(self._streams, _END_SECONDS)
        if self._broker is not None:
            end_process(self._broker.process, _END_SECONDS)


if __name__ == "__main__":
    kafka_streams = KafkaStreams()
    handlers = {
        "start": kafka_streams.start,
        "feed": kafka_streams.feed,
        "settle": kafka_streams.settle,
        "stop": kafka_streams.stop,
    }
    serve(handlers, close=kafka_streams.close)
