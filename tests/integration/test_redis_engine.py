"""What a store in Redis asks of its server, what it says without one, and what it never says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from harness.redis import PASSWORD, RedisServer, redis_server

from penstock.errors import BadConfig, ChecksumMismatch, Unavailable
from penstock.state.stores.api import StaleCut
from penstock.state.stores.redis_engine import RedisEngine
from penstock.state.stores.rocksdb_engine import RocksdbEngine


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"appendfsync": "everysec"}, "appendfsync is 'everysec', and must be 'always'"),
        ({"appendonly": "no"}, "appendonly is 'no', and must be 'yes'"),
        ({"no-appendfsync-on-rewrite": "yes"}, "no-appendfsync-on-rewrite is 'yes'"),
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "throws keys away"),
    ],
)
def test_a_server_that_loses_checkpoints_is_refused(
    redis: RedisServer, settings: dict[str, str], words: str
) -> None:
    with redis.client() as client:
        before = {name: client.config_get(name)[name] for name in settings}
        try:
            for name, value in settings.items():
                client.config_set(name, value)

            with pytest.raises(BadConfig, match="loses checkpoints") as caught:
                RedisEngine(redis.url, "refused")

            assert words in str(caught.value)
        finally:
            for name, value in before.items():
                client.config_set(name, value)


def test_a_server_that_does_not_say_what_it_does_is_refused(redis: RedisServer) -> None:
    with redis.client() as client:
        client.execute_command(
            "ACL", "SETUSER", "mute", "on", ">mute-password", "~*", "+@all", "-config"
        )
    url = redis.url.replace("//", "//mute:mute-password@")

    with pytest.raises(BadConfig, match="allow CONFIG GET") as caught:
        RedisEngine(url, "mute")

    assert "mute-password" not in str(caught.value)


def test_a_server_that_is_away_is_said_to_be_and_found_again() -> None:
    with redis_server() as server:
        engine = RedisEngine(server.url, "one")
        engine.commit({b"key": b"value"}, base=0, cut=1)
        server.kill()
        for attempt in (
            lambda: engine.commit({b"key": b"late"}, base=1, cut=2),
            lambda: engine.get([b"key"]),
            lambda: list(engine.scan(b"")),
            lambda: RedisEngine(server.url, "one"),
        ):
            with pytest.raises(Unavailable, match=str(server.port)):
                attempt()

        server.start()

        assert (engine.cut(), engine.get([b"key"])) == (1, [b"value"])
        engine.commit({b"key": b"new"}, base=1, cut=2)
        assert engine.get([b"key"]) == [b"new"]
        engine.close()


@pytest.mark.parametrize("is_in_url", [True, False])
def test_a_password_is_used_and_never_shown(
    is_in_url: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_server(requirepass=PASSWORD) as server:
        url = server.url
        if is_in_url:
            url = url.replace("//", "//:sesame%20with%20%25%20and%20%40@")
        else:
            monkeypatch.setenv("PENSTOCK_REDIS_PASSWORD", PASSWORD)
        engine = RedisEngine(url, "one")
        engine.commit({b"key": b"value"}, base=0, cut=1)
        with pytest.raises(StaleCut) as stale:
            engine.commit({b"key": b"value"}, base=0, cut=1)
        server.kill()
        with pytest.raises(Unavailable) as away:
            engine.get([b"key"])
        engine.close()
        server.start()
        wrong = server.url.replace("//", "//:not-sesame@")
        monkeypatch.delenv("PENSTOCK_REDIS_PASSWORD", raising=False)
        with pytest.raises(Unavailable) as refused:
            RedisEngine(wrong, "one")

    for caught in (stale, away, refused):
        assert caught.value.__cause__ is None
        assert "sesame" not in str(caught.value)


def test_a_command_that_fails_in_a_transaction_leaves_no_cut(redis: RedisServer) -> None:
    """Redis goes on with the rest of a transaction then: what is there is not what was put."""
    engine = RedisEngine(redis.url, "broken")
    engine.commit({b"aaa1": b"1"}, base=0, cut=1)
    with redis.client() as client:
        client.set("penstock:{broken}:bbb", "somebody else's")

    with pytest.raises(Unavailable, match="begins anew"):
        engine.commit({b"aaa1": b"2", b"bbb1": b"2"}, base=1, cut=2)

    assert engine.cut() == 0
    with redis.client() as client:
        client.delete("penstock:{broken}:bbb")
    engine.commit({b"ccc": b"3"}, base=None, cut=3)
    assert dict(engine.scan(b"")) == {b"ccc": b"3"}
    engine.close()


def test_a_value_that_was_moved_to_another_key_is_not_returned(redis: RedisServer) -> None:
    engine = RedisEngine(redis.url, "moved")
    engine.commit({b"aaa1": b"1", b"aaa2": b"2"}, base=0, cut=1)
    with redis.client() as client:
        other = client.hget("penstock:{moved}:aaa", "2")
        client.hset("penstock:{moved}:aaa", "1", other)

    with pytest.raises(ChecksumMismatch):
        engine.get([b"aaa1"])
    engine.close()


@pytest.mark.parametrize(
    ("module", "make"),
    [
        ("redis", lambda place: RedisEngine("redis://127.0.0.1:1", "x")),
        ("rocksdict", lambda place: RocksdbEngine(place)),
    ],
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    module: str, make: Callable[[Any], Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(BadConfig, match=r"pip install 'penstock\[(redis|rocksdb)\]'"):
        make(tmp_path / "db")
