"""Texts as bytes and bytes as texts: hex, base64, character sets, URLs; and check digits."""

from __future__ import annotations

import base64 as base64_
import binascii
import re
from typing import Final
from urllib.parse import quote as quote_url

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ops.functions.alignment import on_arrays
from penstock.ops.functions.failures import fail, fail_where
from penstock.ops.functions.registry import Datum, function
from penstock.ops.functions.rows import each
from penstock.ops.functions.slices import Layout
from penstock.plan.exprs import Call, Literal

_DIGITS: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_BASE32: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_NOT_BASE32: Final = re.compile(r"[^A-Za-z2-7]")
_NOT_IN_ALPHABET: Final = re.compile(rb"[^A-Za-z0-9+/]")
#: White space to Python, not to Java.
_NO_BREAK: Final = frozenset("\u00a0\u2007\u202f\u0085")
_MIME_LINE: Final = 76
#: Spark's names of character sets to Python's: how it encodes, and how it decodes.
_CHARSETS: Final = {
    "us-ascii": ("ascii", "ascii"),
    "iso-8859-1": ("latin-1", "latin-1"),
    "utf-8": ("utf-8", "utf-8"),
    "utf-16be": ("utf-16-be", "utf-16-be"),
    "utf-16le": ("utf-16-le", "utf-16-le"),
    "utf-16": ("utf-16-be", "utf-16"),
    "utf-32": ("utf-32-be", "utf-32"),
}
#: A byte order mark, or where it is missing big-endian: Python would take the machine's order.
_MARKS: Final = {
    "utf-16": (b"\xfe\xff", b"\xff\xfe"),
    "utf-32": (b"\x00\x00\xfe\xff", b"\xff\xfe\x00\x00"),
}
_FULL_WIDTH: Final = {0xFF21 + i: 65 + i for i in range(6)} | {0xFF41 + i: 97 + i for i in range(6)}


# -- hex


@function("Hex", sql="hex", raises=False)
def hex_(call: Call, value: Datum) -> Datum:
    """Two digits per byte; of a number without leading zeros, negative ones as 64 bits."""
    if pa.types.is_integer(value.type):
        return each(call.type, lambda number: f"{number & (2**64 - 1):X}", value)
    return _hex_bytes(call, value)


@on_arrays
def _hex_bytes(call: Call, value: pa.Array) -> pa.Array:
    layout = Layout.of(value.view(pa.string()))
    digits = np.empty((len(layout.data), 2), np.uint8)
    digits[:, 0] = _DIGITS[layout.data >> 4]
    digits[:, 1] = _DIGITS[layout.data & 15]
    bounds = np.append(layout.begin, len(layout.data)) * 2
    return layout.join(digits.ravel(), bounds)


@function("Unhex", sql="unhex to_binary try_to_binary", raises=lambda call: call.is_ansi)
def unhex(call: Call, value: Datum) -> Datum:
    """Null for what is not hexadecimal, or an error if the call says so."""

    def to_bytes(text: str) -> bytes | None:
        try:
            return binascii.unhexlify(f"0{text}" if len(text) % 2 else text)
        except ValueError:
            if call.is_ansi:
                fail("CONVERSION_INVALID_INPUT", f"{text!r} is not hexadecimal")
            return None

    return each(call.type, to_bytes, value)


# -- base64


@function("Base64.encode", sql="base64", raises=False)
def base64(call: Call, value: Datum, in_lines: Datum) -> Datum:
    """In lines of 76 characters if the session says so, which is the default."""

    def encode(data: bytes, in_lines: bool) -> str:
        text = base64_.b64encode(data).decode("ascii")
        if not in_lines:
            return text
        lines = range(0, len(text), _MIME_LINE)
        return "\r\n".join(text[start : start + _MIME_LINE] for start in lines)

    return each(call.type, encode, value, in_lines)


@function("UnBase64", sql="unbase64 to_binary", raises=True)
def unbase64(call: Call, value: Datum) -> Datum:
    def decode(text: str) -> bytes:
        if call.is_ansi and not _is_strict_base64(text):
            fail("CONVERSION_INVALID_INPUT", f"{text!r} is not base64")
        return _decode_mime(text)

    return each(call.type, decode, value)


def _decode_mime(text: str) -> bytes:
    """As Java decodes MIME: what is not in the alphabet is skipped; padding ends the text."""
    head, padding, tail = text.partition("=")
    digits = _NOT_IN_ALPHABET.sub(b"", head.encode("latin-1", "replace"))
    left = len(digits) % 4
    wrong = left == 1 or (padding and (left == 0 or (left == 2 and tail[:1] != "=")))
    if wrong or _NOT_IN_ALPHABET.sub(b"", tail.encode("latin-1", "replace")):
        # Java's own exception, without one of Spark's conditions.
        fail("java.lang.IllegalArgumentException", f"{text!r} is not base64")
    return base64_.b64decode(digits + b"=" * (-left % 4))


def _is_strict_base64(text: str) -> bool:
    """White space anywhere but after padding; whole groups if there is padding."""
    head, padding, tail = text.partition("=")
    digits = "".join(letter for letter in head if not is_java_space(letter))
    if not all(letter.isascii() and ord(letter) in _ALPHABET for letter in digits):
        return False
    left = len(digits) % 4
    if padding:
        return left >= 2 and padding + tail == "=" * (4 - left)
    return left != 1


def is_java_space(letter: str) -> bool:
    """Java's Character.isWhitespace."""
    return letter.isspace() and letter not in _NO_BREAK


# -- character sets


def _judge_charset(call: Call) -> str | None:
    charset, *legacy = call.args[1:]
    if not isinstance(charset, Literal) or not charset.value.is_valid:
        return "a character set that is not constant"
    if str(charset.value.as_py()).lower() not in _CHARSETS:
        return f"the character set {charset.value.as_py()}"
    if any(not isinstance(flag, Literal) or flag.value.as_py() for flag in legacy):
        return "legacy character sets (spark.sql.legacy.javaCharsets, codingErrorAction)"
    return None


def _is_narrow(call: Call) -> bool:
    """Whether there are characters that the set does not have."""
    charset = call.args[1]
    return isinstance(charset, Literal) and not charset.value.as_py().lower().startswith("utf")


@function("Encode.encode", sql="encode to_binary", raises=_is_narrow, accepts=_judge_charset)
def encode(call: Call, value: Datum, charset: pa.Scalar, *legacy: Datum) -> Datum:
    name = charset.as_py().lower()
    if name == "utf-8":
        return value.cast(call.type)
    mark = _MARKS["utf-16"][0] if name == "utf-16" else b""

    def to_bytes(text: str) -> bytes:
        try:
            return mark + text.encode(_CHARSETS[name][0]) if text else b""
        except UnicodeEncodeError:
            fail("MALFORMED_CHARACTER_CODING", f"encode with {name}")

    return each(call.type, to_bytes, value)


@function("StringDecode.decode", sql="decode", raises=True, accepts=_judge_charset)
def decode(call: Call, value: Datum, charset: pa.Scalar, *legacy: Datum) -> Datum:
    name = charset.as_py().lower()

    def to_text(data: bytes) -> str:
        codec = _CHARSETS[name][1]
        if name in _MARKS and not data.startswith(_MARKS[name]):
            codec += "-be"
        try:
            return data.decode(codec)
        except UnicodeDecodeError:
            fail("MALFORMED_CHARACTER_CODING", f"decode with {name}")

    return each(call.type, to_text, value)


# -- URLs


@function("UrlCodec$.encode", sql="url_encode", raises=False)
def url_encode(call: Call, value: Datum) -> Datum:
    def encoded(text: str) -> str:
        return quote_url(text, safe="* ").replace("~", "%7E").replace(" ", "+")

    return each(call.type, encoded, value)


def _may_fail(call: Call) -> bool:
    flag = call.args[1]
    return not isinstance(flag, Literal) or flag.value.as_py() is not False


@function("UrlCodec$.decode", sql="url_decode try_url_decode", raises=_may_fail)
def url_decode(call: Call, value: Datum, must_succeed: Datum) -> Datum:
    def decoded(text: str, must_succeed: bool) -> str | None:
        try:
            return _decode_url(text)
        except ValueError:
            if must_succeed:
                fail("CANNOT_DECODE_URL", text)
            return None

    return each(call.type, decoded, value, must_succeed)


def _decode_url(text: str) -> str:
    """Raises ValueError. Escapes that follow each other are decoded together, as UTF-8."""
    parts = []
    place = 0
    while place < len(text):
        data = bytearray()
        while text[place : place + 1] == "%":
            data.append(_escaped_byte(text[place + 1 : place + 3]))
            place += 3
        if data:
            parts.append(data.decode("utf-8", "replace"))
        else:
            parts.append(" " if text[place] == "+" else text[place])
            place += 1
    return "".join(parts)


def _escaped_byte(digits: str) -> int:
    """As Java reads a number: two characters, one of which may be a sign; any script's digits."""
    plain = digits.translate(_FULL_WIDTH)
    if len(plain) != 2 or not plain[1].isalnum() or not (plain[0].isalnum() or plain[0] in "+-"):
        raise ValueError(digits)
    byte = int(plain, 16)
    if byte < 0:
        raise ValueError(digits)
    return byte


# -- the rest


@function("ExpressionImplUtils.isLuhnNumber", sql="luhn_check", raises=False)
def luhn_check(call: Call, value: Datum) -> Datum:
    return each(call.type, _is_luhn_number, value)


def _is_luhn_number(text: str) -> bool:
    if not text or not all(letter.isdecimal() and letter < "\U00010000" for letter in text):
        return False
    digits = [int(letter) for letter in reversed(text)]
    doubled = [digit * 2 for digit in digits[1::2]]
    return (sum(digits[0::2]) + sum(d // 10 + d % 10 for d in doubled)) % 10 == 0


@function("ExpressionImplUtils.quote", sql="quote", raises=False)
def quote(call: Call, value: Datum) -> Datum:
    """In single quotes; those inside get a backslash."""
    escaped = pc.replace_substring(value, pattern="'", replacement="\\'")
    return pc.binary_join_element_wise("'", escaped, "'", "")


# -- base 32


@function("Base32.encode", sql="to_base32", raises=False)
def to_base32(call: Call, value: Datum) -> Datum:
    return each(call.type, lambda data: base64_.b32encode(data).decode(), value)


@function("UnBase32.decode", sql="from_base32", raises=False)
def from_base32(call: Call, value: Datum) -> Datum:
    return each(call.type, _read_base32, value)


def _read_base32(text: str) -> bytes:
    """Up to the first padding; letters that are not of the alphabet are left out."""
    digits = _NOT_BASE32.sub("", text.partition("=")[0])
    number = 0
    for digit in digits.upper():
        number = number * 32 + _BASE32.index(digit)
    bits = 5 * len(digits)
    read = (number >> bits % 8).to_bytes(bits // 8)
    # A digit that is left over counts, although it is too short for a byte.
    return read + bytes([number % 32 >> 2]) if len(digits) % 8 == 1 else read


# -- whether texts are UTF-8: those that were cast from bytes may not be


def _valid_utf8(value: pa.Array) -> pa.Array:
    try:
        value.validate(full=True)
    except pa.ArrowInvalid:
        return each(pa.bool_(), _is_utf8, value.view(pa.binary()))
    return pc.if_else(value.is_valid(), True, pa.scalar(None, pa.bool_()))


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@function("Invoke.isValid", sql="is_valid_utf8", raises=False)
@on_arrays
def is_valid_utf8(call: Call, value: pa.Array) -> pa.Array:
    return _valid_utf8(value)


@function("Invoke.makeValid", sql="make_valid_utf8", raises=False)
@on_arrays
def make_valid_utf8(call: Call, value: pa.Array) -> pa.Array:
    """What is no character becomes U+FFFD."""
    if pc.all(_valid_utf8(value), min_count=0).as_py():
        return value
    return each(call.type, lambda data: data.decode(errors="replace"), value.view(pa.binary()))


@function("ExpressionImplUtils.validateUTF8String", sql="validate_utf8", raises=True)
@on_arrays
def validate_utf8(call: Call, value: pa.Array) -> pa.Array:
    fail_where(pc.invert(_valid_utf8(value)), "INVALID_UTF8_STRING")
    return value


@function("ExpressionImplUtils.tryValidateUTF8String", sql="try_validate_utf8", raises=False)
@on_arrays
def try_validate_utf8(call: Call, value: pa.Array) -> pa.Array:
    return pc.if_else(_valid_utf8(value), value, pa.scalar(None, pa.string()))
