"""`penstock bench ui`: what looking costs a query.

One query runs all the time, over one stream, at a fixed rate. Phases without anybody who looks, and
with three open pages and a scrape of the log server's metrics each second, come in turn, each first
in every other round and after the same rest, so that a machine that drifts favours neither. The
page's server is `penstock ui`, a process of its own; whoever looks is another one, which reads as a
browser does and draws nothing: drawing is done elsewhere. Latency is from the creation of an event
until a reader of the result has its row, as in `penstock bench realtime`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.errors import Unavailable
from penstock.log.serving.directory import TOKEN_FILE, read_address, read_token
from penstock.stream.session import connect
from penstock.ui.config import LINGER_SECONDS
from penstock_bench.arrivals import Arrivals, latencies
from penstock_bench.child import Child
from penstock_bench.driver_process import Session, start_driver
from penstock_bench.load import BIDS, Live, start_load
from penstock_bench.measure import (
    SECOND_US,
    busy_load,
    next_second,
    now_us,
    percentile,
    scratch,
    summary,
)
from penstock_bench.queries import QUERIES
from penstock_bench.report import Check, Report, Say

PAGES: Final = 3
BAR: Final = 1.05
_QUERY: Final = "stateless"
_RESULT: Final = "result"
_ANSWER_SECONDS: Final = 60.0
#: How long the query may take for what was appended; its workers have to start, too.
_BEHIND_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class UiBenchSizes:
    """How much of everything; `quick` is for tests of the bench itself."""

    rate: int = 10_000
    rounds: int = 4
    warm_seconds: int = 5
    seconds: int = 10


FULL: Final = UiBenchSizes()
QUICK: Final = UiBenchSizes(rate=2_000, rounds=1, warm_seconds=2, seconds=3)


@dataclass(slots=True)
class Phases:
    """Milliseconds of each row, by whether somebody looked; what the pages were sent."""

    alone: list[float] = field(default_factory=list)
    looked_at: list[float] = field(default_factory=list)
    updates: int = 0
    scrapes: int = 0
    looked_seconds: float = 0.0


def run_bench(plan: UiBenchSizes, say: Say, directory: Path | None = None) -> Report:
    report = Report("ui", parameters={**asdict(plan), "pages": PAGES, "load": busy_load(say)})
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(scratch("penstock-ui-", directory)) / "log"
        log = stack.enter_context(connect(place))
        log.create_stream("bids", BIDS)
        load = stack.enter_context(contextlib.closing(start_load(place)))
        driver = stack.enter_context(contextlib.closing(start_driver(place, "bench-ui")))
        driver.ask(_start)
        url = stack.enter_context(_served(place))
        looking = Child("who looks", _look, place, url)
        stack.callback(looking.close)
        arrivals = Arrivals(log, _RESULT, QUERIES[_QUERY])
        stack.callback(arrivals.stop)
        measured = Bench(plan, load, arrivals, looking)
        measured.run(0, plan.warm_seconds)
        for number in range(plan.rounds):
            measured.round(number)
            say(f"round {number + 1} of {plan.rounds}: {_words(measured.phases)}")
        driver.ask(Session.stop)
    return _judge(report, measured.phases, say)


@dataclass(slots=True)
class Bench:
    """The query, its load, and who looks."""

    plan: UiBenchSizes
    load: Child
    arrivals: Arrivals
    looking: Child
    phases: Phases = field(default_factory=Phases)
    #: Rows that the result must have by now.
    expected: int = 0

    def round(self, number: int) -> None:
        """Alone and looked at, the other one first in every other round, each after the same rest.

        What follows a rest is slower, and for a while after somebody looked the page's server goes
        on as if somebody did.
        """
        for looks in (False, True) if number % 2 == 0 else (True, False):
            time.sleep(LINGER_SECONDS + 1)
            if looks:
                self.phases.looked_at += self._looked_at()
            else:
                self.phases.alone += self.run(1, self.plan.seconds)

    def _looked_at(self) -> list[float]:
        self.looking.send("begin")
        self.looking.answer(_ANSWER_SECONDS)
        values = self.run(1, self.plan.seconds)
        self.looking.send("end")
        updates, scrapes, seconds = self.looking.answer(_ANSWER_SECONDS)
        self.phases.updates += updates
        self.phases.scrapes += scrapes
        self.phases.looked_seconds += seconds
        return values

    def run(self, lead: int, seconds: int) -> list[float]:
        """Latencies of the rows of so many seconds of load, after a lead."""
        count = (lead + seconds) * self.plan.rate
        start_us = next_second(now_us() + SECOND_US // 4)
        self.load.send(Live("bids", start_us, self.plan.rate, count))
        self.load.answer(lead + seconds + 30)
        self.expected += QUERIES[_QUERY].expected(0, count)
        if self.arrivals.wait_events(self.expected, time.monotonic() + _BEHIND_SECONDS) is None:
            raise Unavailable(f"the query is {_BEHIND_SECONDS:g} s behind: it cannot keep up")
        from_us = start_us + lead * SECOND_US
        to_us = from_us + seconds * SECOND_US
        return latencies(self.arrivals.found(), QUERIES[_QUERY], from_us, to_us).values


def _judge(report: Report, phases: Phases, say: Say) -> Report:
    alone, looked_at = (percentile(one, 50) for one in (phases.alone, phases.looked_at))
    report.figures = {
        "alone_ms": summary(phases.alone),
        "looked_at_ms": summary(phases.looked_at),
        "updates": phases.updates,
        "scrapes": phases.scrapes,
    }
    wanted = PAGES * phases.looked_seconds
    for check in (
        Check("p50_looked_at_over_alone", looked_at / alone, BAR, "at most", "x", _words(phases)),
        Check("updates_of_pages", phases.updates / wanted, 0.8, "at least", "of one a second",
              f"{phases.updates} of {wanted:.0f}"),
    ):  # fmt: skip
        report.judge(check, say)
    return report


def _words(phases: Phases) -> str:
    alone, looked_at = (percentile(one, 50) for one in (phases.alone, phases.looked_at))
    return f"p50 {looked_at:,.2f} ms looked at, {alone:,.2f} ms alone"


# ---- in the Spark driver


def _start(session: Session) -> None:
    bids = session.log.stream("bids").df(session.spark)
    session.run(QUERIES[_QUERY].build(bids), "marker", to=_RESULT)


# ---- the page's server, and who looks


@contextlib.contextmanager
def _served(place: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "penstock.cli.main", "ui", "--dir", str(place)]
    command += ["--listen", "127.0.0.1:0", "--json", "--log-level", "warning"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line:
                raise Unavailable("`penstock ui` did not start: what it said last is above")
            yield str(json.loads(line)["url"])
        finally:
            server.terminate()


def _look(place: Path, url: str, commands: Connection) -> None:
    """Pages and scrapes between "begin" and "end"; the answer to that is how many there were."""
    token = read_token(place / TOKEN_FILE)
    headers = {"Authorization": f"Bearer {token}"}
    server = read_address(place)
    assert server is not None
    try:
        while commands.recv() == "begin":
            ending = threading.Event()
            counts = [0] * (PAGES + 1)
            threads = [
                threading.Thread(target=_follow, args=(url, headers, ending, counts, number))
                for number in range(PAGES)
            ]
            threads.append(
                threading.Thread(
                    target=_scrape, args=(server.host, server.port, headers, ending, counts)
                )
            )
            for thread in threads:
                thread.start()
            began = time.monotonic()
            commands.send(None)
            commands.recv()
            ending.set()
            seconds = time.monotonic() - began
            for thread in threads:
                thread.join()
            commands.send((sum(counts[:PAGES]), counts[PAGES], seconds))
    except (EOFError, OSError):
        pass  # the bench has ended


def _follow(
    url: str, headers: dict[str, str], ending: threading.Event, counts: list[int], number: int
) -> None:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=30)
    connection.request("GET", f"/v1/events?query={_RESULT}", headers=headers)
    answer: Any = connection.getresponse()
    for line in answer:
        counts[number] += line.startswith(b"event: page")
        if ending.is_set():
            break
    connection.close()


def _scrape(
    host: str, port: int, headers: dict[str, str], ending: threading.Event, counts: list[int]
) -> None:
    while not ending.wait(1.0):
        connection = http.client.HTTPConnection(host, port, timeout=30)
        connection.request("GET", "/metrics", headers=headers)
        counts[PAGES] += b"penstock_query_" in connection.getresponse().read()
        connection.close()
