"""Writes the events into one growing file, on schedule: what Flink's source follows.

    feeder.py '{"path": ..., "seed": 42, "rate": 5000, "base_ms": ..., "start_us": ..., "first": 0,
                "count": ..., "flush_us": 5000, "closing_ms": null}'

Prints one JSON object when the last event is written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from paced_lines import feed

if __name__ == "__main__":
    command = json.loads(sys.argv[1])
    with open(command["path"], "ab", buffering=0) as file:
        print(json.dumps(feed(command, file.write)), flush=True)
