"""A log that another proxy owns, followed for readers: one read of the nodes feeds all of them.

Owns the place up to which the log was followed. Blocks are read from any replica, up to what the
writer has told to be durable (the LAC), by long polls at the tail and with growing requests while
behind (DistributedLog IV). Law (I4): nothing above the LAC is taken in, and `durable_lsn` never
goes back; the next segment is entered only when the last one is sealed and all of it was taken in
(R14, R15).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.errors import NotOwner, PenstockError
from penstock.ids import Lsn
from penstock.log.block_format import BlockKind
from penstock.log.core.revocations import Revocations
from penstock.log.core.tails import DurableGroup
from penstock.log.group_format import Body
from penstock.log.proxy.block_source import Block, Fetched
from penstock.log.proxy.log_view import LogView, SegmentMap, groups_of
from penstock.log.records import Flush, Guard, Value
from penstock.log.replication.manifest import LogManifest, Segment
from penstock.log.replication.read_ahead import ReadAhead
from penstock.log.serving.served_log import Reply, ServedLog, Surroundings
from penstock.wire import messages as m

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.1

T = TypeVar("T")


class FollowedLog(ServedLog):
    """See the module's docstring. `load` reads the manifest, `changed` says that it is worth it."""

    def __init__(
        self,
        around: Surroundings,
        view: LogView,
        *,
        load: Callable[[], Awaitable[LogManifest]],
        changed: asyncio.Event,
    ) -> None:
        self._place = _first_place(view.manifest)
        if self._place is not None:
            view.durable_lsn = self._place.base_lsn
            view.maps[self._place.id] = SegmentMap(self._place.base_lsn)
        super().__init__(around, view.durable_lsn)
        self.view = view
        self._load = load
        self._changed = changed
        #: Next block to take in, and how far the segment is known to be durable.
        self._next = 0
        self._durable = 0
        self._ahead = ReadAhead()
        self._revocations = Revocations()
        #: Blocks that were durable when the first answer came: until they are taken in, a token may
        #: have been revoked that is not known of here. None: nothing was answered yet.
        self._behind_up_to: int | None = None

    def start(self) -> None:
        self._tasks.spawn(self._follow())

    async def stop(self) -> None:
        await self._cancel_tasks()

    # ---- following

    async def _follow(self) -> None:
        while True:
            try:
                await self._step()
            except PenstockError as error:
                logger.warning("cannot follow log=%s cause=%s", self.view.log, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _step(self) -> None:
        if self._changed.is_set():
            self._changed.clear()
            try:
                await self._reload()
            except PenstockError:
                self._changed.set()  # nobody will say it again
                raise
        segment = self._place
        if segment is None or (segment.sealed and self._next >= segment.blocks):
            await self._enter_next()
            return
        durable = segment.blocks if segment.sealed else self._durable
        request = self._ahead.next_request(self._next, durable)
        assert request is not None, "one request at a time, and all of it is consumed"
        started = self._loop.time()
        try:
            fetched = await self._until_changed(
                self.view.source.poll(
                    self.view.log,
                    self.view.mark,
                    segment,
                    self._next,
                    durable=durable,
                    bytes_max=request.bytes,
                )
            )
        except BaseException:
            self._ahead.failed(request)
            raise
        if fetched is None:
            self._ahead.failed(request)
            return
        size = sum(block.header.block_bytes for block in fetched.blocks)
        self._ahead.answered(request, bytes=size, latency_ms=(self._loop.time() - started) * 1000)
        self._durable = max(self._durable, fetched.durable_block)
        try:
            self._take_in(fetched.blocks)
        finally:
            self._ahead.consumed(size, self._loop.time() * 1000)

    async def _until_changed(self, polled: Awaitable[Fetched]) -> Fetched | None:
        """The poll's answer; None if the manifest changed first."""
        poll = asyncio.ensure_future(polled)
        change = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({poll, change}, return_when=asyncio.FIRST_COMPLETED)
            return poll.result() if poll.done() else None
        finally:
            poll.cancel()
            change.cancel()

    def _take_in(self, blocks: list[Block]) -> None:
        segment = self._place
        assert segment is not None
        end = max(self._durable, segment.blocks * segment.sealed)
        if self._behind_up_to is None:
            self._behind_up_to = end
        # All are read before any is taken in: what cannot be read changes nothing.
        found = [(block, groups_of(block)) for block in blocks if block.header.block < end]
        groups: list[DurableGroup] = []
        for block, its_groups in found:
            self.view.maps[segment.id].add(block, its_groups)
            groups += its_groups
            self._learn_revoked(block, its_groups)
            self._next += 1
        if self._next >= self._behind_up_to:
            self._behind_up_to = 0  # and never again, in whatever segment
        if groups:
            self.view.durable_lsn = Lsn(groups[-1].end_lsn)
            self.perform(self.tails.durable(groups, self.now_ms()))
            self.around.after_event()

    def _learn_revoked(self, block: Block, groups: list[DurableGroup]) -> None:
        header = block.header
        if header.kind == BlockKind.SNAPSHOT:
            mark = self.view.mark
            self._revocations.take_snapshot(block.body, header.part, header.parts, log_mark=mark)
        for group in groups:
            self._revocations.take_group(group.body)

    async def _enter_next(self) -> None:
        """Go on in the next segment, once the manifest has one."""
        last = self._place
        if not self._enter(-1 if last is None else last.id):
            await self._changed.wait()
        elif last is not None:
            self.view.keep_map(last, self.view.maps.pop(last.id), last.bytes // 16)

    def _enter(self, before: int) -> bool:
        """Go on in the first segment after `before` that starts where we are, or beyond."""
        lsn = self.view.durable_lsn
        place = next(
            (s for s in self.view.manifest.segments if s.id > before and s.base_lsn >= lsn), None
        )
        if place is None:
            return False
        self._place, self._next, self._durable = place, 0, 0
        self.view.maps[place.id] = SegmentMap(place.base_lsn)
        if place.base_lsn > lsn:
            # What lies between was given up before we saw it: readers are told when they ask.
            self.view.durable_lsn = place.base_lsn
            self.perform(self.tails.skip_to(place.base_lsn))
            self._revocations.forget()
            self._behind_up_to = None
        return True

    async def _reload(self) -> None:
        manifest = await self._load()
        self.view.manifest = manifest
        self.view.forget_below(manifest.first_segment)
        if self._place is not None:
            found = manifest.find(self._place.id)
            if found is not None:
                self._place = found
            elif self._next == 0 or self._place.id < manifest.first_segment:
                # Given up while we were behind; or dropped by a new owner, with nothing in it.
                self._place = None
                self._enter(-1)

    # ---- what the owner does

    def welcome(self) -> m.Welcome:
        manifest = self.view.manifest
        return m.Welcome(manifest.log_id, manifest.epoch, self.durable_lsn, manifest.trim_point)

    def status(self) -> dict[str, object]:
        mine: dict[str, object] = {
            "trim_point": self.trim_point,
            "tail": self.durable_lsn,
            "subscriptions": self.tails.count,
            "subscriptions_behind": self.tails.behind,
        }
        return mine | self.view.status()

    @property
    def trim_point(self) -> Lsn:
        return self.view.manifest.trim_point

    @property
    def durable_lsn(self) -> Lsn:
        return self.view.durable_lsn

    def is_revoked(self, id: str) -> bool | None:
        """None until all was taken in that was durable when we came: it may stand there."""
        return None if self._behind_up_to != 0 else self._revocations.is_revoked(id)

    def append(self, reply: Reply, body: Body, guards: tuple[Guard, ...], flush: Flush) -> None:
        reply(NotOwner(""))

    async def get_metadata(
        self, keys: Callable[[dict[str, Value]], list[tuple[str, Value]]]
    ) -> list[tuple[str, Value]]:
        raise NotOwner("")

    async def get_producer(self, producer: str) -> m.Producer:
        raise NotOwner("")

    async def trim(self, lsn: int) -> Lsn:
        raise NotOwner("")

    def pump(self) -> None:
        return None

    def _read(self, function: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        return self._loop.create_task(self.view.read(function, *arguments))


def _first_place(manifest: LogManifest) -> Segment | None:
    """Where to start following: the first segment that may still grow, else the last."""
    if not manifest.segments:
        return None
    return next((s for s in manifest.segments if not s.sealed), manifest.segments[-1])
