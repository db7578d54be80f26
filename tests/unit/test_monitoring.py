"""Alert rules, dashboard and the page about them hold together, and promtool takes the rules.

What servers really export is asked of them in tests/integration/test_scraping.py.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from monitoring_files import (
    DASHBOARD,
    PAGE,
    RULES,
    alerts,
    dashboard_queries,
    families_of_page,
    metrics_in,
    rule_queries,
    unknown_metrics,
)

TESTS = Path(__file__).parents[1]
RULE_TESTS = TESTS / "monitoring_rules.test.yml"
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)


def test_every_metric_of_the_rules_is_on_the_page() -> None:
    assert len(rule_queries()) == len(alerts())
    assert unknown_metrics("\n".join(rule_queries()), families_of_page()) == []


def test_every_metric_of_the_dashboard_is_on_the_page() -> None:
    queries = dashboard_queries()
    assert len(queries) > 40
    assert unknown_metrics("\n".join(queries), families_of_page()) == []


@pytest.mark.parametrize(
    "query",
    [
        "penstock_task_busy", "rate(penstock_query_input_rows[5m])", "penstock_query_latency_total",
        "penstock_state_bytes_bucket",
    ],
)  # fmt: skip
def test_a_metric_that_nobody_has_is_seen(query: str) -> None:
    assert unknown_metrics(query, families_of_page())


def test_the_metric_of_a_label_is_no_metric() -> None:
    query = 'penstock_query_state{penstock_query_state="lost"} == 1'
    assert metrics_in(query) == {"penstock_query_state"}


def test_every_alert_is_told_of_on_the_page_and_no_other() -> None:
    told = re.findall(r"^\| `(Penstock\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(told) == sorted(alerts())


def test_the_dashboard_has_its_four_rows_and_panels_that_do_not_overlap() -> None:
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    assert [one["title"] for one in panels if one["type"] == "row"] == [
        "Log", "Queries", "Deliveries", "Cluster",
    ]  # fmt: skip
    ids = [one["id"] for one in panels]
    assert len(ids) == len(set(ids))
    cells = [
        (x, y)
        for one in panels
        for place in [one["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24


@needs_promtool
def test_promtool_takes_the_rules() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    """promtool plays series to the rules; each alert there fires, and is quiet in good times."""
    text = RULE_TESTS.read_text().replace("RULES", str(RULES))
    (tmp_path / "test.yml").write_text(text)
    done = promtool("test", "rules", str(tmp_path / "test.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(re.findall(r'alertname="(\w+)"', text)) == set(alerts()), "each is played"


@needs_promtool
def test_a_rule_that_is_wrong_is_seen(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yml"
    bad.write_text(RULES.read_text().replace("rate(penstock_unauth", "rate((penstock_unauth", 1))
    assert promtool("check", "rules", str(bad)).returncode != 0


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
