"""The blocks of a storage node: in memory until they are flushed, then in one file per part.

    orders.0000000012.0.blocks      part 0 of segment 12 of log `orders`: its blocks, in any order

    header with the file's key │ key · block │ key · block │ …

Owns positions, the bound on memory and open files, and the removal of what was given up. A file's
index is rebuilt from the headers of its blocks when it is first used. Laws: a block that does not
match its CRC is never returned (R46); a block that was lost is unknown for ever, or until it is
added again; behind damage a block is what begins with the file's key, a random number that no
client ever sees (a file of an older version has none: nothing in it is believed there); only
segments below their log's first one are removed (R40). What is written goes behind all that a file
ever had: where it is gone or cut, a hole tells of that for ever. A part whose file cannot be used
is *set aside*: its blocks stay in memory and in the journal, it takes no further ones, and all
others go on.

The event loop owns all of it. What reads or writes files runs in threads and is handed what it
needs: `load_index`, `read_extents`, `flush`; at most one flush at a time.
"""

from __future__ import annotations

import errno
import secrets
import struct
import threading
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import BadFormat, BadRequest, Damaged, PenstockError
from penstock.limits import KIB, MIB, POSITION_MAX
from penstock.log.block_format import (
    BLOCK_HEADER_BYTES,
    BlockHeader,
    check_block,
    decode_block_header,
)
from penstock.log.group_format import Buffer
from penstock.log.node.journal import LengthRecord
from penstock.log.replication.manifest import SegmentKey, check_log_name
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
#: Errors of one name, whatever the disk is like; all others are of the disk, and end the node.
_NAME_ERRORS = frozenset(
    {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}
)
#: What is wrong with a part whose file is not there.
GONE = "is gone"
#: magic, crc of the key, key.
_FILE_HEADER = struct.Struct("<4sI8s")
_FILE_MAGIC = b"PNB1"
FILE_HEADER_BYTES = _FILE_HEADER.size
KEY_BYTES = 8


def file_name(key: SegmentKey) -> str:
    """Of its own for every part: a log's name has no dot, and a disk's names no underscore."""
    return f"{key.log.replace('_', '.')}.{key.segment:010d}.{key.part}.blocks"


def parse_file_name(name: str) -> SegmentKey | None:
    """Whose file it is; None: no part's."""
    log, *rest = name.rsplit(".", 3)
    if len(rest) != 3 or not (rest[0] + rest[1]).isdecimal():
        return None
    key = SegmentKey(log.replace(".", "_"), int(rest[0]), int(rest[1]))
    try:
        check_log_name(key.log)
    except BadRequest:
        return None
    return key if key.part <= 1 and file_name(key) == name else None


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

    @property
    def end(self) -> int:
        return self._blocks[-1] + 1 if self._blocks else 0

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
    #: The first block that never was in the file; None: not known.
    end: int | None = 0
    durable_block: int = 0
    #: Empty: the file has none, or it cannot be read.
    file_key: bytes = b""
    #: What is wrong with the file, if anything is, as in "its file is gone"; then blocks below
    #: `end` may have been lost.
    damage: str = ""

    @property
    def unsure(self) -> tuple[tuple[int, int], ...]:
        if not self.damage or self.end == 0:
            return ()
        return ((0, POSITION_MAX if self.end is None else self.end),)


@dataclass(slots=True)
class _Part:
    index: PartIndex
    #: Bytes of the file that are synced.
    length: int
    #: See `LoadedIndex`.
    end: int | None
    durable_block: int
    unsure: Ranges
    file_key: bytes = b""
    #: Blocks that are in the journal only, in the order in which they came.
    memory: dict[int, AddRecord] = field(default_factory=dict)
    #: Blocks were lost that never came into the file: its next flush leaves a hole.
    wants_hole: bool = False


@dataclass(slots=True)
class Flushed:
    """What a flush wrote of one part."""

    key: SegmentKey
    records: list[AddRecord]
    extents: list[Extent]
    length: int
    file_key: bytes


class Unflushed(NamedTuple):
    """A part whose file cannot be opened: nothing of it was written."""

    key: SegmentKey
    error: Exception


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
        #: Blocks found in the journal of parts that were not used yet.
        self._found: dict[SegmentKey, list[AddRecord]] = {}
        #: ... and blocks of them that were damaged there.
        self._lost: dict[SegmentKey, list[int]] = {}
        #: Of every part that has a file, or had one: it may have gone.
        self._lengths: dict[SegmentKey, LengthRecord] = {}
        self._entries = 0
        #: Bytes of blocks that wait for their flush, and of what points to them.
        self.memory_bytes = 0
        #: Parts whose files cannot be used, and what they hold: that is not in `memory_bytes`.
        self.aside: set[SegmentKey] = set()
        self.aside_bytes = 0
        #: Parts with such blocks.
        self._unflushed: dict[SegmentKey, None] = {}
        #: By log: segments below were given up.
        self._first_segments: dict[str, int] = {}
        self._cache = _FileCache(disk)
        #: Removals that a thread has to do.
        self._removals: list[SegmentKey] = []

    # ---- starting

    def restore(
        self,
        adds: Iterable[AddRecord],
        lengths: dict[SegmentKey, LengthRecord],
        lost: Iterable[tuple[SegmentKey, int]] = (),
    ) -> None:
        """Take in what the journal holds."""
        for key, block in lost:
            self._lost.setdefault(key, []).append(block)
            self._unflushed[key] = None
        for record in adds:
            self._found.setdefault(record.key, []).append(record)
            self._grow(record.key, _cost(record))
            self._unflushed[record.key] = None
        self._lengths = dict(lengths)
        for key in self._files:
            if key not in lengths:
                self._measure(key)

    def _measure(self, key: SegmentKey) -> None:
        """Nothing is known of a file but itself: all of it is trusted, from now on."""
        try:
            file = self._disk.open(file_name(key), writable=True)
        except OSError:
            return  # it will be set aside
        if file.size:
            self._lengths[key] = LengthRecord(key, file.size, None)
        file.close()

    def missing(self) -> list[LengthRecord]:
        """Parts whose files are gone."""
        return [
            known
            for key, known in self._lengths.items()
            if known.length and key not in self._files and key not in self._parts
        ]

    def lengths(self) -> list[LengthRecord]:
        """What `restore` has to know once the journals are dropped that say it."""
        return list(self._lengths.values())

    def _grow(self, key: SegmentKey, size: int) -> None:
        if key in self.aside:
            self.aside_bytes += size
        else:
            self.memory_bytes += size

    def set_aside(self, key: SegmentKey) -> None:
        """Its file cannot be used: see the module's docstring."""
        if not any(key in known for known in (self._files, self._parts, self._found, self._lost)):
            return  # given up meanwhile
        size = sum(map(_cost, self.held(key)))
        self._grow(key, -size)
        self.aside.add(key)
        self._grow(key, size)

    def take_back(self, key: SegmentKey) -> None:
        """Its file can be used again."""
        if key in self.aside:
            size = sum(map(_cost, self.held(key)))
            self._grow(key, -size)
            self.aside.remove(key)
            self._grow(key, size)

    def held(self, key: SegmentKey) -> list[AddRecord]:
        """Its blocks that are in the journal only."""
        part = self._parts.get(key)
        return self._found.get(key, []) if part is None else list(part.memory.values())

    @property
    def needs_journals(self) -> bool:
        """Only they say which blocks of parts that were set aside are lost."""
        return any(key in self._lost or self._is_hole_due(key) for key in self.aside)

    def _is_hole_due(self, key: SegmentKey) -> bool:
        part = self._parts.get(key)
        return part is not None and part.wants_hole

    def is_loaded(self, key: SegmentKey) -> bool:
        """`load` needs no file; otherwise `load_index` in a thread, then `loaded`, come first."""
        if key in self._parts:
            return True
        known = self._lengths.get(key)
        return key not in self._files and (known is None or not known.length)

    def is_here(self, key: SegmentKey) -> bool:
        return key in self._parts

    def load_index(self, key: SegmentKey) -> LoadedIndex:
        """In a thread: what the file has."""
        known = self._lengths.get(key)
        if key in self._files:
            try:
                return load_index(self._cache.open(key), known, key)
            except FileNotFoundError:
                known = known or LengthRecord(key, 1, None)  # something was in it
        if known is None or not known.length:
            return LoadedIndex()
        return LoadedIndex(length=known.length, end=known.end, damage=GONE)

    def loaded(self, key: SegmentKey, found: LoadedIndex) -> None:
        is_given_up = key.segment < self._first_segments.get(key.log, 0)  # while it was read
        if key not in self._parts and not is_given_up:
            self._put_part(key, found)

    def _put_part(self, key: SegmentKey, found: LoadedIndex) -> _Part:
        unsure = Ranges(found.unsure)
        part = _Part(
            found.index, found.length, found.end, found.durable_block, unsure, found.file_key
        )
        self._parts[key] = part
        if part.length:
            self._lengths[key] = LengthRecord(key, part.length, part.end)
        self._entries += len(part.index)
        for record in self._found.pop(key, ()):
            there = part.index.find(record.block)
            if (there is not None and there.mark == record.mark) or record.block in part.memory:
                self._grow(key, -_cost(record))
                continue
            part.memory[record.block] = record
            header = decode_block_header(record.data)
            part.durable_block = max(part.durable_block, header.durable_block)
        for block in self._lost.pop(key, ()):
            if block not in part.memory and part.index.find(block) is None:
                part.unsure.add(block)
                part.wants_hole = True
                part.end = None if part.end is None else max(part.end, block + 1)
        if not part.memory and not part.wants_hole:
            self._unflushed.pop(key, None)
        return part

    # ---- node_core.BlockStore

    def load(self, key: SegmentKey) -> StoredPart:
        part = self._part(key)
        ranges = part.index.ranges()
        for block in part.memory:
            ranges.add(block)
        return StoredPart(tuple(ranges), part.durable_block, tuple(part.unsure))

    def _part(self, key: SegmentKey) -> _Part:
        part = self._parts.get(key)
        if part is None:
            assert self.is_loaded(key), f"{key} was not loaded"
            part = self._put_part(key, LoadedIndex())
        self._parts.move_to_end(key)
        return part

    def put(self, record: AddRecord) -> None:
        part = self._part(record.key)
        part.memory[record.block] = record
        self._grow(record.key, _cost(record))
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
        self._first_segments[log] = max(first_segment, self._first_segments.get(log, 0))
        for key in [key for key in self._parts if key.log == log and key.segment < first_segment]:
            self._forget(key)
        for key in [key for key in self._found if key.log == log and key.segment < first_segment]:
            self._grow(key, -sum(map(_cost, self._found.pop(key))))
            self._unflushed.pop(key, None)
        for key in [key for key in self._lost if key.log == log and key.segment < first_segment]:
            del self._lost[key]
            self._unflushed.pop(key, None)
        for key in [key for key in self._files if key.log == log and key.segment < first_segment]:
            del self._files[key]
            self._removals.append(key)
        for key in [key for key in self._lengths if key.log == log and key.segment < first_segment]:
            del self._lengths[key]
        self.aside -= {key for key in self.aside if key.log == log and key.segment < first_segment}

    def _forget(self, key: SegmentKey) -> None:
        part = self._parts.pop(key)
        self._entries -= len(part.index)
        self._grow(key, -sum(map(_cost, part.memory.values())))
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
            part.unsure.add(block)

    # ---- flushes

    def length(self, key: SegmentKey) -> LengthRecord | None:
        """What is synced of its file; None: all that it has."""
        known = self._lengths.get(key)
        return known if known is not None or key in self._files else LengthRecord(key, 0, 0)

    def logs(self) -> list[str]:
        """Every log of which something is here."""
        keys = (*self._files, *self._lengths, *self._parts, *self._found, *self._lost)
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

    def take_flush(self, key: SegmentKey) -> tuple[list[AddRecord], int, bytes | None] | None:
        """What a flush has to write of a loaded part, where, and the file's key.

        None as the key: nothing in the file can be read, it begins anew.
        """
        part = self._parts.get(key)
        if part is None or not (part.memory or part.wants_hole):
            return None
        position = part.length + part.wants_hole
        if part.file_key or part.index:
            return list(part.memory.values()), position, part.file_key
        hole = 1 if position else 0
        return list(part.memory.values()), max(position, FILE_HEADER_BYTES + hole), None

    def flush(
        self, key: SegmentKey, records: list[AddRecord], position: int, file_key: bytes | None
    ) -> Flushed | Unflushed:
        """In a thread: write blocks behind the synced ones, and fsync."""
        try:
            file = self._cache.open(key, writable=True)
        except PenstockError as error:
            return Unflushed(key, error)
        except OSError as error:
            if error.errno not in _NAME_ERRORS:
                raise
            return Unflushed(key, error)
        if file.size != position:
            file.truncate(position)  # what is not trusted goes, what is lost leaves a hole
        if file_key is None:
            file_key = secrets.token_bytes(KEY_BYTES)
            file.write_at(0, _FILE_HEADER.pack(_FILE_MAGIC, crc32c(file_key), file_key))
        extents: list[Extent] = []
        out: list[Buffer] = []
        size = 0
        start = position
        for record in records:
            at = position + len(file_key)
            extents.append(Extent(record.block, at, len(record.data), record.mark))
            out += (file_key, record.data)
            size += len(record.data)
            position = at + len(record.data)
            if size >= _WRITE_BYTES:
                file.write_at(start, b"".join(out))
                start, size = position, 0
                out.clear()
        if out:
            file.write_at(start, b"".join(out))
        file.sync()
        return Flushed(key, records, extents, position, file_key)

    def flush_all(
        self, work: Sequence[tuple[SegmentKey, list[AddRecord], int, bytes | None]]
    ) -> list[Flushed | Unflushed]:
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
                self._grow(done.key, -_cost(record))
        self._entries += len(part.index)
        part.length, part.file_key = done.length, done.file_key
        if part.end is not None:
            part.end = max((part.end, *(extent.block + 1 for extent in done.extents)))
        part.wants_hole = False
        if not part.memory:
            self._unflushed.pop(done.key, None)
        self._lengths[done.key] = LengthRecord(done.key, part.length, part.end)
        return self._lengths[done.key]

    def remove_dropped(self) -> tuple[int, list[tuple[SegmentKey, Exception]]]:
        """In a thread: remove the files of what was given up; how many, and which stay."""
        removals, self._removals = self._removals, []
        left: list[tuple[SegmentKey, Exception]] = []
        for key in removals:
            self._cache.forget(key)
            try:
                if self._disk.exists(file_name(key)):
                    self._disk.remove(file_name(key))
            except (PenstockError, OSError) as error:
                left.append((key, error))
        if removals:
            self._disk.sync_dir()
        return len(removals) - len(left), left

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
            if not self._parts[key].memory and not self._parts[key].wants_hole:
                yield key

    def close_part(self, key: SegmentKey) -> None:
        """Forget the index of a part that the core has closed; it has nothing in memory."""
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


def load_index(file: File, known: LengthRecord | None, key: SegmentKey) -> LoadedIndex:
    """Walk the headers of a file; what is behind its known length is not trusted, and in a journal.

    Behind damage the walk goes on with the next block that begins with the file's key.
    """
    found = LoadedIndex(length=file.size if known is None else known.length)
    end = min(found.length, file.size)
    if file.size < found.length:
        found.damage = f"has {file.size} of {found.length} bytes"
    if end >= FILE_HEADER_BYTES:
        found.file_key = _read_file_key(file)
    _walk(file, found, key, end)
    if not found.damage:
        found.end = found.index.end
    elif known is not None and known.end is not None:
        found.end = max(known.end, found.index.end)
    else:
        found.end = None
    return found


def _read_file_key(file: File) -> bytes:
    """From its header or, if that is damaged, from before its first block; empty: it has none."""
    data = file.read_at(0, FILE_HEADER_BYTES + KEY_BYTES + BLOCK_HEADER_BYTES)
    magic, crc, key = _FILE_HEADER.unpack_from(data)
    if magic == _FILE_MAGIC and crc == crc32c(key):
        return bytes(key)
    first = FILE_HEADER_BYTES + KEY_BYTES
    try:
        decode_block_header(data, first)
    except Damaged:
        return b""
    return data[FILE_HEADER_BYTES:first]


def _walk(file: File, found: LoadedIndex, key: SegmentKey, end: int) -> None:
    file_key = found.file_key
    position = FILE_HEADER_BYTES if file_key else 0
    head_bytes = len(file_key) + BLOCK_HEADER_BYTES
    log_mark: int | None = None
    buffer, buffer_at = b"", 0
    while position < end:
        if not buffer_at <= position <= buffer_at + len(buffer) - head_bytes:
            buffer, buffer_at = file.read_at(position, _SCAN_BYTES), position
        at = position - buffer_at + len(file_key)
        try:
            if not buffer.startswith(file_key, position - buffer_at):
                raise BadFormat("no block")
            header = decode_block_header(buffer, at)
            size = len(file_key) + header.block_bytes
            if header.segment != key.segment or position + size > end:
                raise BadFormat("a block of another place")
            if header.log_mark != log_mark:
                if log_mark is not None:
                    raise BadFormat("a block of another log")
                log_mark = header.log_mark
        except Damaged:
            found.damage = found.damage or f"is damaged at byte {position}"
            if not file_key:
                return  # what follows may be out of somebody's payload
            position = _find(file, file_key, position + 1, end)
            continue
        mark = block_mark(header, buffer[at : at + 8])
        extent = Extent(header.block, position + len(file_key), header.block_bytes, mark)
        found.index.add(extent)
        found.durable_block = max(found.durable_block, header.durable_block)
        position += size


def _find(file: File, file_key: bytes, position: int, end: int) -> int:
    while position < end:
        chunk = file.read_at(position, _SCAN_BYTES + len(file_key) - 1)
        at = chunk.find(file_key)
        if at >= 0:
            return position + at
        position += _SCAN_BYTES
    return end


def read_extents(file: File, extents: Sequence[Extent]) -> list[Buffer | None]:
    """Read blocks, those with nothing but a key between them at once, and check each."""
    out: list[Buffer | None] = []
    at = 0
    while at < len(extents):
        start = extents[at].position
        position = start
        stop = at
        while stop < len(extents) and 0 <= extents[stop].position - position <= KEY_BYTES:
            position = extents[stop].position + extents[stop].size
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
