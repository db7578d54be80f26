"""The blocks of a storage node: in memory until they are flushed, then in one file per part.

    orders.0000000012.0.blocks      part 0 of segment 12 of log `orders`: its blocks, in any order

Owns positions, the bound on memory and open files, and the removal of what was given up. A file's
index is rebuilt from the headers of its blocks when it is first used. Laws: a block that does not
match its CRC is never returned (R46); a part that lost something says so for ever; only segments
below their log's first one are removed (R40).

The event loop owns all of it. What reads or writes files runs in threads and is handed what it
needs: `load_index`, `read_extents`, `flush`; at most one flush at a time.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.errors import BadFormat, Damaged
from penstock.limits import KIB, MIB
from penstock.log.block_format import (
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC,
    BlockHeader,
    check_block,
    decode_block_header,
)
from penstock.log.group_format import Buffer
from penstock.log.node.journal import LengthRecord
from penstock.log.replication.manifest import SegmentKey
from penstock.log.replication.node_core import AddRecord, Ranges, StoredPart, block_mark
from penstock.log.storage.disk import Disk, File

#: Files that are kept open for the next read.
FILE_CACHE_COUNT = 128
#: Entries of all indexes in memory, 28 bytes each, and parts; those unused for longest go first.
INDEX_ENTRIES_MAX = 4_000_000
PARTS_MAX = 20_000
#: What a block costs in memory beyond its bytes, so that tiny ones stay within the same bounds.
_RECORD_MEMORY_BYTES = 512
_SCAN_BYTES = 256 * KIB
_WRITE_BYTES = 1 * MIB
_MAGIC_BYTES = BLOCK_MAGIC.to_bytes(4, "little")


def file_name(key: SegmentKey) -> str:
    """A log's name has no dot, and a disk's names have no underscore."""
    return f"{key.log.replace('_', '.')}.{key.segment:010d}.{key.part}.blocks"


def parse_file_name(name: str) -> SegmentKey | None:
    log, *rest = name.rsplit(".", 3)
    if len(rest) != 3 or rest[2] != "blocks" or not (rest[0] + rest[1]).isdecimal():
        return None
    return SegmentKey(log.replace(".", "_"), int(rest[0]), int(rest[1]))


def _cost(record: AddRecord) -> int:
    return len(record.data) + _RECORD_MEMORY_BYTES


class Extent(NamedTuple):
    """A block in a part's file."""

    block: int
    position: int
    size: int
    mark: int


class PartIndex:
    """Where the blocks of one part lie in its file, by block id."""

    __slots__ = ("_blocks", "_marks", "_positions", "_sizes")

    def __init__(self) -> None:
        self._blocks = array("Q")
        self._marks = array("Q")
        self._positions = array("Q")
        self._sizes = array("I")

    def __len__(self) -> int:
        return len(self._blocks)

    def ranges(self) -> Ranges:
        ranges = Ranges()
        for block in self._blocks:
            ranges.add(block)
        return ranges

    def add(self, extent: Extent) -> None:
        """The newest copy of a block is the one that counts."""
        block, position, size, mark = extent
        blocks = self._blocks
        if not blocks or block > blocks[-1]:
            blocks.append(block)
            self._marks.append(mark)
            self._positions.append(position)
            self._sizes.append(size)
            return
        at = bisect_left(blocks, block)
        if blocks[at] != block:
            blocks.insert(at, block)
            self._marks.insert(at, mark)
            self._positions.insert(at, position)
            self._sizes.insert(at, size)
        else:
            self._marks[at], self._positions[at], self._sizes[at] = mark, position, size

    def find(self, block: int) -> Extent | None:
        at = bisect_left(self._blocks, block)
        if at == len(self._blocks) or self._blocks[at] != block:
            return None
        return Extent(block, self._positions[at], self._sizes[at], self._marks[at])

    def remove(self, block: int) -> None:
        at = bisect_left(self._blocks, block)
        if at < len(self._blocks) and self._blocks[at] == block:
            del self._blocks[at], self._marks[at], self._positions[at], self._sizes[at]


@dataclass(slots=True)
class LoadedIndex:
    """What was found in a part's file."""

    index: PartIndex = field(default_factory=PartIndex)
    length: int = 0
    durable_block: int = 0
    damaged: bool = False


@dataclass(slots=True)
class _Part:
    index: PartIndex
    #: Bytes of the file that are synced.
    length: int
    durable_block: int
    damaged: bool
    #: Blocks that are in the journal only, in the order in which they came.
    memory: dict[int, AddRecord] = field(default_factory=dict)


@dataclass(slots=True)
class Flushed:
    """What a flush wrote of one part."""

    key: SegmentKey
    records: list[AddRecord]
    extents: list[Extent]
    length: int


class SegmentStore:
    """All blocks of a node; implements `node_core.BlockStore`. See the module's docstring."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        #: Parts that have a file.
        self._files: dict[SegmentKey, None] = {}
        for name in disk.names():
            key = parse_file_name(name)
            if key is not None:
                self._files[key] = None
        self._parts: OrderedDict[SegmentKey, _Part] = OrderedDict()
        #: Blocks found in the journal of parts that were not used yet, and trusted lengths.
        self._found: dict[SegmentKey, list[AddRecord]] = {}
        self._lengths: dict[SegmentKey, int] = {}
        self._entries = 0
        #: Bytes of blocks that are not in files yet, and of what points to them.
        self.memory_bytes = 0
        #: Parts with such blocks.
        self._unflushed: dict[SegmentKey, None] = {}
        self._cache = _FileCache(disk)
        #: Removals that a thread has to do.
        self._removals: list[SegmentKey] = []

    # ---- starting

    def restore(self, adds: Iterable[AddRecord], lengths: dict[SegmentKey, int]) -> None:
        """Take in what the journal holds."""
        for record in adds:
            self._found.setdefault(record.key, []).append(record)
            self.memory_bytes += _cost(record)
            self._unflushed[record.key] = None
        self._lengths = dict(lengths)

    def is_loaded(self, key: SegmentKey) -> bool:
        """`load` needs no file; otherwise `load_index` in a thread, then `loaded`, come first."""
        return key in self._parts or key not in self._files

    def is_here(self, key: SegmentKey) -> bool:
        return key in self._parts

    def load_index(self, key: SegmentKey) -> LoadedIndex:
        """In a thread: what the file has."""
        if key not in self._files:
            return LoadedIndex()
        try:
            return load_index(self._cache.open(key), self._lengths.get(key), key)
        except FileNotFoundError:
            return LoadedIndex(damaged=True)  # somebody else has removed it

    def loaded(self, key: SegmentKey, found: LoadedIndex) -> None:
        if key not in self._parts:
            self._put_part(key, found)

    def _put_part(self, key: SegmentKey, found: LoadedIndex) -> _Part:
        part = _Part(found.index, found.length, found.durable_block, found.damaged)
        self._parts[key] = part
        self._entries += len(part.index)
        for record in self._found.pop(key, ()):
            there = part.index.find(record.block)
            if (there is not None and there.mark == record.mark) or record.block in part.memory:
                self.memory_bytes -= _cost(record)
                continue
            part.memory[record.block] = record
            header = decode_block_header(record.data)
            part.durable_block = max(part.durable_block, header.durable_block)
        if not part.memory:
            self._unflushed.pop(key, None)
        return part

    # ---- node_core.BlockStore

    def load(self, key: SegmentKey) -> StoredPart:
        part = self._part(key)
        ranges = part.index.ranges()
        for block in part.memory:
            ranges.add(block)
        return StoredPart(tuple(ranges), part.durable_block, part.damaged)

    def _part(self, key: SegmentKey) -> _Part:
        part = self._parts.get(key)
        if part is None:
            assert key not in self._files, f"{key} was not loaded"
            part = self._put_part(key, LoadedIndex())
        self._parts.move_to_end(key)
        return part

    def put(self, record: AddRecord) -> None:
        part = self._part(record.key)
        part.memory[record.block] = record
        self.memory_bytes += _cost(record)
        self._unflushed[record.key] = None

    def mark(self, key: SegmentKey, block: int) -> int:
        part = self._part(key)
        record = part.memory.get(block)
        if record is not None:
            return record.mark
        extent = part.index.find(block)
        assert extent is not None, f"block {block} of {key} is not here"
        return extent.mark

    def drop(self, log: str, first_segment: int) -> None:
        for key in [key for key in self._parts if key.log == log and key.segment < first_segment]:
            self._forget(key)
        for key in [key for key in self._found if key.log == log and key.segment < first_segment]:
            self.memory_bytes -= sum(map(_cost, self._found.pop(key)))
            self._unflushed.pop(key, None)
        for key in [key for key in self._files if key.log == log and key.segment < first_segment]:
            del self._files[key]
            self._lengths.pop(key, None)
            self._removals.append(key)

    def _forget(self, key: SegmentKey) -> None:
        part = self._parts.pop(key)
        self._entries -= len(part.index)
        self.memory_bytes -= sum(map(_cost, part.memory.values()))
        self._unflushed.pop(key, None)

    # ---- reads

    def collect(
        self, key: SegmentKey, first: int, end: int, bytes_max: int
    ) -> list[Buffer | Extent]:
        """Blocks from `first` on, their bytes or where they are: at least one, or `bytes_max`."""
        part = self._part(key)
        out: list[Buffer | Extent] = []
        size = 0
        for block in range(first, end):
            record = part.memory.get(block)
            piece = part.index.find(block) if record is None else record.data
            assert piece is not None, f"block {block} of {key} is not here"
            size += piece.size if isinstance(piece, Extent) else len(piece)
            if out and size > bytes_max:
                break
            out.append(piece)
        return out

    def read_extents(self, key: SegmentKey, extents: Sequence[Extent]) -> list[Buffer | None]:
        """In a thread: the bytes of blocks, None for one that is damaged."""
        return read_extents(self._cache.open(key), extents)

    def lost(self, key: SegmentKey, block: int) -> None:
        """The block at this place is damaged."""
        part = self._parts.get(key)
        if part is not None and block not in part.memory:
            self._entries -= len(part.index)
            part.index.remove(block)
            self._entries += len(part.index)
            part.damaged = True

    # ---- flushes

    def length(self, key: SegmentKey) -> int:
        """Synced bytes of its file; 0 if it was given up meanwhile."""
        part = self._parts.get(key)
        return 0 if part is None else part.length

    def logs(self) -> list[str]:
        """Every log of which something is here."""
        keys = (*self._files, *self._parts, *self._found)
        return sorted({key.log for key in keys})

    @property
    def parts_count(self) -> int:
        return len(self._files.keys() | self._parts.keys() | self._found.keys())

    @property
    def open_files(self) -> int:
        return len(self._cache)

    def unflushed(self) -> list[SegmentKey]:
        """Parts with blocks in memory; those that are not loaded yet come first."""
        return sorted(self._unflushed, key=lambda key: key in self._parts)

    def take_flush(self, key: SegmentKey) -> tuple[list[AddRecord], int] | None:
        """What a flush has to write of a loaded part, and where."""
        part = self._parts.get(key)
        if part is None or not part.memory:
            return None
        return list(part.memory.values()), part.length

    def flush(self, key: SegmentKey, records: list[AddRecord], position: int) -> Flushed:
        """In a thread: write blocks behind the synced ones, and fsync."""
        file = self._cache.open(key, writable=True)
        if file.size > position:
            file.truncate(position)
        extents: list[Extent] = []
        out: list[Buffer] = []
        size = 0
        start = position
        for record in records:
            extents.append(Extent(record.block, position, len(record.data), record.mark))
            out.append(record.data)
            size += len(record.data)
            position += len(record.data)
            if size >= _WRITE_BYTES:
                file.write_at(start, b"".join(out))
                start, size = position, 0
                out.clear()
        if out:
            file.write_at(start, b"".join(out))
        file.sync()
        return Flushed(key, records, extents, position)

    def flush_all(self, work: Sequence[tuple[SegmentKey, list[AddRecord], int]]) -> list[Flushed]:
        """In a thread: flush these parts. Nobody hears of it before their files' names stay too."""
        done = [self.flush(*item) for item in work]
        self._disk.sync_dir()
        return done

    def flushed(self, done: Flushed) -> LengthRecord | None:
        """The blocks are in the file: memory may forget them. None: given up meanwhile."""
        part = self._parts.get(done.key)
        if part is None:
            self._removals.append(done.key)  # it was made again by the flush
            return None
        self._files[done.key] = None
        self._entries -= len(part.index)
        for record, extent in zip(done.records, done.extents, strict=True):
            part.index.add(extent)
            if part.memory.get(record.block) is record:
                del part.memory[record.block]
                self.memory_bytes -= _cost(record)
        self._entries += len(part.index)
        part.length = done.length
        if not part.memory:
            self._unflushed.pop(done.key, None)
        return LengthRecord(done.key, done.length)

    def remove_dropped(self) -> int:
        """In a thread: remove the files of what was given up; how many."""
        removals, self._removals = self._removals, []
        for key in removals:
            self._cache.forget(key)
            if self._disk.exists(file_name(key)):
                self._disk.remove(file_name(key))
        if removals:
            self._disk.sync_dir()
        return len(removals)

    @property
    def has_removals(self) -> bool:
        return bool(self._removals)

    def surplus(self) -> Iterable[SegmentKey]:
        """Parts to close, those unused for longest first, while there are too many in memory."""
        if self._entries <= INDEX_ENTRIES_MAX and len(self._parts) <= PARTS_MAX:
            return
        for key in list(self._parts):
            if self._entries <= INDEX_ENTRIES_MAX and len(self._parts) <= PARTS_MAX:
                return
            if not self._parts[key].memory:
                yield key

    def close_part(self, key: SegmentKey) -> None:
        """Forget the index of a part that the core has closed; it has nothing in memory."""
        if key in self._files:
            self._lengths[key] = self._parts[key].length
        self._forget(key)

    def close(self) -> None:
        self._cache.close()


class _FileCache:
    """Open files, the least recently used of which is let go; for all threads."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files: OrderedDict[SegmentKey, File] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._files)

    def open(self, key: SegmentKey, *, writable: bool = False) -> File:
        """A file that stays usable while it is referred to, whatever happens here."""
        with self._lock:
            file = self._files.get(key)
            if file is None:
                name = file_name(key)
                if writable and not self._disk.exists(name):
                    file = self._disk.create(name)
                else:
                    file = self._disk.open(name, writable=True)
                self._files[key] = file
                while len(self._files) > FILE_CACHE_COUNT:
                    self._files.popitem(last=False)  # closed when its last user lets go
            self._files.move_to_end(key)
            return file

    def forget(self, key: SegmentKey) -> None:
        with self._lock:
            self._files.pop(key, None)

    def close(self) -> None:
        with self._lock:
            self._files.clear()


# ---- files


def load_index(file: File, length: int | None, key: SegmentKey) -> LoadedIndex:
    """Walk the headers of a file; `length`: what is behind it is not trusted, and in the journal.

    Behind damage the walk goes on with the next header that is whole.
    """
    found = LoadedIndex()
    end = file.size if length is None else min(length, file.size)
    if length is not None and file.size < length:
        found.damaged = True
    position = 0
    log_mark: int | None = None
    buffer, buffer_at = b"", 0
    while position < end:
        if not buffer_at <= position <= buffer_at + len(buffer) - BLOCK_HEADER_BYTES:
            buffer, buffer_at = file.read_at(position, _SCAN_BYTES), position
        try:
            header = decode_block_header(buffer, position - buffer_at)
            if header.segment != key.segment or position + header.block_bytes > end:
                raise BadFormat("a block of another place")
            if header.log_mark != log_mark:
                if log_mark is not None:
                    raise BadFormat("a block of another log")
                log_mark = header.log_mark
        except Damaged:
            found.damaged = True
            position = _next_magic(file, position + 1, end)
            continue
        at = position - buffer_at
        mark = block_mark(header, buffer[at : at + 8])
        found.index.add(Extent(header.block, position, header.block_bytes, mark))
        found.durable_block = max(found.durable_block, header.durable_block)
        position += header.block_bytes
    found.length = end
    return found


def _next_magic(file: File, position: int, end: int) -> int:
    while position < end:
        chunk = file.read_at(position, _SCAN_BYTES + len(_MAGIC_BYTES) - 1)
        at = chunk.find(_MAGIC_BYTES)
        if at >= 0:
            return position + at
        position += _SCAN_BYTES
    return end


def read_extents(file: File, extents: Sequence[Extent]) -> list[Buffer | None]:
    """Read blocks, those that touch at once, and check each."""
    out: list[Buffer | None] = []
    at = 0
    while at < len(extents):
        start = extents[at].position
        position = start
        stop = at
        while stop < len(extents) and extents[stop].position == position:
            position += extents[stop].size
            stop += 1
        data = memoryview(file.read_at(start, position - start))
        for extent in extents[at:stop]:
            place = extent.position - start
            block = data[place : place + extent.size]
            out.append(block if _is_whole(block, extent) else None)
        at = stop
    return out


def _is_whole(data: memoryview, extent: Extent) -> bool:
    try:
        header: BlockHeader = check_block(data)[0]
    except Damaged:
        return False
    return block_mark(header, data) == extent.mark and len(data) == extent.size
