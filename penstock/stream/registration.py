"""How a stream stands in the log: its name, its tag, its metadata key and value.

Owns the JSON under `stream/<name>` (docs/formats.md, "Stream definitions"): version, DDL for
people, the schema as a base64 Arrow IPC message, when it was created, where it begins, and its
lanes. One with lanes is of version 2: programs that know of none must not append to it.
Law: decode(encode(r)) equals r, and whatever else stands there raises BadFormat.

Names and definitions are there without Arrow, which is imported where a schema is made of bytes:
it takes longer than most commands run.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import BadFormat, BadRequest
from penstock.ids import Lsn
from penstock.limits import LANES_MAX, POSITION_MAX

if TYPE_CHECKING:
    import pyarrow as pa

VERSION: Final = 1
VERSION_LANES: Final = 2
KEY_PREFIX: Final = "stream/"
TAG_PREFIX: Final = "s/"

#: The last moment of the year 9999, beyond which there is no text of one.
CREATED_MS_MAX: Final = 253_402_300_799_999

#: What JSON that anybody may have written, and values of it, can raise.
_UNREADABLE: Final = (ValueError, KeyError, TypeError, OverflowError, RecursionError)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True)
class Definition:
    """The JSON of a stream, its schema as the bytes that it is."""

    name: str
    ddl: str
    schema: bytes
    created_ms: int
    start_lsn: Lsn
    lanes: int
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Registration:
    """What the log knows of a stream."""

    name: str
    #: Normalised (schema.py).
    schema: pa.Schema
    created_ms: int
    #: Where it begins: what stands below belongs to an earlier life, of a query that began anew.
    start_lsn: Lsn = Lsn(0)
    #: How many, and the columns by which rows are spread over them (lanes.py).
    lanes: int = 1
    key: tuple[str, ...] = ()

    @property
    def ddl(self) -> str:
        """The schema as Spark DDL text."""
        from penstock.stream.ddl import to_ddl

        return to_ddl(self.schema)


def check_name(name: str) -> None:
    """Names go into tags, keys, file names and SQL of later tools, hence few characters."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadRequest(
            f"stream name {name!r}: a letter or _ first, then letters, digits, _ . - "
            "(128 characters at most)"
        )


def stream_key(name: str) -> str:
    return KEY_PREFIX + name


def stream_tag(name: str) -> str:
    return TAG_PREFIX + name


def encode_registration(registration: Registration) -> bytes:
    from penstock.stream.schema import encode_schema

    value: dict[str, Any] = {
        "version": VERSION,
        "ddl": registration.ddl,
        "schema": base64.b64encode(encode_schema(registration.schema)).decode(),
        "created_ms": registration.created_ms,
    }
    if registration.start_lsn:
        value["start_lsn"] = registration.start_lsn
    if registration.lanes > 1 or registration.key:
        value["version"] = VERSION_LANES
        value["lanes"] = registration.lanes
        value["key"] = list(registration.key)
    return json.dumps(value).encode()


def decode_registration(name: str, data: bytes) -> Registration:
    from penstock.stream.schema import decode_schema

    found = decode_definition(name, data)
    schema = decode_schema(found.schema)
    return Registration(name, schema, found.created_ms, found.start_lsn, found.lanes, found.key)


def decode_definition(name: str, data: bytes) -> Definition:
    """What is registered, for those who need no schema of Arrow's."""
    try:
        fields: Any = json.loads(data)
        if fields["version"] not in (VERSION, VERSION_LANES):
            raise BadFormat(
                f"stream {name} has version {fields['version']}, this program reads up to "
                f"{VERSION_LANES}: use a newer one"
            )
        ddl = str(fields["ddl"])
        encoded = base64.b64decode(fields["schema"], validate=True)
        created_ms = int(fields["created_ms"])
        start_lsn = Lsn(int(fields.get("start_lsn", 0)))
        lanes = int(fields.get("lanes", 1))
        key = tuple(map(str, fields.get("key", ())))
        if not 1 <= lanes <= LANES_MAX:
            raise ValueError(f"{lanes} lanes")
        if not (0 <= created_ms <= CREATED_MS_MAX and 0 <= start_lsn <= POSITION_MAX):
            raise ValueError("a time or position beyond any")
    except _UNREADABLE as error:
        raise BadFormat(f"stream {name} is registered with bytes that cannot be read") from error
    return Definition(name, ddl, encoded, created_ms, start_lsn, lanes, key)
