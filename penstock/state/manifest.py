"""Which increments make the state at a marker: the bytes of a manifest. Pure.

    magic "PCKM" · version u16 · zero u16 · body_bytes u32 · crc u32 of the body · body: JSON

Law: decode_manifest(encode_manifest(m)) == m; any other bytes raise Damaged. Its increments follow
each other without a gap, the first goes on from nothing, and the last ends at its marker.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import Any, Final

from crc32c import crc32c

from penstock.errors import BadFormat, ChecksumMismatch

VERSION: Final = 1
MAGIC: Final = b"PCKM"
_HEAD: Final = struct.Struct("<4sHHII")


@dataclass(frozen=True, slots=True)
class IncrementFile:
    """A file of increments, or a whole checkpoint that others go on from."""

    #: Relative to the store.
    path: str
    base_lsn: int | None
    #: The marker whose state it leads to.
    marker_lsn: int
    instance: int
    bytes: int
    #: The seal of checkpoint_format.py.
    crc: int
    rows: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint."""

    task: str
    marker_lsn: int
    instance: int
    #: Oldest first.
    increments: tuple[IncrementFile, ...]


def encode_manifest(manifest: Manifest) -> bytes:
    body = json.dumps(asdict(manifest), separators=(",", ":")).encode()
    return _HEAD.pack(MAGIC, VERSION, 0, len(body), crc32c(body)) + body


def decode_manifest(data: bytes) -> Manifest:
    """Raises BadFormat or ChecksumMismatch for anything that encode_manifest did not write."""
    try:
        magic, version, zero, size, crc = _HEAD.unpack_from(data)
        body = data[_HEAD.size :]
        if magic != MAGIC or zero or len(body) != size:
            raise BadFormat("bytes that are no manifest of a checkpoint")
        if version != VERSION:
            raise BadFormat(f"a manifest of version {version}, this program reads {VERSION}")
        if crc32c(body) != crc:
            raise ChecksumMismatch("the manifest of a checkpoint")
        return _decode(json.loads(body))
    except (ValueError, LookupError, TypeError, struct.error) as error:
        raise BadFormat(f"not a manifest of a checkpoint: {error}") from error


def _decode(values: dict[str, Any]) -> Manifest:
    lines = tuple(IncrementFile(**line) for line in values["increments"])
    found = Manifest(values["task"], values["marker_lsn"], values["instance"], lines)
    at: int | None = None
    for line in lines:
        if line.base_lsn != at:
            raise BadFormat(
                f"{line.path} goes on from {line.base_lsn}, what is before ends at {at}"
            )
        at = line.marker_lsn
    if at != found.marker_lsn:
        raise BadFormat(f"increments end at {at}, the checkpoint is of {found.marker_lsn}")
    return found
