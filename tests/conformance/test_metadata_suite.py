"""What every metadata store does: one suite for memory and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from harness.threads import no_thread_is_left
from harness.waiting import until
from metadata_stores import SESSION_SECONDS, MemoryStores, Stores, ZooKeeperStores, holder
from refusals import refused

from penstock.errors import (
    AlreadyExists,
    BadRequest,
    NotFound,
    PenstockError,
    TooLarge,
    Unavailable,
    VersionConflict,
)
from penstock.log.meta.api import Versioned
from penstock.log.meta.paths import VALUE_BYTES_MAX
from penstock.log.meta.zookeeper_server import ZooKeeperServer

_namespaces = itertools.count()


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@asynccontextmanager
async def opened(stores: Stores) -> AsyncIterator[Stores]:
    """Whatever sessions are opened are closed."""
    async with AsyncExitStack() as stack:
        open_one = stores.open

        async def open_noted() -> Any:
            store = await open_one()
            stack.push_async_callback(store.close)
            return store

        stores.open = open_noted  # type: ignore[method-assign]
        yield stores


@pytest.fixture(params=["memory", "zookeeper"])
def stores(request: pytest.FixtureRequest) -> Iterator[AbstractAsyncContextManager[Stores]]:
    """A fresh tree; its sessions leave no thread behind."""
    made: Stores = MemoryStores()
    if request.param == "zookeeper":
        server = request.getfixturevalue("zookeeper")
        made = ZooKeeperStores(server.hosts, f"suite{next(_namespaces)}")
    with no_thread_is_left():
        yield opened(made)


async def test_a_new_value_has_version_zero_and_its_parents_exist(stores: Stores) -> None:
    store = await stores.open()

    assert await store.get("/logs/main") is None
    assert await store.create("/logs/main", b"one") == 0

    assert await store.get("/logs/main") == Versioned(b"one", 0)
    assert await store.get("/logs") == Versioned(b"", 0)
    assert await store.children("/logs") == ["main"]
    assert await store.children("/logs/main") == []
    assert await store.children("/") == ["logs"]
    assert await store.get("/") == Versioned(b"", 0)


async def test_a_path_that_exists_is_not_made_again_and_keeps_its_value(stores: Stores) -> None:
    first, second = await stores.open(), await stores.open()
    await first.create("/a", b"one")

    await refused(
        AlreadyExists, first.create("/a", b"two"), second.create("/a", b"two", ephemeral=True)
    )

    assert await second.get("/a") == Versioned(b"one", 0)


async def test_only_who_names_the_version_replaces_or_removes_a_value(stores: Stores) -> None:
    first, second = await stores.open(), await stores.open()
    await first.create("/a", b"0")

    assert await first.set("/a", b"1", 0) == 1
    assert await second.set("/a", b"2", 1) == 2
    await refused(VersionConflict, first.set("/a", b"lost", 1), first.delete("/a", 1))
    assert await first.get("/a") == Versioned(b"2", 2)

    await first.delete("/a", 2)
    assert await second.get("/a") is None
    await second.create("/a", b"")
    await second.set("/a", b"x", 0)
    await second.delete("/a")
    assert await first.get("/a") is None


async def test_what_does_not_exist_is_not_found_and_never_an_empty_list(stores: Stores) -> None:
    """R40: a missing listing must not look like an unused one."""
    store = await stores.open()

    await refused(
        NotFound,
        store.set("/a/b", b"", 0),
        store.delete("/a/b"),
        store.delete("/a/b", 3),
        store.children("/a"),
        store.children("/a/b"),
    )

    await store.create("/a/b", b"")
    await store.delete("/a/b")
    assert await store.children("/a") == []


async def test_a_path_with_others_below_it_stays_and_an_ephemeral_one_has_none(
    stores: Stores,
) -> None:
    store = await stores.open()
    await store.create("/a/b", b"")
    await store.create("/a/e", b"", ephemeral=True)

    await refused(
        BadRequest, store.delete("/a"), store.create("/a/e/c", b""), store.create("/a/e/c/d", b"")
    )

    assert await store.children("/a") == ["b", "e"]


@pytest.mark.parametrize(
    "path",
    ["", "a", "/a/", "//a", "/a//b", "/.", "/..", "/a/../b", "/a b", "/a,b", "/é", "/a\0", "//"],
)
async def test_a_path_that_could_lead_elsewhere_is_refused(stores: Stores, path: str) -> None:
    store = await stores.open()

    await refused(
        BadRequest,
        store.create(path, b""),
        store.get(path),
        store.set(path, b"", 0),
        store.delete(path),
        store.children(path),
    )
    with pytest.raises(BadRequest):
        store.watch(path, lambda: None)


async def test_the_root_is_only_read(stores: Stores) -> None:
    store = await stores.open()

    await refused(BadRequest, store.create("/", b""), store.set("/", b"", 0), store.delete("/"))
    assert await store.children("/") == []


async def test_names_and_values_come_back_as_they_were_given(stores: Stores) -> None:
    store = await stores.open()
    names = ["-a", ".hidden", "A", "a", "a.b", "n1:0f3a", "new", "x@y+z=1", "_", "a" * 190]
    large = bytes(range(256)) * (VALUE_BYTES_MAX // 256)

    for name in names:
        await store.create(f"/p/{name}", name.encode())
    await store.create("/large", large)

    assert await store.children("/p") == sorted(names)
    for name in names:
        assert await store.get(f"/p/{name}") == Versioned(name.encode(), 0)
    assert await store.get("/large") == Versioned(large, 0)
    for path in ("/" + "a" * 200, "/a" * 101):
        await refused(BadRequest, store.create(path, b""))
    assert await store.set("/large", b"", 0) == 1
    await refused(
        TooLarge,
        store.set("/large", bytes(VALUE_BYTES_MAX + 1), 1),
        store.create("/larger", bytes(VALUE_BYTES_MAX + 1)),
    )


async def test_of_two_rivals_exactly_one_wins_every_round(stores: Stores) -> None:
    rivals = [await stores.open(), await stores.open()]
    await rivals[0].create("/a", b"")
    wins = [0, 0]

    for version in range(50):
        order = (0, 1) if version % 2 else (1, 0)
        results = await asyncio.gather(
            *(rivals[who].set("/a", bytes([who]), version) for who in order),
            return_exceptions=True,
        )
        won = [who for who, result in zip(order, results, strict=True) if result == version + 1]
        assert len(won) == 1, results
        assert sum(isinstance(result, VersionConflict) for result in results) == 1
        assert await rivals[1 - won[0]].get("/a") == Versioned(bytes(won), version + 1)
        wins[won[0]] += 1

    assert sum(wins) == 50


async def test_of_many_that_make_the_same_path_one_succeeds(stores: Stores) -> None:
    rivals = [await stores.open() for _ in range(3)]

    for number in range(10):
        results = await asyncio.gather(
            *(rival.create(f"/r/{number}/x", b"", ephemeral=True) for rival in rivals),
            return_exceptions=True,
        )
        assert results.count(0) == 1, results
        assert sum(isinstance(result, AlreadyExists) for result in results) == 2


async def test_calls_of_one_session_take_effect_in_their_order(stores: Stores) -> None:
    store = await stores.open()
    await store.create("/a", b"")
    done: list[int] = []
    for version in range(30):
        done.append(await store.set("/a", str(version).encode(), version))
        # Whoever was answered reads at least that, in every session.
        other = await stores.open() if version % 10 == 0 else store
        assert await other.get("/a") == Versioned(str(version).encode(), version + 1)

    assert done == list(range(1, 31))


# ---- ephemeral nodes


async def test_an_ephemeral_node_goes_with_its_session(stores: Stores) -> None:
    first, second = await stores.open(), await stores.open()
    await first.create("/nodes/n1", b"one", ephemeral=True)
    await first.create("/kept", b"")
    assert await first.set("/nodes/n1", b"two", 0) == 1
    assert await second.children("/nodes") == ["n1"]

    started = time.monotonic()
    await first.close()
    took = time.monotonic() - started

    assert await second.get("/nodes/n1") is None
    assert await second.children("/nodes") == []
    assert await second.children("/") == ["kept", "nodes"]
    assert await second.create("/nodes/n1", b"three", ephemeral=True) == 0
    assert took < SESSION_SECONDS / 3, "nobody waits for the session to expire"


async def test_a_session_that_is_ended_from_outside_learns_it_once(stores: Stores) -> None:
    first, second = await stores.open(), await stores.open()
    told: list[str] = []
    first.on_session_lost(lambda: told.append("first"))
    second.on_session_lost(lambda: told.append("second"))
    await first.create("/e", b"old", ephemeral=True)

    await stores.expire(first)

    assert await second.get("/e") is None
    await until(lambda: _is(told == ["first"]))
    await refused(
        Unavailable, first.get("/e"), first.create("/e", b"", ephemeral=True), first.children("/")
    )
    # Also for who asks late; and nothing comes twice.
    first.on_session_lost(lambda: told.append("late"))
    first.watch("/e", lambda: told.append("watch of a lost session"))()
    await second.create("/e", b"new", ephemeral=True)
    await first.close()
    await asyncio.sleep(0.12)
    assert told == ["first", "late"]
    assert await second.get("/e") == Versioned(b"new", 0)


async def _is(value: bool) -> bool:
    return value


async def test_a_node_that_an_earlier_session_left_is_not_taken_for_ours(stores: Stores) -> None:
    """Both sessions are of this process, with the same data."""
    earlier, later = await stores.open(), await stores.open()
    await earlier.create("/nodes/n1", b"me", ephemeral=True)

    await refused(AlreadyExists, later.create("/nodes/n1", b"me", ephemeral=True))

    await stores.expire(earlier)
    await until(lambda: _absent(later, "/nodes/n1"))
    await later.create("/nodes/n1", b"me", ephemeral=True)
    await earlier.close()
    assert await later.get("/nodes/n1") == Versioned(b"me", 0)


async def _absent(store: Any, path: str) -> bool:
    return await store.get(path) is None


@pytest.mark.parametrize("stores", ["zookeeper"], indirect=True)
async def test_a_killed_process_loses_its_node_and_watchers_are_told(stores: Stores) -> None:
    store = await stores.open()
    calls: list[float] = []
    with holder(stores.address, "/nodes/n1") as process:
        await until(lambda: _present(store, "/nodes/n1"))
        store.watch("/nodes", lambda: calls.append(time.monotonic()))
        await until(lambda: _is(bool(calls)))

        process.kill()
        process.wait()
        killed = time.monotonic()

        async def is_told_and_gone() -> bool:
            return calls[-1] >= killed and not await store.children("/nodes")

        await until(is_told_and_gone, seconds=60)

    assert await store.get("/nodes/n1") is None


async def _present(store: Any, path: str) -> bool:
    return await store.get(path) is not None


async def test_a_closed_session_answers_nothing_and_closes_again(stores: Stores) -> None:
    store = await stores.open()
    told: list[str] = []
    store.on_session_lost(lambda: told.append("lost"))
    store.watch("/a", lambda: told.append("changed"))
    if stores.address:  # ZooKeeper's tells that it is armed
        await until(lambda: told)
    told.clear()
    await asyncio.gather(store.close(), store.close())
    await store.close()

    other = await stores.open()
    await other.create("/a", b"")
    await refused(PenstockError, store.get("/a"), store.set("/a", b"", 0))
    await asyncio.sleep(0.1)
    assert told == []


# ---- watches


class Follower:
    """Reads after each call of a watch, as users do, and keeps what it saw last."""

    def __init__(self, store: Any, path: str, read: Callable[[], Awaitable[Any]]) -> None:
        self.seen: Any = "nothing yet"
        self.calls = 0
        self._read = read
        self._woken = asyncio.Event()
        self._woken.set()
        self.end = store.watch(path, self._wake)
        self._task = asyncio.get_running_loop().create_task(self._follow())

    def _wake(self) -> None:
        self.calls += 1
        self._woken.set()

    async def _follow(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            self.seen = await self._read()

    async def sees(self, wanted: Any) -> None:
        try:
            await until(lambda: _is(self.seen == wanted or self._task.done()))
        except TimeoutError:
            raise AssertionError(f"saw {self.seen} and not {wanted}") from None
        assert not self._task.done(), self._task.result()

    async def stop(self) -> None:
        self.end()
        self._task.cancel()
        await asyncio.wait([self._task])


async def test_a_watch_never_misses_the_last_value(stores: Stores) -> None:
    writer, reader = await stores.open(), await stores.open()
    follower = Follower(reader, "/a/b", lambda: reader.get("/a/b"))
    for _ in range(5):
        await writer.create("/a/b", b"first")
        for version in range(20):
            await writer.set("/a/b", str(version).encode(), version)
        await follower.sees(Versioned(b"19", 20))
        await writer.delete("/a/b")
        await follower.sees(None)
    await follower.stop()


async def test_a_watch_never_misses_the_last_listing(stores: Stores) -> None:
    writer, reader = await stores.open(), await stores.open()

    async def listing() -> list[str] | None:
        try:
            return await reader.children("/p")
        except NotFound:
            return None

    follower = Follower(reader, "/p", listing)
    await follower.sees(None)
    names: set[str] = set()
    for number in range(30):
        name = f"n{number * 7 % 10}"
        if name in names:
            await writer.delete(f"/p/{name}")
        else:
            await writer.create(f"/p/{name}", b"", ephemeral=number % 2 == 0)
        names ^= {name}
        if number % 6 == 0:
            await follower.sees(sorted(names))
    await follower.sees(sorted(names))
    await writer.close()
    for name in list(names):
        if await reader.get(f"/p/{name}") is not None:
            await reader.delete(f"/p/{name}")
    await follower.sees([])
    await reader.delete("/p")
    await follower.sees(None)
    await follower.stop()


async def test_a_watch_tells_of_changes_by_its_own_session_and_ends_when_asked(
    stores: Stores,
) -> None:
    store = await stores.open()
    kept = Follower(store, "/a", lambda: store.get("/a"))
    ended = Follower(store, "/a", lambda: store.get("/a"))
    await store.create("/a", b"1")
    await kept.sees(Versioned(b"1", 0))
    await ended.sees(Versioned(b"1", 0))

    ended.end()
    calls = ended.calls
    await store.set("/a", b"2", 0)
    await kept.sees(Versioned(b"2", 1))

    assert ended.calls == calls
    again = Follower(store, "/a", lambda: store.get("/a"))
    await store.set("/a", b"3", 1)
    await again.sees(Versioned(b"3", 2))
    await asyncio.gather(kept.stop(), ended.stop(), again.stop())


async def test_a_node_that_is_replaced_by_an_equal_one_wakes_its_watch(stores: Stores) -> None:
    """Version and data are the same again: only the change tells."""
    first, second = await stores.open(), await stores.open()
    await first.create("/nodes/n1", b"same", ephemeral=True)
    calls: list[str] = []
    second.watch("/nodes/n1", lambda: calls.append("node"))
    second.watch("/nodes", lambda: calls.append("parent"))
    if stores.address:  # ZooKeeper's tell that they are armed
        await until(lambda: {"node", "parent"} <= set(calls))
    calls.clear()

    await first.delete("/nodes/n1")
    await first.create("/nodes/n1", b"same", ephemeral=True)

    await until(lambda: _is({"node", "parent"} <= set(calls)))
