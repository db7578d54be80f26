"""Result objects, and what of them each chart of the report shows.

Owns how a run is read, which runs a chart compares (one commit interval, one rate) and what is
missing. Knows nothing of pictures. Pure but for `load`, which reads a directory.

Law: chart and table have the same figures, made once, here. What was not measured is a sentence in
`missing` and a gap in the chart, never a zero. Runs of equal settings are repeats: the median of
them is shown, with their number.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.errors import NotFound
from penstock_bench.nexmark import compare, figures

MAKE_SOME: Final = "penstock nexmark run q5 --rate 10000 --seconds 30 --results {}"
#: For the ratio of medians, peer over Penstock.
RATIO_BARS: Final = compare.BARS
_LABELS: Final = {
    "penstock": "Penstock",
    "structured_streaming": "Spark",
    "flink": "Flink",
    "kafka_streams": "Kafka Streams",
}


class Series(NamedTuple):
    """A system as it was set up: it has one colour, everywhere."""

    system: str
    variant: str

    @property
    def label(self) -> str:
        name = f"{_LABELS.get(self.system, self.system)} {self.variant}"
        return name.replace("_", " ").strip()


OURS: Final = Series("penstock", "marker")


@dataclass(frozen=True, slots=True)
class Run:
    """One result object, checked."""

    series: Series
    query: str
    rate: float
    commit_interval_ms: float | None
    #: Empty if no row was measured.
    latency_ms: dict[str, float]
    emitted_ms: dict[str, float]
    percentiles: tuple[tuple[float, float], ...]
    #: `event` or `window end`.
    latency_from: str
    rows: int
    is_sustained: bool
    is_schedule_held: bool
    oracle: str
    #: The object itself, for the table of all runs.
    raw: dict[str, Any]

    @property
    def is_kept_up(self) -> bool:
        """The rate was really offered, and the lag did not grow; latency may be high."""
        checks = {check["name"]: check["ok"] for check in self.raw.get("checks", ())}
        checks.pop("p99 latency", None)
        steady = self.is_sustained or (bool(checks) and all(checks.values()))
        steady = bool(self.raw.get("keeps_up", steady))  # peers say so themselves
        return steady and self.is_schedule_held and bool(self.latency_ms)

    @property
    def is_held(self) -> bool:
        """Kept up with, and fast enough."""
        p99 = self.latency_ms.get("p99")
        kept = self.is_sustained and self.is_schedule_held
        return kept and p99 is not None and p99 <= limit_ms(self.query)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a directory holds."""

    runs: tuple[Run, ...]
    #: Newest recovery report, as JSON.
    recovery: dict[str, Any] | None
    #: `file: why` of what was passed over.
    skipped: tuple[str, ...]
    #: What a comparison could not run, and why.
    refused: tuple[str, ...] = ()


class Point(NamedTuple):
    """Medians over the repeats of one setting."""

    x: float
    p50: float
    p99: float
    repeats: int
    is_kept_up: bool


class Line(NamedTuple):
    series: Series
    points: tuple[Point, ...]


class Curve(NamedTuple):
    """A distribution: (percent, milliseconds), rising."""

    series: Series
    steps: tuple[tuple[float, float], ...]


class Panel(NamedTuple):
    """One query: its lines, or its distributions."""

    query: str
    #: What it is about beyond the query: a rate, an interval.
    note: str
    lines: tuple[Line, ...] = ()
    curves: tuple[Curve, ...] = ()


class Ratio(NamedTuple):
    """How many times higher a peer's median is than ours, at the highest rate both keep up with."""

    query: str
    peer: Series
    rate: float
    ours_p50: float
    peer_p50: float

    @property
    def times(self) -> float:
        return self.peer_p50 / self.ours_p50


class Held(NamedTuple):
    """The highest rate held, and the lowest above it that was not; None if there is none."""

    query: str
    series: Series
    held: float | None
    held_p99: float | None
    failed: float | None
    failed_p99: float | None


def limit_ms(query: str) -> float:
    """The p99 up to which a rate counts as held."""
    return figures.limit_ms(re.split("[ ,]", query)[0])


# -- reading


def load(directory: Path) -> Loaded:
    """Every result object below a directory. Raises NotFound if there is none."""
    remedy = f"make some with: {MAKE_SOME.format(directory)}"
    if not directory.is_dir():
        raise NotFound(f"there is no directory {directory}; {remedy}")
    runs: list[Run] = []
    skipped: list[str] = []
    recovery: dict[str, Any] | None = None
    refused: dict[str, None] = {}
    for path in sorted(directory.rglob("*.json")):
        name = path.relative_to(directory).as_posix()
        try:
            content = json.loads(path.read_text())
        except ValueError as error:
            skipped.append(f"{name}: no JSON ({error})")
            continue
        if isinstance(content, dict) and content.get("bench") == "nexmark_recovery":
            recovery = content
            continue
        objects = _objects(content)
        refused |= dict.fromkeys(_refusals(content))
        if not objects:
            skipped.append(f"{name}: no result of penstock nexmark")
        for result in objects:
            try:
                run = parse(result)
                # The same run may be there by itself and in a list: that makes no repeat of it.
                if run.oracle == "different":
                    label = f"{run.series.label}, {run.query} at {run.rate:,.0f}/s"
                    refused[f"{label}: a result that differs from batch Spark is no figure"] = None
                elif run not in runs:
                    runs.append(run)
            except (KeyError, TypeError, ValueError) as error:
                skipped.append(f"{name}: a run that cannot be read ({error!r})")
    if not runs and recovery is None:
        others = f" ({len(skipped)} other files)" if skipped else ""
        raise NotFound(f"no results in {directory}{others}; {remedy}")
    return Loaded(tell_apart(runs), recovery, tuple(skipped), tuple(refused))


def tell_apart(runs: Sequence[Run]) -> tuple[Run, ...]:
    """What was run differently never meets in a chart: `q5 from event`, `q8, update`."""
    named = list(runs)
    for setting, text in _SETTINGS:
        settings: dict[str, set[Any]] = {}
        for run in runs:
            settings.setdefault(run.query, set()).add(run.raw.get(setting))
        for place, run in enumerate(runs):
            value = run.raw.get(setting)
            if value is not None and len(settings[run.query] - {None}) > 1:
                query = named[place].query + text.format(value)
                named[place] = replace(named[place], query=query)
    return tuple(named)


#: What tells runs of one query apart, and how it is said; a system that has no such thing has None.
_SETTINGS: Final = (
    ("latency_from", " from {}"),
    ("mode", ", {}"),
    ("workers", ", {} workers"),
    ("generators", ", {} generators"),
    ("flush_ms", ", flushed every {:g} ms"),
    ("state_scale", ", state x{}"),
)


def _objects(content: Any) -> list[dict[str, Any]]:
    """A result object, or those that one of several holds."""
    if not isinstance(content, dict):
        return []
    for holder, name in ((content, "runs"), (content, "steps"), (_figures(content), "results")):
        if isinstance(holder.get(name), list):
            return [member for member in holder[name] if isinstance(member, dict)]
    return [content] if content.get("bench") == "nexmark" and "latency_ms" in content else []


def _figures(content: dict[str, Any]) -> dict[str, Any]:
    inner = content.get("figures")
    return inner if isinstance(inner, dict) else {}


def _refusals(content: Any) -> list[str]:
    """What a comparison says that it skipped."""
    skipped = _figures(content).get("skipped") if isinstance(content, dict) else None
    lines = []
    for run in skipped or ():
        name = Series(str(run.get("system")), str(run.get("variant") or "")).label
        query = f" for {run['query']}" if run.get("query") else ""
        lines.append(f"{name}: not run{query}: {run.get('reason')}")
    return lines


def parse(content: dict[str, Any]) -> Run:
    """Raises KeyError, TypeError or ValueError if it lacks what identifies a run."""
    rows = int(content.get("rows") or 0)
    schedule = content.get("schedule") or {}
    interval = content.get("commit_interval_ms")
    return Run(
        series=Series(str(content["system"]), str(content.get("variant") or "")),
        query=str(content["query"]),
        rate=float(content["rate"]),
        commit_interval_ms=None if interval is None else float(interval),
        latency_ms=_latency(content.get("latency_ms")) if rows else {},
        emitted_ms=_latency(content.get("emitted_latency_ms")) if rows else {},
        percentiles=tuple((float(p), float(ms)) for p, ms in content.get("percentiles") or ()),
        latency_from=str(content.get("latency_from") or "event"),
        rows=rows,
        is_sustained=bool(content.get("is_sustained", False)),
        is_schedule_held=bool(schedule.get("is_held", True)),
        oracle=str(content.get("oracle", "skipped")),
        raw=content,
    )


def _latency(percentiles: Any) -> dict[str, float]:
    """Both percentiles that every chart needs, or nothing."""
    values = {name: float(ms) for name, ms in (percentiles or {}).items() if ms is not None}
    return values if {"p50", "p99"} <= values.keys() else {}


# -- order


def query_order(query: str) -> tuple[int, str]:
    """q2 before q10."""
    number = re.search(r"\d+", query)
    return (int(number[0]) if number else 999, query)


def all_queries(runs: Iterable[Run]) -> list[str]:
    return sorted({run.query for run in runs}, key=query_order)


def all_series(runs: Iterable[Run]) -> list[Series]:
    """Ours first, then by name."""
    series = {run.series for run in runs}
    return sorted(series, key=lambda own: (own != OURS, own.system != "penstock", own))


def _select(runs: Iterable[Run], query: str, series: Series) -> list[Run]:
    return [run for run in runs if (run.query, run.series) == (query, series)]


def _most(
    runs: Iterable[Run], group: Callable[[Run], float], member: Callable[[Run], Hashable]
) -> float | None:
    """The group with the most different members; of equals the largest."""
    members = {(group(run), member(run)) for run in runs}
    counted = Counter(member for member, _ in members)
    return max(counted, key=lambda member: (counted[member], member)) if counted else None


# -- what each chart shows


def usual_runs(runs: Sequence[Run]) -> list[Run]:
    """Those of one commit interval per system: the one that it was measured with most widely.

    For our protocols it is that of markers: at different intervals they say nothing of each other.
    """
    kept: list[Run] = []
    for series in all_series(runs):
        own = [run for run in runs if run.series == series]
        is_ours = series.system == OURS.system
        leading = [run for run in runs if run.series == OURS] if is_ours else []
        timed = [run for run in leading or own if run.commit_interval_ms is not None]
        usual = _most(timed, lambda run: run.commit_interval_ms or 0.0, lambda r: (r.query, r.rate))
        kept += [run for run in own if run.commit_interval_ms in (None, usual)]
    return kept


def rate_panels(runs: Sequence[Run]) -> list[Panel]:
    """Latency against rate, one panel per query."""
    usual = usual_runs(runs)
    panels = []
    for query in all_queries(usual):
        lines = _lines([run for run in usual if run.query == query], lambda run: run.rate)
        if any(line.series == OURS and len(line.points) > 1 for line in lines):
            # Other protocols, measured at one rate for the chart of commit intervals.
            lines = tuple(line for line in lines if len(line.points) > 1 or not _is_protocol(line))
        panels.append(Panel(query, "", lines))
    return panels


def _is_protocol(line: Line) -> bool:
    return line.series.system == OURS.system and line.series != OURS


def interval_panels(runs: Sequence[Run]) -> list[Panel]:
    """Latency against commit interval, at the rate where most intervals were measured."""
    timed = [r for r in runs if r.series.system == "penstock" and r.commit_interval_ms]
    panels = []
    for query in all_queries(timed):
        own = [run for run in timed if run.query == query]
        rate = _most(own, lambda run: run.rate, lambda run: (run.series, run.commit_interval_ms))
        at_rate = [run for run in own if run.rate == rate]
        if len({run.commit_interval_ms for run in at_rate}) > 1:
            lines = _lines(at_rate, lambda run: run.commit_interval_ms or 0.0)
            panels.append(Panel(query, f"{rate:,.0f} events/s", lines))
    return panels


def _lines(runs: Sequence[Run], place: Callable[[Run], float]) -> tuple[Line, ...]:
    lines = []
    for series in all_series(runs):
        own = [run for run in runs if run.series == series and run.latency_ms]
        xs = sorted({place(run) for run in own})
        points = [_point(x, [run for run in own if place(run) == x]) for x in xs]
        if points:
            lines.append(Line(series, tuple(points)))
    return tuple(lines)


def _point(x: float, runs: Sequence[Run]) -> Point:
    return Point(
        x,
        statistics.median(run.latency_ms["p50"] for run in runs),
        statistics.median(run.latency_ms["p99"] for run in runs),
        len(runs),
        all(run.is_kept_up for run in runs),
    )


def curve_panels(runs: Sequence[Run]) -> list[Panel]:
    """Distributions at the rate that most series were measured at; of repeats the middle one."""
    usual = [run for run in usual_runs(runs) if run.latency_ms and len(run.percentiles) > 1]
    panels = []
    for query in all_queries(usual):
        own = [run for run in usual if run.query == query]
        rate = _most(own, lambda run: run.rate, lambda run: run.series)
        at_rate = [run for run in own if run.rate == rate]
        curves = []
        for series in all_series(at_rate):
            repeats = _select(at_rate, query, series)
            repeats.sort(key=lambda run: run.latency_ms["p50"])
            curves.append(Curve(series, repeats[len(repeats) // 2].percentiles))
        panels.append(Panel(query, f"{rate:,.0f} events/s", curves=tuple(curves)))
    return panels


def ratios(runs: Sequence[Run]) -> list[Ratio]:
    """Every peer beside ours, per query, where both keep up with a rate; protocols are no
    peers."""
    kept = [run for run in usual_runs(runs) if run.is_kept_up]
    beside = []
    for query in all_queries(kept):
        for peer in all_series(kept):
            if peer.system == "penstock":
                continue
            ours = _medians(kept, query, OURS)
            theirs = _medians(kept, query, peer)
            shared = [rate for rate in ours.keys() & theirs.keys() if ours[rate] > 0]
            if shared:
                rate = max(shared)
                beside.append(Ratio(query, peer, rate, ours[rate], theirs[rate]))
    return beside


def _medians(runs: Sequence[Run], query: str, series: Series) -> dict[float, float]:
    """The median of p50 by rate."""
    own = _select(runs, query, series)
    return {
        rate: statistics.median(run.latency_ms["p50"] for run in own if run.rate == rate)
        for rate in {run.rate for run in own}
    }


def saturation(runs: Sequence[Run]) -> list[Held]:
    """Of each series and query that was measured at two rates or more."""
    usual = usual_runs(runs)
    rates_held = []
    for query in all_queries(usual):
        for series in all_series(usual):
            own = _select(usual, query, series)
            if len({run.rate for run in own}) > 1:
                rates_held.append(_held(query, series, own))
    return rates_held


def _held(query: str, series: Series, runs: Sequence[Run]) -> Held:
    """A rate is held if most of its repeats were."""
    rates = sorted({run.rate for run in runs})
    by_rate = {rate: [run for run in runs if run.rate == rate] for rate in rates}
    good = [r for r in rates if statistics.median(run.is_held for run in by_rate[r]) > 0.5]
    held = max(good, default=None)
    failed = min((r for r in rates if r not in good and r > (held or 0)), default=None)
    return Held(query, series, held, _p99(by_rate, held), failed, _p99(by_rate, failed))


def _p99(by_rate: dict[float, list[Run]], rate: float | None) -> float | None:
    if rate is None:
        return None
    values = [run.latency_ms["p99"] for run in by_rate[rate] if run.latency_ms]
    return statistics.median(values) if values else None


# -- what is missing


def missing_lines(runs: Sequence[Run], panels: Sequence[Panel]) -> list[str]:
    """Who has no line in which panel, and why."""
    drawn = {(panel.query, line.series) for panel in panels for line in panel.lines}
    queries = [panel.query for panel in panels]
    return _gaps(runs, queries, all_series(runs), drawn, "no rows, or one rate only,")


def missing_ratios(runs: Sequence[Run], ratios: Sequence[Ratio]) -> list[str]:
    """Which peer cannot be compared in which query."""
    there = {(ratio.query, ratio.peer) for ratio in ratios}
    peers = [series for series in all_series(runs) if series.system != "penstock"]
    return _gaps(runs, all_queries(runs), peers, there, "no rate that both keep up with")


def _gaps(
    runs: Sequence[Run],
    queries: Sequence[str],
    series: Sequence[Series],
    there: set[tuple[str, Series]],
    why: str,
) -> list[str]:
    """`why` is said of what was run; the rest was not."""
    was_run = {(run.query, run.series) for run in runs}
    lines = []
    for own in series:
        gone = [query for query in queries if (query, own) not in there]
        for reason, part in (
            ("not run", [query for query in gone if (query, own) not in was_run]),
            (why, [query for query in gone if (query, own) in was_run]),
        ):
            if part:
                lines.append(f"{own.label}: {reason} for {', '.join(part)}")
    return lines
