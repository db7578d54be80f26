"""Serve many readers of one log: who gets what now, who must wait, who must be read from disk.

Owns positions, credits and progress of all subscriptions. Knows no sockets, files or clock. A
subscription is *live* (it has seen everything below the tail and is fed from memory as groups
become durable) or *behind* (the shell reads a piece from storage for it). A reader without credit,
or whose shell has no room for it (*paused*), is simply behind: nothing is kept for it, so a slow
reader costs nobody. All readers of one connection share a *room*: what they were given and its
socket has not taken, and what is being read for them. Who finds it full is behind, too, and waits.

          subscribe              caught up
    ───────────────► behind ─────────────────────────► live
                       ▲   ◄─ no credit, no room, pause ─┘
                       └ piece read, not at the tail yet

Laws: (I3) each subscription is given every matching entry in [start, end) once, in LSN order;
(I4) nothing at or above the durable tail; `looked_up_to` never goes back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter

from penstock.errors import InvariantBroken
from penstock.ids import Lsn
from penstock.limits import (
    CREDIT_BYTES_MAX,
    DELIVERY_BYTES,
    GROUP_OVERHEAD_BYTES,
    MIB,
    POSITION_MAX,
)
from penstock.log.group_format import Body
from penstock.log.record_format import RecordHeader, slice_record

#: One piece read from storage; bounds what a subscription costs in memory at once.
PIECE_BYTES = DELIVERY_BYTES
#: Groups kept in memory for readers that are nearly caught up, so that they need no disk.
RECENT_BYTES = 8 * MIB
#: Never-ending subscriptions end here.
FOREVER = Lsn(POSITION_MAX)

SubscriptionId = Hashable
Records = list[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class DurableGroup:
    """A group that readers may see, and its record as bytes (header, then body)."""

    header: RecordHeader
    body: Body
    #: Header bytes and body bytes; sent as they are when all entries match.
    record: tuple[bytes, bytes | bytearray | memoryview]

    @property
    def end_lsn(self) -> int:
        return self.header.first_lsn + self.body.count


_END_LSN = attrgetter("end_lsn")


@dataclass(frozen=True, slots=True)
class Deliver:
    """Send the records; then the reader has seen all of its entries below `looked_up_to`."""

    id: SubscriptionId
    records: tuple[bytes | bytearray | memoryview, ...]
    looked_up_to: Lsn
    #: The subscription is complete: no more will come.
    done: bool = False


@dataclass(frozen=True, slots=True)
class ReadBehind:
    """Read a piece from storage and hand it to `piece_read`, or say `read_failed`."""

    id: SubscriptionId
    tags: frozenset[str] | None
    start: Lsn
    end: Lsn
    bytes_max: int
    #: For whom; when it is there, another may have the id.
    reader: Subscription | None = field(default=None, compare=False, repr=False)


Effect = Deliver | ReadBehind


class Room:
    """What the readers of one connection hold together; one record may overdraw it."""

    __slots__ = ("bytes_max", "reading", "unsent", "waiting")

    def __init__(self, bytes_max: int = POSITION_MAX) -> None:
        self.bytes_max = bytes_max
        #: Bytes that were delivered and have not left the process, as far as we were told.
        self.unsent = 0
        #: Bytes that are being read from storage, also for those who have left meanwhile.
        self.reading = 0
        #: Who wants more and found it full, in the order in which they come next.
        self.waiting: dict[SubscriptionId, Subscription] = {}

    @property
    def is_full(self) -> bool:
        return self.unsent + self.reading > self.bytes_max


class Subscription:
    """One reader's place."""

    __slots__ = (
        "credit",
        "end",
        "id",
        "live",
        "next_lsn",
        "paused",
        "reading",
        "room",
        "tags",
        "told",
        "told_ms",
    )

    def __init__(
        self,
        id: SubscriptionId,
        tags: frozenset[str] | None,
        start: Lsn,
        end: Lsn,
        credit: int,
        room: Room,
    ) -> None:
        self.id = id
        self.room = room
        self.tags = tags
        #: Everything below was looked at and delivered.
        self.next_lsn = start
        self.end = end
        #: Bytes that may still be sent; one record may overdraw it.
        self.credit = credit
        self.live = False
        self.paused = False
        #: Bytes that are being read for it; 0 if nothing is.
        self.reading = 0
        #: The last `looked_up_to` that was sent, and when.
        self.told = start
        self.told_ms = 0

    def take(self, size: int) -> None:
        """So many bytes are delivered."""
        self.credit -= size
        self.room.unsent += size

    def read_ended(self) -> None:
        self.room.reading -= self.reading
        self.reading = 0


class Tails:
    """All subscriptions of one log. Each event returns the effects to perform, in order."""

    def __init__(self, tail: Lsn, *, progress_ms: int) -> None:
        self._tail = tail
        self._progress_ms = progress_ms
        self._all: dict[SubscriptionId, Subscription] = {}
        #: Live subscriptions by tag; those without tags want everything.
        self._live_by_tag: dict[str, dict[SubscriptionId, Subscription]] = {}
        self._live_untagged: dict[SubscriptionId, Subscription] = {}
        self._recent: deque[DurableGroup] = deque()
        self._recent_bytes = 0

    # ---- events

    def subscribe(
        self,
        id: SubscriptionId,
        tags: frozenset[str] | None,
        *,
        start: Lsn,
        end: Lsn = FOREVER,
        credit: int,
        paused: bool = False,
        room: Room | None = None,
    ) -> list[Effect]:
        """A new reader. `start` may lie above the tail: then it waits for it."""
        if id in self._all:
            raise InvariantBroken(f"subscription {id} exists")
        credit = min(credit, CREDIT_BYTES_MAX)
        subscription = Subscription(id, tags, start, end, credit, room or Room())
        subscription.paused = paused
        self._all[id] = subscription
        return self._advance(subscription)

    def unsubscribe(self, id: SubscriptionId) -> None:
        subscription = self._all.pop(id, None)
        if subscription is not None:
            self._leave_live(subscription)
            subscription.room.waiting.pop(id, None)

    def credit(self, id: SubscriptionId, size: int) -> list[Effect]:
        """The reader has room for `size` more bytes."""
        subscription = self._all.get(id)
        if subscription is None:
            return []
        subscription.credit = min(subscription.credit + size, CREDIT_BYTES_MAX)
        return self._advance(subscription)

    def pause(self, id: SubscriptionId) -> None:
        """Nothing more for this reader, but for a piece that is being read already."""
        subscription = self._all.get(id)
        if subscription is None:
            return
        subscription.paused = True
        if subscription.live:
            subscription.next_lsn = max(subscription.next_lsn, self._tail)
            self._leave_live(subscription)

    def resume(self, id: SubscriptionId) -> list[Effect]:
        subscription = self._all.get(id)
        if subscription is None:
            return []
        subscription.paused = False
        return self._advance(subscription)

    def sent(self, room: Room, unsent: int) -> list[Effect]:
        """A connection's socket has taken all but `unsent` bytes: who waited for room goes on."""
        room.unsent = unsent
        return self._fill(room)

    def _fill(self, room: Room) -> list[Effect]:
        effects: list[Effect] = []
        for _ in range(len(room.waiting)):
            if room.is_full:
                break
            id = next(iter(room.waiting))
            effects += self._advance(room.waiting.pop(id))
        return effects

    def durable(self, groups: Iterable[DurableGroup], now_ms: int) -> list[Effect]:
        """Groups became visible: feed the live readers."""
        batches: dict[SubscriptionId, list[bytes | bytearray | memoryview]] = {}
        stopped: list[Subscription] = []
        for group in groups:
            if group.header.first_lsn != self._tail:
                raise InvariantBroken(f"group {group.header.first_lsn} at tail {self._tail}")
            for subscription, record in self._matches(group):
                has_room = subscription.credit > 0 and not subscription.room.is_full
                if not has_room or group.end_lsn > subscription.end:
                    # It has seen all below this group; from here on it is behind.
                    subscription.next_lsn = max(subscription.next_lsn, self._tail)
                    self._leave_live(subscription)
                    stopped.append(subscription)
                    continue
                subscription.take(sum(map(len, record)))
                batches.setdefault(subscription.id, []).extend(record)
            self._tail = Lsn(group.end_lsn)
            self._remember(group)
        effects: list[Effect] = []
        for id, records in batches.items():
            subscription = self._all[id]
            if subscription.live:
                subscription.next_lsn = self._tail
            effects.append(self._deliver(subscription, tuple(records), now_ms))
        for subscription in stopped:
            effects += self._advance(subscription)
        return effects

    def skip_to(self, tail: Lsn) -> list[Effect]:
        """What lies below this tail was given up before it was seen here: it must be asked for."""
        before, self._tail = self._tail, tail
        self._recent.clear()
        self._recent_bytes = 0
        effects: list[Effect] = []
        for subscription in [found for found in self._all.values() if found.live]:
            subscription.next_lsn = max(subscription.next_lsn, before)
            self._leave_live(subscription)
            effects += self._advance(subscription)
        return effects

    def piece_read(
        self, read: ReadBehind, records: Records, looked_up_to: Lsn, now_ms: int
    ) -> list[Effect]:
        """Storage answered. What is for nobody any more leaves its room to others."""
        subscription = read.reader
        assert subscription is not None
        subscription.read_ended()
        if self._all.get(read.id) is not subscription:
            return self._fill(subscription.room)
        subscription.take(sum(map(len, records)))
        subscription.next_lsn = max(subscription.next_lsn, looked_up_to)
        effects: list[Effect] = [self._deliver(subscription, tuple(records), now_ms)]
        return effects + self._advance(subscription)

    def read_failed(self, read: ReadBehind) -> tuple[bool, list[Effect]]:
        """Storage did not answer: the subscription ends. False: it had ended before."""
        subscription = read.reader
        assert subscription is not None
        subscription.read_ended()
        is_here = self._all.get(read.id) is subscription
        if is_here:
            self.unsubscribe(read.id)
        return is_here, self._fill(subscription.room)

    def tick(self, now_ms: int) -> list[Effect]:
        """Tell quiet live readers how far was looked, and end those that reached their end."""
        effects: list[Effect] = []
        for subscription in list(self._all.values()):
            if not subscription.live:
                continue
            due = now_ms - subscription.told_ms >= self._progress_ms
            if (subscription.told < self._tail and due) or self._tail >= subscription.end:
                subscription.next_lsn = max(subscription.next_lsn, self._tail)
                effects.append(self._deliver(subscription, (), now_ms))
        return effects

    @property
    def count(self) -> int:
        return len(self._all)

    @property
    def behind(self) -> int:
        return sum(not subscription.live for subscription in self._all.values())

    def check(self) -> None:
        """Assert what can be seen from here."""
        for subscription in self._all.values():
            assert subscription.told <= subscription.next_lsn or subscription.live
            assert not (subscription.live and (subscription.reading or subscription.paused))
            assert subscription.room.reading >= subscription.reading >= 0
            assert not (subscription.live and subscription.id in subscription.room.waiting)
        lsn = self._tail
        for group in reversed(self._recent):
            assert group.end_lsn == lsn
            lsn = group.header.first_lsn

    # ---- decisions

    def _matches(
        self, group: DurableGroup
    ) -> list[tuple[Subscription, tuple[bytes | bytearray | memoryview, ...]]]:
        wanting = dict(self._live_untagged)
        if self._live_by_tag:
            for tag in group.body.tags:
                wanting.update(self._live_by_tag.get(tag, {}))
        found = []
        for subscription in wanting.values():
            # A subscription may start above the tail: what lies below its start is cut away.
            record = cut_group(group, subscription.tags, subscription.next_lsn)
            if record:
                found.append((subscription, record))
        return found

    def _advance(self, subscription: Subscription) -> list[Effect]:
        """Go live if all has been seen; else serve from memory or ask for a piece from storage."""
        if subscription.live or subscription.reading or subscription.paused:
            return []
        if subscription.id not in self._all:
            return []
        effects: list[Effect] = []
        while subscription.next_lsn < min(self._tail, subscription.end):
            if subscription.credit <= 0:
                return effects
            if subscription.room.is_full:
                subscription.room.waiting[subscription.id] = subscription
                return effects
            if not (self._recent and self._recent[0].header.first_lsn <= subscription.next_lsn):
                subscription.reading = min(PIECE_BYTES, subscription.credit)
                subscription.room.reading += subscription.reading
                effects.append(
                    ReadBehind(
                        subscription.id,
                        subscription.tags,
                        subscription.next_lsn,
                        min(self._tail, subscription.end),
                        subscription.reading,
                        subscription,
                    )
                )
                return effects
            effects.append(self._from_memory(subscription))
        if subscription.next_lsn >= subscription.end:
            if subscription.id in self._all:
                effects.append(self._deliver(subscription, (), subscription.told_ms))
            return effects
        self._join_live(subscription)
        return effects

    def _from_memory(self, subscription: Subscription) -> Deliver:
        records: list[bytes | bytearray | memoryview] = []
        size = 0
        first = bisect_right(self._recent, subscription.next_lsn, key=_END_LSN)
        for group in islice(self._recent, first, None):
            full = size >= min(subscription.credit, PIECE_BYTES)
            if group.header.first_lsn >= subscription.end or full:
                break
            record = cut_group(group, subscription.tags, subscription.next_lsn, subscription.end)
            records += record
            size += sum(map(len, record))
            subscription.next_lsn = min(Lsn(group.end_lsn), subscription.end)
        subscription.take(size)
        return self._deliver(subscription, tuple(records), subscription.told_ms)

    def _deliver(
        self,
        subscription: Subscription,
        records: tuple[bytes | bytearray | memoryview, ...],
        now_ms: int,
    ) -> Deliver:
        subscription.told = max(subscription.told, min(subscription.next_lsn, subscription.end))
        subscription.told_ms = now_ms
        done = subscription.told >= subscription.end
        if done:
            self.unsubscribe(subscription.id)
        return Deliver(subscription.id, records, subscription.told, done)

    def _join_live(self, subscription: Subscription) -> None:
        subscription.live = True
        if subscription.tags is None:
            self._live_untagged[subscription.id] = subscription
            return
        for tag in subscription.tags:
            self._live_by_tag.setdefault(tag, {})[subscription.id] = subscription

    def _leave_live(self, subscription: Subscription) -> None:
        if not subscription.live:
            return
        subscription.live = False
        self._live_untagged.pop(subscription.id, None)
        for tag in subscription.tags or ():
            subscribers = self._live_by_tag[tag]
            subscribers.pop(subscription.id, None)
            if not subscribers:
                del self._live_by_tag[tag]

    def _remember(self, group: DurableGroup) -> None:
        self._recent.append(group)
        self._recent_bytes += GROUP_OVERHEAD_BYTES + len(group.body.data)
        while self._recent_bytes > RECENT_BYTES and len(self._recent) > 1:
            oldest = self._recent.popleft()
            self._recent_bytes -= GROUP_OVERHEAD_BYTES + len(oldest.body.data)


def cut_group(
    group: DurableGroup, tags: frozenset[str] | None, start: int, end: int = FOREVER
) -> tuple[bytes | bytearray | memoryview, ...]:
    """The entries of a group in [start, end) with any of the tags, as one record; () if none."""
    body, first = group.body, group.header.first_lsn
    if tags is None and start <= first and group.end_lsn <= end:
        return group.record
    keep = list(range(body.count)) if tags is None else body.matching(tags)
    if first < start or group.end_lsn > end:
        keep = [index for index in keep if start <= first + index < end]
    if not keep:
        return ()
    if len(keep) == body.count:
        return group.record
    return (slice_record(group.header, body, keep, [body.payload(index) for index in keep]),)
