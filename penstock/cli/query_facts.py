"""What the log knows of its queries: registered, last heard of, how they stand.

Nothing here asks a driver: everything is read from the log, so it is the same from any machine, and
also true of a query whose driver died. A query runs if its coordinator pulsed a moment ago; a pulse
comes four times a second, and every fourth one carries a progress report.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from penstock.cli.output import time_text
from penstock.cli.rescaling import is_rescaled, rescaling_words, way_so_far
from penstock.errors import BadRequest, NotFound
from penstock.log.client.blocking import BlockingLog
from penstock.log.records import Entry
from penstock.protocol.names import QUERY_PREFIX, check_query_name, pulse_tag, query_key
from penstock.protocol.pulses import PULSES_MAX, SILENCE_MS, State, judge_state, report_of
from penstock.runtime.registry import RegisteredQuery, decode_query

#: A query that is to be rescaled and comes no closer for so long is not waited for. Copies that are
#: not ready by then are given up (coordinator.py), and change as they are filled.
QUIET_SECONDS = 75.0


@dataclass(frozen=True, slots=True)
class QueryFacts:
    """One query, as of now."""

    registered: RegisteredQuery
    #: What was registered, byte by byte, for a compare-and-set.
    data: bytes
    state: State
    #: When its coordinator was last heard of; None: never.
    pulse_ms: int | None
    progress: dict[str, Any] | None

    @property
    def name(self) -> str:
        return self.registered.name

    @property
    def is_suspended(self) -> bool:
        """Its driver lives, and wants no workers."""
        return self.state is State.RUNNING and "suspended" in (self.progress or {})

    @property
    def has_ended(self) -> bool:
        """Its run said that it is over."""
        return self.state in (State.STOPPED, State.FAILED)

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self.registered),
            "state": self.state.value,
            "suspended": self.is_suspended,
            "last_pulse": None if self.pulse_ms is None else time_text(self.pulse_ms),
            "progress": self.progress,
        }


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def list_queries(client: BlockingLog) -> list[QueryFacts]:
    """All queries that are registered, by name."""
    found = client.list_metadata(QUERY_PREFIX)
    names = sorted(key.removeprefix(QUERY_PREFIX) for key in found)
    return [facts_of(client, name, found[query_key(name)].data) for name in names]


def find_query(client: BlockingLog, name: str) -> QueryFacts:
    """NotFound, with names that are close, if there is none."""
    check_query_name(name)
    value = client.get(query_key(name))
    if value is None:
        known = [key.removeprefix(QUERY_PREFIX) for key in client.list_metadata(QUERY_PREFIX)]
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or sorted(known)[:5]
        hint = f"there are {', '.join(close)}" if close else "penstock.start registers one"
        raise NotFound(f"no query {name}: {hint}")
    return facts_of(client, name, value.data)


def facts_of(client: BlockingLog, name: str, data: bytes) -> QueryFacts:
    """How a query stands that is registered as `data`. Raises BadFormat."""
    last, progress = newest_pulse(client, name)
    pulse_ms = None if last is None else last.time_ms
    state = judge_state(pulse_ms, progress, now_ms())
    return QueryFacts(decode_query(name, data), data, state, pulse_ms, progress)


def newest_pulse(client: BlockingLog, name: str) -> tuple[Entry | None, dict[str, Any] | None]:
    """The coordinator's last pulse, and the last progress among its last pulses."""
    last = found = client.read_last(pulse_tag(name))
    for _ in range(PULSES_MAX):
        if found is None:
            break
        progress = report_of(found.payload)
        if progress is not None:
            return last, progress
        found = client.read_last(pulse_tag(name), end=found.lsn)
    return last, None


def listen(client: BlockingLog, found: QueryFacts) -> QueryFacts:
    """What seems lost is listened to before it is believed: two machines' clocks may differ."""
    if found.state is not State.LOST:
        return found
    with client.tail([pulse_tag(found.name)], start=client.bounds().tail) as reader:
        deadline = time.monotonic() + SILENCE_MS / 1000
        while (left := deadline - time.monotonic()) > 0:
            try:
                batch = reader.next_batch(left)
            except TimeoutError:
                break
            if batch is not None and batch.entries:
                return replace(found, state=State.RUNNING)
    return found


def wait_for_end(client: BlockingLog, name: str, start: int, seconds: float) -> bool:
    """Whether a final report came, at or after `start`, within so many seconds."""
    reports = _reports(client, name, start, _Patience(seconds))
    return any(progress.get("isActive") is False for progress in reports)


def find_move(progress: dict[str, Any], name: str, task: str, worker: str) -> str:
    """The name of the worker that a task is to move to; refused if it cannot."""
    tasks, members = progress["tasks"], progress.get("members", {})
    if task not in tasks:
        raise BadRequest(f"query {name} has no task {task}: there are {', '.join(tasks)}")
    slots = {str(one["slot"]): str(who) for who, one in members.items()}
    there = worker if worker in members else slots.get(worker)
    if there is None:
        known = ", ".join(f"{slot} ({who})" for slot, who in slots.items())
        raise BadRequest(f"query {name} has no worker {worker}: there are {known}")
    if not tasks[task].get("standbys"):
        raise BadRequest(
            f"no worker keeps a copy of the state of {task}: start the query with replicas=1 and "
            "at least two workers, and look at `penstock query status` if they live"
        )
    if tasks[task].get("worker") == there:
        raise BadRequest(f"task {task} runs in worker {there} already")
    return there


def wait_for_move(
    client: BlockingLog, name: str, task: str, worker: str, start: int, seconds: float
) -> dict[str, Any] | None:
    """What is told of the move once the task runs there; None: not within so many seconds."""
    for progress in _reports(client, name, start, _Patience(seconds)):
        for moved in reversed(progress.get("moves", ())):
            if moved["task"] == task and moved["to"] == worker and moved["resumeMs"] is not None:
                return dict(moved)
    return None


def wait_for_workers(
    client: BlockingLog,
    name: str,
    workers: int,
    start: int,
    seconds: float | None,
    tell: Callable[[str], None],
) -> dict[str, Any] | None:
    """How the query stands once so many run its tasks; None: not within so many seconds.

    Without a limit: for as long as it comes closer. `tell` is told in words how far it is. Raises
    BadRequest once it has ended.
    """
    patience = _Patience(QUIET_SECONDS if seconds is None else seconds)
    ways = set[tuple[object, ...]]()
    told = ""
    for progress in _reports(client, name, start, patience):
        if progress.get("isActive") is False:
            raise BadRequest(f"nothing to rescale any more: {_how_it_ended(name, progress)}")
        if is_rescaled(progress, workers):
            version, tasks = progress.get("layout", {}).get("version", 0), progress["tasks"]
            return {"name": name, "workers": workers, "tasks": len(tasks), "layout": version}
        way = way_so_far(progress)
        if seconds is None and way not in ways:
            patience.renew()
        ways.add(way)
        words = rescaling_words(progress, workers)
        if words != told:
            tell(words)
        told = words
    return None


def _how_it_ended(name: str, progress: dict[str, Any]) -> str:
    if exception := progress.get("exception"):
        why = str(exception).splitlines()[0]  # a traceback may follow
        return f"query {name} failed meanwhile: {why}"
    return f"query {name} was stopped meanwhile; penstock.start runs it again"


def wait_for_balance(
    client: BlockingLog, name: str, before: dict[str, Any], start: int, seconds: float
) -> dict[str, Any] | None:
    """What is told of it once it is done, or is not to be; None: not within so many seconds.

    `before`: the last report before it was asked. What moved by then is not what moves now.
    """
    asked_before = before.get("balance", {}).get("asked", 0)
    moved_before = before.get("balance", {}).get("last")
    for progress in _reports(client, name, start, _Patience(seconds)):
        balance = progress.get("balance", {})
        if balance.get("asked", 0) > asked_before and not balance["isUnderWay"]:
            moved = None if balance["last"] == moved_before else balance["last"]
            return {"name": name, "told": balance["told"], "moved": moved}
    return None


class _Patience:
    """So many seconds from now, or from when it was renewed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        self._deadline = time.monotonic() + self._seconds

    @property
    def left(self) -> float:
        return self._deadline - time.monotonic()


def _reports(
    client: BlockingLog, name: str, start: int, patience: _Patience
) -> Iterator[dict[str, Any]]:
    """Reports of the query at or after `start`, where it was asked for something, for as long as
    there is patience. Raises BadRequest once one says that this was refused, and why."""
    with client.tail([pulse_tag(name)], start=start) as reader:
        while (left := patience.left) > 0:
            try:
                batch = reader.next_batch(left)
            except TimeoutError:
                return
            for entry in batch.entries if batch is not None else ():
                progress = report_of(entry.payload)
                if progress is None:
                    continue
                refused = progress.get("refused", {})
                if refused.get("lsn") == start:
                    raise BadRequest(f"query {name} refused it: {refused['why']}")
                yield progress
