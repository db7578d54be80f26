"""The facts of one update, read from the log as the command line reads them.

On a thread of its own, over the connection of who looks. Laws: what the token does not allow is
left out and said; whatever cannot be read hides nothing else; if the log does not answer, Retryable
is raised, and nothing is half told.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from penstock.cli.delivery_facts import SILENCE_MS as ACKS_SILENCE_MS
from penstock.cli.delivery_facts import facts_of as delivery_facts
from penstock.cli.query_facts import facts_of as query_facts
from penstock.errors import BadRequest, Forbidden, NotFound, Retryable, Unauthorized
from penstock.log.client.blocking import BlockingLog
from penstock.log.records import Value
from penstock.protocol.deliveries import decode_delivered, decode_delivery
from penstock.protocol.names import (
    DELIVER_PREFIX,
    DELIVERED_PREFIX,
    QUERY_PREFIX,
    delivered_key,
)
from penstock.protocol.pulses import SILENCE_MS, State
from penstock.runtime.lag import measure_lag
from penstock.stream.registration import KEY_PREFIX, decode_definition
from penstock.stream.times import time_text
from penstock.ui.config import IDLE_LAGS_EVERY, IDLE_LAGS_MAX, QUERIES_MAX, SELDOM
from penstock.ui.hearing import Hearing
from penstock.ui.view.facts import number, things
from penstock.ui.view.queries import stream_of

logger = logging.getLogger(__name__)

Facts = dict[str, Any]
T = TypeVar("T")
#: In which a query that lives pulses at least once.
LISTEN_SECONDS: Final = 0.6
#: Asks a cluster, whose address is in the log's; None: it is one server's.
Ask = Callable[[], Facts]


class Gatherer:
    """Of one connection. `target`: which log that is, for people."""

    def __init__(self, client: BlockingLog, target: str, ask_cluster: Ask | None = None) -> None:
        self._client = client
        self._target = target
        self._ask_cluster = ask_cluster
        self._rounds = 0
        self._streams: list[Facts] = []
        self._idle_lags: Facts = {}
        self._deliveries: list[Facts] = []
        self._cluster: Facts | None = None
        self._pulses = Hearing(SILENCE_MS / 1000)
        self._acks = Hearing(ACKS_SILENCE_MS / 1000)

    def gather(self) -> Facts:
        """Raises Retryable, or Unauthorized."""
        queries, left_out = self._queries()
        if self._rounds % SELDOM == 0:
            self._streams = self._find_streams()
            self._deliveries = self._find_deliveries()
            self._cluster = None if self._ask_cluster is None else self._ask_cluster()
        if self._rounds % IDLE_LAGS_EVERY == 0:
            self._idle_lags = self._measure_idle_lags(queries)
        self._rounds += 1
        return {
            "at_ms": time.time_ns() // 1_000_000,
            "log": {"target": self._target, **self._log()},
            "queries": queries,
            "queries_left_out": left_out,
            "idle_lags": self._idle_lags,
            "streams": self._streams,
            "deliveries": self._deliveries,
            "cluster": self._cluster,
        }

    def _log(self) -> Facts:
        found: Facts = {"status": None, "metrics": None}
        try:
            found["status"] = json.loads(self._client.status())
            found["metrics"] = self._client.run(lambda log: log.metrics())
        except (Forbidden, BadRequest) as error:
            found["why"] = str(error)
        return found

    def _queries(self) -> tuple[list[Facts], int]:
        """And how many there are besides."""
        found = sorted(self._client.list_metadata(QUERY_PREFIX).items())
        known = {key.removeprefix(QUERY_PREFIX): value.data for key, value in found[:QUERIES_MAX]}
        met = self._pulses.names
        told = {name: self._query(name, data) for name, data in known.items()}
        unheard = [
            name
            for name, one in told.items()
            if one is not None and one["state"] == State.LOST.value and name not in met
        ]
        if unheard:
            # What seems lost is listened to before it is believed: two machines' clocks may differ.
            time.sleep(LISTEN_SECONDS)
            told |= {name: self._query(name, known[name]) for name in unheard}
        self._pulses.keep(told)
        return [one for one in told.values() if one is not None], max(len(found) - QUERIES_MAX, 0)

    def _query(self, name: str, data: bytes) -> Facts | None:
        """None for one that the token may know of, but not look at."""

        def tell() -> Facts:
            found = query_facts(self._client, name, data)
            heard = self._pulses.judge(name, found.state.value, found.pulse_ms, time.monotonic())
            return {**found.as_json(), "state": heard}

        try:
            return _told(tell, partial(_unread, name, "why"))
        except Forbidden:
            return None

    def _measure_idle_lags(self, queries: list[Facts]) -> Facts:
        """By query and stream: of queries whose own report, being old, does not say it."""
        idle = [one for one in queries if one["state"] not in (None, State.RUNNING.value)]
        return {
            one["name"]: {
                stream: _told(partial(self._idle_lag, one, stream), _nothing)
                for stream in one["starts"]
            }
            for one in idle[:IDLE_LAGS_MAX]
        }

    def _idle_lag(self, query: Facts, stream: str) -> Facts | None:
        position = query["starts"][stream]
        for source in things(query["progress"], "sources"):
            told = number(source, "endOffset")
            if stream_of(source) == stream and told is not None:
                position = max(int(told), 0)
        now_ms = time.time_ns() // 1_000_000
        try:
            lag = self._client.run(lambda log: measure_lag(log, stream, position, now_ms=now_ms))
        except (Forbidden, BadRequest, NotFound):
            return None
        return {
            "records": lag.records,
            "seconds": round(lag.seconds, 3),
            "isLowerBound": lag.is_lower_bound,
        }

    def _find_streams(self) -> list[Facts]:
        found = self._client.list_metadata(KEY_PREFIX)
        names = {key.removeprefix(KEY_PREFIX): value.data for key, value in sorted(found.items())}
        return [
            _told(partial(_stream, name, data), partial(_unread, name, "ddl"))
            for name, data in names.items()
        ]

    def _find_deliveries(self) -> list[Facts]:
        acks = self._client.list_metadata(DELIVERED_PREFIX)
        found: list[Facts] = []
        for key, value in sorted(self._client.list_metadata(DELIVER_PREFIX).items()):
            name = key.removeprefix(DELIVER_PREFIX)
            ack = acks.get(delivered_key(name))
            tell = partial(self._delivery, name, value, None if ack is None else ack.data)
            try:
                found.append(_told(tell, partial(_unread, name, "error")))
            except Forbidden as error:
                found.append(_unread(name, "error", str(error)))
        self._acks.keep(one["name"] for one in found)
        return found

    def _delivery(self, name: str, value: Value, ack: bytes | None) -> Facts:
        told = None if ack is None else decode_delivered(name, ack)
        found = delivery_facts(self._client, decode_delivery(name, value.data, value.lsn), told)
        said_ms = None if told is None else told.time_ms
        heard = self._acks.judge(name, found.state.value, said_ms, time.monotonic())
        return {**found.as_json(), "state": heard}


def _unread(name: str, field: str, why: str) -> Facts:
    return {"name": name, "state": None, field: why}


def _nothing(why: str) -> None:
    """What could not be measured is not known."""


def _told(tell: Callable[[], T], instead: Callable[[str], T]) -> T:
    """One fact, or why there is none. Whoever may append wrote what it is made of: whatever is
    wrong with that is told of this one thing, and hides no other."""
    try:
        return tell()
    except (Retryable, Unauthorized, Forbidden):
        raise
    except Exception as error:
        logger.debug("a fact cannot be told cause=%r", error)
        return instead(str(error) or type(error).__name__)


def _stream(name: str, data: bytes) -> Facts:
    found = decode_definition(name, data)
    return {
        "name": name,
        "ddl": found.ddl,
        "lanes": found.lanes,
        "key": list(found.key),
        "created": time_text(found.created_ms),
    }
