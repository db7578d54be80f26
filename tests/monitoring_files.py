"""The files of docs/monitoring, and which metrics they speak of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "monitoring.md"
RULES = DOCS / "monitoring" / "penstock.rules.yml"
DASHBOARD = DOCS / "monitoring" / "grafana-penstock.json"

#: What a sample of a family may be called beyond its name.
_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}


def families_of_page() -> dict[str, str]:
    """Kind, by name of the family: as the tables of the page have them."""
    rows = re.findall(r"^\| `(penstock_\w+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    found = {
        (name.removesuffix("_total") if kind == "counter" else name): kind for name, kind in rows
    }
    assert len(found) == len(rows), "a metric stands there twice"
    return found


def samples_of(families: dict[str, str]) -> set[str]:
    return {
        name + suffix for name, kind in families.items() for suffix in _SUFFIXES.get(kind, ("",))
    }


def metrics_in(expression: str) -> set[str]:
    """Names of metrics in PromQL; names of labels are none."""
    without_labels = re.sub(r"\{[^}]*\}|\b(by|on) \([^)]*\)", "", expression)
    return set(re.findall(r"\bpenstock_\w+", without_labels))


def unknown_metrics(expression: str, families: dict[str, str]) -> list[str]:
    return sorted(metrics_in(expression) - samples_of(families))


def rule_queries() -> list[str]:
    return re.findall(r"^ +expr: (.+)$", RULES.read_text(), re.MULTILINE)


def alerts() -> list[str]:
    return re.findall(r"^ +- alert: (\w+)$", RULES.read_text(), re.MULTILINE)


def dashboard_queries() -> list[str]:
    board: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
