"""A delivery in the log's registry: made, found again, changed, removed.

Owns what a delivery keeps for its life: stream or query, key, table and the number of its shards.
Another value of one of them is refused in words, since targets hold rows by the old one. Addresses
of targets may change with every start, if none becomes that of another shard; so may `strict` and
the dead-letter stream. Their number changes in one append (`reshard`), whose place in the log is
the cut. Law: of all that register a name at the same time, one does; the others find
it. Law: no secret is registered.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable
from typing import Final

from penstock.config import masked_uri
from penstock.errors import GuardFailed, NotFound, PlanChanged
from penstock.ids import Lsn
from penstock.log.client.blocking import BlockingLog
from penstock.log.records import Guard, SetKey
from penstock.protocol.deliveries import (
    Delivered,
    RegisteredDelivery,
    decode_delivered,
    decode_delivery,
    encode_delivery,
)
from penstock.protocol.names import (
    ASIDE_PREFIX,
    DELIVER_PREFIX,
    DELIVERED_PREFIX,
    deliver_key,
    delivered_key,
)

#: Keys that are removed in one append.
_REMOVED_AT_ONCE: Final = 500


def register(
    client: BlockingLog, wanted: RegisteredDelivery, find_start: Callable[[], Lsn]
) -> RegisteredDelivery:
    """The delivery as it is registered from now on; `find_start` is asked if it is new.

    Raises PlanChanged if there is one of this name that delivers something else, or otherwise.
    """
    key = deliver_key(wanted.name)
    while True:
        value = client.get(key)
        if value is None:
            chosen = dataclasses.replace(wanted, start=find_start())
        else:
            found = decode_delivery(wanted.name, value.data, value.lsn)
            chosen = continue_with(found, wanted)
            if chosen == found:
                return found
        try:
            client.compare_and_set(
                key, expected=None if value is None else value.data, value=encode_delivery(chosen)
            )
        except GuardFailed:
            continue  # another was faster
        if value is not None or chosen.start >= client.bounds().trim_point:
            return chosen
        # The log was trimmed while nobody could know of the new delivery: begin later.
        client.compare_and_set(key, expected=encode_delivery(chosen), value=None)


def continue_with(found: RegisteredDelivery, wanted: RegisteredDelivery) -> RegisteredDelivery:
    """What is registered, with what may change; raises PlanChanged for what may not."""
    differences = [
        f"{what} was {was or 'none'}, is {now or 'none'}"
        for what, was, now in (
            ("stream", found.stream, wanted.stream),
            ("query", _query_text(found), _query_text(wanted)),
            ("key", ", ".join(found.key), ", ".join(wanted.key)),
            ("table", found.table, wanted.table),
            ("number of targets", len(found.layout.live), wanted.shards),
        )
        if was != now
    ]
    differences += _moved_targets(found, wanted)
    if differences and found.past:
        now = ", ".join(map(masked_uri, live_targets(found)))
        differences.append(f"it was given other targets at LSN {found.past[-1].cut}, {now}")
    if differences:
        raise PlanChanged(
            f"delivery {wanted.name} exists and delivers otherwise: {'; '.join(differences)}. "
            "Give it another name, or remove that one first (`penstock delivery remove "
            f"{wanted.name}`; its tables stay as they are)"
        )
    targets = list(found.targets)
    for shard, uri in zip(found.layout.live, wanted.targets, strict=True):
        if masked_uri(targets[shard]) != uri:  # what was registered may tell the user, too
            targets[shard] = uri
    return dataclasses.replace(
        found, targets=targets, strict=wanted.strict, dead_letter=wanted.dead_letter
    )


def live_targets(delivery: RegisteredDelivery) -> list[str]:
    """Of the shards that have rows from the last cut on, in the order in which a start has them."""
    return [delivery.targets[shard] for shard in delivery.layout.live]


def _moved_targets(found: RegisteredDelivery, wanted: RegisteredDelivery) -> list[str]:
    """Each holds the rows of its shard: of another, it would have those of both."""
    known = [masked_uri(uri) for uri in found.targets]
    return [
        f"target {shard} was {known[shard]}, is {now}, which was target {known.index(now)}"
        for shard, now in zip(found.layout.live, wanted.targets, strict=False)
        if known[shard] != now and now in known
    ]


def _query_text(delivery: RegisteredDelivery) -> str:
    if delivery.query is None:
        return ""
    return f"{delivery.query} in its version {delivery.version}"


def list_deliveries(
    client: BlockingLog,
) -> list[tuple[RegisteredDelivery, Delivered | None]]:
    """All deliveries, by name, each with its last ack."""
    acks = client.list_metadata(DELIVERED_PREFIX)
    found = []
    for key, value in sorted(client.list_metadata(DELIVER_PREFIX).items()):
        name = key.removeprefix(DELIVER_PREFIX)
        ack = acks.get(delivered_key(name))
        delivered = None if ack is None else decode_delivered(name, ack.data)
        found.append((decode_delivery(name, value.data, value.lsn), delivered))
    return found


def remove_delivery(client: BlockingLog, name: str) -> None:
    """Forget it: its player ends, and it holds nothing of the log back. Targets keep their rows.

    Raises NotFound, with names that are close.
    """
    while True:
        value = client.get(deliver_key(name))
        if value is None:
            raise NotFound(f"no delivery {name}: {other_names(client, name)}")
        sets = [SetKey(deliver_key(name), None), SetKey(delivered_key(name), None)]
        try:
            client.append([], guards=[Guard(deliver_key(name), value.data)], sets=sets)
        except GuardFailed:
            continue
        break
    aside = list(client.list_metadata(f"{ASIDE_PREFIX}{name}/"))
    for first in range(0, len(aside), _REMOVED_AT_ONCE):
        gone = aside[first : first + _REMOVED_AT_ONCE]
        client.append([], sets=[SetKey(key, None) for key in gone])


def other_names(client: BlockingLog, name: str) -> str:
    """For whoever asked for one that is not there."""
    names = [key.removeprefix(DELIVER_PREFIX) for key in client.list_metadata(DELIVER_PREFIX)]
    if not names:
        return "the log has no deliveries"
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(names[:5])}"
