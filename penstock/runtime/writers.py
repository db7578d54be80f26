"""Which queries write a stream: one, unless a start says that the stream is shared.

The writers of a stream are the queries that are registered with it as their result; one that is
removed is none any more. Whoever registers a query guards it by the stream's key `writers/<stream>`
and changes that key in the same step. Law: of two queries that are registered at once with one
stream, the second knows of the first. Queries from before the key are found all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import BadRequest
from penstock.log.client.blocking import BlockingLog
from penstock.log.records import Guard, SetKey
from penstock.protocol.names import QUERY_PREFIX, writers_key
from penstock.runtime.registry import RegisteredQuery, result_of


@dataclass(frozen=True, slots=True)
class Writers:
    """The queries that write a stream, as of one moment."""

    stream: str
    names: Sequence[str]
    #: That it still is that moment.
    guard: Guard

    def join(self, query: RegisteredQuery) -> SetKey:
        """The change of the key that goes with a registration; no two are the same."""
        value = f"{query.name}.{query.version} {query.id}".encode()
        return SetKey(writers_key(self.stream), value)

    def check_new(self, name: str, *, shared: bool) -> None:
        """BadRequest if another query writes the stream, and nobody said that it is shared."""
        others = self._others(name)
        if others and not shared:
            raise BadRequest(
                f"stream {self.stream} is the result of query {', '.join(others)}: rows of two "
                f"queries would mix. Give query {name} another `to=`; or, if this is what you "
                "want, say shared=True"
            )

    def check_restart(self, name: str) -> None:
        """BadRequest if the stream cannot begin anew, since it is another query's result, too."""
        others = self._others(name)
        if others:
            raise BadRequest(
                f"query {name} cannot begin anew in stream {self.stream}, which is the result of "
                f"query {', '.join(others)}, too: its rows would go as well. Give query {name} "
                "another `to=`"
            )

    def _others(self, name: str) -> list[str]:
        return [other for other in self.names if other != name]


def read_writers(client: BlockingLog, stream: str) -> Writers:
    key = writers_key(stream)
    value = client.get(key)  # first: a query that is registered after it makes the guard fail
    names = []
    for registered, found in client.list_metadata(QUERY_PREFIX).items():
        name = registered.removeprefix(QUERY_PREFIX)
        if result_of(name, found.data) == stream:
            names.append(name)
    return Writers(stream, sorted(names), Guard(key, None if value is None else value.data))
