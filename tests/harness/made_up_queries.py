"""Queries that nobody runs: registered, and reported of as a driver would, as many as one likes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import penstock
from penstock.log.records import Kind, NewEntry, SetKey
from penstock.protocol.names import pulse_tag, query_key
from penstock.runtime.control import Pulse, encode_message
from penstock.runtime.registry import RegisteredQuery, encode_query
from penstock.stream.times import time_text


@dataclass(frozen=True, slots=True)
class MadeUpQueries:
    """`count` queries with so many tasks each."""

    log: penstock.Log
    count: int
    tasks: int

    @property
    def names(self) -> list[str]:
        return [f"made_up_{number:03d}" for number in range(self.count)]

    def register(self) -> None:
        self.log.create_stream("made_up_in", "price long")
        now_ms = time.time_ns() // 1_000_000
        sets = [
            SetKey(
                query_key(name),
                encode_query(
                    RegisteredQuery(
                        name, f"id-{name}", 1, "append mode, 1 stage", "append", f"{name}_out",
                        {"made_up_in": 0}, [self.tasks], now_ms,
                    )
                ),
            )
            for name in self.names
        ]  # fmt: skip
        self.log.client.append([], sets=sets)

    def report(self, number: int) -> None:
        """The next report of every query."""
        now_ms = time.time_ns() // 1_000_000
        entries = [
            NewEntry(
                encode_message(Pulse(self._progress(name, number, now_ms))),
                (pulse_tag(name),),
                Kind.CONTROL,
            )
            for name in self.names
        ]
        self.log.client.append(entries)

    def _progress(self, name: str, number: int, now_ms: int) -> dict[str, Any]:
        tasks = {
            f"{name}.1/0/{task}": {
                "worker": f"{task}-abcdef", "instance": 1, "is_running": True,
                "rows_in": 1000 * number + task, "rows_out": 500 * number, "busy_share": 0.25,
                "waiting_share": 0.75, "back_pressured_share": 0.0, "virtual_nodes": 6,
                "state_rows": 100, "state_bytes": 10_000, "committed_at_ms": now_ms,
                "reported_at_ms": now_ms, "committed_position": number, "commits_ever": number,
            }
            for task in range(self.tasks)
        }  # fmt: skip
        stage = {
            "id": "stage:0", "kind": "stage", "name": "stage 0", "stages": [0], "does": ["scan x"],
            "tasks": list(tasks), "busiestTask": next(iter(tasks)), "busyShare": 0.25,
        }  # fmt: skip
        return {
            "name": name, "timestamp": time_text(now_ms), "batchId": number, "isActive": True,
            "numInputRowsTotal": 1000 * number, "processedRowsPerSecond": 1000.0,
            "latencyMs": {"p50": 5.0, "p99": 9.0},
            "sources": [{"description": "penstock stream made_up_in", "endOffset": number,
                         "latestOffset": number, "lag": {"records": number, "seconds": 0.1}}],
            "sink": {"numOutputRows": number}, "stateOperators": [], "eventTime": {},
            "tasks": tasks, "workers": self.tasks, "workersWanted": self.tasks,
            "members": {f"{task}-abcdef": {"slot": task, "host": "one", "pid": 1}
                        for task in range(self.tasks)},
            "graph": {
                "nodes": [{"id": "source:made_up_in", "kind": "source", "name": "made_up_in"},
                          stage, {"id": "sink:out", "kind": "sink", "name": "out"}],
                "edges": [{"from": "source:made_up_in", "to": "stage:0"},
                          {"from": "stage:0", "to": "sink:out"}],
            },
        }  # fmt: skip
