"""A storage node's counters.

Owns names and help of every counter and histogram; gauges are in server.py, their text in
serving/openmetrics.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.log.serving.openmetrics import Histogram, Metrics, counter, histogram


@dataclass(slots=True)
class NodeMetrics(Metrics):
    """Everything that a storage node counts."""

    PREFIX: ClassVar[str] = "penstock_node_"
    writes: int = counter("Writes of the journal, one fsync each.")
    written_records: int = counter("Blocks and fences made durable.")
    written_bytes: int = counter("Bytes of blocks made durable.")
    refused: int = counter("Requests that were refused.")
    fenced: int = counter("Requests of an older owner.")
    read_bytes: int = counter("Bytes of blocks sent to readers.")
    damaged_blocks: int = counter("Blocks that did not match their CRC.")
    damaged_parts: int = counter("Files with damage, each time one is read.")
    removed_files: int = counter("Files of segments that were given up.")
    fsync_duration: Histogram = histogram("One write and its fsync.")
