"""Generators against a real log: all events, whoever sends them, and though the log may stall.

The clock is real and the machine may be busy: tests say what was sent, and that what was late shows
as late; how late it is on an idle machine is `penstock nexmark generate`'s matter.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from harness.server_process import ServerProcess
from penstock_bench.cli.nexmark_generate import generate
from penstock_bench.measure import now_us
from penstock_bench.nexmark import model
from penstock_bench.nexmark.generator import Generator
from penstock_bench.nexmark.producers import Producers

import penstock
from penstock.errors import DeadlineExceeded, Unavailable

RATE = 4_000.0
COUNT = 4_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "log") as running:
        yield running


def _read(directory: Path) -> pa.Table:
    with penstock.connect(directory) as log:
        return log.stream("events").read()


def test_the_stream_holds_every_event_once_whichever_generator_sent_it(
    server: ServerProcess,
) -> None:
    with Producers(server.data_dir, generators=3) as producers:
        start_us = now_us() + 100_000
        producers.begin(start_us=start_us, rate=RATE, count=COUNT)
        sent = producers.finished(60)
        # A second phase goes on where the first one ended.
        producers.begin(start_us=now_us(), rate=RATE, count=500, first=COUNT, base_ms=77)
        more = producers.finished(60)
        assert producers.sent() == more.events == 500

    found = _read(server.data_dir)
    first = Generator(producers.parameters(rate=RATE, base_ms=start_us // 1_000))
    second = Generator(producers.parameters(rate=RATE, base_ms=77))
    expected = pa.Table.from_batches(
        [first.events(np.arange(COUNT)), second.events(np.arange(COUNT, COUNT + 500))]
    )
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, expected.to_pylist()))
    assert sent.events == COUNT
    assert sent.first_us >= start_us
    # Events of the first and of the last tick are a second apart; none was sent before its time.
    assert sent.acked_us >= start_us + 1_000_000 * (COUNT - 1) / RATE
    assert 0 < sent.delay_ms["p50"] <= sent.delay_ms["p99"] <= sent.delay_ms["max"]
    # Events wait for their tick, 2.5 ms of 5 in the middle: that is part of their delay.
    assert 1 < sent.unsent_ms["p50"] <= sent.delay_ms["p50"]
    assert sent.bytes > 100 * COUNT


def test_a_log_that_stalls_shows_as_lateness_and_no_event_is_left_out(
    server: ServerProcess,
) -> None:
    with Producers(server.data_dir) as producers:
        server.pause()
        producers.begin(start_us=now_us(), rate=RATE, count=COUNT)
        time.sleep(0.6)
        during = producers.sent()
        server.resume()
        sent = producers.finished(60)

    assert during == 0
    assert sent.events == COUNT
    assert _read(server.data_dir).num_rows == COUNT
    assert sent.delay_ms["max"] > 500
    # The schedule went on: events due in the stall waited for the rest of it, not all the same.
    assert sent.delay_ms["p90"] > 100
    assert not sent.is_held
    assert "not held" in sent.note and "until the log acknowledged" in sent.note


def test_what_does_not_end_in_time_or_at_all_says_so(server: ServerProcess) -> None:
    with Producers(server.data_dir) as producers:
        producers.begin(start_us=now_us(), rate=10.0, count=1_000)

        with pytest.raises(DeadlineExceeded, match="generator 0 did not answer"):
            producers.finished(0.05)

        producers._children[0].process.kill()
        with pytest.raises(Unavailable, match="the process of generator 0 ended"):
            producers.finished(10)


def test_the_command_reports_checks_and_figures(server: ServerProcess) -> None:
    options = ["--rate", "2000", "--seconds", "0.5", "--generators", "1", "--json", "--log"]

    result = CliRunner().invoke(generate, [*options, str(server.data_dir)])

    found = json.loads(result.stdout)
    by_name = {check["name"]: check for check in found["checks"]}
    assert by_name["events sent"]["value"] == 1_000 and by_name["events sent"]["ok"]
    assert by_name["events too many"]["ok"]
    assert by_name["scheduled to appended, p99"]["value"] == found["figures"]["delay_ms"]["p99"]
    assert result.exit_code == (0 if found["ok"] else 1)
    assert _read(server.data_dir).column_names == list(model.EVENT.names)


def test_a_state_scale_without_rhino_is_refused() -> None:
    result = CliRunner().invoke(generate, ["--state-scale", "5"])

    assert result.exit_code == 2
    assert "goes with --variant rhino" in result.output
