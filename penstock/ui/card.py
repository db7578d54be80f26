"""A query as a small card of HTML, for notebooks. Pure.

Law: everything that comes from the log is escaped, and the card runs and loads nothing.
"""

from __future__ import annotations

from html import escape
from typing import Any, Final

from penstock.ui.view.facts import Facts, shown
from penstock.ui.view.health import find_trouble
from penstock.ui.view.history import Counters
from penstock.ui.view.queries import show_line

_COLOURS: Final = {"good": "#23875f", "warn": "#b07908", "bad": "#c8382e", "idle": "#8b949c"}
_SHOWN: Final = ("rate", "lag", "p50", "p99", "busiest task", "workers")
_CELL: Final = '<td style="text-align:left;padding:2px 18px 2px 0;border:0">'


def query_card(query: Facts, message: str, url: str | None) -> str:
    """`query`: as `penstock query status --json` has it; `url`: where the page shows it."""
    line: dict[str, Any] = show_line(query, {})
    trouble = find_trouble({"queries": [query]}, Counters())
    level = trouble[0].level if trouble and line["level"] == "good" else line["level"]
    said = f"{trouble[0].what} {trouble[0].do}" if trouble else message
    link = "" if url is None else f' · <a href="{escape(url)}" target="_blank">page</a>'
    heads = "".join(f"{_CELL}<small>{escape(name)}</small></td>" for name in _SHOWN)
    cells = "".join(f"{_CELL}{escape(line['figures'][name][0])}</td>" for name in _SHOWN)
    return (
        f'<div style="border-left:4px solid {_COLOURS.get(level, _COLOURS["bad"])};'
        'padding:6px 14px;font-family:system-ui,sans-serif;line-height:1.45">'
        f"<b>{escape(line['name'])}</b> <small>{escape(line['state'])}, to "
        f"{escape(line['to'][0])}{link}</small>"
        f"<div>{escape(shown(said))}</div>"
        f'<table style="border:0;font-variant-numeric:tabular-nums"><tr style="opacity:.7">{heads}'
        f"</tr><tr>{cells}</tr></table></div>"
    )
