"""`penstock query`, `explain` and `stream lag` over entries that the runtime's own encoders made.

No Spark: the log cannot tell who wrote a registration, a pulse or a marker.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from embedded_server import stop_server
from engine_samples import count_by, scan, spec_of

import penstock
from penstock.cli import query as query_commands
from penstock.cli import query_facts
from penstock.cli.main import cli
from penstock.ids import Lsn
from penstock.log.records import Kind, NewEntry, SetKey
from penstock.protocol.markers import Marker, Range, encode_marker
from penstock.protocol.names import TaskId, control_tag, pulse_tag, query_key, run_key
from penstock.protocol.pulses import State, judge_state
from penstock.runtime.control import (
    Balance,
    Beat,
    Move,
    Pulse,
    Rescale,
    Stop,
    decode_message,
    encode_message,
)
from penstock.runtime.lag import Lag
from penstock.runtime.progress import Rates, make_progress
from penstock.runtime.registry import RegisteredQuery, encode_query
from penstock.spark.start import _unused_version
from penstock.stream.batches import encode_batch

ROW = {"k": 1, "v": 2}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[penstock.Log]:
    """A log with the streams `in` and `out`, and the query `q` between them."""
    with penstock.connect(tmp_path / "data") as opened:
        opened.create_stream("in", "k long, v long")
        opened.create_stream("out", "k long, c long")
        register(opened, "q")
        yield opened
    stop_server(tmp_path / "data")


@pytest.fixture(autouse=True)
def _no_query_falls_silent_because_the_machine_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock that silence is measured by stands still."""
    now = query_facts.now_ms()
    monkeypatch.setattr(query_facts, "now_ms", lambda: now)


def register(log: penstock.Log, name: str, **changes: Any) -> None:
    query = RegisteredQuery(
        name=name, id="an-id", version=1, plan="the plan", mode="update", to="out",
        starts={"in": int(log.bounds().trim_point)}, tasks=[1, 2], created_ms=1,
        checkpoints="/checkpoints",
    )  # fmt: skip
    log.client.compare_and_set(query_key(name), expected=None, value=encode_query(query))


def run(log: penstock.Log, *arguments: object) -> Result:
    command = [str(each) for each in arguments]
    result = CliRunner().invoke(cli, [*command, "--dir", log.target])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def run_json(log: penstock.Log, *arguments: object) -> Any:
    result = run(log, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def progress(number: int = 0, **more: Any) -> dict[str, Any]:
    """A report of query `q`, as its coordinator makes them."""
    spec = spec_of(count_by(scan(), 0), tasks=(1, 2))
    reports = {
        task: {
            "worker": "1-abc", "instance": 3, "is_running": True, "committed_position": 2,
            "settled_position": 2, "commits_ever": 41, "rows_in": 7_000, "rows_out": 70,
            "state_rows": 5,
            "state_bytes": 2_000, "resume_ms": 12.3, "checkpoint_lsn": 17,
        }
        for task in spec.task_ids
    }  # fmt: skip
    made = make_progress(
        spec, reports, id="an-id", run_id="a-run", number=number, now_ms=query_facts.now_ms(),
        tail=9, lags={("in", 0): Lag(250, 1.5)}, workers=2, rates=Rates(),
    )  # fmt: skip
    return {**made, **more}


def pulse(log: penstock.Log, report: dict[str, Any] | None, name: str = "q") -> None:
    tags = (control_tag(name), pulse_tag(name))
    log.client.append([NewEntry(encode_message(Pulse(report)), tags, Kind.CONTROL)])


def answer(log: penstock.Log, kind: type, say: Callable[[], None]) -> threading.Thread:
    """A coordinator's part: when somebody asks for this."""
    start = log.bounds().tail

    def wait() -> None:
        with log.client.tail([control_tag("q")], start=start) as reader:
            for batch in reader:
                for entry in batch.entries:
                    if isinstance(decode_message(entry.payload), kind):
                        say()
                        return

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


# ---- list and status


def test_a_query_is_new_then_running_then_stopped_and_running_again(log: penstock.Log) -> None:
    def state() -> tuple[str, str]:
        (listed,) = run_json(log, "query", "list")
        return listed["state"], run_json(log, "query", "status", "q")["state"]

    assert state() == ("new", "new")
    pulse(log, progress())
    pulse(log, None)
    assert state() == ("running", "running")
    pulse(log, progress(1, isActive=False))
    assert state() == ("stopped", "stopped")
    pulse(log, progress())
    pulse(log, None)
    assert state() == ("running", "running")


def test_a_query_that_fell_silent_without_a_goodbye_is_lost(
    log: penstock.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulse(log, progress())
    later = query_facts.now_ms() + query_facts.SILENCE_MS + 1_000
    monkeypatch.setattr(query_facts, "now_ms", lambda: later)
    assert run_json(log, "query", "status", "q")["state"] == "lost"


def test_silence_counts_from_the_last_pulse_and_a_goodbye_is_never_silence() -> None:
    assert judge_state(None, None, 10**6) is State.NEW
    assert judge_state(5_000, None, 7_000) is State.RUNNING
    assert judge_state(5_000, {"name": "q"}, 7_001) is State.LOST
    assert judge_state(5_000, {"isActive": False}, 7_001) is State.STOPPED
    assert judge_state(5_000, {"isActive": False}, 5_001) is State.STOPPED


def test_status_shows_rates_lag_state_and_every_task(log: penstock.Log) -> None:
    pulse(log, progress())
    for _ in range(3):
        pulse(log, None)

    shown = run(log, "query", "status", "q").stdout
    found = run_json(log, "query", "status", "q")

    assert "state        running" in shown
    assert "lag          250 rows 1.5 s" in shown
    assert "rows in      7,000, - rows/s" in shown
    assert "state size   15 rows, 6.0 kB" in shown
    for task in ("q.1/0/0", "q.1/1/0", "q.1/1/1"):
        (line,) = [line for line in shown.splitlines() if line.startswith(task)]
        assert line.split()[:8] == [task, "1-abc", "3", "yes", "-", "-", "42", "2"]
    assert found["progress"]["runId"] == "a-run"
    assert (found["to"], found["tasks"], found["version"]) == ("out", [1, 2], 1)


def test_status_shows_what_workers_hold_of_spark_and_what_they_wait_for(log: penstock.Log) -> None:
    cores: dict[str, Any] = {"wanted": 2, "held": 1, "total": 3, "left": 0}
    pulse(log, progress(cores=cores))
    shown = run(log, "query", "status", "q").stdout
    assert "cores        1 held of 2 wanted, 0 left of 3" in shown
    assert "waiting " not in shown

    pulse(log, progress(cores={**cores, "total": None, "left": None, "waiting": "for a core"}))
    shown = run(log, "query", "status", "q").stdout
    assert "1 held of 2 wanted, - left of -" in shown
    assert "waiting      for a core" in shown


def test_status_without_a_report_shows_what_is_registered(log: penstock.Log) -> None:
    shown = run(log, "query", "status", "q").stdout
    assert "state        new" in shown
    assert "result       stream out" in shown


def test_a_query_that_is_not_there_is_3_with_names_that_are_close(log: penstock.Log) -> None:
    register(log, "hot_items")
    failed = run(log, "query", "status", "hot_item")
    assert failed.exit_code == 3
    assert failed.stderr == "penstock: no query hot_item: there are hot_items\n"
    assert run(log, "query", "stop", "no/name").exit_code == 3


def test_watch_prints_each_report_once_until_the_query_stops(
    log: penstock.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulse(log, progress(0))
    watches, show = threading.Event(), query_commands.show_json_line

    def show_and_tell(value: Any) -> None:
        show(value)
        watches.set()

    def pulses() -> None:
        assert watches.wait(60)
        for number in (1, 2):
            pulse(log, None)
            pulse(log, progress(number, isActive=number < 2))

    monkeypatch.setattr(query_commands, "show_json_line", show_and_tell)
    pulsing = threading.Thread(target=pulses)
    pulsing.start()
    watched = run(log, "query", "status", "q", "--watch", "--json")
    pulsing.join()

    numbers = [json.loads(line)["progress"]["batchId"] for line in watched.stdout.splitlines()]
    assert (numbers[0], numbers[-1]) == (0, 2)
    assert numbers == sorted(set(numbers))
    assert run(log, "query", "status", "q", "--watch").stdout.startswith("q: ")


# ---- rescale


def rescaled(wanted: int, **more: Any) -> dict[str, Any]:
    return progress(**{"workers": wanted, "workersWanted": wanted, **more})


def test_rescale_asks_through_the_log_and_waits_for_the_workers(log: penstock.Log) -> None:
    pulse(log, rescaled(2))
    layout = {"layout": {"version": 3, "tasks": [4, 4]}, "rescaled": {"version": 3, "cutMs": 12.5}}
    thread = answer(log, Rescale, lambda: pulse(log, rescaled(4, **layout)))
    done = run(log, "query", "rescale", "q", "--workers", "4", "--json")
    thread.join()
    assert json.loads(done.output)["workers"] == 4
    assert json.loads(done.output)["layout"] == 3
    status = run(log, "query", "status", "q").stdout
    assert "version 3, 4+4 tasks by stage, cut in 12.5 ms" in status


def test_rescale_is_not_done_while_workers_run_the_tasks_of_before(log: penstock.Log) -> None:
    """Of a query that is behind: it has its workers at once, and other tasks later."""
    pulse(log, rescaled(2))
    waiting = rescaled(4, rescaling={"workers": 4})
    thread = answer(log, Rescale, lambda: pulse(log, waiting))
    result = run(log, "query", "rescale", "q", "--workers", "4", "--wait", "1")
    thread.join()
    assert result.exit_code == 5
    status = run(log, "query", "status", "q").stdout
    assert "for 4 workers, when its tasks have read what stood in the log" in status


def test_without_a_limit_a_rescale_is_waited_for_as_long_as_it_comes_closer(
    log: penstock.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its steps takes most of the patience."""
    monkeypatch.setattr(query_facts, "QUIET_SECONDS", 1.0)
    pulse(log, rescaled(2))
    rescaling = {"workers": 4, "ready": 0, "copied": 4, "rows": 0}
    steps = [
        rescaled(4, workers=3, rescaling=rescaling),
        rescaled(4, rescaling=rescaling),
        rescaled(4, rescaling={**rescaling, "ready": 1, "rows": 12_345}),
        rescaled(4, rescaling={**rescaling, "ready": 4, "rows": 20_000}),
        rescaled(4),
    ]

    def go_on() -> None:
        for report in steps:
            pulse(log, report)
            time.sleep(0.5)

    thread = answer(log, Rescale, go_on)
    done = run(log, "query", "rescale", "q", "--workers", "4")
    thread.join()
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        "query q: 3 of 4 workers are there",
        "query q: copies of the state are made: 0 of 4 are ready, with 0 rows",
        "query q: copies of the state are made: 1 of 4 are ready, with 12,345 rows",
        "query q: its tasks read what stood in the log, and end there",
    ]
    assert "runs with 4 workers" in done.stdout


def test_a_rescale_that_comes_no_closer_is_not_waited_for(
    log: penstock.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much its tasks do meanwhile."""
    monkeypatch.setattr(query_facts, "QUIET_SECONDS", 0.7)
    pulse(log, rescaled(2))

    def go_on() -> None:
        for number in range(8):
            cores = {"waiting": "no core is free"}
            pulse(log, progress(number, workers=2, workersWanted=4, cores=cores))
            time.sleep(0.2)

    thread = answer(log, Rescale, go_on)
    failed = run(log, "query", "rescale", "q", "--workers", "4")
    thread.join()
    assert failed.exit_code == 5
    assert "no closer to it" in failed.stderr
    assert "(2 of 4 workers are there: no core is free)" in failed.stderr


def test_workers_that_come_and_go_are_no_progress(
    log: penstock.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that dies whenever it has begun."""
    monkeypatch.setattr(query_facts, "QUIET_SECONDS", 0.7)
    pulse(log, rescaled(2))

    def go_on() -> None:
        for number in range(12):
            pulse(log, rescaled(4, workers=3 + number % 2, rescaling={"workers": 4}))
            time.sleep(0.2)
        pulse(log, rescaled(4))

    thread = answer(log, Rescale, go_on)
    failed = run(log, "query", "rescale", "q", "--workers", "4")
    thread.join()
    assert failed.exit_code == 5
    assert "no closer to it" in failed.stderr


@pytest.mark.parametrize("exception", [None, "its input is broken"])
def test_a_rescale_ends_when_the_query_does(log: penstock.Log, exception: str | None) -> None:
    pulse(log, rescaled(2))
    last = rescaled(4, workers=2, isActive=False, exception=exception)
    thread = answer(log, Rescale, lambda: pulse(log, last))
    began = time.monotonic()
    failed = run(log, "query", "rescale", "q", "--workers", "4", "--wait", "8")
    thread.join()
    assert time.monotonic() - began < 6, "it is not waited for"
    assert failed.exit_code == 3
    assert f"query q {'failed' if exception else 'was stopped'}" in failed.stderr
    assert (exception or "penstock.start") in failed.stderr


def test_rescale_to_no_workers_says_that_the_query_is_suspended(log: penstock.Log) -> None:
    pulse(log, rescaled(2))
    suspended = {"at": "2026-01-01T00:00:00.000Z", "resume": "penstock query rescale q --workers N"}

    def end() -> None:
        pulse(log, rescaled(0))  # its workers have left, and it is not so yet
        pulse(log, rescaled(0, suspended=suspended))

    thread = answer(log, Rescale, end)
    done = run(log, "query", "rescale", "q", "--workers", "0")
    thread.join()
    assert "q is suspended: it holds no worker" in done.output
    assert "rescale q --workers N` brings it back" in done.output
    assert "suspended" in run(log, "query", "list").stdout
    assert "suspended: it holds no worker" in run(log, "query", "status", "q").stdout
    told = run(log, "query", "balance", "q")
    assert told.exit_code == 3 and "q is suspended" in told.stderr
    (listed,) = run_json(log, "query", "list")
    assert (listed["state"], listed["suspended"]) == ("running", True)


def test_what_cannot_be_rescaled_is_told(log: penstock.Log) -> None:
    def refused(*arguments: str) -> str:
        result = run(log, "query", "rescale", "q", *arguments)
        assert result.exit_code != 0
        return result.output

    assert "nothing to rescale: query q is registered, but no" in refused("--workers", "4")
    assert "-1 is not in the range" in refused("--workers", "-1")
    pulse(log, rescaled(2))
    assert "does not within 0.2 s" in refused("--workers", "4", "--wait", "0.2")


# ---- balance


def balanced(asked: int, version: int = 0, *, last: Any = None, **more: Any) -> dict[str, Any]:
    told = {"automatic": False, "asked": asked, "isUnderWay": False, "last": last, **more}
    return progress(balance={"told": "even: 1.00 times", **told}, layout={"version": version})


def test_balance_waits_until_virtual_nodes_have_moved(log: penstock.Log) -> None:
    pulse(log, balanced(3, 1) | {"layout": {"version": 1, "tasks": [2, 2]}})
    why = "by hand: the busiest task of stage 1 took 1.9 times the mean"
    last = {"version": 2, "at": "2026-01-01T00:00:00.000Z", "cutMs": 12.5, "why": why, "count": 2}
    layout = {"layout": {"version": 2, "tasks": [2, 2]}}
    nodes = {"nodes": {"1": {"17": 75.0, "3": 25.0}}}

    def move() -> None:
        pulse(log, balanced(4, 1, isUnderWay=True) | {"layout": {"version": 1, "tasks": [2, 2]}})
        pulse(log, balanced(4, 2, last=last) | layout | nodes)

    thread = answer(log, Balance, move)
    done = run(log, "query", "balance", "q")
    thread.join()
    assert "2 virtual nodes moved at" in done.output and "cut in 12.5 ms, by hand" in done.output
    status = run(log, "query", "status", "q").stdout
    assert "stage 1: 17 75%, 3 25% of 100 rows/s" in status


def test_balance_says_why_nothing_moved(log: penstock.Log) -> None:
    refused = run(log, "query", "balance", "q")
    assert refused.exit_code != 0 and "nothing to balance: query q is registered" in refused.output
    layout = {"layout": {"version": 1, "tasks": [2, 2]}}
    pulse(log, balanced(0, 1) | layout)
    thread = answer(log, Balance, lambda: pulse(log, balanced(1, 1) | layout))
    done = run(log, "query", "balance", "q", "--json")
    thread.join()
    assert json.loads(done.output) == {"name": "q", "told": "even: 1.00 times", "moved": None}
    late = run(log, "query", "balance", "q", "--wait", "0.2")
    assert late.exit_code == 5 and "has not done so within 0.2 s" in late.output


def test_what_moved_before_is_not_told_as_if_it_moved_now(log: penstock.Log) -> None:
    layout = {"layout": {"version": 2, "tasks": [2, 2]}}
    last = {"version": 2, "at": "2026-01-01T00:00:00.000Z", "cutMs": 12.5, "why": "", "count": 2}
    pulse(log, balanced(1, last=last) | layout)
    thread = answer(log, Balance, lambda: pulse(log, balanced(2, last=last) | layout))
    done = run(log, "query", "balance", "q")
    thread.join()
    assert done.output == "query q: even: 1.00 times\n"


@pytest.mark.parametrize(
    ("kind", "command"), [(Balance, ["balance", "q"]), (Rescale, ["rescale", "q", "--workers", 1])]
)
def test_what_its_driver_refuses_is_told_at_once(
    log: penstock.Log, kind: type, command: list[Any]
) -> None:
    pulse(log, balanced(0) | rescaled(2))

    def refuse() -> None:
        asked = log.bounds().tail - 1
        pulse(log, rescaled(2, refused={"lsn": asked, "why": "replicas=1: 2 to 1000 allowed"}))

    thread = answer(log, kind, refuse)
    done = run(log, "query", *command)
    thread.join()
    assert done.exit_code == 3
    assert done.stderr == "penstock: query q refused it: replicas=1: 2 to 1000 allowed\n"


# ---- move

MEMBERS = {
    who: {"slot": slot, "host": "h", "pid": 7, "executor": "h/1"}
    for slot, who in enumerate(("0-def", "1-abc"))
}


def movable(task: str = "q.1/1/0", worker: str = "1-abc", **more: Any) -> dict[str, Any]:
    report = progress(members=MEMBERS, **more)
    report["tasks"][task]["worker"] = worker
    report["tasks"][task]["standbys"] = {"0-def": {"lag_ms": 1.5, "is_ready": True}}
    return report


def test_move_asks_through_the_log_and_waits_until_the_task_runs_there(log: penstock.Log) -> None:
    pulse(log, movable())
    assert "0-def 1.5 ms" in run(log, "query", "status", "q").stdout
    told = {"task": "q.1/1/0", "from": "1-abc", "to": "0-def", "why": "by hand", "resumeMs": 7.5}
    thread = answer(log, Move, lambda: pulse(log, movable(worker="0-def", moves=[told])))
    moved = run(log, "query", "move", "q", "q.1/1/0", "0")
    thread.join()
    assert moved.output == "task q.1/1/0 runs in worker 0-def now; it began in 7.5 ms\n"


def test_what_cannot_move_is_refused_with_what_could(log: penstock.Log) -> None:
    def refused(*arguments: str) -> str:
        result = run(log, "query", "move", "q", *arguments)
        assert result.exit_code != 0
        return result.output

    assert "nothing to move: query q is registered, but no driver" in refused("q.1/1/0", "0")
    pulse(log, movable())
    assert "query q has no task q.1/7/0: there are q.1/0/0" in refused("q.1/7/0", "0")
    assert "query q has no worker 5: there are 0 (0-def), 1 (1-abc)" in refused("q.1/1/0", "5")
    assert "start the query with replicas=1" in refused("q.1/1/1", "0")
    assert "has not done so within 0.2 s" in refused("q.1/1/0", "0", "--wait", "0.2")


# ---- stop and remove


def answer_stop(log: penstock.Log) -> threading.Thread:
    """A last report."""

    def say() -> None:
        pulse(log, None)
        pulse(log, progress(9, isActive=False))

    return answer(log, Stop, say)


def test_stop_asks_through_the_log_and_waits_for_the_last_report(log: penstock.Log) -> None:
    pulse(log, progress())
    thread = answer_stop(log)
    assert run_json(log, "query", "stop", "q") == {"name": "q", "was": "running", "stopped": True}
    thread.join()
    assert run_json(log, "query", "status", "q")["state"] == "stopped"


def test_stop_of_a_query_that_does_not_answer_is_5(log: penstock.Log) -> None:
    pulse(log, progress())
    failed = run(log, "query", "stop", "q", "--wait", 0.2)
    assert failed.exit_code == 5
    assert "asked to stop" in failed.stderr
    last = log.client.read_last(control_tag("q"))
    assert last is not None
    assert isinstance(decode_message(last.payload), Stop)


def test_stop_of_a_query_that_does_not_run_asks_nobody(log: penstock.Log) -> None:
    assert "no driver has run it" in run(log, "query", "stop", "q").stdout
    pulse(log, progress(isActive=False))
    tail = log.bounds().tail
    assert run(log, "query", "stop", "q").stdout.startswith("nothing to stop: query q stopped at 2")
    assert log.bounds().tail == tail


def test_remove_refuses_while_it_runs_then_forgets_and_says_what_remains(log: penstock.Log) -> None:
    log.client.append([], sets=[SetKey(run_key("q"), b"4")])
    pulse(log, progress())
    assert run(log, "query", "remove", "q").exit_code == 3
    pulse(log, progress(isActive=False))

    removed = run_json(log, "query", "remove", "q")

    assert removed["remains"] == {"stream": "out", "checkpoints": "/checkpoints"}
    assert run_json(log, "query", "list") == []
    assert run(log, "query", "remove", "q").exit_code == 3
    assert log.stream("out").name == "out"


def test_a_name_that_is_used_again_takes_a_version_that_no_task_ever_had(log: penstock.Log) -> None:
    assert _unused_version(log, "q") == 1
    log.client.append([], sets=[SetKey(run_key("q"), b"4")])
    run(log, "query", "remove", "q")
    assert _unused_version(log, "q") == 5


# ---- lag and trim


def test_stream_lag_is_measured_now_from_what_each_query_has_committed(log: penstock.Log) -> None:
    done = log.stream("in").append([ROW] * 3).last_lsn
    log.stream("in").append([ROW] * 4)
    register(log, "other")
    report = progress()
    report["sources"][0]["endOffset"] = int(done or 0) + 1
    pulse(log, report)

    found = {one["query"]: one for one in run_json(log, "stream", "lag", "in")}

    assert {name: one["records"] for name, one in found.items()} == {"q": 4, "other": 7}
    assert 0 <= found["q"]["seconds"] < 60
    assert found["q"]["position"] == report["sources"][0]["endOffset"]
    assert run(log, "stream", "lag", "in").stdout.splitlines()[0].split()[0] == "READER"
    assert run(log, "stream", "lag", "inn").exit_code == 3


def test_trim_consumed_goes_as_far_as_the_slowest_query_and_no_further(log: penstock.Log) -> None:
    for _ in range(5):
        log.stream("in").append([ROW])
    for index, (stage, place) in enumerate(((0, 0), (1, 0), (1, 1))):
        marker(log, TaskId("q", 1, stage, place), position=3 + index)

    planned = run_json(log, "log", "trim", "--consumed", "--dry-run")
    assert (planned["trim_point"], log.bounds().trim_point) == (3, 0)
    assert run_json(log, "log", "trim", "--consumed")["trim_point"] == 3
    assert log.bounds().trim_point == 3

    register(log, "slow")
    assert run_json(log, "log", "trim", "--consumed")["trim_point"] == 3
    assert run(log, "log", "trim", "--consumed", 3).exit_code == 2


def marker(
    log: penstock.Log, task: TaskId, before: tuple[NewEntry, ...] = (), **changes: Any
) -> int:
    """Open the task's producer anew, append a group that a marker ends; the marker's LSN."""
    with log.client.appender(task.producer) as producer:
        made = Marker(
            task=str(task), instance=producer.instance, number=changes.pop("number", 0),
            position=Lsn(changes.pop("position", 0)), inline=len(before), **changes,
        )  # fmt: skip
        tags = (task.marker_tag, "s/out")
        done = producer.append([*before, NewEntry(encode_marker(made), tags, Kind.MARKER)])
        return int(done.first_lsn + done.count - 1)


# ---- explain


TASK = TaskId("q", 1, 1, 0)


def data(log: penstock.Log, kind: Kind = Kind.DATA) -> NewEntry:
    import pyarrow as pa

    rows = pa.RecordBatch.from_pylist([{"k": 1, "c": 5}], schema=log.stream("out").schema)
    return NewEntry(encode_batch(rows), ("s/out",), kind, rows=1)


CHANGE = NewEntry(b"changes", (TASK.change_tag,), Kind.CHANGE)


def test_explain_says_what_a_marker_commits_and_up_to_where(log: penstock.Log) -> None:
    lsn = marker(
        log, TASK, (data(log), CHANGE), position=77, number=3, watermark_ms=1_000, rows_in=9,
        rows_out=1, checkpoints=({"path": "p", "marker_lsn": 12},),
    )  # fmt: skip

    found = run_json(log, "explain", lsn)
    assert found["what"] == "commit 3 of task q.1/1/0 by its instance 1"
    assert found["marker"]["commits"] == [[lsn - 2, lsn - 1]]
    assert (found["marker"]["position"], found["marker"]["rows_in"]) == (77, 9)
    assert found["marker"]["watermark"] == "1970-01-01T00:00:01.000Z"
    text = run(log, "explain", lsn).stdout
    assert f"commits     LSN {lsn - 2} to {lsn - 1}, 2 entries" in text
    assert "position    all input of q.1/1/0 below LSN 77 is in" in text
    assert "checkpoint  of the state at LSN 12: p" in text


def test_explain_names_the_marker_that_commits_what_stands_in_its_group(log: penstock.Log) -> None:
    lsn = marker(log, TASK, (data(log), CHANGE), number=3)
    for entry in (lsn - 2, lsn - 1):
        found = run_json(log, "explain", entry)
        assert (found["commit"]["state"], found["commit"]["marker_lsn"]) == ("committed", lsn)
    rows = run_json(log, "explain", lsn - 2)
    assert rows["what"] == "rows given out by task q.1/1/0 to stream out"
    assert rows["first_rows"] == [{"k": 1, "c": 5}]
    assert f"by marker 3 of q.1/1/0 at LSN {lsn}" in run(log, "explain", lsn - 1).stdout


def test_explain_tells_staged_entries_that_count_from_those_left_behind(log: penstock.Log) -> None:
    staged = (data(log, Kind.STAGED), CHANGE)
    with log.client.appender(TASK.producer) as first:
        lost = int(first.append(staged).first_lsn)
    assert run_json(log, "explain", lost)["commit"]["state"] == "open"
    assert "not committed yet" in run(log, "explain", lost + 1).stdout

    with log.client.appender(TASK.producer) as second:
        named = second.append(staged)
        made = Marker(
            task=str(TASK), instance=2, number=0, position=Lsn(1), inline=0,
            ranges=(Range(named.first_lsn, named.count),),
        )  # fmt: skip
        tags = (TASK.marker_tag,)
        at = second.append([NewEntry(encode_marker(made), tags, Kind.MARKER)]).first_lsn

    for entry in (named.first_lsn, named.first_lsn + 1):
        assert run_json(log, "explain", entry)["commit"]["marker_lsn"] == at
    for entry in (lost, lost + 1):
        assert run_json(log, "explain", entry)["commit"]["state"] == "abandoned"
    assert "instance 2 went on without it (marker 0 at LSN" in run(log, "explain", lost).stdout


def test_explain_takes_rows_without_a_marker_for_what_they_are(log: penstock.Log) -> None:
    with log.client.appender(TASK.producer) as producer:
        unmarked = producer.append([data(log)]).first_lsn
    plain = log.stream("in").append([ROW]).first_lsn
    assert "not exactly once" in run_json(log, "explain", unmarked)["commit"]["why"]
    assert run_json(log, "explain", plain)["commit"] is None


def test_explain_names_control_messages_and_survives_bytes_that_are_none(log: penstock.Log) -> None:
    beat = NewEntry(encode_message(Beat("1-abc")), (control_tag("q"),), Kind.CONTROL)
    odd = NewEntry(b"?", (control_tag("q"),), Kind.CONTROL)
    broken = NewEntry(b"?", (TASK.marker_tag,), Kind.MARKER)
    first = log.client.append([beat, odd, broken]).first_lsn
    said = [run_json(log, "explain", first + place)["what"] for place in range(3)]
    assert said == [
        "beat, between the driver and the workers of query q",
        "bytes that cannot be read, between the driver and the workers of query q",
        "a marker with bytes that cannot be read",
    ]
