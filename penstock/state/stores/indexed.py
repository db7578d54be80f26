"""Indexed append-only files: what is written is appended, and an index in memory says where it is.

    <directory>/000000000007.data      commits, one after the other; the newest file is written to
                000000000006.index     entries of a data file that is full, for the next open

A commit is one write and one fsync, whatever it holds. A full data file gets an index, and the next
one begins; its head names the older ones that are still needed. Garbage is collected by commits:
each takes along some entries of files of which most is dead, at most twice as many bytes as it has
itself (S4 3.4 waits until nothing in a file is needed, which may be never).

Law: what has no durable head naming it is not needed, so a data file is removed only after the next
one's head is durable. Deletions are kept while an older file may hold what they delete.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np

from penstock.errors import BadFormat, Damaged, Unavailable
from penstock.limits import KIB, MIB
from penstock.log.storage.disk import Disk
from penstock.state.stores.bytes_api import check_commit, check_cut
from penstock.state.stores.collecting import Census, count_by_segment, take_census
from penstock.state.stores.commit_format import (
    DELETED,
    SECRET_BYTES,
    FileHead,
    IndexHead,
    checked,
    digest,
    make_entries,
    write_commit,
    write_file_head,
    write_index,
)
from penstock.state.stores.entry_index import Rows
from penstock.state.stores.segments import Recovered, data_name, index_name, recover

logger = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 64 * MIB
#: Commits of one data file: they are read one by one when the newest file is opened again.
SEGMENT_COMMITS: Final = 16_384
#: What a commit takes along of old files, beyond twice its own bytes; and at most.
MOVED_BYTES_MIN: Final = 4 * KIB
MOVED_BYTES_MAX: Final = 64 * MIB
#: Neighbours are read together, up to so many bytes, and over gaps of so many.
_READ_BYTES: Final = 1 * MIB
_GAP_BYTES: Final = 4 * KIB


class IndexedEngine:
    """An Engine; see bytes_api.py."""

    def __init__(
        self,
        disk: Disk,
        *,
        shown: str = "indexed files",
        segment_bytes: int = SEGMENT_BYTES,
        segment_commits: int = SEGMENT_COMMITS,
        secret: bytes | None = None,
        writes: bool = True,
    ) -> None:
        """Raises Damaged if something that was durable cannot be read. `secret`: for tests.

        Who does not write has what was there at this moment, whoever writes meanwhile.
        """
        self._disk = disk
        self._shown = shown
        self._segment_bytes = segment_bytes
        self._segment_commits = segment_commits
        #: Digests of entries that are to leave old data files.
        self._leaving: deque[tuple[int, bytes]] = deque()
        #: Why nothing can be committed any more: what is on disk is not known.
        self._broken: OSError | None = None
        with self._reaching():
            found = recover(disk, writes=writes)
            self._state = found or Recovered(secret or secrets.token_bytes(SECRET_BYTES))
            if found is None and writes:
                self._begin_file(0, ())
            elif found is not None and writes:
                self._tidy(found)
        found = self._state
        self._segment = max(found.files, default=0)
        self._commits = found.commits

    def _tidy(self, found: Recovered) -> None:
        """Nothing that a crash left is written behind; what was read is durable."""
        newest = found.files[max(found.files)]
        newest.truncate(found.end)
        newest.sync()
        for name in found.garbage:
            self._disk.remove(name)

    def cut(self) -> int:
        return self._state.cut

    def commit(
        self,
        puts: Mapping[bytes, bytes],
        deletes: Collection[bytes] = (),
        *,
        base: int | None,
        cut: int,
    ) -> None:
        check_commit(puts, deletes, base, cut)
        check_cut(self._state.cut, base, cut, self._shown)
        if self._broken is not None:
            raise Unavailable(f"{self._shown}: after {self._broken}, it must be opened again")
        with self._reaching(writing=True):
            if (base is None and self._commits) or self._is_full():
                self._roll()
            if base is None:
                self._leaving.clear()
            moved, struck = self._take_along(puts, deletes)
            self._append({**puts, **moved} if moved else puts, [*deletes, *struck], base, cut)
            if base is None and len(self._state.files) > 1:
                self._roll()  # nothing in the older ones counts

    def _is_full(self) -> bool:
        file = self._state.files[self._segment]
        return file.size >= self._segment_bytes or self._commits >= self._segment_commits

    def _append(
        self, puts: Mapping[bytes, bytes], deletes: list[bytes], base: int | None, cut: int
    ) -> None:
        state = self._state
        digests = [digest(key, state.secret) for key in puts]
        digests += [digest(key, state.secret) for key in deletes]
        entries, payload = make_entries(puts, deletes, digests)
        pieces = write_commit(state.secret, state.number, base, cut, entries, payload)
        file = state.files[self._segment]
        entries["at"] += file.size + len(pieces[0]) + len(pieces[1])
        file.append(pieces)
        file.sync()
        if base is None:
            state.index.clear()
        state.index.add(self._segment, entries, digests)
        state.written[self._segment] += len(entries)
        state.cut, state.number = cut, state.number + 1
        self._commits += 1

    # -- reading

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        index, secret = self._state.index, self._state.secret
        rows = index.find([digest(key, secret) for key in keys])
        found: list[bytes | None] = [None] * len(keys)
        there = np.flatnonzero(rows >= 0)
        with self._reaching():
            for place, (key, value) in zip(there.tolist(), self._read(rows[there]), strict=True):
                if key != keys[place]:
                    raise BadFormat(f"{self._shown}: an entry of another key")
                found[place] = value
        return found

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        rows = self._state.index.starting(prefix[:4])
        with self._reaching():
            for key, value in self._read(rows):
                if key.startswith(prefix):
                    assert value is not None
                    yield key, value

    def _read(self, rows: Rows) -> Iterator[tuple[bytes, bytes | None]]:
        """Keys and values of these rows; None of those that are deleted. Neighbours together."""
        entries = self._state.index.entries(rows)
        segments = self._state.index.segments(rows).tolist()
        places = list(zip(segments, entries.tolist(), strict=True))
        first = 0
        while first < len(places):
            segment, (_, _, _, start, key, value, _) = places[first]
            last, end = first, start + key + (0 if value == DELETED else value)
            while last + 1 < len(places):
                other, (_, _, _, at, key, value, _) = places[last + 1]
                behind = at + key + (0 if value == DELETED else value)
                if other != segment or not end <= at <= end + _GAP_BYTES:
                    break
                if behind - start > _READ_BYTES:
                    break
                last, end = last + 1, behind
            data = self._state.files[segment].read_at(start, end - start)
            for _, entry in places[first : last + 1]:
                yield checked(data, entry, start, f"{self._shown}: {data_name(segment)}")
            first = last + 1

    # -- files

    def _begin_file(self, segment: int, older: Sequence[int]) -> None:
        state = self._state
        file = self._disk.create(data_name(segment))
        head = FileHead(segment, state.number, state.cut, tuple(older))
        file.append([write_file_head(state.secret, head)])
        file.sync()
        self._disk.sync_dir()  # its name, before there is a commit in it
        state.files[segment] = file
        state.written[segment] = 0

    def _roll(self) -> None:
        """The newest data file is full: seal it, and begin the next one."""
        state = self._state
        sealed = state.files[self._segment]
        sealed.truncate(sealed.size)
        sealed.sync()
        census = take_census(state.index, state.written, self._segment)
        self._write_index(census)
        if len(census.spent):
            for each, count in count_by_segment(state.index.segments(census.spent)).items():
                state.written[each] -= count
            state.index.drop(census.spent)
        needed = [segment for segment in state.files if segment not in census.empty]
        self._begin_file(self._segment + 1, needed)
        self._segment += 1
        self._commits = 0
        for segment in census.empty:
            state.files.pop(segment).close()
            del state.written[segment]
            for name in (data_name(segment), index_name(segment)):
                if self._disk.exists(name):
                    self._disk.remove(name)
        self._leaving = deque(census.leaving)
        if state.index.dead > len(state.index.live()):
            state.index.compact()

    def _write_index(self, census: Census) -> None:
        """So that the next open need not read all heads of the data file."""
        state, segment = self._state, self._segment
        head = IndexHead(segment, state.number, state.cut, state.written[segment])
        name = index_name(segment)
        file = self._disk.create(name + ".new")
        file.append(write_index(state.secret, head, census.newest))
        file.truncate(file.size)
        file.sync()
        file.close()
        self._disk.rename(name + ".new", name)  # durable with the next data file's name

    def _take_along(
        self, puts: Mapping[bytes, bytes], deletes: Collection[bytes]
    ) -> tuple[dict[bytes, bytes], list[bytes]]:
        """Puts and deletes of old files, as they are, so that those files can go."""
        moved: dict[bytes, bytes] = {}
        struck: list[bytes] = []
        own = sum(map(len, puts)) + sum(map(len, puts.values()))
        left = min(MOVED_BYTES_MAX, MOVED_BYTES_MIN + 2 * own)
        gone = set(deletes)
        while left > 0 and self._leaving:
            segment, one = self._leaving.popleft()
            row = self._state.index.find([one])
            if row[0] < 0 or self._state.index.segments(row)[0] != segment:
                continue  # a later commit has put or deleted it
            try:
                ((key, value),) = self._read(row)
            except Damaged as error:
                logger.warning("%s: what is damaged stays where it is: %s", self._shown, error)
                continue
            if key in puts or key in gone:
                continue
            left -= len(key) + len(value or b"")
            if value is None:
                struck.append(key)
            else:
                moved[key] = value
        return moved, struck

    def close(self) -> None:
        for file in self._state.files.values():
            file.close()

    @contextmanager
    def _reaching(self, *, writing: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if writing:
                self._broken = error
            raise Unavailable(f"{self._shown}: {error}") from error
