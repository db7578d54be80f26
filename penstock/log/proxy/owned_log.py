"""A log that this proxy owns: its sequencer, on segments that are written to quorums of nodes.

    append ─► sequencer ─► Write ─► one block ─► open_segment.py ─► nodes
                                                     │ durable, in order over all segments
              answers, readers, index ◄──────────────┘

Owns rolling: the next segment is opened in the manifest and written to while the last blocks of the
old one are still on their way; nothing of it is acknowledged before all of the old one is, and the
old one is closed when all of it is durable (R14). A *control* block tells readers on other proxies
how far they may read when no further data comes (DistributedLog III-A).
Laws: what a successor must read is bounded, whatever the log was used for; (I5) once fenced,
nothing is answered any more: what was in flight is unknown to its client.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from penstock.errors import BadRequest, Fenced, PenstockError, Unavailable
from penstock.ids import BlockId, Lsn, SegmentId
from penstock.limits import KIB, MIB
from penstock.log.block_format import BlockHeader, BlockKind
from penstock.log.core.sequencer import Sequencer, Write
from penstock.log.core.state import LogState, encode_snapshot
from penstock.log.core.tails import DurableGroup
from penstock.log.group_format import Buffer
from penstock.log.proxy.block_source import Block
from penstock.log.proxy.log_view import LogView, SegmentMap
from penstock.log.proxy.manifest_register import ManifestRegister
from penstock.log.proxy.open_segment import OpenSegment
from penstock.log.record_format import RECORD_HEADER_BYTES, RecordHeader, encode_header
from penstock.log.replication.manifest import LogManifest, Segment
from penstock.log.serving.served_log import Outcome, Reply, SequencedLog, Surroundings
from penstock.wire import messages as m

logger = logging.getLogger(__name__)

#: Writes on their way to nodes at once, and no more than LOG_INFLIGHT_BYTES_MAX; beyond it, groups
#: collect into larger blocks.
WRITES_MAX = 16
#: A piece of a snapshot or of an index.
PIECE_BYTES = 1 * MIB
#: The state is written down again after this many bytes, or some times its own size.
SNAPSHOT_BYTES = 8 * MIB
SNAPSHOT_FACTOR = 4
#: What a block counts for besides: a successor reads every one since the last snapshot, also those
#: with little or nothing in them, of which a quiet log has most (4,096 take it about 0.2 s).
BLOCK_COST_BYTES = 2 * KIB
#: How long a durable block waits for the next one to tell of it, before a control block does.
CONTROL_SECONDS = 0.002
ROLL_RETRY_SECONDS = 0.2
#: After it, an audit has seen what was sealed: some rounds of auditor.py.
AUDITED_SECONDS = 15.0
#: An owner of a quiet log with readers asks the nodes this often whether it still is the owner.
PROVE_SECONDS = 5.0

T = TypeVar("T")

#: Places a new segment: (id, base LSN, time) → the segment, not yet in any manifest.
NewSegment = Callable[[SegmentId, Lsn, int], Segment]
#: Makes what writes a segment.
OpenFor = Callable[[Segment, "OwnedLog"], OpenSegment]


@dataclass(slots=True)
class _Sent:
    """A block on its way, in the order of the log; `write` is None for all but data."""

    open: OpenSegment
    block: BlockId
    write: Write | None
    groups: list[DurableGroup]
    #: Counts the blocks that were sent, over all segments.
    number: int
    body: Sequence[Buffer]
    #: Known once it was sent.
    header: BlockHeader | None = None

    def as_read(self) -> Block:
        """The block as a reader would see it; its bytes were just made, not received."""
        assert self.header is not None
        body = self.body[0] if len(self.body) == 1 else b"".join(self.body)
        return Block(self.header, memoryview(body))


class OwnedLog(SequencedLog):
    """See the module's docstring. Made by open_log.py once the log was recovered."""

    def __init__(
        self,
        around: Surroundings,
        sequencer: Sequencer,
        register: ManifestRegister,
        view: LogView,
        *,
        new_segment: NewSegment,
        open_for: OpenFor,
    ) -> None:
        super().__init__(around, sequencer)
        self.register = register
        self.view = view
        self._new_segment = new_segment
        self._open_for = open_for
        #: Segments that are written to; the last one takes new blocks.
        self._opens: deque[OpenSegment] = deque()
        self._sent: deque[_Sent] = deque()
        #: Durable blocks that the index does not know yet.
        self._unindexed: deque[_Sent] = deque()
        #: Writes that wait for the next segment to be opened.
        self._held: deque[Write] = deque()
        self._rolling = False
        #: Why no segment can be opened now; empty if nothing is in the way.
        self.stalled = ""
        #: Where the last block that was sent ended.
        self._ordered_lsn = sequencer.durable_lsn
        self._control: asyncio.TimerHandle | None = None
        #: Who waits for a durable block that is sent after they asked, and what was sent before.
        self._unsure: list[tuple[int, asyncio.Future[None]]] = []
        #: The open segment's snapshot is durable: older segments are not needed to recover.
        self._snapshot_durable = False
        self.fenced = False
        #: Until then a segment may be sealed, lack copies, and not be counted by an audit: one of
        #: the owner before, or one of this owner that was closed while a node lacked blocks.
        self._audited_at = self._loop.time() + AUDITED_SECONDS
        #: Segments that were given up and have a cold copy to be removed.
        self.given_up: list[SegmentId] = []
        #: Blocks that were sent so far, and how many of them when the newest durable one was: until
        #: then this was the owner.
        self._sent_count = 0
        self._sent_at = self._loop.time()
        self._durable_count = 0
        view.durable_lsn = sequencer.durable_lsn
        view.catch_up = self._index_durable

    @property
    def manifest(self) -> LogManifest:
        return self.register.manifest

    def welcome(self) -> m.Welcome:
        manifest = self.manifest
        return m.Welcome(manifest.log_id, manifest.epoch, self.durable_lsn, manifest.trim_point)

    def status(self) -> dict[str, object]:
        return super().status() | self.view.status() | {"stalled": self.stalled}

    @property
    def lacking_blocks(self) -> int:
        """Blocks of segments that are written to which a node has missed and not got yet."""
        return sum(segment.core.count_lacking() for segment in self._opens)

    @property
    def is_audited(self) -> bool:
        """Whether the auditor had the time to look at all segments that are sealed."""
        return self._loop.time() >= self._audited_at

    @property
    def trim_point(self) -> Lsn:
        return self.manifest.trim_point

    @property
    def segment(self) -> OpenSegment:
        """The one that takes new blocks."""
        return self._opens[-1]

    @property
    def is_sure(self) -> bool:
        return False  # however new the last answer of a quorum is: another may own the log since

    async def make_sure(self) -> None:
        """A block that a quorum takes proves that nobody had fenced the log when it was sent.

        No time is short enough to do without: an owner that is cut off from the metadata does not
        know when its session ends.
        """
        if self.fenced or self._stopping:
            raise Unavailable("the log has another owner now")
        future: asyncio.Future[None] = self._loop.create_future()
        self._unsure.append((self._sent_count, future))
        if len(self._unsure) == 1 and not self._is_opening:
            self._write_control()
        await future

    @property
    def _is_opening(self) -> bool:
        """A segment is about to be opened: its first block tells what a control block would."""
        return self._rolling and not self.stalled

    @property
    def _settled(self) -> LogState | None:
        """Writes that wait for a segment which cannot be opened may wait for whoever asks."""
        return self._held[0].roll if self.stalled and self._held else None

    def tick(self) -> None:
        """Who has nothing to write would never hear of a successor, and keep its readers."""
        super().tick()
        quiet = self._loop.time() - self._sent_at
        if quiet > PROVE_SECONDS and not (self._is_opening or self.fenced or self._stopping):
            self._write_control()

    def _reassure(self) -> None:
        """Tell those who asked before the newest durable block was sent, however long it took."""
        waiting, self._unsure = self._unsure, []
        for asked_count, future in waiting:
            if self._durable_count <= asked_count:
                self._unsure.append((asked_count, future))
            elif not future.done():
                future.set_result(None)
        if self._unsure and not self._sent and not self._is_opening:
            self._write_control()  # they came after it was sent

    def _tell(self, reply: Reply, outcome: Outcome) -> None:
        """A refusal rests on what is known here: it is told only by who is surely the owner."""
        if isinstance(outcome, PenstockError) and not self.is_sure:
            self._tasks.spawn(self._tell_surely(reply, outcome))
        else:
            super()._tell(reply, outcome)

    async def _tell_surely(self, reply: Reply, outcome: PenstockError) -> None:
        try:
            await self.make_sure()
        except Unavailable:
            return  # another owner decides
        super()._tell(reply, outcome)
        self.around.after_event()

    def begin(self, segment: Segment, state: LogState) -> None:
        """Write to this segment from now on; it stands in the manifest."""
        self._opens.append(self._open_for(segment, self))
        self.view.maps[segment.id] = SegmentMap(segment.base_lsn)
        self.view.manifest = self.manifest
        self._snapshot_durable = False
        self._write_snapshot(state)

    # ---- writes

    def pump(self) -> None:
        if self.fenced:
            return
        now_ms = self.around.wall_ms()
        while (write := self.sequencer.take_write(now_ms)) is not None:
            if write.roll is not None or self._rolling:
                self._held.append(write)
                self._roll_next()
            else:
                self._write(write)
        self._wake_when_due()
        self._give_answers()

    def _write(self, write: Write) -> None:
        if write.snapshot is not None and write.roll is None:
            self._write_snapshot(write.snapshot)
        segment = self.segment
        manifest = self.manifest
        groups: list[DurableGroup] = []
        body: list[Buffer] = []
        for group in write.groups:
            header = RecordHeader(
                RECORD_HEADER_BYTES + len(group.body.data),
                group.body.table_crc,
                group.first_lsn,
                segment.segment.epoch,
                segment.segment.id,
                group.time_ms,
                write.durable_lsn,
                manifest.log_mark,
            )
            record = (encode_header(header), group.body.data)
            body += record
            groups.append(DurableGroup(header, group.body, record))
        self._send(
            BlockKind.DATA,
            body,
            base_lsn=write.groups[0].first_lsn,
            end_lsn=write.end_lsn,
            time_ms=write.groups[-1].time_ms,
            write=write,
            groups=groups,
        )

    def _write_snapshot(self, state: LogState) -> None:
        # Views: however large the state is, its pieces wait for their turn without a copy.
        data = memoryview(encode_snapshot(state, log_mark=self.manifest.log_mark))
        self.sequencer.snapshot_bytes = max(SNAPSHOT_BYTES, SNAPSHOT_FACTOR * len(data))
        starts = range(0, len(data), PIECE_BYTES)
        for part, start in enumerate(starts):
            self._send(
                BlockKind.SNAPSHOT,
                [data[start : start + PIECE_BYTES]],
                base_lsn=state.next_lsn,
                end_lsn=state.next_lsn,
                time_ms=state.time_ms,
                part=part,
                parts=len(starts),
            )

    def _send(
        self,
        kind: BlockKind,
        body: list[Buffer],
        *,
        base_lsn: Lsn,
        end_lsn: Lsn,
        time_ms: int,
        part: int = 0,
        parts: int = 1,
        write: Write | None = None,
        groups: list[DurableGroup] | None = None,
    ) -> None:
        segment = self.segment
        self._ordered_lsn = end_lsn
        if kind != BlockKind.SNAPSHOT:
            self.sequencer.wrote_besides(BLOCK_COST_BYTES)
        # Before it is sent: a node may answer at once.
        self._sent_count += 1
        self._sent_at = self._loop.time()
        number = segment.core.next_block
        sent = _Sent(segment, number, write, groups or [], self._sent_count, body)
        self._sent.append(sent)
        sent.header = segment.write(
            kind,
            body,
            base_lsn=base_lsn,
            end_lsn=end_lsn,
            time_ms=time_ms,
            part=part,
            parts=parts,
        )

    def on_durable(self, _: OpenSegment) -> None:
        """Some segment got further: all that is durable in the order of the log is told."""
        while self._sent and self._sent[0].block < self._sent[0].open.durable_block:
            self._took(self._sent.popleft())
        while len(self._opens) > 1 and not self._has_pending(self._opens[0]):
            done = self._opens.popleft()
            mending = done.close()
            if done.core.count_lacking():
                self._audited_at = self._loop.time() + AUDITED_SECONDS
            self._tasks.spawn(self._seal(done, mending))
        if self._unsure:
            self._reassure()
        self._tell_durable()
        self.around.after_event()

    def _took(self, sent: _Sent) -> None:
        """A block is durable, and all before it."""
        self._durable_count = sent.number
        self._unindexed.append(sent)
        write = sent.write
        if write is None:
            return
        metrics = self.metrics
        metrics.appended_groups += len(sent.groups)
        metrics.appended_bytes += write.bytes
        metrics.appended_entries += write.end_lsn - write.groups[0].first_lsn
        self.sequencer.written(write)
        self.view.durable_lsn = self.sequencer.durable_lsn
        self._give_answers()
        self.perform(self.tails.durable(sent.groups, self.now_ms()))

    def after_turn(self) -> None:
        self._index_durable()

    def _index_durable(self) -> None:
        """Take what is durable into the index and the cache: after the answers went out, or for a
        reader that comes before. Nobody who waits for a quorum waits for this too.
        """
        while self._unindexed:
            sent = self._unindexed.popleft()
            block = sent.as_read()
            self.view.maps[sent.open.segment.id].add(block, sent.groups)
            header = block.header
            if header.kind != BlockKind.SNAPSHOT:  # nobody here reads it; one piece holds them all
                self.view.source.keep(sent.open.key, block)
            if header.kind == BlockKind.SNAPSHOT and header.part == header.parts - 1:
                self._snapshot_durable |= sent.open is self.segment

    def _has_pending(self, segment: OpenSegment) -> bool:
        return segment.durable_block < segment.core.next_block

    def on_fenced(self, error: BaseException) -> None:
        """A newer owner exists: stop here, and answer nobody."""
        if self.fenced or self._stopping:
            return  # or we have let it go: a successor of the same name is not meant
        logger.warning("lost the log log=%s cause=%s", self.view.log, error)
        self.fenced = True
        self.sequencer.write_failed()
        for _, future in self._unsure:
            if not future.done():
                future.set_exception(Unavailable("the log has another owner now"))
        self._unsure.clear()
        self.around.on_fatal(error)

    # ---- control blocks

    def _tell_durable(self) -> None:
        if self._control is None and self.segment.wants_control:
            self._control = self._loop.call_later(CONTROL_SECONDS, self._send_control)

    def _send_control(self) -> None:
        self._control = None
        if not self._stopping and not self.fenced and self.segment.wants_control:
            self._write_control()

    def _write_control(self) -> None:
        lsn = self._ordered_lsn
        state = self.sequencer.take_snapshot(lsn)
        if state is not None:
            self._write_snapshot(state)  # which tells what a control block would
            return
        time_ms = self.segment.last_ms
        self._send(BlockKind.CONTROL, [], base_lsn=lsn, end_lsn=lsn, time_ms=time_ms)

    # ---- segments

    def _roll_next(self) -> None:
        if not self._rolling:
            self._rolling = True
            self._tasks.spawn(self._roll())

    async def _roll(self) -> None:
        """Open the next segment for the first of the held writes, then go on with all."""
        try:
            while self._held:
                first = self._held[0]
                if first.roll is not None:
                    await self._open_next(first, first.roll)
                self._held.popleft()
                self._write(first)
            self._rolling = False
        except Fenced as error:
            self.on_fenced(error)

    async def _open_next(self, write: Write, state: LogState) -> None:
        # Two open segments are enough: the one before must be closed first.
        while len(self.manifest.open_segments) > 1:
            if self.fenced:
                raise Fenced("the log has another owner now")
            await asyncio.sleep(0.001)
        first = write.groups[0]
        full: LogManifest | None = None
        while True:
            try:
                if self.manifest is not full:
                    number = SegmentId(self.manifest.segments[-1].id + 1)
                    segment = self._new_segment(number, first.first_lsn, first.time_ms)
                    await self._add_segment(segment)
                    break
            except Fenced:
                raise
            except PenstockError as error:
                full = self.manifest if isinstance(error, BadRequest) else None
                self._stall(str(error))
            await asyncio.sleep(ROLL_RETRY_SECONDS)
        self.stalled = ""
        self.begin(segment, state)

    async def _add_segment(self, segment: Segment) -> None:
        """Raises BadRequest if the manifest is full: it can be opened and trimmed all the same."""
        await self.register.update(lambda known: with_new(known, segment), leave_room=True)

    def _stall(self, cause: str) -> None:
        """Appends wait. Whoever asks something else, or trims, need not."""
        if cause != self.stalled:
            logger.warning("no segment can be opened log=%s cause=%s", self.view.log, cause)
        self.stalled = cause
        for asking in self._asking:
            if not asking.done():
                asking.set_result(False)
        if self._unsure and not self._sent:
            self._write_control()

    async def _seal(self, open: OpenSegment, mending: asyncio.Task[None] | None) -> None:
        """Close a segment all of whose blocks are durable; nodes are not replaced any more."""
        try:
            self._index_durable()
            if mending is not None:
                await asyncio.gather(mending, return_exceptions=True)
            following = self.manifest.segments
            place = next(i for i, s in enumerate(following) if s.id == open.segment.id)
            sealed = replace(
                open.segment,
                sealed=True,
                end_lsn=following[place + 1].base_lsn,
                blocks=int(open.core.next_block),
                bytes=open.bytes,
                last_ms=open.last_ms,
            )
            await self.publish(sealed)
        except Fenced as error:
            self.on_fenced(error)

    async def publish(self, segment: Segment) -> None:
        """Put a changed segment into the manifest."""
        await self.register.update(lambda known: known.with_segment(segment))
        self.view.manifest = self.manifest

    async def trim(self, lsn: int) -> Lsn:
        if lsn > self.sequencer.durable_lsn:
            await self.make_sure()
            raise BadRequest(f"cannot trim at {lsn}: the tail is {self.sequencer.durable_lsn}")
        self._index_durable()
        spare, before = self._snapshot_durable, self.manifest.segments
        try:
            await self.register.update(lambda known: trimmed(known, Lsn(lsn), spare))
        except Fenced as error:
            self.on_fenced(error)
            raise Unavailable("the log has another owner now") from error
        first = self.manifest.first_segment
        self.given_up += [segment.id for segment in before if segment.cold and segment.id < first]
        self.view.manifest = self.manifest
        self.view.forget_below(self.manifest.first_segment)
        logger.info("trimmed log=%s trim_point=%d", self.view.log, self.trim_point)
        return self.trim_point

    # ---- reads, end

    def _read(self, function: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        return self._loop.create_task(self.view.read(function, *arguments))

    async def stop(self, *, clean: bool) -> None:
        """Finish what is in flight; or, if not clean, just let go."""
        await self._finish(clean and not self.fenced)
        await self._cancel_tasks()
        if self._control is not None:
            self._control.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for segment in self._opens:
            segment.close()

    async def _finish(self, clean: bool) -> None:
        self._stopping = True
        deadline = self._loop.time() + 5.0
        while clean and not self.fenced and self._loop.time() < deadline:
            self.pump()
            if self.sequencer.is_idle:
                return
            await asyncio.sleep(0.002)


def with_new(manifest: LogManifest, segment: Segment) -> LogManifest:
    """The manifest with one more segment; the same if it is there."""
    if manifest.find(segment.id) is not None:
        return manifest
    return replace(manifest, segments=(*manifest.segments, segment))


def trimmed(manifest: LogManifest, lsn: Lsn, spare: bool) -> LogManifest:
    """The manifest without what lies below `lsn`. The newest sealed segment with entries stays,
    unless it can be spared: until the open one has its snapshot, the state is recovered from it.
    An empty one may have no snapshot: its writer died before it was whole.
    """
    point = max(manifest.trim_point, lsn)
    sealed = [segment for segment in manifest.segments if segment.sealed]
    gone = sum(segment.end_lsn <= point for segment in sealed)
    if not spare:
        full = [at for at, segment in enumerate(sealed) if segment.end_lsn > segment.base_lsn]
        gone = min(gone, full[-1] if full else 0)
    kept = manifest.segments[gone:]
    first = kept[0].id if kept else manifest.first_segment
    return replace(manifest, trim_point=point, first_segment=first, segments=kept)
