"""The pictures of docs/checkpoints.md, from a report of `penstock bench checkpoints --json`.

    penstock bench checkpoints --json > checkpoints.json
    python -m penstock_bench.checkpoints_charts checkpoints.json docs/figures

Law: what is drawn is in the report; the thesis' own figures are in it, too, and are named so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

#: Of each store: a colour that readers with any eyes tell apart, and a mark.
_LOOKS: Final = {
    "indexed": ("#0068a8", "o"),
    "file per key": ("#d04f00", "v"),
    "redis": ("#00815f", "^"),
    "rocksdb": ("#6f42a6", "s"),
}
#: Typed loosely: which names Matplotlib knows differs between its versions.
STYLE: Final[dict[Any, Any]] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dfe0e3",
    "grid.linewidth": 0.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "penstock",
}
_THESIS: Final[dict[str, Any]] = {"color": "#77777c", "linestyle": ":", "linewidth": 1.2}


def draw_rates(axes: Axes, figures: Mapping[str, Any]) -> None:
    """Durable puts a second, alone and a hundred in a commit."""
    stores = [name for name in _LOOKS if name in figures]
    for place, what in enumerate(("puts/s, one per sync", "puts/s, 100 per commit")):
        for number, name in enumerate(stores):
            at = place * (len(stores) + 1) + number
            rate = figures[name][what]
            axes.bar(at, rate, color=_LOOKS[name][0], label=name if not place else None)
            axes.annotate(f"{rate:,}", (at, rate), ha="center", va="bottom", fontsize=7)
    axes.set_yscale("log")
    middle = (len(stores) - 1) / 2
    axes.set_xticks([middle, middle + len(stores) + 1], ["one per sync", "100 per commit"])
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("durable puts of 1 KiB per second")
    axes.legend(frameon=False, fontsize=8)


def draw_keys(axes: Axes, figures: Mapping[str, Any]) -> None:
    """Commits of 100, by how many keys there are."""
    for name in ("indexed", "file per key"):
        by_keys = figures[f"puts/s by keys, {name}"]
        colour, mark = _LOOKS[name]
        axes.plot(
            list(map(int, by_keys)), list(by_keys.values()), color=colour, marker=mark, label=name
        )
    thesis = figures["thesis"]
    axes.axhline(
        thesis["puts/s with any number of keys, indexed"], label="thesis: indexed, NFS", **_THESIS
    )
    ends = [thesis[f"puts/s with {n}, file per key"] for n in ("1 k keys and fewer", "1 M keys")]
    axes.plot(
        [1_000, 1_000_000], ends, label="thesis: file per key, NFS", **_THESIS | {"marker": "x"}
    )
    _log_both(axes, "keys in the store", "durable puts of 70 bytes per second")


def draw_openings(axes: Axes, figures: Mapping[str, Any]) -> None:
    """After a restart."""
    for name, label, line in (
        ("index made again, ms", "index made again", "-"),
        ("first 100 keys, ms", "first 100 keys (lazy)", "--"),
        ("all keys, ms", "all keys (eager)", "-."),
    ):
        by_keys = figures[name]
        axes.plot(
            list(map(int, by_keys)),
            list(by_keys.values()),
            color=_LOOKS["indexed"][0],
            linestyle=line,
            marker="o",
            label=label,
        )
    axes.plot(
        [1_000_000],
        [figures["thesis"]["index of 1 M entries made again, ms"]],
        label="thesis: index of 1 M entries",
        **_THESIS | {"marker": "x", "linestyle": ""},
    )
    _log_both(axes, "keys in the store", "ms after the store was opened")


def _log_both(axes: Axes, x: str, y: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(frameon=False, fontsize=8)


CHARTS: Final[dict[str, Callable[[Axes, Mapping[str, Any]], None]]] = {
    "checkpoints-rates": draw_rates,
    "checkpoints-keys": draw_keys,
    "checkpoints-openings": draw_openings,
}


def write_charts(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """One SVG per chart, the same bytes for the same report."""
    written = []
    for name, draw in CHARTS.items():
        with mpl.rc_context(STYLE):
            figure = Figure(figsize=(6.4, 3.6), layout="constrained")
            draw(figure.subplots(), report["figures"])
            path = folder / f"{name}.svg"
            figure.savefig(path, format="svg", metadata={"Date": None})
        # Matplotlib leaves spaces at the ends of lines.
        lines = [line.rstrip() for line in path.read_text().splitlines()]
        path.write_text("\n".join(lines) + "\n")
        written.append(path)
    return written


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m penstock_bench.checkpoints_charts REPORT.json FOLDER")
    for path in write_charts(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])):
        print(path)
