"""Transactions of Kafka's clients: records and group offsets that take effect together, in one
append.

What a transaction brings is held here until its end; then all of it is one group of the log, which
is there as a whole or not at all, with the offsets set in the same step. So there is no second
phase, and a transaction is as large as a group at most. The log keeps who owns a transactional id
and whether something of a transaction is held: a gateway that has lost one, and a producer that
another has fenced, find that out by the guard.

    empty → begun → committed | aborted → begun → …      each with its number, under one epoch

A transaction is announced (`begin`), and begun in the log with the first thing that it brings. So
whose transaction has begun there knows that it has one, and ends it: a client that was not answered
when it announced one gives it up without a word.

Law: a commit that is answered without an error is durable, whole and once, whichever gateways it
was asked of; after a newer producer of the id was opened, an older one commits nothing.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from penstock.errors import BadFormat, GuardFailed, TooLarge
from penstock.gateway.bodies import Budget
from penstock.gateway.kafka.errors import Code, KafkaRefused
from penstock.gateway.kafka.producing import forget_older, make_entries
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
_AGAIN_SECONDS = 1.0
_IDS_MAX = 1024


@dataclass(frozen=True, slots=True)
class Owner:
    """What the log keeps of a transactional id."""

    producer_id: int
    epoch: int
    #: Transactions so far; whether the last has begun, or how it ended.
    number: int = 0
    state: str = "empty"
    #: When it was set: the log tells no time of what is trimmed away.
    set_ms: int = 0

    def encode(self) -> bytes:
        fields = (self.producer_id, self.epoch, self.number, self.state, self.set_ms)
        return json.dumps(fields, separators=(",", ":")).encode()


def decode_owner(data: bytes) -> Owner:
    try:
        producer_id, epoch, number, state, set_ms = json.loads(data)
        return Owner(int(producer_id), int(epoch), int(number), str(state), int(set_ms))
    except (ValueError, TypeError) as error:
        raise BadFormat(f"bytes that are no owner of transactions: {error}") from None


@dataclass(slots=True)
class _Open:
    """A transaction that was announced here."""

    #: As it is in the log.
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
    #: What we wrote last. It may be out of date: only what a guard is to confirm may rest on it.
    owner: Owner | None = None
    #: Of the producer's epoch: whether all of it came here, and the sequence numbers of each
    #: partition that did, the first and the last.
    epoch: tuple[int, int] = (-1, -1)
    is_whole: bool = False
    taken: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

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
            known.seconds = min(max(asked["timeout_ms"] / 1000, 1.0), SECONDS_MAX)
            value = await self._log.get(key)
            last = None if value is None else decode_owner(value.data)
            given = asked.get("producer_id", -1), asked.get("epoch", -1)
            if last is not None and given[0] >= 0 and given != (last.producer_id, last.epoch):
                raise _fenced(given[1], last)
            known.drop()
            if last is None or last.epoch >= _EPOCH_MAX:
                owner = Owner(secrets.randbits(62), 0, set_ms=_now_ms())
            else:
                owner = Owner(last.producer_id, last.epoch + 1, last.number, set_ms=_now_ms())
            expected = None if value is None else value.data
            known.owner = None
            await self._log.compare_and_set(key, expected=expected, value=owner.encode())
            known.owner = owner
            return owner.producer_id, owner.epoch

    async def begin(self, asked: dict[str, Any], budget: Budget) -> None:
        """Announce a transaction, before what it brings; again and again does no harm."""
        known, key = self._find(asked["txn"]), self._key(asked["txn"])
        async with known.lock:
            if self._is_open(known, asked):
                return
            owner = known.owner
            if owner is None or owner.state == "begun" or not _is_of(owner, asked):
                owner = await self._owner(key, asked)
            if owner.state == "begun":
                raise _lost()
            known.drop()
            opened = known.open = _Open(owner, budget)
            loop = asyncio.get_running_loop()
            opened.timer = loop.call_later(known.seconds, self._expire, known, opened)
            if known.epoch != (owner.producer_id, owner.epoch):
                known.epoch = owner.producer_id, owner.epoch
                known.is_whole = owner.state == "empty"
                known.taken.clear()

    async def add(
        self,
        txn: str,
        stream: Registration,
        partition: int,
        records: Records,
        batches: list[pa.RecordBatch],
    ) -> None:
        """Hold what was produced. A batch that was sent before changes nothing."""
        known = self._find(txn)
        opened = await self._begun(txn, records.producer_id, records.epoch)
        place = stream.name, partition
        sequence = records.sequence
        last = last_of(sequence, records.count)
        begin = (0, -1) if known.is_whole else (sequence, sequence - 1)
        first, before = known.taken.get(place, begin)
        if sequence != (before + 1) % SEQUENCES:
            if place in known.taken and _is_within(sequence, last, first, before):
                return  # sent again, since its answer was lost
            raise KafkaRefused(
                Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"sequence {sequence} is not the next: the last is {before}",
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
        # No more than can be told from what is to come: numbers begin anew after the last.
        far = (last - first) % SEQUENCES > SEQUENCES // 4
        known.taken[place] = (last - SEQUENCES // 4) % SEQUENCES if far else first, last

    async def add_offsets(self, asked: dict[str, Any], sets: list[SetKey]) -> None:
        """How far a group is once the transaction is committed."""
        opened = await self._begun(asked["txn"], asked["producer_id"], asked["epoch"])
        if len(opened.offsets) + len(sets) > OFFSETS_MAX:
            raise TooLarge(f"a transaction has offsets of {OFFSETS_MAX} partitions at most")
        opened.offsets |= {change.key: change for change in sets}

    async def end(self, asked: dict[str, Any]) -> None:
        """Commit or abort. Asked again, it is answered as the first time."""
        known, key = self._find(asked["txn"]), self._key(asked["txn"])
        state = "committed" if asked["commit"] else "aborted"
        async with known.lock:
            owner, opened = known.owner, known.open
            is_here = opened is not None and opened.owner == owner and _is_of(opened.owner, asked)
            if owner is None or not is_here or owner.state != "begun":
                owner = await self._owner(key, asked)
                is_here = opened is not None and opened.owner == owner
            if not is_here and owner.state != "begun" and state in (owner.state, "aborted"):
                known.drop()  # it is so, or nothing is there to be given up
                return
            if asked["commit"] and not is_here:
                raise _lost()
            number = owner.number + (owner.state != "begun")
            ended = replace(owner, number=number, state=state, set_ms=_now_ms())
            sets = [SetKey(key, ended.encode())]
            entries: list[NewEntry] = []
            if opened is not None and asked["commit"]:
                entries, sets = opened.entries, [*sets, *opened.offsets.values()]
            known.owner = None
            try:
                await self._log.append(entries, guards=[Guard(key, owner.encode())], sets=sets)
            except GuardFailed:
                # By a newer producer; or by this commit itself, whose answer was lost.
                now = await self._owner(key, asked)
                if (now.number, now.state) != (number, state):
                    raise _fenced(asked["epoch"], None) from None
            else:
                known.owner = ended
            known.drop()

    async def forget_older(self, time_ms: int) -> None:
        """Take away ids that nobody has used since."""
        prefix = f"{TRANSACTIONS_PREFIX}{self._log.anonymous_prefix}/"
        await forget_older(self._log, prefix, lambda data: decode_owner(data).set_ms, time_ms)

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
        return known.open is not None and _is_of(known.open.owner, asked)

    async def _begun(self, txn: str, producer_id: int, epoch: int) -> _Open:
        """Where to hold what comes; the log knows of it before. Raises KafkaRefused."""
        known, key = self._find(txn), self._key(txn)
        opened = self._opened(known, producer_id, epoch)
        if opened.owner.state == "begun":
            return opened
        async with known.lock:
            opened = self._opened(known, producer_id, epoch)
            if opened.owner.state != "begun":
                owner = opened.owner
                begun = replace(owner, number=owner.number + 1, state="begun", set_ms=_now_ms())
                known.owner = None
                try:
                    await self._log.compare_and_set(
                        key, expected=owner.encode(), value=begun.encode()
                    )
                except GuardFailed:
                    # Fenced; or begun elsewhere, or by a request whose answer was lost.
                    await self._owner(key, {"producer_id": producer_id, "epoch": epoch})
                    raise _lost() from None
                opened.owner = known.owner = begun
            return opened

    def _opened(self, known: _Known, producer_id: int, epoch: int) -> _Open:
        if known.open is None:
            raise _lost()
        if not self._is_open(known, {"producer_id": producer_id, "epoch": epoch}):
            raise _fenced(epoch, known.open.owner)
        return known.open

    @staticmethod
    def _expire(known: _Known, opened: _Open) -> None:
        if known.open is not opened:
            return
        if known.lock.locked():  # it may end now, or not: see then
            again = asyncio.get_running_loop().call_later
            opened.timer = again(_AGAIN_SECONDS, Transactions._expire, known, opened)
        else:
            known.drop()


def _is_of(owner: Owner, asked: dict[str, Any]) -> bool:
    """Whether it is who asks."""
    return (owner.producer_id, owner.epoch) == (asked["producer_id"], asked["epoch"])


def _is_within(first: int, last: int, taken_first: int, taken_last: int) -> bool:
    """Whether numbers are among those that were taken; they begin anew after the last."""
    half = SEQUENCES // 2
    return (first - taken_first) % SEQUENCES < half and (taken_last - last) % SEQUENCES < half


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _fenced(epoch: int, owner: Owner | None) -> KafkaRefused:
    now = "" if owner is None else f", it is {owner.epoch} now"
    return KafkaRefused(Code.INVALID_PRODUCER_EPOCH, f"epoch {epoch} is over{now}")


def _lost() -> KafkaRefused:
    return KafkaRefused(
        Code.TRANSACTION_ABORTABLE, "the transaction is not here any more: abort it, and begin anew"
    )
