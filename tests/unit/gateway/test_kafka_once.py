"""Producers and transactions at two gateways of one log, whose metadata is a dict."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pyarrow as pa
import pytest

from penstock.errors import GuardFailed, Overloaded, PenstockError, Unauthorized, Unknown
from penstock.gateway.bodies import Budget
from penstock.gateway.kafka.connection import KafkaConnection
from penstock.gateway.kafka.errors import Code, KafkaRefused, code_of
from penstock.gateway.kafka.producing import IDLE_MS, Produced, Producing
from penstock.gateway.kafka.records import Records
from penstock.gateway.kafka.shared import Shared
from penstock.gateway.kafka.transactions import Transactions
from penstock.gateway.problems import refuse
from penstock.ids import Lsn
from penstock.log.client.client import AsyncLog
from penstock.log.records import Appended, Guard, NewEntry, SetKey, Value
from penstock.stream.registration import Registration

SCHEMA = pa.schema([pa.field("value", pa.binary())])
LOST = Code.TRANSACTION_ABORTABLE
STREAM = Registration("s", SCHEMA, created_ms=0)


class Shelf:
    """What of a log is needed here."""

    anonymous_prefix = "anon-"

    def __init__(self) -> None:
        self.tail = 0
        self.trim_point = 0
        self.values: dict[str, Value] = {}
        self.rows = 0

    async def get(self, key: str) -> Value | None:
        return self.values.get(key)

    async def list_metadata(self, prefix: str) -> dict[str, Value]:
        return {key: value for key, value in self.values.items() if key.startswith(prefix)}

    async def find_time(self, time_ms: int) -> Lsn:
        return Lsn(self.trim_point)

    async def compare_and_set(
        self, key: str, *, expected: bytes | None, value: bytes | None
    ) -> Lsn:
        done = await self.append([], guards=[Guard(key, expected)], sets=[SetKey(key, value)])
        return Lsn(done.first_lsn)

    async def append(
        self,
        entries: Sequence[NewEntry],
        *,
        guards: Sequence[Guard] = (),
        sets: Sequence[SetKey] = (),
    ) -> Appended:
        for guard in guards:
            found = self.values.get(guard.key)
            if (None if found is None else found.data) != guard.expected:
                raise GuardFailed(guard.key)
        first, self.tail = self.tail, self.tail + len(entries) + 1
        self.rows += sum(entry.rows for entry in entries)
        for change in sets:
            self.values.pop(change.key, None)
            if change.value is not None:
                self.values[change.key] = Value(change.value, Lsn(self.tail - 1))
        return Appended(Lsn(first), len(entries) + 1, False)


def producing(shelf: Shelf) -> Producing:
    return Producing(cast(AsyncLog, shelf))


def transactions(shelf: Shelf) -> Transactions:
    return Transactions(cast(AsyncLog, shelf))


def records(sequence: int, producer: tuple[int, int] = (7, 0), count: int = 1) -> Records:
    none = [None] * count
    return Records([0] * count, none, [b"v"] * count, [[] for _ in none], *producer, sequence, True)


def rows(count: int = 1) -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array([b"v"] * count, pa.binary())], schema=SCHEMA)]


def test_a_producer_that_comes_back_to_a_gateway_goes_on() -> None:
    shelf = Shelf()
    one, other = producing(shelf), producing(shelf)

    async def send(where: Producing, sequence: int) -> Produced:
        return await where.append(STREAM, 0, records(sequence), rows())

    async def run() -> None:
        await send(one, 0)
        await send(other, 1)
        await send(one, 2)
        assert (await send(one, 1)).duplicate
        with pytest.raises(KafkaRefused):
            await send(one, 4)

    asyncio.run(run())
    assert shelf.rows == 3


def test_trimming_makes_no_producer_forgotten() -> None:
    shelf = Shelf()
    now_ms = time.time_ns() // 1_000_000

    async def run() -> None:
        await producing(shelf).append(STREAM, 0, records(0), rows())
        await begun(transactions(shelf))
        shelf.trim_point = shelf.tail
        assert await producing(shelf).forget_idle(now_ms)
        await transactions(shelf).forget_older(now_ms - IDLE_MS)
        assert len(shelf.values) == 2
        assert (await producing(shelf).append(STREAM, 0, records(0), rows())).duplicate
        later_ms = now_ms + 8 * 24 * 3600 * 1000
        assert await producing(shelf).forget_idle(later_ms)
        await transactions(shelf).forget_older(later_ms - IDLE_MS)
        assert not shelf.values

    asyncio.run(run())


async def begun(
    where: Transactions, budget: Budget | None = None, **given: Any
) -> tuple[dict[str, Any], tuple[int, int]]:
    producer = await where.open_producer("t", {"timeout_ms": 60_000} | given)
    asked = {"txn": "t", "producer_id": producer[0], "epoch": producer[1], "commit": True}
    await where.begin(asked, budget or Budget(1 << 20))
    return asked, producer


def test_a_batch_of_a_transaction_that_was_refused_is_no_repetition() -> None:
    shelf = Shelf()
    where = transactions(shelf)

    async def run() -> None:
        budget = Budget(1 << 20)
        asked, producer = await begun(where, budget)
        budget.take(1 << 20)
        with pytest.raises(Overloaded):
            await where.add("t", STREAM, 0, records(0, producer), rows())
        budget.give(1 << 20)
        # It was under way behind the first, which comes again.
        with pytest.raises(KafkaRefused) as caught:
            await where.add("t", STREAM, 0, records(1, producer), rows())
        assert caught.value.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        for sequence in (0, 1, 0, 1):
            await where.add("t", STREAM, 0, records(sequence, producer), rows())
        await where.end(asked)
        assert shelf.rows == 2
        # A gateway that does not know how far the producer was.
        elsewhere = transactions(shelf)
        await elsewhere.begin(asked, budget)
        await elsewhere.add("t", STREAM, 0, records(3, producer), rows())
        await elsewhere.add("t", STREAM, 0, records(3, producer), rows())
        with pytest.raises(KafkaRefused):
            await elsewhere.add("t", STREAM, 0, records(2, producer), rows())

    asyncio.run(run())


def test_a_fenced_producer_takes_nothing_from_the_newer_one() -> None:
    shelf = Shelf()
    where = transactions(shelf)

    async def run() -> None:
        _, old = await begun(where)
        asked, producer = await begun(where)
        await where.add("t", STREAM, 0, records(0, producer), rows())
        with pytest.raises(KafkaRefused) as caught:
            await begun(where, producer_id=old[0], epoch=old[1])
        assert caught.value.code is Code.INVALID_PRODUCER_EPOCH
        await where.end(asked)

    asyncio.run(run())
    assert shelf.rows == 1


async def refused(doing: Any) -> Code:
    with pytest.raises(KafkaRefused) as caught:
        await doing
    return caught.value.code


def test_a_transaction_is_lost_only_if_something_of_it_was_held() -> None:
    """Java's clients end a transaction that they have announced, and none that they have not: one
    that had begun unknown to its client would stand in the way of all that come after."""
    shelf = Shelf()

    async def run() -> None:
        budget = Budget(1 << 20)
        asked, producer = await begun(transactions(shelf))
        # It was not told, and asks again elsewhere, where it goes on and commits.
        where = transactions(shelf)
        await where.begin(asked, budget)
        await where.add("t", STREAM, 0, records(0, producer), rows())
        await where.end(asked)
        assert shelf.rows == 1
        # What it announced there is not known here, nor what another gateway held of it.
        await where.begin(asked, budget)
        for held in (0, 1):
            elsewhere = transactions(shelf)
            batch = records(1 + held, producer)
            assert await refused(elsewhere.add("t", STREAM, 0, batch, rows())) is LOST
            if held:
                for _ in range(2):
                    assert await refused(elsewhere.begin(asked, budget)) is LOST
                    assert await refused(elsewhere.end(asked)) is LOST
            for _ in range(2):
                await elsewhere.end(asked | {"commit": False})
            await where.begin(asked, budget)
            await where.add("t", STREAM, 0, batch, rows())
        await where.end(asked | {"commit": False})
        assert budget.left == 1 << 20

    asyncio.run(run())
    assert shelf.rows == 1


def test_what_a_gateway_wrote_last_is_not_taken_for_what_the_log_has() -> None:
    """Its client went on at another one meanwhile."""
    shelf = Shelf()

    async def run() -> None:
        budget = Budget(1 << 20)
        where = transactions(shelf)
        asked, producer = await begun(where, budget)
        await where.end(asked)
        elsewhere = transactions(shelf)
        await elsewhere.begin(asked, budget)
        await elsewhere.add("t", STREAM, 0, records(3, producer), rows())
        assert await refused(where.end(asked)) is LOST
        await where.begin(asked, budget)
        late = where.add("t", STREAM, 0, records(4, producer), rows())
        assert await refused(late) is LOST
        assert await refused(where.end(asked)) is LOST
        await elsewhere.end(asked)
        assert shelf.rows == 1
        await where.end(asked)
        # It took too long here, and was given up elsewhere.
        await where.begin(asked, budget)
        await where.add("t", STREAM, 0, records(0, producer), rows())
        where._known["t"].drop()
        assert await refused(where.begin(asked, budget)) is LOST
        await elsewhere.end(asked | {"commit": False})
        # The last that was committed elsewhere is another than the one that is asked for here.
        await where.begin(asked, budget)
        await where.add("t", STREAM, 0, records(1, producer), rows())
        await elsewhere.end(asked | {"commit": False})
        await elsewhere.begin(asked, budget)
        await elsewhere.add("t", STREAM, 0, records(4, producer), rows())
        await elsewhere.end(asked)
        assert shelf.rows == 2
        assert await refused(where.end(asked)) is Code.INVALID_PRODUCER_EPOCH
        where._known["t"].drop()
        # Nothing came of it in the end.
        await where.begin(asked, budget)
        for _ in range(2):
            await where.end(asked)
        assert budget.left == 1 << 20

    asyncio.run(run())
    assert shelf.rows == 2


def test_a_commit_that_came_first_after_all_is_answered_as_one() -> None:
    class Slow(Shelf):
        """The commit is under way when it is asked for again, and arrives before."""

        async def append(self, entries: Sequence[NewEntry], **given: Any) -> Appended:
            if entries and not self.rows:
                await super().append(entries, **given)
            return await super().append(entries, **given)

    shelf = Slow()
    where = transactions(shelf)

    async def run() -> None:
        asked, producer = await begun(where)
        await where.add("t", STREAM, 0, records(0, producer), rows())
        await where.end(asked)
        await where.end(asked)

    asyncio.run(run())
    assert shelf.rows == 1


def test_a_transaction_that_is_over_while_its_commit_is_tried_is_let_go_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.gateway.kafka.transactions._AGAIN_SECONDS", 0.01)

    class Away(Shelf):
        async def append(self, entries: Sequence[NewEntry], **given: Any) -> Appended:
            if entries:
                await asyncio.sleep(0.05)
                raise Unknown("no answer")
            return await super().append(entries, **given)

    where = transactions(Away())
    budget = Budget(1 << 20)

    async def run() -> None:
        asked, producer = await begun(where, budget)
        await where.add("t", STREAM, 0, records(0, producer), rows())
        opened = where._known["t"].open
        assert opened is not None and budget.left < 1 << 20
        asyncio.get_running_loop().call_later(0.02, where._expire, where._known["t"], opened)
        with pytest.raises(Unknown):
            await where.end(asked)
        await asyncio.sleep(0.05)
        assert budget.left == 1 << 20

    asyncio.run(run())


def test_too_much_at_once_is_tried_again() -> None:
    assert code_of(refuse(429, "too-many-requests", "", "")) is Code.REQUEST_TIMED_OUT


@pytest.mark.parametrize("error", [Overloaded("busy"), Unauthorized("wrong")])
def test_only_a_token_that_is_wrong_is_called_so(error: PenstockError) -> None:
    sent: list[bytes] = []

    class Writer:
        def get_extra_info(self, name: str) -> tuple[str, int]:
            return "127.0.0.1", 9092

        def write(self, data: bytes) -> None:
            sent.append(bytes(data))

        async def drain(self) -> None: ...

    class Failing:
        @asynccontextmanager
        async def enter(self, token: str) -> AsyncIterator[None]:
            raise error
            yield

    async def run() -> None:
        reader = asyncio.StreamReader()
        for key, version, asked in ((17, 1, b"\0\5PLAIN"), (36, 0, b"\0\0\0\5\0me\0t")):
            frame = struct.pack(">hhih", key, version, 1, -1) + asked
            reader.feed_data(struct.pack(">i", len(frame)) + frame)
        reader.feed_eof()
        shared = Shared(cast(Any, Failing()), Budget())
        await KafkaConnection(shared, reader, cast(Any, Writer()), lambda: True).run()
        shared.close()

    asyncio.run(run())
    assert len(sent) == 1 + isinstance(error, Unauthorized)
