"""The demo as its users run it: Spark, two kills, and a result that equals batch Spark's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from embedded_server import kill_server, stop_server
from harness.ui_page import browser
from harness.waiting import wait_until

import penstock
from penstock.cli import demo_bids
from penstock.cli.demo_bids import BIDS, LiveBids
from penstock.cli.demo_run import START_SECONDS, Outcome, _goes_on


def test_the_demo_survives_two_kills_and_equals_batch_spark(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock.cli.main", "demo", "--seconds", "5", "--json"]
    done = subprocess.run(
        command,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["ok"] is True
    assert (found["missing"], found["extra"]) == (0, 0)
    assert (found["worker_kills"], found["log_kills"]) == (1, 1)
    assert found["bids"] > 5 * 9_000
    assert found["rows"] > found["windows"] >= 5
    assert 0 < found["latency_ms"]["p50"] <= found["latency_ms"]["max"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("penstock-")] == []


def test_the_demo_opens_its_page_and_keeps_it_open(tmp_path: Path) -> None:
    """A browser is a program that is told an address: here one that writes it down."""
    told = tmp_path / "told"
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" > {told}.new && mv {told}.new {told}\n')
    script.chmod(0o755)
    command = [sys.executable, "-m", "penstock.cli.main", "demo", "--seconds", "5", "--ui"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "BROWSER": str(script)}
    demo = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        wait_until(lambda: told.exists() or demo.poll() is not None, "no page was opened")
        address = told.read_text().strip()
        with browser(tmp_path) as context:
            page = context.new_page()
            page.goto(address)
            page.wait_for_selector("text=bids_per_auction", timeout=120_000)
            page.wait_for_selector(".node.sink >> text=result", timeout=120_000)
            assert "ticket" not in page.url
            # The ticket is used up: who finds it in a history gets nothing.
            other = context.new_page()
            other.goto(address)
            other.wait_for_selector("#token")
            page.wait_for_selector("#queries tr >> text=stopped", timeout=240_000)
            assert demo.stdout is not None
            said: list[str] = []
            while not said or "the page stays until Ctrl-C" not in said[-1]:
                said.append(demo.stdout.readline())
                assert said[-1], "".join(said)
            page.wait_for_selector("#health.good")
        assert demo.poll() is None, "it did not wait"
    finally:
        demo.send_signal(signal.SIGINT)
        rest, _ = demo.communicate(timeout=120)
    assert demo.returncode == 0, rest
    assert any("each equal to batch Spark's" in line for line in said)


@pytest.mark.parametrize(
    ("worker_kills", "log_kills", "elapsed", "goes_on"),
    [(0, 0, 4.0, True), (1, 1, 4.0, True), (1, 1, 6.0, False), (1, 0, 6.0, True)],
)
def test_a_demo_that_stood_still_when_a_kill_was_due_makes_it_later(
    worker_kills: int, log_kills: int, elapsed: float, goes_on: bool
) -> None:
    outcome = Outcome(worker_kills=worker_kills, log_kills=log_kills)
    assert _goes_on(elapsed, 5.0, outcome) is goes_on
    assert not _goes_on(5.0 + START_SECONDS, 5.0, outcome), "it ends whatever happens"


def test_live_bids_that_are_due_at_the_end_are_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However busy the machine was until then: as if it had slept all the while."""
    monkeypatch.setattr(demo_bids, "TICK_SECONDS", 3600.0)
    directory = tmp_path / "data"
    with penstock.connect(directory) as log:
        bids = log.create_stream("bids", BIDS)
        load = LiveBids(bids, 5_000)
        load.start()
        time.sleep(0.1)
        load.stop()
        found = bids.read().num_rows
    stop_server(directory)

    assert found == load.count + 1 and load.count >= 500


def test_live_bids_are_in_the_stream_once_each_through_a_kill_of_the_log(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with penstock.connect(directory) as log:
        bids = log.create_stream("bids", BIDS)
        load = LiveBids(bids, 5_000)
        load.start()
        wait_until(lambda: load.count > 500, "no bids")
        before = load.count
        kill_server(directory)
        wait_until(lambda: load.count > before + 2_000, "no bids after the kill")
        load.stop()

        found, expected = bids.read(), load.rows()
    stop_server(directory)

    assert found.slice(0, expected.num_rows) == expected
    assert found.num_rows == expected.num_rows + 1
    last, closing = (found.column("ts")[place].as_py() for place in (-2, -1))
    assert (closing - last).total_seconds() >= 60
