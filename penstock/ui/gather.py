"""The facts of one update, read from the log as the command line reads them.

On a thread of its own, over the connection of who looks. Laws: what the token does not allow is
left out and said; whatever cannot be read hides nothing else; if the log does not answer, Retryable
is raised, and nothing is half told.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from penstock.cli.delivery_facts import facts_of as delivery_facts
from penstock.cli.query_facts import facts_of as query_facts
from penstock.errors import BadFormat, BadRequest, Forbidden, NotFound, PenstockError, Retryable
from penstock.log.client.blocking import BlockingLog
from penstock.protocol.deliveries import decode_delivered, decode_delivery
from penstock.protocol.names import (
    DELIVER_PREFIX,
    DELIVERED_PREFIX,
    QUERY_PREFIX,
    delivered_key,
)
from penstock.stream.registration import KEY_PREFIX, decode_definition
from penstock.stream.times import time_text
from penstock.ui.config import QUERIES_MAX, SELDOM

Facts = dict[str, Any]
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
        self._deliveries: list[Facts] = []
        self._cluster: Facts | None = None

    def gather(self) -> Facts:
        """Raises Retryable, or Unauthorized."""
        queries, left_out = self._queries()
        if self._rounds % SELDOM == 0:
            self._streams = self._find_streams()
            self._deliveries = self._find_deliveries()
            self._cluster = None if self._ask_cluster is None else self._ask_cluster()
        self._rounds += 1
        return {
            "at_ms": time.time_ns() // 1_000_000,
            "log": {"target": self._target, **self._log()},
            "queries": queries,
            "queries_left_out": left_out,
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
        told = [
            self._query(key.removeprefix(QUERY_PREFIX), value.data)
            for key, value in found[:QUERIES_MAX]
        ]
        return [one for one in told if one is not None], max(len(found) - QUERIES_MAX, 0)

    def _query(self, name: str, data: bytes) -> Facts | None:
        """None for one that the token may know of, but not look at."""
        try:
            return query_facts(self._client, name, data).as_json()
        except Forbidden:
            return None
        except Retryable:
            raise
        except PenstockError as error:
            return {"name": name, "state": None, "why": str(error)}

    def _find_streams(self) -> list[Facts]:
        found = self._client.list_metadata(KEY_PREFIX)
        return [
            _stream(key.removeprefix(KEY_PREFIX), value.data)
            for key, value in sorted(found.items())
        ]

    def _find_deliveries(self) -> list[Facts]:
        acks = self._client.list_metadata(DELIVERED_PREFIX)
        found: list[Facts] = []
        for key, value in sorted(self._client.list_metadata(DELIVER_PREFIX).items()):
            name = key.removeprefix(DELIVER_PREFIX)
            try:
                ack = acks.get(delivered_key(name))
                delivered = None if ack is None else decode_delivered(name, ack.data)
                registered = decode_delivery(name, value.data)
                found.append(delivery_facts(self._client, registered, delivered).as_json())
            except (Forbidden, NotFound, BadFormat) as error:
                found.append({"name": name, "state": None, "error": str(error)})
        return found


def _stream(name: str, data: bytes) -> Facts:
    try:
        found = decode_definition(name, data)
    except BadFormat as error:
        return {"name": name, "ddl": f"({error})"}
    return {
        "name": name,
        "ddl": found.ddl,
        "lanes": found.lanes,
        "key": list(found.key),
        "created": time_text(found.created_ms),
    }
