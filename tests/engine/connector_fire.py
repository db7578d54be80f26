"""A stand to test micro-batch queries under fire: log server, driver, feed, a reader that checks.

Owns the real processes and their lives, and what may ever be seen of the results. The server is a
process at a fixed port, the driver another (connector_driver.py) with its JVM, executors and Python
processes under it; feed and reader are threads here. The nemesis kills, as a seed says:

    driver    it and its JVM, at any moment; a new one goes on from the checkpoints. What the old
              one leaves behind (executors, workers) ends by itself, or writes on for a moment
    commit    the same, at the moment when a marker of a batch is seen in the log: often before
              Spark has noted in its own commit log that the batch is done
    staging   the same, at the moment when something is staged that no marker names yet
    executor  an executor's JVM, with the Python workers under it
    worker    a Python worker of an executor
    planner   a Python process in which the driver plans, reads offsets or commits
    server    the log server, which is started again at once
    rival     the driver, but only after a second one has run beside it, from the same checkpoints,
              until each query was stopped in one of them by what the other did
    zombie    the same, but the driver stands still, with all that it started, while the second one
              commits some batches: when it goes on, what it was about to write comes late
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import connector_driver as queries
import fire_processes as processes
import numpy as np
import pyarrow as pa
from fire import Driver
from harness.server_process import ServerProcess, free_port

import penstock
from penstock.log.records import Entry, Kind
from penstock.protocol.markers import decode_marker
from penstock.protocol.names import BATCH_PREFIX, batch_writer, naming_tag
from penstock.stream.registration import stream_tag

HERE = Path(__file__).parent
#: Two executors of one core each: a task's second attempt runs beside the first.
MASTER = "local-cluster[2,1,1024]"
FEED_SECONDS = 0.1
READ_SECONDS = 0.25
PATIENCE_SECONDS = 90.0
#: Of both queries together, that are committed while a driver stands still.
ZOMBIE_BATCHES = 8
QUERIES = ("plain", "three")

Array = np.ndarray[Any, np.dtype[np.int64]]


def make_rows(first: int, count: int) -> pa.RecordBatch:
    """The rows of `in` with these ids."""
    ids = np.arange(first, first + count, dtype=np.int64)
    return pa.record_batch({"id": ids, "k": ids * 31 % 17, "v": ids * ids % 1009})


def make_out(count: int) -> pa.RecordBatch:
    """What `out` holds of the first so many rows of `in`, by id."""
    ids, k, v = (column.to_numpy() for column in make_rows(0, count).columns)
    out = pa.record_batch({"id": ids, "k": k, "w": queries.make_w(ids, v)})
    return out.filter(pa.array(queries.is_kept(ids)))


# ---- what may be seen


def check_plain(ids: Array, w: Array, boundaries: Sequence[int]) -> int:
    """The rows are what some first appends to `in` give, each whole; returns how many rows of `in`.

    A batch takes whole appends in the order of the log, so a half-seen batch, a lost row and a row
    too many are all something else than that.
    """
    order = np.argsort(ids)
    ids, w = ids[order], w[order]
    twice = ids[:-1][np.diff(ids) == 0]
    assert not len(twice), f"rows that are there twice: {twice[:5]}"
    expected = make_out(boundaries[-1])
    known, known_w = expected["id"].to_numpy(), expected["w"].to_numpy()
    alien = np.setdiff1d(ids, known)
    assert not len(alien), f"rows that are none of the input: {alien[:5]}"
    lost = np.setdiff1d(known[: len(ids)], ids)
    assert not len(lost), f"rows that are missing before others: {lost[:5]}"
    wrong = ids[w != known_w[: len(ids)]]
    assert not len(wrong), f"rows with another value: {wrong[:5]}"
    for count in boundaries:
        if np.searchsorted(known, count) == len(ids):
            return count
    raise AssertionError(f"{len(ids)} rows end inside an append")


def check_three(parts: dict[str, pa.Table], boundaries: Sequence[int]) -> int:
    """The streams hold the same batches, each whole; returns how many batches have rows."""
    columns = {
        name: {column: table[column].to_numpy() for column in ("batch", "id", "w")}
        for name, table in parts.items()
    }
    left, right, both = (columns[name] for name in queries.THREE)
    batch, ids, w = (np.concatenate([left[one], right[one]]) for one in ("batch", "id", "w"))
    order, order_both = np.lexsort([ids, batch]), np.lexsort([both["id"], both["batch"]])
    torn = Counter(batch.tolist())
    torn.subtract(both["batch"].tolist())
    uneven = [number for number, count in torn.items() if count]
    assert uneven == [], f"batches {uneven[:5]} are not in all streams alike"
    assert (ids[order] == both["id"][order_both]).all(), "other rows in one stream than in another"
    assert (left["id"] % 2 == 0).all() and (right["id"] % 2 == 1).all(), "a row in a wrong stream"
    check_plain(ids, w, boundaries)
    check_plain(both["id"], -both["w"], boundaries)
    return len(torn)


def check_grown(before: pa.Table, after: pa.Table) -> None:
    """What was read once is read again, first and in the same order."""
    again = after.slice(0, before.num_rows)
    assert again.equals(before), "rows that were read before are gone, or stand elsewhere"


@dataclass(slots=True)
class Look:
    """What the log itself says in the end, read entry by entry."""

    #: Markers by query of the connector; the last batch's number and one.
    batches: dict[str, int] = field(default_factory=dict)
    #: Entries that tasks staged, and those of them that a marker names.
    staged: int = 0
    named: int = 0


def look_at_log(entries: list[Entry], numbers: dict[str, int]) -> Look:
    """`numbers`: the last batch by writer, as the metadata says."""
    look = Look()
    staged = {entry.lsn for entry in entries if entry.kind is Kind.STAGED}
    named: Counter[int] = Counter()
    markers: Counter[str] = Counter()
    for entry in entries:
        if entry.kind is Kind.MARKER:
            marker = decode_marker(entry.payload)
            markers[marker.task] += 1
            for one in marker.ranges:
                assert one.end <= entry.lsn, "a marker names what comes after it"
                named.update(lsn for lsn in range(one.first_lsn, one.end) if lsn in staged)
    assert all(count == 1 for count in named.values()), "an entry is named twice"
    look.staged, look.named = len(staged), len(named)
    look.batches = {writer: number + 1 for writer, number in numbers.items()}
    # An empty batch may do without a marker; no batch has two.
    assert all(markers[writer] <= look.batches[writer] for writer in numbers), markers
    return look


# ---- the stand


class Stand:
    """Leave `with` to end everything that it started."""

    def __init__(self, directory: Path, *, rows_per_s: int) -> None:
        self.directory = directory
        self._rows = max(1, round(rows_per_s * FEED_SECONDS))
        self._port = free_port()
        self.server = ServerProcess(directory / "data")
        self._drivers: list[Driver] = []
        #: What killed drivers left behind, and when it was started.
        self._left: dict[int, int | None] = {}
        self._leaving = threading.Event()
        self._feeding = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []
        #: Rows of `in` after each append, the last one perhaps still on its way.
        self.boundaries = [0]
        self.reads = 0
        self._seen: dict[str, pa.Table] = {}

    def __enter__(self) -> Stand:
        self.launch_server()
        self.server.wait_ready()
        self.token_file = self.directory / "data" / "token"
        self.url = f"penstock://127.0.0.1:{self._port}"
        self.log = penstock.connect(self.url, token_file=self.token_file, timeout=120)
        for name, schema in queries.STREAMS.items():
            self.log.create_stream(name, schema)
        for work in (self._feed, self._read_on):
            thread = threading.Thread(target=self._guarded, args=(work,), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

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

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)

    # ---- processes

    def launch_server(self) -> None:
        self.server.launch(["--port", str(self._port)])

    def start_driver(self) -> Driver:
        """Start the queries, or go on with them; does not wait."""
        command = [
            sys.executable, str(HERE / "connector_driver.py"),
            "--log", self.url,
            "--token-file", str(self.token_file),
            "--checkpoints", str(self.directory / "checkpoints"),
            "--master", MASTER,
        ]  # fmt: skip
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        driver = Driver(command, self.directory / "driver.log", environment)
        self._drivers.append(driver)
        return driver

    @property
    def driver(self) -> Driver:
        return self._drivers[-1]

    @property
    def failures(self) -> list[dict[str, Any]]:
        """Of queries that stopped by themselves."""
        return [failure for driver in self._drivers for failure in driver.failures]

    @property
    def stopped(self) -> Counter[str]:
        """How often, by query."""
        return Counter(failure["query"] for failure in self.failures)

    def kill_driver(self, driver: Driver | None = None) -> None:
        """SIGKILL for one and its JVM; the last one, if not told which."""
        left = (driver or self.driver).kill()
        self._left |= {pid: processes.born(pid) for pid in left}

    def workers(self) -> list[int]:
        """Python workers of executors; not the daemons that fork them, whose workers would live on
        as nobody's children."""
        executors = processes.executors(self.driver.pid)
        parents = processes.parents()
        found = [pid for one in executors for pid in processes.descendants(one)]
        return [
            pid
            for pid in found
            if b"pyspark" in processes.command_line(pid) and parents.get(pid) not in executors
        ]

    def planners(self) -> list[int]:
        """Python processes that the driver's JVM started for itself."""
        executors = processes.executors(self.driver.pid)
        others = {pid for one in executors for pid in (one, *processes.descendants(one))}
        return [
            pid
            for pid in processes.descendants(self.driver.pid)
            if pid not in others and b"pyspark" in processes.command_line(pid)
            if b"java" not in processes.command_line(pid).split(b"\0")[0]
        ]

    # ---- feed

    def _feed(self) -> None:
        """Append in order; a log that is away is waited for."""
        target = self.log.stream("in")
        while not self._leaving.is_set():
            if not self._feeding.wait(0.05):
                continue
            began = time.monotonic()
            with self._lock:
                rows = make_rows(self.boundaries[-1], self._rows)
                self.boundaries.append(self.boundaries[-1] + self._rows)
                target.append(rows)
            self._leaving.wait(max(0.0, began + FEED_SECONDS - time.monotonic()))

    def start_feeding(self) -> None:
        self._feeding.set()

    def stop_feeding(self) -> None:
        """Returns when nothing more comes."""
        self._feeding.clear()
        with self._lock:
            pass

    # ---- reader

    def _read_on(self) -> None:
        while not self._leaving.wait(READ_SECONDS):
            self.read_and_check()

    def read_and_check(self) -> tuple[int, int]:
        """All that counts at one moment, checked; rows of `in` that are in, batches of three."""
        end = self.log.bounds().tail
        tables = {name: self.log.stream(name).read(end=end) for name in ("out", *queries.THREE)}
        for name, table in tables.items():
            if name in self._seen:
                check_grown(self._seen[name], table)
        self._seen = dict(tables)
        boundaries = list(self.boundaries)
        out = tables.pop("out")
        done = check_plain(out["id"].to_numpy(), out["w"].to_numpy(), boundaries)
        batches = check_three(tables, boundaries)
        self.reads += 1
        return done, batches

    # ---- progress

    def last_batches(self) -> dict[str, int]:
        """The last committed batch by writer."""
        found = self.log.client.list_metadata(BATCH_PREFIX)
        return {
            batch_writer(key.removeprefix(BATCH_PREFIX)): json.loads(value.data)["batch"]
            for key, value in found.items()
        }

    def count_batches(self) -> int:
        """Of both queries, committed."""
        return sum(number + 1 for number in self.last_batches().values())

    def wait_batches(self, count: int) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.count_batches() < count and not self.errors:
            assert time.monotonic() < deadline, f"not {count} batches: {self.failures[-1:]}"
            time.sleep(0.1)

    def wait_met(self, before: Counter[str]) -> None:
        """Until each query has stopped once more than before, in whichever driver."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(self.stopped[name] <= before[name] for name in QUERIES) and not self.errors:
            assert time.monotonic() < deadline, f"both drivers live in peace: {self.stopped}"
            time.sleep(0.1)

    def wait_marker(self, seconds: float) -> None:
        """Until a batch is committed from now on."""
        self._wait_entry([naming_tag("out"), naming_tag("both")], Kind.MARKER, seconds)

    def wait_staged(self, seconds: float) -> None:
        """Until a task has staged rows from now on, of the first stream that a query writes."""
        self._wait_entry([stream_tag("out"), stream_tag("left")], Kind.STAGED, seconds)

    def _wait_entry(self, tags: list[str], kind: Kind, seconds: float) -> None:
        with self.log.client.tail(tags, start=self.log.bounds().tail) as reader:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                try:
                    batch = reader.next_batch(0.1)
                except TimeoutError:
                    continue
                if batch is not None and any(entry.kind is kind for entry in batch.entries):
                    return
        raise AssertionError(f"no {kind.name} came for {seconds} s: {self.failures[-1:]}")

    def unnoted(self) -> int:
        """Batches that are committed in the log and not in Spark's own commit log."""
        found = 0
        for name in QUERIES:
            checkpoint = self.directory / "checkpoints" / name
            try:
                id = json.loads((checkpoint / "metadata").read_text())["id"]
                noted = max(
                    (int(one.name) for one in (checkpoint / "commits").glob("[0-9]*")), default=-1
                )
            except FileNotFoundError:
                continue  # killed before its first batch
            found += self.last_batches().get(batch_writer(id), -1) > noted
        return found


# ---- the nemesis


class Nemesis:
    """`counts` says what was done, by kind."""

    def __init__(self, stand: Stand, rng: random.Random, gap_seconds: tuple[float, float]) -> None:
        self._stand = stand
        self._rng = rng
        self._gap_seconds = gap_seconds
        self.counts: Counter[str] = Counter()
        #: Batches whose driver was killed between the log's commit and Spark's own.
        self.unnoted = 0

    def run(self, faults: Sequence[str]) -> None:
        """These, in an order and at moments that the seed decides."""
        order = list(faults)
        self._rng.shuffle(order)
        for kind in order:
            if self._stand.errors:
                break  # the reader has seen what it never may
            time.sleep(self._rng.uniform(*self._gap_seconds))
            getattr(self, kind)()

    def _kill_one(self, kind: str, find: Callable[[], list[int]]) -> None:
        """There is one soon if there is none now."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            found = sorted(find())
            if found and processes.send(
                self._rng.choice(found), signal.SIGKILL, root=self._stand.driver.pid
            ):
                self.counts[kind] += 1
                return
            time.sleep(0.05)
        raise AssertionError(f"no {kind} to kill for {PATIENCE_SECONDS} s")

    def worker(self) -> None:
        self._kill_one("worker", self._stand.workers)

    def planner(self) -> None:
        self._kill_one("planner", self._stand.planners)

    def executor(self) -> None:
        self._kill_one("executor", lambda: processes.executors(self._stand.driver.pid))

    def server(self) -> None:
        self._stand.server.kill()
        self.counts["server"] += 1
        self._stand.launch_server()

    def driver(self) -> None:
        self._kill_driver("driver")

    def commit(self) -> None:
        self._stand.wait_marker(PATIENCE_SECONDS)
        self._kill_driver("commit")

    def staging(self) -> None:
        self._stand.wait_staged(PATIENCE_SECONDS)
        self._kill_driver("staging")

    def rival(self) -> None:
        old, before = self._stand.driver, self._stand.stopped
        self._stand.start_driver().wait_for("running")
        self._let_meet(old, before)
        self.counts["rival"] += 1

    def zombie(self) -> None:
        old, before = self._stand.driver, self._stand.stopped
        still = [old.pid, *processes.descendants(old.pid)]
        processes.signal_all(still, signal.SIGSTOP)
        self._stand.start_driver().wait_for("running")
        self._stand.wait_batches(self._stand.count_batches() + ZOMBIE_BATCHES)
        processes.signal_all(still, signal.SIGCONT)
        self._let_meet(old, before)
        self.counts["zombie"] += 1

    def _let_meet(self, old: Driver, before: Counter[str]) -> None:
        """And both go on for a while, before the old one is killed."""
        self._stand.wait_met(before)
        time.sleep(self._rng.uniform(2.0, 5.0))
        self._stand.kill_driver(old)
        self._stand.wait_marker(PATIENCE_SECONDS)

    def _kill_driver(self, kind: str) -> None:
        """And the server while the next one starts."""
        self._stand.kill_driver()
        self.counts[kind] += 1
        self.unnoted += self._stand.unnoted()
        driver = self._stand.start_driver()
        time.sleep(self._rng.uniform(0.5, 3.0))
        self.server()
        driver.wait_for("running")
