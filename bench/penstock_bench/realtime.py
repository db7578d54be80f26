"""`penstock bench realtime`: latency in real time beside Spark's micro-batches, in one run.

Owns the variants, the phases and their bars. A phase is one query of one variant over a fresh
stream of the same log: 20,000 events a second from a generator of its own process (load.py) for a
warm-up and the measured seconds, and one tail of the result stream for all (arrivals.py). Latency
is counted from the creation of an event, or from the end of its window, until a reader of the
result has the row. Every event carries the wall clock of this machine, which all processes share.

Variants: Penstock; Penstock without exactly-once ("unsafe"); micro-batches at Spark's defaults and
at the best settings known: the peer `structured_streaming` of `bench/peers`, skipped with a line
where there is none. One JVM runs at a time. Penstock's phases come in rounds around the peers',
safe and unsafe in turn, so that a machine that drifts favours nobody.

Saturation is a phase of its own: backlogs are appended as fast as the log takes them, one after the
other. The rate is the events of one over the time from its first append until the last of its
results is visible; the best counts, since the first also warms up. The peer reads with two tasks
there, at Spark's defaults: that has the higher throughput, as the other settings have the lower
latency.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from penstock.errors import NotFound
from penstock.stream.session import Log, connect
from penstock_bench.arrivals import Arrivals, latencies
from penstock_bench.child import Child
from penstock_bench.driver_process import Session, start_driver
from penstock_bench.load import BIDS, Burst, Live, Sent, start_load
from penstock_bench.measure import (
    SECOND_US,
    busy_load,
    next_second,
    now_us,
    percentile,
    scratch,
    summary,
)
from penstock_bench.nexmark.peers import Peer, find_peer
from penstock_bench.protocols.choosing import ProtocolName
from penstock_bench.queries import QUERIES, BenchQuery
from penstock_bench.report import Check, Report, Say

PENSTOCK: Final = "penstock"
UNSAFE: Final = "penstock_unsafe"
MICRO_BATCH_BEST: Final = "micro_batch_best"
MICRO_BATCH_DEFAULTS: Final = "micro_batch_defaults"
#: The peer's own names of its variants.
_PEER: Final = "structured_streaming"
_PEER_VARIANTS: Final = {MICRO_BATCH_BEST: "best", MICRO_BATCH_DEFAULTS: "defaults"}
_PEER_SECONDS: Final = 120.0
#: How much lower Penstock's median must be, and what exactly-once may cost.
DEFAULTS_BAR: Final = 25.0
BEST_BAR: Final = 10.0
UNSAFE_BAR: Final = 1.5
#: The load runs for so long before the measured seconds, after a pause.
_LEAD_SECONDS: Final = 1
#: After the measured seconds the load goes on for so long, so that their last window closes.
_TRAIL_SECONDS: Final = 1
#: How far a variant may be behind at the end of the load.
_BEHIND_SECONDS: Final = 60.0
_SATURATION_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class RealtimeBenchSizes:
    """How much of everything; `quick` is for tests of the bench itself."""

    rate: int = 20_000
    #: Rounds of Penstock, safe and unsafe in turn; half of them before the peers, half after.
    rounds: int = 2
    warm_seconds: int = 4
    seconds: int = 10
    #: A JVM needs longer to get warm (its first batch alone takes up to 8 s), and its latencies
    #: scatter more.
    peer_warm_seconds: int = 20
    peer_seconds: int = 20
    #: Events of a backlog, and how many backlogs.
    backlog: int = 2_000_000
    backlogs: int = 3
    queries: tuple[str, ...] = ("stateless", "windowed")
    variants: tuple[str, ...] = (PENSTOCK, UNSAFE, MICRO_BATCH_BEST, MICRO_BATCH_DEFAULTS)


FULL: Final = RealtimeBenchSizes()
QUICK: Final = RealtimeBenchSizes(
    rounds=1,
    warm_seconds=1,
    seconds=2,
    peer_warm_seconds=2,
    peer_seconds=2,
    backlog=50_000,
    backlogs=1,
)


@dataclass(slots=True)
class VariantFigures:
    """What was measured of one query in one variant."""

    #: Milliseconds, one list per round.
    rounds: list[list[float]] = field(default_factory=list)
    #: How far the events in the result are from those that were sent, on balance.
    wrong_events: int = 0
    #: Events a second, one per backlog.
    saturation: list[float] = field(default_factory=list)
    late_ms_max: float = 0.0
    engine: dict[str, Any] = field(default_factory=dict)

    @property
    def values(self) -> list[float]:
        return [value for values in self.rounds for value in values]

    @property
    def p50(self) -> float:
        return percentile(self.values, 50)

    def as_figures(self) -> dict[str, Any]:
        figures: dict[str, Any] = {"rows": len(self.values), "latency_ms": summary(self.values)}
        figures["p50_ms_rounds"] = [round(percentile(values, 50), 2) for values in self.rounds]
        figures["events_off_balance"] = self.wrong_events
        figures["generator_late_ms_max"] = round(self.late_ms_max, 1)
        if self.saturation:
            figures["saturation_events_per_second"] = round(max(self.saturation))
            figures["saturation_rounds"] = [round(rate) for rate in self.saturation]
        return {**figures, **self.engine}


@dataclass(frozen=True, slots=True)
class Start:
    """Run a query from a stream of bids into a result stream."""

    query: str
    source: str
    result: str
    exactly_once: bool = True
    #: Tasks that read each batch of a peer; None: what has the lowest latency.
    readers: int | None = None


class Engine(Protocol):
    """What starts and stops a query of a variant, in a process of its own."""

    def start(self, command: Start) -> None: ...

    def stop(self) -> dict[str, Any]: ...

    def check(self) -> None: ...

    def close(self) -> None: ...


class RealTime:
    """Penstock, with one worker."""

    def __init__(self, directory: Path) -> None:
        self._driver = start_driver(directory, "bench-realtime")
        self.check = self._driver.check
        self.close = self._driver.close

    def start(self, command: Start) -> None:
        self._driver.ask(partial(_start, command=command))

    def stop(self) -> dict[str, Any]:
        self._driver.ask(Session.stop)
        return {}


def _start(session: Session, command: Start) -> None:
    bids = session.log.stream(command.source).df(session.spark)
    protocol: ProtocolName = "marker" if command.exactly_once else "unsafe"
    session.run(QUERIES[command.query].build(bids), protocol, to=command.result)


class MicroBatches:
    """The peer, in one of its variants."""

    def __init__(self, directory: Path, variant: str) -> None:
        self._directory = str(directory)
        self._variant = variant
        self._peer = Peer(find_peer(_PEER))
        self.check = self._peer.check
        self.close = self._peer.close

    def start(self, command: Start) -> None:
        log = {"log": self._directory}
        self._peer.ask(
            "start",
            _PEER_SECONDS,
            query=command.query,
            variant=_PEER_VARIANTS[self._variant],
            source={**log, "stream": command.source},
            result={**log, "stream": command.result, "directory": self._directory},
            readers=command.readers,
        )

    def stop(self) -> dict[str, Any]:
        answer = self._peer.ask("stop", _PEER_SECONDS)
        return {name: value for name, value in answer.items() if name != "ok"}


#: By query, then variant.
Results = dict[str, dict[str, VariantFigures]]


def run_bench(*, directory: Path | None, plan: RealtimeBenchSizes, say: Say) -> Report:
    busy = busy_load(say)
    with (
        scratch("penstock-bench-", directory) as root,
        contextlib.closing(connect(root / "log")) as log,
        contextlib.closing(start_load(root / "log")) as load,
    ):
        results = {q: {v: VariantFigures() for v in plan.variants} for q in plan.queries}
        Bench(root / "log", log, load, plan, say, results).run()
    report = make_report(results, plan)
    report.figures["load_average_before"] = busy
    return report


@dataclass(slots=True)
class Bench:
    """One run over one log."""

    directory: Path
    log: Log
    load: Child
    plan: RealtimeBenchSizes
    say: Say
    results: Results
    phases: int = 0

    def run(self) -> None:
        first = (self.plan.rounds + 1) // 2
        self._real_time(range(first))
        for variant in self._peers():
            with self._engine(variant, partial(MicroBatches, self.directory, variant)) as driver:
                for query in self.plan.queries:
                    self._phase(driver, variant, QUERIES[query])
                    if variant == MICRO_BATCH_DEFAULTS:
                        self._saturate(driver, variant, QUERIES[query])
        self._real_time(range(first, self.plan.rounds))

    def _peers(self) -> list[str]:
        """The peer's variants that can run; those that cannot are not measured."""
        wanted = [variant for variant in _PEER_VARIANTS if variant in self.plan.variants]
        try:
            missing = find_peer(_PEER).missing if wanted else None
        except NotFound as error:
            missing = str(error)
        if missing is None:
            return wanted
        self.say(f"micro-batches are skipped, {missing}")
        for variants in self.results.values():
            for variant in wanted:
                del variants[variant]
        return []

    def _real_time(self, rounds: range) -> None:
        variants = [v for v in (PENSTOCK, UNSAFE) if v in self.plan.variants]
        if not rounds or not variants:
            return
        with self._engine(PENSTOCK, partial(RealTime, self.directory)) as driver:
            for number in rounds:
                for query in self.plan.queries:
                    for variant in variants:
                        self._phase(driver, variant, QUERIES[query])
                    if number == self.plan.rounds - 1 and PENSTOCK in variants:
                        self._saturate(driver, PENSTOCK, QUERIES[query])

    @contextlib.contextmanager
    def _engine(self, name: str, make: Callable[[], Engine]) -> Iterator[Engine]:
        self.say(f"starting Spark for {name}")
        with contextlib.closing(make()) as engine:
            yield engine

    @contextlib.contextmanager
    def _running(
        self, driver: Engine, variant: str, query: BenchQuery, *, readers: int | None = None
    ) -> Iterator[tuple[str, Arrivals]]:
        """The query runs over a fresh stream, whose name is given, and its result is followed."""
        self.phases += 1
        source, result = f"bids-{self.phases}", f"result-{self.phases}"
        self.log.create_stream(source, BIDS)
        driver.start(Start(query.name, source, result, variant != UNSAFE, readers))
        arrivals = Arrivals(self.log, result, query)
        try:
            yield source, arrivals
        finally:
            arrivals.stop()
            # Also after a failure of ours: if the query failed, its error is the better one.
            self.results[query.name][variant].engine.update(driver.stop())

    def _phase(self, driver: Engine, variant: str, query: BenchQuery) -> None:
        plan = self.plan
        is_peer = variant not in (PENSTOCK, UNSAFE)
        warm = plan.peer_warm_seconds if is_peer else plan.warm_seconds
        seconds = plan.peer_seconds if is_peer else plan.seconds
        figures = self.results[query.name][variant]
        with self._running(driver, variant, query) as (source, arrivals):
            self._put(source, warm)
            if warm > 1:
                # Without this, a first batch that takes long would be measured as if it were the
                # rule. The window of the last second closes with the next load.
                caught_up = query.expected(0, (warm - 1) * plan.rate)
                if _wait(driver, arrivals, caught_up, _BEHIND_SECONDS) is None:
                    raise RuntimeError(f"{query.name}, {variant}: it cannot keep up")
            warmed_up = query.expected(0, warm * plan.rate)
            self._measure(driver, source, arrivals, query, figures, seconds, warmed_up)
        values = figures.rounds[-1]
        self.say(
            f"{query.name}, {variant}: p50 {percentile(values, 50):,.1f} ms,"
            f" p99 {percentile(values, 99):,.1f} ms, {len(values):,} rows"
        )

    def _measure(
        self,
        driver: Engine,
        source: str,
        arrivals: Arrivals,
        query: BenchQuery,
        figures: VariantFigures,
        seconds: int,
        warmed_up: int,
    ) -> None:
        """Put the load on a warm query, and take the latencies."""
        rate = self.plan.rate
        live, sent = self._put(source, _LEAD_SECONDS + seconds + _TRAIL_SECONDS)
        from_us = live.start_us + _LEAD_SECONDS * SECOND_US
        to_us = from_us + seconds * SECOND_US
        # If anything is lost this waits in vain, and the events tell.
        until = warmed_up + query.expected(0, (_LEAD_SECONDS + seconds) * rate)
        _wait(driver, arrivals, until, _BEHIND_SECONDS)
        measured = latencies(arrivals.found(), query, from_us, to_us)
        if not measured.values:
            raise RuntimeError(f"{query.name}: no results {_BEHIND_SECONDS:g} s after the load")
        figures.rounds.append(measured.values)
        expected = query.expected(_LEAD_SECONDS * rate, seconds * rate)
        figures.wrong_events += abs(measured.events - expected)
        figures.late_ms_max = max(figures.late_ms_max, sent.late_us_max / 1_000)

    def _put(self, source: str, seconds: int) -> tuple[Live, Sent]:
        """The load, for so long, from a whole second on."""
        # A little ahead, so that the generator knows of it in time.
        start_us = next_second(now_us() + SECOND_US // 4)
        live = Live(source, start_us, self.plan.rate, seconds * self.plan.rate)
        self.load.send(live)
        return live, self.load.answer(seconds + 30)

    def _saturate(self, driver: Engine, variant: str, query: BenchQuery) -> None:
        count = self.plan.backlog
        rates = self.results[query.name][variant].saturation
        with self._running(driver, variant, query, readers=2) as (source, arrivals):
            burst = Burst(source, next_second(now_us()), self.plan.rate, count)
            done = 0
            for _ in range(self.plan.backlogs):
                rates.append(self._drain(driver, burst, arrivals, done + query.expected(0, count)))
                done += query.expected(0, count) + query.expected(burst.closing, 1)
                burst = replace(burst, start_us=burst.after_us)
        self.say(f"{query.name}, {variant}: {max(rates):,.0f} events/s at most")

    def _drain(self, driver: Engine, burst: Burst, arrivals: Arrivals, expected: int) -> float:
        """Events a second, until the results add up to what is expected."""
        self.load.send(burst)
        sent: Sent = self.load.answer(_SATURATION_SECONDS)
        visible_us = _wait(driver, arrivals, expected, _SATURATION_SECONDS)
        if visible_us is None:
            raise RuntimeError(f"{burst.count:,} events took over {_SATURATION_SECONDS:g} s")
        return burst.count * SECOND_US / (visible_us - sent.first_us)


def _wait(driver: Engine, arrivals: Arrivals, events: int, seconds: float) -> int | None:
    """When the results add up to so many events; None if they do not in time."""
    deadline = time.monotonic() + seconds
    visible_us = None
    while visible_us is None and time.monotonic() < deadline:
        driver.check()
        visible_us = arrivals.wait_events(events, time.monotonic() + 1)
    return visible_us


def make_report(results: Results, plan: RealtimeBenchSizes) -> Report:
    """Figures of all, and a check for every pair of variants that was measured."""
    report = Report("realtime", parameters=asdict(plan))
    for query, variants in results.items():
        for variant, figures in variants.items():
            report.figures[f"{query}, {variant}"] = figures.as_figures()
        report.checks += _latency_checks(query, variants)
    wrong = sum(
        figures.wrong_events for variants in results.values() for figures in variants.values()
    )
    detail = "of the measured events, over all variants: what came out beside what was sent"
    report.checks.append(Check("events_off_balance", wrong, 0, "at most", "events", detail))
    return report


def _latency_checks(query: str, variants: Mapping[str, VariantFigures]) -> Iterator[Check]:
    ours = variants.get(PENSTOCK)
    if ours is None:
        return
    for variant, bar in ((MICRO_BATCH_DEFAULTS, DEFAULTS_BAR), (MICRO_BATCH_BEST, BEST_BAR)):
        if variant in variants:
            theirs = variants[variant].p50
            detail = f"p50 {theirs:,.1f} ms over p50 {ours.p50:,.1f} ms"
            name = f"{query}_p50_{variant}_over_penstock"
            yield Check(name, theirs / ours.p50, bar, "at least", "×", detail)
    if UNSAFE in variants:
        unsafe = variants[UNSAFE].p50
        detail = f"p50 {ours.p50:,.2f} ms over p50 {unsafe:,.2f} ms without markers"
        name = f"{query}_p50_exactly_once_over_unsafe"
        yield Check(name, ours.p50 / unsafe, UNSAFE_BAR, "at most", "×", detail)
