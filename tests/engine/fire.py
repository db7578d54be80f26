"""A stand to test queries under fire: log server, driver, feed, and a look at who does what.

Owns the real processes and their lives. The server is a process at a fixed port, the driver another
(fire_driver.py) with its JVM, executors and Python workers under it; the feed is a thread here.
Who the workers are is read from the log's control entries, as the coordinator reads it.
"""

from __future__ import annotations

import json
import math
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import fire_processes as processes
import fire_queries
import pyspark
from harness.server_process import ServerProcess, free_port
from penstock_bench.nexmark.generator import Generator

import penstock
from penstock.log.records import Entry
from penstock.protocol.markers import decode_marker
from penstock.protocol.names import control_tag, layout_key, parse_task, query_key
from penstock.runtime.control import Assign, Hello, Place, decode_message
from penstock.runtime.registry import decode_query

HERE = Path(__file__).parent
SPARK_WORK = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "work"
#: Until a driver says something, with all that it starts; a busy machine takes several times as
#: long as an idle one.
DRIVER_SECONDS = 300.0
#: Between two appends of the feed.
FEED_SECONDS = 0.25


class Driver:
    """One run of fire_driver.py."""

    def __init__(self, command: list[str], output: Path, environment: dict[str, str]) -> None:
        with open(output, "ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                start_new_session=True,
            )
        self._output = output
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self._app: str | None = None
        #: Queries that stopped by themselves, and why.
        self.failures: list[dict[str, Any]] = []
        #: The most that they said of the state of each, in bytes.
        self.state_bytes: dict[str, int] = {}
        threading.Thread(target=self._read, name="driver-output", daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue  # Spark's own words
            found = json.loads(line)
            if found["event"] == "session":
                self._app = found["app"]
            if found["event"] == "failed":
                self.failures.append(found)
            elif found["event"] == "state":
                self.state_bytes[found["query"]] = found["bytes"]
            else:
                self._lines.put(found)
        self._lines.put({"event": "ended"})

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, event: str, seconds: float = DRIVER_SECONDS) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {event!r} of the driver in {seconds} s") from None
            if found["event"] == event:
                return found
            if found["event"] == "ended":
                raise AssertionError(f"the driver ended: {self._output.read_text()[-3000:]}")

    def ask(self, **command: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def kill(self) -> list[int]:
        """SIGKILL for it and its JVM, at once; the processes that they leave behind."""
        left = processes.descendants(self.pid)
        jvm = [pid for pid in left if processes.parents().get(pid) == self.pid]
        processes.kill_all([self.pid, *jvm])
        self._process.wait()
        return [pid for pid in left if pid not in jvm]

    def close(self) -> None:
        left = self.kill() if self._process.poll() is None else []
        processes.kill_all(processes.wait_gone(left, 5.0))
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass
        if self._app is not None:  # what a local cluster leaves behind in Spark's own directory
            shutil.rmtree(SPARK_WORK / self._app, ignore_errors=True)


@dataclass(slots=True)
class Workers:
    """Who works where, from the control entries of all queries."""

    #: The last worker that said hello, by query and slot: its id and process.
    last: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    #: Where each task is, by its text.
    places: dict[str, Place] = field(default_factory=dict)

    def take(self, query: str, entry: Entry) -> None:
        match decode_message(entry.payload):
            case Hello(worker=worker, slot=slot, pid=pid):
                self.last[query, slot] = (worker, pid)
            case Assign() as assign:
                self.places |= assign.places()
                if assign.layout:  # of those that it does not have, others have come
                    for task in [task for task in self.places if not _is_in(assign, query, task)]:
                        del self.places[task]
            case _:
                pass

    def tasks_of(self, worker: str) -> list[str]:
        return sorted(task for task, place in self.places.items() if place.worker == worker)


def _is_in(assign: Assign, query: str, name: str) -> bool:
    task = parse_task(name)
    stages = assign.layout["stages"]
    return task.query != query or task.index in [index for index, _ in stages[task.stage]]


@dataclass(frozen=True, slots=True)
class Kill:
    """When, and the tasks that were hit, with the instances that they had."""

    time_ms: int
    lsn: int
    lost: dict[str, int]


@dataclass(frozen=True, slots=True)
class Wound:
    """The instance of a task that was hit, and the tail of the log at that moment."""

    instance: int
    lsn: int


class Stand:
    """Leave `with` to end everything that it started."""

    def __init__(self, directory: Path, *, master: str, queries: list[str], workers: int) -> None:
        self.directory = directory
        self._master = master
        self._queries = queries
        self._workers = workers
        self._port = free_port()
        self.server = ServerProcess(directory / "data")
        self.workers = Workers()
        self._lock = threading.Lock()
        self._leaving = threading.Event()
        self.feeding = threading.Event()
        #: Events that were appended.
        self.events = 0
        self.events_per_s = 500
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []
        self._drivers: list[Driver] = []
        #: Processes that killed drivers left behind, and when they were started; they end by
        #: themselves, or in the end.
        self._left: dict[int, int | None] = {}

    # ---- life

    def __enter__(self) -> Stand:
        self.launch_server()
        self.server.wait_ready()
        token = self.directory / "data" / "token"
        self.url = f"penstock://127.0.0.1:{self._port}"
        self.log = penstock.connect(self.url, token_file=token, timeout=120)
        for name, schema in fire_queries.STREAMS.items():
            self.log.create_stream(name, schema)
        for work in (self._feed, self._follow):
            thread = threading.Thread(target=self._guarded, args=(work,), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        for driver in self._drivers:
            driver.close()
        # A number may have been given to another process meanwhile.
        left = [pid for pid, born in self._left.items() if born and processes.born(pid) == born]
        processes.kill_all(processes.wait_gone(left, 10.0))
        for thread in self._threads:
            thread.join(30)
        self.log.close()
        self.server.__exit__(None, None, None)

    def launch_server(self) -> None:
        self.server.launch(["--port", str(self._port)])

    def start_driver(self) -> Driver:
        """Start the queries, or go on with them; does not wait."""
        command = [
            sys.executable, str(HERE / "fire_driver.py"),
            "--log", self.url,
            "--token-file", str(self.directory / "data" / "token"),
            "--checkpoints", str(self.directory / "checkpoints"),
            "--master", self._master,
            "--workers", str(self._workers),
            "--queries", ",".join(self._queries),
        ]  # fmt: skip
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        driver = Driver(command, self.directory / "driver.log", environment)
        self._drivers.append(driver)
        return driver

    @property
    def failures(self) -> list[dict[str, Any]]:
        return [failure for driver in self._drivers for failure in driver.failures]

    def most_state_bytes(self, query: str) -> int:
        """Of all drivers."""
        return max(driver.state_bytes.get(query, 0) for driver in self._drivers)

    @property
    def driver(self) -> Driver:
        return self._drivers[-1]

    # ---- feed

    def _feed(self) -> None:
        """Append the events that are due, in order; a log that is away is waited for."""
        generator = Generator(fire_queries.parameters_of(self._queries))
        while not self._leaving.is_set():
            if not self.feeding.wait(0.05):
                continue
            began = time.monotonic()
            with self._lock:
                count = round(self.events_per_s * FEED_SECONDS)
                rows = fire_queries.make_rows(generator, self.events, self.events + count)
                self.append(rows)
                self.events += count
            self._leaving.wait(max(0.0, began + FEED_SECONDS - time.monotonic()))

    def append(self, rows: dict[str, Any]) -> None:
        for name, batch in rows.items():
            if batch.num_rows:
                self.log.stream(name).append(batch)

    def stop_feeding(self) -> None:
        """Returns when nothing more comes."""
        self.feeding.clear()
        with self._lock:
            pass

    # ---- who works where

    def _follow(self) -> None:
        tags = {control_tag(name): name for name in self._queries}
        with self.log.client.tail(list(tags), start=0) as reader:
            while not self._leaving.is_set():
                try:
                    batch = reader.next_batch(0.2)
                except TimeoutError:
                    continue
                if batch is None:
                    return
                for entry in batch.entries:
                    self.workers.take(next(tags[tag] for tag in entry.tags if tag in tags), entry)

    def wait_placed(self, seconds: float = 300.0) -> None:
        """Until every task of all queries has committed for the first time."""
        values = [self.log.client.get(query_key(name)) for name in self._queries]
        assert all(values), "all queries are registered once they run"
        queries = zip(self._queries, values, strict=True)
        count = sum(sum(decode_query(name, value.data).tasks) for name, value in queries if value)
        began = Kill(0, 0, {})
        self._wait(lambda: len(self.workers.places) >= count, seconds, "tasks are placed")
        began.lost.update(dict.fromkeys(self.workers.places, 0))
        took = self.wait_recovered(began, seconds)
        assert took[-1] < math.inf, f"not within {seconds} s: every task has committed"

    def _wait(self, is_true: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not is_true():
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
            time.sleep(0.05)

    def wait_layouts(self, tasks: int, seconds: float) -> None:
        """Until the largest stage of each query has so many tasks."""

        def have() -> bool:
            values = [self.log.client.get(layout_key(name)) for name in self._queries]
            layouts = [json.loads(value.data)["stages"] for value in values if value is not None]
            most = [max(map(len, stages)) for stages in layouts]
            return most == [tasks] * len(self._queries)

        self._wait(have, seconds, f"{tasks} tasks each")

    def wound(self, pids: list[int]) -> Kill:
        """What a kill of these processes of the driver, now, would hit."""
        below = {pid for root in pids for pid in (root, *processes.descendants(root))}
        dead = {worker for worker, pid in self.workers.last.values() if pid in below}
        places = dict(self.workers.places)
        lost = {task: at.instance for task, at in places.items() if at.worker in dead}
        return Kill(time.time_ns() // 1_000_000, self.log.bounds().tail, lost)

    def kill(self, pids: list[int]) -> Kill:
        """SIGKILL for processes of the driver."""
        kill = self.wound(pids)
        for pid in pids:
            processes.send(pid, signal.SIGKILL, root=self.driver.pid)
        return replace(kill, time_ms=time.time_ns() // 1_000_000)

    def has_committed(self, task: str, wound: Wound) -> bool:
        """Whether the task has committed since, as a newer instance."""
        last = self.log.client.read_last(parse_task(task).marker_tag)
        return (
            last is not None
            and last.lsn >= wound.lsn
            and decode_marker(last.payload).instance > wound.instance
        )

    def kill_driver(self) -> Kill:
        """SIGKILL for the driver and its JVM."""
        lost = {task: at.instance for task, at in dict(self.workers.places).items()}
        lsn, killed_ms = self.log.bounds().tail, time.time_ns() // 1_000_000
        self._left |= {pid: processes.born(pid) for pid in self.driver.kill()}
        return Kill(killed_ms, lsn, lost)

    def _forget_retired(self, took: dict[str, float]) -> None:
        """Tasks that have successors by now commit no more."""
        places = dict(self.workers.places)
        for task in [task for task, at in took.items() if at == math.inf and task not in places]:
            took[task] = 0.0

    def wait_recovered(self, kill: Kill, seconds: float) -> list[float]:
        """Seconds after the kill until each task committed as a newer instance; missing: inf."""
        took = dict.fromkeys(kill.lost, math.inf)
        if not took:
            return []
        tags = [parse_task(task).marker_tag for task in took]
        deadline = time.monotonic() + seconds
        with self.log.client.tail(tags, start=kill.lsn) as reader:
            while math.inf in took.values() and time.monotonic() < deadline:
                try:
                    batch = reader.next_batch(0.1)
                except TimeoutError:
                    self._forget_retired(took)
                    continue
                self._forget_retired(took)
                for entry in batch.entries if batch is not None else ():
                    marker = decode_marker(entry.payload)
                    if took[marker.task] == math.inf and marker.instance > kill.lost[marker.task]:
                        took[marker.task] = (entry.time_ms - kill.time_ms) / 1000
        return sorted(took.values())
