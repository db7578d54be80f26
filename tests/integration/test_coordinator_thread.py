"""The thread of a query's coordinator, against a real log server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded_server import stop_server
from engine_samples import SOURCE, count_by, scan, spec_of

import penstock
from penstock.errors import Unknown
from penstock.runtime.coordinator import Coordinator
from penstock.runtime.coordinator_core import Claim, CoordinatorCore, Effect
from penstock.runtime.coordinator_thread import CoordinatorThread
from penstock.runtime.worker import LogAddress


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[CoordinatorThread]:
    """Of a query that has no workers."""
    with penstock.connect(tmp_path) as log:
        log.create_stream("in", SOURCE)
        address = LogAddress(str(tmp_path))
        spec = spec_of(count_by(scan(), 0))
        yield CoordinatorThread(address, spec, id="id", workers=1, trims=False)
    stop_server(tmp_path)


def test_a_driver_that_stops_a_query_as_it_ends_is_not_sent_to_a_closed_loop(
    coordinator: CoordinatorThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, errors = asyncio.Runner.close, list[Exception]()
    tried = threading.Event()

    def close_and_stop(runner: asyncio.Runner) -> None:
        is_ours = runner._loop is coordinator._loop  # type: ignore[attr-defined]
        close(runner)
        if not is_ours:
            return
        try:
            coordinator.finish()
            coordinator.fail("too late")
            coordinator.job_lost(0)
        except Exception as error:
            errors.append(error)
        tried.set()

    monkeypatch.setattr(asyncio.Runner, "close", close_and_stop)

    coordinator.finish()
    assert coordinator.ended.wait(30) and tried.wait(30)

    assert errors == [] and coordinator.error is None


def test_a_query_whose_lost_tasks_cannot_be_claimed_ends_with_the_reason(
    coordinator: CoordinatorThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for what the word of a lost worker brings about: it must not fail unheard."""

    def lost(core: CoordinatorCore, slot: int, attempts: int | None) -> list[Effect]:
        return [Claim(tuple(coordinator._coordinator.spec.task_ids))]

    async def fail(run: Coordinator, tasks: object) -> None:
        raise Unknown("the claim may have taken effect")

    monkeypatch.setattr(CoordinatorCore, "on_job_lost", lost)
    monkeypatch.setattr(Coordinator, "_claim", fail)

    coordinator.job_lost(0)

    assert coordinator.ended.wait(30)
    assert isinstance(coordinator.error, Unknown)
