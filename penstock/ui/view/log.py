"""The log itself on the page, and the cluster that keeps it, if one does. Pure."""

from __future__ import annotations

from typing import Any, Final

from penstock.ui.view import figures as f
from penstock.ui.view.facts import Facts, flag, number, shown, sub, text, texts, things
from penstock.ui.view.history import Counters

SEGMENTS_SHOWN: Final = 12
CLIENTS_SHOWN: Final = 50
ENTRIES: Final = "log/entries"
BYTES: Final = "log/bytes"
_STATES: Final = {True: "sealed", False: "open", None: f.UNKNOWN}


def show_log(facts: Facts, counters: Counters, fsync: dict[str, float | None]) -> dict[str, Any]:
    log = sub(facts, "log")
    status = sub(log, "status")
    segments = things(status, "segments")
    return {
        "target": text(log, "target") or f.UNKNOWN,
        "why": text(log, "why"),
        "stalled": text(status, "stalled"),
        "head": [
            ["tail", f.count(number(status, "tail"))],
            ["trim point", f.count(number(status, "trim_point"))],
            ["epoch", f.count(number(status, "epoch"))],
            ["entries", f.rate(counters.rate(ENTRIES), of="entries")],
            ["bytes", _bytes_rate(counters.rate(BYTES))],
            ["fsync p50", f.span(fsync.get("p50"))],
            ["fsync p99", f.span(fsync.get("p99"))],
            ["size", f.size(number(status, "bytes"))],
            ["segments", f.count(len(segments) if "segments" in status else None)],
            ["readers", f.count(number(status, "subscriptions"))],
            ["readers behind", f.count(number(status, "subscriptions_behind"))],
            ["connections", f.count(number(status, "connections"))],
            ["peak memory", f.size(number(status, "memory_peak_bytes"))],
            ["up", f.seconds(number(status, "uptime_seconds"))],
        ],
        "clients": [
            {"name": shown(name), "connections": f.count(count)}
            for name, count in list(sub(status, "clients").items())[:CLIENTS_SHOWN]
        ],
        "segments": [_segment(one) for one in reversed(segments[-SEGMENTS_SHOWN:])],
    }


def _bytes_rate(value: float | None) -> f.Figure:
    figure = f.size(value)
    return figure if value is None else [f"{figure[0]}/s", value, ""]


def _segment(segment: Facts) -> dict[str, Any]:
    return {
        "id": f.count(number(segment, "id")),
        "from": f.count(number(segment, "base_lsn")),
        "to": f.count(number(segment, "end_lsn")),
        "size": f.size(number(segment, "bytes")),
        "state": _STATES[flag(segment, "sealed")],
        "copies": ", ".join(texts(segment, "copies")) or f.UNKNOWN,
    }


def show_cluster(facts: Facts) -> dict[str, Any] | None:
    """None: the log is one server's."""
    cluster = sub(facts, "cluster")
    if not cluster:
        return None
    return {
        "why": text(cluster, "why"),
        "problems": texts(cluster, "problems"),
        "nodes": [_part(one, ("segments", "damaged_blocks")) for one in things(cluster, "nodes")],
        "proxies": [
            {**_part(one, ("connections", "readers", "readers_behind")),
             "role": text(one, "role") or f.UNKNOWN, "owns": texts(one, "owns")}
            for one in things(cluster, "proxies")
        ],
        "logs": [
            {
                "name": text(one, "log") or f.UNKNOWN,
                "owner": text(one, "owner") or f.UNKNOWN,
                "epoch": f.count(number(one, "epoch")),
                "tail": f.count(number(one, "tail")),
                "missing nodes": ", ".join(texts(one, "missing_nodes")) or "none",
                "blocks lacking a copy": f.count(number(one, "lacking_blocks")),
                "size": f.size(number(one, "bytes_sealed")),
            }
            for one in things(cluster, "logs")
        ],
    }  # fmt: skip


def _part(one: Facts, counted: tuple[str, ...]) -> dict[str, Any]:
    state = text(one, "state") or f.UNKNOWN
    return {
        "id": shown(str(one.get("id"))),
        "state": state,
        "level": {"up": "good", "not asked": "idle"}.get(state, "bad"),
        "address": text(one, "address") or f.UNKNOWN,
        "region": text(one, "region") or "",
        "figures": {name.replace("_", " "): f.count(number(one, name)) for name in counted},
        "problem": text(one, "problem"),
    }
