"""Metadata keys of what Kafka's clients need kept.

    kafka/seq/<stream>/<producer id>/<partition>      sequences.py
    kafka/offset/<stream>/<partition>/<group>         how far a group is
    kafka/txn/<token's prefix>/<transactional id>     transactions.py

The first two belong to the stream: who may append to it may set the first, who may read it the
second. The third belong to a token.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from penstock.gateway.kafka.errors import Code, KafkaRefused
from penstock.limits import KEY_BYTES_MAX
from penstock.log.core.owners import OFFSETS_PREFIX, SEQUENCES_PREFIX


def seq_key(stream: str, producer_id: int, partition: int) -> str:
    return f"{SEQUENCES_PREFIX}{stream}/{producer_id}/{partition}"


def offset_key(stream: str, partition: int, group: str) -> str:
    key = f"{OFFSETS_PREFIX}{stream}/{partition}/{quote(group, safe='')}"
    if not group or len(key) > KEY_BYTES_MAX:
        raise KafkaRefused(Code.INVALID_GROUP_ID, "the name of the group is empty or too long")
    return key


def parse_offset_key(key: str) -> tuple[str, int, str]:
    """Stream, partition and group."""
    stream, partition, group = key.removeprefix(OFFSETS_PREFIX).split("/")
    return stream, int(partition), unquote(group)
