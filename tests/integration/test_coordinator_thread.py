"""The thread of a query's coordinator, against a real log server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from embedded_server import stop_server
from engine_samples import SOURCE, count_by, scan, spec_of
from harness.waiting import wait_until

import penstock
from penstock.cli.query_asks import ask
from penstock.errors import BadRequest, GuardFailed, Unknown
from penstock.ids import Lsn
from penstock.log.records import Guard, SetKey
from penstock.protocol.markers import Marker
from penstock.protocol.names import layout_key, query_key
from penstock.runtime.control import Balance, Message, Rescale
from penstock.runtime.coordinator import Coordinator
from penstock.runtime.coordinator_core import Claim, CoordinatorCore, Effect
from penstock.runtime.coordinator_thread import CoordinatorThread
from penstock.runtime.registry import RegisteredQuery, encode_query
from penstock.runtime.succession import Last, shares_for
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


def test_a_query_whose_tasks_cannot_leave_an_executor_that_goes_ends_with_the_reason(
    coordinator: CoordinatorThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they count as being claimed for ever, and nobody gets them when the executor is gone."""

    def vacate(core: CoordinatorCore, slot: int) -> list[Effect]:
        return [Claim(tuple(coordinator._coordinator.spec.task_ids))]

    async def fail(run: Coordinator, tasks: object) -> None:
        raise Unknown("the claim may have taken effect")

    monkeypatch.setattr(CoordinatorCore, "vacate", vacate)
    monkeypatch.setattr(Coordinator, "_claim", fail)

    coordinator.vacate(0)

    assert coordinator.ended.wait(30)
    assert isinstance(coordinator.error, Unknown)


def test_a_query_that_is_removed_while_it_is_rescaled_stays_removed(
    coordinator: CoordinatorThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver was away for so long that nobody took it for running."""
    run = coordinator._coordinator
    (task,) = run.spec.task_ids[-1:]
    run.spec = spec = replace(run.spec, tasks=(0, 1))
    query = RegisteredQuery(
        name="q", id="id", version=1, plan="", mode="update", to="out", starts={"in": 0},
        tasks=[0, 1], created_ms=0, shares_sources=True,
    )  # fmt: skip
    registered = encode_query(query)
    note = Coordinator._note_rescaled

    with penstock.connect(tmp_path) as log:
        log.client.append([], sets=[SetKey(query_key("q"), registered)])

        async def note_and_remove(run: Coordinator) -> object:
            noted = await note(run)
            gone = [SetKey(query_key("q"), None), SetKey(layout_key("q"), None)]
            guards = [Guard(query_key("q"), registered)]
            await asyncio.to_thread(log.client.append, [], guards=guards, sets=gone)
            return noted

        monkeypatch.setattr(Coordinator, "_note_rescaled", note_and_remove)
        last = Marker(task=str(task), instance=1, number=3, position=Lsn(1), inline=0)
        changing = run._change_layout(shares_for(spec, (2, 2)), 2, {task: Last(Lsn(2), last)})
        with pytest.raises(GuardFailed):
            coordinator._submit(changing).result(30)
        assert log.client.get(query_key("q")) is None
        assert log.client.get(layout_key("q")) is None
    assert run.spec is spec
    coordinator.finish()


def test_a_query_that_is_being_stopped_is_not_rescaled(coordinator: CoordinatorThread) -> None:
    asked: list[int] = []
    coordinator.when_rescaled(asked.append)
    coordinator._coordinator.core.is_over = True
    with pytest.raises(BadRequest, match="is being stopped"):
        coordinator.rescale(3).result(30)
    assert asked == [], "no worker is started for it"
    coordinator._coordinator._over.set()


@pytest.mark.parametrize("message", [Rescale(2000), Rescale(-1), Balance()])
def test_what_is_asked_through_the_log_and_refused_is_in_the_next_report(
    coordinator: CoordinatorThread, tmp_path: Path, message: Message
) -> None:
    with penstock.connect(tmp_path) as log:
        asked = ask(log.client, "q", message)
    wait_until(lambda: coordinator.recent and "refused" in coordinator.recent[-1])
    refused = coordinator.recent[-1]["refused"]
    assert refused["lsn"] == asked
    assert ("allowed, or 0" if isinstance(message, Rescale) else "ask again") in refused["why"]
    coordinator.finish()
    assert coordinator.ended.wait(30)


def test_a_suspended_query_says_so_to_whoever_wants_something(
    coordinator: CoordinatorThread,
) -> None:
    coordinator.rescale(0).result(30)
    wait_until(lambda: coordinator._coordinator.core.is_suspended)
    with pytest.raises(BadRequest, match="is suspended: bring it back"):
        coordinator.balance().result(30)
    coordinator.finish()
    assert coordinator.ended.wait(30)
