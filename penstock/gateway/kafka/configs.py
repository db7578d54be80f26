"""What a client is told of the configs of a topic or of the gateway. Pure.

Nothing of it can be changed: a stream keeps its rows until somebody trims the log, and nobody takes
older rows of a key away. Kafka says that with a clean-up policy of nothing. Kafka Connect asks
whether its own topics are compacted, and takes that answer, too.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.errors import BadRequest
from penstock.gateway.config import KAFKA_FRAME_BYTES_MAX
from penstock.gateway.kafka.rows import has_kafka_columns
from penstock.stream.registration import Registration

TOPIC, GATEWAY = 2, 4
#: How a topic's columns are said, also when it is made.
COLUMNS_CONFIG: Final = "penstock.columns"
#: Where a value comes from: the topic itself, or nobody has said another.
_OF_THE_TOPIC, _DEFAULT = 1, 5
_BOOLEAN, _STRING, _INT, _LONG, _LIST = 1, 2, 3, 5, 7

Config = tuple[str, str, int]


def topic_configs(stream: Registration) -> list[Config]:
    """Name, value and type of each."""
    own_time = has_kafka_columns(stream.schema) and "timestamp" in stream.schema.names
    return [
        ("cleanup.policy", "", _LIST),
        ("compression.type", "uncompressed", _STRING),
        ("max.message.bytes", str(KAFKA_FRAME_BYTES_MAX), _INT),
        ("message.timestamp.type", "CreateTime" if own_time else "LogAppendTime", _STRING),
        ("min.insync.replicas", "1", _INT),
        ("retention.bytes", "-1", _LONG),
        ("retention.ms", "-1", _LONG),
        (COLUMNS_CONFIG, stream.ddl, _STRING),
    ]


def gateway_configs() -> list[Config]:
    """Of what Kafka calls a broker."""
    return [
        ("auto.create.topics.enable", "false", _BOOLEAN),
        ("default.replication.factor", "1", _INT),
        ("message.max.bytes", str(KAFKA_FRAME_BYTES_MAX), _INT),
        ("num.partitions", "1", _INT),
    ]


def check_gateway(name: str, node: int) -> None:
    """Whether it is the one that is here; an empty name means all of them."""
    if name not in ("", str(node)):
        raise BadRequest(f"this is node {node}, there is no {name}")


def shown(configs: list[Config], wanted: list[str] | None) -> list[dict[str, Any]]:
    """As the answer says them; `wanted`: only these."""
    return [
        {
            "name": name,
            "value": value,
            "read_only": True,
            "source": _OF_THE_TOPIC if name == COLUMNS_CONFIG else _DEFAULT,
            "kind": kind,
        }
        for name, value, kind in configs
        if wanted is None or name in wanted
    ]
