"""A storage node's journal: what makes blocks, fences and tombstones durable, in one sequence.

    journal-0000000007     start │ record │ record │ … │ zeros: allocated, not used yet
    state                  what dropped files said, and the files that are not dropped

Every record is under a CRC and says how far its file was synced when it was written; every write
repeats the heads of the one before it (journal_format.py). Law (R46, R48): a bad record is a torn
tail, which is cut, only if no later record and no later file says that it was durable. If its head
is known, from itself or from its echo, a block is lost, and nothing else: all that other records
say is in their heads. Everything else is damage: it is reported, what is intact behind it is kept,
and the node must take a new name for itself (cookie.py). A failed fsync ends the process;
the next one writes again, and syncs, what nobody vouches for, before it shows any of it. In files
of older versions, which have no key, nothing behind damage is believed: it may be out of somebody's
block. A file is in `state` before anything in it is acknowledged, so one that is gone is missed.

A block's file in segment_store.py may be longer than what was synced of it. `length` records say
how much of it can be trusted: one before the first block of a part in each journal file, and one
after each flush, before the journal that held its blocks is dropped. So whatever lies behind the
largest length is in a journal that is still there. With a length goes the `end` of the part: no
block from there on ever was in its file. So a file that is gone, cut or damaged is noticed, and
leaves only the blocks below in doubt.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from crc32c import crc32c

from penstock.errors import BadFormat, ChecksumMismatch, Damaged
from penstock.log.block_format import check_block, decode_block_header
from penstock.log.group_format import Buffer
from penstock.log.node.journal_format import (
    ADD,
    ECHO,
    END,
    FENCE,
    HEADS_MAX,
    KEY_BYTES,
    LENGTH,
    NOTE,
    START,
    TRIM,
    Format,
    LastWrite,
    RecordHead,
    check_echo,
    decode_head,
    echoed_heads,
    encode_again,
    encode_echo,
    encode_head,
    encode_start,
    find_format,
)
from penstock.log.replication.manifest import SegmentKey
from penstock.log.replication.node_core import (
    AddRecord,
    FenceRecord,
    Record,
    TrimRecord,
    block_mark,
)
from penstock.log.storage.disk import Disk, File, read_whole, replace_file

STATE_NAME = "state"
_STATE_MAGIC = b"PNS1"


class LengthRecord(NamedTuple):
    """So many bytes of a part's file are synced and whole."""

    key: SegmentKey
    length: int
    #: The first block that never was in them; None: not known.
    end: int | None


class JournalState(NamedTuple):
    """What the state file says."""

    #: Number of the first file that is not dropped.
    first: int = 0
    #: What dropped files said.
    records: Sequence[FenceRecord | TrimRecord] = ()
    lengths: Sequence[LengthRecord] = ()
    #: Keys of the others, by number: from the first of these on, all are there.
    keys: Mapping[int, bytes] = {}


@dataclass(slots=True)
class RecoveredJournal:
    """What an earlier process made durable, and what of it is lost."""

    state: JournalState = JournalState()
    fences: list[FenceRecord | TrimRecord] = field(default_factory=list)
    adds: list[AddRecord] = field(default_factory=list)
    #: What is known of the files of parts.
    lengths: dict[SegmentKey, LengthRecord] = field(default_factory=dict)
    #: Blocks that were durable and are damaged.
    lost: list[tuple[SegmentKey, int]] = field(default_factory=list)
    #: Not empty: something else that was acknowledged may be gone.
    damage: list[str] = field(default_factory=list)
    #: Numbers of the files that are there, and of the next one.
    numbers: list[int] = field(default_factory=list)
    next_number: int = 0
    #: Length of the newest file, once its torn tail is cut.
    last_bytes: int = 0
    torn_bytes: int = 0
    #: What the first write of the next file repeats.
    last_write: LastWrite = field(default_factory=LastWrite)


def journal_name(number: int) -> str:
    return f"journal-{number:010d}"


class Journal:
    """The open journal. `encode` is for the event loop, `write` for one thread at a time."""

    def __init__(self, disk: Disk, recovered: RecoveredJournal, *, bytes_max: int) -> None:
        self._disk = disk
        self._bytes_max = bytes_max
        self.numbers = list(recovered.numbers)
        self._number = recovered.next_number
        self._key = b""
        #: What the state file says; two threads write it, see `_change_state`.
        self._state = recovered.state
        self._state_lock = threading.Lock()
        self._file: File | None = None
        self._previous_bytes = recovered.last_bytes
        self._last_write = recovered.last_write
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
        self,
        records: Iterable[Record | LengthRecord],
        length_of: Callable[[SegmentKey], LengthRecord | None],
    ) -> tuple[list[Buffer], bool]:
        """Bytes of the next write, and whether it starts a new file. One at a time.

        `length_of`: the trusted length of a part's file; None: all of it, however long it is.
        """
        is_new = self._file is None or self._size >= self._bytes_max
        if is_new:
            if self._file is not None:
                self._number += 1
                self._previous_bytes = self._size
            self.numbers.append(self._number)
            self._key = secrets.token_bytes(KEY_BYTES)
            self._size = 0
            self._told.clear()
        out: list[Buffer] = []
        mark, number, synced, told = self._key, self._number, self._size, self._told
        heads = self._begin_write(out, is_new)
        for record in records:
            if isinstance(record, AddRecord):
                key = record.key
                if key not in told:
                    told.add(key)
                    length = length_of(key)
                    if length is not None:
                        lengths = _encode_length(mark, number, synced, length)
                        heads += lengths
                        out += lengths
                block, size = record.block + 1, len(record.data)
                head = encode_head(mark, ADD, number, synced, *key, value=block, body_bytes=size)
                heads.append(head)
                out.append(head)
                out.append(record.data)
                continue
            if isinstance(record, FenceRecord):
                log, segment, epoch = record
                said = [encode_head(mark, FENCE, number, synced, log, segment, value=epoch)]
            elif isinstance(record, TrimRecord):
                log, segment = record
                said = [encode_head(mark, TRIM, number, synced, log, segment)]
            else:
                told.add(record.key)
                said = _encode_length(mark, number, synced, record)
            heads += said
            out += said
        self._size += sum(map(len, out))
        self._unvouched = True
        return out, is_new

    def _begin_write(self, out: list[Buffer], is_new: bool) -> list[bytes]:
        """What stands before its records; returns the heads of the write, to be added to."""
        number, synced, last = self._number, self._size, self._last_write
        self._last_write = LastWrite(number, synced)
        heads = self._last_write.heads
        if is_new:
            heads.append(encode_start(self._key, number, self._previous_bytes))
            out.append(heads[0])
        for head, body in encode_echo(self._key, number, synced, last):
            heads.append(head)
            out += (head, body)
        return heads

    def encode_note(self) -> list[Buffer] | None:
        """A record that vouches for the last write; None if nothing needs it."""
        if not self._unvouched or self._file is None:
            return None
        self._unvouched = False
        out: list[Buffer] = []
        note = encode_head(self._key, NOTE, self._number, self._size, "")
        self._begin_write(out, False).append(note)
        out.append(note)
        self._size += sum(map(len, out))
        return out

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
        self._disk.sync_dir()  # before the state names it, or a crash here would look like a loss
        with self._state_lock:
            keys = {**self._state.keys, self._number: self._key}
            self._change_state(self._state._replace(keys=keys))

    def _change_state(self, state: JournalState) -> None:
        """The lock is held: `write` and `drop_below` run in different threads."""
        write_state(self._disk, *state)
        self._state = state

    def drop_below(
        self,
        number: int,
        state: Iterable[FenceRecord | TrimRecord],
        lengths: Iterable[LengthRecord],
    ) -> None:
        """Remove older files: their blocks are in segment files, the rest is in the arguments."""
        with self._state_lock:
            keys = {at: key for at, key in self._state.keys.items() if at >= number}
            self._change_state(JournalState(number, list(state), list(lengths), keys))
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


def _encode_length(mark: bytes, number: int, synced: int, record: LengthRecord) -> list[bytes]:
    key, length, end = record
    out = [encode_head(mark, LENGTH, number, synced, *key, value=length)]
    if length and end is not None:
        out.append(encode_head(mark, END, number, synced, *key, value=end))
    return out


# ---- state of files


def write_state(
    disk: Disk,
    first_number: int,
    state: Iterable[FenceRecord | TrimRecord],
    lengths: Iterable[LengthRecord] = (),
    keys: Mapping[int, bytes] | None = None,
) -> None:
    """See `JournalState`."""
    records = list(state)
    fences = [list(record) for record in records if isinstance(record, FenceRecord)]
    trims = [list(record) for record in records if isinstance(record, TrimRecord)]
    parts = [[*key, length, end] for key, length, end in lengths]
    files = [[number, key.hex()] for number, key in (keys or {}).items()]
    values = {
        "first": first_number,
        "fences": fences,
        "trims": trims,
        "parts": parts,
        "files": files,
    }
    text = json.dumps(values).encode()
    replace_file(disk, STATE_NAME, _STATE_MAGIC + crc32c(text).to_bytes(4, "little") + text)


def read_state(disk: Disk) -> JournalState | None:
    """None: there is none. Raises Damaged."""
    if not disk.exists(STATE_NAME):
        return None
    data = read_whole(disk, STATE_NAME)
    text = data[8:]
    if data[:4] != _STATE_MAGIC or crc32c(text).to_bytes(4, "little") != data[4:8]:
        raise ChecksumMismatch("the journal's state file is damaged")
    try:
        found: dict[str, Any] = json.loads(text)
        records: list[FenceRecord | TrimRecord] = [TrimRecord(*item) for item in found["trims"]]
        records += [FenceRecord(*item) for item in found["fences"]]
        # Older versions did not write `parts` and `files`.
        lengths = [
            LengthRecord(SegmentKey(*item[:3]), item[3], item[4]) for item in found.get("parts", ())
        ]
        keys = {int(number): bytes.fromhex(key) for number, key in found.get("files", ())}
        return JournalState(int(found["first"]), records, lengths, keys)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise BadFormat(f"the journal's state file cannot be read: {error}") from error


# ---- recovery


def recover_journal(disk: Disk) -> RecoveredJournal:
    """Read all files, make the newest durable without its torn tail, and say what is damaged."""
    recovered = RecoveredJournal()
    numbers = sorted(
        int(name.removeprefix("journal-")) for name in disk.names() if name.startswith("journal-")
    )
    try:
        state = read_state(disk)
        if state is None and numbers:
            recovered.damage.append("the journal's state file is missing")
    except Damaged as error:
        recovered.damage.append(str(error))
        state = None
    if state is None:
        state = JournalState(numbers[0] if numbers else 0)
    recovered.state, recovered.fences = state, list(state.records)
    recovered.lengths = {record.key: record for record in state.lengths}
    for old in [number for number in numbers if number < state.first]:
        disk.remove(journal_name(old))
        numbers.remove(old)
    recovered.next_number = max((*numbers, *state.keys), default=state.first - 1) + 1
    if numbers != list(range(state.first, recovered.next_number)):
        last = recovered.next_number - 1
        recovered.damage.append(f"journal files are missing: {state.first} to {last}: {numbers}")
    recovered.numbers = numbers
    previous_bytes: int | None = None
    for number in numbers:
        walk = _Walk(disk, number, recovered, is_last=number == numbers[-1])
        walk.run(previous_bytes)
        previous_bytes = recovered.last_bytes = walk.end
        recovered.last_write = walk.last_write
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
        self._bytes = read_whole(disk, journal_name(number))
        self._data = memoryview(self._bytes)
        self._format = self._format_of(number, self._bytes)
        self._echoes: dict[int, RecordHead] | None = None
        #: First byte after the last intact record.
        self.end = 0
        #: So many bytes were synced, a record says.
        self._vouched = 0
        #: Heads of the newest write, and where it begins; of the newest file only.
        self._heads: list[RecordHead] = []
        self._heads_at = 0
        self._is_beginning = True

    def run(self, previous_bytes: int | None) -> None:
        data, at = self._data, 0
        while at < len(data):
            try:
                head = self._take(at)
            except Damaged as error:
                following = self._next_intact(at)
                if not self._is_damage(at, following):
                    break
                lost = self._take_lost(at)
                if lost is None:
                    self._report(f"at byte {at}: {error}")
                    if following is None or not self._format.has_key:
                        break
                    self._keep_heads(following)
                    at = following
                    continue
                head = lost
            if head.kind == START and previous_bytes is not None and head.value != previous_bytes:
                self._report(
                    f"says that the file before it has {head.value} bytes, not {previous_bytes}"
                )
            if self._is_last:
                self._keep_head(at, head)
            self._vouched = max(self._vouched, head.synced)
            at += head.size
            self.end = at
        if self._is_last:
            self._make_durable()

    def _format_of(self, number: int, file: bytes) -> Format:
        return find_format(file, self._recovered.state.keys.get(number))

    def _report(self, problem: str) -> None:
        self._recovered.damage.append(f"{journal_name(self._number)} {problem}")

    def _keep_head(self, at: int, head: RecordHead) -> None:
        """For the next file. A write begins with the start of its file, or with echoes."""
        begins = head.kind in (START, ECHO)
        if begins and not self._is_beginning:
            self._keep_heads(at)
        self._is_beginning = begins
        if len(self._heads) < HEADS_MAX:
            self._heads.append(head)

    def _keep_heads(self, at: int) -> None:
        """Only those from here on."""
        self._heads_at = at
        self._heads.clear()

    @property
    def last_write(self) -> LastWrite:
        if not self._format.has_key:
            return LastWrite()  # its records have other sizes
        return LastWrite(self._number, self._heads_at, list(map(encode_again, self._heads)))

    def _make_durable(self) -> None:
        """Cut the torn tail; what nobody vouches for may be in the page cache only (R48)."""
        tail = self._data[self.end :]
        if bytes(tail).count(0) != len(tail):
            self._recovered.torn_bytes = len(tail)
        file = self._disk.open(journal_name(self._number), writable=True)
        try:
            file.truncate(self.end)
            if self._vouched < self.end:
                file.write_at(self._vouched, self._bytes[self._vouched : self.end])
            file.sync()  # before a next file says that this one is whole
        finally:
            file.close()

    def _is_damage(self, at: int, following: int | None) -> bool:
        """Was the bad record at `at` ever durable?"""
        if not self._is_last:
            rest = bytes(self._data[at:])
            return following is not None or rest.count(0) != len(rest)
        while following is not None:
            if decode_head(self._data, following, self._format).synced > at:
                return True
            following = self._next_intact(following)
        return False

    # ---- records that are damaged

    def _take_lost(self, at: int) -> RecordHead | None:
        """The head of the damaged record; of what it said, only a block's bytes are lost."""
        head = self._head(at) or self._echoed(at)
        if head is None or at + head.size > len(self._data):
            return None
        if head.kind == ADD:
            block = head.value - 1 if head.value else self._block_of(at, head)
            if block is None:
                return None
            self._recovered.lost.append((head.key, block))
        elif head.kind == ECHO:
            pass  # what it repeats is intact, or would have needed it
        elif head.body_bytes or not START <= head.kind <= END:
            return None
        else:
            self._learn(head)
        return head

    def _head(self, at: int) -> RecordHead | None:
        """If it is intact, and only what follows it is not."""
        try:
            head = decode_head(self._data, at, self._format)
        except Damaged:
            return None
        return head if head.number == self._number else None

    def _block_of(self, at: int, head: RecordHead) -> int | None:
        """Older versions did not name it in the head."""
        body = self._data[at + head.size - head.body_bytes : at + head.size]
        try:
            header = decode_block_header(body)
        except Damaged:
            return None
        is_block = header.segment == head.segment and header.block_bytes == len(body)
        return header.block if is_block else None

    def _echoed(self, at: int) -> RecordHead | None:
        """What a later write says of the record that begins here."""
        if not self._format.has_key:
            return None
        if self._echoes is None:
            self._echoes = dict(self._find_echoes(self._number, self._bytes))
            following = journal_name(self._number + 1)
            if self._disk.exists(following):
                # It repeats the last write of this one in its first.
                data = read_whole(self._disk, following)
                self._echoes.update(self._find_echoes(self._number + 1, data))
        return self._echoes.get(at)

    def _find_echoes(self, number: int, file: bytes) -> Iterator[tuple[int, RecordHead]]:
        at: int | None = 0
        data, format = memoryview(file), self._format_of(number, file)
        while at is not None and at < len(data):
            try:
                echo, body = _parse(data, at, number, format)
            except Damaged:
                at = _find(file, format, at + 1)
                continue
            if echo.kind == ECHO:
                for of, position, head in echoed_heads(echo, body):
                    if of == head.number == self._number:
                        yield position, head
            at += echo.size

    def _next_intact(self, after: int) -> int | None:
        """Where the next record begins; without a key, a head says enough: it is not believed."""
        format = self._format
        at = _find(self._bytes, format, after + 1)
        while at is not None:
            try:
                if format.has_key:
                    _parse(self._data, at, self._number, format)
                else:
                    decode_head(self._data, at, format)
                return at
            except Damaged:
                at = _find(self._bytes, format, at + 1)
        return None

    # ---- records that are intact

    def _take(self, at: int) -> RecordHead:
        head, body = _parse(self._data, at, self._number, self._format)
        if at == 0 and head.kind != START:
            raise BadFormat("the file does not begin with its start")
        if head.kind == ADD:
            header, _ = check_block(body)
            mark = block_mark(header, body)
            self._recovered.adds.append(AddRecord(head.key, header.block, mark, body))
        else:
            self._learn(head)
        return head

    def _learn(self, head: RecordHead) -> None:
        """All that a record says but a block."""
        recovered, key, value = self._recovered, head.key, head.value
        if head.kind == FENCE:
            recovered.fences.append(FenceRecord(key.log, key.segment, value))
        elif head.kind == TRIM:
            recovered.fences.append(TrimRecord(key.log, key.segment))
        elif head.kind == LENGTH:
            known = recovered.lengths.get(key)
            if known is None or value > known.length:
                recovered.lengths[key] = LengthRecord(key, value, None)
        elif head.kind == END:
            known = recovered.lengths.get(key)  # its length stands before it, or is damaged
            if known is not None:
                recovered.lengths[key] = known._replace(end=max(value, known.end or 0))


def _parse(data: memoryview, at: int, number: int, format: Format) -> tuple[RecordHead, memoryview]:
    """Head and body of the intact record at `at`, of the file of this number. Raises Damaged."""
    head = decode_head(data, at, format)
    if head.number != number:
        raise BadFormat(f"a record of file {head.number}")
    if at + head.size > len(data):
        raise BadFormat("a record of an impossible size")
    body = data[at + head.size - head.body_bytes : at + head.size]
    if head.kind == ADD:
        header, _ = check_block(body)
        if header.segment != head.segment or header.block_bytes != len(body):
            raise BadFormat("a record of another block")
        if head.value and head.value != header.block + 1:
            raise BadFormat(f"a record of block {head.value - 1}")
    elif head.kind == ECHO:
        check_echo(head, body)
    elif body or not START <= head.kind <= END:
        raise BadFormat(f"a record of kind {head.kind}")
    return head, body


def _find(file: bytes, format: Format, start: int) -> int | None:
    """The next place that looks like the beginning of a record."""
    at = file.find(format.mark, start)
    return at if at >= 0 else None
