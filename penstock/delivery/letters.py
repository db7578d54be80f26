"""Rows that a target refuses, for the dead-letter stream. Pure.

Law: a row has one key in the log's metadata, by delivery, shard, and where it counts. The append
that writes it is guarded by that key and sets it, so a replay of the row writes it no second time.
"""

from __future__ import annotations

import json

import pyarrow as pa

from penstock.delivery.messages import join_rows
from penstock.delivery.player_core import SetAside
from penstock.log.records import Guard, NewEntry, SetKey
from penstock.protocol.deliveries import RegisteredDelivery
from penstock.protocol.names import aside_key
from penstock.runtime.dead_letters import TEXT_MAX, DeadLetter, dead_letter_rows
from penstock.stream.batches import encode_batch
from penstock.stream.lanes import lanes_of
from penstock.stream.registration import Registration


def letter_entry(
    aside: SetAside, delivery: RegisteredDelivery, stream: Registration
) -> tuple[NewEntry, Guard, SetKey]:
    """What to append to the dead-letter stream, on which condition, and what to set with it."""
    rows = dead_letter_rows([_letter(aside, delivery)], stream.schema)
    ((piece, tags),) = lanes_of(stream).split(rows, aside.lsn)
    key = aside_key(delivery.name, aside.shard, aside.lsn, aside.row)
    entry = NewEntry(encode_batch(piece), tags, rows=piece.num_rows)
    return entry, Guard(key, None), SetKey(key, b"")


def _letter(aside: SetAside, delivery: RegisteredDelivery) -> DeadLetter:
    batches: list[pa.RecordBatch] = [rows for one in aside.batch.pieces for rows in one.rows]
    (values,) = join_rows(batches).slice(aside.number, 1).to_pylist()
    return DeadLetter(
        task=f"deliver/{delivery.name}/{aside.shard}",
        origin=delivery.stream,
        lsn=aside.lsn,
        row=json.dumps(values, default=str)[:TEXT_MAX],
        error=type(aside.error).__name__,
        message=str(aside.error)[:TEXT_MAX],
        traceback="",
    )
