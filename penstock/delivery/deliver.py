"""`penstock.deliver` and what it returns: a delivery as a user holds it.

Owns what a user may ask for, and all that is refused before anything is started. The delivery runs
on a thread of this process (player_thread.py) until it is stopped; started again under its name it
goes on where each target is.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import re
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, Protocol, Self
from urllib.parse import urlsplit

import pyarrow as pa

from penstock.config import masked_uri
from penstock.delivery.api import Shard, Target
from penstock.delivery.host import TargetHost
from penstock.delivery.player_thread import PlayerThread
from penstock.delivery.registration import list_deliveries, live_targets, register
from penstock.delivery.remote.address import TargetAddress, is_remote, parse_target
from penstock.delivery.remote.hosts import Hosts
from penstock.delivery.resharding import Resharding, Wanted, reshard
from penstock.delivery.routing import WEIGHT, first_route
from penstock.delivery.targets import open_target
from penstock.errors import (
    BadFormat,
    BadRequest,
    Forbidden,
    NotFound,
    PenstockError,
    Refused,
    Trimmed,
)
from penstock.ids import Lsn
from penstock.protocol.deliveries import RegisteredDelivery
from penstock.protocol.names import check_delivery_name, deliver_key, query_key
from penstock.runtime.dead_letters import DEAD_LETTER_DDL
from penstock.runtime.lag import Lag, measure_lag
from penstock.runtime.registry import RegisteredQuery, decode_query
from penstock.runtime.results import check_whole
from penstock.runtime.worker import LogAddress
from penstock.stream.positions import EARLIEST, Position
from penstock.stream.registration import stream_key
from penstock.stream.session import Log, connect
from penstock.stream.stream import Stream

logger = logging.getLogger(__name__)

#: How long `stop` waits for batches that targets are at work on.
STOP_SECONDS: Final = 30.0


class QueryResult(Protocol):
    """A query whose result is delivered: a `penstock.StreamingQuery`, or `ResultOf`."""

    @property
    def name(self) -> str: ...

    @property
    def stream(self) -> Stream:
        """The stream that takes its result."""


@dataclass(frozen=True, slots=True)
class ResultOf:
    """The result of a query that runs elsewhere, or not now, by its name."""

    log: Log
    name: str

    @property
    def stream(self) -> Stream:
        return self.log.stream(registered_query(self.log, self.name).to)


def registered_query(log: Log, name: str) -> RegisteredQuery:
    value = log.client.get(query_key(name))
    if value is None:
        raise NotFound(f"no query {name}: penstock query list shows those that there are")
    return decode_query(name, value.data)


def deliver(
    source: Stream | QueryResult,
    to: str | Target | Sequence[str | Target],
    *,
    key: str | Sequence[str] | None = None,
    name: str | None = None,
    table: str | None = None,
    start: Position = EARLIEST,
    strict: bool = False,
    dead_letter: str | None = None,
    leaving: str | Target | Sequence[str | Target] = (),
) -> Delivery:
    """Keep a table of a database equal to a stream, or to a query's result, exactly once.

    Every transaction of the database changes rows and the position in the log together. So whatever
    fails, and however often it is started again, each row takes effect once, in log order. What is
    not committed is never delivered, and a commit never in parts. Returns at once; the delivery
    goes on until it is stopped.

    Args:
        source: A stream, or a running query: then only rows of this query count.
        to: The target, like "postgresql://user@host/database" or "sqlite:///path.db"; several
            for a table in shards, each of which gets the rows of its keys. Or objects with the
            methods of `penstock.delivery.api.Target`; in another process,
            "target://host:7075/0" or "grpc://host:7076/0" (`penstock target serve`).
        key: Columns by which rows replace each other. By default the grouping columns of a query,
            and none for a stream: all rows are kept. `[]`: none.
        name: Under which it goes on when it is started again; by default made of source and first
            target, also after others came (`Delivery.reshard`).
        table: The table; by default the name of the query or the stream.
        start: Where to begin in the stream, the first time: "earliest", "latest", an LSN or a
            time. A result that takes rows back is delivered from its beginning.
        strict: Stop a target at a key that has two rows, or at a row that is taken back and is not
            there.
        dead_letter: A stream for rows that a target refuses; without one they stop the target.
        leaving: Targets that it was told to leave (`Delivery.reshard`) and that still have rows, if
            they cannot be opened by what is registered of their addresses.

    Raises:
        BadRequest: The key, name or start cannot be used.
        PlanChanged: A delivery of this name exists with another source, key, table, number of
            targets, or with these targets in another order.
        Trimmed: The first rows of a result that takes rows back are gone.
        Refused: There is no such target, or its driver is not installed.
    """
    targets = _targets(to)
    hosts = Hosts([one.target for one in targets])
    if not isinstance(source, Stream) and not hasattr(type(source), "stream"):
        raise BadRequest(f"{source!r} is neither a stream nor a query: use log.stream(name)")
    stream = source if isinstance(source, Stream) else source.stream
    log = _connect(stream)
    try:
        query = None if isinstance(source, Stream) else registered_query(log, source.name)
        stream = log.stream(stream.name if query is None else query.to)
        wanted = dataclasses.replace(
            _wanted(stream, query, targets, key, name=name, table=table),
            strict=strict,
            dead_letter=dead_letter,
        )
        wanted = wanted if name else dataclasses.replace(wanted, name=_known_name(log, wanted))
        if dead_letter == stream.name:
            raise BadRequest(f"dead_letter={dead_letter!r} is what is delivered: give another")
        if dead_letter is not None:
            log.create_stream(dead_letter, DEAD_LETTER_DDL)
        chosen = register(log.client, wanted, lambda: _find_start(log, stream, query, start))
        started = _start(log, chosen, stream.schema, targets, hosts, _some_targets(leaving))
    except BaseException:
        log.close()
        raise
    return started


def _start(
    log: Log,
    chosen: RegisteredDelivery,
    schema: pa.Schema,
    targets: Sequence[_NamedTarget],
    hosts: Hosts,
    leaving: Sequence[_NamedTarget],
) -> Delivery:
    """With targets for the shards that have rows from the last cut on, in their order."""
    live = chosen.layout.live
    made = hosts.make([shard_of(chosen, shard, schema) for shard in live], schema)
    by_shard = dict(zip(live, made, strict=True))
    given = _Given(_left_targets(chosen, leaving), schema)
    given.targets.update(zip(live, targets, strict=True))
    thread = PlayerThread(
        LogAddress(log.target, log.token_file, log.tls_ca),
        chosen,
        [by_shard.get(shard) for shard in range(chosen.shards)],
        given.host,
    )
    return Delivery(log, thread, given)


def _left_targets(
    chosen: RegisteredDelivery, leaving: Sequence[_NamedTarget]
) -> dict[int, _NamedTarget]:
    """Of shards that are over or have to give all they have away."""
    found = {}
    for one in leaving:
        shards = [
            shard
            for shard, uri in enumerate(chosen.targets)
            if masked_uri(uri) == one.uri and shard not in chosen.layout.live
        ]
        if not shards:
            raise BadRequest(f"leaving={one.uri}: delivery {chosen.name} had no such target")
        # At most one of them has rows. If it was over and came back, there are several.
        found.update(dict.fromkeys(shards, one))
    return found


@dataclass(frozen=True, slots=True)
class _NamedTarget:
    target: Target | TargetAddress
    #: For people, and for the default name of a delivery.
    uri: str


@dataclass(frozen=True, slots=True)
class _Given:
    """Targets of a delivery by shard, as they were given here: with secrets, or as objects."""

    targets: dict[int, _NamedTarget]
    #: The stream's, `_weight` included.
    schema: pa.Schema

    def of(self, delivery: RegisteredDelivery, shard: int) -> _NamedTarget | None:
        """If it is the shard's: somebody else may have given the delivery another meanwhile."""
        one = self.targets.get(shard)
        if one is None or shard >= delivery.shards:
            return None
        return one if masked_uri(delivery.targets[shard]) == masked_uri(one.uri) else None

    def host(self, delivery: RegisteredDelivery, shard: int) -> TargetHost:
        """Of a shard that the delivery got while it runs, or that is to end."""
        one = self.of(delivery, shard)
        target = _target(delivery.targets[shard]) if one is None else one
        (host,) = Hosts([target.target]).make([shard_of(delivery, shard, self.schema)], self.schema)
        return host


def _targets(to: str | Target | Sequence[str | Target]) -> list[_NamedTarget]:
    given = _some_targets(to)
    if not given:
        raise BadRequest("to=[]: give at least one target")
    return given


def _some_targets(to: str | Target | Sequence[str | Target]) -> list[_NamedTarget]:
    return [_target(one) for one in (to if isinstance(to, list | tuple) else [to])]


def _target(given: object) -> _NamedTarget:
    if isinstance(given, str) and is_remote(given):
        address = parse_target(given)
        return _NamedTarget(address, str(address))
    if isinstance(given, str):
        return _NamedTarget(open_target(given), masked_uri(given))
    if isinstance(given, Target):
        return _NamedTarget(given, type(given).__name__)
    raise BadRequest(f"to={given!r}: give an address like sqlite:///path.db, or a Target")


def registered_address(uri: str) -> str:
    """As a target is registered that whoever delivers is to open by its address alone.

    Raises BadRequest if it holds what is not registered, and BadConfig, Refused for no address.
    """
    named = _target(uri)
    parts = urlsplit(uri)
    is_whole = "password" not in parts.query.lower() and parts.password is None
    if is_remote(uri):
        is_whole = parse_target(named.uri) == named.target
    if not is_whole:
        raise BadRequest(
            f"{named.uri}: a password or a file's name is not registered in the log, and who "
            "delivers would not have it; use PGPASSWORD or ~/.pgpass there, or Delivery.reshard "
            "in Python"
        )
    return uri


def _connect(stream: Stream) -> Log:
    """A connection of the delivery's own: it outlives that of the stream that was given."""
    found = stream.found_by
    return connect(found["log"], token_file=found.get("tokenFile"), tls_ca=found.get("tlsCa"))


def _wanted(
    stream: Stream,
    query: RegisteredQuery | None,
    targets: Sequence[_NamedTarget],
    key: str | Sequence[str] | None,
    *,
    name: str | None,
    table: str | None,
) -> RegisteredDelivery:
    origin = stream.name if query is None else query.name
    chosen = name or _default_name(origin, targets[0].uri)
    check_delivery_name(chosen)
    if table is not None and not table:
        raise BadRequest("table='': give the table a name")
    return RegisteredDelivery(
        name=chosen,
        id=uuid.uuid4().hex,
        stream=stream.name,
        query=None if query is None else query.name,
        version=None if query is None else query.version,
        key=_key(stream, query, key),
        route=list(first_route(len(targets))),
        epoch=0,
        start=0,
        table=table or origin,
        targets=[one.uri for one in targets],
        strict=False,
        dead_letter=None,
        created_ms=time.time_ns() // 1_000_000,
    )


def _default_name(origin: str, uri: str) -> str:
    """Of source and target, and the same at every start: `hot-postgresql-shop`."""
    parts = urlsplit(uri)
    words = [origin, parts.scheme or uri, PurePosixPath(parts.path).stem if parts.scheme else ""]
    text = "-".join(word for word in words if word)
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text)[:100]


def _known_name(log: Log, wanted: RegisteredDelivery) -> str:
    """By default the same after other targets came, too: another one would bring all rows anew."""
    if log.client.get(deliver_key(wanted.name)) is not None:
        return wanted.name
    try:
        known = list_deliveries(log.client)
    except (Forbidden, BadFormat):  # a token for some deliveries, or one of a newer program
        return wanted.name
    for one, _ in known:
        is_ours = (one.stream, one.query, one.table) == (wanted.stream, wanted.query, wanted.table)
        if is_ours and one.past and [*map(masked_uri, live_targets(one))] == wanted.targets:
            return one.name
    return wanted.name


def _key(
    stream: Stream, query: RegisteredQuery | None, given: str | Sequence[str] | None
) -> list[str]:
    columns = [name for name in stream.schema.names if name != WEIGHT]
    if given is None:
        if query is None or not is_changing(stream.schema):
            found = [] if query is None else query.result_key
            return found if set(found) <= set(columns) else []
        if not query.result_key:
            raise BadRequest(
                f"the plan of query {query.name} does not tell which rows replace each other: "
                f"give key= (--key) with some of {', '.join(columns)}, or an empty one to keep all "
                "rows, each with its count"
            )
        return query.result_key
    key = [given] if isinstance(given, str) else list(given)
    missing = [column for column in key if column not in columns]
    if missing or len(set(key)) < len(key):
        problem = f"has no {', '.join(missing)}" if missing else "is given a column twice"
        raise BadRequest(
            f"key={key!r}: stream {stream.name} {problem}; its columns are {', '.join(columns)}"
        )
    return key


def is_changing(schema: pa.Schema) -> bool:
    """Whether rows of a stream can be taken back: it ends with their weight."""
    return bool(schema.names) and schema.names[-1] == WEIGHT


def _find_start(log: Log, stream: Stream, query: RegisteredQuery | None, start: Position) -> Lsn:
    # Before the rest is looked at: what is trimmed meanwhile is seen there, or by `register`.
    found = stream.resolve(start)
    if is_changing(stream.schema):
        if start != EARLIEST:
            raise BadRequest(
                f"start={start!r}: stream {stream.name} takes rows back, so it is delivered from "
                'its beginning: leave start as "earliest"'
            )
        if query is not None:
            check_whole(log, query)
        else:
            _check_beginning(log, stream)
    return found


def _check_beginning(log: Log, stream: Stream) -> None:
    """A part of a stream that takes rows back means nothing."""
    value = log.client.get(stream_key(stream.name))
    trim_point = log.bounds().trim_point
    if value is not None and max(value.lsn, stream.start_lsn) < trim_point:
        raise Trimmed(
            f"stream {stream.name} takes rows back, and rows of it below LSN {trim_point} may be "
            "gone: deliver a stream that is there from its beginning"
        )


def shard_of(delivery: RegisteredDelivery, shard: int, schema: pa.Schema) -> Shard:
    """One of a delivery's shards, as its target is told; `schema` is the stream's."""
    changing = is_changing(schema)
    return Shard(
        delivery=delivery.name,
        index=shard,
        count=delivery.shards,
        start=delivery.layout.birth(shard, Lsn(delivery.start)),
        schema=schema.remove(len(schema) - 1) if changing else schema,
        changing=changing,
        key=tuple(delivery.key),
        table=delivery.table,
        strict=delivery.strict,
        id=delivery.id,
    )


class Delivery:
    """A delivery that runs; from `penstock.deliver`. Use it in a `with` to stop it at the end."""

    def __init__(self, log: Log, thread: PlayerThread, given: _Given) -> None:
        self._log = log
        self._thread = thread
        self._given = given
        self._resharded: RegisteredDelivery | None = None
        self._pid = os.getpid()
        atexit.register(self.stop)

    @property
    def _registered(self) -> RegisteredDelivery:
        """As the player knows it, or as it was changed here, which the player may not have read."""
        played, resharded = self._thread.player.delivery, self._resharded
        if resharded is None or resharded.epoch <= played.epoch:
            return played
        return resharded

    @property
    def name(self) -> str:
        """Under which it goes on when it is started again."""
        return self._registered.name

    @property
    def isActive(self) -> bool:
        return not self._thread.ended.is_set()

    def status(self) -> dict[str, Any]:
        """A message for people, and how each target stands: position, rows, problem, since when."""
        found = self._thread.status()
        if not self.isActive:
            stopped = self._thread.error is None
            found["message"] = "Stopped" if stopped else f"Ended: {self._thread.error}"
        return {"is_active": self.isActive, **found}

    @property
    def lag(self) -> Lag:
        """Rows and seconds between the slowest target and the end of the stream."""
        position = self._thread.status()["position"]
        stream, now_ms = self._registered.stream, time.time_ns() // 1_000_000
        return self._log.client.run(lambda log: measure_lag(log, stream, position, now_ms=now_ms))

    def metrics(self, lag: Lag | None = None) -> str:
        """What it counts as OpenMetrics text; with the lag, which is asked of the log, if given."""
        return self._thread.player.metrics_text(lag)

    def processAllAvailable(self, timeout: float | None = None) -> None:
        """Wait until all that counts in the source now is applied by every target.

        Raises what stopped a target or the delivery, and TimeoutError.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.isActive:
            flushed = self._thread.flush()
            while not self._thread.ended.is_set():
                try:
                    return flushed.result(timeout=0.1)
                except CancelledError:
                    break
                except TimeoutError:
                    if deadline is not None and time.monotonic() >= deadline:
                        flushed.cancel()
                        raise TimeoutError(
                            f"delivery {self.name}: {self.status()['message']}"
                        ) from None
            self._thread.ended.wait()
        raise self.exception() or Refused(f"delivery {self.name} was stopped: start it again")

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait for the end, or so many seconds: then whether it ended. Raises what ended it."""
        ended = self._thread.ended.wait(timeout)
        if ended and self._thread.error is not None:
            raise self._thread.failure or self._thread.error
        return None if timeout is None else ended

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """End: targets finish what they are at work on, for so many seconds. Idempotent.

        In a process that was forked it does nothing: the delivery goes on in the other.
        """
        if self._pid != os.getpid():
            return
        self._thread.stop(timeout)
        self._thread.ended.wait()
        atexit.unregister(self.stop)
        self._log.close()

    def reshard(self, to: str | Target | Sequence[str | Target]) -> Resharding:
        """Give it these targets from now on, while it runs.

        Targets that are among them already go on. Rows move to the others, and from those that are
        not named any more, at one place of the log, the cut. Returns when that is registered; each
        target's status tells how far it is. Start the delivery with these targets from then on, and
        under its name: one that was made of the source and the first target may be another now.

        Raises:
            BadRequest: It has these targets already, one is given twice, or one is an object that
                gave its rows away (give a new one).
            Refused: Rows cannot be told apart again (the newest by key of a stream that takes none
                back), or there is no such target.
            Trimmed: Rows that would move are gone from the log.
        """
        targets = _targets(to)
        Hosts([one.target for one in targets])
        registered = self._registered
        uris = {masked_uri(registered.targets[shard]): shard for shard in registered.layout.live}
        objects = {
            id(one.target): shard
            for shard, one in self._given.targets.items()
            if self._given.of(registered, shard) is not None
        }
        wanted: list[Wanted] = []
        new: dict[int, _NamedTarget] = {}
        for one in targets:
            known = objects.get(id(one.target), uris.get(one.uri))
            wanted.append(one.uri if known is None else known)
            if known is None:
                new[registered.shards + len(new)] = one
        # Before it is registered: the player looks here when it sees that. After an error, too: it
        # may be registered all the same.
        self._given.targets.update(new)
        done = reshard(self._log.client, self.name, wanted, epoch=registered.epoch)
        self._resharded = done.delivery
        return done

    def exception(self) -> PenstockError | None:
        """What ended the delivery, or stopped one of its targets, if anything did."""
        return self._thread.failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "active" if self.isActive else "stopped"
        return f"<Delivery {self.name} {state}>"
