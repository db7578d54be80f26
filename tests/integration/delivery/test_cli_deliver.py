"""`penstock deliver` as a process, and what other commands say of it; its messages in words."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from harness.waiting import wait_until

import penstock
from penstock.cli.main import cli
from penstock.delivery.deliver import ResultOf
from penstock.delivery.registration import list_deliveries
from penstock.ids import Lsn
from penstock.log.records import Kind, NewEntry
from penstock.protocol.markers import Marker, encode_marker
from penstock.protocol.names import TaskId, query_key
from penstock.runtime.registry import RegisteredQuery, encode_query

if TYPE_CHECKING:
    from harness.postgres import PostgresServer

COMMAND = [sys.executable, "-m", "penstock.cli.main"]
SECRET = "hunter2"


class Player:
    """A running `penstock deliver --json`."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self.process = process
        self._errors = errors

    def next(self) -> dict[str, Any]:
        """What it says next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self._errors.read_text()
        said: dict[str, Any] = json.loads(line)
        return said

    def end(self, number: signal.Signals | None = signal.SIGTERM) -> tuple[int, str, str]:
        """Exit code, what is left of its output, and its errors."""
        if number is not None:
            self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=120)
        return self.process.returncode, rest, self._errors.read_text()


@contextmanager
def player(log: penstock.Log, place: Path, *arguments: object, **env: str) -> Iterator[Player]:
    errors = place / "errors"
    with errors.open("w") as sink:
        process = subprocess.Popen(
            [*COMMAND, "deliver", *map(str, arguments), "--dir", log.target, "--json"],
            stdout=subprocess.PIPE,
            stderr=sink,
            text=True,
            env={**os.environ, **env},
        )
    try:
        yield Player(process, errors)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def run(log: penstock.Log, *arguments: object) -> Result:
    result = CliRunner().invoke(cli, [*map(str, arguments), "--dir", log.target])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def run_json(log: penstock.Log, *arguments: object) -> Any:
    result = run(log, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def rows_in(file: Path, table: str) -> list[Any]:
    with closing(sqlite3.connect(file)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [table]).fetchall():
            return []
        return connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()


def names(log: penstock.Log) -> list[str]:
    return [registered.name for registered, _ in list_deliveries(log.client)]


# ---- a life


def test_a_table_follows_its_stream_through_two_lives_of_a_player(
    own_log: penstock.Log, tmp_path: Path
) -> None:
    users = own_log.create_stream("users", "id long, name string")
    lsn = users.append([{"id": 1, "name": "one"}, {"id": 2, "name": "two"}]).first_lsn
    file = tmp_path / "users.db"
    command = ["--stream", "users", "--key", "id", "--to", f"sqlite:///{file}", "--name", "u"]
    with player(own_log, tmp_path, *command) as first:
        wait_until(lambda: rows_in(file, "users") == [(1, "one"), (2, "two")])
        users.append({"id": 2, "name": "zwei"})
        wait_until(lambda: rows_in(file, "users") == [(1, "one"), (2, "zwei")])
        code, rest, errors = first.end()

    assert (code, errors) == (0, "")
    last = json.loads(rest.splitlines()[-1])
    assert (last["message"], last["is_active"], last["targets"][0]["rows"]) == ("Stopped", False, 3)
    assert run_json(own_log, "delivery", "status", "u")["state"] == "stopped"
    assert _applied(own_log, lsn) == [(0, 2, "applied")]

    unseen = users.append({"id": 3, "name": "three"}).first_lsn
    assert _applied(own_log, unseen) == [(0, 1, "not yet")]
    assert "0 rows" not in run(own_log, "stream", "lag", "users").stdout
    (behind,) = run_json(own_log, "stream", "lag", "users")
    assert (behind["delivery"], behind["state"], behind["records"]) == ("u", "stopped", 1)
    with player(own_log, tmp_path, *command) as second:
        wait_until(lambda: (3, "three") in rows_in(file, "users"))
        assert second.end(signal.SIGINT)[0] == 0
    assert rows_in(file, "users") == [(1, "one"), (2, "zwei"), (3, "three")]


def _applied(log: penstock.Log, lsn: int | None) -> list[tuple[int, int, str]]:
    (found,) = run_json(log, "explain", lsn)["deliveries"]
    assert f"delivered  {found['delivery']}, shard 0" in run(log, "explain", lsn).stdout
    return [(one["shard"], one["rows"], one["state"]) for one in found["targets"]]


def test_a_running_delivery_can_be_seen_and_removed_from_elsewhere(
    own_log: penstock.Log, tmp_path: Path
) -> None:
    own_log.create_stream("in", "k long").append([{"k": key} for key in range(50)])
    targets = [part for n in range(3) for part in ("--to", f"sqlite:///{tmp_path}/{n}.db")]
    with player(own_log, tmp_path, "--stream", "in", *targets, "--name", "seen") as running:

        def status() -> Any:
            return run_json(own_log, "delivery", "status", "seen")

        wait_until(lambda: "seen" in names(own_log))
        wait_until(lambda: status()["lag"]["records"] == 0 and status()["state"] == "running")
        (listed,) = run_json(own_log, "delivery", "list")
        assert listed["targets"] == status()["targets"]
        assert [one["target"] for one in listed["targets"]] == [
            f"sqlite:///{tmp_path}/{n}.db" for n in range(3)
        ]
        assert sum(one["rows"] for one in listed["targets"]) == 50
        page = run(own_log, "delivery", "status", "seen").stdout
        assert "none: all rows are kept" in page and "0 rows 0.0 s" in page
        assert run(own_log, "delivery", "list").stdout.splitlines()[1].split()[:2] == [
            "seen", "running"
        ]  # fmt: skip

        assert run_json(own_log, "delivery", "remove", "seen")["was"] == "running"
        code, _, errors = running.end(None)

    assert code == 3
    assert "delivery seen was removed" in errors
    gone = run(own_log, "delivery", "status", "seen")
    assert (gone.exit_code, "no delivery seen" in gone.stderr) == (3, True)


def test_metrics_are_shown_to_who_has_the_token_and_only_there(
    own_log: penstock.Log, tmp_path: Path
) -> None:
    own_log.create_stream("in", "k long").append([{"k": 1}, {"k": 2}])
    to = f"sqlite:///{tmp_path}/m.db"
    with player(own_log, tmp_path, "--stream", "in", "--to", to, "--metrics-port", 0) as running:
        address = f"http://127.0.0.1:{running.next()['metrics_port']}"

        def ask(path: str, token: str) -> str:
            request = urllib.request.Request(address + path)
            request.add_header("Authorization", f"Bearer {token}")
            with urllib.request.urlopen(request, timeout=60) as answer:
                return str(answer.read().decode())

        token = (Path(own_log.target) / "token").read_text().strip()
        wait_until(
            lambda: 'penstock_deliver_shard_rows_total{shard="0"} 2' in ask("/metrics", token)
        )
        wait_until(lambda: "penstock_deliver_lag_rows 0" in ask("/metrics", token))
        for path, shown, code in (
            ("/metrics", "no", 401),
            ("/metrics", "", 401),
            ("/", token, 404),
        ):
            with pytest.raises(urllib.error.HTTPError) as caught:
                ask(path, shown)
            caught.value.close()
            assert caught.value.code == code
        assert running.end()[0] == 0


def test_a_query_says_how_far_deliveries_of_its_result_are(
    own_log: penstock.Log, tmp_path: Path
) -> None:
    out = own_log.create_stream("out", "k long, n long, _weight long NOT NULL")
    register(own_log, "q", result_key=["k"])
    foreign = out.append({"k": 1, "n": 5, "_weight": 1}).first_lsn  # it does not count
    marker = append_marker(own_log)
    to = f"sqlite:///{tmp_path}/q.db"
    with penstock.deliver(ResultOf(own_log, "q"), to, name="of-q") as delivery:
        delivery.processAllAvailable()

    assert run_json(own_log, "explain", foreign)["deliveries"] == []
    (applied,) = run_json(own_log, "explain", marker)["deliveries"]
    assert applied["targets"] == [{"shard": 0, "target": to, "rows": None, "state": "applied"}]
    text = run(own_log, "explain", marker).stdout
    assert f"delivered  of-q, shard 0: applied ({to})" in text
    (found,) = run_json(own_log, "query", "status", "q")["deliveries"]
    assert (found["name"], found["key"], found["state"]) == ("of-q", ["k"], "stopped")
    assert "of-q" in run(own_log, "query", "status", "q").stdout
    assert rows_in(tmp_path / "q.db", "q") == []


def append_marker(log: penstock.Log) -> int:
    """A commit of q's task, without rows."""
    task = TaskId("q", 1, 0, 0)
    with log.client.appender(task.producer) as producer:
        made = Marker(str(task), producer.instance, 0, Lsn(0), 0)
        tags = (task.marker_tag, "s/out")
        done = producer.append([NewEntry(encode_marker(made), tags, Kind.MARKER)])
    return int(done.first_lsn)


def register(log: penstock.Log, name: str, **changes: Any) -> None:
    query = RegisteredQuery(
        name=name, id="an-id", version=1, plan="the plan", mode="update", to="out",
        starts={}, tasks=[1], created_ms=1, checkpoints=None, **changes,
    )  # fmt: skip
    log.client.compare_and_set(query_key(name), expected=None, value=encode_query(query))


# ---- what is said when it cannot be


REFUSED: list[tuple[list[str], int, str]] = [
    ([], 2, "give --stream or --query, one of them"),
    (["--stream", "in", "--query", "q"], 2, "give --stream or --query, one of them"),
    (["--stream", "inn"], 3, "no stream inn: did you mean in?"),
    (["--query", "qq"], 3, "no query qq: penstock query list shows"),
    (["--query", "q"], 3, "give key= (--key) with some of k, n, or an empty one"),
    (["--stream", "in", "--key", "x"], 3, "stream in has no x; its columns are k, n"),
    (["--stream", "out", "--start", "latest"], 3, 'leave start as "earliest"'),
    (["--stream", "in", "--to", f"mysql://me:{SECRET}@host/db"], 3, "mysql://***@host/db is no"),
    (["--stream", "in", "--name", "a b"], 3, "delivery name 'a b': a letter or _ first"),
    (["--stream", "in", "--dead-letter", "in"], 3, "is what is delivered: give another"),
]


@pytest.fixture(scope="module")
def ready_log(module_log: penstock.Log) -> penstock.Log:
    module_log.create_stream("in", "k long, n long")
    module_log.create_stream("out", "k long, n long, _weight long NOT NULL")
    register(module_log, "q", result_key=[])
    return module_log


@pytest.mark.parametrize(("arguments", "code", "words"), REFUSED)
def test_what_cannot_be_delivered_is_refused_in_words(
    ready_log: penstock.Log, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    to = [] if "--to" in arguments else ["--to", f"sqlite:///{tmp_path}/x.db"]

    result = run(ready_log, "deliver", *arguments, *to)

    assert (result.exit_code, words in result.stderr) == (code, True), result.output
    assert SECRET not in result.output
    assert names(ready_log) == []


def test_a_missing_driver_is_named_with_the_command_that_installs_it(
    ready_log: penstock.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("penstock.delivery.targets.post")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)

    result = run(ready_log, "deliver", "--stream", "in", "--to", "postgresql://me@localhost/shop")

    assert result.exit_code == 3
    assert "pip install 'penstock[postgres]'" in result.stderr


def test_a_target_that_lets_nobody_in_ends_it_and_leaves_nothing_behind(
    ready_log: penstock.Log, postgres: PostgresServer
) -> None:
    """Wrong password, no such database, a table of another shape."""
    postgres.run("CREATE TABLE IF NOT EXISTS other_shape (k text PRIMARY KEY)")
    for uri, more, code, words in (
        (postgres.tcp_uri(SECRET), [], 4, "password authentication failed"),
        (postgres.tcp_uri(database="nope"), [], 3, 'database "nope" does not exist'),
        (postgres.uri(), ["--table", "other_shape"], 3, "column k is text, expected bigint"),
    ):
        result = run(ready_log, "deliver", "--stream", "in", "--key", "k", "--to", uri, *more)

        assert (result.exit_code, words in result.stderr) == (code, True), result.output
        assert SECRET not in result.output and "sesame" not in result.output
        assert names(ready_log) == [], "it would hold back trimming for ever"


def test_a_database_that_is_down_is_waited_for_and_said_so(
    ready_log: penstock.Log, tmp_path: Path
) -> None:
    to = f"postgresql://me:{SECRET}@127.0.0.1:1/shop"
    with player(ready_log, tmp_path, "--stream", "in", "--to", to, "--name", "down") as waiting:
        said = waiting.next()
        while said["targets"][0]["problem"] is None:
            said = waiting.next()
        code, rest, errors = waiting.end()

    assert "Connection refused" in said["targets"][0]["problem"]
    assert said["message"] == "Delivering; of 1 targets 1 in trouble"
    assert (code, errors) == (0, "")
    assert SECRET not in rest + json.dumps(said)
    status = run_json(ready_log, "delivery", "status", "down")
    assert "Connection refused" in status["targets"][0]["problem"]
    run(ready_log, "delivery", "remove", "down")


def test_a_second_player_of_a_name_ends_the_first_which_says_so(
    ready_log: penstock.Log, tmp_path: Path
) -> None:
    command = ["--stream", "in", "--to", f"sqlite:///{tmp_path}/x.db", "--name", "twice"]
    with player(ready_log, tmp_path, *command) as first:
        first.next()
        with player(ready_log, tmp_path, *command) as second:
            code, _, errors = first.end(None)
            assert second.end()[0] == 0

    assert code == 7
    assert "another player of delivery twice was started after this one" in errors
    run(ready_log, "delivery", "remove", "twice")


def test_in_a_terminal_one_line_is_kept_up_to_date_and_problems_stay_above_it(
    ready_log: penstock.Log, tmp_path: Path
) -> None:
    there, unreachable = f"sqlite:///{tmp_path}/t.db", "postgresql://me@127.0.0.1:1/shop"
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [*COMMAND, "deliver", "--stream", "in", "--to", there, "--to", unreachable, "--name", "tty",
         "--dir", ready_log.target],
        stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while b"lag 0 rows" not in shown or shown.count(b"\x1b[2Ktty: ") < 3:
            shown += os.read(ours, 4096)
    finally:
        process.terminate()
        while (more := _read(ours)) != b"":
            shown += more
        code = process.wait(timeout=120)
        os.close(ours)

    assert code == 0
    text = shown.decode()
    assert "delivering stream in to table in in sqlite:///" in text.splitlines()[0]
    assert text.count("target 1 away since") == 1, "it is said once"
    assert "Connection refused" in text
    assert "rows/s, 0 rows, lag 0 rows 0.0 s" in text
    assert "stopped after 0 rows" in text.splitlines()[-1]
    run(ready_log, "delivery", "remove", "tty")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # nobody is at its other end
        return b""
