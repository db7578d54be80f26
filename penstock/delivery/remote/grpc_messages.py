"""The messages of delivery.proto, and what they mean here.

The classes are made when this is imported, from delivery.binpb, which `protoc
--descriptor_set_out=delivery.binpb delivery.proto` has made: unlike generated code, it binds nobody
to a version of protobuf. Law: whatever cannot be read raises BadFormat.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib import resources
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from penstock.delivery.api import Shard
from penstock.delivery.remote.row_parts import PART_BYTES_MAX
from penstock.delivery.remote.served_target import ERROR_TEXT_MAX, told
from penstock.delivery.remote.shard_format import encode_opening
from penstock.errors import BadFormat, BadRow, Fenced, PenstockError, Refused, Unavailable
from penstock.limits import KIB, MIB
from penstock.plain_text import plain_line
from penstock.wire.target_messages import OpenTarget

PACKAGE: Final = "penstock.delivery.v1"
METHOD: Final = f"/{PACKAGE}.Targets/Deliver"
#: What gRPC takes unless it is told otherwise.
MESSAGE_BYTES_MAX: Final = 4 * MIB
assert PART_BYTES_MAX + 64 * KIB <= MESSAGE_BYTES_MAX
#: A side that is gone without a word is noticed after both: how often it is asked for a sign of
#: life, and how long that may take.
PING_MS: Final = 20_000
PONG_MS: Final = 10_000
#: Enum `Cause`.
UNAVAILABLE, BAD_ROW, REFUSED, FENCED = range(4)
_CAUSES: Final[dict[int, type[PenstockError]]] = {
    UNAVAILABLE: Unavailable,
    BAD_ROW: BadRow,
    REFUSED: Refused,
    FENCED: Fenced,
}


def pings(ping_ms: int = PING_MS, pong_ms: int = PONG_MS) -> tuple[tuple[str, int], ...]:
    """Options of a channel or server that notices when the other side is gone.

    `ping_timeout_ms` is what counts: gRPC's core waits for the answer to a ping as long as that
    says, which is a minute by default, whatever `keepalive_timeout_ms` says.
    """
    return (
        ("grpc.keepalive_time_ms", ping_ms),
        ("grpc.keepalive_timeout_ms", pong_ms),
        ("grpc.http2.ping_timeout_ms", pong_ms),
    )


def _classes(*names: str) -> list[Any]:
    data = resources.files(__package__).joinpath("delivery.binpb").read_bytes()
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.AddSerializedFile(file.SerializeToString())
    found = [pool.FindMessageTypeByName(f"{PACKAGE}.{name}") for name in names]
    return [message_factory.GetMessageClass(descriptor) for descriptor in found]


FromPlayer, FromTarget, Hello = _classes("FromPlayer", "FromTarget", "Hello")


def parse(cls: Any, data: bytes) -> Any:
    """A message of one of the classes above."""
    try:
        return cls.FromString(data)
    except DecodeError as error:
        raise BadFormat(f"not a {cls.DESCRIPTOR.name} of {PACKAGE}") from error


def encode_hello(shard: Shard, schema: pa.Schema, *, target: int, term: int) -> bytes:
    """`schema` is the stream's, `_weight` included."""
    opening = encode_opening(shard, schema, target=target, connection=0, term=term)
    values = asdict(opening)
    del values["connection"]  # a call is one
    encoded: bytes = Hello(**values).SerializeToString()
    return encoded


def decode_hello(data: bytes) -> OpenTarget:
    hello = parse(Hello, data)
    return OpenTarget(
        target=hello.target,
        connection=1,
        term=hello.term,
        delivery=hello.delivery,
        shard=hello.shard,
        shards=hello.shards,
        start=hello.start,
        schema=hello.schema,
        changing=hello.changing,
        key=tuple(hello.key),
        table=hello.table,
        strict=hello.strict,
    )


def encode_refused(error: Exception) -> bytes:
    known = told(error)
    cause = next((one for one in (BAD_ROW, FENCED) if isinstance(known, _CAUSES[one])), UNAVAILABLE)
    if cause == UNAVAILABLE and isinstance(known, Refused):
        cause = REFUSED
    row = known.row if isinstance(known, BadRow) else None
    words = str(known)[:ERROR_TEXT_MAX].encode(errors="replace").decode()
    said = FromTarget(refused={"cause": cause, "message": words, "row": row})
    encoded: bytes = said.SerializeToString()
    return encoded


def error_of(refused: Any) -> PenstockError:
    """Of a `Refused`; a cause of a later version asks to try again."""
    error = _CAUSES.get(refused.cause, Unavailable)(plain_line(refused.message)[:ERROR_TEXT_MAX])
    if isinstance(error, BadRow) and refused.HasField("row"):
        error.row = refused.row
    return error
