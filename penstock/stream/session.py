"""`penstock.connect` and what it returns: the log as a user holds it.

Owns the life of a connection (opened here, closed by the user or at the end of the program) and
what is done to the log as a whole. Which streams it has is registry.py's.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import time
from collections.abc import Sequence
from typing import Any, Self

import pyarrow as pa

from penstock.errors import NotFound
from penstock.ids import Lsn
from penstock.log.api import Bounds
from penstock.log.client.blocking import BlockingLog
from penstock.log.directories import default_data_dir
from penstock.log.embedded import endpoint
from penstock.log.records import Guard, SetKey
from penstock.stream.positions import Position, resolve_position
from penstock.stream.registration import decode_registration, encode_registration, stream_key
from penstock.stream.registry import find_stream, list_streams, make_stream
from penstock.stream.stream import Stream


def connect(
    target: str | os.PathLike[str] | None = None,
    *,
    token_file: str | os.PathLike[str] | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    timeout: float = 30.0,
) -> Log:
    """Connect to a log, and start its server if it is one of this machine and none runs.

    Args:
        target: A data directory, or an address like "penstock://host:7070". A directory's server is
            shared by all programs that connect, and stops soon after the last one. None means
            PENSTOCK_DIR, or the user's data directory.
        token_file: The token to use; by default a directory's own, and for an address the one that
            PENSTOCK_TOKEN_FILE names. It may be narrowed (`penstock token`).
        tls_ca: The certificate authority of a server beyond this machine.
        timeout: How many seconds any request may take, reconnections included.

    Raises:
        Unavailable: No server answers.
        Unauthorized: The token is missing or wrong, was revoked, or has expired.
        BadConfig: The server's configuration cannot be used.
    """
    resolve = endpoint(target, token_file=token_file, tls_ca=tls_ca)
    name = os.fspath(target) if target is not None else str(default_data_dir())
    if "://" not in name:
        name = os.path.abspath(os.path.expanduser(name))
    if "://" in name:
        token_file = token_file or os.environ.get("PENSTOCK_TOKEN_FILE")
    log = Log(
        BlockingLog(resolve, timeout=timeout),
        name,
        token_file=None if token_file is None else os.path.abspath(token_file),
        tls_ca=None if tls_ca is None else os.path.abspath(tls_ca),
    )
    # A program that just ends still finishes what it submitted and forgets its own producer.
    atexit.register(log.close)
    return log


class Log:
    """A connected log: its streams, its state. Make one with `penstock.connect`.

    Usable from several threads, and in forked children, which connect on their own.
    """

    def __init__(
        self,
        client: BlockingLog,
        target: str,
        *,
        token_file: str | None = None,
        tls_ca: str | None = None,
    ) -> None:
        self._client = client
        #: What `connect` was given, for processes that must connect to the same log.
        self.target = target
        self.token_file = token_file
        self.tls_ca = tls_ca
        self._closed = False
        options = {"log": target, "tokenFile": token_file, "tlsCa": tls_ca}
        #: For `format("penstock")`.
        self._found_by = {name: value for name, value in options.items() if value is not None}

    @property
    def client(self) -> BlockingLog:
        """The log itself: entries, tags, guards, metadata (penstock.log.api)."""
        return self._client

    def create_stream(
        self,
        name: str,
        schema: pa.Schema | str,
        *,
        lanes: int | None = None,
        key: Sequence[str] | None = None,
    ) -> Stream:
        """Create a stream, or find it if it exists with an equal schema.

        Args:
            name: Letters, digits, `_`, `.` and `-`.
            schema: Spark DDL text ("auction long, ts timestamp NOT NULL") or a `pyarrow.Schema`.
            lanes: The shares of the stream that tasks of a query can read side by side, for ever;
                16 if nothing is said.
            key: Columns: rows that are equal in them are in one lane, in the order in which they
                were appended. Rows of one append are cut into one entry for each lane, so rows of
                different keys may stand in another order. By default each entry goes to the next
                lane as it is.

        Raises:
            SchemaMismatch: It exists with another schema, lanes or key; each difference is named.
            BadRequest: The name, the number of lanes or the key cannot be used.
        """
        now_ms = time.time_ns() // 1_000_000
        registration, _ = self._client.run(
            lambda log: make_stream(log, name, schema, lanes=lanes, key=key, now_ms=now_ms)
        )
        return Stream(self._client, registration, self._found_by)

    def stream(self, name: str) -> Stream:
        """The stream of this name; NotFound, with names that are close, if there is none."""
        registration = self._client.run(lambda log: find_stream(log, name))
        return Stream(self._client, registration, self._found_by)

    def streams(self) -> list[Stream]:
        """All streams, by name."""
        found = self._client.run(list_streams)
        return [Stream(self._client, each, self._found_by) for each in found]

    @property
    def id(self) -> str:
        """Which log it is: positions of one mean nothing in another."""
        return self._client.log_id

    @property
    def default_checkpoints(self) -> str | None:
        """Where queries put checkpoints if they are not told: beside a log of this machine."""
        return None if "://" in self.target else os.path.join(self.target, "checkpoints")

    @property
    def is_closed(self) -> bool:
        return self._closed

    def restart_stream(
        self, name: str, *, guards: Sequence[Guard] = (), sets: Sequence[SetKey] = ()
    ) -> None:
        """Let the stream begin here: "earliest" no longer means what stands before.

        In one step with `sets`, if `guards` hold; raises GuardFailed, NotFound.
        """
        value = self._client.get(stream_key(name))
        if value is None:
            raise NotFound(f"no stream {name} to restart")
        registration = decode_registration(name, value.data)
        restarted = dataclasses.replace(registration, start_lsn=self._client.bounds().tail)
        self._client.append(
            [],
            guards=[Guard(stream_key(name), value.data), *guards],
            sets=[SetKey(stream_key(name), encode_registration(restarted)), *sets],
        )

    def bounds(self) -> Bounds:
        """What can be read now: [trim_point, tail)."""
        return self._client.bounds()

    def status(self) -> dict[str, Any]:
        """The server's account of itself: positions, segments, sizes, connections, settings."""
        status: dict[str, Any] = json.loads(self._client.status())
        return status

    def trim(self, position: Position) -> Lsn:
        """Give up everything below the position, for all streams and for good.

        Returns the trim point, which never goes back. Raises BadRequest for an LSN above the tail.
        """
        return self._client.trim(resolve_position(self._client, position))

    def close(self) -> None:
        """Finish what was submitted, then disconnect. Idempotent."""
        if not self._closed:
            self._closed = True
            atexit.unregister(self.close)
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Log({self.target!r}{', closed' if self._closed else ''})"
