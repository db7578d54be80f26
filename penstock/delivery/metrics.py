"""What a player counts; its text is serving/openmetrics.py's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.log.serving.openmetrics import Counts, Histogram, counter, histogram


@dataclass(slots=True)
class DeliveryMetrics(Counts):
    """Of one player, over all its targets."""

    PREFIX: ClassVar[str] = "penstock_deliver_"
    rows: int = counter("Rows sent to targets.")
    batches: int = counter("Batches sent to targets, those without rows too.")
    bytes: int = counter("Bytes of rows sent to targets, as they are in the log.")
    connections: int = counter("Openings of targets.")
    dead_letters: int = counter("Rows set aside because a target refused them.")
    apply_duration: Histogram = histogram("From a batch to its answer.")
