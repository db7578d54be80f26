"""Base 64 in a JSON string, decoded while it is read, as Spark's own reader (Jackson) does.

So an error leaves the reader in the middle of the string, and may leave it behind its closing
quote: what follows is then taken for the rest of the string, and the record is lost. Blanks may
stand between groups of four, and groups may follow a padded one. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_INVALID: Final = -1
_PADDING: Final = -2
_BITS: Final = {**{char: bits for bits, char in enumerate(_ALPHABET)}, "=": _PADDING}


class Base64Error(ValueError):
    """Not base 64, here."""


def decode(
    take: Callable[[], str], unescape: Callable[[], str], put_back: Callable[[], None]
) -> bytes:
    """All up to the closing quote, which is taken.

    `take` gives the next character, `unescape` what the escape behind a backslash means, `put_back`
    undoes the last `take`.
    """
    decoded = bytearray()
    while True:
        char = take()
        while char <= " ":
            char = take()
        if char == '"':
            return bytes(decoded)
        first = _bits(char, unescape, is_first=True)
        if first < 0:
            continue
        data = first << 6 | _bits(take(), unescape)
        third = _bits_or_padding(take(), unescape, put_back)
        if third == _PADDING:
            if _bits_or_padding(take(), unescape, None) != _PADDING:
                raise Base64Error
            decoded.append(data >> 4 & 0xFF)
            continue
        data = data << 6 | third
        last = _bits_or_padding(take(), unescape, put_back)
        if last == _PADDING:
            decoded += bytes((data >> 10 & 0xFF, data >> 2 & 0xFF))
            continue
        data = data << 6 | last
        decoded += bytes((data >> 16 & 0xFF, data >> 8 & 0xFF, data & 0xFF))


def _bits(char: str, unescape: Callable[[], str], *, is_first: bool = False) -> int:
    """Below 0: a blank that is escaped, as the first of its group."""
    if char == "\\":
        char = unescape()
        if is_first and char <= " ":
            return _INVALID
    bits = _BITS.get(char, _INVALID)
    if bits < 0:
        raise Base64Error
    return bits


def _bits_or_padding(
    char: str, unescape: Callable[[], str], put_back: Callable[[], None] | None
) -> int:
    if char == '"' and put_back is not None:  # the padding is missing
        put_back()
        raise Base64Error
    if char == "\\":
        char = unescape()
    bits = _BITS.get(char, _INVALID)
    if bits == _INVALID:
        raise Base64Error
    return bits
