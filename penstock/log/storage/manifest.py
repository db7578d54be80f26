"""The manifest: which segments a log has, who owns it, and where it starts.

Owns the versioned record that every change of shape goes through: open (a new epoch), roll (seal
one, open the next), trim, move to the cold store. Law: a manifest is replaced as a whole and only
by its next version, so two owners cannot both change it; a file is removed only after a durable
manifest no longer names it (R40). The replicated log keeps the same record in ZooKeeper behind
`ManifestStore`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from crc32c import crc32c

from penstock.errors import BadFormat, ChecksumMismatch, Fenced
from penstock.ids import Epoch, Lsn, SegmentId
from penstock.log.storage.disk import Disk, read_whole, replace_file

MANIFEST_FILE = "manifest"
MANIFEST_MAGIC = 0x31464D50  # "PMF1"
_HEADER = struct.Struct("<IIQ16sQQQQI4x")
_SEGMENT = struct.Struct("<QQQQQQQBBB5x")


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment. While it is open, end_lsn, bytes and last_ms are not known here."""

    id: SegmentId
    epoch: Epoch
    base_lsn: Lsn
    end_lsn: Lsn = Lsn(0)
    bytes: int = 0
    first_ms: int = 0
    last_ms: int = 0
    sealed: bool = False
    #: A verified copy is in the cold store.
    cold: bool = False
    #: The file is on the local disk.
    local: bool = True


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that must be known to open a log. `segments` are in order; only the last may be open."""

    log_id: bytes
    version: int
    #: Epoch of the last owner.
    epoch: Epoch
    #: Reads below fail with Trimmed.
    trim_point: Lsn
    #: Length of the open segment's file at a clean stop; 0 while an owner is active. Damage below
    #: it is damage, never a torn tail.
    clean_bytes: int
    segments: tuple[SegmentInfo, ...]

    @property
    def log_mark(self) -> int:
        """Eight bytes of the id, stamped on every record, index and snapshot of this log."""
        return int.from_bytes(self.log_id[:8], "little")

    def with_segment(self, info: SegmentInfo) -> tuple[SegmentInfo, ...]:
        """The segment list with one entry replaced."""
        return tuple(info if known.id == info.id else known for known in self.segments)

    def next(
        self,
        *,
        segments: Sequence[SegmentInfo] | None = None,
        epoch: Epoch | None = None,
        trim_point: Lsn | None = None,
        clean_bytes: int = 0,
    ) -> Manifest:
        """The next version with these changes."""
        return replace(
            self,
            version=self.version + 1,
            epoch=self.epoch if epoch is None else epoch,
            trim_point=self.trim_point if trim_point is None else trim_point,
            clean_bytes=clean_bytes,
            segments=self.segments if segments is None else tuple(segments),
        )

    def check(self) -> None:
        """Raise BadFormat unless the segments are a gapless run with at most the last one open."""
        for left, right in zip(self.segments, self.segments[1:], strict=False):
            if not left.sealed or left.end_lsn != right.base_lsn or left.id >= right.id:
                raise BadFormat(f"manifest: segment {right.id} does not follow segment {left.id}")


class ManifestStore(Protocol):
    """A versioned register."""

    def read(self) -> Manifest | None:
        """The newest manifest; None if the log was never created."""

    def write(self, manifest: Manifest) -> None:
        """Replace version n - 1 by version n, durably; raises Fenced if n - 1 is not the newest."""


class FileManifestStore:
    """The manifest in one file of the log's directory."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def read(self) -> Manifest | None:
        if not self._disk.exists(MANIFEST_FILE):
            return None
        return decode_manifest(read_whole(self._disk, MANIFEST_FILE))

    def write(self, manifest: Manifest) -> None:
        current = self.read()
        newest = 0 if current is None else current.version
        if manifest.version != newest + 1:
            raise Fenced(
                f"manifest is at version {newest}, not {manifest.version - 1}: another owner"
            )
        manifest.check()
        replace_file(self._disk, MANIFEST_FILE, encode_manifest(manifest))


def encode_manifest(manifest: Manifest) -> bytes:
    content = b"".join(
        _SEGMENT.pack(
            info.id,
            info.epoch,
            info.base_lsn,
            info.end_lsn,
            info.bytes,
            info.first_ms,
            info.last_ms,
            info.sealed,
            info.cold,
            info.local,
        )
        for info in manifest.segments
    )
    header = _HEADER.pack(
        MANIFEST_MAGIC,
        0,
        manifest.version,
        manifest.log_id,
        manifest.epoch,
        manifest.trim_point,
        manifest.clean_bytes,
        _HEADER.size + len(content),
        len(manifest.segments),
    )
    crc = crc32c(content, crc32c(header[8:]))
    return header[:4] + crc.to_bytes(4, "little") + header[8:] + content


def decode_manifest(data: bytes) -> Manifest:
    if len(data) < _HEADER.size:
        raise BadFormat("manifest is cut")
    magic, crc, version, log_id, epoch, trim_point, clean_bytes, size, count = _HEADER.unpack_from(
        data
    )
    if magic != MANIFEST_MAGIC or size != len(data):
        raise BadFormat("manifest has a wrong magic number or length")
    if crc32c(memoryview(data)[8:]) != crc:
        raise ChecksumMismatch("manifest is damaged")
    if _HEADER.size + count * _SEGMENT.size != size:
        raise BadFormat("manifest has a wrong number of segments")
    segments = tuple(
        SegmentInfo(
            SegmentId(fields[0]),
            Epoch(fields[1]),
            Lsn(fields[2]),
            Lsn(fields[3]),
            *fields[4:7],
            *map(bool, fields[7:]),
        )
        for fields in _SEGMENT.iter_unpack(memoryview(data)[_HEADER.size :])
    )
    manifest = Manifest(log_id, version, Epoch(epoch), Lsn(trim_point), clean_bytes, segments)
    manifest.check()
    return manifest
