"""Appends of a session: under an idempotency key, and without.

A key says producer and seq as the log knows them (keys.py), so the log itself tells a new append
from one that it has. A gateway that has not seen the producer yet claims it, which fences whoever
had it: from then on, what an earlier gateway sent and was not answered either stands in the log or
never will. Law: at each seq of a producer one append takes effect, whichever gateways it was sent
through, in whatever order they were killed (decision 0034).
"""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections import OrderedDict
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.errors import Fenced, Overloaded, SeqGap, StaleInstance, TooLarge, Unknown
from penstock.gateway.config import PRODUCERS_MAX
from penstock.gateway.keys import Key
from penstock.ids import Lsn
from penstock.limits import GROUP_BYTES_MAX
from penstock.log.client.appender import AsyncAppender
from penstock.log.client.client import AsyncLog
from penstock.log.group_format import encode_body
from penstock.log.records import Appended
from penstock.stream.groups import Group, make_groups
from penstock.stream.lanes import lanes_of
from penstock.stream.producer import producer_name
from penstock.stream.registration import Registration
from penstock.wire import messages as m

#: Claims in a row that others took over before the append: then it is the client's turn to wait.
CLAIMS_MAX = 8


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where the rows of a request are."""

    rows: int
    first_lsn: Lsn | None
    last_lsn: Lsn | None
    #: An earlier attempt had appended them.
    duplicate: bool = False
    #: The key of the producer's next append.
    next: Key | None = None


@dataclass(slots=True)
class _Producer:
    #: Two appends on their way at once could travel as one group, and be replayed as none.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    appender: AsyncAppender | None = None
    users: int = 0


def one_group(stream: Registration, batches: list[pa.RecordBatch], turn: int) -> Group:
    """The entries of a request, which are appended together. Empty: no rows."""
    # Before they are cut and encoded: few bytes of a request can be very many here. What is cut may
    # leave out bits of validity, which are half of it at most.
    if sum(map(pa.ipc.get_record_batch_size, batches)) > 2 * GROUP_BYTES_MAX:
        raise _too_many()
    turns = itertools.count(turn)
    groups = make_groups(batches, schema=stream.schema, lanes=lanes_of(stream), turns=turns)
    if len(groups) > 1:
        raise _too_many()
    return groups[0] if groups else []


def _too_many() -> TooLarge:
    return TooLarge("the rows take more than one group of the log, about 4 MiB")


def outcome_of(group: Group, done: Appended, next: Key | None = None) -> Outcome:
    rows = sum(entry.rows for entry in group)
    last = Lsn(done.first_lsn + done.count - 1)
    return Outcome(rows, done.first_lsn, last, done.duplicate, next)


class KeyedProducers:
    """The producers that a session has open here."""

    def __init__(self, log: AsyncLog) -> None:
        self._log = log
        self._known: OrderedDict[str, _Producer] = OrderedDict()

    async def append(
        self, stream: Registration, batches: list[pa.RecordBatch], key: Key
    ) -> Outcome:
        """Raises SeqGap, SeqMismatch, and Fenced if others claim it again and again."""
        name = producer_name(stream.name, key.producer)
        group = one_group(stream, batches, zlib.crc32(name.encode()) + key.seq)
        if not group:
            return Outcome(0, None, None, False, key)
        next_key = Key(key.producer, key.seq + len(group))
        known = await self._find(name)
        known.users += 1
        try:
            async with known.lock:
                return await self._append(known, name, group, key.seq, next_key)
        finally:
            known.users -= 1

    async def _append(
        self, known: _Producer, name: str, group: Group, seq: int, next_key: Key
    ) -> Outcome:
        for _ in range(CLAIMS_MAX):
            appender, is_new = known.appender, False
            if appender is None or appender.core.broken is not None:
                await self._forget(known)
                appender, is_new = await self._log.appender(name), True
                known.appender = appender
            if seq > appender.next_seq and is_new:
                raise SeqGap(
                    f"seq {seq} of producer {name} leaves a gap: the next is {appender.next_seq}"
                )
            if seq > appender.next_seq:
                await self._forget(known)  # others went on meanwhile: see how far
                continue
            try:
                if seq == appender.next_seq:
                    return outcome_of(group, await appender.append(group), next_key)
                return await self._replay(appender, group, seq, next_key)
            except Fenced:
                await self._forget(known)
            except Unknown:
                await self._forget(known)
                raise
        raise StaleInstance(f"producer {name} was claimed by others {CLAIMS_MAX} times in a row")

    async def _replay(
        self, appender: AsyncAppender, group: Group, seq: int, next_key: Key
    ) -> Outcome:
        """A seq that was used: the log compares the group with what stands there.

        If that was trimmed away, it cannot; then nobody knows where it stood.
        """
        body = encode_body(
            producer=appender.producer, instance=appender.instance, first_seq=seq, entries=group
        )
        try:
            done, _ = await self._log.call(m.Append((), 0), m.AppendDone, body)
        except Unknown:
            return Outcome(sum(entry.rows for entry in group), None, None, True, next_key)
        found = Appended(Lsn(done.first_lsn), done.count, done.duplicate)
        return outcome_of(group, found, next_key)

    async def _find(self, name: str) -> _Producer:
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= PRODUCERS_MAX:
                await self._make_room()
            known = self._known.setdefault(name, _Producer())
        self._known.move_to_end(name)
        return known

    async def _make_room(self) -> None:
        unused = next((name for name, each in self._known.items() if not each.users), None)
        if unused is None:
            raise Overloaded(f"{PRODUCERS_MAX} producers of this token are in use")
        await self._forget(self._known.pop(unused))

    async def _forget(self, known: _Producer) -> None:
        appender, known.appender = known.appender, None
        if appender is not None:
            await appender.close()

    async def close(self) -> None:
        for known in self._known.values():
            await self._forget(known)
