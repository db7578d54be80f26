"""Queries on the page: all of them in a line each, one of them in full. Pure."""

from __future__ import annotations

from typing import Any, Final

from penstock.ui.view import figures as f
from penstock.ui.view.facts import Facts, flag, named, number, shown, sub, text, things
from penstock.ui.view.figures import moment_ms
from penstock.ui.view.graph import heat, show_graph
from penstock.ui.view.history import Counters

#: How a state looks.
LEVELS: Final = {
    "running": "good",
    "suspended": "warn",
    "stopped": "idle",
    "new": "idle",
    "lost": "bad",
    "failed": "bad",
}
_SOURCE: Final = "penstock stream "
#: Reports of a task that is in no long step are younger.
SILENT_MS: Final = 3_000.0
#: A step in which nothing else happens is long from here on.
LONG_STEP_MS: Final = 1_000.0
#: What is heard of a query that runs is younger; if it seems older, two clocks differ.
SKEW_MS: Final = 6_000.0
_SUSPENDED: Final = (
    "It is suspended: it holds no worker and takes nothing in, and its tasks are as they ended. "
    "Rescale it to one worker or more, and it goes on with its state."
)
_BEGAN: Final = {True: "at a copy", False: "from the log", None: f.UNKNOWN}


def name_of(query: Facts) -> str:
    name = query.get("name")
    return name if isinstance(name, str) else "?"


def progress_of(query: Facts) -> Facts:
    return sub(query, "progress")


def is_running(query: Facts) -> bool:
    return query.get("state") == "running"


def is_suspended(query: Facts) -> bool:
    """Its driver lives, and wants no workers."""
    return is_running(query) and "suspended" in progress_of(query)


def skew_ms(query: Facts, moment: object, taken_ms: float) -> float:
    """By how much the clock of `taken_ms` is ahead of the one of a moment of which we just heard;
    0: by less than it takes to hear of it, or nobody can tell."""
    at_ms = moment_ms(moment)
    if at_ms is None or not is_running(query) or abs(taken_ms - at_ms) < SKEW_MS:
        return 0.0
    return taken_ms - at_ms


def busiest(progress: Facts) -> float | None:
    """The share of its time that its busiest task works."""
    told = [number(task, "busy_share") for _, task in named(progress, "tasks")]
    known = [one for one in told if one is not None]
    return max(known) if known else None


def worst_lag(progress: Facts) -> tuple[int | None, Facts]:
    """The number of the source that is furthest behind, in seconds, and its lag."""
    found: tuple[int | None, Facts] = (None, {})
    for index, source in enumerate(things(progress, "sources")):
        lag = sub(source, "lag")
        if number(lag, "seconds") is None:
            continue
        if found[0] is None or (number(lag, "seconds") or 0) > (number(found[1], "seconds") or 0):
            found = (index, lag)
    return found


def step_ms(progress: Facts, task: Facts) -> float | None:
    """How long a task's step lasts by now: as it says; or as it has said nothing newer, which it
    cannot while a step lasts, though its worker lives."""
    told = number(task, "step_ms")
    if told is not None:
        return told
    at_ms, said_ms = moment_ms(progress.get("timestamp")), number(task, "reported_at_ms")
    worker = task.get("worker")
    lives = isinstance(worker, str) and worker in sub(progress, "members")
    if at_ms is None or said_ms is None or not lives or at_ms - said_ms < SILENT_MS:
        return None
    return at_ms - said_ms


def show_line(query: Facts, idle_lags: Facts) -> dict[str, Any]:
    """One query among all. What one that does not run did last is not what it does now."""
    runs = is_running(query)
    progress = progress_of(query) if runs else {}
    index, lag = worst_lag(progress)
    where = f"progress.sources.{index}.lag" if index is not None else ""
    if not runs:
        lag = _worst_idle_lag(query, idle_lags)
    state = "suspended" if is_suspended(query) else text(query, "state") or f.UNKNOWN
    return {
        "key": name_of(query),
        "name": shown(name_of(query)),
        "state": state,
        "level": LEVELS.get(state, "idle"),
        "to": f.words(query.get("to"), "to"),
        "heat": heat(busiest(progress)) if runs else "",
        "figures": {
            "rate": f.rate(number(progress, "processedRowsPerSecond"),
                           "progress.processedRowsPerSecond"),
            "lag rows": f.lag_rows(lag, where),
            "lag": f.lag_seconds(lag, where),
            "p50": f.span(number(progress, "latencyMs", "p50"), "progress.latencyMs.p50"),
            "p99": f.span(number(progress, "latencyMs", "p99"), "progress.latencyMs.p99"),
            "workers": f.count(number(progress, "workers"), "progress.workers"),
            "busiest task": f.share(busiest(progress)),
        },
    }  # fmt: skip


def _worst_idle_lag(query: Facts, idle_lags: Facts) -> Facts:
    """Of what it reads, as it was measured for it; nothing, if one of them is not known."""
    found = sub(idle_lags, name_of(query))
    told = [sub(found, stream) for stream in found]
    if not told or any(number(lag, "seconds") is None for lag in told):
        return {}
    return max(told, key=lambda lag: number(lag, "seconds") or 0)


def show_query(
    query: Facts, counters: Counters, now_ms: float, taken_ms: float | None = None
) -> dict[str, Any]:
    """Everything of one query; `taken_ms`: when it was read from the log, by the clock of `now`."""
    progress = progress_of(query)
    taken_ms = now_ms if taken_ms is None else taken_ms
    runs, ahead_ms = is_running(query), skew_ms(query, progress.get("timestamp"), taken_ms)
    heard_ms = now_ms - skew_ms(query, query.get("last_pulse"), taken_ms)
    # Moments in a report are of its driver's clock.
    now_ms -= ahead_ms
    state = text(query, "state") or f.UNKNOWN
    return {
        "key": name_of(query),
        "name": shown(name_of(query)),
        "state": state,
        "level": LEVELS.get(state, "idle"),
        "error": text(progress, "exception"),
        "past": _SUSPENDED
        if is_suspended(query)
        else None
        if runs or not progress
        else _past(progress, now_ms),
        "clock": _clock(ahead_ms),
        "head": _head(query, progress, now_ms, heard_ms),
        "graph": show_graph(progress, now_ms, runs=runs),
        "sources": [_source(index, one) for index, one in enumerate(things(progress, "sources"))],
        "tasks": [
            _task(name_of(query), task, one, step_ms(progress, one), counters, now_ms)
            if runs and not is_suspended(query)
            else _past_task(name_of(query), task, one, now_ms)
            for task, one in named(progress, "tasks")
        ],
        "workers": _workers(progress),
        "wanted": f.count(number(progress, "workersWanted"), "progress.workersWanted"),
        "moves": _moves(progress, now_ms),
    }


def _past(progress: Facts, now_ms: float) -> str:
    told = f.age(progress.get("timestamp"), now_ms)
    said = "its last report" if told[1] is None else f"its last report, {told[0]}"
    return f"It does not run: the graph and the figures below are of {said}."


def _clock(ahead_ms: float) -> str | None:
    if not ahead_ms:
        return None
    how = "behind" if ahead_ms > 0 else "ahead of"
    return (
        f"The clock of the machine of its driver is {f.span_text(abs(ahead_ms))} {how} this page's "
        "server. Set both by NTP: times and lags in seconds are compared across machines."
    )


def _head(query: Facts, progress: Facts, now_ms: float, heard_ms: float) -> list[list[Any]]:
    rescaling = sub(progress, "rescaling")
    layout = sub(progress, "layout")
    states = things(progress, "stateOperators")
    watermark = sub(progress, "eventTime").get("watermark")
    rows = [
        ["report", f.count(number(progress, "batchId"), "progress.batchId")],
        ["version", f.count(number(query, "version"), "version")],
        ["mode", f.words(query.get("mode"), "mode")],
        ["result", f.words(query.get("to"), "to")],
        ["last heard", f.age(query.get("last_pulse"), heard_ms, "last_pulse")],
        ["rows in", f.count(number(progress, "numInputRowsTotal"), "progress.numInputRowsTotal")],
        ["arriving", f.rate(number(progress, "inputRowsPerSecond"),
                            "progress.inputRowsPerSecond")],
        ["processed", f.rate(number(progress, "processedRowsPerSecond"),
                             "progress.processedRowsPerSecond")],
        ["rows out", f.count(number(progress, "sink", "numOutputRows"),
                             "progress.sink.numOutputRows")],
        ["watermark", f.event_time(watermark, now_ms, "progress.eventTime.watermark")],
        ["append to visible p50", f.span(number(progress, "latencyMs", "p50"),
                                         "progress.latencyMs.p50")],
        ["append to visible p99", f.span(number(progress, "latencyMs", "p99"),
                                         "progress.latencyMs.p99")],
        ["commit p50", f.span(number(progress, "durationMs", "commit", "p50"),
                              "progress.durationMs.commit.p50")],
        ["commit p99", f.span(number(progress, "durationMs", "commit", "p99"),
                              "progress.durationMs.commit.p99")],
        ["state rows", f.count(_sum(states, "numRowsTotal"))],
        ["state size", f.size(_sum(states, "memoryUsedBytes"))],
        ["late rows", f.count(_sum(states, "numRowsDroppedByWatermark"))],
        ["rows set aside", f.count(set_aside(progress))],
        ["workers", f.count(number(progress, "workers"), "progress.workers")],
        ["checkpoints in", f.words(query.get("checkpoints"), "checkpoints")],
    ]  # fmt: skip
    if layout:
        rows.append(["layout", f.count(number(layout, "version"), "progress.layout.version")])
    balance = sub(progress, "balance")
    if text(sub(balance, "last"), "why"):
        why = f.words(sub(balance, "last").get("why"), "progress.balance.last.why")
        rows.append(["balanced last", why])
    if text(balance, "told"):
        rows.append(["balance", f.words(balance.get("told"), "progress.balance.told")])
    if rescaling:
        wanted = f.count(number(rescaling, "workers"), "progress.rescaling.workers")
        rows.append(["rescaling to workers", wanted])
    return rows


def _sum(states: list[Facts], name: str) -> float | None:
    """Of all that tell; None if nobody does."""
    told = [number(state, name) for state in states]
    known = [one for one in told if one is not None]
    return sum(known) if known else None


def set_aside(progress: Facts) -> float | None:
    """Rows that made the query fail, and are in its dead-letter stream."""
    return _sum([task for _, task in named(progress, "tasks")], "dead_letters")


def stream_of(source: Facts) -> str | None:
    described = source.get("description")
    return described.removeprefix(_SOURCE) if isinstance(described, str) else None


def _source(index: int, source: Facts) -> dict[str, Any]:
    base = f"progress.sources.{index}"
    lag = sub(source, "lag")
    return {
        "stream": shown(stream_of(source) or "?"),
        "position": f.count(number(source, "endOffset"), f"{base}.endOffset"),
        "tail": f.count(number(source, "latestOffset"), f"{base}.latestOffset"),
        "rows": f.lag_rows(lag, f"{base}.lag"),
        "lag": f.lag_seconds(lag, f"{base}.lag"),
    }


def task_counter(query: str, task: str) -> str:
    """Under which name the rows of a task are counted."""
    return f"task/{query}/{task}"


def _task(
    query: str, name: str, task: Facts, step: float | None, counters: Counters, now_ms: float
) -> dict[str, Any]:
    base = f"progress.tasks.{name}"

    def at(field: str) -> str:
        return f"{base}.{field}"

    is_long = step is not None and step >= LONG_STEP_MS
    runs = task.get("is_running") is True or is_long
    busy = number(task, "busy_share")
    return {
        "key": name,
        "name": shown(name),
        "worker": f.words(task.get("worker"), at("worker")),
        "runs": runs,
        "level": "warn" if is_long else "good" if runs else "bad",
        "note": f"in one step for {f.span_text(step or 0)}"
        if is_long
        else "does not run"
        if not runs
        else None,
        "heat": heat(busy) if runs else "",
        "error": text(task, "checkpoint_error"),
        "figures": {
            "busy": f.share(busy, at("busy_share")),
            "waiting": f.share(number(task, "waiting_share"), at("waiting_share")),
            "held up": f.share(number(task, "back_pressured_share"), at("back_pressured_share")),
            "this step": f.span(number(task, "step_ms"), at("step_ms")),
            "rate": f.rate(counters.rate(task_counter(query, name))),
            "rows in": f.count(number(task, "rows_in"), at("rows_in")),
            "rows out": f.count(number(task, "rows_out"), at("rows_out")),
            "virtual nodes": f.count(number(task, "virtual_nodes"), at("virtual_nodes")),
            "state rows": f.count(number(task, "state_rows"), at("state_rows")),
            "state": f.size(number(task, "state_bytes"), at("state_bytes")),
            "committed": f.ago(number(task, "committed_at_ms"), now_ms, at("committed_at_ms")),
            "checkpoint": f.ago(number(task, "checkpoint_at_ms"), now_ms, at("checkpoint_at_ms")),
            "its size": f.size(number(task, "checkpoint_bytes"), at("checkpoint_bytes")),
            "failed": f.count(number(task, "checkpoint_failures"), at("checkpoint_failures")),
            "instance": f.count(number(task, "instance"), at("instance")),
            "began in": f.span(number(task, "resume_ms"), at("resume_ms")),
            "copies": _copies(task),
        },
    }


def _past_task(query: str, name: str, task: Facts, now_ms: float) -> dict[str, Any]:
    """Of a query that does not run: nothing of it goes on, and nothing is wrong with that."""
    shown_task = _task(query, name, task, None, Counters(), now_ms)
    return {**shown_task, "runs": False, "level": "idle", "note": None, "heat": ""}


def _copies(task: Facts) -> f.Figure:
    """How many of its copies are ready, of those there are."""
    copies = list(named(task, "standbys"))
    ready = sum(one.get("is_ready") is True for _, one in copies)
    return [f"{ready} of {len(copies)} ready", ready, ""] if copies else ["none", 0, ""]


def _workers(progress: Facts) -> list[dict[str, Any]]:
    tasks = list(named(progress, "tasks"))
    found = []
    for name, member in named(progress, "members"):
        base = f"progress.members.{name}"
        found.append(
            {
                "key": name,
                "name": shown(name),
                "slot": f.count(number(member, "slot"), f"{base}.slot"),
                "host": f.words(member.get("host"), f"{base}.host"),
                "pid": [str(member.get("pid", f.UNKNOWN))[:20], number(member, "pid"),
                        f"{base}.pid"],
                "busy": f.share(number(member, "busyShare"), f"{base}.busyShare"),
                "tasks": [shown(task) for task, one in tasks if one.get("worker") == name],
            }
        )  # fmt: skip
    return found


def _moves(progress: Facts, now_ms: float) -> list[dict[str, Any]]:
    """What moved, the last first."""
    moves = list(enumerate(things(progress, "moves")))
    return [
        {
            "task": f.words(move.get("task"), f"progress.moves.{index}.task"),
            "from": f.words(move.get("from"), f"progress.moves.{index}.from"),
            "to": f.words(move.get("to"), f"progress.moves.{index}.to"),
            "why": f.words(move.get("why"), f"progress.moves.{index}.why"),
            "at": f.age(move.get("at"), now_ms, f"progress.moves.{index}.at"),
            "resumed": f.span(number(move, "resumeMs"), f"progress.moves.{index}.resumeMs"),
            "copy": _BEGAN[flag(move, "fromStandby")],
        }
        for index, move in reversed(moves[-20:])
    ]
