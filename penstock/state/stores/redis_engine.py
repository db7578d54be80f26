"""Bytes by key in Redis, for who has a Redis that keeps what it was given.

    penstock:{<name>}            a hash: cut
    penstock:{<name>}:starts     a set: the first three bytes of all keys
    penstock:{<name>}:<start>    a hash per such start: the rest of the key, to CRC-32C and value

A commit is one transaction: WATCH of the cut, then MULTI … EXEC. Redis answers once that is in its
append-only file, and the file is synced, if it is told so. A server that syncs less often, that may
throw keys away, or that does not say what it does, is refused.

Laws: those of bytes_api.py. The password comes with the address or from the environment
(PENSTOCK_REDIS_USERNAME, PENSTOCK_REDIS_PASSWORD), and is in no error and no log line.
"""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from crc32c import crc32c

from penstock.config import hide_secrets, masked_uri
from penstock.errors import BadConfig, ChecksumMismatch, Unavailable
from penstock.limits import MIB
from penstock.state.stores.bytes_api import NOTHING, check_commit, check_cut

_START_BYTES: Final = 3
#: A server that does not answer for so long is away: a task that resumes takes the log instead.
TIMEOUT_SECONDS: Final = 5.0
#: One command of a transaction: a few, and about so many bytes.
_FIELDS: Final = 4096
_COMMAND_BYTES: Final = 1 * MIB
_CRC: Final = struct.Struct("<I")
#: What the server must be set to, and why.
_WANTED: Final = {
    "appendonly": ("yes", "without it nothing survives a restart"),
    "appendfsync": ("always", "otherwise commits that were acknowledged are lost with the machine"),
    "no-appendfsync-on-rewrite": ("no", "otherwise it does not sync while it rewrites its file"),
}


class RedisEngine:
    """An Engine; see bytes_api.py."""

    def __init__(self, url: str, name: str, *, timeout: float = TIMEOUT_SECONDS) -> None:
        """Raises BadConfig for a server that does not keep everything, Unavailable without one."""
        self._url = url
        self._shown = masked_uri(url)
        base = f"penstock:{{{name}}}".encode()
        self._cut_key, self._starts_key, self._base = base, base + b":starts", base + b":"
        redis = import_redis()
        self._redis = redis
        try:
            self._client = redis.Redis.from_url(
                url,
                username=_from_environment("USERNAME"),
                password=_from_environment("PASSWORD"),
                socket_timeout=timeout,
                socket_connect_timeout=timeout,
                # Sent again, a transaction would be refused for what it did itself.
                retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
            )
        except ValueError as error:
            raise BadConfig(f"{self._shown}: {hide_secrets(str(error), url)}") from None
        try:
            with self._reaching():
                _check_server(self._client, redis, self._shown)
        except BaseException:
            self.close()
            raise

    def cut(self) -> int:
        with self._reaching():
            return int(self._client.hget(self._cut_key, "cut") or NOTHING)

    def commit(
        self,
        puts: Mapping[bytes, bytes],
        deletes: Collection[bytes] = (),
        *,
        base: int | None,
        cut: int,
    ) -> None:
        check_commit(puts, deletes, base, cut)
        with self._reaching(), self._client.pipeline(transaction=True) as pipe:
            pipe.watch(self._cut_key)
            have = int(pipe.hget(self._cut_key, "cut") or NOTHING)
            check_cut(have, base, cut, self._shown)
            old = sorted(pipe.smembers(self._starts_key)) if base is None else ()
            pipe.multi()
            for start in old:
                pipe.unlink(self._base + start)
            if old:
                pipe.unlink(self._starts_key)
            for start, fields in _by_start(puts).items():
                pipe.sadd(self._starts_key, start)
                for part in _parts(start, fields, puts):
                    pipe.hset(self._base + start, items=part)
            for start, fields in _by_start(deletes).items():
                for first in range(0, len(fields), _FIELDS):
                    pipe.hdel(self._base + start, *fields[first : first + _FIELDS])
            pipe.hset(self._cut_key, "cut", cut)
            try:
                pipe.execute()
            except self._redis.WatchError:
                check_cut(self.cut(), base, cut, self._shown)
                raise Unavailable(f"{self._shown}: somebody else commits; try again") from None
            except self._redis.exceptions.ExecAbortError:
                raise  # nothing of it was done
            except self._redis.ResponseError as error:
                # One command failed, and Redis did the others: nobody may believe the cut.
                self._client.delete(self._cut_key)
                raise Unavailable(f"{self._shown}: {error}; the store begins anew") from None

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        places = defaultdict(list)
        for place, key in enumerate(keys):
            places[key[:_START_BYTES]].append(place)
        found: list[bytes | None] = [None] * len(keys)
        with self._reaching(), self._client.pipeline(transaction=False) as pipe:
            for start, of_start in places.items():
                pipe.hmget(self._base + start, [keys[place][_START_BYTES:] for place in of_start])
            answers = pipe.execute()
        for of_start, values in zip(places.values(), answers, strict=True):
            for place, sealed in zip(of_start, values, strict=True):
                if sealed is not None:
                    found[place] = self._unsealed(keys[place], sealed)
        return found

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        start = prefix[:_START_BYTES]
        starts = [start]
        if len(start) < _START_BYTES:
            with self._reaching():
                members = sorted(self._client.smembers(self._starts_key))
            starts = [one for one in members if one.startswith(start)]
        for start in starts:
            with self._reaching():
                fields = self._client.hscan_iter(self._base + start, count=_FIELDS)
                for rest, sealed in dict(fields).items():  # one may come twice
                    if (key := start + rest).startswith(prefix):
                        yield key, self._unsealed(key, sealed)

    def _unsealed(self, key: bytes, sealed: bytes) -> bytes:
        value = sealed[_CRC.size :]
        if sealed[: _CRC.size] != _CRC.pack(crc32c(key + value)):
            raise ChecksumMismatch(f"{self._shown}: a value of {len(value)} bytes")
        return value

    def close(self) -> None:
        self._client.close()

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except (self._redis.RedisError, OSError) as error:
            text = hide_secrets(str(error) or type(error).__name__, self._url)
            password = _from_environment("PASSWORD")
            if password:
                text = text.replace(password, "***")
            # Without the cause: it may show the address with its password.
            raise Unavailable(f"{self._shown}: {text}") from None


def import_redis() -> Any:
    """The client, or BadConfig that says how to install it."""
    try:
        import redis
        import redis.backoff
        import redis.retry
    except ImportError as error:
        raise BadConfig(f"{error}: pip install 'penstock[redis]'") from None
    return redis


def _from_environment(name: str) -> str | None:
    return os.environ.get(f"PENSTOCK_REDIS_{name}")


def _check_server(client: Any, redis: Any, shown: str) -> None:
    names = [*_WANTED, "maxmemory", "maxmemory-policy"]
    try:
        found = {name: client.config_get(name).get(name) for name in names}
    except redis.ResponseError as error:
        if isinstance(error, redis.AuthenticationError):
            raise
        raise BadConfig(
            f"{shown} does not say whether it keeps what it is given ({error}): allow CONFIG GET"
        ) from None
    wrong = [
        f"{name} is {found[name]!r}, and must be {value!r}: {reason}"
        for name, (value, reason) in _WANTED.items()
        if found[name] != value
    ]
    if str(found["maxmemory-policy"]).startswith("allkeys") and int(found["maxmemory"] or 0):
        wrong.append(
            f"maxmemory-policy is {found['maxmemory-policy']!r}: it throws keys away when memory "
            "is full; use 'noeviction' or a policy of 'volatile-…'"
        )
    if wrong:
        raise BadConfig(f"{shown} loses checkpoints: {'; '.join(wrong)}")


def _by_start(keys: Collection[bytes]) -> dict[bytes, list[bytes]]:
    """The rests of the keys."""
    found: dict[bytes, list[bytes]] = defaultdict(list)
    for key in keys:
        found[key[:_START_BYTES]].append(key[_START_BYTES:])
    return found


def _parts(
    start: bytes, fields: Sequence[bytes], puts: Mapping[bytes, bytes]
) -> Iterator[list[bytes]]:
    """Fields and sealed values, alternating, for one command each."""
    part: list[bytes] = []
    size = 0
    for rest in fields:
        key = start + rest
        value = puts[key]
        part += (rest, _CRC.pack(crc32c(key + value)) + value)
        size += len(value)
        if size >= _COMMAND_BYTES or len(part) >= 2 * _FIELDS:
            yield part
            part, size = [], 0
    if part:
        yield part
