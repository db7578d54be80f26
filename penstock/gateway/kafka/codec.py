"""Messages of Kafka's protocol to dicts and back, by the tables of schemas.py. Pure.

Owns bytes of requests and answers; batches of records are records.py's. There is a codec on PyPI
(kio), which ends the process for fifteen bytes that claim a long array.
Law: nothing is allocated by what a message claims, only by what it holds; anything else than a
message of the table raises BadFormat.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock.errors import BadFormat

_INTS: Final = {
    "i8": struct.Struct(">b"),
    "i16": struct.Struct(">h"),
    "i32": struct.Struct(">i"),
    "i64": struct.Struct(">q"),
    "bool": struct.Struct(">?"),
}
_FOREVER: Final = 1000
#: Of all arrays of a message together: one takes three bytes there, and hundreds as a dict.
ELEMENTS_MAX: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Many:
    """An array: of a plain kind, or of structs."""

    of: str | tuple[Field, ...]


class Field(NamedTuple):
    """One field: its name, its kind, and the versions that have it (and where it may be null)."""

    name: str
    kind: str | Many
    since: int = 0
    until: int = _FOREVER
    null_since: int = _FOREVER


Fields = Sequence[Field]


class Reader:
    """Reads from its place on."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self.at = 0
        self._elements_left = ELEMENTS_MAX

    @property
    def left(self) -> int:
        return len(self._data) - self.at

    def take(self, size: int) -> memoryview:
        if not 0 <= size <= self.left:
            raise BadFormat(f"{size} bytes are claimed, {self.left} are left")
        self.at += size
        return self._data[self.at - size : self.at]

    def number(self, kind: str) -> Any:
        form = _INTS[kind]
        return form.unpack(self.take(form.size))[0]

    def unsigned(self) -> int:
        """A varint of up to 32 bits."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise BadFormat("a varint of more than five bytes")

    def length(self, flexible: bool, short: bool) -> int:
        """Of a text, of bytes or of an array; -1 is null."""
        if flexible:
            return self.unsigned() - 1
        size: int = self.number("i16" if short else "i32")
        return size

    def count(self, elements: int) -> None:
        """Of an array that is about to be read."""
        self._elements_left -= elements
        if self._elements_left < 0:
            raise BadFormat(f"a message with more than {ELEMENTS_MAX} elements")

    def skip_tags(self) -> None:
        for _ in range(self.unsigned()):
            self.unsigned()
            self.take(self.unsigned())


def read_fields(reader: Reader, fields: Fields, version: int, flexible: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields:
        if field.since <= version <= field.until:
            found[field.name] = _read(reader, field, version, flexible)
    if flexible:
        reader.skip_tags()
    return found


def _read(reader: Reader, field: Field, version: int, flexible: bool) -> Any:
    kind = field.kind
    if isinstance(kind, str) and kind in _INTS:
        return reader.number(kind)
    if kind == "uuid":
        return bytes(reader.take(16))
    size = reader.length(flexible, kind == "str")
    if size < 0:
        if size == -1 and version >= field.null_since:
            return None
        raise BadFormat(f"{field.name} is null")
    if isinstance(kind, str):
        return _text(reader.take(size)) if kind == "str" else bytes(reader.take(size))
    if size > reader.left:  # each element takes a byte at least
        raise BadFormat(f"{field.name} claims {size} elements in {reader.left} bytes")
    reader.count(size)
    if isinstance(kind.of, str):
        element = Field(field.name, kind.of)
        return [_read(reader, element, version, flexible) for _ in range(size)]
    return [read_fields(reader, kind.of, version, flexible) for _ in range(size)]


def _text(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise BadFormat(f"a text that is no UTF-8: {error}") from None


def unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_fields(
    out: bytearray, fields: Fields, values: dict[str, Any], version: int, flexible: bool
) -> None:
    """What `values` leaves out is 0, empty, or null where it may be."""
    for field in fields:
        if field.since <= version <= field.until:
            _write(out, field, values.get(field.name), version, flexible)
    if flexible:
        out.append(0)  # no tagged fields


def _write(out: bytearray, field: Field, value: Any, version: int, flexible: bool) -> None:
    kind = field.kind
    if isinstance(kind, str) and kind in _INTS:
        out += _INTS[kind].pack(value or 0)
        return
    if kind == "uuid":
        out += value or bytes(16)
        return
    if value is None:
        if version >= field.null_since:
            out += _length(-1, flexible, kind == "str")
            return
        value = "" if kind == "str" else b"" if isinstance(kind, str) else ()
    if kind == "str":
        value = value.encode()
    out += _length(len(value), flexible, kind == "str")
    if isinstance(kind, str):
        out += value
    elif isinstance(kind.of, str):
        element = Field(field.name, kind.of)
        for each in value:
            _write(out, element, each, version, flexible)
    else:
        for each in value:
            write_fields(out, kind.of, each, version, flexible)


def _length(size: int, flexible: bool, short: bool) -> bytes:
    if flexible:
        return unsigned_varint(size + 1)
    return _INTS["i16" if short else "i32"].pack(size)
