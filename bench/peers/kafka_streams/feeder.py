"""Produces the events to one partition of a topic, on schedule: what Kafka Streams reads.

Runs in Penstock's Python, which has the generator; the client is that of the peer's environment,
whose packages come last. Acknowledged, in order, and not held back: a tick's events go out at once.

    feeder.py '{"packages": ..., "bootstrap": ..., "topic": ..., "seed": 42, …}'

Prints one JSON object when the last event is acknowledged.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from paced_lines import feed

_ACKNOWLEDGED_SECONDS: Final = 60.0


def produce(command: dict[str, Any]) -> dict[str, Any]:
    sys.path.append(command["packages"])
    from confluent_kafka import Producer

    failures: list[str] = []
    settings = {
        "bootstrap.servers": command["bootstrap"],
        "acks": "all",
        "enable.idempotence": True,
        # Enough for one tick's events to be one batch.
        "linger.ms": 0.2,
        "socket.nagle.disable": True,
        "delivery.report.only.error": True,
    }
    topic = command["topic"]
    producer = Producer(settings)

    def on_delivery(error: object, message: object) -> None:
        if error is not None:
            failures.append(str(error))

    def write(lines: bytes) -> None:
        for line in lines.splitlines():
            producer.produce(topic, line, partition=0, on_delivery=on_delivery)
        producer.poll(0)

    producer.list_topics(topic, 10)  # connected before the first event is due
    fed = feed(command, write)
    waiting = producer.flush(_ACKNOWLEDGED_SECONDS)
    if failures or waiting:
        raise RuntimeError(f"{waiting} events not acknowledged; failures: {failures[:3]}")
    return fed


if __name__ == "__main__":
    print(json.dumps(produce(json.loads(sys.argv[1]))), flush=True)
