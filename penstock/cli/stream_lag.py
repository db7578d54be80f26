"""`penstock stream lag`: how far queries and deliveries are behind the end of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.delivery_facts import DeliveryFacts, list_facts
from penstock.cli.output import json_option, show_json, show_table
from penstock.cli.query_facts import QueryFacts, list_queries, now_ms
from penstock.cli.stream_target import open_log
from penstock.cli.target import Target, target_options
from penstock.runtime.lag import Lag, measure_lag

if TYPE_CHECKING:
    from penstock.stream.session import Log


@click.command()
@click.argument("name")
@target_options
@json_option
def lag(name: str, target: Target, as_json: bool) -> None:
    """How far queries and deliveries are behind the end of stream NAME, running or not.

    Rows that a query has not committed yet, or a delivery's slowest target has not applied, and the
    age of the oldest of them; "+" if there are more than were counted.

    \b
    Examples:
      penstock stream lag bids
      penstock stream lag bids --json | jq '.[] | select(.seconds > 10)'
    """
    with open_log(target) as log:
        log.stream(name)  # or say that there is none
        found = [
            _query_lag(log, name, one)
            for one in list_queries(log.client)
            if name in one.registered.starts
        ]
        found += [_delivery_lag(one) for one in list_facts(log.client, name)]
    if as_json:
        show_json(found)
        return
    show_table(
        ["reader", "state", "position", "lag rows", "lag s"],
        [
            (
                f"query {one['query']}" if "query" in one else f"delivery {one['delivery']}",
                one["state"],
                one["position"],
                f"{one['records']}{'+' if one['is_lower_bound'] else ''}",
                f"{one['seconds']:.3f}",
            )
            for one in found
        ],
    )


def _query_lag(log: Log, name: str, query: QueryFacts) -> dict[str, Any]:
    """Up to where it has committed is in its last report; it has none before it ran."""
    position = query.registered.starts[name]
    for source in (query.progress or {}).get("sources", ()):
        if source["description"].endswith(f" {name}") and source["endOffset"] is not None:
            position = source["endOffset"]
    behind = log.client.run(lambda client: measure_lag(client, name, position, now_ms=now_ms()))
    return {"query": query.name, **_facts(query.state.value, position, behind)}


def _delivery_lag(delivery: DeliveryFacts) -> dict[str, Any]:
    facts = _facts(delivery.state.value, delivery.position, delivery.lag)
    return {"delivery": delivery.name, **facts}


def _facts(state: str, position: int, lag: Lag) -> dict[str, Any]:
    return {
        "state": state,
        "position": position,
        "records": lag.records,
        "seconds": round(lag.seconds, 3),
        "is_lower_bound": lag.is_lower_bound,
    }
