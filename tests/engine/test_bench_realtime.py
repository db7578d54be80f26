"""`penstock bench realtime`: a tiny run of both engines, and the peer's sink."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from penstock_bench.nexmark.peers import find_peer
from penstock_bench.realtime import MICRO_BATCH_DEFAULTS, PENSTOCK, RealtimeBenchSizes, run_bench

import penstock
from penstock.errors import GuardFailed
from penstock.log.records import NewEntry, SetKey


def _append_once() -> Callable[..., Any]:
    """The peer's, whose code is no part of the package."""
    path = find_peer("structured_streaming").directory / "log_streams.py"
    spec = importlib.util.spec_from_file_location("log_streams", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their types
    spec.loader.exec_module(module)
    found: Callable[..., Any] = module.append_once
    return found


append_once = _append_once()

PLAN = RealtimeBenchSizes(
    rate=2_000,
    rounds=1,
    warm_seconds=1,
    seconds=1,
    peer_warm_seconds=2,
    peer_seconds=1,
    backlog=5_000,
    backlogs=1,
    queries=("windowed",),
    variants=(PENSTOCK, MICRO_BATCH_DEFAULTS),
)


@pytest.mark.soak  # three JVMs, one after the other
def test_a_tiny_run_measures_both_engines_and_loses_nothing(tmp_path: Path) -> None:
    said: list[str] = []

    report = run_bench(directory=tmp_path, plan=PLAN, say=said.append)

    checks = {check.name: check for check in report.checks}
    assert set(checks) == {"windowed_p50_micro_batch_defaults_over_penstock", "events_off_balance"}
    assert checks["events_off_balance"].ok
    for variant in PLAN.variants:
        figures = report.figures[f"windowed, {variant}"]
        assert figures["rows"] > 500
        assert figures["latency_ms"]["p50"] > 0
        assert figures["saturation_events_per_second"] > 0
    assert said
    assert not list(tmp_path.iterdir()), "the benchmark leaves nothing behind"


def test_a_batch_of_the_peer_that_runs_again_appends_only_what_is_missing(tmp_path: Path) -> None:
    groups = [[NewEntry(b"one", ("t",))], [NewEntry(b"two", ("t",))]]
    with penstock.connect(tmp_path / "log") as log:
        append_once(log.client, "key", 0, groups)
        append_once(log.client, "key", 0, groups)
        append_once(log.client, "key", 1, groups[:1])  # and then the attempt died
        append_once(log.client, "key", 1, groups)
        append_once(log.client, "key", 0, groups)

        found = [bytes(entry.payload) for entry in log.client.read(["t"])]

    assert found == [b"one", b"two", b"one", b"two"]


def test_two_attempts_of_the_peer_at_once_do_not_both_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.connect(tmp_path / "log") as log:
        client = log.client
        known = client.get

        def get_and_lose(key: str) -> object:
            found = known(key)
            client.append([], sets=[SetKey(key, b"[0, 1]")])  # a rival is faster
            return found

        monkeypatch.setattr(client, "get", get_and_lose)
        with pytest.raises(GuardFailed):
            append_once(client, "key", 0, [[NewEntry(b"one", ("t",))]])
        assert client.read(["t"]) == []
