"""A storage node's journal: what makes blocks, fences and tombstones durable, in one sequence.

    journal-0000000007     start │ record │ record │ … │ zeros: allocated, not used yet
    state                  fences and tombstones of all dropped files, and the first that is not

Every record is under a CRC and says how far its file was synced when it was written. Law (R46,
R48): a bad record is a torn tail, which is cut, only if no later record and no later file says that
it was durable. Everything else is damage: it is reported, what is intact behind it is kept, and the
node must take a new name for itself (cookie.py). A failed fsync ends the process.

A block's file in segment_store.py may be longer than what was synced of it. `length` records say
how much of it can be trusted: one before the first block of a part in each journal file, and one
after each flush, before the journal that held its blocks is dropped. So whatever lies behind the
largest length is in a journal that is still there.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from crc32c import crc32c

from penstock.errors import BadFormat, ChecksumMismatch, Damaged
from penstock.limits import BLOCK_BYTES_MAX, MIB
from penstock.log.block_format import check_block
from penstock.log.group_format import Buffer
from penstock.log.replication.manifest import SegmentKey
from penstock.log.replication.node_core import (
    AddRecord,
    FenceRecord,
    Record,
    TrimRecord,
    block_mark,
)
from penstock.log.storage.disk import Disk, File, read_whole, replace_file

#: magic, crc, bytes of the record, bytes of the log's name, kind, part, number of the file, bytes
#: of it that were synced, segment, value (an epoch, a length).
_HEADER = struct.Struct("<IIIHBBQQQQ")
_FIELDS = struct.Struct("<IHBBQQQQ")
RECORD_HEADER_BYTES = _HEADER.size
assert RECORD_HEADER_BYTES == 48
JOURNAL_MAGIC = 0x314A4E50  # "PNJ1"
_MAGIC_BYTES = JOURNAL_MAGIC.to_bytes(4, "little")
_MAGIC_CRC = struct.Struct("<II")
_LOG_BYTES_MAX = 64
RECORD_BYTES_MAX = RECORD_HEADER_BYTES + _LOG_BYTES_MAX + BLOCK_BYTES_MAX
STATE_NAME = "state"
_STATE_MAGIC = b"PNS1"

_START, _ADD, _FENCE, _TRIM, _LENGTH, _NOTE = range(1, 7)


class LengthRecord(NamedTuple):
    """So many bytes of a part's file are synced and whole."""

    key: SegmentKey
    length: int


@dataclass(slots=True)
class RecoveredJournal:
    """What an earlier process made durable, and what of it is lost."""

    fences: list[FenceRecord | TrimRecord] = field(default_factory=list)
    adds: list[AddRecord] = field(default_factory=list)
    #: Trusted bytes of the files of all parts that are in the journal.
    lengths: dict[SegmentKey, int] = field(default_factory=dict)
    #: Not empty: something acknowledged may be gone.
    damage: list[str] = field(default_factory=list)
    #: Numbers of the files that are there, and of the next one.
    numbers: list[int] = field(default_factory=list)
    next_number: int = 0
    #: Length of the newest file, once its torn tail is cut.
    last_bytes: int = 0
    torn_bytes: int = 0


def journal_name(number: int) -> str:
    return f"journal-{number:010d}"


class Journal:
    """The open journal. `encode` is for the event loop, `write` for one thread at a time."""

    def __init__(self, disk: Disk, recovered: RecoveredJournal, *, bytes_max: int) -> None:
        self._disk = disk
        self._bytes_max = bytes_max
        self.numbers = list(recovered.numbers)
        self._number = recovered.next_number
        self._file: File | None = None
        self._previous_bytes = recovered.last_bytes
        #: Where the next record goes; also how far the file is synced, with no write in flight.
        self._size = 0
        #: Parts whose length is in this file.
        self._told: set[SegmentKey] = set()
        #: There is something that only its being durable vouches for.
        self._unvouched = False

    @property
    def number(self) -> int:
        return self._number

    def encode(
        self, records: Iterable[Record | LengthRecord], length_of: Callable[[SegmentKey], int]
    ) -> tuple[list[Buffer], bool]:
        """Bytes of the next write, and whether it starts a new file. One at a time."""
        is_new = self._file is None or self._size >= self._bytes_max
        if is_new:
            if self._file is not None:
                self._number += 1
                self._previous_bytes = self._size
            self.numbers.append(self._number)
            self._size = 0
            self._told.clear()
        out: list[Buffer] = []
        number, synced, told = self._number, self._size, self._told
        if is_new:
            out.append(_encode(_START, number, 0, "", value=self._previous_bytes))
        for record in records:
            if isinstance(record, AddRecord):
                key = record.key
                if key not in told:
                    told.add(key)
                    out.append(_encode(_LENGTH, number, synced, *key, value=length_of(key)))
                size = len(record.data)
                out.append(_encode(_ADD, number, synced, *key, body_bytes=size))
                out.append(record.data)
            elif isinstance(record, FenceRecord):
                log, segment, epoch = record
                out.append(_encode(_FENCE, number, synced, log, segment, value=epoch))
            elif isinstance(record, TrimRecord):
                out.append(_encode(_TRIM, number, synced, record.log, record.first_segment))
            else:
                told.add(record.key)
                out.append(_encode(_LENGTH, number, synced, *record.key, value=record.length))
        self._size += sum(map(len, out))
        self._unvouched = True
        return out, is_new

    def encode_note(self) -> list[Buffer] | None:
        """A record that vouches for the last write; None if nothing needs it."""
        if not self._unvouched or self._file is None:
            return None
        self._unvouched = False
        note = _encode(_NOTE, self._number, self._size, "")
        self._size += len(note)
        return [note]

    def write(self, buffers: Sequence[Buffer], is_new: bool) -> None:
        """Write and fsync. After an error nothing may be written any more (R48)."""
        if is_new:
            self._start_file()
        assert self._file is not None
        self._file.append(buffers)
        self._file.sync()

    def _start_file(self) -> None:
        old = self._file
        if old is not None:
            # All its records are synced; should this be undone, zeros follow, and mean nothing.
            old.truncate(old.size)
            old.close()
        self._file = self._disk.create(journal_name(self._number))
        self._disk.sync_dir()

    def drop_below(self, number: int, state: Iterable[FenceRecord | TrimRecord]) -> None:
        """Remove older files: their blocks are in segment files, their fences are in `state`."""
        write_state(self._disk, number, state)
        for old in [at for at in self.numbers if at < number]:
            self._disk.remove(journal_name(old))
            self.numbers.remove(old)

    def close(self) -> None:
        """Give back what was allocated."""
        if self._file is not None:
            self._file.truncate(self._file.size)
            self._file.sync()
            self._file.close()
            self._file = None

    def abandon(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _encode(
    kind: int,
    number: int,
    synced: int,
    log: str,
    segment: int = 0,
    part: int = 0,
    *,
    value: int = 0,
    body_bytes: int = 0,
) -> bytes:
    name = log.encode()
    size = RECORD_HEADER_BYTES + len(name) + body_bytes
    rest = _FIELDS.pack(size, len(name), kind, part, number, synced, segment, value) + name
    return _MAGIC_CRC.pack(JOURNAL_MAGIC, crc32c(rest)) + rest


# ---- state of dropped files


def write_state(disk: Disk, first_number: int, state: Iterable[FenceRecord | TrimRecord]) -> None:
    records = list(state)
    fences = [list(record) for record in records if isinstance(record, FenceRecord)]
    trims = [list(record) for record in records if isinstance(record, TrimRecord)]
    text = json.dumps({"first": first_number, "fences": fences, "trims": trims}).encode()
    replace_file(disk, STATE_NAME, _STATE_MAGIC + crc32c(text).to_bytes(4, "little") + text)


def read_state(disk: Disk) -> tuple[int, list[FenceRecord | TrimRecord]] | None:
    """None: there is none. Raises Damaged."""
    if not disk.exists(STATE_NAME):
        return None
    data = read_whole(disk, STATE_NAME)
    text = data[8:]
    if data[:4] != _STATE_MAGIC or crc32c(text).to_bytes(4, "little") != data[4:8]:
        raise ChecksumMismatch("the journal's state file is damaged")
    try:
        found: dict[str, Any] = json.loads(text)
        state: list[FenceRecord | TrimRecord] = [TrimRecord(*item) for item in found["trims"]]
        state += [FenceRecord(*item) for item in found["fences"]]
        return int(found["first"]), state
    except (ValueError, KeyError, TypeError) as error:
        raise BadFormat(f"the journal's state file cannot be read: {error}") from error


# ---- recovery


def recover_journal(disk: Disk) -> RecoveredJournal:
    """Read all files, cut the torn tail of the newest, and say what is damaged."""
    recovered = RecoveredJournal()
    first = 0
    numbers = sorted(
        int(name.removeprefix("journal-")) for name in disk.names() if name.startswith("journal-")
    )
    try:
        state = read_state(disk)
    except Damaged as error:
        recovered.damage.append(str(error))
        state = None
    if state is not None:
        first, recovered.fences = state[0], list(state[1])
        for old in [number for number in numbers if number < first]:
            disk.remove(journal_name(old))
            numbers.remove(old)
    elif numbers:
        first = numbers[0]
        if not recovered.damage:
            recovered.damage.append("the journal's state file is missing")
    if numbers and numbers != list(range(first, numbers[-1] + 1)):
        recovered.damage.append(f"journal files are missing: {first} to {numbers[-1]}: {numbers}")
    recovered.numbers = numbers
    recovered.next_number = numbers[-1] + 1 if numbers else first
    previous_bytes: int | None = None
    for number in numbers:
        walk = _Walk(disk, number, recovered, is_last=number == numbers[-1])
        walk.run(previous_bytes)
        previous_bytes = recovered.last_bytes = walk.end
    return recovered


class _Walk:
    """One file, record by record."""

    def __init__(
        self, disk: Disk, number: int, recovered: RecoveredJournal, *, is_last: bool
    ) -> None:
        self._disk = disk
        self._number = number
        self._recovered = recovered
        self._is_last = is_last
        self._data = memoryview(read_whole(disk, journal_name(number)))
        #: First byte after the last intact record.
        self.end = 0

    def run(self, previous_bytes: int | None) -> None:
        data, at = self._data, 0
        while at < len(data):
            try:
                kind, size, value = self._take(at)
            except Damaged as error:
                following = self._next_intact(at)
                if not self._is_damage(at, following):
                    break
                self._report(f"at byte {at}: {error}")
                if following is None:
                    break
                at = following
                continue
            if kind == _START and previous_bytes is not None and value != previous_bytes:
                self._report(
                    f"says that the file before it has {value} bytes, not {previous_bytes}"
                )
            at += size
            self.end = at
        if self._is_last and self.end < len(data):
            self._cut()

    def _report(self, problem: str) -> None:
        self._recovered.damage.append(f"{journal_name(self._number)} {problem}")

    def _cut(self) -> None:
        tail = self._data[self.end :]
        if bytes(tail).count(0) != len(tail):
            self._recovered.torn_bytes = len(tail)
        file = self._disk.open(journal_name(self._number), writable=True)
        try:
            file.truncate(self.end)
            file.sync()  # before a next file says that this one is whole
        finally:
            file.close()

    def _is_damage(self, at: int, following: int | None) -> bool:
        """Was the bad record at `at` ever durable?"""
        if not self._is_last:
            rest = bytes(self._data[at:])
            return following is not None or rest.count(0) != len(rest)
        while following is not None:
            if self._header(following)[7] > at:
                return True
            following = self._next_intact(following)
        return False

    def _next_intact(self, after: int) -> int | None:
        at = _find(self._data, after + 1)
        while at is not None:
            try:
                self._parse(at)
                return at
            except Damaged:
                at = _find(self._data, at + 1)
        return None

    def _header(self, at: int) -> tuple[int, ...]:
        """The fields of an intact header, as in `_HEADER`."""
        data = self._data
        if len(data) - at < RECORD_HEADER_BYTES:
            raise BadFormat("a record is cut")
        magic, crc, size, name_bytes, *_ = fields = _HEADER.unpack_from(data, at)
        if magic != JOURNAL_MAGIC:
            raise BadFormat("no record")
        if name_bytes > _LOG_BYTES_MAX or not (
            RECORD_HEADER_BYTES + name_bytes <= size <= min(RECORD_BYTES_MAX, len(data) - at)
        ):
            raise BadFormat("a record of an impossible size")
        if crc32c(data[at + 8 : at + RECORD_HEADER_BYTES + name_bytes]) != crc:
            raise ChecksumMismatch("a record's header is damaged")
        return fields

    def _parse(self, at: int) -> tuple[int, int, int, SegmentKey, memoryview]:
        """Kind, size, value, key and body of the intact record at `at`."""
        _, _, size, name_bytes, kind, part, number, _, segment, value = self._header(at)
        if number != self._number:
            raise BadFormat(f"a record of file {number}")
        start = at + RECORD_HEADER_BYTES
        body = self._data[start + name_bytes : at + size]
        if kind == _ADD:
            header, _ = check_block(body)
            if header.segment != segment or header.block_bytes != len(body):
                raise BadFormat("a record of another block")
        elif body or not _START <= kind <= _NOTE:
            raise BadFormat(f"a record of kind {kind}")
        log = bytes(self._data[start : start + name_bytes]).decode()
        return kind, size, value, SegmentKey(log, segment, part), body

    def _take(self, at: int) -> tuple[int, int, int]:
        kind, size, value, key, body = self._parse(at)
        if at == 0 and kind != _START:
            raise BadFormat("the file does not begin with its start")
        recovered = self._recovered
        if kind == _ADD:
            header, _ = check_block(body)
            recovered.adds.append(AddRecord(key, header.block, block_mark(header, body), body))
        elif kind == _FENCE:
            recovered.fences.append(FenceRecord(key.log, key.segment, value))
        elif kind == _TRIM:
            recovered.fences.append(TrimRecord(key.log, key.segment))
        elif kind == _LENGTH:
            recovered.lengths[key] = max(value, recovered.lengths.get(key, 0))
        return kind, size, value


def _find(data: memoryview, start: int) -> int | None:
    """The next place that looks like the beginning of a record."""
    while start < len(data):
        chunk = bytes(data[start : start + MIB + 3])
        found = chunk.find(_MAGIC_BYTES)
        if found >= 0:
            return start + found
        start += MIB
    return None
