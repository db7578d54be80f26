"""Produce: batches of records into partitions, each once however often it is sent.

A batch of an idempotent producer is appended together with its number, guarded by the numbers
before it (sequences.py). What is known of them is remembered here only to save asking: the guard
decides. Law: a batch that is answered without an error is durable, once, at its place in its
producer's order, whichever gateways it was sent through.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.errors import BadFormat, BadRow, GuardFailed, TooLarge
from penstock.gateway.config import CELLS_MAX
from penstock.gateway.kafka.errors import KafkaRefused
from penstock.gateway.kafka.names import seq_key
from penstock.gateway.kafka.offsets import ROWS_MAX, offset_of
from penstock.gateway.kafka.records import NO_PRODUCER, Records, decode_records
from penstock.gateway.kafka.rows import records_to_batches
from penstock.gateway.kafka.sequences import (
    NewBatch,
    Sent,
    Sequences,
    decide,
    decode_sequences,
    set_at_ms,
)
from penstock.ids import Lsn
from penstock.limits import GROUP_BYTES_MAX, PAYLOAD_BYTES_MAX
from penstock.log.client.client import AsyncLog
from penstock.log.client.packing import pack
from penstock.log.core.owners import SEQUENCES_PREFIX
from penstock.log.records import Guard, Kind, NewEntry, SetKey, Value
from penstock.stream.batches import encode_batch, split_batch
from penstock.stream.lanes import lanes_of
from penstock.stream.registration import Registration

#: Bytes that a batch may unfold to: it must fit into one group of the log.
UNFOLDED_BYTES_MAX = 2 * GROUP_BYTES_MAX
#: Producers and partitions whose numbers are remembered.
_KNOWN_MAX = 4096
#: Guards that failed in a row: others append the same numbers at this moment.
_TRIES_MAX = 8
#: Producers that have been silent for so long are forgotten; how often that is looked for.
IDLE_MS = 7 * 24 * 3600 * 1000
_LOOK_MS = 3600 * 1000


@dataclass(slots=True)
class _Known:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: The key's value; None: absent, if it was asked for.
    value: Value | None = None
    is_asked: bool = False


@dataclass(frozen=True, slots=True)
class Produced:
    """Where a batch is."""

    offset: int
    rows: int
    duplicate: bool = False


def unpack(data: bytes | None, stream: Registration) -> tuple[Records, list[pa.RecordBatch]]:
    """Raises BadFormat, BadRow, TooLarge."""
    rows_max = min(ROWS_MAX, CELLS_MAX // len(stream.schema))
    records = decode_records(data or b"", bytes_max=UNFOLDED_BYTES_MAX, count_max=rows_max)
    return records, records_to_batches(records, stream.schema)


def make_entries(
    stream: Registration, batches: list[pa.RecordBatch], partition: int, kind: Kind = Kind.DATA
) -> list[NewEntry]:
    """The entries of a batch, all of one group. Where the stream has a key, that says the lane."""
    lanes = lanes_of(stream)

    def entries() -> Iterator[NewEntry]:
        for batch in batches:
            for piece in split_batch(batch, PAYLOAD_BYTES_MAX):
                parts = lanes.split(piece, 0) if lanes.key else [(piece, lanes.tags(partition))]
                for rows, tags in parts:
                    yield NewEntry(encode_batch(rows), tags, kind, rows.num_rows)

    groups = list(pack(entries()))
    if len(groups) > 1:
        raise TooLarge("a batch takes more than one group of the log, about 4 MiB")
    if not groups:
        raise BadRow("a batch without records")
    return groups[0]


class Producing:
    """Of one session."""

    def __init__(self, log: AsyncLog) -> None:
        self._log = log
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._look_at_ms = 0

    async def append(
        self, stream: Registration, partition: int, records: Records, batches: list[pa.RecordBatch]
    ) -> Produced:
        entries = make_entries(stream, batches, partition)
        if records.producer_id == NO_PRODUCER:
            done = await self._log.append(entries)
            return Produced(offset_of(done.first_lsn), records.count)
        key = seq_key(stream.name, records.producer_id, partition)
        known = self._find(key)
        async with known.lock:
            return await self._append_once(known, key, records, entries)

    async def _append_once(
        self, known: _Known, key: str, records: Records, entries: list[NewEntry]
    ) -> Produced:
        for attempt in range(_TRIES_MAX):
            is_remembered = known.is_asked
            if not is_remembered:
                known.value = await self._log.get(key)
                known.is_asked = True
            found = known.value
            now_ms = time.time_ns() // 1_000_000
            try:
                step = decide(
                    read_sequences(found), records.epoch, records.sequence, records.count,
                    len(entries), now_ms,
                )  # fmt: skip
            except KafkaRefused:
                if not is_remembered:
                    raise
                known.is_asked = False  # it may have gone on at another gateway: ask
                continue
            if isinstance(step, Sent):
                return Produced(offset_of(step.lsn), records.count, True)
            assert isinstance(step, NewBatch)
            guard = Guard(key, None if found is None else found.data)
            known.is_asked = False  # until the answer is here, nobody knows
            try:
                done = await self._log.append(
                    entries, guards=[guard], sets=[SetKey(key, step.value)]
                )
            except GuardFailed:
                if attempt == _TRIES_MAX - 1:
                    raise
                continue
            known.value = Value(step.value, Lsn(done.first_lsn + len(entries)))
            known.is_asked = True
            return Produced(offset_of(done.first_lsn), records.count)
        raise AssertionError("the loop returns or raises")

    async def forget_idle(self, now_ms: int) -> bool:
        """Take away what is kept of producers that have been silent for IDLE_MS.

        By whoever opens a producer, now and then: one that writes meanwhile keeps its guard.
        Whether it was time to look.
        """
        if now_ms < self._look_at_ms:
            return False
        self._look_at_ms = now_ms + _LOOK_MS
        await forget_older(self._log, SEQUENCES_PREFIX, set_at_ms, now_ms - IDLE_MS)
        return True

    def _find(self, key: str) -> _Known:
        known = self._known.get(key)
        if known is None:
            for old in [name for name, each in self._known.items() if not each.lock.locked()]:
                if len(self._known) < _KNOWN_MAX:
                    break
                del self._known[old]
            known = self._known[key] = _Known()
        self._known.move_to_end(key)
        return known


async def forget_older(
    log: AsyncLog, prefix: str, set_at: Callable[[bytes], int], time_ms: int
) -> None:
    """Take away keys whose values say that they were set before this time."""
    for key, value in (await log.list_metadata(prefix)).items():
        try:
            if set_at(value.data) < time_ms:
                await log.compare_and_set(key, expected=value.data, value=None)
        except (GuardFailed, BadFormat):
            pass  # it is idle no more, or none of ours


def read_sequences(value: Value | None) -> Sequences | None:
    return None if value is None else decode_sequences(value.data, value.lsn)
