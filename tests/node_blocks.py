"""Blocks for tests of storage nodes, a store in a dict, and a node without threads or sockets."""

from __future__ import annotations

import struct

from crc32c import crc32c
from harness.disk import SimDisk

from penstock.errors import PenstockError
from penstock.ids import BlockId, Epoch, Lsn, SegmentId
from penstock.log.block_format import (
    BLOCK_HEADER_BYTES,
    BlockHeader,
    BlockKind,
    decode_block_header,
    encode_block_header,
)
from penstock.log.node.journal import STATE_NAME, Journal, journal_name, write_state
from penstock.log.node.segment_store import Extent, Flushed
from penstock.log.node.server import NodeDisks, mend, recover_node
from penstock.log.replication.manifest import SegmentKey
from penstock.log.replication.node_api import Fence, Found
from penstock.log.replication.node_core import (
    AddRecord,
    NodeAnswer,
    Ranges,
    ReadPlan,
    ReadRequest,
    StoredPart,
)
from penstock.log.storage.disk import Disk

LOG_MARK = 7


def make_block(
    block: int,
    body: bytes | None = None,
    *,
    segment: int = 0,
    durable_block: int = 0,
    kind: BlockKind = BlockKind.DATA,
    epoch: int = 1,
    mark: int = LOG_MARK,
) -> bytes:
    """A whole block; without a body it has one of its own."""
    body = b"body of block %d" % block if body is None else body
    header = BlockHeader(
        BLOCK_HEADER_BYTES + len(body),
        crc32c(body),
        kind,
        0,
        1,
        mark,
        SegmentId(segment),
        BlockId(block),
        Epoch(epoch),
        BlockId(durable_block),
        0,
        Lsn(block),
        Lsn(block + 1),
        0,
        BlockId(0),
    )
    return encode_block_header(header) + body


def old_record(
    kind: int,
    log: str = "",
    segment: int = 0,
    *,
    value: int = 0,
    number: int = 0,
    synced: int = 2**40,
    body: bytes = b"",
) -> bytes:
    """A record as version 1 of the journal has it."""
    name = log.encode()
    size = 48 + len(name) + len(body)
    rest = struct.pack("<IHBBQQQQ", size, len(name), kind, 0, number, synced, segment, value) + name
    return b"PNJ1" + crc32c(rest).to_bytes(4, "little") + rest + body


def old_disk(journal: bytes) -> SimDisk:
    """What a node of an older version has left: one file of its journal."""
    disk = SimDisk()
    write_state(disk, 0, [])
    return SimDisk(disk.contents() | {journal_name(0): journal})


class DictStore:
    """Durable blocks in a dict."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[SegmentKey, int], AddRecord] = {}
        self.unsure: dict[SegmentKey, tuple[tuple[int, int], ...]] = {}

    def load(self, key: SegmentKey) -> StoredPart:
        ranges = Ranges()
        durable_block = 0
        for (found, block), record in sorted(self.blocks.items()):
            if found == key:
                ranges.add(block)
                header = decode_block_header(record.data)
                durable_block = max(durable_block, header.durable_block)
        return StoredPart(tuple(ranges), durable_block, self.unsure.get(key, ()))

    def put(self, record: AddRecord) -> None:
        self.blocks[record.key, record.block] = record

    def mark(self, key: SegmentKey, block: int) -> int:
        return self.blocks[key, block].mark

    def drop(self, log: str, first_segment: int) -> None:
        for key, block in list(self.blocks):
            if key.log == log and key.segment < first_segment:
                del self.blocks[key, block]


class LocalNode:
    """The real core, journal and store, driven step by step on one disk."""

    def __init__(self, disk: Disk, *, journal_bytes: int = 2000) -> None:
        disks = NodeDisks(disk, disk, disk)
        if not disk.exists(STATE_NAME) and not disk.names():
            write_state(disk, 0, [])
        self.store, self.core, recovered = recover_node(disks)
        self.damage = recovered.damage
        self.lost = recovered.lost
        self.torn_bytes = recovered.torn_bytes
        if self.damage:
            recovered = mend(disks, self.store, self.core, recovered)
        self.journal = Journal(disk, recovered, bytes_max=journal_bytes)

    def pump(self) -> list[NodeAnswer]:
        """Write everything; the answers that came."""
        answers = self.core.take_answers()
        while (write := self.core.take_write()) is not None:
            buffers, is_new = self.journal.encode(write.records, self.store.length)
            self.journal.write(buffers, is_new)
            self.core.written(write)
            self.core.check()
            answers += self.core.take_answers()
        return answers

    def ensure_loaded(self, key: SegmentKey) -> None:
        if not self.store.is_loaded(key):
            self.store.loaded(key, self.store.load_index(key))

    def add(self, key: SegmentKey, data: bytes, *, epoch: int = 1) -> PenstockError | None:
        self.ensure_loaded(key)
        self.core.add("add", key, epoch, data)
        (answer,) = self.pump()
        assert answer.outcome is None or isinstance(answer.outcome, PenstockError)
        return answer.outcome

    def fence(self, key: SegmentKey, epoch: int) -> Fence | PenstockError:
        self.ensure_loaded(key)
        self.core.fence("fence", key.log, key.segment, epoch)
        (answer,) = self.pump()
        assert isinstance(answer.outcome, Fence | PenstockError)
        return answer.outcome

    def trim(self, log: str, first_segment: int) -> None:
        self.core.trim("trim", log, first_segment)
        self.pump()

    def read(self, key: SegmentKey, block: int, *, trusted: bool = True) -> bytes | Found:
        """One block, whatever is said to be durable; or what is said instead."""
        self.ensure_loaded(key)
        read = ReadRequest(key, block, durable_block=2**40, bytes_max=1)
        self.core.read("read", read, trusted=trusted)
        (answer,) = self.pump()
        plan = answer.outcome
        assert isinstance(plan, ReadPlan)
        if plan.found is not Found.HERE:
            return plan.found
        (piece,) = self.store.collect(key, plan.first, plan.end, 1)
        if not isinstance(piece, Extent):
            return bytes(piece)
        (data,) = self.store.read_extents(key, [piece])
        if data is None:
            self.store.lost(key, block)
            self.core.lost(key, block)
            return Found.UNKNOWN
        return bytes(data)

    def flush(self) -> None:
        """As `NodeOwner.flush` does it."""
        below = self.journal.number
        lengths = []
        for key in self.store.unflushed():
            self.ensure_loaded(key)
            if not self.store.is_here(key):
                self.store.loaded(key, self.store.load_index(key))
            taken = self.store.take_flush(key)
            if taken is not None:
                for done in self.store.flush_all([(key, *taken)]):
                    assert isinstance(done, Flushed)
                    length = self.store.flushed(done)
                    if length is not None:
                        lengths.append(length)
        if any(number < below for number in self.journal.numbers):
            buffers, is_new = self.journal.encode(lengths, self.store.length)
            self.journal.write(buffers, is_new)
            self.journal.drop_below(below, self.core.snapshot(), self.store.lengths())
        self.store.remove_dropped()

    def note(self) -> None:
        note = self.journal.encode_note()
        if note is not None:
            self.journal.write(note, False)
