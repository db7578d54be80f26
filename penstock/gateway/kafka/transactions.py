"""Transactions of Kafka's clients: records and group offsets that take effect together, in one
append.

What a transaction brings is held here until its end; then all of it is one group of the log, which
is there as a whole or not at all, with the offsets set in the same step. So there is no second
phase, and a transaction is as large as a group at most. The log keeps who owns a transactional id
and whether a transaction of it has begun: a gateway that has lost one, and a producer that another
has fenced, find that out by the guard.

    empty → begun → committed | aborted → begun → …      each with its number, under one epoch

Law: a commit that is answered without an error is durable, whole and once, whichever gateways it
was asked of; after a newer producer of the id was opened, an older one commits nothing.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from penstock.errors import BadFormat, GuardFailed, TooLarge
from penstock.gateway.bodies import Budget
from penstock.gateway.kafka.errors import Code, KafkaRefused
from penstock.gateway.kafka.producing import make_entries
from penstock.gateway.kafka.records import Records
from penstock.gateway.kafka.sequences import SEQUENCES, last_of
from penstock.limits import GROUP_BYTES_MAX, KEY_BYTES_MAX, KIB
from penstock.log.client.client import AsyncLog
from penstock.log.client.packing import GROUP_ENTRIES, group_bytes
from penstock.log.core.owners import TRANSACTIONS_PREFIX
from penstock.log.records import Guard, NewEntry, SetKey
from penstock.stream.registration import Registration

#: What a transaction holds at most: the rest of its group is for offsets.
TRANSACTION_BYTES_MAX = GROUP_BYTES_MAX - 512 * KIB
OFFSETS_MAX = 512
SECONDS_MAX = 900.0
_EPOCH_MAX = 32_000
_IDS_MAX = 1024


@dataclass(frozen=True, slots=True)
class Owner:
    """What the log keeps of a transactional id."""

    producer_id: int
    epoch: int
    #: Transactions so far; whether the last has begun, or how it ended.
    number: int = 0
    state: str = "empty"

    def encode(self) -> bytes:
        fields = (self.producer_id, self.epoch, self.number, self.state)
        return json.dumps(fields, separators=(",", ":")).encode()


def decode_owner(data: bytes) -> Owner:
    try:
        producer_id, epoch, number, state = json.loads(data)
        return Owner(int(producer_id), int(epoch), int(number), str(state))
    except (ValueError, TypeError) as error:
        raise BadFormat(f"bytes that are no owner of transactions: {error}") from None


@dataclass(slots=True)
class _Open:
    """A transaction that has begun here."""

    owner: Owner
    budget: Budget
    entries: list[NewEntry] = field(default_factory=list)
    offsets: dict[str, SetKey] = field(default_factory=dict)
    held: int = 0
    timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        self.budget.give(self.held)
        self.held = 0
        if self.timer is not None:
            self.timer.cancel()


@dataclass(slots=True)
class _Known:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    seconds: float = SECONDS_MAX
    open: _Open | None = None
    #: Of the producer's epoch: the last sequence number of each partition.
    epoch: tuple[int, int] = (-1, -1)
    last: dict[tuple[str, int], int] = field(default_factory=dict)

    def drop(self) -> None:
        if self.open is not None:
            self.open.close()
            self.open = None


class Transactions:
    """Of one session: transactional ids are its token's."""

    def __init__(self, log: AsyncLog) -> None:
        self._log = log
        self._known: dict[str, _Known] = {}

    async def open_producer(self, txn: str, asked: dict[str, Any]) -> tuple[int, int]:
        """A producer id and epoch that fence all older ones; what they had begun is no more."""
        known, key = self._find(txn), self._key(txn)
        async with known.lock:
            known.drop()
            known.seconds = min(max(asked["timeout_ms"] / 1000, 1.0), SECONDS_MAX)
            value = await self._log.get(key)
            last = None if value is None else decode_owner(value.data)
            given = asked.get("producer_id", -1), asked.get("epoch", -1)
            if last is not None and given[0] >= 0 and given != (last.producer_id, last.epoch):
                raise _fenced(given[1], last)
            if last is None or last.epoch >= _EPOCH_MAX:
                owner = Owner(secrets.randbits(62), 0)
            else:
                owner = Owner(last.producer_id, last.epoch + 1, last.number)
            expected = None if value is None else value.data
            await self._log.compare_and_set(key, expected=expected, value=owner.encode())
            return owner.producer_id, owner.epoch

    async def begin(self, asked: dict[str, Any], budget: Budget) -> None:
        """Before what a transaction brings; again and again does no harm."""
        known, key = self._find(asked["txn"]), self._key(asked["txn"])
        async with known.lock:
            if self._is_open(known, asked):
                return
            owner = await self._owner(key, asked)
            if owner.state == "begun":
                raise _lost()
            begun = replace(owner, number=owner.number + 1, state="begun")
            known.drop()
            await self._log.compare_and_set(key, expected=owner.encode(), value=begun.encode())
            opened = known.open = _Open(begun, budget)
            loop = asyncio.get_running_loop()
            opened.timer = loop.call_later(known.seconds, self._expire, known, opened)
            if known.epoch != (begun.producer_id, begun.epoch):
                known.epoch = begun.producer_id, begun.epoch
                known.last.clear()

    def add(
        self,
        txn: str,
        stream: Registration,
        partition: int,
        records: Records,
        batches: list[pa.RecordBatch],
    ) -> None:
        """Hold what was produced. A batch that was sent before changes nothing."""
        known = self._find(txn)
        opened = self._opened(known, records.producer_id, records.epoch)
        place = stream.name, partition
        before = known.last.get(place)
        if before is not None:
            gap = (records.sequence - before - 1) % SEQUENCES
            if gap >= SEQUENCES // 2:
                return  # sent again, since its answer was lost
            if gap:
                raise KafkaRefused(
                    Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"sequence {records.sequence} leaves a gap: the last is {before}",
                )
        entries = make_entries(stream, batches, partition)
        size = group_bytes(entries)
        too_many = len(opened.entries) + len(entries) > GROUP_ENTRIES
        if opened.held + size > TRANSACTION_BYTES_MAX or too_many:
            raise TooLarge(
                f"a transaction holds {TRANSACTION_BYTES_MAX} bytes of rows at most: commit more "
                "often"
            )
        opened.budget.take(size)
        opened.held += size
        opened.entries += entries
        known.last[place] = last_of(records.sequence, records.count)

    def add_offsets(self, asked: dict[str, Any], sets: list[SetKey]) -> None:
        """How far a group is once the transaction is committed."""
        opened = self._opened(self._find(asked["txn"]), asked["producer_id"], asked["epoch"])
        if len(opened.offsets) + len(sets) > OFFSETS_MAX:
            raise TooLarge(f"a transaction has offsets of {OFFSETS_MAX} partitions at most")
        opened.offsets |= {change.key: change for change in sets}

    async def end(self, asked: dict[str, Any]) -> None:
        """Commit or abort. Asked again, it is answered as the first time."""
        known, key = self._find(asked["txn"]), self._key(asked["txn"])
        state = "committed" if asked["commit"] else "aborted"
        async with known.lock:
            owner = await self._owner(key, asked)
            if owner.state != "begun":
                if owner.state != state:
                    raise KafkaRefused(Code.INVALID_TXN_STATE, f"the last was {owner.state}")
                known.drop()
                return
            opened = known.open
            is_here = opened is not None and opened.owner == owner
            if asked["commit"] and not is_here:
                raise _lost()
            sets = [SetKey(key, replace(owner, state=state).encode())]
            entries: list[NewEntry] = []
            if opened is not None and asked["commit"]:
                entries, sets = opened.entries, [*sets, *opened.offsets.values()]
            try:
                await self._log.append(entries, guards=[Guard(key, owner.encode())], sets=sets)
            except GuardFailed:
                raise _fenced(asked["epoch"], None) from None
            known.drop()

    # ---- what is known

    def _key(self, txn: str) -> str:
        key = f"{TRANSACTIONS_PREFIX}{self._log.anonymous_prefix}/{quote(txn, safe='')}"
        if not txn or len(key) > KEY_BYTES_MAX:
            raise KafkaRefused(Code.INVALID_REQUEST, "the transactional id is empty or too long")
        return key

    def _find(self, txn: str) -> _Known:
        known = self._known.get(txn)
        if known is None:
            for old in [id for id, each in self._known.items() if each.open is None]:
                if len(self._known) < _IDS_MAX:
                    break
                if not self._known[old].lock.locked():
                    del self._known[old]
            known = self._known[txn] = _Known()
        return known

    async def _owner(self, key: str, asked: dict[str, Any]) -> Owner:
        value = await self._log.get(key)
        owner = None if value is None else decode_owner(value.data)
        if owner is None or owner.producer_id != asked["producer_id"]:
            raise KafkaRefused(Code.INVALID_PRODUCER_ID_MAPPING, "another producer has this id")
        if owner.epoch != asked["epoch"]:
            raise _fenced(asked["epoch"], owner)
        return owner

    def _is_open(self, known: _Known, asked: dict[str, Any]) -> bool:
        opened = known.open
        return opened is not None and (opened.owner.producer_id, opened.owner.epoch) == (
            asked["producer_id"],
            asked["epoch"],
        )

    def _opened(self, known: _Known, producer_id: int, epoch: int) -> _Open:
        if known.open is None:
            raise _lost()
        if not self._is_open(known, {"producer_id": producer_id, "epoch": epoch}):
            raise _fenced(epoch, known.open.owner)
        return known.open

    @staticmethod
    def _expire(known: _Known, opened: _Open) -> None:
        if known.open is opened and not known.lock.locked():
            known.drop()


def _fenced(epoch: int, owner: Owner | None) -> KafkaRefused:
    now = "" if owner is None else f", it is {owner.epoch} now"
    return KafkaRefused(Code.INVALID_PRODUCER_EPOCH, f"epoch {epoch} is over{now}")


def _lost() -> KafkaRefused:
    return KafkaRefused(
        Code.TRANSACTION_ABORTABLE, "the transaction is not here any more: abort it, and begin anew"
    )
