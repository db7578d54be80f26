"""The demo's play: a streaming DataFrame on Spark in real time, two kills, the result checked.

Everything is real: a log server and Spark on this machine, worker processes that are killed with
kill -9. All of it lives in a temporary directory that is removed at the end. The last line is a
check, not a claim: the result is compared, row by row, with what batch Spark makes of the same
bids.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock.cli.demo_bids import BIDS, LiveBids, batch_result, bids_per_auction
from penstock.cli.demo_view import Follower, View
from penstock.cli.live import ms_text
from penstock.cli.output import echo
from penstock.errors import QueryFailed
from penstock.log.serving.directory import is_locked
from penstock.protocol.names import control_tag
from penstock.runtime.control import Hello, decode_message
from penstock.spark.session import local_session
from penstock.spark.start import start
from penstock.stream.session import Log, connect

NAME: Final = "bids_per_auction"
BIDS_PER_SECOND: Final = 10_000
WORKERS: Final = 2
#: How long Spark and the workers may take until the first window is there.
START_SECONDS: Final = 90.0
REFRESH_SECONDS: Final = 0.2
#: Gives what waits for the end of looking.
ShowPage = Callable[[Path, View], contextlib.AbstractContextManager[Callable[[], None]]]
#: Of the log file, shown when the demo itself fails.
_LINES_SHOWN: Final = 30


@dataclass(slots=True)
class Outcome:
    """What the demo counted and compared."""

    bids: int = 0
    windows: int = 0
    rows: int = 0
    #: Compared with batch Spark.
    missing: int = 0
    extra: int = 0
    worker_kills: int = 0
    log_kills: int = 0
    #: From the end of a window to when its rows could be read, kills included.
    latency_ms: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    difference: str | None = None

    @property
    def ok(self) -> bool:
        return self.rows > 0 and self.missing == 0 and self.extra == 0


def run_demo(seconds: float, view: View, show_page: ShowPage | None = None) -> Outcome:
    """Play it, and say how it ended. `show_page`: shows it beside, until somebody has seen it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory:
        data_dir = Path(directory, "log")
        with _logging_to(Path(directory, "spark.log")) as quiet_spark:
            try:
                view.title("1. A log, a stream, and Spark")
                with (
                    connect(data_dir) as log,
                    _nothing() if show_page is None else show_page(data_dir, view) as wait,
                    quiet_spark as spark,
                ):
                    outcome = _play(log, spark, seconds, view)
                    outcome.seconds = round(time.monotonic() - began, 1)
                    view.verdict(_verdict(outcome), ok=outcome.ok)
                    wait()
            finally:
                _stop_server(data_dir)
    return outcome


@contextlib.contextmanager
def _nothing() -> Iterator[Callable[[], None]]:
    yield lambda: None


def _verdict(outcome: Outcome) -> str:
    if outcome.ok:
        return (
            f"OK: {outcome.rows:,} rows of {outcome.windows} windows, each equal to batch Spark's "
            f"over the same {outcome.bids:,} bids; {outcome.seconds:.0f} s"
        )
    return (
        f"DIFFERENT from batch Spark: {outcome.missing} rows missing, {outcome.extra} too many, "
        f"of {outcome.rows:,}; for example {outcome.difference}"
    )


def _play(log: Log, spark: Any, seconds: float, view: View) -> Outcome:
    outcome = Outcome()
    bids = log.create_stream("bids", BIDS)
    view.say(f"log server process {_server_pid(log)}; stream bids: {bids.ddl}")
    view.say(f"Spark {spark.version}, {spark.sparkContext.master}")
    view.title(f"2. {BIDS_PER_SECOND:,} bids a second, counted per auction and second")
    load = LiveBids(bids, BIDS_PER_SECOND)
    query = start(
        bids_per_auction(bids.df(spark)), to="result", name=NAME, mode="append", workers=WORKERS,
        log=log,
    )  # fmt: skip
    view.say(f"from another terminal: penstock query status {NAME} --watch --dir {log.target}")
    follower = Follower(log.stream("result"))
    try:
        load.start()
        _watch(log, query, follower, seconds, view, outcome)
        _note_latency(follower, seconds, view, outcome)
        load.stop()
        query.processAllAvailable()
    finally:
        query.stop()
        follower.stop()
    outcome.windows = follower.count
    view.title("3. The same by batch Spark, over the same bids, made anew")
    rows = load.rows()
    outcome.bids = rows.num_rows
    compare(log.stream("result").read(), batch_result(spark, rows), outcome)
    return outcome


def _watch(
    log: Log, query: Any, follower: Follower, seconds: float, view: View, outcome: Outcome
) -> None:
    """Show what comes for so long, and kill a worker and the log's server on the way."""
    with view:
        asked = time.monotonic()
        while not follower.count:
            _check_alive(query, asked)
            view.show([], query.lastProgress)
            time.sleep(REFRESH_SECONDS)
        began = time.monotonic()
        while _goes_on(elapsed := time.monotonic() - began, seconds, outcome):
            if not outcome.worker_kills and elapsed > seconds / 3:
                outcome.worker_kills += _kill_worker(log, query, view)
            if not outcome.log_kills and elapsed > seconds * 2 / 3:
                pid = _server_pid(log)
                os.kill(pid, signal.SIGKILL)
                view.say(f"[red]kill -9 {pid}[/], the log's server")
                outcome.log_kills += 1
            if not query.isActive:
                _check_alive(query, began)
            view.show(follower.newest(), query.lastProgress)
            time.sleep(REFRESH_SECONDS)


def _goes_on(elapsed: float, seconds: float, outcome: Outcome) -> bool:
    """For its time, and until it has killed both: a machine may stand still when one is due."""
    has_killed = bool(outcome.worker_kills and outcome.log_kills)
    return elapsed < seconds if has_killed else elapsed < seconds + START_SECONDS


def _check_alive(query: Any, since: float) -> None:
    if not query.isActive:
        raise query.exception() or QueryFailed("the query stopped by itself")
    if time.monotonic() - since > START_SECONDS:
        raise QueryFailed(f"no result within {START_SECONDS:g} s")


def _kill_worker(log: Log, query: Any, view: View) -> int:
    """Kill the process that runs the last task; returns how many were killed."""
    hellos = {
        message.worker: message
        for entry in log.client.read([control_tag(NAME)])
        if isinstance(message := decode_message(entry.payload), Hello)
    }
    task, report = max(query.lastProgress["tasks"].items())
    hello = hellos.get(report["worker"])
    if hello is None:
        return 0  # between two places: at the next look
    os.kill(hello.pid, signal.SIGKILL)
    view.say(f"[red]kill -9 {hello.pid}[/], the worker that runs task {task}")
    return 1


def _note_latency(follower: Follower, seconds: float, view: View, outcome: Outcome) -> None:
    """Of the windows that ended in real time: earlier ones waited for Spark to start."""
    until_ms = time.time() * 1000
    found = follower.latencies_ms(until_ms - seconds * 1000, until_ms)
    for name, share in (("p50", 0.5), ("p90", 0.9), ("max", 1.0)):
        if found:
            place = min(len(found) - 1, int(share * len(found)))
            outcome.latency_ms[name] = round(found[place], 1)
    text = ", ".join(f"{name} {ms_text(ms)}" for name, ms in outcome.latency_ms.items())
    view.say(f"from the end of a second to when its counts could be read: {text}")


def compare(result: Any, expected: Any, outcome: Outcome) -> None:
    """Note how two tables differ as multisets of rows."""
    ours, theirs = (
        Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))
        for table in (result, expected)
    )
    missing, extra = theirs - ours, ours - theirs
    outcome.rows = ours.total()
    outcome.missing, outcome.extra = missing.total(), extra.total()
    for kind, rows in (("missing", missing), ("too many", extra)):
        if rows and outcome.difference is None:
            outcome.difference = f"{kind}: {next(iter(rows))}"


# ---- processes


def _server_pid(log: Log) -> int:
    return int(log.status()["pid"])


@contextlib.contextmanager
def _logging_to(path: Path) -> Iterator[contextlib.AbstractContextManager[Any]]:
    """A Spark whose output, like all log lines, goes to a file: its end is shown on a failure."""
    handler = logging.FileHandler(path)
    logging.getLogger().addHandler(handler)
    try:
        with path.open("ab") as file:
            yield _spark(file.fileno())
    except Exception:
        lines = path.read_text(errors="replace").splitlines()[-_LINES_SHOWN:]
        echo("".join(f"| {line}\n" for line in lines), err=True, nl=False)
        raise
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


@contextlib.contextmanager
def _spark(output: int) -> Iterator[Any]:
    """Java takes over the standard error of the moment at which it is started."""
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(output, 2)
    session = local_session("penstock demo", cores=WORKERS + 1)
    try:
        spark = session.__enter__()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    try:
        yield spark
    finally:
        session.__exit__(None, None, None)


def _stop_server(data_dir: Path) -> None:
    """Stop the demo's own server, so that its directory can be removed."""
    if not is_locked(data_dir):
        return
    with connect(data_dir) as log:
        pid = _server_pid(log)
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 10
    while is_locked(data_dir) and time.monotonic() < deadline:
        time.sleep(0.01)
