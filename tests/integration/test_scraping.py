"""What servers export is what docs/monitoring.md says, and what a Prometheus finds of them."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.ports import free_ports
from harness.scraped import Scraped, everything_at_work
from harness.waiting import wait_until
from monitoring_files import RULES, dashboard_queries, families_of_page
from openmetrics_rules import check_openmetrics

#: Told only of queries with replicas: tests/unit/log/test_query_metrics.py has one.
SELDOM = {"penstock_task_standbys_ready", "penstock_task_step_seconds"}


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Scraped]]:
    with everything_at_work(tmp_path_factory.mktemp("scraped")) as found:
        yield found


def test_the_page_has_all_metrics_of_all_servers_and_no_others(targets: list[Scraped]) -> None:
    exported: dict[str, str] = {}
    for target in targets:
        exported |= check_openmetrics(target.text())
    told = families_of_page()
    assert sorted(exported.keys() - told.keys()) == [], "write them down in docs/monitoring.md"
    assert sorted(told.keys() - exported.keys() - SELDOM) == [], "nobody has them"
    assert {name: told[name] for name in exported} == exported


def test_a_proxy_tells_the_queries_of_its_logs(targets: list[Scraped]) -> None:
    [proxy] = [target for target in targets if target.job == "penstock-proxies"]
    line = 'penstock_query_state{query="q",log="main",penstock_query_state="stopped"} 1'
    assert line in proxy.text().splitlines()


def test_metrics_of_queries_need_the_right_to_metrics(targets: list[Scraped]) -> None:
    wrong = Scraped("penstock-log", targets[0].port, "0" * 64)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        wrong.text()


# ---- a real Prometheus


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_a_prometheus_finds_everything_that_the_dashboard_shows(
    targets: list[Scraped], tmp_path: Path
) -> None:
    with prometheus(tmp_path, targets) as ask:
        wait_until(lambda: is_all_up(ask, targets), "not all targets are up")
        lacking = dict.fromkeys(map(filled_in, dashboard_queries()))

        def is_all_there() -> bool:
            for query in list(lacking):
                if ask("query", query=query)["result"]:
                    del lacking[query]
            return not lacking

        # A rate needs scrapes on both sides of a while.
        wait_until(is_all_there, f"no data: {[*lacking]}", seconds=60)
        rules = ask("rules")["groups"]
        found = [(rule["name"], rule["health"]) for group in rules for rule in group["rules"]]
        assert len(found) > 20 and {health for _, health in found} == {"ok"}
        alerts = ask("alerts")["alerts"]
        firing = {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}
        assert firing == set(), "all is well here"


def filled_in(query: str) -> str:
    """As Grafana would ask it."""
    return query.replace("$__rate_interval", "10s").replace("$query", ".*")


def is_all_up(ask: Any, targets: list[Scraped]) -> bool:
    told = ask("targets")["activeTargets"]
    return len(told) == len(targets) and all(one["health"] == "up" for one in told)


@contextmanager
def prometheus(directory: Path, targets: list[Scraped]) -> Iterator[Any]:
    """Scrapes each second; yields what asks its HTTP API."""
    jobs = []
    for number, target in enumerate(targets):
        secret = directory / f"token-{number}"
        secret.write_text(target.token)
        jobs.append(
            {
                "job_name": f"{target.job}-{number}",
                "authorization": {"credentials_file": str(secret)},
                "static_configs": [{"targets": [f"127.0.0.1:{target.port}"]}],
                "relabel_configs": [{"target_label": "job", "replacement": target.job}],
            }
        )
    every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config = {"global": every, "rule_files": [str(RULES)], "scrape_configs": jobs}
    (directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    [port] = free_ports(1)
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(
            [
                "prometheus", f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=output, stderr=output,
        )  # fmt: skip

    def ask(what: str, **parameters: str) -> Any:
        asked = urllib.parse.urlencode(parameters)
        url = f"http://127.0.0.1:{port}/api/v1/{what}?{asked}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())["data"]

    def is_ready() -> bool:
        try:
            return bool(ask("targets"))
        except OSError:
            assert process.poll() is None, (directory / "output").read_text()
            return False

    try:
        wait_until(is_ready, "Prometheus does not start")
        yield ask
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
