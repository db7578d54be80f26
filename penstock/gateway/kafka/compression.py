"""Compressed records unfolded, up to a bound. Pure.

Law: no more than `bytes_max` is ever made of them, whatever they claim; more raises TooLarge, and
what cannot be unfolded BadFormat.
"""

from __future__ import annotations

import zlib
from typing import Final

import pyarrow as pa

from penstock.errors import BadFormat, TooLarge
from penstock.gateway.kafka.codec import Reader

#: What the lowest three bits of a batch's attributes say.
NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

#: Snappy as Java writes it: this, two versions, then blocks with their lengths.
_XERIAL: Final = b"\x82SNAPPY\x00"


def unfold(data: bytes | memoryview, kind: int, bytes_max: int) -> bytes:
    if kind == NONE:
        return bytes(data)
    try:
        if kind == GZIP:
            found = _gunzip(bytes(data), bytes_max)
        elif kind == SNAPPY:
            found = _unsnap(bytes(data), bytes_max)
        elif kind in (LZ4, ZSTD):
            source = pa.BufferReader(pa.py_buffer(data))
            with pa.CompressedInputStream(source, "lz4" if kind == LZ4 else "zstd") as stream:
                found = stream.read(bytes_max + 1)
        else:
            raise BadFormat(f"compression {kind}")
    except (zlib.error, pa.ArrowException, OSError, ValueError) as error:
        raise BadFormat(f"records that cannot be unfolded: {error}") from None
    if len(found) > bytes_max:
        raise TooLarge(f"records unfold to more than {bytes_max} bytes")
    return found


def _gunzip(data: bytes, bytes_max: int) -> bytes:
    machine = zlib.decompressobj(31)
    found = machine.decompress(data, bytes_max + 1)
    if len(found) <= bytes_max and not machine.eof:
        raise BadFormat("gzip that has no end")
    return found


def _unsnap(data: bytes, bytes_max: int) -> bytes:
    if not data.startswith(_XERIAL):
        return _unsnap_block(data, bytes_max)
    reader = Reader(data)
    reader.take(16)
    blocks: list[bytes] = []
    left = bytes_max
    while reader.left:
        blocks.append(_unsnap_block(bytes(reader.take(reader.number("i32"))), left))
        left -= len(blocks[-1])
    return b"".join(blocks)


def _unsnap_block(data: bytes, bytes_max: int) -> bytes:
    size = Reader(data).unsigned()
    if size > bytes_max:
        raise TooLarge(f"records unfold to more than {bytes_max} bytes")
    found: bytes = pa.Codec("snappy").decompress(data, decompressed_size=size, asbytes=True)
    return found
