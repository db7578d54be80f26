"""Reading back what an indexed store has on disk: which data files count, and what they hold.

Owns recovery, and nothing that is written later: it finds the newest data file whose head is whole,
takes the older ones that this head names, and reads their indexes, or the files themselves where an
index is not there or not whole. An index is a cache.

Law: a commit that was made durable is found. What a crash tore is at the end of the newest file,
was never acknowledged, and is cut off. Anything else that cannot be read raises Damaged (0005).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import BadFormat, Damaged, MissingFile
from penstock.limits import KIB
from penstock.log.storage.disk import Disk, File, read_whole
from penstock.state.stores.bytes_api import NOTHING
from penstock.state.stores.commit_format import (
    COMMIT_HEAD_BYTES,
    ENTRY,
    CommitHead,
    Entries,
    FileHead,
    file_head_bytes,
    is_whole,
    read_commit_head,
    read_directory,
    read_file_head,
    read_index,
)
from penstock.state.stores.entry_index import EntryIndex

_DATA: Final = ".data"
_INDEX: Final = ".index"
_WINDOW_BYTES: Final = 128 * KIB
_OURS: Final = re.compile(r"[0-9]{12}\.(data|index(\.new)?)")


def data_name(segment: int) -> str:
    """Of a data file."""
    return f"{segment:012}{_DATA}"


def index_name(segment: int) -> str:
    """Of its index."""
    return f"{segment:012}{_INDEX}"


@dataclass(slots=True)
class Recovered:
    """What is there."""

    secret: bytes
    index: EntryIndex = field(default_factory=EntryIndex)
    cut: int = NOTHING
    #: Number of the next commit.
    number: int = 0
    #: Segments and entries, the oldest first, on their way into the index.
    directories: list[tuple[int, Entries]] = field(default_factory=list)
    #: Open data files by segment; the last one is the newest.
    files: dict[int, File] = field(default_factory=dict)
    #: How many entries each of them has, whether they count or not.
    written: dict[int, int] = field(default_factory=dict)
    #: Where the newest one ends, behind which is nothing that counts; and how many commits it has.
    end: int = 0
    commits: int = 0
    #: Files that count no more, or were never whole.
    garbage: list[str] = field(default_factory=list)


def recover(disk: Disk, *, writes: bool) -> Recovered | None:
    """None if there is nothing: no commit was ever durable.

    Unless the caller writes, nothing on disk is touched: somebody else may be writing.
    """
    names = disk.names()
    present = sorted(int(name[: -len(_DATA)]) for name in names if name.endswith(_DATA))
    torn: list[str] = []
    head = None
    while present and head is None:
        head = _head_of_newest(disk, present)
        if head is None:
            torn.append(data_name(present.pop()))
    if head is None:
        if writes:
            for name in torn:
                disk.remove(name)
        return None
    secret, newest, start = head
    missing = sorted({*newest.older} - {*present})
    if missing:
        raise MissingFile(f"data files {missing} are not there")
    found = Recovered(secret)
    kept = {data_name(segment) for segment in (*newest.older, newest.segment)}
    kept |= {index_name(segment) for segment in newest.older}
    found.garbage = sorted(name for name in names if _OURS.fullmatch(name) and name not in kept)
    before = None
    for segment in newest.older:
        before = _take_sealed(disk, found, segment, before)
    _check_follows(newest, before)
    found.cut, found.number = newest.cut, newest.first
    found.files[newest.segment] = disk.open(data_name(newest.segment), writable=writes)
    found.end = _take_commits(found, newest.segment, start, is_newest=True)
    found.index.load(found.directories)
    found.directories.clear()
    return found


def _head_of_newest(disk: Disk, present: list[int]) -> tuple[bytes, FileHead, int] | None:
    """None if a crash tore it: it is durable before there is a commit behind it."""
    data = read_whole(disk, data_name(present[-1]))
    try:
        secret, head, size = read_file_head(data)
    except Damaged:
        # Then nothing but the head itself can be in it, and this names no more than these files.
        if len(data.rstrip(b"\0")) <= file_head_bytes(len(present) - 1):
            return None
        raise
    if head.segment != present[-1]:
        raise BadFormat(f"data file {present[-1]} says that it is {head.segment}")
    return secret, head, size


def _check_follows(head: FileHead, before: tuple[int, int] | None) -> None:
    """Two files in a row have all commits; of files between which one was dropped nobody knows."""
    if before is not None and before[0] + 1 == head.segment and before[1] != head.first:
        raise BadFormat(f"data file {before[0]} does not have all of its commits")


def _take_sealed(
    disk: Disk, found: Recovered, segment: int, before: tuple[int, int] | None
) -> tuple[int, int]:
    """Its entries; it and the number of the first commit after it."""
    found.files[segment] = file = disk.open(data_name(segment))
    try:
        head, entries = read_index(read_whole(disk, index_name(segment)), found.secret)
        if head.segment != segment:
            raise BadFormat(f"the index of data file {segment} is that of {head.segment}")
    except (Damaged, FileNotFoundError):
        secret, own, start = read_file_head(file.read_at(0, file.size))
        if secret != found.secret or own.segment != segment:
            raise BadFormat(f"data file {segment} is none of this store") from None
        _check_follows(own, before)
        found.cut, found.number = own.cut, own.first
        _take_commits(found, segment, start, is_newest=False)
        return segment, found.number
    found.directories.append((segment, entries))
    found.written[segment] = head.written
    return segment, head.following


def _take_commits(found: Recovered, segment: int, start: int, *, is_newest: bool) -> int:
    """Take in the commits of a data file; where they end."""
    file = found.files[segment]
    commits = list(_commits(file, start, found, is_newest))
    if is_newest and commits and not _is_whole(file, *commits[-1]):
        commits.pop()  # its head came to the disk before its content did
    found.written[segment], found.commits = 0, len(commits)
    end = start
    for at, head, entries in commits:
        if head.base is None:
            found.directories.clear()
        found.directories.append((segment, entries))
        found.written[segment] += head.entries
        found.cut, found.number, end = head.cut, head.number + 1, at + head.size
    return end


def _commits(
    file: File, at: int, found: Recovered, is_newest: bool
) -> Iterator[tuple[int, CommitHead, Entries]]:
    number, cut, window = found.number, found.cut, _Window(file)
    while at < file.size:
        try:
            head = read_commit_head(window.read(at, COMMIT_HEAD_BYTES), found.secret)
            if head.number != number or head.base not in (None, cut) or head.cut <= cut:
                raise BadFormat(f"commit {number} is number {head.number} from {head.base}")
            if at + head.size > file.size:
                raise BadFormat(f"commit {number} ends behind its file")
            directory = window.read(at + COMMIT_HEAD_BYTES, head.entries * ENTRY.itemsize)
            entries = read_directory(directory, head, at)
        except Damaged:
            if not is_newest or _goes_on(file, at, number, found.secret):
                raise
            return
        yield at, head, entries
        number, cut, at = number + 1, head.cut, at + head.size


class _Window:
    """Reads small things from near each other at once."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._start = 0
        self._data = b""

    def read(self, at: int, size: int) -> memoryview:
        if not self._start <= at <= at + size <= self._start + len(self._data):
            self._start, self._data = at, self._file.read_at(at, max(size, _WINDOW_BYTES))
        return memoryview(self._data)[at - self._start :][:size]


def _goes_on(file: File, at: int, number: int, secret: bytes) -> bool:
    """Whether there is a later commit: then this one was durable, and is damaged, not torn."""
    data = file.read_at(at, file.size - at)
    place = 0
    while (place := data.find(secret, place + 1)) >= 0:
        try:
            if read_commit_head(data[place : place + COMMIT_HEAD_BYTES], secret).number > number:
                return True
        except Damaged:
            continue
    return False


def _is_whole(file: File, at: int, head: CommitHead, entries: Entries) -> bool:
    start = at + head.size - head.payload
    return is_whole(memoryview(file.read_at(start, head.payload)), entries, start)
