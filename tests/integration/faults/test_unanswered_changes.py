"""Changes that were sent and not answered are unknown; what was never sent says so.

Goal: I22 for every request that changes a log, not only for appends of a producer. Method: a proxy
takes the answers away, or the whole connection, and a client beside it sees what took effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness.async_tests import async_fixture
from harness.served_log import served
from harness.tcp_proxy import Fault, TcpProxy, Way
from harness.waiting import until

from penstock.config import ServerConfig
from penstock.errors import DeadlineExceeded, PenstockError, Retryable, Unavailable, Unknown
from penstock.log.client.client import AsyncLog, Endpoint
from penstock.log.group_format import encode_body
from penstock.log.records import NewEntry
from penstock.log.serving.directory import read_address, read_token
from penstock.wire import messages as m

#: For what is not answered; everything before it has as much time as it needs.
UNANSWERED_SECONDS = 1.0
LOST = Fault(drop_after=0)

Request = Callable[[AsyncLog], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Rig:
    """A client whose bytes pass through a proxy, and one whose bytes do not."""

    proxy: TcpProxy
    log: AsyncLog
    direct: AsyncLog


@async_fixture
async def on(tmp_path: Path) -> AsyncIterator[Rig]:
    async with (
        served(ServerConfig(data_dir=tmp_path)) as beside,
        TcpProxy(lambda: read_address(tmp_path)) as proxy,
        await beside.connect() as direct,
    ):

        async def resolve() -> Endpoint:
            host, port = proxy.address.host, proxy.address.port
            return Endpoint(host, port, read_token(tmp_path / "token"))

        async with await AsyncLog.connect(resolve) as log:
            await direct.append([NewEntry(b"%d" % number) for number in range(5)])
            await direct.claim("q")
            yield Rig(proxy, log, direct)


async def append_as_q(log: AsyncLog) -> object:
    """As a stream's producer sends again what it sent before."""
    body = encode_body(producer="q", instance=1, first_seq=0, entries=[NewEntry(b"", ("t",))])
    return await log.call(m.Append((), 0), m.AppendDone, body)


CHANGES: dict[str, Request] = {
    "trim": lambda log: log.trim(3),
    "claim": lambda log: log.claim("p"),
    "appender": lambda log: log.appender("p"),
    "append": append_as_q,
}


async def fail(request: Awaitable[object]) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        await request
    return caught.value


async def took_effect(log: AsyncLog, change: str) -> bool:
    if change == "trim":
        return (await log.bounds()).trim_point == 3
    if change == "append":
        return bool(await log.read(["t"]))
    return any(entry.producer == "p" for entry in await log.read(start=0))


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_whose_answer_is_lost_is_unknown(on: Rig, change: str) -> None:
    lost = _lose_answers_of_changes(on)

    told = await fail(CHANGES[change](on.log))

    assert type(told) is Unknown, repr(told)
    assert lost.is_set()
    await until(lambda: took_effect(on.direct, change))


@pytest.mark.parametrize("change", ["trim", "claim"])
async def test_a_change_is_unknown_after_the_connection_on_which_it_was_sent(
    on: Rig, change: str
) -> None:
    """No server answers the next attempt: that says nothing of the first one."""
    lost = _lose_answers_of_changes(on)
    asked = asyncio.ensure_future(fail(CHANGES[change](on.log)))
    await lost.wait()
    await until(lambda: took_effect(on.direct, change))
    on.proxy.target = lambda: None
    on.proxy.cut_all()

    told = await asked

    assert type(told) is Unknown, repr(told)


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_is_unknown_when_its_client_is_abandoned(on: Rig, change: str) -> None:
    lost = _lose_answers_of_changes(on)
    asked = asyncio.ensure_future(fail(CHANGES[change](on.log)))
    await lost.wait()

    on.log.abandon()

    assert type(await asked) is Unknown


@pytest.mark.parametrize("change", ["trim", "claim"])
async def test_a_change_that_was_never_sent_did_not_happen(on: Rig, change: str) -> None:
    on.proxy.target = lambda: None
    on.proxy.cut_all()
    await until(lambda: on.log.connection is None)
    on.log.timeout = UNANSWERED_SECONDS

    told = await fail(CHANGES[change](on.log))

    assert isinstance(told, Unavailable), repr(told)
    assert not await took_effect(on.direct, change)


async def test_a_claim_is_unknown_though_only_the_question_after_it_was_not_answered(
    on: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = AsyncLog.call

    async def call(self: AsyncLog, message: m.Message, *rest: object) -> object:
        if isinstance(message, m.GetProducer) and await took_effect(on.direct, "claim"):
            on.proxy.arm(Way.TO_CLIENT, LOST)
            on.log.timeout = UNANSWERED_SECONDS
        return await original(self, message, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(AsyncLog, "call", call)

    told = await fail(on.log.claim("p"))

    assert type(told) is Unknown and "GetProducer" in str(told), repr(told)


async def test_an_append_whose_clients_own_producer_could_not_be_opened_was_never_sent(
    on: Rig,
) -> None:
    _lose_answers_of_changes(on)

    told = await fail(on.log.append([NewEntry(b"never", ("t",))]))

    assert type(told) is DeadlineExceeded and isinstance(told, Retryable)
    assert await on.direct.read(["t"]) == []


async def test_a_question_that_was_not_answered_changed_nothing(on: Rig) -> None:
    on.proxy.arm(Way.TO_CLIENT, LOST)
    on.log.timeout = UNANSWERED_SECONDS

    assert type(await fail(on.log.bounds())) is DeadlineExceeded


def _lose_answers_of_changes(on: Rig) -> asyncio.Event:
    """From the first change on no answer comes back; tells when that is."""
    lost = asyncio.Event()
    original = on.log.call

    async def call(message: m.Message, *rest: object) -> object:
        if isinstance(message, m.Append | m.Trim):
            on.proxy.arm(Way.TO_CLIENT, LOST)
            on.log.timeout = UNANSWERED_SECONDS
            lost.set()
        return await original(message, *rest)  # type: ignore[arg-type]

    on.log.call = call  # type: ignore[method-assign,assignment]
    return lost
