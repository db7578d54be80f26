"""The picture of docs/standbys.md, from a report of `penstock bench handover --json`.

    penstock bench handover --json > handover.json
    python -m penstock_bench.handover_charts handover.json docs/figures

Law: what is drawn is in the report: the first rescaling of each way, with the largest state.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from penstock_bench.checkpoints_charts import STYLE

NAME: Final = "handover-rescale"
#: Of each way: what it is called, and a colour that readers with any eyes tell apart.
_LOOKS: Final = {
    "standby": ("copies made first", "#0068a8"),
    "store": ("from the store", "#6f42a6"),
    "restart": ("stopped and started again", "#d04f00"),
}
_BAR_MS: Final = 250


def draw_rescale(axes: Axes, ways: Mapping[str, Any], keys: int) -> None:
    """How old the oldest event of a tenth of a second is, from two workers to four."""
    for way, (label, colour) in _LOOKS.items():
        courses = ways.get(way, {}).get("rescale_course", [])
        if courses:
            seconds, ms = zip(*courses[0], strict=True)
            axes.plot(seconds, ms, color=colour, label=label, linewidth=1.2)
    axes.axhline(_BAR_MS, color="#77777c", linestyle=":", linewidth=1.2, label=f"{_BAR_MS} ms")
    axes.axvline(0, color="#77777c", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_xlabel(f"seconds since four workers were asked for, with {keys:,} keys")
    axes.set_ylabel("oldest event of a result, ms")
    axes.legend(frameon=False, fontsize=8)


def write_chart(report: Mapping[str, Any], folder: Path) -> Path:
    """An SVG, the same bytes for the same report."""
    figures: Mapping[str, Any] = report["figures"]
    keys = max(figures, key=int)
    path = folder / f"{NAME}.svg"
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        draw_rescale(figure.subplots(), figures[keys], int(keys))
        figure.savefig(path, format="svg", metadata={"Date": None})
    # Matplotlib leaves spaces at the ends of lines.
    lines = [line.rstrip() for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")
    return path


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m penstock_bench.handover_charts REPORT.json FOLDER")
    sys.stdout.write(
        f"{write_chart(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))}\n"
    )
