"""The bytes of an indexed store: commits in data files, and the indexes of data files. Pure.

    data file  :=  file head | commit | commit | … | zeros
    commit     :=  head | directory: one entry per key | keys and values, in that order
    index file :=  head | entries of the data file that are still the newest of their key
    entry      :=  digest of the key | its first four bytes | place | sizes | CRC of key and value

All numbers are little-endian. Every head has the store's secret, 8 random bytes, so that no value
can look like a commit, and ends in its own CRC-32C. A directory is an array of one NumPy type: an
index of a million keys is made without looking at them one by one.

Law: what `read_*` returns is what `write_*` was given, or they raise BadFormat or ChecksumMismatch.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from penstock.errors import BadFormat, ChecksumMismatch

SECRET_BYTES: Final = 8
DIGEST_BYTES: Final = 16
#: The size of a value that is none: the key was deleted.
DELETED: Final = 2**32 - 1
ENTRY: Final = np.dtype(
    [
        ("low", "<u8"),  # the digest, in two halves
        ("high", "<u8"),
        ("prefix", "<u4"),  # the key's first four bytes, as a number that sorts as they do
        ("at", "<u4"),  # in a commit: after its directory; in an index: in the data file
        ("key", "<u4"),
        ("value", "<u4"),
        ("crc", "<u4"),
    ]
)
Entries = npt.NDArray[np.void]
_U32: Final = struct.Struct("<I")

#: magic, secret, segment, number of its first commit, cut before it, older segments, CRC of them
_FILE: Final = struct.Struct("<8s8sQQQII")
_FILE_MAGIC: Final = b"PSTKseg1"
#: magic, secret, segment, next commit, cut, entries written, entries, CRC
_INDEX: Final = struct.Struct("<8s8sQQQQQI")
_INDEX_MAGIC: Final = b"PSTKidx1"
#: secret, number, base, cut, bytes of keys and values, entries, CRC of the directory
_COMMIT: Final = struct.Struct("<8sQQQQII")
COMMIT_HEAD_BYTES: Final = _COMMIT.size + 4
#: The base of a commit that begins anew.
_ANEW: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class FileHead:
    """How a data file begins."""

    segment: int
    #: Number of its first commit.
    first: int
    #: The store's cut before that.
    cut: int
    #: Older segments that are needed beside it.
    older: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IndexHead:
    """What an index says of its data file."""

    segment: int
    #: Number of the first commit after it.
    following: int
    cut: int
    #: Entries in the data file, whether they count or not.
    written: int


@dataclass(frozen=True, slots=True)
class CommitHead:
    """One commit, without its content."""

    number: int
    base: int | None
    cut: int
    payload: int
    entries: int
    directory_crc: int

    @property
    def size(self) -> int:
        """Of the whole commit."""
        return COMMIT_HEAD_BYTES + self.entries * ENTRY.itemsize + self.payload


def digest(key: bytes, secret: bytes) -> bytes:
    """What the index knows of a key. Nobody who does not have the secret can make two alike."""
    return blake2b(key, digest_size=DIGEST_BYTES, key=secret).digest()


def make_entries(
    puts: Mapping[bytes, bytes], deletes: Collection[bytes], digests: Sequence[bytes]
) -> tuple[Entries, bytes]:
    """The directory of a commit, and its keys and values; the digests are of puts, then deletes."""
    # A loop over rows: keys and values come as Python's bytes, and each has a CRC of its own.
    rows = [key + value for key, value in puts.items()]
    rows += deletes
    keys = [*puts, *deletes]
    entries = np.zeros(len(rows), ENTRY)
    halves = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
    entries["low"], entries["high"] = halves[:, 0], halves[:, 1]
    starts = b"".join([key[:4] if len(key) > 3 else key.ljust(4, b"\0") for key in keys])
    entries["prefix"] = np.frombuffer(starts, ">u4")
    sizes = np.fromiter(map(len, rows), np.int64, len(rows))
    entries["at"][1:] = np.cumsum(sizes[:-1])
    entries["key"] = np.fromiter(map(len, keys), np.int64, len(rows))
    entries["value"] = sizes - entries["key"]
    entries["value"][len(puts) :] = DELETED
    entries["crc"] = np.fromiter(map(crc32c, rows), np.int64, len(rows))
    return entries, b"".join(rows)


def write_commit(
    secret: bytes, number: int, base: int | None, cut: int, entries: Entries, payload: bytes
) -> list[bytes]:
    """The pieces of a commit."""
    directory = entries.tobytes()
    stored = _ANEW if base is None else base
    head = _COMMIT.pack(secret, number, stored, cut, len(payload), len(entries), crc32c(directory))
    return [_sealed(head), directory, payload]


def read_commit_head(data: bytes | memoryview, secret: bytes) -> CommitHead:
    """Of a commit that begins so."""
    head = _unsealed(data[:COMMIT_HEAD_BYTES], COMMIT_HEAD_BYTES, "commit")
    found, number, base, cut, payload, entries, directory_crc = _COMMIT.unpack(head)
    if found != secret:
        raise BadFormat("a commit of another store")
    return CommitHead(number, None if base == _ANEW else base, cut, payload, entries, directory_crc)


def read_directory(data: bytes | memoryview, head: CommitHead, at: int) -> Entries:
    """The entries of the commit whose directory this is; the commit begins at `at`."""
    if len(data) != head.entries * ENTRY.itemsize or crc32c(data) != head.directory_crc:
        raise ChecksumMismatch(f"directory of commit {head.number}")
    entries = np.frombuffer(data, ENTRY).copy()
    entries["at"] += at + COMMIT_HEAD_BYTES + len(data)
    return entries


def is_whole(data: memoryview, entries: Entries, start: int) -> bool:
    """Whether keys and values are what the entries of a data file say, from `start` of it on."""
    for _, _, _, at, key, value, crc in entries.tolist():  # of one commit, the last of a file
        end = at + key + (0 if value == DELETED else value) - start
        if end > len(data) or crc32c(data[at - start : end]) != crc:
            return False
    return True


def checked(
    data: bytes, entry: tuple[int, ...], start: int, shown: str
) -> tuple[bytes, bytes | None]:
    """Key and value of an entry of a data file, whose bytes from `start` on these are."""
    _, _, _, at, key, value, crc = entry
    row = data[at - start : at - start + key + (0 if value == DELETED else value)]
    if crc32c(row) != crc:
        raise ChecksumMismatch(f"{shown}: an entry of {key} and {value} bytes at {at}")
    return row[:key], None if value == DELETED else row[key:]


def file_head_bytes(older: int) -> int:
    """Of a head that names so many segments."""
    return _FILE.size + _U32.size + 8 * older


def write_file_head(secret: bytes, head: FileHead) -> bytes:
    """The first bytes of a data file."""
    older = np.array(head.older, "<u8").tobytes()
    fixed = _FILE.pack(
        _FILE_MAGIC, secret, head.segment, head.first, head.cut, len(head.older), crc32c(older)
    )
    return _sealed(fixed) + older


def read_file_head(data: bytes) -> tuple[bytes, FileHead, int]:
    """The store's secret, the head, and its size."""
    end = _FILE.size + 4
    magic, secret, segment, first, cut, count, crc = _FILE.unpack(
        _unsealed(data[:end], end, "data file")
    )
    older = data[end : end + 8 * count]
    if magic != _FILE_MAGIC:
        raise BadFormat(f"a data file that begins with {magic!r}")
    if len(older) != 8 * count or crc32c(older) != crc:
        raise ChecksumMismatch("segments that a data file names")
    named = tuple(np.frombuffer(older, "<u8").tolist())
    return secret, FileHead(segment, first, cut, named), end + len(older)


def write_index(secret: bytes, head: IndexHead, entries: Entries) -> list[bytes]:
    """The pieces of an index file."""
    body = entries.tobytes()
    fixed = _INDEX.pack(
        *(_INDEX_MAGIC, secret, head.segment, head.following, head.cut, head.written),
        *(len(entries), crc32c(body)),
    )
    return [_sealed(fixed), body]


def read_index(data: bytes, secret: bytes) -> tuple[IndexHead, Entries]:
    """The inverse of write_index."""
    end = _INDEX.size + 4
    fixed = _INDEX.unpack(_unsealed(data[:end], end, "index"))
    magic, found, segment, following, cut, written, count, crc = fixed
    body = memoryview(data)[end:]
    if magic != _INDEX_MAGIC or found != secret or len(body) != count * ENTRY.itemsize:
        raise BadFormat("not an index of this store")
    if crc32c(body) != crc:
        raise ChecksumMismatch("entries of an index")
    return IndexHead(segment, following, cut, written), np.frombuffer(body, ENTRY)


def _sealed(head: bytes) -> bytes:
    return head + _U32.pack(crc32c(head))


def _unsealed(data: bytes | memoryview, size: int, what: str) -> bytes:
    if len(data) != size:
        raise BadFormat(f"a {what} of {len(data)} bytes")
    head = bytes(data[:-4])
    if _U32.unpack(data[-4:])[0] != crc32c(head):
        raise ChecksumMismatch(f"head of a {what}")
    return head
