"""`penstock query …`: the queries of a log, from any machine that reaches it.

Owns the commands and their words; the facts are read from the log (query_facts.py). A query is
started by `penstock.start` in a program of yours, which drives it; here it is watched, stopped and
forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from penstock.cli.delivery_facts import DeliveryFacts, lag_words, list_facts
from penstock.cli.live import (
    balance_text,
    hot_nodes,
    lag_text,
    ms_text,
    progress_line,
    watermark_text,
)
from penstock.cli.output import (
    NOTHING,
    bytes_text,
    echo,
    field_lines,
    json_option,
    show_json,
    show_json_line,
    show_table,
    table_lines,
    time_text,
)
from penstock.cli.query_asks import ask, who
from penstock.cli.query_facts import (
    QUIET_SECONDS,
    QueryFacts,
    find_move,
    find_query,
    list_queries,
    listen,
    now_ms,
    wait_for_balance,
    wait_for_end,
    wait_for_move,
    wait_for_workers,
)
from penstock.cli.target import F, Target, target_options
from penstock.errors import BadRequest, DeadlineExceeded, GuardFailed
from penstock.log.client.blocking import BlockingLog
from penstock.log.records import Guard, SetKey
from penstock.plain_text import plain
from penstock.protocol.images import image_key
from penstock.protocol.names import layout_key, pulse_tag, query_key, run_key
from penstock.protocol.pulses import State
from penstock.runtime.control import Balance, Move, Rescale, Stop


@click.group()
def query() -> None:
    """Queries on the log: how they stand, stop them, forget them."""


@query.command("list")
@target_options
@json_option
def list_all(target: Target, as_json: bool) -> None:
    """All queries, and whether they run.

    \b
    Examples:
      penstock query list
      penstock query list --json | jq -r '.[] | select(.state == "lost").name'
    """
    with target.open() as client:
        found = list_queries(client)
    if as_json:
        show_json([one.as_json() for one in found])
        return
    show_table(
        ["name", "state", "mode", "from", "to", "rows/s", "lag", "last pulse"],
        [
            (
                one.name,
                _word(one),
                one.registered.mode,
                ",".join(sorted(one.registered.starts)),
                one.registered.to,
                _rate(one, "inputRowsPerSecond"),
                lag_text(one.progress) if one.progress else NOTHING,
                None if one.pulse_ms is None else time_text(one.pulse_ms),
            )
            for one in found
        ],
    )


@query.command()
@click.argument("name")
@click.option("--watch", is_flag=True, help="Again with every report, until it stops or Ctrl-C.")
@target_options
@json_option
def status(name: str, watch: bool, target: Target, as_json: bool) -> None:
    """How query NAME stands: rates, lag, latency, state, tasks, deliveries of its result.

    Latency is from the append of a row to when what came of it can be read. With --watch: a page
    that is kept up to date; one line per report if the output is no terminal; with --json one
    object per line.

    \b
    Examples:
      penstock query status hot
      penstock query status hot --watch
      penstock query status hot --json | jq .progress.sources
    """
    with target.open() as client:
        found = find_query(client, name)
        if watch:
            try:
                _watch(client, found, as_json=as_json)
            except KeyboardInterrupt:
                pass  # the way to end it
        else:
            deliveries = [
                one
                for one in list_facts(client, found.registered.to)
                if one.registered.query == name
            ]
            if as_json:
                told = [one.as_json() for one in deliveries]
                show_json({**found.as_json(), "deliveries": told})
            else:
                echo("\n".join([*_page(found), *_deliveries(deliveries)]))


def _watch(client: BlockingLog, found: QueryFacts, *, as_json: bool) -> None:
    from rich.console import Console  # as long to import as all else that the other commands need
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    is_page = console.is_terminal and not as_json
    shown: Any = None
    with (
        client.tail([pulse_tag(found.name)], start=client.bounds().tail) as reader,
        Live(console=console, auto_refresh=False) if is_page else _Nothing() as live,
    ):
        while True:
            if isinstance(live, Live):
                live.update(Text("\n".join(_page(found))), refresh=True)
            elif found.progress is not None and (found.state, found.progress) != shown:
                shown = (found.state, found.progress)
                line = progress_line(found.progress)
                if found.state is not State.RUNNING or found.is_suspended:
                    line = f"{line} ({_word(found)})"
                if as_json:
                    show_json_line(found.as_json())
                else:
                    echo(line)
            if found.has_ended:
                return
            try:
                reader.next_batch(timeout=1.0)
            except TimeoutError:
                pass  # silence is news, too
            found = find_query(client, found.name)


def _wait_option(done: str) -> Callable[[F], F]:
    return click.option(
        "--wait",
        "wait_seconds",
        type=click.FloatRange(min=0.1),
        default=30.0,
        show_default=True,
        help=f"Seconds until it must have {done}.",
    )


class _Nothing:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


@query.command()
@click.argument("name")
@_wait_option("stopped")
@target_options
@json_option
def stop(name: str, wait_seconds: float, target: Target, as_json: bool) -> None:
    """Ask query NAME to commit what it has worked on and to end.

    Wherever its driver runs. Started again under its name, it goes on from there. A query that
    does not run is left as it is. Exit code 5 if it has not stopped in time.

    \b
    Examples:
      penstock query stop hot
      penstock query stop hot --wait 60 --json
    """
    with target.open() as client:
        found = listen(client, find_query(client, name))
        was = found.state
        if was is State.RUNNING:
            asked = ask(client, name, Stop(who()))
            if not wait_for_end(client, name, asked, wait_seconds):
                raise DeadlineExceeded(
                    f"query {name} was asked to stop (LSN {asked}) and has not said "
                    f"within {wait_seconds:g} s that it did: look at `penstock query status {name}`"
                )
    if as_json:
        show_json({"name": name, "was": was.value, "stopped": was is State.RUNNING})
    elif was is State.RUNNING:
        echo(f"query {name} has stopped; all that it committed stays")
    else:
        echo(f"nothing to stop: {_why_not_running(found)}")


def _why_not_running(found: QueryFacts) -> str:
    if found.pulse_ms is None:
        return f"query {found.name} is registered, but no driver has run it"
    at = time_text(found.pulse_ms)
    if found.has_ended:
        return f"query {found.name} {found.state.value} at {at}"
    if found.is_suspended:
        return f"query {found.name} is suspended: `penstock query rescale` brings it back"
    if found.state is State.RUNNING:
        return f"query {found.name} has just been started and has not said how it stands: try again"
    return (
        f"no driver runs query {found.name}: it was last heard of at {at}, and ended or was cut "
        "off without a goodbye"
    )


@query.command()
@click.argument("name")
@click.option("--workers", type=click.IntRange(0, 1000), required=True, help="How many; 0: none.")
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(min=0.1),
    help="Seconds until it must have rescaled; without: as long as it comes closer.",
)
@target_options
@json_option
def rescale(
    name: str, workers: int, wait_seconds: float | None, target: Target, as_json: bool
) -> None:
    """Run query NAME with another number of workers, without a restart.

    Its driver starts or ends them. All tasks commit what they have, and tasks for so many workers
    go on from there, with the state. With 0 it is suspended: all commit what they have and leave,
    so that it holds no core. It stays registered, its driver lives, and it goes on with its state
    when it is rescaled again. While it waits, it says how far the query is. Exit code 3 if its
    driver refuses so many and says why, or the query ends; 5 if it comes no closer, or not in the
    time of --wait.

    \b
    Examples:
      penstock query rescale hot --workers 4
      penstock query rescale hot --workers 0
      penstock query rescale hot --workers 1 --json
    """
    words = ""

    def tell(news: str) -> None:
        nonlocal words
        words = news
        if not as_json:
            echo(f"query {name}: {news}", err=True)

    with target.open() as client:
        found = listen(client, find_query(client, name))
        if found.state is not State.RUNNING:
            raise BadRequest(f"nothing to rescale: {_why_not_running(found)}")
        asked = ask(client, name, Rescale(workers, who()))
        rescaled = wait_for_workers(client, name, workers, asked, wait_seconds, tell)
        if rescaled is None:
            why_not = (
                f"is no closer to it after {QUIET_SECONDS:g} s"
                if wait_seconds is None
                else f"does not within {wait_seconds:g} s"
            )
            raise DeadlineExceeded(
                f"query {name} was asked to run with {workers} workers (LSN {asked}) and {why_not}"
                f"{f' ({words})' if words else ''}: look at `penstock query status {name}`"
            )
    if as_json:
        show_json(rescaled)
    elif not workers:
        echo(
            f"query {name} is suspended: it holds no worker and takes nothing in. "
            f"`penstock query rescale {name} --workers N` brings it back with its state"
        )
    else:
        echo(f"query {name} runs with {workers} workers and {rescaled['tasks']} tasks now")


@query.command()
@click.argument("name")
@_wait_option("balanced")
@target_options
@json_option
def balance(name: str, wait_seconds: float, target: Target, as_json: bool) -> None:
    """Let hot virtual nodes of query NAME go to tasks that have less to do.

    A stage keeps its number of tasks; those whose virtual nodes change commit what they have, and
    their successors go on with the state. Nothing moves if nothing would be gained: it says why.
    `penstock query status --json` has the rows a second of each virtual node (.progress.nodes).
    Exit code 3 if its driver refuses it and says why, 5 if it is not done in time.

    \b
    Examples:
      penstock query balance hot
      penstock query balance hot --wait 60 --json
    """
    with target.open() as client:
        found = listen(client, find_query(client, name))
        if found.state is not State.RUNNING or found.progress is None or found.is_suspended:
            raise BadRequest(f"nothing to balance: {_why_not_running(found)}")
        asked = ask(client, name, Balance(who()))
        balanced = wait_for_balance(client, name, found.progress, asked, wait_seconds)
        if balanced is None:
            raise DeadlineExceeded(
                f"query {name} was asked to balance (LSN {asked}) and has not done so within "
                f"{wait_seconds:g} s: look at `penstock query status {name}`"
            )
    if as_json:
        show_json(balanced)
    else:
        echo(f"query {name}: {balance_text(balanced['told'], balanced['moved'])}")


@query.command()
@click.argument("name")
@click.argument("task")
@click.argument("worker")
@_wait_option("moved")
@target_options
@json_option
def move(
    name: str, task: str, worker: str, wait_seconds: float, target: Target, as_json: bool
) -> None:
    """Let WORKER run TASK of query NAME, without a restart.

    The query must have been started with replicas. The worker, by number or by name, first becomes
    a standby of the task; when that has caught up, the task commits what it has and goes on there.
    `penstock query status` shows tasks and workers. Exit code 5 if it has not moved in time.

    \b
    Examples:
      penstock query move hot hot.1/1/0 1
      penstock query move hot hot.1/1/0 1-5d2f6a --json
    """
    with target.open() as client:
        found = listen(client, find_query(client, name))
        if found.state is not State.RUNNING or found.progress is None:
            raise BadRequest(f"nothing to move: {_why_not_running(found)}")
        there = find_move(found.progress, name, task, worker)
        asked = ask(client, name, Move(task, there, who()))
        moved = wait_for_move(client, name, task, there, asked, wait_seconds)
        if moved is None:
            raise DeadlineExceeded(
                f"task {task} was asked to move (LSN {asked}) and has not done so within "
                f"{wait_seconds:g} s: look at `penstock query status {name}`"
            )
    if as_json:
        show_json(moved)
    else:
        echo(f"task {task} runs in worker {there} now; it began in {ms_text(moved['resumeMs'])}")


@query.command()
@click.argument("name")
@target_options
@json_option
def remove(name: str, target: Target, as_json: bool) -> None:
    """Forget query NAME, which must not run: it holds back no trim any more.

    Its result stays, and so do its checkpoints. What starts under this name afterwards is a new
    query, which knows nothing of this one's state.

    \b
    Examples:
      penstock query remove hot
      penstock query stop hot && penstock query remove hot && penstock log trim --consumed
    """
    with target.open() as client:
        found = listen(client, find_query(client, name))
        if found.state is State.RUNNING:
            raise BadRequest(f"query {name} is running: stop it first (`penstock query stop`)")
        run = client.get(run_key(name))
        try:
            # Guarded by the run too: a driver that starts it at this moment goes first. The run
            # itself stays, since the next query of this name takes its version from it.
            client.append(
                [],
                guards=[
                    Guard(query_key(name), found.data),
                    Guard(run_key(name), None if run is None else run.data),
                ],
                sets=[
                    SetKey(key, None)
                    for key in (query_key(name), layout_key(name), image_key(name))
                ],
            )
        except GuardFailed:
            raise BadRequest(f"query {name} was started or changed meanwhile: try again") from None
    kept = {"stream": found.registered.to, "checkpoints": found.registered.checkpoints}
    if as_json:
        show_json({"name": name, "removed": True, "remains": kept})
        return
    echo(f"forgot query {name}. Its result stays in stream {plain(found.registered.to)}")
    if found.registered.checkpoints is not None:
        echo(f"its checkpoints in {plain(found.registered.checkpoints)} may be deleted")


# ---- the page of one query


def _rate(found: QueryFacts, name: str) -> str:
    rate = (found.progress or {}).get(name)
    return NOTHING if rate is None else f"{rate:,.0f}"


def _page(found: QueryFacts) -> list[str]:
    lines = field_lines(_head(found))
    progress = found.progress
    if progress is None:
        return lines
    lines += ["", *table_lines(["source", "position", "lag rows", "lag s"], _sources(progress))]
    lines += ["", *table_lines(_TASK_HEAD, _tasks(progress))]
    return lines


def _head(found: QueryFacts) -> list[tuple[str, object]]:
    registered, progress = found.registered, found.progress or {}
    heard = NOTHING
    if found.pulse_ms is not None:
        ago = max(0, now_ms() - found.pulse_ms) / 1000
        heard = f"{time_text(found.pulse_ms)}, {ago:,.1f} s ago"
    fields: list[tuple[str, object]] = [
        ("query", f"{found.name} version {registered.version}, {registered.mode} mode"),
        ("state", _state(found)),
        ("last pulse", heard),
        ("id", registered.id),
        ("result", f"stream {registered.to}"),
        ("checkpoints", registered.checkpoints),
    ]
    if not progress:
        return fields
    if progress.get("exception"):
        fields.append(("failed", progress["exception"]))
    states = progress["stateOperators"]
    rows, size = (sum(one[name] for one in states) for name in ("numRowsTotal", "memoryUsedBytes"))
    given, taken = progress["sink"]["numOutputRows"], progress["numInputRowsTotal"]
    watermark = progress["eventTime"].get("watermark")
    return [
        *fields,
        ("run", progress["runId"]),
        ("workers", progress["workers"]),
        *_layout(progress),
        *_cores(progress.get("cores")),
        ("rows in", f"{taken:,}, {_rate(found, 'processedRowsPerSecond')} rows/s"),
        ("rows out", f"{given:,}"),
        ("lag", lag_text(progress)),
        ("watermark", watermark and f"{watermark}, {watermark_text(progress)}"),
        ("latency", _percentiles(progress["latencyMs"])),
        ("commit", _percentiles(progress["durationMs"]["commit"])),
        ("state size", f"{rows:,} rows, {bytes_text(size)}"),
        ("late rows", sum(one["numRowsDroppedByWatermark"] for one in states)),
    ]


def _word(found: QueryFacts) -> str:
    return "suspended" if found.is_suspended else found.state.value


def _state(found: QueryFacts) -> str:
    if not found.is_suspended:
        return _word(found)
    return (
        "suspended: it holds no worker and takes nothing in; "
        f"`penstock query rescale {found.name} --workers N` brings it back"
    )


def _layout(progress: dict[str, Any]) -> list[tuple[str, object]]:
    """Of a query that was rescaled: its tasks, how long they took to end for it; if it is to be."""
    told: list[tuple[str, object]] = []
    layout = progress.get("layout")
    if layout is not None:
        text = f"version {layout['version']}, {'+'.join(map(str, layout['tasks']))} tasks by stage"
        rescaled = progress.get("rescaled")
        done = "" if rescaled is None else f", cut in {ms_text(rescaled['cutMs'])}"
        told.append(("layout", f"{text}{done}"))
    rescaling = progress.get("rescaling")
    if rescaling is not None:
        waits = "when its tasks have read what stood in the log"
        told.append(("rescaling", f"for {rescaling['workers']} workers, {waits}"))
    balance = progress.get("balance", {})
    if balance.get("told") or balance.get("last"):
        told.append(("balance", balance_text(balance["told"], balance["last"])))
    if nodes := hot_nodes(progress):
        told.append(("hottest nodes", nodes))
    return told


def _cores(cores: dict[str, Any] | None) -> list[tuple[str, object]]:
    """What its workers hold of Spark; and, if they wait, for what."""
    if cores is None:
        return []
    total = NOTHING if cores["total"] is None else cores["total"]
    left = NOTHING if cores["left"] is None else cores["left"]
    text = f"{cores['held']} held of {cores['wanted']} wanted, {left} left of {total}"
    waiting = cores.get("waiting")
    return [("cores", text), *([("waiting", waiting)] if waiting else [])]


def _percentiles(summary: dict[str, float | None]) -> str:
    return " ".join(f"{name} {ms_text(ms)}" for name, ms in summary.items())


def _sources(progress: dict[str, Any]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for one in progress["sources"]:
        lag = one.get("lag", {})
        more = "+" if lag.get("isLowerBound") else ""
        rows.append(
            (
                one["description"].removeprefix("penstock stream "),
                one["endOffset"],
                f"{lag['records']}{more}" if lag else None,
                f"{lag['seconds']:.3f}" if lag else None,
            )
        )
    return rows


def _deliveries(found: list[DeliveryFacts]) -> list[str]:
    """Of its result to databases."""
    if not found:
        return []
    head = ["delivery", "state", "targets", "position", "lag", "problems"]
    rows = [
        (
            one.name,
            one.state.value,
            len(one.registered.layout.live),
            one.position,
            lag_words(one.lag),
            sum(problem is not None for problem in one.problems),
        )
        for one in found
    ]
    return ["", *table_lines(head, rows)]


_TASK_HEAD = (
    "task", "worker", "instance", "runs", "busy", "back-pressured", "commits", "position",
    "rows in", "rows out", "state rows", "state", "checkpoint", "resumed in", "copies",
)  # fmt: skip


def _tasks(progress: dict[str, Any]) -> list[tuple[object, ...]]:
    return [
        (
            task,
            one.get("worker"),
            one.get("instance"),
            bool(one.get("is_running")),
            _percent(one.get("busy_share")),
            _percent(one.get("back_pressured_share")),
            None if (last := one.get("commits_ever")) is None else last + 1,
            one.get("committed_position"),
            one.get("rows_in"),
            one.get("rows_out"),
            one.get("state_rows"),
            bytes_text(one.get("state_bytes", 0)),
            one.get("checkpoint_lsn"),
            ms_text(one.get("resume_ms")),
            _copies(one.get("standbys", {})),
        )
        for task, one in progress["tasks"].items()
    ]


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"


def _copies(standbys: dict[str, dict[str, Any]]) -> str | None:
    """Who keeps a copy of its state, and how far behind."""
    told = [
        f"{worker} {ms_text(report.get('lag_ms'))}{'' if report.get('is_ready') else ' behind'}"
        for worker, report in standbys.items()
    ]
    return ", ".join(told) or None
