"""The charts of the NEXMark report, as PNG for documents and as SVG for the page.

Owns colours, marks and layout; the only module that imports Matplotlib (extra `report`). What is
drawn was chosen in report_runs.py.

Law: a series has one colour and one mark in every chart (PALETTE; safe for colour-blind readers,
and marks differ too). The SVG names its colours by CSS variables, so that the page can be dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from penstock_bench.nexmark.report_runs import (
    RATIO_BARS,
    Curve,
    Held,
    Line,
    Panel,
    Ratio,
    Series,
    limit_ms,
)


@dataclass(frozen=True, slots=True)
class Look:
    light: str
    dark: str
    mark: str


#: Okabe and Ito's hues, darker for text on white, lighter for text on black. Variants of a peer are
#: of one family.
PALETTE: Final = {
    Series("penstock", "marker"): Look("#0068a8", "#5ab4ec", "o"),
    Series("penstock", "transaction"): Look("#b07400", "#f0b43c", "s"),
    Series("penstock", "aligned"): Look("#00815f", "#35c79c", "^"),
    Series("penstock", "unsafe"): Look("#77777c", "#a3a3a9", "D"),
    Series("structured_streaming", "best"): Look("#d04f00", "#ff8b45", "v"),
    Series("structured_streaming", "defaults"): Look("#7c2f00", "#c98a66", "P"),
    Series("flink", "checkpoints_10ms"): Look("#6f42a6", "#c3a0f2", "<"),
    Series("flink", "checkpoints_100ms"): Look("#b0508c", "#e29cc8", "X"),
    Series("flink", "checkpoints_1s"): Look("#8f1f4d", "#f28ab0", ">"),
    Series("flink", "defaults"): Look("#5d4d58", "#bcabb6", "*"),
    Series("kafka_streams", "commit_2ms"): Look("#9a5f00", "#efb65c", "D"),
    Series("kafka_streams", "commit_2ms_flushed"): Look("#74562a", "#cfae7c", "s"),
    Series("kafka_streams", "commit_5ms"): Look("#8a6d00", "#e3c94f", "d"),
    Series("kafka_streams", "commit_5ms_flushed"): Look("#6b5a1e", "#c7b673", "H"),
    Series("kafka_streams", "commit_10ms"): Look("#7a7200", "#d8d24a", "h"),
    Series("kafka_streams", "commit_10ms_flushed"): Look("#5c5830", "#b5b082", "p"),
    Series("kafka_streams", "commit_100ms"): Look("#4f6b00", "#b3d055", "8"),
    Series("kafka_streams", "commit_100ms_flushed"): Look("#435422", "#9fb37a", "p"),
    Series("kafka_streams", "defaults"): Look("#55524a", "#b8b4a8", "h"),
}
#: For what is in no palette: by its name, so that it too keeps its colour.
_OTHERS: Final = (
    Look("#4b4f9e", "#9ea2f0", "h"),
    Look("#5f6b00", "#b9c545", "d"),
    Look("#356e78", "#7fc4cf", "p"),
)
INK: Final = ("#1b1c1e", "#e9eaec")
MUTED: Final = ("#5f6166", "#a7aab0")
GRID: Final = ("#dfe0e3", "#3a3d42")
PAPER: Final = ("#fefefe", "#17191c")

#: Typed loosely: which names Matplotlib knows differs between its versions.
_STYLE: Final[dict[Any, Any]] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": INK[0],
    "axes.labelcolor": MUTED[0],
    "axes.edgecolor": GRID[0],
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID[0],
    "grid.linewidth": 0.6,
    "xtick.color": MUTED[0],
    "ytick.color": MUTED[0],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "svg.fonttype": "none",
    "svg.hashsalt": "penstock",
}
_WIDTH_INCH: Final = 10.5
_PANEL_INCH: Final = 2.75
_DPI: Final = 130
#: Of a log axis: it has two numbers on it then, and noise does not look like a finding.
_SPAN_MIN: Final = 8.0


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart in both forms."""

    name: str
    png: bytes
    svg: str


def look_of(series: Series) -> Look:
    colour = PALETTE.get(series)
    return colour or _OTHERS[sum("".join(series).encode()) % len(_OTHERS)]


def css_name(series: Series) -> str:
    return "--s-" + re.sub(r"[^a-z0-9]+", "-", "-".join(series).lower()).strip("-")


# -- the charts


def draw_rates(panels: Sequence[Panel]) -> Picture:
    return draw_lines("latency-rate", panels, "input rate, events/s", _short)


def draw_intervals(panels: Sequence[Panel]) -> Picture:
    return draw_lines("latency-commit-interval", panels, "commit interval, ms", "{:g}".format)


def draw_lines(
    name: str, panels: Sequence[Panel], x_title: str, x_form: Callable[[float], str]
) -> Picture:
    """Latency against rate or commit interval, a panel per query."""
    with mpl.rc_context(_STYLE):
        figure, all_axes = _grid(len(panels))
        for axes, panel in zip(all_axes, panels, strict=True):
            if not panel.lines:
                _say_empty(axes, panel)
                continue
            for line in panel.lines:
                _draw_line(axes, line)
            axes.set_xscale("log")
            _log_axis(axes, "y", [y for line in panel.lines for p in line.points for y in p[1:3]])
            _ticks(axes, sorted({p.x for line in panel.lines for p in line.points}), x_form)
            _titles(axes, panel, x_title, "latency, ms")
            _limit(axes, panel.query)
            ends = [(line.series, line.points[-1].x, line.points[-1].p50) for line in panel.lines]
            _label_ends(axes, ends)
        _key(figure, [("-", "p50"), ("--", "p99")], "hollow: did not keep up")
        return _finish(name, figure)


def _draw_line(axes: Axes, line: Line) -> None:
    look = look_of(line.series)
    xs = [point.x for point in line.points]
    axes.plot(xs, [p.p50 for p in line.points], color=look.light, linewidth=1.8, zorder=3)
    axes.plot(xs, [p.p99 for p in line.points], color=look.light, linewidth=1.2, linestyle="--")
    for point in line.points:
        fill = look.light if point.is_kept_up else "none"
        for y, size in ((point.p50, 5.0), (point.p99, 3.5)):
            axes.plot(
                [point.x], [y], marker=look.mark, markersize=size, color=look.light,
                markerfacecolor=fill, markeredgecolor=look.light, zorder=4,
            )  # fmt: skip


def draw_curves(panels: Sequence[Panel]) -> Picture:
    """How latencies are distributed, a panel per query."""
    with mpl.rc_context(_STYLE):
        figure, all_axes = _grid(len(panels))
        for axes, panel in zip(all_axes, panels, strict=True):
            for curve in panel.curves:
                _draw_curve(axes, curve)
            _log_axis(axes, "x", [ms for curve in panel.curves for _, ms in curve.steps])
            axes.set_ylim(0, 102)
            axes.yaxis.set_major_locator(FixedLocator([0, 25, 50, 75, 100]))
            _titles(axes, panel, "latency, ms", "rows up to it, %")
            _label_curves(axes, panel.curves)
        return _finish("latency-cdf", figure)


def _draw_curve(axes: Axes, curve: Curve) -> None:
    percents, ms = zip(*curve.steps, strict=True)
    look = look_of(curve.series)
    # A log axis has no zero: less than a hundredth of a millisecond is drawn as that.
    axes.plot([max(x, 0.01) for x in ms], percents, color=look.light, linewidth=1.6)
    axes.plot([max(ms[-1], 0.01)], [percents[-1]], color=look.light, marker=look.mark, markersize=5)


def draw_ratios(ratios: Sequence[Ratio]) -> Picture:
    """Medians of the peers over ours; the line at 1 is where both are equal."""
    queries = list(dict.fromkeys(entry.query for entry in ratios))
    peers = list(dict.fromkeys(ratio.peer for ratio in ratios))
    step = 1 / (len(peers) + 0.7)
    with mpl.rc_context(_STYLE):
        figure, axes = _rows(queries, 0.27 / step)
        _log_axis(axes, "x", [1.0, *(ratio.times for ratio in ratios), *RATIO_BARS.values()])
        for series, bar in RATIO_BARS.items():
            if series in peers:
                axes.axvline(bar, color=look_of(Series(*series)).light, linestyle=":", linewidth=1)
        by_place = {(ratio.query, ratio.peer): ratio for ratio in ratios}
        for row, query in enumerate(queries):
            for n, peer in enumerate(peers):
                y = row + (n + 0.5) * step
                _draw_ratio(axes, by_place.get((query, peer)), peer, y, 0.85 * step)
        axes.axvline(1, color=INK[0], linewidth=1)
        axes.xaxis.set_major_locator(FixedLocator(_RATIO_TICKS))
        bars = ", ".join(f"{bar:g}× for {Series(*peer).label}" for peer, bar in RATIO_BARS.items())
        axes.set_xlabel(f"p50 of the peer over p50 of Penstock, times (dotted: the bar, {bars})")
        _legend(axes, peers, "s")
        return _finish("p50-ratios", figure)


_RATIO_TICKS: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)


def _draw_ratio(axes: Axes, ratio: Ratio | None, peer: Series, y: float, height: float) -> None:
    colour = look_of(peer).light if ratio else MUTED[0]
    if ratio:
        axes.barh(y, ratio.times - 1, height, left=1, color=colour)
        text = f"{ratio.times:.3g}×" + (" (Penstock is slower)" if ratio.times < 1 else "")
    else:
        text = f"{peer.label}: no figure"
    axes.annotate(
        text, (max(ratio.times if ratio else 1, 1), y), (5, 0), textcoords="offset points",
        va="center", color=colour, bbox={"facecolor": PAPER[0], "edgecolor": "none", "pad": 1.0},
    )  # fmt: skip


def draw_saturation(rates_held: Sequence[Held]) -> Picture:
    """The highest rate held; a hollow mark is the lowest rate above it that was not."""
    queries = list(dict.fromkeys(held.query for held in rates_held))
    series = list(dict.fromkeys(held.series for held in rates_held))
    step = 1 / (len(series) + 0.8)
    with mpl.rc_context(_STYLE):
        figure, axes = _rows(queries, 0.24 / step)
        for held in rates_held:
            y = queries.index(held.query) + (series.index(held.series) + 0.5) * step
            _draw_held(axes, held, y)
        rates = [rate for held in rates_held for rate in (held.held, held.failed) if rate]
        # Names stand left of the marks: the smallest needs room there.
        _log_axis(axes, "x", [min(rates) / 1.5, *rates], _short)
        for n in range(1, len(queries)):
            axes.axhline(n - 0.05, color=GRID[0], linewidth=0.6)
        axes.set_xlabel("input rate, events/s (filled: held; hollow: lowest rate not held)")
        _legend(axes, series, None)
        return _finish("saturation", figure)


def _draw_held(axes: Axes, held: Held, y: float) -> None:
    look = look_of(held.series)
    ends = [rate for rate in (held.held, held.failed) if rate]
    axes.plot(ends, [y] * len(ends), color=look.light, linewidth=1, linestyle=":")
    for rate, fill in ((held.held, look.light), (held.failed, "none")):
        if rate:
            axes.plot(
                [rate], [y], marker=look.mark, markersize=6, linestyle="none", color=look.light,
                markerfacecolor=fill,
            )  # fmt: skip
    is_open = held.held is None or held.failed is None
    text = f"{held.held:,.0f}" if held.held else "none held"
    text += ", highest tried" if held.held and not held.failed else ""
    axes.annotate(
        text, (ends[0], y), (8 if is_open else -8, 0), textcoords="offset points", va="center",
        ha="left" if is_open else "right", color=look.light,
    )  # fmt: skip


# -- layout


def _grid(count: int) -> tuple[Figure, list[Axes]]:
    """Two panels side by side, with room on the right of each for its labels."""
    columns = min(2, count)
    rows = -(-count // columns)
    height = _PANEL_INCH * rows + 0.45
    figure = Figure(figsize=(_WIDTH_INCH, height))
    margin = 0.45 / height
    axes = []
    for n in range(count):
        row, column = divmod(n, columns)
        cell = (1 - margin) / rows
        bottom = 1 - margin - (row + 1) * cell + 0.55 / height
        left = 0.07 + column / columns
        axes.append(figure.add_axes((left, bottom, 1 / columns - 0.225, cell - 0.95 / height)))
    return figure, axes


def _rows(queries: Sequence[str], row_inch: float) -> tuple[Figure, Axes]:
    """One chart with a row per query, the first at the top."""
    height = 0.95 + row_inch * len(queries)
    figure = Figure(figsize=(_WIDTH_INCH, height))
    axes = figure.add_axes((0.09, 0.55 / height, 0.86, 1 - 0.95 / height))
    axes.set_yticks(
        [n + 0.45 for n in range(len(queries))],
        [query.replace(" from ", "\nfrom ").replace(", ", ",\n") for query in queries],
    )
    axes.set_ylim(len(queries), -0.1)
    axes.grid(axis="y", visible=False)
    return figure, axes


def _say_empty(axes: Axes, panel: Panel) -> None:
    """A query that was run and gave nothing to draw."""
    axes.set_axis_off()
    axes.set_title(panel.query, pad=6)
    axes.text(0, 0.9, "no result rows were measured", color=MUTED[0], transform=axes.transAxes)


def _titles(axes: Axes, panel: Panel, x_title: str, y_title: str) -> None:
    axes.set_title(f"{panel.query}  {panel.note}".strip(), pad=6)
    axes.set_xlabel(x_title)
    axes.set_ylabel(y_title)


def _log_axis(
    axes: Axes, which: str, values: Iterable[float], form: Callable[[float], str] | None = None
) -> None:
    """A log scale that shows all values and has at least two numbers on it."""
    positive = [max(value, 0.01) for value in values] or [1.0, 10.0]
    low, high = min(positive) / 1.35, max(positive) * 1.6
    if high / low < _SPAN_MIN:
        middle = (low * high) ** 0.5
        low, high = middle / _SPAN_MIN**0.5, middle * _SPAN_MIN**0.5
    axes.set(**{f"{which}scale": "log", f"{which}lim": (low, high)})
    axis = axes.xaxis if which == "x" else axes.yaxis
    steps = (1.0,) if high / low > 100 else (1.0, 3.0) if high / low > 30 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=steps))
    write = form or "{:,g}".format
    axis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))
    axis.set_minor_locator(NullLocator())


def _ticks(axes: Axes, xs: Sequence[float], form: Callable[[float], str]) -> None:
    """At what was measured, the last always; not where two numbers would touch."""
    apart = (xs[-1] / xs[0]) ** 0.13
    shown = [xs[-1]]
    for x in reversed(xs[:-1]):
        if shown[-1] / x >= apart:
            shown.append(x)
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: form(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(xs[0] / 1.12, xs[-1] * 1.12)


def _limit(axes: Axes, query: str) -> None:
    """The p99 up to which a rate counts as held, if the panel reaches it."""
    low, high = axes.get_ylim()
    limit = limit_ms(query)
    if low < limit < high:
        axes.axhline(limit, color=MUTED[0], linewidth=0.8, linestyle=":", zorder=1)
        axes.annotate(
            "p99 limit", (0.99, limit), (0, 2), xycoords=("axes fraction", "data"), ha="right",
            textcoords="offset points", color=MUTED[0], fontsize=7,
        )  # fmt: skip


def _label_ends(axes: Axes, ends: Sequence[tuple[Series, float, float]]) -> None:
    """The name of each line beside its end, moved apart where they would overlap."""
    gap = 0.105
    labels = []
    for series, x, y in ends:
        place = axes.transAxes.inverted().transform(axes.transData.transform((x, max(y, 0.01))))
        labels.append((float(place[1]), float(place[0]), series))
    labels.sort(key=lambda label: (label[0], -label[1]))
    placed: list[float] = []
    for want, _, _ in labels:
        placed.append(max(want, placed[-1] + gap) if placed else max(want, 0.03))
    over = max(0.0, placed[-1] - 0.97) if placed else 0.0
    placed = [y - over for y in placed]
    for (y, x, series), shown_y in zip(labels, placed, strict=True):
        colour = look_of(series).light
        axes.plot(
            [x, 1.02], [y, shown_y], transform=axes.transAxes, color=colour, linewidth=0.6,
            alpha=0.55, clip_on=False,
        )  # fmt: skip
        _name(axes, 1.03, shown_y, series)


def _label_curves(axes: Axes, curves: Sequence[Curve]) -> None:
    """Names from the fastest down: all curves end at 100 %, so lines to them would cross."""
    order = sorted(curves, key=lambda curve: _median(curve.steps))
    for n, curve in enumerate(order):
        look, y = look_of(curve.series), 0.95 - 0.115 * n
        axes.plot(
            [1.04], [y], transform=axes.transAxes, marker=look.mark, color=look.light, markersize=5,
            clip_on=False, linestyle="none",
        )  # fmt: skip
        _name(axes, 1.065, y, curve.series)


def _name(axes: Axes, x: float, y: float, series: Series) -> None:
    place, colour = axes.transAxes, look_of(series).light
    axes.text(x, y, series.label, transform=place, va="center", color=colour, fontsize=8)


def _median(steps: Sequence[tuple[float, float]]) -> float:
    return next((ms for percent, ms in steps if percent >= 50), steps[-1][1])


def _key(figure: Figure, styles: Sequence[tuple[Any, str]], note: str) -> None:
    handles = [Line2D([], [], color=INK[0], linestyle=s, label=text) for s, text in styles]
    handles.append(
        Line2D([], [], color=INK[0], marker="o", markerfacecolor="none", linestyle="", label=note)
    )
    figure.legend(
        handles=handles, loc="upper left", ncols=3, frameon=False, bbox_to_anchor=(0.05, 1.0),
        borderaxespad=0.2, handlelength=2.6,
    )  # fmt: skip


def _legend(axes: Axes, series: Sequence[Series], mark: str | None) -> None:
    handles = [
        Line2D([], [], color=look_of(own).light, marker=mark or look_of(own).mark, linestyle="",
               markersize=7, label=own.label)
        for own in series
    ]  # fmt: skip
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, frameon=False,
        handletextpad=0.3, borderaxespad=0.2,
    )  # fmt: skip


def _short(rate: float) -> str:
    """10k, 2.5k, 1M."""
    if rate >= 1e6:
        return f"{rate / 1e6:g}M"
    return f"{rate / 1e3:g}k" if rate >= 1e3 else f"{rate:g}"


# -- both forms


def _finish(name: str, figure: Figure) -> Picture:
    picture, text = io.BytesIO(), io.BytesIO()
    figure.savefig(picture, format="png", dpi=_DPI, facecolor=PAPER[0])
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue().decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r'\1 width="100%"', svg)
    # Names within the page must not meet those of other charts.
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    for variable, (light, _) in css_variables().items():
        svg = svg.replace(light, f"var({variable})")
    return Picture(name, picture.getvalue(), svg)


def css_variables() -> dict[str, tuple[str, str]]:
    """The variables of the page, each with its colour in a light page and in a dark one."""
    looks = {css_name(series): look for series, look in PALETTE.items()}
    looks |= {f"--s-other-{n}": look for n, look in enumerate(_OTHERS)}
    plain = {"--ink": INK, "--muted": MUTED, "--grid": GRID, "--paper": PAPER}
    return plain | {name: (look.light, look.dark) for name, look in looks.items()}
