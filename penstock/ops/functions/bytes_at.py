"""Bytes of many texts at once: eight at a place, compared and classified by NumPy.

A window is the eight bytes from a place on, as one little-endian number. One gather then looks at
eight bytes of every text, which is what makes checks over a whole batch cheap.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ops.functions.alignment import Ints, Mask

Windows = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
_WIDTH: Final = 8
_HIGH: Final = 0xF0F0F0F0F0F0F0F0
_DIGIT: Final = 0x3030303030303030
_CARRY: Final = 0x0606060606060606


def text_bytes(texts: pa.Array) -> tuple[Bytes, Ints]:
    """The bytes of all texts, one after the other, and where each begins; then where all end."""
    raw = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1]
    offsets = raw.astype(np.int64)
    start, end = int(offsets[0]), int(offsets[-1])
    buffer = texts.buffers()[2]
    data = np.zeros(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)[start:end]
    return data, offsets - start


def windows_of(data: Bytes, beyond: int = 0) -> Windows:
    """The window at each place, and at so many places beyond the end, where zeros follow."""
    padded = np.concatenate([data, np.zeros(beyond + 2 * _WIDTH, np.uint8)])
    count = len(padded) - _WIDTH + 1
    return np.ndarray((count,), np.dtype("<u8"), padded.data, strides=(1,))


def number_of(text: bytes) -> np.uint64:
    """Up to eight bytes as a window has them."""
    return np.uint64(int.from_bytes(text, "little"))


def mask_of(length: int) -> np.uint64:
    """All ones where the first bytes of a window are."""
    return np.uint64((1 << (8 * length)) - 1)


def stands_at(windows: Windows, places: Ints, text: bytes) -> Mask:
    """Where the text stands at its place."""
    length = len(text)
    if length < _WIDTH:
        return np.asarray((windows[places] & mask_of(length)) == number_of(text))
    found = np.ones(len(places), bool)
    for start in [*range(0, length - _WIDTH, _WIDTH), length - _WIDTH]:
        found &= windows[places + start] == number_of(text[start : start + _WIDTH])
    return found


class Form:
    """Eight bytes of which some are digits and the others known, such as `2024-01-`."""

    def __init__(self, form: bytes) -> None:
        digits = bytes(0xFF if byte == ord("0") else 0 for byte in form)
        fixed = bytes(0xFF if byte not in b"0?" else 0 for byte in form)
        self._digits = number_of(digits)
        self._fixed = number_of(fixed)
        self._known = number_of(form) & self._fixed

    def fits(self, window: Windows) -> Mask:
        """Which windows have this form: 0 is any digit, ? anything, all else itself."""
        known = (window & self._fixed) == self._known
        return np.asarray(known & are_digits(window, self._digits))


def are_digits(window: Windows, where: Any) -> Mask:
    """Whether the bytes of each window where the mask has ones are digits."""
    high, digit, carry = np.uint64(_HIGH), np.uint64(_DIGIT), np.uint64(_CARRY)
    wanted = digit & where
    low = (window & high & where) == wanted
    return np.asarray(
        low & (((window & np.uint64(0x0F0F0F0F0F0F0F0F)) + carry & high & where) == 0)
    )
