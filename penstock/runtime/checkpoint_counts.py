"""What became of the checkpoints of one instance of a task, for its reports. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.plain_text import plain_line

#: Characters of the cause of a failure in a report.
CAUSE_MAX = 200


@dataclass(slots=True)
class CheckpointCounts:
    """Those of one instance."""

    written: int = 0
    failures: int = 0
    at_ms: int | None = None
    bytes: int | None = None
    ms: float | None = None
    #: Why the newest was not written; None: it was.
    error: str | None = None

    def wrote(self, now_ms: int, size: int, ms: float) -> None:
        self.written += 1
        self.at_ms, self.bytes, self.ms, self.error = now_ms, size, round(ms, 1), None

    def failed(self, error: Exception) -> None:
        self.failures += 1
        self.error = plain_line(f"{type(error).__name__}: {error}")[:CAUSE_MAX]

    def report(self) -> dict[str, Any]:
        return {
            "checkpoints": self.written,
            "checkpoint_failures": self.failures,
            "checkpoint_at_ms": self.at_ms,
            "checkpoint_bytes": self.bytes,
            "checkpoint_ms": self.ms,
            "checkpoint_error": self.error,
        }
