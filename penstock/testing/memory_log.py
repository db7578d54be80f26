"""A log in memory, for tests of what stands on a log: the same cores, no files, no sockets.

Owns nothing that decides: order is sequencer.py's, delivery tails.py's. It passes the conformance
suite of every other log (tests/conformance/). What it cannot do is fail.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Self

from penstock.errors import BadRequest, PenstockError, TooLarge, Trimmed, Unavailable, Unknown
from penstock.ids import Epoch, Lsn, SegmentId
from penstock.limits import CREDIT_BYTES_DEFAULT, SUBSCRIPTION_TAGS_MAX
from penstock.log.api import Bounds, ReadBatch
from penstock.log.client.appender_core import check_submission
from penstock.log.client.client import changes_of
from penstock.log.core.producers import AppendedGroup
from penstock.log.core.sequencer import (
    Answer,
    OldDuplicate,
    SegmentLimits,
    Sequencer,
    decide_duplicate,
)
from penstock.log.core.state import LogState
from penstock.log.core.tails import FOREVER, Deliver, DurableGroup, Effect, Tails, cut_group
from penstock.log.group_format import (
    CLAIM,
    RETIRE,
    check_new_body,
    decode_body,
    encode_body,
    meta_entry,
)
from penstock.log.record_format import (
    RECORD_HEADER_BYTES,
    RecordHeader,
    decode_record,
    encode_header,
)
from penstock.log.records import (
    IMMEDIATE,
    Appended,
    Entry,
    Flush,
    Guard,
    Kind,
    NewEntry,
    SetKey,
    Value,
    check_key,
    check_position,
    check_sets,
    check_tag,
    meta_tag,
)

_NO_ROLL = SegmentLimits(2**62, 2**62)


class MemoryLog:
    """A `penstock.log.api.Log`. Every append is durable at once: nothing survives the process."""

    def __init__(self) -> None:
        self._sequencer = Sequencer(LogState(), limits=_NO_ROLL)
        self._tails = Tails(Lsn(0), progress_ms=0)
        self._groups: list[DurableGroup] = []
        self._trim_point = Lsn(0)
        self._readers: dict[int, MemoryReader] = {}
        self._reader_count = 0
        self._own: MemoryAppender | None = None
        self._closed = False

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the log was closed")

    # ---- appending

    async def appender(self, producer: str | None = None) -> MemoryAppender:
        name = producer or f"anon-{uuid.uuid4().hex}"
        known = self._sequencer.state.producers.get(name)
        instance = known.instance + 1 if known else 1
        claim = NewEntry(secrets.token_bytes(8), (), Kind.CONTROL)
        self.decide(name, instance, 0, [claim], flags=CLAIM)
        next_seq = self._sequencer.state.producers[name].next_seq
        return MemoryAppender(self, name, instance, next_seq, retires=producer is None)

    async def append(
        self,
        entries: Sequence[NewEntry],
        *,
        guards: Sequence[Guard] = (),
        sets: Sequence[SetKey] = (),
        flush: Flush = IMMEDIATE,
    ) -> Appended:
        if self._own is None:
            self._own = await self.appender()
        return await self._own.append(entries, guards=guards, sets=sets, flush=flush)

    def decide(
        self,
        producer: str,
        instance: int,
        first_seq: int,
        entries: Sequence[NewEntry],
        *,
        guards: Sequence[Guard] = (),
        flags: int = 0,
    ) -> Appended:
        """Order one group and make it visible; raises what refuses it."""
        self._check_open()
        body = decode_body(
            encode_body(
                producer=producer,
                instance=instance,
                first_seq=first_seq,
                entries=entries,
                flags=flags,
            )
        )
        check_new_body(body)
        now_ms = time.time_ns() // 1_000_000
        self._sequencer.append("it", body, guards=guards, now_ms=now_ms)
        self._write()
        (answer,) = self._sequencer.take_answers()
        return self._outcome(answer)

    def _outcome(self, answer: Answer) -> Appended:
        outcome = answer.outcome
        if isinstance(outcome, PenstockError):
            raise outcome
        if isinstance(outcome, OldDuplicate):
            found = self._find_group(outcome)
            return decide_duplicate(outcome.instance, outcome.count, found)
        return outcome

    def _find_group(self, old: OldDuplicate) -> AppendedGroup:
        for group in self._groups:
            body = group.body
            if (body.producer, body.first_seq) == (old.producer, old.first_seq):
                if not body.flags & (CLAIM | RETIRE):
                    first_lsn = group.header.first_lsn
                    return AppendedGroup(old.first_seq, body.count, body.instance, first_lsn)
        raise Unknown(f"no group of producer {old.producer} at seq {old.first_seq} is left")

    def _write(self) -> None:
        write = self._sequencer.take_write(2**62)
        if write is None:
            return
        groups = []
        for group in write.groups:
            header = RecordHeader(
                RECORD_HEADER_BYTES + len(group.body.data),
                group.body.table_crc,
                group.first_lsn,
                Epoch(1),
                SegmentId(0),
                group.time_ms,
                write.durable_lsn,
                0,
            )
            groups.append(
                DurableGroup(header, group.body, (encode_header(header), group.body.data))
            )
        self._groups += groups
        self._sequencer.written(write)
        self._perform(self._tails.durable(groups, 0))
        self._perform(self._tails.tick(0))

    # ---- reading

    def tail(
        self, tags: Sequence[str] | None = None, *, start: int, end: int | None = None
    ) -> MemoryReader:
        stop = FOREVER if end is None else Lsn(end)
        check_position(start)
        check_position(stop)
        self._reader_count += 1
        reader = MemoryReader(self, self._reader_count)
        try:
            self._check_open()
            self._check_readable(tags, start)
        except PenstockError as error:
            reader.fail(error)
            return reader
        self._readers[reader.number] = reader
        wanted = None if tags is None else frozenset(tags)
        self._perform(
            self._tails.subscribe(
                reader.number, wanted, start=Lsn(start), end=stop, credit=CREDIT_BYTES_DEFAULT
            )
        )
        return reader

    def _check_readable(self, tags: Sequence[str] | None, start: int) -> None:
        if tags is not None and not 0 < len(set(tags)) <= SUBSCRIPTION_TAGS_MAX:
            raise TooLarge(f"{len(tags)} tags: 1 to {SUBSCRIPTION_TAGS_MAX} allowed")
        for tag in tags or ():
            check_tag(tag)
        if start < self._trim_point:
            raise Trimmed(f"lsn {start} is below the trim point {self._trim_point}")

    def credit(self, number: int, size: int) -> None:
        self._perform(self._tails.credit(number, size))

    def forget(self, number: int) -> None:
        self._tails.unsubscribe(number)
        self._readers.pop(number, None)

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect.id, int)
            if isinstance(effect, Deliver):
                self._readers[effect.id].delivered(effect)
                continue
            records: list[bytes | memoryview] = []
            looked = effect.start
            for group in self._groups:
                if group.end_lsn <= effect.start or sum(map(len, records)) >= effect.bytes_max:
                    continue
                if group.header.first_lsn >= effect.end:
                    break
                cut = cut_group(group, effect.tags, effect.start, effect.end)
                records += [b"".join(cut)] if cut else []
                looked = Lsn(min(group.end_lsn, effect.end))
            self._perform(self._tails.piece_read(effect, records, looked, 0))

    async def read(
        self, tags: Sequence[str] | None = None, *, start: int = 0, end: int | None = None
    ) -> list[Entry]:
        check_position(start)
        stop = FOREVER if end is None else end
        check_position(stop)
        stop = min(stop, self._sequencer.durable_lsn)
        if start >= stop:
            return []
        async with self.tail(tags, start=start, end=stop) as reader:
            return [entry async for batch in reader for entry in batch.entries]

    async def read_last(self, tag: str, *, end: int | None = None) -> Entry | None:
        check_tag(tag)
        stop = FOREVER if end is None else end
        check_position(stop)
        for group in reversed(self._groups):
            for entry in reversed(list(entries_of(group))):
                if entry.lsn < self._trim_point:
                    return None
                if entry.lsn < stop and tag in entry.tags:
                    return entry
        return None

    async def find_time(self, time_ms: int) -> Lsn:
        check_position(time_ms)
        for group in self._groups:
            if group.header.time_ms >= time_ms and group.end_lsn > self._trim_point:
                return Lsn(max(group.header.first_lsn, self._trim_point))
        return self._sequencer.durable_lsn

    async def trim(self, lsn: int) -> Lsn:
        check_position(lsn)
        if lsn > self._sequencer.durable_lsn:
            raise BadRequest(f"cannot trim at {lsn}: the tail is {self._sequencer.durable_lsn}")
        self._trim_point = Lsn(max(self._trim_point, lsn))
        return self._trim_point

    async def bounds(self) -> Bounds:
        return Bounds(self._trim_point, self._sequencer.durable_lsn)

    # ---- metadata

    async def get(self, key: str) -> Value | None:
        check_key(key)
        return self._sequencer.state.metadata.get(key)

    async def list_metadata(self, prefix: str = "") -> dict[str, Value]:
        known = self._sequencer.state.metadata
        return {key: known[key] for key in sorted(known) if key.startswith(prefix)}

    async def compare_and_set(
        self, key: str, *, expected: bytes | None, value: bytes | None
    ) -> Lsn:
        done = await self.append([], guards=[Guard(key, expected)], sets=[SetKey(key, value)])
        return done.first_lsn

    async def watch(self, key: str, *, start: int) -> AsyncIterator[Value | None]:
        async with self.tail([meta_tag(key)], start=start) as reader:
            async for batch in reader:
                for value in changes_of(key, batch):
                    yield value

    async def close(self) -> None:
        """Every reader ends with Unavailable, and nothing more is taken. Idempotent."""
        self._closed = True
        for reader in list(self._readers.values()):
            reader.fail(Unavailable("the log was closed"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class MemoryAppender:
    """A `penstock.log.api.Appender`."""

    def __init__(
        self, log: MemoryLog, producer: str, instance: int, next_seq: int, *, retires: bool
    ) -> None:
        self._log = log
        self.producer = producer
        self.instance = instance
        self.next_seq = next_seq
        self._retires = retires
        self._closed = False

    async def append(
        self,
        entries: Sequence[NewEntry],
        *,
        guards: Sequence[Guard] = (),
        sets: Sequence[SetKey] = (),
        flush: Flush = IMMEDIATE,
    ) -> Appended:
        if self._closed:
            raise Unavailable(f"producer {self.producer} is closed")
        if sets:
            check_sets(sets)
            entries = [*entries, meta_entry(sets)]
        for guard in guards:
            check_key(guard.key)
        check_submission(entries, guards)
        done = self._log.decide(self.producer, self.instance, self.next_seq, entries, guards=guards)
        self.next_seq += len(entries)
        return done

    async def close(self) -> None:
        if not self._closed and self._retires:
            goodbye = NewEntry(b"", (), Kind.CONTROL)
            self._log.decide(self.producer, self.instance, self.next_seq, [goodbye], flags=RETIRE)
        self._closed = True


class MemoryReader:
    """Iterate over it for `ReadBatch`es."""

    def __init__(self, log: MemoryLog, number: int) -> None:
        self._log = log
        self.number = number
        self._queue: deque[Deliver] = deque()
        self._arrived = asyncio.Event()
        self._error: PenstockError | None = None
        self._done = False

    def delivered(self, effect: Deliver) -> None:
        self._queue.append(effect)
        self._done = self._done or effect.done
        self._arrived.set()

    def fail(self, error: PenstockError) -> None:
        self._error = error
        self._arrived.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReadBatch:
        while not self._queue:
            if self._done:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            self._arrived.clear()
            await self._arrived.wait()
        effect = self._queue.popleft()
        data = b"".join(effect.records)
        entries: list[Entry] = []
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at + 8 : at + 12], "little")
            header, body = decode_record(memoryview(data)[at : at + size])
            entries += body.entries(header.first_lsn, header.time_ms)
            at += size
        self._log.credit(self.number, len(data))
        return ReadBatch(entries, effect.looked_up_to)

    async def close(self) -> None:
        self._log.forget(self.number)
        self._done = True
        self._queue.clear()
        self._arrived.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def entries_of(group: DurableGroup) -> list[Entry]:
    return list(group.body.entries(group.header.first_lsn, group.header.time_ms))
