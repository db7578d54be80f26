"""`penstock deliver`: keep a table of a database equal to a stream or a query's result.

Owns the foreground: one line that is kept up to date, signals, and the last word. The delivery
itself is `penstock.deliver`.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.delivery_view import RowRate, delivery_line, problem_words, rows_of
from penstock.cli.live import LiveLine
from penstock.cli.metrics_port import serve_metrics
from penstock.cli.output import echo, json_option, show_json_line, time_text
from penstock.cli.positions import POSITIONS, START_HELP, position
from penstock.cli.stream_target import open_log
from penstock.cli.target import Target, target_options
from penstock.errors import PenstockError
from penstock.plain_text import plain
from penstock.stream.positions import Position

if TYPE_CHECKING:
    from penstock.delivery.deliver import Delivery
    from penstock.runtime.lag import Lag

_REFRESH_SECONDS: Final = 0.5
_LAG_SECONDS: Final = 1.0


@click.command()
@click.option("--stream", metavar="NAME", help="Deliver this stream.")
@click.option("--query", metavar="NAME", help="Deliver the result of this query, and only that.")
@click.option(
    "--to",
    "targets",
    metavar="URI",
    multiple=True,
    required=True,
    help="postgresql://user@host/database, sqlite:///file.db or duckdb:///file.duckdb; several "
    "times for a table in shards. A password is better in PGPASSWORD or ~/.pgpass.",
)
@click.option(
    "--key",
    metavar="COLUMN[,COLUMN…]",
    help='Rows replace each other by these columns; "" keeps all rows.  [default: the grouping '
    "columns of a query; none for a stream]",
)
@click.option("--name", help="Goes on under this name.  [default: of source and target]")
@click.option("--table", help="The table.  [default: the name of the query or stream]")
@click.option(
    "--start",
    type=position,
    default="earliest",
    metavar=POSITIONS,
    show_default=True,
    help=f"{START_HELP} Only at the first start.",
)
@click.option("--strict", is_flag=True, help="Stop at a key that has two rows at once.")
@click.option(
    "--dead-letter", metavar="STREAM", help="For rows that a target refuses; else they stop it."
)
@click.option(
    "--leaving",
    multiple=True,
    metavar="TARGET",
    help="A target that it was told to leave and that still has rows, if its address in the log "
    "is not all that it takes to open it; may be repeated.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="GET /metrics on this port of 127.0.0.1, with the log's token; 0 takes a free one.",
)
@target_options
@json_option
def deliver(
    stream: str | None,
    query: str | None,
    targets: tuple[str, ...],
    key: str | None,
    name: str | None,
    table: str | None,
    start: Position,
    strict: bool,
    dead_letter: str | None,
    leaving: tuple[str, ...],
    metrics_port: int | None,
    target: Target,
    as_json: bool,
) -> None:
    """Keep a table equal to a stream, or to a query's result, until Ctrl-C.

    Each row takes effect exactly once: every transaction of the database changes rows and the
    position in the log together. Started again, it goes on where each target is. A target that is
    away is waited for, and delays no other. Where standard error is a terminal, one line is kept up
    to date; elsewhere a line is printed when something changes; with --json one object per line.

    \b
    Examples:
      penstock deliver --query hot-items --to postgresql://me@localhost/shop
      penstock deliver --stream bids --to sqlite:///bids.db
      penstock deliver --stream users --key id --to sqlite:///a.db --to sqlite:///b.db
      penstock deliver --query hot-items --to sqlite:///hot.db --metrics-port 9464
    """
    if (stream is None) == (query is None):
        raise click.UsageError("give --stream or --query, one of them")
    from penstock.delivery.deliver import ResultOf  # Arrow, and all that counts rows
    from penstock.delivery.deliver import deliver as start_delivery
    from penstock.log.serving.process import SWITCH_SECONDS

    sys.setswitchinterval(SWITCH_SECONDS)  # targets are at work beside the player
    columns = None if key is None else [one.strip() for one in key.split(",") if one.strip()]
    with open_log(target) as log:
        source = log.stream(stream) if stream is not None else ResultOf(log, str(query))
        delivery = start_delivery(
            source,
            list(targets),
            key=columns,
            name=name,
            table=table,
            start=start,
            strict=strict,
            dead_letter=dead_letter,
            leaving=list(leaving),
        )
    with delivery, _stop_signals() as stopped, _LagWatch(delivery) as watch:
        shown: AbstractContextManager[Any] = nullcontext()
        if metrics_port is not None:
            shown = serve_metrics(metrics_port, target.token(), lambda: delivery.metrics(watch.lag))
        with shown as port:
            _Foreground(delivery, watch, as_json=as_json, metrics_port=port).run(stopped)


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Set by the first SIGINT or SIGTERM; the second one ends the process as it always does."""
    stopped = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(*_: object) -> None:
        restore()
        stopped.set()

    for number in numbers:
        signal.signal(number, stop)
    try:
        yield stopped
    finally:
        restore()


class _LagWatch:
    """Measures the lag now and then, on a thread of its own: the log may be away for long."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._over = threading.Event()
        #: As last measured; None: the log does not answer.
        self.lag: Lag | None = None

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.lag = self._delivery.lag
            except PenstockError:
                self.lag = None
            self._over.wait(_LAG_SECONDS)

    def __enter__(self) -> _LagWatch:
        threading.Thread(target=self._run, name="penstock-lag", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()


class _Foreground:
    """What is shown while the delivery runs, and at its end."""

    def __init__(
        self, delivery: Delivery, watch: _LagWatch, *, as_json: bool, metrics_port: int | None
    ) -> None:
        self._delivery = delivery
        self._watch = watch
        self._as_json = as_json
        self._metrics_port = metrics_port
        self._line = LiveLine()
        self._rate = RowRate()
        self._said: Any = None

    def run(self, stopped: threading.Event) -> None:
        """Until it is stopped, or ends by itself: then raises what ended it."""
        self._begin()
        try:
            while not stopped.is_set() and not self._delivery.awaitTermination(_REFRESH_SECONDS):
                self._show()
        finally:
            if not self._as_json:
                self._line.end()
        self._delivery.stop()
        self._end()

    def _begin(self) -> None:
        status = self._delivery.status()
        where = ", ".join(one["target"] for one in status["targets"] if one["state"] != "retired")
        if self._as_json:
            return
        source = f"stream {status['stream']}"
        if status["query"] is not None:
            source = f"query {status['query']}"
        text = f"delivering {source} to table {status['table']} in {where}, as {status['name']}"
        echo(plain(text) + "; Ctrl-C stops it")
        if self._metrics_port is not None:
            echo(f"metrics at http://127.0.0.1:{self._metrics_port}/metrics, with the log's token")

    def _show(self) -> None:
        status = self._delivery.status()
        rate = self._rate.take(rows_of(status), time.monotonic())
        lag = self._watch.lag
        if self._as_json:
            told = _as_json(status, rate, lag)
            if (status, lag) != self._said:
                self._said = (status, lag)
                show_json_line({**told, "metrics_port": self._metrics_port})
            return
        problem = problem_words(status)
        if problem != self._said:
            self._said = problem
            self._say(problem or "all is well again")
        self._line.show(delivery_line(status, rate, lag))

    def _say(self, text: str) -> None:
        """A line that stays, above the live one if there is one."""
        self._line.clear()
        echo(f"{time_text(time.time_ns() // 1_000_000)} {text}", err=self._line.is_shown)

    def _end(self) -> None:
        status = self._delivery.status()
        if self._as_json:
            show_json_line(_as_json(status, None, None))
            return
        echo(
            f"stopped after {rows_of(status):,} rows, at LSN {status['position']}; "
            "the same command goes on from there"
        )


def _as_json(status: dict[str, Any], rate: float | None, lag: Lag | None) -> dict[str, Any]:
    behind = None if lag is None else {"records": lag.records, "seconds": round(lag.seconds, 3)}
    return {**status, "rows_per_second": rate, "lag": behind}
