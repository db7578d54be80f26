"""Frames: how messages are cut out of a byte stream.

Owns the 20-byte frame header, drawn in docs/formats.md, and the assembly of frames from pieces of
any size. A frame has a small *head* (the message, under the frame's CRC) and a *body* (records,
each under their own CRCs). Knows no sockets. Law: feeding the same bytes in any pieces gives the
same frames; a length is checked before a byte is allocated for it; whatever is wrong raises
BadFormat or TooLarge.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import BadFormat, ChecksumMismatch, TooLarge
from penstock.limits import FRAME_BODY_BYTES_MAX, FRAME_HEAD_BYTES_MAX, KIB, PREAUTH_FRAME_BYTES_MAX

FRAME_MAGIC = 0x4B50  # "PK"
FRAME_VERSION = 1
_HEADER = struct.Struct("<HBBIIII")  # magic, version, kind, request, head bytes, body bytes, crc
_FIELDS = struct.Struct("<HBBIII")  # the header without its crc
FRAME_HEADER_BYTES = _HEADER.size
assert FRAME_HEADER_BYTES == 20

#: Receive buffer; frames larger than this get a buffer of their own, filled without another copy.
_BUFFER_BYTES = 64 * KIB

#: kind, request, head bytes, body bytes, crc
_Header = tuple[int, int, int, int, int]


class Frame(NamedTuple):
    """One frame. `request` pairs an answer with its question; deliveries use 0."""

    kind: int
    request: int
    head: bytes
    body: memoryview


def encode_frame(kind: int, request: int, head: bytes, body_bytes: int = 0) -> bytes:
    """Header and head; the caller sends `body_bytes` bytes of body right behind."""
    fields = _FIELDS.pack(FRAME_MAGIC, FRAME_VERSION, kind, request, len(head), body_bytes)
    return fields + crc32c(head, crc32c(fields)).to_bytes(4, "little") + head


class FrameReader:
    """Assembles frames; `get_buffer` and `buffer_updated` are asyncio's BufferedProtocol calls."""

    def __init__(self, *, authenticated: bool) -> None:
        self._authenticated = authenticated
        self._buffer = bytearray(PREAUTH_FRAME_BYTES_MAX if not authenticated else _BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        #: A large frame's own buffer (head and body), how much of it is there, and its header.
        self._large: bytearray | None = None
        self._large_have = 0
        self._large_header: _Header = (0, 0, 0, 0, 0)

    def allow_large(self) -> None:
        """The peer has shown its token: frames up to the full limits from now on."""
        self._authenticated = True

    @property
    def pending_bytes(self) -> int:
        """Bytes allocated for a frame that is not complete yet."""
        return len(self._large) if self._large is not None else self._end - self._start

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._large is not None:
            return memoryview(self._large)[self._large_have :]
        if self._start:
            # What is left is shorter than one header or one small frame: cheap to move.
            left = self._end - self._start
            self._view[:left] = self._view[self._start : self._end]
            self._start, self._end = 0, left
        if self._end == len(self._buffer) or (
            self._authenticated and len(self._buffer) < _BUFFER_BYTES
        ):
            grown = bytearray(_BUFFER_BYTES)
            grown[: self._end] = self._view[: self._end]
            self._buffer, self._view = grown, memoryview(grown)
        return self._view[self._end :]

    def peek(self, size: int) -> bytes:
        """What has arrived, with the `size` bytes that `buffer_updated` was not told of yet."""
        return bytes(self._view[self._start : self._end + size])

    def skip(self) -> None:
        """Forget all that has arrived, the peeked bytes too."""
        self._start = self._end = 0

    def buffer_updated(self, size: int) -> list[Frame]:
        """`size` bytes were put into the last buffer; returns the frames that are now complete."""
        if self._large is not None:
            self._large_have += size
            if self._large_have < len(self._large):
                return []
            frame = self._finish(memoryview(self._large), self._large_header)
            self._large = None
            return [frame]
        self._end += size
        frames: list[Frame] = []
        while self._end - self._start >= FRAME_HEADER_BYTES:
            header = self._parse_header()
            total = header[2] + header[3]
            at = self._start + FRAME_HEADER_BYTES
            have = self._end - at
            if have >= total:
                data = memoryview(bytes(self._view[at : at + total]))
                frames.append(self._finish(data, header))
                self._start = at + total
                continue
            if FRAME_HEADER_BYTES + total > len(self._buffer):
                self._large = bytearray(total)
                self._large[:have] = self._view[at : self._end]
                self._large_have = have
                self._large_header = header
                self._start = self._end = 0
            break
        return frames

    def _parse_header(self) -> _Header:
        magic, version, kind, request, head, body, crc = _HEADER.unpack_from(
            self._buffer, self._start
        )
        if magic != FRAME_MAGIC:
            raise BadFormat(f"not a Penstock frame: it starts with {magic:#06x}")
        if version != FRAME_VERSION:
            raise BadFormat(f"frame version {version}; this side speaks {FRAME_VERSION}")
        if not self._authenticated and head + body > PREAUTH_FRAME_BYTES_MAX - FRAME_HEADER_BYTES:
            raise TooLarge(f"frame of {head + body} bytes before a token was shown")
        if head > FRAME_HEAD_BYTES_MAX or body > FRAME_BODY_BYTES_MAX:
            raise TooLarge(f"frame of {head} + {body} bytes is beyond the limit")
        return kind, request, head, body, crc

    def _finish(self, data: memoryview, header: _Header) -> Frame:
        kind, request, head_bytes, body_bytes, crc = header
        head = bytes(data[:head_bytes])
        fields = _FIELDS.pack(FRAME_MAGIC, FRAME_VERSION, kind, request, head_bytes, body_bytes)
        if crc32c(head, crc32c(fields)) != crc:
            raise ChecksumMismatch("frame header is damaged")
        return Frame(kind, request, head, data[head_bytes:])
