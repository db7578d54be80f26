"""What a target is told of its shard before its first batch, as it travels. Pure.

Law: what is decoded can be used: a schema of a stream, numbers that fit together, columns that
exist; whatever else is there raises BadFormat.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.delivery.api import Shard
from penstock.delivery.routing import SHARDS_MAX, WEIGHT
from penstock.errors import BadFormat
from penstock.ids import Lsn
from penstock.limits import POSITION_MAX
from penstock.stream.schema import decode_schema, encode_schema
from penstock.wire.target_messages import OpenTarget


def encode_opening(
    shard: Shard, schema: pa.Schema, *, target: int, connection: int, term: int
) -> OpenTarget:
    """`schema` is the stream's, `_weight` included."""
    return OpenTarget(
        target=target,
        connection=connection,
        term=term,
        delivery=shard.delivery,
        shard=shard.index,
        shards=shard.count,
        start=shard.start,
        schema=encode_schema(schema),
        changing=shard.changing,
        key=shard.key,
        table=shard.table,
        strict=shard.strict,
    )


def decode_opening(message: OpenTarget) -> tuple[Shard, pa.Schema]:
    """The shard, and the stream's schema."""
    schema = decode_schema(message.schema)
    columns = schema
    if message.changing:
        if schema.names[-1:] != [WEIGHT]:
            raise BadFormat(f"a changing stream without the column {WEIGHT}")
        columns = schema.remove(len(schema) - 1)
    if not 0 <= message.shard < message.shards <= SHARDS_MAX:
        raise BadFormat(f"shard {message.shard} of {message.shards}")
    if message.start > POSITION_MAX:
        raise BadFormat(f"a delivery that begins at LSN {message.start}")
    unknown = set(message.key) - set(columns.names)
    if unknown or not message.delivery or not message.table:
        raise BadFormat(f"a shard whose key has no column {min(unknown, default='')!r}")
    shard = Shard(
        delivery=message.delivery,
        index=message.shard,
        count=message.shards,
        start=Lsn(message.start),
        schema=columns,
        changing=message.changing,
        key=message.key,
        table=message.table,
        strict=message.strict,
    )
    return shard, schema
