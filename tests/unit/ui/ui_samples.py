"""Facts of made-up queries, as a log's would be."""

from __future__ import annotations

from typing import Any

NOW_MS = 1_800_000_000_000


def moment(ms: int) -> str:
    from penstock.stream.times import time_text

    return time_text(ms)


def a_task(**more: Any) -> dict[str, Any]:
    return {
        "worker": "0-abc", "instance": 1, "is_running": True, "rows_in": 100, "rows_out": 50,
        "busy_share": 0.2, "waiting_share": 0.8, "back_pressured_share": 0.0, "virtual_nodes": 64,
        "state_rows": 10, "state_bytes": 2048, "step_ms": None, **more,
    }  # fmt: skip


def a_progress(tasks: dict[str, dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    tasks = {"hot.1/0/0": a_task()} if tasks is None else tasks
    told = [one["busy_share"] for one in tasks.values() if one.get("busy_share") is not None]
    busiest = max(tasks, key=lambda name: tasks[name].get("busy_share") or 0) if tasks else None
    return {
        "timestamp": moment(NOW_MS - 300),
        "batchId": 7,
        "isActive": True,
        "numInputRowsTotal": 1000,
        "inputRowsPerSecond": 10.0,
        "processedRowsPerSecond": 12.0,
        "latencyMs": {"p50": 5.0, "p95": 8.0, "p99": 12.5},
        "durationMs": {"commit": {"p50": 1.0, "p95": 2.0, "p99": 3.0}},
        "eventTime": {"watermark": moment(NOW_MS - 2000)},
        "stateOperators": [],
        "sources": [
            {
                "description": "penstock stream bids", "endOffset": 90, "latestOffset": 95,
                "lag": {"records": 12, "seconds": 0.25},
            }
        ],
        "sink": {"description": "penstock stream hot", "numOutputRows": 500},
        "tasks": tasks,
        "workers": 1,
        "workersWanted": 1,
        "members": {"0-abc": {"slot": 0, "host": "one", "pid": 12, "executor": "one/11"}},
        "graph": {
            "nodes": [
                {"id": "source:bids", "kind": "source", "name": "bids"},
                {
                    "id": "stage:0", "kind": "stage", "name": "stage 0", "stages": [0],
                    "does": ["scan bids [price]", "python slow(price)"], "tasks": list(tasks),
                    "busiestTask": busiest, "busyShare": max(told) if told else None,
                },
                {"id": "sink:hot", "kind": "sink", "name": "hot"},
            ],
            "edges": [
                {"from": "source:bids", "to": "stage:0", "rowsPerSecond": 12.0,
                 "lag": {"records": 12, "seconds": 0.25}, "watermark": None},
                {"from": "stage:0", "to": "sink:hot", "rowsPerSecond": None, "lag": None,
                 "watermark": moment(NOW_MS - 2000)},
            ],
        },
        **more,
    }  # fmt: skip


def a_query(progress: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "name": "hot", "version": 1, "mode": "append", "to": "hot", "starts": {"bids": 0},
        "plan": "append mode", "state": "running", "last_pulse": moment(NOW_MS - 100),
        "progress": a_progress() if progress is None else progress, **more,
    }  # fmt: skip


def some_facts(*queries: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "at_ms": NOW_MS,
        "log": {"target": "here", "status": {"tail": 95, "segments": []}, "metrics": None},
        "queries": list(queries),
        "streams": [{"name": "bids", "ddl": "price bigint", "lanes": 16}],
        "deliveries": [],
        "cluster": None,
        **more,
    }


def everything() -> dict[str, Any]:
    """Facts in which there is one of everything that the page shows."""
    silent = a_task(
        is_running=False, reported_at_ms=NOW_MS - 9_000, checkpoint_error="full", dead_letters=2,
        standbys={"1-abc": {"is_ready": True}}, committed_at_ms=NOW_MS, checkpoint_at_ms=NOW_MS,
    )  # fmt: skip
    progress = a_progress(
        {"hot.1/0/0": silent, "hot.1/0/1": a_task()},
        moves=[{"task": "hot.1/0/0", "from": "a", "to": "b", "why": "lost", "at": moment(NOW_MS),
                "resumeMs": 1, "fromStandby": True}],
        cores={"waiting": "1 wanted"}, layout={"version": 1}, rescaling={"workers": 3},
        exception=None,
        stateOperators=[{"numRowsTotal": 1, "memoryUsedBytes": 1, "numRowsDroppedByWatermark": 0}],
    )  # fmt: skip
    lag = {"records": 1, "seconds": 1.0, "is_lower_bound": True}
    target = {"shard": 0, "target": "db", "position": 1, "rows": 1, "problem": "away"}
    segment = {"id": 1, "base_lsn": 0, "end_lsn": 9, "bytes": 1, "sealed": True, "copies": ["n1"]}
    part = {"id": 1, "state": "up", "address": "x:1", "region": "r", "problem": None}
    return some_facts(
        a_query(progress),
        deliveries=[{"name": "d", "stream": "bids", "state": "running", "lag": lag,
                     "last_ack": moment(NOW_MS), "targets": [target]}],
        cluster={"problems": ["node n1 is away"], "nodes": [part],
                 "proxies": [{**part, "role": "auditor", "owns": ["main"]}],
                 "logs": [{"log": "main", "missing_nodes": ["n1"], "owner": "p"}]},
        log={"target": "here", "metrics": None, "status": {"stalled": None, "segments": [segment]}},
        idle_lags={"hot": {"bids": lag}},
    )  # fmt: skip
