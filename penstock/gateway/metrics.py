"""What a gateway counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.log.serving.openmetrics import Counts, Histogram, counter, histogram


@dataclass(slots=True)
class GatewayMetrics(Counts):
    """Of one process; beside other gateways, sum them."""

    PREFIX: ClassVar[str] = "penstock_gateway_"

    requests: int = counter("Requests, whatever came of them.")
    unauthorized: int = counter("Requests with a missing or wrong token.")
    refused: int = counter("Requests that the client must change (4xx).")
    failed: int = counter("Requests that could not be served now (5xx).")
    appended_rows: int = counter("Rows appended, duplicates left out.")
    duplicates: int = counter("Appends that an earlier attempt had made.")
    body_bytes: int = counter("Bytes of bodies that were read.")
    read_rows: int = counter("Rows sent to readers.")
    slow_readers: int = counter("Answers that were cut off: their client took nothing.")
    append: Histogram = histogram("From the whole body to the durable append.")
