"""The counters of a log server or proxy.

Owns names and help of every counter and histogram; gauges are with the servers, their text in
serving/openmetrics.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.log.serving.openmetrics import Histogram, Metrics, counter, histogram


@dataclass(slots=True)
class LogMetrics(Metrics):
    """Everything that a log server or proxy counts."""

    appended_entries: int = counter("Entries made durable.")
    appended_bytes: int = counter("Bytes of groups made durable.")
    appended_groups: int = counter("Groups made durable.")
    duplicates_dropped: int = counter("Retried groups that were there.")
    refused_appends: int = counter("Groups refused by guard, seq or limit.")
    forbidden: int = counter("Requests that a narrowed token does not allow.")
    fenced_appends: int = counter("Groups refused to an older instance.")
    delivered_bytes: int = counter("Bytes of records sent to readers.")
    append_duration: Histogram = histogram("From request to answer.")
    fsync_duration: Histogram = histogram("One write and its fsync.")
