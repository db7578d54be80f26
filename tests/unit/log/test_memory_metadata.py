"""The memory store's faults: what a simulator may do to a session, and what it then sees."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from penstock.errors import AlreadyExists, Unavailable, Unknown, VersionConflict
from penstock.log.meta.api import Versioned
from penstock.log.meta.memory import MemoryMetadata


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time jumps to the next timer: an hour of the scenario takes no time at all."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def jump(seconds: float | None) -> Any:
            self._now += seconds or 0.0
            return select(0)

        self._selector.select = jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now


def run_virtually(scenario: Coroutine[Any, Any, None]) -> float:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario)
        return runner.get_loop().time()


async def test_a_lost_reply_leaves_the_change_made() -> None:
    """R16: the writer must read again, and finds its own write."""
    tree = MemoryMetadata()
    store = tree.session()
    store.lose_replies(3)
    with pytest.raises(Unknown):
        await store.create("/a", b"0")
    with pytest.raises(Unknown):
        await store.set("/a", b"mine", 0)
    assert await store.get("/a") == Versioned(b"mine", 1)
    with pytest.raises(Unknown):
        await store.delete("/a")
    assert await store.get("/a") is None
    assert await store.create("/a", b"") == 0


async def test_a_lost_request_changes_nothing_and_sounds_the_same() -> None:
    store = MemoryMetadata().session()
    await store.create("/a", b"0")
    store.lose_requests()
    with pytest.raises(Unknown):
        await store.set("/a", b"1", 0)
    assert await store.get("/a") == Versioned(b"0", 0)
    assert await store.set("/a", b"1", 0) == 1


async def test_a_refused_change_does_not_use_up_a_lost_reply() -> None:
    store = MemoryMetadata().session()
    await store.create("/a", b"0")
    store.lose_replies()
    with pytest.raises(VersionConflict):
        await store.set("/a", b"1", 7)
    with pytest.raises(Unknown):
        await store.set("/a", b"1", 0)


async def test_an_unavailable_store_changes_nothing_and_keeps_its_nodes() -> None:
    tree = MemoryMetadata()
    store, other = tree.session(), tree.session()
    await store.create("/e", b"", ephemeral=True)
    store.is_unavailable = True
    for call in (store.get("/e"), store.delete("/e"), store.create("/x", b"")):
        with pytest.raises(Unavailable):
            await call
    assert await other.children("/") == ["e"]
    store.is_unavailable = False
    assert await store.get("/e") == Versioned(b"", 0)


async def test_a_session_that_expired_is_told_when_the_simulator_says_so() -> None:
    tree = MemoryMetadata()
    zombie, other = tree.session(), tree.session()
    told: list[str] = []
    zombie.on_session_lost(lambda: told.append("zombie"))
    await zombie.create("/owners/main", b"zombie", ephemeral=True)

    zombie.expire(told=False)
    await other.create("/owners/main", b"other", ephemeral=True)
    with pytest.raises(Unavailable):
        await zombie.set("/owners/main", b"zombie again", 0)
    assert told == []

    zombie.tell_lost()
    zombie.tell_lost()
    await asyncio.sleep(0)
    assert told == ["zombie"]
    assert tree.paths()["/owners/main"] == Versioned(b"other", 0)


def test_delayed_requests_keep_their_order_in_virtual_time() -> None:
    async def scenario() -> None:
        tree = MemoryMetadata()
        slow, fast = tree.session(), tree.session()
        delays = iter([3600.0, 0.0, 1.0, 1.0, 1.0, 1.0])
        slow.delay = lambda: asyncio.sleep(next(delays))

        first = asyncio.ensure_future(slow.create("/a", b"first"))
        second = asyncio.ensure_future(slow.create("/a", b"second"))
        await asyncio.sleep(3599.0)
        assert await fast.get("/a") is None

        assert await first == 0
        with pytest.raises(AlreadyExists):
            await second
        assert await fast.get("/a") == Versioned(b"first", 0)

    assert 3600.0 <= run_virtually(scenario()) < 3610.0


def test_a_call_that_is_given_up_on_its_way_may_have_been_made_or_not() -> None:
    async def scenario() -> None:
        store = MemoryMetadata().session()
        store.delay = lambda: asyncio.sleep(1.0)
        for seconds, wanted in ((0.5, None), (1.5, Versioned(b"", 0))):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(seconds):
                    await store.create("/a", b"")
            assert await store.get("/a") == wanted

    run_virtually(scenario())


def test_the_same_calls_wake_watches_in_the_same_order() -> None:
    async def scenario(calls: list[str]) -> None:
        tree = MemoryMetadata()
        sessions = [tree.session() for _ in range(3)]
        for number, session in enumerate(sessions):
            for path in ("/p", "/p/x", "/"):
                session.watch(path, lambda told=f"{number} {path}": calls.append(told))
        await sessions[0].create("/p/x", b"", ephemeral=True)
        await sessions[1].create("/p/y", b"")
        sessions[0].expire()
        await asyncio.sleep(0)

    traces: list[list[str]] = [[], []]
    for trace in traces:
        asyncio.run(scenario(trace))

    assert traces[0] == traces[1] != []
