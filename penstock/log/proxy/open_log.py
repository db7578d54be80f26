"""Become the owner of a log: take the epoch, recover what is open, rebuild the state, go on.

The order of steps is the law (I5, I6): the epoch is taken before anything is fenced, so that older
owners cannot change the manifest any more; every open segment is fenced and its end found; the
state is the fold over what is left; one versioned change closes the old segments and opens the new
one. A segment that does not start where the one before it ended holds nothing that was ever
acknowledged (owned_log.py acknowledges in order): it is dropped (R14).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from penstock.errors import BadFormat, InvariantBroken, Unavailable
from penstock.ids import BlockId, Lsn, NodeId, SegmentId
from penstock.limits import LOG_INFLIGHT_BYTES_MAX, MIB
from penstock.log.block_format import BLOCK_HEADER_BYTES, BlockKind
from penstock.log.core.sequencer import SegmentLimits, Sequencer
from penstock.log.core.state import LogState, decode_snapshot
from penstock.log.meta.api import MetadataStore
from penstock.log.proxy.block_source import BlockSource
from penstock.log.proxy.log_view import ColdCopies, LogView, groups_of
from penstock.log.proxy.manifest_register import ManifestRegister
from penstock.log.proxy.open_segment import OpenSegment
from penstock.log.proxy.owned_log import SNAPSHOT_BYTES, WRITES_MAX, OwnedLog
from penstock.log.proxy.recover_segment import recover_segment
from penstock.log.replication.manifest import Ensemble, LogManifest, Segment
from penstock.log.replication.node_api import NodeInfo, Nodes
from penstock.log.replication.placement import choose_ensemble, choose_replacement, draw
from penstock.log.replication.quorum import can_ack
from penstock.log.serving.served_log import Surroundings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a new owner goes on from."""

    #: The segments as they must stand in the manifest: all of them sealed.
    segments: tuple[Segment, ...]
    state: LogState
    next_segment: SegmentId


async def recover_log(
    nodes: Nodes, source: BlockSource, log: str, manifest: LogManifest
) -> Recovered:
    """Fence and recover every open segment of a log whose epoch was just taken."""
    opens = manifest.open_segments
    recoveries = [
        asyncio.ensure_future(
            recover_segment(nodes, log, segment, epoch=manifest.epoch, log_mark=manifest.log_mark)
        )
        for segment in opens
    ]
    try:
        ends = await asyncio.gather(*recoveries)
    finally:
        for recovery in recoveries:
            recovery.cancel()
    kept = [segment for segment in manifest.segments if segment.sealed]
    for segment, end in zip(opens, ends, strict=True):
        if kept and kept[-1].end_lsn != segment.base_lsn:
            logger.info("dropped segments log=%s from=%d", log, segment.id)
            break
        kept.append(await _closed(source, log, manifest, segment, end))
    state = await load_state(source, log, manifest, kept)
    if kept and state.next_lsn != kept[-1].end_lsn:
        raise InvariantBroken(f"log {log}: the state ends at {state.next_lsn}, not {kept[-1]}")
    last = manifest.segments[-1].id if manifest.segments else manifest.first_segment - 1
    return Recovered(tuple(kept), state, SegmentId(last + 1))


async def _closed(
    source: BlockSource, log: str, manifest: LogManifest, segment: Segment, end: BlockId
) -> Segment:
    """The segment as it is sealed: its end is that of its last block."""
    sealed = replace(
        segment,
        sealed=True,
        blocks=int(end),
        end_lsn=segment.base_lsn,
        bytes=0,
        last_ms=segment.first_ms,
    )
    if end == 0:
        return sealed
    header = (await source.get(log, manifest.log_mark, sealed, end - 1)).header
    data_bytes = header.block_bytes - BLOCK_HEADER_BYTES if header.kind == BlockKind.DATA else 0
    return replace(
        sealed,
        end_lsn=header.end_lsn,
        bytes=header.offset + data_bytes,
        last_ms=max(segment.first_ms, header.time_ms),
    )


async def load_state(
    source: BlockSource, log: str, manifest: LogManifest, segments: list[Segment]
) -> LogState:
    """The fold over sealed segments, from the newest snapshot that is whole."""
    for segment in reversed(segments):
        if segment.blocks:
            state = await _load_from(source, log, manifest, segment)
            if state is not None:
                return state
        if segment.end_lsn != segment.base_lsn:
            raise BadFormat(f"segment {segment.id} of log {log} holds entries but no snapshot")
    if segments and segments[-1].end_lsn:
        raise BadFormat(f"no snapshot is left of log {log}")
    return LogState()


async def _load_from(
    source: BlockSource, log: str, manifest: LogManifest, segment: Segment
) -> LogState | None:
    """The state at the end of a segment; None if its writer died before its snapshot was whole."""
    mark = manifest.log_mark
    last = (await source.get(log, mark, segment, segment.blocks - 1)).header
    state: LogState | None = None
    pieces: list[memoryview] = []
    for number in range(last.snapshot_block, segment.blocks):
        block = await source.get(log, mark, segment, number)
        header = block.header
        if header.kind == BlockKind.SNAPSHOT and state is None:
            pieces.append(block.body)
            if header.part == header.parts - 1:
                state = decode_snapshot(b"".join(pieces), log_mark=mark)
        for group in groups_of(block):
            if state is None:
                raise BadFormat(f"segment {segment.id} of log {log}: entries before a snapshot")
            lsn, time_ms = group.header.first_lsn, group.header.time_ms
            state.apply(group.body, first_lsn=lsn, time_ms=time_ms)
        if number % 64 == 0:
            await asyncio.sleep(0)  # it may be long: others have their turns
    return state


def taken_over(manifest: LogManifest, recovered: Recovered, segment: Segment) -> LogManifest:
    """The manifest with the recovered segments closed and the new one open; idempotent.

    Copies of sealed segments may have moved meanwhile: those stand as they are.
    """
    if manifest.find(segment.id) is not None:
        return manifest
    ours = {s.id: s for s in recovered.segments}
    kept = [
        known if known.sealed else ours[known.id] for known in manifest.segments if known.id in ours
    ]
    return replace(manifest, segments=(*kept, segment))


@dataclass(frozen=True, slots=True)
class Replication:
    """How new segments are placed and when they end."""

    #: Nodes of a segment; each block goes to `write_quorum` of them and is acknowledged by
    #: `ack_quorum` fsyncs.
    ensemble: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    #: Every ack quorum spans at least so many regions.
    min_regions: int = 1
    segment_bytes: int = 64 * MIB
    segment_seconds: float = 3600.0


class LogOpener:
    """Opens logs for one proxy; what it needs of the world is given."""

    def __init__(
        self,
        store: Callable[[], MetadataStore],
        nodes: Nodes,
        source: BlockSource,
        replication: Replication,
        *,
        proxy: str,
        new_id: Callable[[], bytes],
        cold: ColdCopies | None = None,
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._source = source
        self._replication = replication
        self._proxy = proxy
        self._new_id = new_id
        self._cold = cold
        self._opened = 0
        #: What was known of nodes that are not registered now: in need, they keep their places.
        self._seen: dict[NodeId, NodeInfo] = {}

    async def open(self, log: str, around: Surroundings) -> OwnedLog:
        """Become the owner. Raises Fenced if a rival was faster."""
        self._opened += 1
        writer = f"{self._proxy}.{self._opened}"
        register = await ManifestRegister.take(self._store, log, writer, self._new_id())
        recovered = await recover_log(self._nodes, self._source, log, register.manifest)
        state = recovered.state
        now_ms = max(around.wall_ms(), state.time_ms)

        def new_segment(number: SegmentId, base_lsn: Lsn, time_ms: int) -> Segment:
            return self._place(log, register.manifest, number, base_lsn, time_ms)

        segment = new_segment(recovered.next_segment, state.next_lsn, now_ms)
        await register.update(lambda known: taken_over(known, recovered, segment))
        rule = self._replication
        limits = SegmentLimits(rule.segment_bytes, int(rule.segment_seconds * 1000), SNAPSHOT_BYTES)
        sequencer = Sequencer(
            state.copy(),
            limits=limits,
            segment_ms=now_ms,
            writes_max=WRITES_MAX,
            in_flight_bytes_max=LOG_INFLIGHT_BYTES_MAX,
        )
        owned = OwnedLog(
            around,
            sequencer,
            register,
            LogView(log, self._source, register.manifest, self._cold),
            new_segment=new_segment,
            open_for=self._open_segment,
        )
        owned.begin(segment, state)
        return owned

    def _place(
        self, log: str, manifest: LogManifest, number: SegmentId, base_lsn: Lsn, time_ms: int
    ) -> Segment:
        rule = self._replication
        alive = self._nodes.alive()
        self._seen.update(alive)
        seed = draw(number, log)

        def choose(nodes: Mapping[NodeId, NodeInfo]) -> tuple[NodeId, ...]:
            return choose_ensemble(
                nodes,
                size=rule.ensemble,
                write_quorum=rule.write_quorum,
                ack_quorum=rule.ack_quorum,
                min_regions=rule.min_regions,
                seed=seed,
            )

        try:
            nodes = choose(alive)
        except Unavailable:
            # Too few are here. Those of the last ensemble may come back: as long as an ack quorum
            # is alive, the log goes on and the rest catches up or is replaced.
            last = manifest.segments[-1].ensembles[-1].nodes if manifest.segments else ()
            machines = {info.name for info in alive.values()}
            seen = {node: self._seen.get(node) or self._unseen(node) for node in last}
            away = {
                node: info
                for node, info in seen.items()
                if info is not None and info.name not in machines
            }
            nodes = choose({**alive, **away})
            if not can_ack(
                nodes,
                alive.keys(),
                write_quorum=rule.write_quorum,
                ack_quorum=rule.ack_quorum,
            ):
                raise
        return Segment(
            number,
            manifest.epoch,
            base_lsn,
            (Ensemble(BlockId(0), nodes),),
            rule.write_quorum,
            rule.ack_quorum,
            first_ms=time_ms,
        )

    def _unseen(self, node: NodeId) -> NodeInfo | None:
        """A node of which only its name is known: it can keep its place where no region counts."""
        if self._replication.min_regions > 1:
            return None
        name, _, cookie = node.partition(":")
        return NodeInfo(name, cookie, "", 0)

    def _open_segment(self, segment: Segment, owned: OwnedLog) -> OpenSegment:
        def choose(ensemble: tuple[NodeId, ...], lost: NodeId) -> NodeId | None:
            alive = self._nodes.alive()
            self._seen.update(alive)
            return choose_replacement(
                ensemble,
                lost,
                alive,
                write_quorum=segment.write_quorum,
                ack_quorum=segment.ack_quorum,
                min_regions=self._replication.min_regions,
                known=self._seen,
                seed=draw(segment.id, owned.view.log),
            )

        return OpenSegment(
            owned.view.log,
            owned.manifest.log_mark,
            segment,
            self._nodes,
            on_durable=owned.on_durable,
            on_fenced=owned.on_fenced,
            choose=choose,
            fetch=partial(self._source.get, owned.view.log, owned.manifest.log_mark),
            publish=owned.publish,
        )
