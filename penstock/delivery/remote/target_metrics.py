"""What a host of targets counts; its text is serving/openmetrics.py's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.log.serving.openmetrics import Metrics, counter


@dataclass(slots=True)
class TargetMetrics(Metrics):
    """Of one host, over all its targets."""

    PREFIX: ClassVar[str] = "penstock_target_"
    openings: int = counter("Openings of targets that were asked for.")
    batches: int = counter("Batches that came, those without rows too.")
    bytes: int = counter("Bytes of rows that came.")
    acks: int = counter("Batches that were answered with a position.")
    failures: int = counter("Openings and batches that failed.")
