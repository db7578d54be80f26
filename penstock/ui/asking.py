"""What a page may ask for: that a query stops, or runs with another number of workers.

The log decides by the token whether it may; it is asked for, and the page shows what comes of it.
"""

from __future__ import annotations

from typing import Any

from penstock.cli.query_asks import ask, who
from penstock.cli.query_facts import find_query, listen
from penstock.errors import BadRequest
from penstock.log.client.blocking import BlockingLog
from penstock.log.core.rights import read_rights
from penstock.protocol.names import check_query_name
from penstock.protocol.pulses import State
from penstock.runtime.control import Message, Rescale, Stop
from penstock.wire.token import is_narrowed, split_token

WORKERS_MAX = 1000


def may_ask(token: str, query: str) -> bool:
    """Whether the token's own words allow it; the log may still refuse."""
    if not is_narrowed(token):
        return True
    try:
        rights = read_rights(split_token(token)[0])
    except BadRequest:
        return False
    return all(one.is_admin or one.run.match(query) for one in rights.allowed)


def request_of(what: str, asked: dict[str, Any]) -> Message:
    """Raises BadRequest."""
    by = f"the page, {who()}"
    if what == "stop":
        return Stop(by)
    workers = asked.get("workers")
    if type(workers) is not int or not 0 <= workers <= WORKERS_MAX:
        raise BadRequest(f'"workers" is no number in 0..{WORKERS_MAX}')
    return Rescale(workers, by)


def ask_query(client: BlockingLog, name: str, message: Message) -> dict[str, Any]:
    """Where the request stands in the log. Raises BadRequest if nobody runs the query."""
    check_query_name(name)
    found = listen(client, find_query(client, name))
    if found.state is not State.RUNNING:
        raise BadRequest(f"query {name} does not run: it is {found.state.value}")
    return {"query": name, "asked_at_lsn": ask(client, name, message)}
