"""Storage nodes in the simulation: the real core, on a journal that loses what was not synced.

Owns the node's disk: the records that are durable, in order, and the write that is under way. A
power cut keeps a prefix of that write, or nothing; a kill keeps all of it; a wipe keeps nothing at
all and the node comes back with another cookie, as another node (R05). Law: a record is durable
when its write returned, and never before it is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.ids import NodeId
from penstock.log.block_format import decode_block_header
from penstock.log.replication.manifest import SegmentKey
from penstock.log.replication.node_api import Blocks, Fence, Found, NodeInfo
from penstock.log.replication.node_core import (
    AddRecord,
    NodeCore,
    ReadPlan,
    ReadRequest,
    Record,
    StoredPart,
    Write,
)
from simulation.cluster.network import Outcome
from simulation.kernel import Process

if TYPE_CHECKING:
    from simulation.cluster.world import ClusterWorld

Reply = Callable[[Outcome], None]


class SimStore:
    """Durable blocks of one node (`BlockStore`)."""

    def __init__(self) -> None:
        self.parts: dict[SegmentKey, dict[int, AddRecord]] = {}
        #: Parts of which something was lost.
        self.damaged: set[SegmentKey] = set()

    def load(self, key: SegmentKey) -> StoredPart:
        blocks = self.parts.get(key, {})
        ranges: list[tuple[int, int]] = []
        durable = 0
        for number in sorted(blocks):
            if ranges and ranges[-1][1] == number:
                ranges[-1] = (ranges[-1][0], number + 1)
            else:
                ranges.append((number, number + 1))
            durable = max(durable, decode_block_header(blocks[number].data).durable_block)
        return StoredPart(tuple(ranges), durable, key in self.damaged)

    def put(self, record: AddRecord) -> None:
        self.parts.setdefault(record.key, {})[record.block] = record

    def mark(self, key: SegmentKey, block: int) -> int:
        return self.parts[key][block].mark

    def drop(self, log: str, first_segment: int) -> None:
        for key in [k for k in self.parts if k.log == log and k.segment < first_segment]:
            del self.parts[key]


class SimNode:
    """One machine with a disk; `process` is its life now, None while it is down."""

    def __init__(self, world: ClusterWorld, name: str, *, region: str, rack: str) -> None:
        self._world = world
        self.name = name
        self.region = region
        self.rack = rack
        self._cookies = 0
        self.cookie = self._new_cookie()
        self.process: Process | None = None
        self.journal: list[Record] = []
        self.store = SimStore()
        self.core: NodeCore
        self._writing: Write | None = None
        self._expire_at: float | None = None
        #: Until then, a write takes much longer.
        self.slow_until = 0.0
        self.fail_next_write = False
        self._lives = 0

    def _new_cookie(self) -> str:
        self._cookies += 1
        return f"c{self._cookies}"

    @property
    def info(self) -> NodeInfo:
        return NodeInfo(self.name, self.cookie, self.name, 1, region=self.region, rack=self.rack)

    @property
    def id(self) -> NodeId:
        return self.info.id

    @property
    def is_up(self) -> bool:
        return self.process is not None

    # ---- lives

    def start(self) -> None:
        """Rebuild everything from the journal, as a process does when it starts."""
        if self.process is not None:
            return
        self._lives += 1
        self.process = self._world.scheduler.process(f"{self.name}#{self._lives}")
        damaged = self.store.damaged
        self.store = SimStore()
        self.store.damaged = damaged
        self.core = NodeCore(self.store, write_bytes_max=self._world.swarm.node_write_bytes)
        self._writing = None
        self._expire_at = None
        for record in self.journal:
            if isinstance(record, AddRecord):
                if record.key.segment >= self.core.first_segment(record.key.log):
                    self.store.put(record)
            else:
                self.core.restore(record)
                self.store.drop(record.log, self.core.first_segment(record.log))
        self._world.node_started(self)

    def stop(self, *, keep: float) -> None:
        """The process ends; of the write under way, a share `keep` of its records stays."""
        process, self.process = self.process, None
        if process is None:
            return
        if self._writing is not None:
            records = self._writing.records
            kept = records[: int(len(records) * keep)]
            self.journal += kept
            self._world.wrote(self, kept)
            self._world.count("write cut" if len(kept) < len(records) else "write kept")
            self._writing = None
        process.kill()
        self._world.node_stopped(self, process)

    def wipe(self) -> None:
        """The disk is gone. Whoever comes back is another node."""
        self.stop(keep=0.0)
        self._world.lost_disk(self)
        self.journal = []
        self.store = SimStore()
        self.cookie = self._new_cookie()

    def lose_block(self, key: SegmentKey, block: int) -> None:
        """A block turns out to be damaged."""
        self.store.parts[key].pop(block)
        self.store.damaged.add(key)
        self.journal = [
            r
            for r in self.journal
            if not (isinstance(r, AddRecord) and (r.key, r.block) == (key, block))
        ]
        if self.process is not None:
            self.core.lost(key, block)

    # ---- requests, in the process of the node

    def add(self, reply: Reply, key: SegmentKey, epoch: int, data: bytes, trusted: bool) -> None:
        self.core.add(reply, key, epoch, data, trusted=trusted)
        self._pump()

    def fence(self, reply: Reply, key: SegmentKey, epoch: int, trusted: bool) -> None:
        self.core.fence(reply, key.log, key.segment, epoch, trusted=trusted)
        self._pump()

    def read(self, reply: Reply, request: ReadRequest, trusted: bool) -> None:
        self.core.read(reply, request, trusted=trusted, now_ms=self._now_ms())
        self._pump()

    def list_blocks(self, reply: Reply, key: SegmentKey, first: int, end: int) -> None:
        reply(self.core.list_blocks(key, first, end))

    def trim(self, log: str, first_segment: int) -> None:
        """The node has read in the manifest that older segments were given up."""
        self.core.trim(_ignore, log, first_segment)
        self._pump()

    def _now_ms(self) -> int:
        return int(self._world.now * 1000)

    def _pump(self) -> None:
        process = self.process
        assert process is not None
        if self._writing is None:
            self._writing = self.core.take_write()
            if self._writing is not None:
                process.call_later(self._world.disk_delay(self), self._written, self._writing)
        for answer in self.core.take_answers():
            assert callable(answer.cause)
            answer.cause(self._told(answer.outcome))
        due_ms = self.core.due_ms()
        if due_ms is not None and (self._expire_at is None or self._expire_at > due_ms):
            self._expire_at = due_ms
            process.call_at(due_ms / 1000 + 0.001, self._expire)

    def _written(self, write: Write) -> None:
        if self.fail_next_write:
            # A failed fsync may have written anything; the process must not go on (R48).
            self.fail_next_write = False
            self._world.count("node fsync failed")
            self.core.write_failed()
            self.stop(keep=self._world.random.random())
            return
        self._writing = None
        self.journal += write.records
        self.core.written(write)
        self._world.wrote(self, write.records)
        self._pump()

    def _expire(self) -> None:
        self._expire_at = None
        self.core.expire(self._now_ms())
        self._pump()

    def _told(self, outcome: Fence | ReadPlan | PenstockError | None) -> Outcome:
        if not isinstance(outcome, ReadPlan):
            return outcome
        if outcome.found is not Found.HERE:
            return Blocks(outcome.found, outcome.durable_block)
        pieces: list[bytes] = []
        size = 0
        blocks = self.store.parts[outcome.key]
        for number in range(outcome.first, outcome.end):
            if pieces and size >= outcome.bytes_max:
                break
            pieces.append(bytes(blocks[number].data))
            size += len(pieces[-1])
        return Blocks(Found.HERE, outcome.durable_block, b"".join(pieces))


def _ignore(_: Outcome) -> None:
    return None
