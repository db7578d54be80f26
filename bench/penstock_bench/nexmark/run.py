"""`penstock nexmark run`: one query under a paced load, measured, and checked by the oracle.

Owns the run: a fresh stream of events, the timed query over it, generators on schedule, one tail of
the result. Latency of a row counts from its `lat_ts` (nexmark/timed.py) until a reader of the
result has it. Rows of the warm-up are told by their `lat_ts` and excluded; nothing else is.

The oracle looks at the measured result itself, if the run is small enough; of a longer one it
looks at a run of its own before, over the first events, which come as fast as the log takes them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa

from penstock.errors import BadRequest
from penstock.stream.session import Log, connect
from penstock_bench.child import Child
from penstock_bench.driver_process import Session
from penstock_bench.measure import SECOND_US, next_second, now_us, scratch
from penstock_bench.nexmark import model
from penstock_bench.nexmark.driver import look, settle, start_nexmark_driver, start_timed
from penstock_bench.nexmark.figures import Appended, Position, Usage
from penstock_bench.nexmark.generator import Parameters, rhino_parameters
from penstock_bench.nexmark.oracle import Verdict, ask_oracle
from penstock_bench.nexmark.processes import forget_peaks, kinds_of, usage
from penstock_bench.nexmark.producers import Producers
from penstock_bench.nexmark.queries import QUERIES, RHINO
from penstock_bench.nexmark.result import Measured, make_result
from penstock_bench.nexmark.timed import APPEND, BY_ARRIVAL, MODES, WINDOWED
from penstock_bench.nexmark.visible import Rows, Visible, decode
from penstock_bench.protocols.choosing import ProtocolName
from penstock_bench.report import Say

#: How much of a run is over, from 0 to 1, and how it stands.
Show = Callable[[float, str], None]

#: Looks at the log, and at the query.
_TAIL_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 0.5
#: The first event is due a little ahead, so that generators know of it in time.
_AHEAD_US: Final = 300_000
_SETTLE_SECONDS: Final = 60.0
#: Event time that passes before the events that close all windows: the longest have 12 h.
_SILENCE_MS: Final = 24 * 3_600_000
#: Events of several generators reach the log a little out of order.
_STRIPED_WATERMARK_MS: Final = 100
#: Of the events that the oracle may look at, those of a run of its own.
_PREFIX_SHARE: Final = 4


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run."""

    query: str
    rate: float = 50_000
    seconds: float = 60
    warm_seconds: float = 10
    #: None: the query's own (nexmark/timed.py).
    mode: str | None = None
    workers: int = 1
    generators: int = 1
    flush_ms: float = 5
    commit_interval_ms: int = 0
    protocol: ProtocolName = "marker"
    #: Whether stages with one task each run in one, as they do for users.
    joins_stages: bool = True
    seed: int = 42
    oracle: bool = True
    #: More than so many and the oracle looks at the first ones only.
    oracle_events: int = 2_000_000
    #: How late events may be; None: not at all with one generator, a little with several.
    watermark_ms: int | None = None
    #: Of Rhino's queries: persons and auctions so many times as large, and in use.
    state_scale: int = 1

    def __post_init__(self) -> None:
        if self.query not in QUERIES:
            raise BadRequest(f"no query {self.query}: there are {', '.join(QUERIES)}")
        for name in ("rate", "seconds", "workers", "generators", "flush_ms"):
            if getattr(self, name) <= 0:
                raise BadRequest(f"{name} of {getattr(self, name)}: more than 0 needed")

    @property
    def output_mode(self) -> str:
        return self.mode or MODES[self.query]

    @property
    def is_windowed(self) -> bool:
        """Whether rows wait for the end of their window."""
        return self.query in WINDOWED and self.output_mode == APPEND

    @property
    def events(self) -> int:
        return round(self.rate * (self.warm_seconds + self.seconds))

    @property
    def parameters(self) -> Parameters:
        """Of the events; Rhino's queries have their own."""
        if self.query in RHINO:
            return rhino_parameters(seed=self.seed, state_scale=self.state_scale)
        return Parameters(seed=self.seed)

    @property
    def lateness_ms(self) -> int:
        if self.watermark_ms is not None:
            return self.watermark_ms
        return 0 if self.generators == 1 else _STRIPED_WATERMARK_MS


def run_nexmark(
    run: Run, say: Say, *, show: Show | None = None, directory: Path | None = None
) -> Any:
    """One run in a bench of its own: its result object."""
    with Bench(say, show=show, directory=directory) as bench:
        return bench.run(run)


class Bench:
    """A log and a Spark driver for any number of runs, one after the other.

    Use it in a `with`. Every run has fresh streams; what the ones before left in the log is
    trimmed.
    """

    def __init__(
        self, say: Say, *, show: Show | None = None, directory: Path | None = None
    ) -> None:
        self._say = say
        self._show = show or (lambda share, text: None)
        self._parent = directory
        self._runs = 0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._root = stack.enter_context(scratch("penstock-nexmark-", self._parent))
            self._log: Log = stack.enter_context(contextlib.closing(connect(self._root / "log")))
            self._say("starting Spark")
            driver = start_nexmark_driver(self._root / "log")
            self._driver = stack.enter_context(contextlib.closing(driver))
            self._held = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @property
    def log(self) -> Log:
        return self._log

    def run(self, run: Run) -> dict[str, Any]:
        """Measure it: the result object."""
        verdict = None if run.oracle else Verdict("skipped", "not asked for")
        if run.query in BY_ARRIVAL:
            verdict = Verdict("skipped", "when rows arrive, only the log knows")
        if verdict is None and run.events > run.oracle_events:
            verdict = self._check_prefix(run)
        with self._phase(run) as phase:
            measured, rows = phase.measure(run)
        if verdict is None:
            verdict = self._ask(run, phase, run.events, measured.is_settled, rows)
        self._log.trim("latest")
        result = make_result(run, measured, rows, verdict)
        self._say(_tell(result))
        return result

    def _check_prefix(self, run: Run) -> Verdict:
        """The oracle's own run: the first events, as fast as they go."""
        count = min(run.events, run.oracle_events // _PREFIX_SHARE)
        self._say(f"{run.query}: {count:,} events for the oracle")
        with self._phase(run) as phase:
            is_settled, rows = phase.hurry(run, count)
        verdict = self._ask(run, phase, count, is_settled, rows)
        self._log.trim("latest")
        about = f"in a run of its own, over the first {count:,} of {run.events:,} events, unpaced"
        return replace(verdict, reason=f"{verdict.reason}; {about}")

    def _ask(self, run: Run, phase: Phase, count: int, is_settled: bool, rows: Rows) -> Verdict:
        if not is_settled:
            behind = f"the query was still behind {_SETTLE_SECONDS:g} s after the load"
            return Verdict("skipped", behind)
        self._say(f"{run.query}: asking batch Spark")
        parameters = phase.producers.parameters(rate=run.rate, base_ms=phase.base_ms)
        return ask_oracle(self._driver, run.query, parameters, count, rows, self._root)

    @contextlib.contextmanager
    def _phase(self, run: Run) -> Iterator[Phase]:
        """The query runs over a fresh stream, and its result is followed."""
        self._runs += 1
        source, result = f"events-{self._runs}", f"{run.query}-{self._runs}"
        target = self._root / "log"
        with Producers(
            target, stream=source, generators=run.generators, parameters=run.parameters
        ) as producers:
            start = partial(
                start_timed,
                query=run.query,
                mode=run.output_mode,
                source=source,
                result=result,
                workers=run.workers,
                protocol=run.protocol,
                commit_interval_ms=run.commit_interval_ms,
                watermark_ms=run.lateness_ms,
                joins_stages=run.joins_stages,
            )
            self._driver.ask(start)
            visible = Visible(self._log, result)
            phase = Phase(self._log, self._driver, producers, visible, source, self._show)
            try:
                yield phase
            except Exception:
                # If the query failed, its error is the better one.
                self._driver.ask(Session.stop)
                raise
            # Not after an interrupt: the driver was interrupted, too.
            self._driver.ask(Session.stop)


@dataclass(slots=True)
class Phase:
    """One query that runs over one stream, and the load on it."""

    log: Log
    driver: Child
    producers: Producers
    visible: Visible
    source: str
    show: Show
    appended: list[Appended] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    looked: float = 0.0
    #: Event time of event 0.
    base_ms: int = 0

    def measure(self, run: Run) -> tuple[Measured, Rows]:
        """The paced load, and what came of it."""
        # From a whole second on: windows then end at the same event numbers in every run.
        start_us = next_second(now_us() + _AHEAD_US)
        from_us = start_us + round(run.warm_seconds * SECOND_US)
        to_us = from_us + round(run.seconds * SECOND_US)
        self.base_ms = start_us // 1_000
        self._begin(run, start_us, run.events)
        self._watch(run, start_us, from_us, to_us)
        before = self._use(forgetting=True)
        self._watch(run, start_us, to_us, to_us)
        after = self._use()
        sent = self.producers.finished(run.seconds + _SETTLE_SECONDS)
        self._look()
        is_settled, rows = self._settle(run, run.events)
        measured = Measured(
            from_us=from_us,
            to_us=to_us,
            sent=sent,
            appended=self.appended,
            positions=self.positions,
            before=before[0],
            after=after[0],
            bytes_appended=after[1] - before[1],
            is_settled=is_settled,
        )
        return measured, rows

    def hurry(self, run: Run, count: int) -> tuple[bool, Rows]:
        """All events at once: their times are as far apart as ever, and all are due."""
        now = now_us()
        self.base_ms = now // 1_000
        self._begin(run, now - round(count / run.rate * SECOND_US), count)
        self.producers.finished(_SETTLE_SECONDS + count / 10_000)
        return self._settle(run, count)

    def _begin(self, run: Run, start_us: int, count: int) -> None:
        self.producers.begin(
            start_us=start_us,
            rate=run.rate,
            count=count,
            base_ms=self.base_ms,
            flush_us=round(run.flush_ms * 1_000),
        )

    def _watch(self, run: Run, start_us: int, until_us: int, to_us: int) -> None:
        """Look at the log and the query again and again, until then."""
        while (now := now_us()) < until_us:
            self._look()
            done = max(0.0, (now - start_us) / (to_us - start_us))
            self.show(done, f"{run.query}: {self.appended[-1].events:,} events")
            time.sleep(max(0.0, min(_TAIL_SECONDS, (until_us - now_us()) / SECOND_US)))

    def _look(self) -> None:
        events = self.producers.sent()
        self.appended.append(Appended(now_us(), int(self.log.bounds().tail), events))
        if time.monotonic() - self.looked >= _LOOK_SECONDS:
            self.looked = time.monotonic()
            position = self.driver.ask(look)
            if position is not None:
                self.positions.append(position)

    def _use(self, *, forgetting: bool = False) -> tuple[Usage, int]:
        """What all processes have used, and bytes in the log; peaks begin anew if told so."""
        status = self.log.status()
        kinds = kinds_of(
            log=status["pid"],
            generators=self.producers.pids,
            driver=self.driver.pid,
            harness=os.getpid(),
        )
        if forgetting:
            forget_peaks(kinds)
        return usage(kinds), int(status["bytes"])

    def _settle(self, run: Run, count: int) -> tuple[bool, Rows]:
        """Everything that was sent is visible, or does not come in time."""
        if run.is_windowed:
            end_ms = self.base_ms + round(count / run.rate * 1_000)
            self.log.stream(self.source).append(closing_events(end_ms + _SILENCE_MS))
        self.show(1.0, f"{run.query}: waiting for the last results")
        is_settled = self.driver.ask(partial(settle, seconds=_SETTLE_SECONDS))
        self.visible.wait(_SETTLE_SECONDS)
        return is_settled, decode(self.visible.stop(), self.visible.schema)


def closing_events(time_ms: int) -> pa.RecordBatch:
    """One event of each kind, so late that all windows before them are over; theirs stay open."""
    rows = []
    for number, (kind, schema) in enumerate(model.KINDS.items()):
        empty = {field.name: "" if pa.types.is_string(field.type) else -1 for field in schema}
        times = {name: time_ms * 1_000 for name in ("dateTime", "expires") if name in empty}
        rows.append({"event_type": number, kind: empty | times})
    return pa.RecordBatch.from_pylist(rows, schema=model.EVENT)


def _tell(result: dict[str, Any]) -> str:
    latency = result["latency_ms"] or {}
    held = "held" if result["is_sustained"] else "not held"
    times = ", ".join(f"{name} {ms:,.1f} ms" for name, ms in latency.items())
    return (
        f"{result['query']} at {result['rate']:,.0f}/s: {held}, {times or 'no rows'}, "
        f"oracle {result['oracle']}"
    )
