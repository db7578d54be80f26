"""How the broker, the Streams application and their JVMs are set up, by variant. Data only.

Law: every variant is exactly once: results and positions are committed in one transaction, and the
broker has acknowledged what was fed. `_flushed` differs from its namesake in the broker alone: it
syncs every append to disk, as Penstock's log does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

Settings = dict[str, str]


@dataclass(frozen=True)
class Variant:
    """What differs from what every variant has."""

    broker: Settings = field(default_factory=dict)
    streams: Settings = field(default_factory=dict)
    #: Options of both JVMs.
    java: tuple[str, ...] = ()


#: One node that is broker and controller, and alone.
BROKER: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
}
STREAMS: Final = {
    "processing.guarantee": "exactly_once_v2",
    "replication.factor": "1",
    "num.stream.threads": "1",
    "consumer.auto.offset.reset": "earliest",
}
JAVA: Final = ("-Xms1g", "-Xmx1g", "-Djava.awt.headless=true")

_FLUSHED: Final = {"log.flush.interval.messages": "1"}
#: The lowest latency that we know how to get, but for the commit interval.
_TUNED: Final = Variant(
    broker={
        # How soon a transaction follows on the one before, whose completion it must wait for.
        "add.partitions.to.txn.retry.backoff.ms": "1",
    },
    streams={
        # A commit that is due does not wait for the next record.
        "poll.ms": "1",
        # Rows go to the broker at once, not when they are committed: less is left to do then.
        "producer.linger.ms": "0",
        "peer.in.memory": "true",
        # Of the changes to a key between two commits, the last goes to the changelog.
        "peer.cached": "true",
        # One task has all rows of every key.
        "peer.exchange": "false",
    },
    # Two JVMs on few cores: less CPU than with G1, whose threads take theirs from the query.
    java=("-XX:+UseSerialGC",),
)


def _committing(variant: Variant, interval_ms: int) -> Variant:
    return replace(variant, streams={**variant.streams, "commit.interval.ms": str(interval_ms)})


def _flushed(variant: Variant) -> Variant:
    return replace(variant, broker={**variant.broker, **_FLUSHED})


VARIANTS: Final = {
    "commit_2ms": _committing(_TUNED, 2),
    "commit_2ms_flushed": _flushed(_committing(_TUNED, 2)),
    "commit_5ms": _committing(_TUNED, 5),
    "commit_5ms_flushed": _flushed(_committing(_TUNED, 5)),
    "commit_10ms": _committing(_TUNED, 10),
    "commit_10ms_flushed": _flushed(_committing(_TUNED, 10)),
    "commit_100ms": _committing(_TUNED, 100),
    "commit_100ms_flushed": _flushed(_committing(_TUNED, 100)),
    # Kafka's own: commits every 100 ms, RocksDB with a cache, an exchange by key.
    "defaults": Variant(
        streams={"peer.in.memory": "false", "peer.cached": "true", "peer.exchange": "true"}
    ),
}
