"""`penstock demo`: the log shown at work, with a crash in the middle, and its promise checked.

A real server process on a temporary directory, removed at the end. The last line is a check, not a
claim: what was appended is compared with what is read, row by row.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from penstock.cli.output import EXIT_UNEXPECTED, show_json
from penstock.cli.target import json_option
from penstock.log.records import NewEntry
from penstock.log.server.data_dir import is_locked
from penstock.stream.producer import StreamProducer
from penstock.stream.session import Log, connect
from penstock.stream.stream import Stream

ROWS_PER_BATCH: Final = 50
#: Batches appended before, during and after the kills.
BATCHES: Final = 400
KILLS: Final = 3
#: Batches that a "restarted" program sends again.
RESENT: Final = 100
TAGS: Final = 200
#: Groups of the selective read, each a burst of entries of one tag.
BURSTS: Final = 1_000
BURST_ENTRIES: Final = 100


@dataclass(slots=True)
class Outcome:
    """What the demo counted."""

    appended: int = 0
    read: int = 0
    lost: int = 0
    duplicate: int = 0
    kills: int = 0
    longest_pause_ms: float = 0.0
    resent: int = 0
    resent_duplicates: int = 0
    one_tag_entries: int = 0
    one_tag_ms: float = 0.0
    all_entries: int = 0
    all_ms: float = 0.0

    @property
    def ok(self) -> bool:
        whole = self.lost == 0 and self.duplicate == 0 and self.read == self.appended > 0
        return whole and self.resent_duplicates == self.resent


class Story:
    """Prints the steps; nothing if a JSON object is wanted instead."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(quiet=quiet, soft_wrap=True, highlight=False)

    def title(self, text: str) -> None:
        self._console.print(f"\n[bold cyan]{text}[/]")

    def say(self, text: str) -> None:
        self._console.print(f"  {text}")

    def verdict(self, outcome: Outcome) -> None:
        style = "bold green" if outcome.ok else "bold red"
        self._console.print(
            f"\n[{style}]{outcome.appended} appended, {outcome.read} read, {outcome.lost} lost, "
            f"{outcome.duplicate} duplicate[/]"
        )


@click.command()
@json_option
def demo(as_json: bool) -> None:
    """Watch the log work, crash and recover.

    Appends, reads one tag of many, kills the server while it appends, sends again, and checks that
    every row is there once. Takes a few seconds, in a temporary directory that is removed after.
    Exit code 1 if a row was lost or came twice.

    \b
    Examples:
      penstock demo
      penstock demo --json | jq .ok
    """
    story = Story(quiet=as_json)
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory:
        data_dir = Path(directory)
        try:
            with connect(data_dir) as log:
                outcome = _play(log, data_dir, story)
        finally:
            _stop_server(data_dir)
    if as_json:
        show_json({"ok": outcome.ok, **asdict(outcome)})
    if not outcome.ok:
        click.get_current_context().exit(EXIT_UNEXPECTED)


def _play(log: Log, data_dir: Path, story: Story) -> Outcome:
    outcome = Outcome()
    story.title("1. A log and a stream")
    story.say(f"server process {_server_pid(log)} for {data_dir}, started by connect()")
    bids = log.create_stream("bids", "id long NOT NULL, auction long, price decimal(10,2)")
    story.say(f"stream {bids.name}: {bids.ddl}")
    story.title("2. One tag of many: the cost follows what matches")
    _read_one_tag(log, outcome, story)
    story.title(f"3. Append {BATCHES * ROWS_PER_BATCH:,} rows, and kill -9 the server meanwhile")
    _append_under_kills(log, bids, outcome, story)
    story.title("4. The program that appends restarts, and sends again to be sure")
    _send_again(bids, outcome, story)
    story.title("5. Check")
    _check(bids, outcome)
    story.verdict(outcome)
    return outcome


def _read_one_tag(log: Log, outcome: Outcome, story: Story) -> None:
    start = log.bounds().tail
    for number in range(BURSTS):
        log.client.append([NewEntry(b"reading", (f"sensor/{number % TAGS}",))] * BURST_ENTRIES)
    story.say(f"appended {BURSTS * BURST_ENTRIES:,} entries under {TAGS} tags")
    began = time.perf_counter()
    outcome.all_entries = len(log.client.read(start=start))
    outcome.all_ms = (time.perf_counter() - began) * 1000
    began = time.perf_counter()
    outcome.one_tag_entries = len(log.client.read(["sensor/7"], start=start))
    outcome.one_tag_ms = (time.perf_counter() - began) * 1000
    story.say(f"read all of them:  {outcome.all_entries:>7,} entries {outcome.all_ms:>9.1f} ms")
    story.say(
        f"read tag sensor/7: {outcome.one_tag_entries:>7,} entries {outcome.one_tag_ms:>9.1f} ms"
    )


def _batch(number: int) -> list[dict[str, Any]]:
    first = number * ROWS_PER_BATCH
    return [{"id": id, "auction": id % 7} for id in range(first, first + ROWS_PER_BATCH)]


def _append_under_kills(log: Log, bids: Stream, outcome: Outcome, story: Story) -> None:
    """One thread appends, this one kills the server; the client finds the next one by itself."""
    failure: list[BaseException] = []
    done = threading.Semaphore(0)

    def append_all(producer: StreamProducer) -> None:
        try:
            for number in range(BATCHES):
                began = time.perf_counter()
                outcome.appended += producer.append(_batch(number)).rows
                pause_ms = (time.perf_counter() - began) * 1000
                outcome.longest_pause_ms = max(outcome.longest_pause_ms, pause_ms)
                done.release()
        except BaseException as error:
            failure.append(error)

    with bids.producer("loader") as producer:
        thread = threading.Thread(target=append_all, args=(producer,))
        thread.start()
        for _ in range(KILLS):
            for _ in range(BATCHES // (KILLS + 1)):
                done.acquire(timeout=10)
            pid = _server_pid(log)
            os.kill(pid, signal.SIGKILL)
            outcome.kills += 1
            story.say(f"[red]kill -9 {pid}[/] after {outcome.appended:,} acknowledged rows")
        thread.join()
    if failure:
        raise failure[0]
    story.say(
        f"{outcome.appended:,} rows acknowledged, {outcome.kills} servers killed; "
        f"the longest append took {outcome.longest_pause_ms:,.0f} ms, recovery included"
    )


def _send_again(bids: Stream, outcome: Outcome, story: Story) -> None:
    with bids.producer("loader") as producer:
        story.say(f"instance {producer.instance} of producer loader; the log knows its next seq")
        for number in range(BATCHES - RESENT, BATCHES):
            outcome.resent += ROWS_PER_BATCH
            again = producer.append(_batch(number), seq=number)
            outcome.resent_duplicates += again.rows if again.duplicate else 0
    story.say(f"{outcome.resent:,} rows sent again, {outcome.resent_duplicates:,} recognised")


def _check(bids: Stream, outcome: Outcome) -> None:
    ids = Counter(bids.read().column("id").to_pylist())
    outcome.read = ids.total()
    outcome.lost = sum(id not in ids for id in range(outcome.appended))
    outcome.duplicate = sum(count - 1 for count in ids.values())


def _server_pid(log: Log) -> int:
    return int(log.status()["pid"])


def _stop_server(data_dir: Path) -> None:
    """Stop the demo's own server, so that its directory can be removed."""
    if not is_locked(data_dir):
        return
    with connect(data_dir) as log:
        pid = _server_pid(log)
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 10
    while is_locked(data_dir) and time.monotonic() < deadline:
        time.sleep(0.01)
