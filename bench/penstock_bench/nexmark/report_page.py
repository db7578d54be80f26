"""`penstock nexmark report`: one HTML page that needs nothing else, and the charts as PNG.

Owns the sections, their words and tables. The figures are report_runs.py's, the pictures
charts.py's. Law: the page loads nothing (no script, font, style or image from elsewhere), and says
beside each chart which question it answers, what is missing, and the command that makes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

from penstock_bench.nexmark import charts, report_runs
from penstock_bench.nexmark.charts import Picture
from penstock_bench.nexmark.recovery import make_table
from penstock_bench.nexmark.report_runs import Loaded, Panel, Run

PAGE: Final = "nexmark.html"
#: Where a cell has no figure.
GAP: Final = "–"
#: With fewer, p99 is the largest value.
_ROWS_MIN: Final = 100
_CURVE_HEADERS: Final = (
    "query", "system", "events/s", "counted from", "p50, ms", "p90", "p99", "p99.9", "max",
    "emitted p50", "emitted p99", "rows",
)  # fmt: skip
_HELD_HEADERS: Final = (
    "query", "system", "p99 limit", "held, events/s", "p99 there, ms", "not held, events/s",
    "p99 there, ms",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Table:
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A question, and all that answers it."""

    name: str
    question: str
    text: str
    picture: Picture | None
    table: Table
    missing: tuple[str, ...]
    #: What makes the results that it needs.
    command: str


@dataclass(frozen=True, slots=True)
class Written:
    page: Path
    images: tuple[Path, ...]
    runs: int
    skipped: tuple[str, ...]
    #: By section.
    missing: dict[str, tuple[str, ...]]


def write_report(results: Path, out: Path) -> Written:
    """Read all results, write page and pictures. Raises NotFound if there are no results."""
    loaded = report_runs.load(results)
    sections = make_sections(loaded)
    out.mkdir(parents=True, exist_ok=True)
    images = []
    for section in sections:
        if section.picture is not None:
            path = out / f"{section.picture.name}.png"
            path.write_bytes(section.picture.png)
            images.append(path)
    page = out / PAGE
    page.write_text(make_page(loaded, sections), encoding="utf-8")
    missing = {section.name: section.missing for section in sections if section.missing}
    return Written(page, tuple(images), len(loaded.runs), loaded.skipped, missing)


# -- sections


def make_sections(loaded: Loaded) -> list[Section]:
    runs = loaded.runs
    return [
        _rates(runs),
        _ratios(runs, loaded.refused),
        _intervals(runs),
        _curves(runs),
        _saturation(runs),
        _recovery(loaded.recovery),
    ]


def _rates(runs: Sequence[Run]) -> Section:
    panels = report_runs.rate_panels(runs)
    return Section(
        "rates",
        "How does latency grow with the input rate?",
        "A panel per query, as in Figure 7 of the Impeller paper. Each line is one system at one "
        "commit interval; both axes are logarithmic. A hollow mark is a rate that the system or "
        "its generator did not keep up with: there, latency depends on how long the run lasted.",
        charts.draw_rates(panels) if panels else None,
        Table(("query", "system", "events/s", "p50 / p99, ms"), _points(panels)),
        tuple(report_runs.missing_lines(report_runs.usual_runs(runs), panels)),
        "penstock nexmark saturate q5",
    )


def _intervals(runs: Sequence[Run]) -> Section:
    panels = report_runs.interval_panels(runs)
    ours = [run for run in runs if run.series.system == "penstock"]
    return Section(
        "intervals",
        "What does each commit protocol cost, and how does that depend on the commit interval?",
        "As in Figure 8 of the Impeller paper: the same engine, plan and log, only the protocol "
        "differs. “unsafe” commits nothing exactly once and is the floor.",
        charts.draw_intervals(panels) if panels else None,
        _pivot(panels),
        tuple(report_runs.missing_lines(ours, panels)),
        "penstock nexmark protocols",
    )


def _points(panels: Sequence[Panel]) -> tuple[tuple[str, ...], ...]:
    """A row per point: queries are measured at different rates."""
    return tuple(
        (panel.query, line.series.label, f"{point.x:,.0f}", _pair(point))
        for panel in panels
        for line in panel.lines
        for point in line.points
    )


def _pivot(panels: Sequence[Panel]) -> Table:
    """A row per query and system, a column per commit interval; each cell is p50 / p99."""
    xs = sorted({p.x for panel in panels for line in panel.lines for p in line.points})
    rows = []
    for panel in panels:
        for line in panel.lines:
            by_x = {point.x: point for point in line.points}
            cells = [_pair(by_x[x]) if x in by_x else GAP for x in xs]
            rows.append((panel.query, panel.note, line.series.label, *cells))
    headers = ("query", "at", "system", *(f"{x:g} ms: p50 / p99, ms" for x in xs))
    return Table(headers, tuple(rows))


def _pair(point: report_runs.Point) -> str:
    text = f"{_ms(point.p50)} / {_ms(point.p99)}"
    text += f" ({point.repeats} runs)" if point.repeats > 1 else ""
    return text if point.is_kept_up else f"{text}, did not keep up"


def _curves(runs: Sequence[Run]) -> Section:
    panels = report_runs.curve_panels(runs)
    rows = []
    for run in sorted(report_runs.usual_runs(runs), key=_run_order):
        if run.latency_ms:
            names = ("p50", "p90", "p99", "p99.9", "max")
            rows.append(
                (run.query, run.series.label, f"{run.rate:,.0f}", run.latency_from,
                 *(_ms(run.latency_ms.get(name)) for name in names),
                 _ms(run.emitted_ms.get("p50")), _ms(run.emitted_ms.get("p99")), f"{run.rows:,}")
            )  # fmt: skip
    return Section(
        "distribution",
        "How are latencies distributed?",
        "The share of result rows that were visible within so many milliseconds, at the rate that "
        "most systems were measured at. The table also has “emitted”: until the row was appended, "
        "committed or not, which is what the Impeller paper counts.",
        charts.draw_curves(panels) if panels else None,
        Table(_CURVE_HEADERS, tuple(rows)),
        () if panels or not runs else ("no run has percentiles",),
        "penstock nexmark run q5 --rate 10000 --seconds 60",
    )


def _ratios(runs: Sequence[Run], refused: Sequence[str]) -> Section:
    ratios = report_runs.ratios(runs)
    rows = []
    for ratio in ratios:
        bar = report_runs.RATIO_BARS.get(ratio.peer)
        verdict = GAP if bar is None else f"{bar:g}× " + ("met" if ratio.times >= bar else "MISSED")
        rows.append(
            (ratio.query, ratio.peer.label, f"{ratio.rate:,.0f}", _ms(ratio.ours_p50),
             _ms(ratio.peer_p50), f"{ratio.times:.3g}×", verdict)
        )  # fmt: skip
    missing = report_runs.missing_ratios(runs, ratios)
    if runs and not any(run.series.system != "penstock" for run in runs):
        missing = ["no peer was run"]
    return Section(
        "ratios",
        "How many times lower is our median than that of the peers?",
        "At the highest rate that both keep up with, on the same generated events and the same "
        "machine. Below 1 the peer is faster.",
        charts.draw_ratios(ratios) if ratios else None,
        Table(
            ("query", "peer", "events/s", "Penstock p50, ms", "peer p50, ms", "times", "bar"),
            tuple(rows),
        ),
        (*missing, *refused),
        "penstock nexmark compare",
    )


def _saturation(runs: Sequence[Run]) -> Section:
    rates_held = report_runs.saturation(runs)
    rows = []
    for ratio in rates_held:
        limit = f"{report_runs.limit_ms(ratio.query):g} ms"
        held = GAP if ratio.held is None else f"{ratio.held:,.0f}"
        failed = "none tried above" if ratio.failed is None else f"{ratio.failed:,.0f}"
        p99 = (_ms(ratio.held_p99), failed, _ms(ratio.failed_p99))
        rows.append((ratio.query, ratio.series.label, limit, held, *p99))
    measured = {(ratio.query, ratio.series) for ratio in rates_held}
    once = {(run.query, run.series) for run in report_runs.usual_runs(runs)} - measured
    return Section(
        "saturation",
        "Which rate does each system hold?",
        "Held: the generator kept its schedule, the lag did not grow, and p99 stayed within the "
        "limit (60 ms for queries without state, 1 s for the others). The true limit lies between "
        "the two rates; where none was tried above, it may be higher.",
        charts.draw_saturation(rates_held) if rates_held else None,
        Table(_HELD_HEADERS, tuple(rows)),
        tuple(
            f"{query}, {series.label}: measured at one rate only"
            for query, series in sorted(once, key=lambda o: (report_runs.query_order(o[0]), o[1]))
        ),
        "penstock nexmark saturate q5",
    )


def _recovery(report: dict[str, Any] | None) -> Section:
    headers, rows = make_table(report) if report else ([], [])
    return Section(
        "recovery",
        "How soon does q8 go on after a failure, with checkpoints and without?",
        "As in Table 4 of the Impeller paper. Both are measured on the same log and end with "
        "equally many rows of state. The time is from the claims of all tasks until each has its "
        "state and reads on.",
        None,
        Table(tuple(headers), tuple(tuple(row) for row in rows)),
        () if report else ("not run",),
        "penstock nexmark recovery --json",
    )


def _run_order(run: Run) -> tuple[Any, ...]:
    return (report_runs.query_order(run.query), run.series.label, run.rate)


def _ms(value: float | None) -> str:
    """Three digits are what a run can tell."""
    if value is None:
        return GAP
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# -- the page


def make_page(loaded: Loaded, sections: Iterable[Section]) -> str:
    body = [
        "<h1>Penstock: NEXMark</h1>",
        _head(loaded),
        _METHOD,
        *(_section(section) for section in sections),
        "<section><h2>All runs</h2>",
        _table(_all_runs(loaded.runs)),
        "</section>",
    ]
    if loaded.skipped:
        items = "".join(f"<li>{escape(line)}</li>" for line in loaded.skipped)
        body.append(f"<section><h2>Files passed over</h2><ul>{items}</ul></section>")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Penstock: NEXMark</title><style>{_css()}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _head(loaded: Loaded) -> str:
    """What was run, on what, and what a reader must know before believing it."""
    objects = [run.raw for run in loaded.runs] + ([loaded.recovery] if loaded.recovery else [])
    commits = sorted({str(figures.get("commit", "unknown")) for figures in objects})
    machines = sorted({_machine(figures.get("machine")) for figures in objects})
    facts = [
        ("runs", f"{len(loaded.runs)}"),
        ("commit", ", ".join(commits)),
        ("machine class", "; ".join(machines)),
        ("oracle", _count(run.oracle for run in loaded.runs)),
    ]
    warnings = []
    if len(commits) > 1:
        warnings.append("The results come from several commits: compare with care.")
    if len(machines) > 1:
        warnings.append("The results come from several classes of machines: do not compare them.")
    wrong = [run for run in loaded.runs if run.oracle == "different"]
    warnings += [f"WRONG RESULT: {_name(run)}: the oracle's result is different." for run in wrong]
    late = [run for run in loaded.runs if not run.is_schedule_held]
    for run in late:
        note = (run.raw.get("schedule") or {}).get("note") or "it was late"
        warnings.append(f"{_name(run)}: the generator did not hold its schedule ({note}).")
    few = [run for run in loaded.runs if run.latency_ms and run.rows < _ROWS_MIN]
    warnings += [f"{_name(run)}: {run.rows} rows only, its p99 says little." for run in few]
    lines = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts)
    said = "".join(f'<p class="warn">{escape(line)}</p>' for line in warnings)
    return f"<dl>{lines}</dl>{said}"


def _name(run: Run) -> str:
    return f"{run.query}, {run.series.label}, {run.rate:,.0f} events/s"


def _machine(machine: Any) -> str:
    if not isinstance(machine, dict):
        return "unknown"
    return (
        f"{machine.get('cores')} cores, {machine.get('memory_gib')} GiB, {machine.get('arch')}, "
        f"{machine.get('system')}, Python {machine.get('python')}"
    )


def _count(values: Iterable[str]) -> str:
    return ", ".join(f"{n} {value}" for value, n in sorted(Counter(values).items())) or GAP


_METHOD: Final = """<section><h2>How latency is counted</h2>
<p>Each event has a scheduled time, fixed before the run: event <i>n</i> is due at start
+ <i>n</i> / rate, and carries that time. Generators append on schedule, whatever the log or the
query does, so a system that falls behind shows it as latency (no coordinated omission). The latency
of a result row runs from its newest event's scheduled time, or from the end of its window if it can
only appear then, until a reader of the result has the row, committed: “visible”. Warm-up is left
out. What was not measured is a gap (–), never a zero. Where a run was repeated, the median of the
runs is shown.</p>
</section>"""


def _section(section: Section) -> str:
    parts = [
        f'<section id="{escape(section.name)}"><h2>{escape(section.question)}</h2>',
        f"<p>{escape(section.text)}</p>",
    ]
    if section.picture is not None:
        label = escape(f"{section.question} The figures are in the table below.")
        svg = section.picture.svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
        parts.append(f'<figure class="chart">{svg}</figure>')
    if section.table.rows:
        parts.append(_table(section.table))
    else:
        parts.append('<p class="warn">There are no results for this yet.</p>')
    if section.missing:
        items = "".join(f"<li>{escape(line)}</li>" for line in section.missing)
        parts.append(f'<p class="gaps">Missing:</p><ul class="gaps">{items}</ul>')
    parts.append(f"<p>Made with <code>{escape(section.command)}</code></p></section>")
    return "".join(parts)


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in table.headers)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    inner = f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
    return f'<div class="wide"><table>{inner}</table></div>'


def _all_runs(runs: Sequence[Run]) -> Table:
    headers = (
        "query", "system", "events/s", "commit ms", "p50, ms", "p99, ms", "throughput, events/s",
        "lag max, events", "held", "CPU s / million", "memory, MiB", "markers/s",
        "bytes / event", "oracle",
    )  # fmt: skip
    rows = []
    for run in sorted(runs, key=_run_order):
        raw = run.raw
        memory = [float(mib) for mib in (raw.get("memory_mib") or {}).values() if mib is not None]
        rows.append(
            (run.query, run.series.label, f"{run.rate:,.0f}", _number(run.commit_interval_ms),
             _ms(run.latency_ms.get("p50")), _ms(run.latency_ms.get("p99")),
             _number(raw.get("throughput_events_per_s")),
             _number((raw.get("lag_events") or {}).get("max")), "yes" if run.is_sustained else "no",
             _number((raw.get("cpu_s_per_million_events") or {}).get("total")),
             _number(sum(memory) if memory else None), _number(raw.get("markers_per_s")),
             _number(raw.get("bytes_appended_per_event")), run.oracle)
        )  # fmt: skip
    return Table(headers, tuple(rows))


def _number(value: Any) -> str:
    if not isinstance(value, int | float):
        return GAP
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _css() -> str:
    pairs = charts.css_variables().items()
    light, dark = ("".join(f"{name}:{pair[n]};" for name, pair in pairs) for n in (0, 1))
    return (
        f":root{{color-scheme:light dark;{light}}}"
        f"@media(prefers-color-scheme:dark){{:root{{{dark}}}}}{_RULES}"
    )


_RULES: Final = """
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:1.7rem;margin:0 0 .5rem}h2{font-size:1.2rem;margin:2.5rem 0 .3rem}
p{max-width:75ch;margin:.4rem 0}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}
dt{color:var(--muted)}dd{margin:0}
figure{margin:1rem 0}.chart{overflow-x:auto}.chart svg{display:block;min-width:720px;max-width:100%}
.wide{overflow-x:auto;max-height:32rem;overflow-y:auto;border:1px solid var(--grid);margin:.6rem 0}
table{border-collapse:collapse;font-size:.82rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--grid)}
th{position:sticky;top:0;background:var(--paper);color:var(--muted);font-weight:600}
th:first-child,td:first-child,th:nth-child(2),td:nth-child(2){text-align:left}
.warn{border-left:4px solid var(--s-structured-streaming-best);padding-left:.7rem;font-weight:600}
.gaps{color:var(--muted);font-size:.85rem;margin-bottom:0}code{font-size:.9em}
"""
