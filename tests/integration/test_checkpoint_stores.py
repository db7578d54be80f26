"""Checkpoints of tasks at work, in each of the stores; and tasks that go on without their store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded_server import stop_server
from harness.redis import RedisServer, redis_server
from harness.s3 import S3Server, s3_server
from harness.waiting import until
from test_task_shell import at_work, keys, make, register

from penstock.errors import BadRequest, Unavailable
from penstock.log.client.client import AsyncLog
from penstock.log.embedded import endpoint
from penstock.runtime import checkpoints
from penstock.runtime.spec import QuerySpec, Settings
from penstock.runtime.task import Task
from penstock.runtime.trim import trim_consumed
from penstock.stream.stream import Stream


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "log"
    stop_server(tmp_path / "log")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(params=["files", "s3", "indexed", "rocksdb", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "files":
        return str(tmp_path / "files")
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3")
        return server.uri()
    if request.param == "redis":
        redis: RedisServer = request.getfixturevalue("redis")
        return redis.url
    return f"{request.param}://{tmp_path}/{request.param}"


def settings_of(place: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A checkpoint at nearly every marker."""
    monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES_MIN", 1)
    return Settings(checkpoints=place, checkpoint_interval_ms=1)


def named(task: Task) -> list[int]:
    marker = task.last_marker
    return [] if marker is None else [int(one["marker_lsn"]) for one in marker.checkpoints]


def number_of(task: Task) -> int:
    assert task.last_marker is not None
    return task.last_marker.number


async def feed_until_named(source: Stream, task: Task, count: int) -> None:
    """Until so many checkpoints were named, one after the other."""
    seen: set[int] = set()

    async def feed_and_look() -> bool:
        await asyncio.to_thread(source.append, keys(0, 1000))
        await asyncio.sleep(0.1)
        seen.update(named(task))
        return len(seen) >= count

    await until(feed_and_look, "too few checkpoints", seconds=90)


async def resume(client: AsyncLog, spec: QuerySpec) -> None:
    """Another instance of the last task, until it has its state."""
    last = spec.task_ids[-1]
    task = await Task.open(client, spec, last, await client.claim(last.producer))
    running = asyncio.ensure_future(task.run())
    await until(lambda: running.done() or task.core.state.rows_kept() == 1_000)
    task.drain()
    await running


async def test_a_task_goes_on_from_its_checkpoint_in_any_store(
    directory: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, source, spec = make(directory, settings_of(place, monkeypatch))
    register(log, spec)
    async with at_work(directory, spec) as (_, tasks, _):
        await feed_until_named(source, tasks[-1], 4)
    async with await AsyncLog.connect(endpoint(directory), timeout=30) as client:
        await resume(client, spec)
        # Changes before the older checkpoint are gone: the rest of the state is in the store.
        assert await trim_consumed(client) > 0
        await resume(client, spec)
    log.close()


async def test_objects_get_their_names_at_once(
    directory: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename would copy all of an object in the store; and what is half made is not there."""
    s3.requests.clear()
    log, source, spec = make(directory, settings_of(s3.uri("names"), monkeypatch))
    register(log, spec)
    async with at_work(directory, spec) as (_, tasks, _):
        await feed_until_named(source, tasks[-1], 3)
    log.close()

    written = [name for name in s3.objects() if name.startswith("names/")]
    assert any(name.endswith(".manifest") for name in written)
    puts = [line for line in s3.requests if "PUT" in line or "POST" in line]
    assert len(puts) >= len(written)
    assert not [line for line in s3.requests if ".new" in line]


async def test_a_task_goes_on_while_its_store_is_away_and_uses_it_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_server() as server:
        log, source, spec = make(directory, settings_of(server.url, monkeypatch))
        register(log, spec)
        async with at_work(directory, spec) as (_, tasks, _):
            task = tasks[-1]
            await feed_until_named(source, task, 2)
            server.kill()
            number = number_of(task)
            await asyncio.to_thread(source.append, keys(0, 1000))
            await until(lambda: number_of(task) > number)
            newest = max(named(task))
            server.start()
            await feed_until_named(source, task, 2)
            await until(lambda: max(named(task)) > newest)
        server.kill()
        async with await AsyncLog.connect(endpoint(directory), timeout=30) as client:
            await resume(client, spec)  # from the log: the store is away again
            assert await trim_consumed(client) > 0
            with pytest.raises(Unavailable, match="needs a checkpoint"):
                await resume(client, spec)
            server.start()
            await resume(client, spec)
        log.close()


async def test_a_store_that_lost_everything_is_given_everything_again(
    directory: Path, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, source, spec = make(directory, settings_of(redis.url, monkeypatch))
    register(log, spec)
    async with at_work(directory, spec) as (_, tasks, _):
        await feed_until_named(source, tasks[-1], 2)
        with redis.client() as client:
            client.flushall()
        newest = max(named(tasks[-1]))

        async def is_named_again() -> bool:
            await asyncio.to_thread(source.append, keys(0, 1000))
            await asyncio.sleep(0.05)
            return min(named(tasks[-1])) > newest

        await until(is_named_again, "nothing was named any more", seconds=90)
    async with await AsyncLog.connect(endpoint(directory), timeout=30) as client:
        assert await trim_consumed(client) > 0
        await resume(client, spec)
    log.close()


async def test_queries_of_two_logs_in_one_store_keep_their_own(
    directory: Path, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have one name, and one goes on far ahead of the other."""
    other = tmp_path / "other"
    specs = []
    try:
        for home, times in ((directory, 1), (other, 3)):
            log, source, spec = make(home, settings_of(place, monkeypatch))
            register(log, spec)
            for _ in range(times - 1):
                source.append(keys(0, 500))
            async with at_work(home, spec) as (_, tasks, _):
                await feed_until_named(source, tasks[-1], 2 * times)
            specs.append((home, spec))
            log.close()
        for home, spec in specs:
            async with await AsyncLog.connect(endpoint(home), timeout=30) as client:
                await trim_consumed(client)
                await resume(client, spec)
    finally:
        stop_server(other)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("redis://127.0.0.1:1/0", "127.0.0.1:1"),
        ("redis://:secret-word@127.0.0.1:1/0", "a secret is not part of the place"),
        ("rocksdb://host/path", "expected rocksdb:///path"),
        ("indexed:///proc/nowhere", "/proc/nowhere"),
    ],
)
def test_a_place_that_cannot_be_used_is_refused_before_anything_runs(
    place: str, words: str
) -> None:
    from penstock.spark.start import _check_store

    with pytest.raises(BadRequest, match=words) as caught:
        _check_store(place, "0" * 32)
    assert "secret-word" not in str(caught.value)


def test_a_redis_that_loses_checkpoints_is_refused_before_anything_runs(
    redis: RedisServer,
) -> None:
    from penstock.spark.start import _check_store

    with redis.client() as client:
        client.config_set("appendfsync", "everysec")
        try:
            with pytest.raises(BadRequest, match=r"cannot be used: .*appendfsync is 'everysec'"):
                _check_store(redis.url, "0" * 32)
        finally:
            client.config_set("appendfsync", "always")
    assert _check_store(redis.url, "0" * 32) == redis.url
