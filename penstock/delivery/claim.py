"""A delivery's name, claimed in the log by a player: all that the player writes there.

Owns the producer `@deliver/<name>`, whose instance is the player's term. Law: nothing is written
but as this producer, so that the log itself refuses a player that was replaced (R27). The other's
first ack is watched for, so that it is noticed at once even by a player that has nothing to write.
Law: a delivery whose targets were changed while it runs is the same delivery; every other change of
what is registered ends this player.
While the log is away everything here waits, and `away_since` says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Self, TypeVar

from penstock.delivery.source import PAUSE_SECONDS
from penstock.errors import (
    Fenced,
    GuardFailed,
    NotFound,
    PenstockError,
    Retryable,
    Trimmed,
    Unknown,
)
from penstock.ids import Lsn
from penstock.log.api import ReadBatch
from penstock.log.client.appender import AsyncAppender
from penstock.log.client.client import AsyncLog, changes_of
from penstock.log.records import Appended, Guard, Kind, NewEntry, SetKey, Value, meta_tag
from penstock.protocol.deliveries import (
    Delivered,
    RegisteredDelivery,
    decode_delivered,
    decode_delivery,
    encode_delivered,
    is_resharded,
)
from penstock.protocol.names import ack_tag, deliver_key, delivered_key, player_producer

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Claim:
    """One instance of a delivery's player in the log. Make one with `Claim.open`."""

    def __init__(
        self, log: AsyncLog, delivery: RegisteredDelivery, appender: AsyncAppender
    ) -> None:
        self._log = log
        #: As it was last found registered.
        self.delivery = delivery
        #: The same byte by byte: another value there is another's.
        self._registered = b""
        self._appender = appender
        self._appending = asyncio.Lock()
        self.term = appender.instance
        #: Since when the log does not answer, by the event loop's clock; None: it does.
        self.away_since: float | None = None

    @classmethod
    async def open(cls, log: AsyncLog, delivery: RegisteredDelivery) -> Self:
        """From now on the log refuses every earlier player of the delivery.

        Raises Fenced and NotFound as `look` does.
        """
        claim = cls(log, delivery, await log.appender(player_producer(delivery.name)))
        try:
            await claim.look()
        except BaseException:
            await claim.close()
            raise
        return claim

    async def look(self) -> RegisteredDelivery:
        """What is registered now. Raises Fenced if that is of others, NotFound if it is gone."""
        value = await self.patiently(lambda: self._log.get(deliver_key(self.delivery.name)))
        self._take(value)
        return self.delivery

    def _take(self, value: Value | None) -> None:
        """What was found registered: ours, perhaps with other targets, or the end of us."""
        if value is not None and value.data == self._registered:
            return
        if value is None:
            raise self._replaced(is_there=False)
        found = decode_delivery(self.delivery.name, value.data, value.lsn)
        if found.epoch < self.delivery.epoch:
            return  # a change that was told late
        if not is_resharded(self.delivery, found):
            raise self._replaced(is_there=True)
        self.delivery, self._registered = found, value.data

    async def last_ack(self) -> Delivered | None:
        """Of this player or an earlier one."""
        name = self.delivery.name
        value = await self.patiently(lambda: self._log.get(delivered_key(name)))
        return None if value is None else decode_delivered(name, value.data)

    async def write(self, ack: Delivered) -> Appended:
        """Say how far the delivery is. Raises Fenced, and NotFound if it was removed."""
        name = self.delivery.name
        value = encode_delivered(ack)
        while True:
            registered = self._registered
            try:
                return await self.append(
                    [NewEntry(value, (ack_tag(name),), Kind.CONTROL)],
                    guards=[Guard(deliver_key(name), registered)],
                    sets=[SetKey(delivered_key(name), value)],
                )
            except GuardFailed:
                await self.look()
                if registered == self._registered:
                    raise

    async def forget(self) -> None:
        """Take the registration back, as if there had been none."""
        name = self.delivery.name
        gone = [SetKey(deliver_key(name), None), SetKey(delivered_key(name), None)]
        try:
            await self.append([], guards=[Guard(deliver_key(name), self._registered)], sets=gone)
        except GuardFailed:
            pass  # it was removed, or registered otherwise: not ours any more

    async def append(
        self,
        entries: Sequence[NewEntry],
        *,
        guards: Sequence[Guard] = (),
        sets: Sequence[SetKey] = (),
    ) -> Appended:
        """However long the log is away. After an unknown end it is appended again."""
        while True:
            # One at a time: two who adopt one instance would take each other's seqs.
            async with self._appending:
                try:
                    if self._appender.core.broken is not None:
                        await self._adopt()
                    return await self._appender.append(entries, guards=guards, sets=sets)
                except Fenced as error:
                    raise self._fenced(str(error)) from error
                except (Retryable, Unknown) as error:
                    problem: PenstockError = error
            await self._pause(problem)

    async def _adopt(self) -> None:
        """An appender whose last append has an unknown end takes no more: go on with another."""
        producer = player_producer(self.delivery.name)
        old, self._appender = self._appender, await self._log.adopt(producer, self.term)
        await old.close()

    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer to a question, however long the log is away."""
        while True:
            try:
                return await ask()
            except Retryable as error:
                await self._pause(error)

    async def _pause(self, error: PenstockError) -> None:
        logger.info("delivery=%s waits for the log: %s", self.delivery.name, error)
        await asyncio.sleep(PAUSE_SECONDS)

    async def watch_log(self) -> None:
        """Notice whether the log is away, beside appends that wait for it. For ever."""
        while True:
            if self._log.connection is not None:
                self.away_since = None
            elif self.away_since is None:
                self.away_since = asyncio.get_running_loop().time()
            await asyncio.sleep(PAUSE_SECONDS)

    async def watch(self, start: Lsn) -> None:
        """Until another player is there (Fenced), or the delivery was removed (NotFound)."""
        tags = [ack_tag(self.delivery.name), meta_tag(deliver_key(self.delivery.name))]
        while True:
            try:
                async with self._log.tail(tags, start=start) as reader:
                    async for batch in reader:
                        self._look_for_others(batch)
                        start = batch.looked_up_to
            except Trimmed:
                start = (await self.patiently(self._log.bounds)).trim_point
            except Retryable as error:
                await self._pause(error)

    def _look_for_others(self, batch: ReadBatch) -> None:
        producer = player_producer(self.delivery.name)
        changes = []
        for entry in batch.entries:
            if entry.kind is Kind.META:
                changes.append(entry)
            elif entry.producer == producer and entry.instance > self.term:
                raise self._fenced(f"instance {entry.instance} was claimed")
        key = deliver_key(self.delivery.name)
        for value in changes_of(key, ReadBatch(changes, batch.looked_up_to)):
            self._take(value)

    def _fenced(self, cause: str) -> Fenced:
        return Fenced(
            f"another player of delivery {self.delivery.name} was started after this one, which "
            f"was instance {self.term}, and goes on in its place: {cause}"
        )

    def _replaced(self, *, is_there: bool) -> PenstockError:
        if is_there:
            return self._fenced("it was registered with other settings")
        return NotFound(
            f"delivery {self.delivery.name} was removed: what it delivered stays in its targets"
        )

    async def close(self) -> None:
        """Idempotent; the name stays claimed until the next player."""
        await self._appender.close()
