"""One query of one peer under the paced load: measured as Penstock is, into the same result object.

Owns the phases of a peer's run: start, warm-up, the measured seconds, settling, stop. A peer that
reads the log gets the same producers, and its result is followed by the same tail; one that brings
its own events gets seed, rate, base and schedule, and hands over when each of its rows was visible.
Law: latency counts from the same moments for all, and what has not arrived is not left out: a run
that does not settle says so.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.stream.session import Log
from penstock_bench.measure import SECOND_US, next_second, now_us
from penstock_bench.nexmark import figures, model
from penstock_bench.nexmark.figures import Usage
from penstock_bench.nexmark.generator import Parameters
from penstock_bench.nexmark.peers import Peer
from penstock_bench.nexmark.processes import kinds_of, usage
from penstock_bench.nexmark.producers import Producers
from penstock_bench.nexmark.result import make_object
from penstock_bench.nexmark.run import Run, closing_events
from penstock_bench.nexmark.visible import Rows, Visible, decode
from penstock_bench.report import Check

Show = Callable[[float, str], None]

#: A JVM starts, and compiles what it runs for the first time.
_START_SECONDS: Final = 180.0
_SETTLE_SECONDS: Final = 90.0
_STOP_SECONDS: Final = 90.0
_LOOK_SECONDS: Final = 0.2
#: The first event is due a little ahead, so that generators know of it in time; a peer's own ones
#: have yet to start.
_AHEAD_US: Final = 300_000
_AHEAD_OWN_US: Final = 4_000_000
#: Event time that passes before the events that close all windows.
_SILENCE_MS: Final = 60_000
#: What a peer that hands its rows over as text means by them; all other columns are text.
_INTEGERS: Final = (
    *("auction", "bidder", "price", "num", "id", "category", "final", "seller", "avg_price"),
)
_TIMES: Final = ("dateTime", "starttime", "endtime", "closed")
_OWN_COLUMNS: Final = ("_weight", "_lat_us", "_visible_us", "_emitted_us")
#: By what a later row replaces an earlier one, where a peer appends its updates as they come.
KEYS: Final[dict[str, tuple[str, ...]]] = {
    "q4": ("category",),
    "q9": ("id",),
    "q15": ("day",),
    "q16": ("channel", "day"),
    "q17": ("auction", "day"),
    "q18": ("bidder", "auction"),
    "q19": ("auction", "rank_number"),
}


@dataclass(slots=True)
class PeerRun:
    """A finished run: its result object, and what the oracle needs to judge it."""

    result: dict[str, Any]
    rows: Rows
    parameters: Parameters
    events: int
    is_settled: bool


@dataclass(slots=True)
class _Load:
    """What was sent in a run, and what the machine did meanwhile."""

    start_us: int
    from_us: int
    to_us: int
    before: Usage = field(default_factory=lambda: Usage({}, {}))
    after: Usage = field(default_factory=lambda: Usage({}, {}))
    bytes_appended: int | None = None
    schedule: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    is_settled: bool = True


class PeerBench:
    """A log and a directory for the runs of all peers, one after the other."""

    def __init__(self, log: Log, directory: Path, show: Show | None = None) -> None:
        self._log = log
        self._directory = directory
        self._show = show or (lambda share, text: None)
        self._runs = 0

    def run(self, peer: Peer, variant: str, run: Run) -> PeerRun:
        """Measure it. Raises PeerRefused with the reason if the peer cannot run the query."""
        self._runs += 1
        scratch = self._directory / f"{peer.spec.name}-{self._runs}"
        scratch.mkdir()
        measure = self._over_log if peer.spec.events == "log" else self._over_own
        load, rows = measure(peer, variant, run, scratch)
        base_ms = load.start_us // 1_000
        parameters = replace(run.parameters, events_per_s=run.rate, base_ms=base_ms)
        result = make_result(peer.spec.name, variant, run, load, rows)
        return PeerRun(result, rows, parameters, run.events, load.is_settled)

    # -- peers that read the log

    def _over_log(self, peer: Peer, variant: str, run: Run, scratch: Path) -> tuple[_Load, Rows]:
        source, result = f"peer-events-{self._runs}", f"peer-{run.query}-{self._runs}"
        target = str(self._log.target)
        with Producers(
            target, stream=source, generators=run.generators, parameters=run.parameters
        ) as producers:
            started = self._start(
                peer, variant, run, scratch, {"log": target, "stream": source}, result
            )
            visible = Visible(self._log, result)
            load = _begin(run, _AHEAD_US)
            base_ms = load.start_us // 1_000
            producers.begin(
                start_us=load.start_us,
                rate=run.rate,
                count=run.events,
                base_ms=base_ms,
                flush_us=round(run.flush_ms * 1_000),
            )
            self._watch(peer, run, load, producers.pids)
            sent = producers.finished(_SETTLE_SECONDS)
            if run.is_windowed:
                closing = closing_events(_end_ms(run, load) + _SILENCE_MS)
                self._log.stream(source).append(closing)
            self._settle(peer, load)
            load.engine = {**started, **self._stop(peer)}
            visible.wait(_SETTLE_SECONDS)
        load.schedule = {"delay_ms": sent.delay_ms, "is_held": sent.is_held, "note": sent.note}
        rows = decode(visible.stop(), visible.schema)
        self._log.trim("latest")
        return load, rows

    # -- peers that bring their own events

    def _over_own(self, peer: Peer, variant: str, run: Run, scratch: Path) -> tuple[_Load, Rows]:
        started = self._start(peer, variant, run, scratch, None, None)
        load = _begin(run, _AHEAD_OWN_US)
        events = {
            "seed": run.seed,
            "rate": run.rate,
            "base_ms": load.start_us // 1_000,
            "start_us": load.start_us,
            "first": 0,
            "count": run.events,
            "flush_us": round(run.flush_ms * 1_000),
            "closing_ms": _end_ms(run, load) + _SILENCE_MS if run.is_windowed else None,
        }
        peer.ask("feed", _START_SECONDS, events=events, python=sys.executable)
        self._watch(peer, run, load, [])
        settled = self._settle(peer, load)
        stopped = self._stop(peer)
        load.schedule = settled.pop("schedule", {})
        load.engine = {**started, **settled, **stopped}
        return load, read_rows(Path(load.engine.pop("rows")))

    # -- both

    def _start(
        self,
        peer: Peer,
        variant: str,
        run: Run,
        scratch: Path,
        source: Mapping[str, str] | None,
        result: str | None,
    ) -> dict[str, Any]:
        self._show(0.0, f"{peer.spec.name} {variant} {run.query}: starting")
        into: dict[str, str | None] = {"directory": str(scratch), "stream": result}
        into["log"] = None if source is None else source["log"]
        answer = peer.ask(
            "start",
            _START_SECONDS,
            query=run.query,
            mode=run.output_mode,
            variant=variant,
            settings={},
            source=source,
            result=into,
        )
        return _figures(answer)

    def _watch(self, peer: Peer, run: Run, load: _Load, generators: list[int]) -> None:
        """Until the load is over; what processes used is taken at both ends of the span."""
        bytes_before = 0
        for until_us in (load.from_us, load.to_us):
            while (now := now_us()) < until_us:
                peer.check()
                done = max(0.0, (now - load.start_us) / (load.to_us - load.start_us))
                self._show(done, f"{peer.spec.name} {run.query}")
                time.sleep(max(0.0, min(_LOOK_SECONDS, (until_us - now_us()) / SECOND_US)))
            status = self._log.status()
            used = usage(_kinds(peer, generators, int(status["pid"])))
            if until_us == load.from_us:
                load.before, bytes_before = used, int(status["bytes"])
        load.after = used
        if peer.spec.events == "log":
            load.bytes_appended = int(status["bytes"]) - bytes_before

    def _settle(self, peer: Peer, load: _Load) -> dict[str, Any]:
        self._show(1.0, f"{peer.spec.name}: waiting for the last results")
        settled = _figures(peer.ask("settle", 2 * _SETTLE_SECONDS, seconds=_SETTLE_SECONDS))
        load.is_settled = bool(settled.pop("is_settled", True))
        return settled

    def _stop(self, peer: Peer) -> dict[str, Any]:
        return _figures(peer.ask("stop", _STOP_SECONDS))


def _figures(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "ok"}


def _begin(run: Run, ahead_us: int) -> _Load:
    """From a whole second on: windows then end at the same event numbers in every run."""
    start_us = next_second(now_us() + ahead_us)
    from_us = start_us + round(run.warm_seconds * SECOND_US)
    return _Load(start_us, from_us, from_us + round(run.seconds * SECOND_US))


def _end_ms(run: Run, load: _Load) -> int:
    return load.start_us // 1_000 + round(run.events / run.rate * 1_000)


def _kinds(peer: Peer, generators: list[int], log: int) -> dict[str, list[int]]:
    driver = peer.pids[0]
    kinds = kinds_of(log=log, generators=generators, driver=driver, harness=os.getpid())
    return kinds if peer.spec.events == "log" else {**kinds, "workers": [], "log": []}


def read_rows(path: Path) -> Rows:
    """The rows that a peer handed over: their times, and their columns out of text."""
    with contextlib.closing(pa.memory_map(str(path))) as file:
        table = pa.ipc.open_file(file).read_all()
    columns = {
        name: _typed(name, table.column(name))
        for name in table.column_names
        if name not in _OWN_COLUMNS
    }
    weight, lat, visible, emitted = (table.column(name) for name in _OWN_COLUMNS)
    return Rows(
        pa.table(columns),
        weight.combine_chunks(),
        lat.to_numpy(),
        visible.to_numpy(),
        emitted.to_numpy(),
    )


def _typed(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if name in _TIMES:
        micros = pc.multiply(column.cast(pa.int64()), 1_000)
        return micros.cast(model.TIME)
    if name in _INTEGERS and not _has_fraction(column):
        return column.cast(pa.int64())
    return column.cast(pa.decimal128(23, 3)) if name in _INTEGERS else column


def _has_fraction(column: pa.ChunkedArray) -> bool:
    return len(column) > 0 and "." in str(column[0].as_py())


def last_by_key(rows: Rows, keys: tuple[str, ...]) -> Rows:
    """Of rows that replace each other, the last of each key."""
    place = pa.array(np.arange(rows.table.num_rows))
    keyed = rows.table.select(list(keys)).append_column("place", place)
    last = keyed.group_by(list(keys)).aggregate([("place", "max")]).column("place_max")
    kept = pc.sort_indices(last)
    return replace(rows, table=rows.table.take(last.take(kept)))


def _schedule(query: str, told: dict[str, Any]) -> dict[str, Any]:
    """Judged as our own is; a peer that says nothing has not held it."""
    delay_ms = told.get("delay_ms", {})
    is_prompt, note = bool(told.get("is_held", False)), str(told.get("note", ""))
    share = 1.0 if delay_ms else 0.0
    return figures.schedule_of(query, delay_ms, note, is_prompt=is_prompt, share=share)


def make_result(system: str, variant: str, run: Run, load: _Load, rows: Rows) -> dict[str, Any]:
    """The result object of a peer."""
    latencies = rows.latencies_ms(load.from_us, load.to_us)
    growth = figures.growth_ms_per_s(latencies.since_us, latencies.visible)
    schedule = _schedule(run.query, load.schedule)
    keeping_up = [
        figures.growth_check(growth),
        Check("schedule held", float(schedule["is_held"]), 1.0, "at least", ""),
        Check("all results visible", float(load.is_settled), 1.0, "at least", ""),
    ]
    limit = figures.limit_check(run.query, figures.summary(latencies.visible))
    events = run.rate * run.seconds
    cpu = figures.used_between(load.before, load.after, events)
    if (generators := load.engine.pop("generator_cpu_s", None)) is not None:
        # Its processes come and go within the span: of all events instead.
        cpu["generators"] = round(generators * 1e6 / run.events, 3)
        cpu["total"] = round(cpu["total"] + cpu["generators"], 3)
    keeps_up = len(latencies.visible) > 0 and all(check.ok for check in keeping_up)
    appended = load.bytes_appended
    return make_object(
        *(system, variant, run, latencies, [limit, *keeping_up]),
        events=run.events,
        latency_growth_ms_per_s=round(growth, 2),
        keeps_up=keeps_up,
        is_sustained=keeps_up and limit.ok,
        cpu_s_per_million_events=cpu,
        memory_mib=figures.memory_mib(load.after),
        bytes_appended=appended,
        bytes_appended_per_event=None if appended is None else round(appended / events, 1),
        schedule=schedule,
        engine=load.engine,
    )
