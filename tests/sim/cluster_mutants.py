"""Hand-made mutants of the replicated log: each is one mistake that somebody could have made.

Owns the list; test_cluster_mutants.py lets the simulated cluster loose on every one. A mutant
changes the real code by monkeypatch for as long as a test lasts. It names the protocol whose worlds
show it, and what those worlds are narrowed to.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from mutant_hunt import Mutant
from simulation.cluster.swarm import Fault

from penstock.errors import (
    DeadlineExceeded,
    Fenced,
    Overloaded,
    PenstockError,
    Unavailable,
    Unknown,
)
from penstock.ids import BlockId, NodeId
from penstock.limits import POSITION_MAX
from penstock.log.block_format import BlockHeader
from penstock.log.core.state import LogState
from penstock.log.node import journal
from penstock.log.node.client import NetworkNodeClient
from penstock.log.node.segment_store import GONE, LoadedIndex, SegmentStore
from penstock.log.node.server import NodeServer
from penstock.log.pairing import PairedConnection
from penstock.log.proxy import open_log, open_segment, recover_segment
from penstock.log.proxy.followed_log import FollowedLog
from penstock.log.proxy.manifest_register import ManifestRegister
from penstock.log.proxy.open_log import Replication
from penstock.log.proxy.open_segment import OpenSegment
from penstock.log.proxy.owned_log import OwnedLog
from penstock.log.replication.manifest import (
    Ensemble,
    LogManifest,
    Segment,
    SegmentKey,
    decode_log_manifest,
)
from penstock.log.replication.node_api import Blocks, Found
from penstock.log.replication.node_core import (
    NodeAnswer,
    NodeCore,
    Ranges,
    ReadPlan,
    ReadRequest,
    _Waiting,
)
from penstock.log.replication.segment_recovery import AddBack, Effect, SegmentRecovery
from penstock.log.replication.segment_writer import SegmentWriter

#: A tail that a quorum of three can lose track of, on nodes that are killed and cut off.
_TAIL = {
    "replication": Replication(3, 3, 2, segment_bytes=64000),
    "nodes": 3,
    "regions": 1,
    "pace_seconds": 0.02,
    "writers": 3,
    "operations": 30,
    "network_seconds": 0.03,
    "disk_seconds": 0.005,
    "snapshot_bytes": 8 << 20,
}


# ---- nodes


def answers_before_fsync(patch: pytest.MonkeyPatch) -> None:
    def take_answers(self: NodeCore) -> list[NodeAnswer]:
        while self._answers:
            _, cause, outcome = self._answers.popleft()
            if isinstance(outcome, _Waiting):
                plan = self._look(outcome.read, outcome.trusted)
                missing = ReadPlan(Found.ABSENT, BlockId(0), outcome.read.key)
                self._ready.append(NodeAnswer(cause, missing if plan is None else plan))
            else:
                self._ready.append(NodeAnswer(cause, outcome))
        ready, self._ready = self._ready, []
        return ready

    patch.setattr(NodeCore, "take_answers", take_answers)


def epochs_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NodeCore, "_check_writable", lambda self, log, segment, epoch, trusted: None)


def damage_is_of_a_whole_part(patch: pytest.MonkeyPatch) -> None:
    everything = ((0, POSITION_MAX),)
    original = NodeCore.lost

    def lost(self: NodeCore, key: SegmentKey, block: int) -> None:
        original(self, key, block)
        self._part(key).unsure = Ranges(everything)

    def unsure(self: LoadedIndex) -> tuple[tuple[int, int], ...]:
        return everything if self.damage else ()

    patch.setattr(NodeCore, "lost", lost)
    patch.setattr(LoadedIndex, "unsure", property(unsure))


def a_file_that_is_gone_never_was(patch: pytest.MonkeyPatch) -> None:
    original = SegmentStore.load_index

    def load_index(self: SegmentStore, key: SegmentKey) -> LoadedIndex:
        found = original(self, key)
        return LoadedIndex() if found.damage == GONE else found

    patch.setattr(SegmentStore, "load_index", load_index)


def a_write_repeats_no_heads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal, "encode_echo", lambda *_: ())


def a_journal_trusts_the_page_cache(patch: pytest.MonkeyPatch) -> None:
    def make_durable(self: journal._Walk) -> None:
        file = self._disk.open(journal.journal_name(self._number), writable=True)
        file.truncate(self.end)
        file.sync()
        file.close()

    patch.setattr(journal._Walk, "_make_durable", make_durable)


def a_silent_node_is_not_left(patch: pytest.MonkeyPatch) -> None:
    """Whoever writes to it waits for ever."""
    patch.setattr(NetworkNodeClient, "_watch", lambda self, link, **heard: None)


def who_answers_no_question_is_asked_on(patch: pytest.MonkeyPatch) -> None:
    """On the same connection."""

    async def ask(self: NetworkNodeClient, message: Any, wanted: object, seconds: float) -> Any:
        try:
            async with asyncio.timeout(seconds):
                link = await self._connected()
                return await link.ask(self._next_request(link), message)
        except TimeoutError as error:
            raise DeadlineExceeded(f"{self.node} has not answered") from error

    patch.setattr(NetworkNodeClient, "_ask", ask)


# ---- the writer


def lac_is_the_last_block_sent(patch: pytest.MonkeyPatch) -> None:
    def header(*fields: Any) -> BlockHeader:
        made = BlockHeader(*fields)
        return made._replace(durable_block=BlockId(made.block + 1))

    patch.setattr(open_segment, "BlockHeader", header)


def one_ack_is_enough(patch: pytest.MonkeyPatch) -> None:
    def advance(self: SegmentWriter) -> int:
        before = self.durable_block
        while self._pending and self._pending[0].acks:
            self.durable_block = BlockId(self._pending.popleft().block + 1)
        return self.durable_block - before

    patch.setattr(SegmentWriter, "_advance", advance)


def acks_out_of_order(patch: pytest.MonkeyPatch) -> None:
    def advance(self: SegmentWriter) -> int:
        before = self.durable_block
        enough = [p for p in self._pending if len(p.acks) >= self.segment.ack_quorum]
        while enough and self._pending and self._pending[0].block <= enough[-1].block:
            self.durable_block = BlockId(self._pending.popleft().block + 1)
        return self.durable_block - before

    patch.setattr(SegmentWriter, "_advance", advance)


def a_refusal_counts_as_an_ack(patch: pytest.MonkeyPatch) -> None:
    original = OpenSegment._added

    def added(self: OpenSegment, node: NodeId, block: BlockId, error: PenstockError | None) -> None:
        original(self, node, block, None if isinstance(error, Fenced) else error)

    patch.setattr(OpenSegment, "_added", added)


def a_replacement_starts_at_the_next_block(patch: pytest.MonkeyPatch) -> None:
    original = SegmentWriter.replacement

    def replacement(self: SegmentWriter, old: NodeId, new: NodeId) -> Segment:
        segment = original(self, old, new)
        last = Ensemble(self.next_block, segment.ensembles[-1].nodes)
        kept = tuple(e for e in self.segment.ensembles if e.first_block < self.next_block)
        return replace(segment, ensembles=(*kept, last))

    patch.setattr(SegmentWriter, "replacement", replacement)


def overloaded_counts_as_lost(patch: pytest.MonkeyPatch) -> None:
    original = OpenSegment._added

    def added(self: OpenSegment, node: NodeId, block: BlockId, error: PenstockError | None) -> None:
        original(self, node, block, Unavailable("") if isinstance(error, Overloaded) else error)

    patch.setattr(OpenSegment, "_added", added)


def what_has_no_room_is_refused(patch: pytest.MonkeyPatch) -> None:
    def order(self: PairedConnection[Any], *arguments: Any) -> None:
        *_, body, overhead_bytes, ack = arguments
        if self._has_room(sum(map(len, body)) + overhead_bytes):
            original(self, *arguments)
        else:
            ack(Unavailable("too many unanswered blocks"))

    original = PairedConnection.order
    patch.setattr(PairedConnection, "order", order)


def a_crowded_node_does_not_read_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NodeServer, "thinned", lambda self: None)


# ---- recovery


def what_is_recovered_is_not_written_back(patch: pytest.MonkeyPatch) -> None:
    original = SegmentRecovery.read

    def read(self: SegmentRecovery, node: NodeId, block: int, found: Blocks) -> list[Effect]:
        effects = original(self, node, block, found)
        if effects and isinstance(effects[0], AddBack):
            return self._look_for(BlockId(block + 1))
        return effects

    patch.setattr(SegmentRecovery, "read", read)


def sealed_one_block_early(patch: pytest.MonkeyPatch) -> None:
    original = recover_segment.recover_segment

    async def recover(*arguments: Any, **options: Any) -> BlockId:
        return BlockId(max(0, await original(*arguments, **options) - 1))

    patch.setattr(open_log, "recover_segment", recover)


def the_producer_table_is_lost(patch: pytest.MonkeyPatch) -> None:
    original = open_log.load_state

    async def load_state(*arguments: Any) -> LogState:
        state = await original(*arguments)
        state.producers.clear()
        return state

    patch.setattr(open_log, "load_state", load_state)


# ---- the owner


def sealed_before_all_is_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OwnedLog, "_has_pending", lambda self, segment: False)


def snapshot_of_the_newest_state(patch: pytest.MonkeyPatch) -> None:
    original = OwnedLog._write_snapshot

    def write_snapshot(self: OwnedLog, state: LogState) -> None:
        newest = self.sequencer.state.copy()
        newest.next_lsn, newest.time_ms = state.next_lsn, state.time_ms
        original(self, newest)

    patch.setattr(OwnedLog, "_write_snapshot", write_snapshot)


def who_may_be_fenced_answers(patch: pytest.MonkeyPatch) -> None:
    async def make_sure(self: OwnedLog) -> None:
        return None

    patch.setattr(OwnedLog, "make_sure", make_sure)


# ---- the register


def unknown_counts_as_done(patch: pytest.MonkeyPatch) -> None:
    original = ManifestRegister._set

    async def set(self: ManifestRegister, wanted: LogManifest, leave_room: bool) -> None:
        try:
            await original(self, wanted, leave_room)
        except Unknown:
            self.manifest, self._version = wanted, self._version + 1

    patch.setattr(ManifestRegister, "_set", set)


def an_older_owner_goes_on_with_the_newest_manifest(patch: pytest.MonkeyPatch) -> None:
    async def reload(self: ManifestRegister) -> None:
        found = await self._store().get(self._path)
        assert found is not None
        self.manifest, self._version = decode_log_manifest(found.data), found.version

    patch.setattr(ManifestRegister, "_reload", reload)


# ---- followers


def a_follower_crosses_early(patch: pytest.MonkeyPatch) -> None:
    original = FollowedLog._reload

    async def reload(self: FollowedLog) -> None:
        await original(self)
        place = self._place
        if place is not None and not place.sealed and self._next:
            if place is not self.view.manifest.segments[-1]:
                self._place = replace(place, sealed=True, blocks=self._next)

    patch.setattr(FollowedLog, "_reload", reload)


def a_follower_shows_all_that_it_finds(patch: pytest.MonkeyPatch) -> None:
    """The node shows what is not durable yet, and the follower believes it."""
    original = NodeCore._look

    def look(self: NodeCore, read: ReadRequest, trusted: bool) -> ReadPlan | None:
        following = max(self._part(read.key).durable.end, read.durable_block)
        plan = original(self, read._replace(durable_block=following), trusted)
        return None if plan is None else plan._replace(durable_block=BlockId(following))

    patch.setattr(NodeCore, "_look", look)


_WIDE = _TAIL | {
    "replication": Replication(5, 3, 2, segment_bytes=64000),
    "nodes": 5,
    "mean_seconds": {Fault.NODE_SLOW: 0.2, Fault.NODE_PAUSE: 0.4},
}
#: Some nodes lack blocks of the open segment, and are asked by many owners.
_LOSSES = _TAIL | {
    "leave_down": False,
    "journal_bytes": 300,
    "replace_seconds": 20.0,
}
#: The last seconds are without faults: who does not notice by itself never goes on.
_HALF_OPEN = _TAIL | {"leave_down": False, "mean_seconds": {Fault.HALF_OPEN: 0.2}}
_AWAY = {Fault.NODE_PAUSE: 0.4, Fault.CUT: 0.4, Fault.PROXY_KILL: 0.6}
#: Most blocks are in journals only when a bit flips, and read from there when their node is back.
_FLIPS = _LOSSES | {
    "journal_bytes": 1 << 20,
    "mean_seconds": _AWAY | {Fault.TWO_FLIPS: 0.1, Fault.NODE_KILL: 0.2},
}
_LARGE = _TAIL | {
    "mean_seconds": {},
    "counters": 2,
    "value_bytes": 4000,
    "payload_factor": 20,
    "snapshot_bytes": 3000,
    "link_bytes": 32 << 20,
    "log_bytes": 16 << 20,
    "node_bytes": 256 << 20,
    "refuse_bytes": 0,
}
_ROLLS = {"replication": Replication(3, 3, 2, segment_bytes=300), "nodes": 3, "regions": 1}

MUTANTS = (
    Mutant("a node answers before its fsync", answers_before_fsync, "P1"),
    Mutant("a node does not compare epochs", epochs_are_not_compared, "P2", {"rivals": 6}),
    Mutant("the LAC is the last block sent", lac_is_the_last_block_sent, "P1"),
    Mutant("one ack is enough", one_ack_is_enough, "P1"),
    Mutant("acks out of order", acks_out_of_order, "P1", _WIDE),
    Mutant("a refusal counts as an ack", a_refusal_counts_as_an_ack, "P2", {"rivals": 6}),
    Mutant(
        "a replacement starts at the next block",
        a_replacement_starts_at_the_next_block,
        "P1",
    ),
    Mutant(
        "what is recovered is not written back",
        what_is_recovered_is_not_written_back,
        "P2",
        _TAIL,
    ),
    Mutant("a segment is sealed one block early", sealed_one_block_early, "P2"),
    Mutant("the producer table is not recovered", the_producer_table_is_lost, "P6"),
    Mutant("sealed before all of it is durable", sealed_before_all_is_durable, "P3", _ROLLS),
    Mutant("a snapshot of the newest state", snapshot_of_the_newest_state, "P6"),
    Mutant(
        "who may be fenced answers questions",
        who_may_be_fenced_answers,
        "P2",
        {"rivals": 6},
    ),
    Mutant("an unknown change counts as done", unknown_counts_as_done, "P3", _ROLLS),
    Mutant(
        "an older owner goes on with the newest manifest",
        an_older_owner_goes_on_with_the_newest_manifest,
        "P3",
        _ROLLS | {"rivals": 6},
    ),
    Mutant(
        "a node without room counts as lost",
        overloaded_counts_as_lost,
        "limits",
        _LARGE | {"refuse_bytes": 20_000},
    ),
    Mutant(
        "what has no room in a link is refused",
        what_has_no_room_is_refused,
        "limits",
        _LARGE | {"link_bytes": 6000},
    ),
    Mutant(
        "a crowded node does not read on",
        a_crowded_node_does_not_read_on,
        "limits",
        _LARGE | {"node_bytes": 6000},
    ),
    Mutant("a follower crosses early", a_follower_crosses_early, "P3", _ROLLS),
    Mutant("a follower shows all that it finds", a_follower_shows_all_that_it_finds, "P1"),
    Mutant(
        "damage is of a whole part",
        damage_is_of_a_whole_part,
        "losses",
        _LOSSES | {"mean_seconds": {Fault.TWO_FLIPS: 0.3}},
    ),
    Mutant(
        "a file that is gone never was",
        a_file_that_is_gone_never_was,
        "losses",
        _LOSSES | {"mean_seconds": _AWAY | {Fault.FILE_GONE: 0.3}},
    ),
    Mutant("a silent node is not left", a_silent_node_is_not_left, "P1", _HALF_OPEN),
    Mutant(
        "who answers no question is asked on",
        who_answers_no_question_is_asked_on,
        "P1",
        _HALF_OPEN,
    ),
    Mutant("a write repeats no heads", a_write_repeats_no_heads, "losses", _FLIPS),
    Mutant(
        "a journal trusts the page cache",
        a_journal_trusts_the_page_cache,
        "P1",
        {"mean_seconds": {Fault.NODE_FSYNC: 0.3, Fault.NODE_POWER: 0.3}},
    ),
)
