"""Which targets of deliveries have applied the rows of an entry, by the last acks.

Owns the words. Where an entry counts decides: rows that are staged count at their marker's place
(protocol/committed.py), and a target has applied what counts below its position. An ack is up to a
second old, so a target may be further than is said here, and never less far, unless it was restored
from a backup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.delivery.registration import list_deliveries
from penstock.delivery.routing import Commit, Router
from penstock.errors import Damaged, NotFound
from penstock.ids import Lsn
from penstock.log.records import Entry, Kind
from penstock.protocol.deliveries import Delivered, RegisteredDelivery
from penstock.stream.batches import decode_batch
from penstock.stream.registration import TAG_PREFIX
from penstock.stream.session import Log


def delivery_facts(
    log: Log, entry: Entry, commit: dict[str, Any] | None
) -> list[dict[str, Any]] | None:
    """By delivery of the entry's stream, how its targets stand to it; None: it has no such rows."""
    names = [tag.removeprefix(TAG_PREFIX) for tag in entry.tags if tag.startswith(TAG_PREFIX)]
    if entry.kind not in (Kind.DATA, Kind.STAGED, Kind.MARKER) or not names:
        return None
    counts_at: int | None = entry.lsn
    if entry.kind is Kind.STAGED:
        counts_at = (commit or {}).get("marker_lsn")
    return [
        _facts(log, entry, counts_at, registered, ack)
        for registered, ack in list_deliveries(log.client)
        if registered.stream == names[0] and _is_delivered(entry, registered)
    ]


def _is_delivered(entry: Entry, delivery: RegisteredDelivery) -> bool:
    """Of a query's result, only rows of its tasks are."""
    own = "" if delivery.query is None else f"@{delivery.query}.{delivery.version}/"
    return entry.producer.startswith(own)


def _facts(
    log: Log,
    entry: Entry,
    counts_at: int | None,
    delivery: RegisteredDelivery,
    ack: Delivered | None,
) -> dict[str, Any]:
    told: Sequence[int | None] = () if ack is None else ack.positions
    # A target that is new is not in an ack of before.
    positions = [*told, *[None] * (delivery.shards - len(told))]
    targets = [
        {
            "shard": shard,
            "target": delivery.targets[shard],
            "rows": rows,
            "state": _state(counts_at, delivery.start, positions[shard]),
        }
        for shard, rows in _rows_by_shard(log, entry, counts_at, delivery).items()
    ]
    return {"delivery": delivery.name, "targets": targets}


def _rows_by_shard(
    log: Log, entry: Entry, counts_at: int | None, delivery: RegisteredDelivery
) -> Mapping[int, int | None]:
    """Of a marker, nothing is known of the rows that it commits: all shards."""
    if entry.kind is Kind.MARKER:
        return dict.fromkeys(range(delivery.shards))
    try:
        schema = log.stream(delivery.stream).schema
        batch = decode_batch(entry.payload, schema)
    except (NotFound, Damaged):
        return {}
    router = Router(schema, delivery.key, delivery.layout.route_at(counts_at or entry.lsn))
    commit = Commit(entry.lsn, (batch,), len(entry.payload))
    span = router.route([commit], after=entry.lsn, upto=Lsn(entry.lsn + 1))
    return {shard: piece.count for shard, piece in sorted(span.pieces.items())}


def _state(counts_at: int | None, start: int, position: int | None) -> str:
    if counts_at is None:
        return "not committed"
    if counts_at < start:
        return "before its start"
    return "applied" if position is not None and counts_at < position else "not yet"


def delivery_fields(found: list[dict[str, Any]] | None) -> list[tuple[str, object]]:
    """The same for people."""
    return [
        (
            "delivered",
            f"{one['delivery']}, shard {target['shard']}: {_rows_text(target['rows'])}"
            f"{target['state']} ({target['target']})",
        )
        for one in found or ()
        for target in one["targets"]
    ]


def _rows_text(rows: int | None) -> str:
    if rows is None:
        return ""
    return f"{rows} row{'' if rows == 1 else 's'} "
