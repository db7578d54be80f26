"""What a gateway counts of Kafka's clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.log.serving.openmetrics import Counts, Histogram, counter, histogram


@dataclass(slots=True)
class KafkaMetrics(Counts):
    """Of one process; beside other gateways, sum them."""

    PREFIX: ClassVar[str] = "penstock_gateway_kafka_"

    connections: int = counter("Connections, whatever came of them.")
    requests: int = counter("Requests, whatever came of them.")
    unauthorized: int = counter("Requests with a missing or wrong token.")
    refused: int = counter("Requests, or partitions of them, that were answered with an error.")
    failed: int = counter("Requests, or partitions of them, that failed by a defect.")
    appended_rows: int = counter("Records appended, duplicates left out.")
    duplicates: int = counter("Batches that an earlier attempt had appended.")
    read_bytes: int = counter("Bytes of records sent to readers.")
    slow_clients: int = counter("Connections that were cut off: their client took nothing.")
    append: Histogram = histogram("From the whole request to the durable append.")
