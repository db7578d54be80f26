"""Streams on the page, each with those that read it and how far they are behind. Pure."""

from __future__ import annotations

from typing import Any

from penstock.ui.view import figures as f
from penstock.ui.view.facts import Facts, number, shown, sub, text, things
from penstock.ui.view.graph import LATE_SECONDS
from penstock.ui.view.queries import LEVELS, name_of, progress_of, stream_of


def show_streams(facts: Facts) -> list[dict[str, Any]]:
    readers = _readers(facts)
    written: dict[str, list[str]] = {}
    for query in things(facts, "queries"):
        written.setdefault(str(query.get("to")), []).append(shown(name_of(query)))
    return [
        {
            "key": str(stream.get("name")),
            "name": text(stream, "name") or f.UNKNOWN,
            "ddl": text(stream, "ddl") or f.UNKNOWN,
            "lanes": f.count(number(stream, "lanes")),
            "written": written.get(str(stream.get("name")), []),
            "readers": readers.get(str(stream.get("name")), []),
        }
        for stream in things(facts, "streams")
    ]


def _readers(facts: Facts) -> dict[str, list[dict[str, Any]]]:
    """By stream. A reader whose lag nobody told is "n/a", which is not zero."""
    found: dict[str, list[dict[str, Any]]] = {}
    for query in things(facts, "queries"):
        told = {
            stream_of(source): (index, source)
            for index, source in enumerate(things(progress_of(query), "sources"))
        }
        for stream in sub(query, "starts"):
            index, source = told.get(stream, (None, {}))
            where = "" if index is None else f"progress.sources.{index}.lag"
            lag = sub(source, "lag")
            if query.get("state") != "running":
                # Its last report is not how far it is behind now.
                lag, where = sub(facts, "idle_lags", name_of(query), stream), ""
            found.setdefault(stream, []).append(_reader("query", query, lag, where))
    for delivery in things(facts, "deliveries"):
        lag = sub(delivery, "lag")
        lag = {**lag, "isLowerBound": lag.get("is_lower_bound")}
        name = str(delivery.get("stream"))
        found.setdefault(name, []).append(_reader("delivery", delivery, lag, ""))
    return found


def _reader(kind: str, reader: Facts, lag: Facts, where: str) -> dict[str, Any]:
    state = text(reader, "state") or f.UNKNOWN
    behind = number(lag, "seconds")
    is_late = behind is not None and behind >= LATE_SECONDS
    level = LEVELS.get(state, "idle")
    return {
        "kind": kind,
        "key": name_of(reader),
        "name": shown(name_of(reader)),
        "state": state,
        "level": "warn" if is_late and level == "good" else level,
        "rows": f.lag_rows(lag, where),
        "lag": f.lag_seconds(lag, where),
    }


def show_deliveries(facts: Facts, now_ms: float) -> list[dict[str, Any]]:
    return [_delivery(one, now_ms) for one in things(facts, "deliveries")]


def _delivery(delivery: Facts, now_ms: float) -> dict[str, Any]:
    state = text(delivery, "state") or f.UNKNOWN
    lag = sub(delivery, "lag")
    lag = {**lag, "isLowerBound": lag.get("is_lower_bound")}
    return {
        "key": name_of(delivery),
        "name": shown(name_of(delivery)),
        "state": state,
        "level": LEVELS.get(state, "idle"),
        "stream": f.words(delivery.get("stream")),
        "table": f.words(delivery.get("table")),
        "last ack": f.age(delivery.get("last_ack"), now_ms),
        "position": f.count(number(delivery, "position")),
        "rows": f.lag_rows(lag, ""),
        "lag": f.lag_seconds(lag, ""),
        "error": text(delivery, "error"),
        "targets": [
            {
                "shard": f.count(number(one, "shard")),
                "target": f.words(one.get("target")),
                "position": f.count(number(one, "position")),
                "rows": f.count(number(one, "rows")),
                "problem": text(one, "problem"),
            }
            for one in things(delivery, "targets")
        ],
    }
