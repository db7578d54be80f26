"""The command line: in this process where that is enough, as real processes where it is not."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from embedded_server import server_pid, stop_server
from harness.files import flip_bit, token_file

import penstock
from penstock import errors
from penstock.cli.main import BENCHMARK_COMMANDS, cli
from penstock.cli.output import bytes_text, error_text, exit_code, time_text
from penstock.config import ServerConfig
from penstock.log.client.blocking import BlockingLog
from penstock.log.records import NewEntry
from penstock.protocol.names import staging_key
from penstock.protocol.reservations import encode_reservation

COMMAND = [sys.executable, "-m", "penstock.cli.main"]
DDL = "n long NOT NULL, s string, d decimal(10,2), ts timestamp, m map<string,int>, b binary"
ROWS = [
    '{"n":1,"s":"naïve ☃","d":"2.50","ts":"2026-11-15T08:00:00.000001Z","m":{"a":1},"b":"AP8="}',
    '{"n":2,"s":null,"d":null,"ts":null,"m":null,"b":null}',
]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A log that all tests use, kept awake by one client."""
    directory = tmp_path_factory.mktemp("cli") / "data"
    with penstock.connect(directory) as log:
        log.create_stream("bids", DDL)
        yield directory
    stop_server(directory)


@pytest.fixture
def own_dir(tmp_path: Path) -> Iterator[Path]:
    """A directory of one test, whose log does not exist yet."""
    yield tmp_path / "data"
    stop_server(tmp_path / "data")


def run(*arguments: object, input: str | None = None) -> Result:
    """A command in this process; what it raised on the way out is part of the result."""
    result = CliRunner().invoke(cli, [str(each) for each in arguments], input=input)
    unexpected = result.exception
    if unexpected is not None and not isinstance(unexpected, SystemExit):
        raise unexpected
    return result


def run_json(*arguments: object, input: str | None = None) -> Any:
    result = run(*arguments, "--json", input=input)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


# ---- streams


def test_lines_go_in_and_come_out_the_same_and_can_be_piped_on(data_dir: Path) -> None:
    text = "".join(f"{row}\n" for row in ROWS)
    run("stream", "create", "first", DDL, "--dir", data_dir)
    run("stream", "create", "copy", DDL, "--dir", data_dir)

    done = run("stream", "append", "first", "--dir", data_dir, input=text)
    assert (done.exit_code, done.stdout[:23]) == (0, "appended 2 rows to firs")
    read = run("stream", "read", "first", "--dir", data_dir)
    assert read.stdout == text

    run("stream", "append", "copy", "--dir", data_dir, input=read.stdout)
    followed = run("stream", "tail", "copy", "--start", "earliest", "-e", "--dir", data_dir)
    assert followed.stdout == text


def test_append_takes_files_and_skips_empty_lines(data_dir: Path, tmp_path: Path) -> None:
    run("stream", "create", "files", "n long", "--dir", data_dir)
    names = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    names[0].write_text('{"n": 1}\n\n{"n": 2}\n')
    names[1].write_text('{"n": 3}')

    done = run_json("stream", "append", "files", *names, "--dir", data_dir)

    assert (done["rows"], done["duplicates"]) == (3, 0)
    assert run("stream", "read", "files", "--dir", data_dir).stdout.count("\n") == 3


def test_a_wrong_line_is_named_and_nothing_is_appended(data_dir: Path) -> None:
    run("stream", "create", "strict", "n long", "--dir", data_dir)
    failed = run("stream", "append", "strict", "--dir", data_dir, input='{"n": 1}\n{"n": 1.5}\n')

    assert failed.exit_code == 3
    assert failed.stdout == ""
    assert failed.stderr == "penstock: line 2, column n: expected bigint, got number 1.5\n"
    assert run("stream", "read", "strict", "--dir", data_dir).stdout == ""


def test_a_wrong_line_in_a_later_batch_says_how_many_rows_were_appended(data_dir: Path) -> None:
    run("stream", "create", "long_input", "n long", "--dir", data_dir)
    lines = "".join(f'{{"n": {n}}}\n' for n in range(5)) + "oops\n"
    failed = run(
        *("stream", "append", "long_input", "--batch-lines", 2, "--dir", data_dir), input=lines
    )

    assert failed.exit_code == 3
    assert "line 6" in failed.stderr
    assert "; 4 rows before it were appended" in failed.stderr
    assert run("stream", "read", "long_input", "--dir", data_dir).stdout.count("\n") == 4


def test_a_line_that_is_too_large_is_named(data_dir: Path) -> None:
    """It was called by the number of its row in its batch."""
    run("stream", "create", "large", "s string", "--dir", data_dir)
    lines = '{"s": "a"}\n\n{"s": "b"}\n{"s": "c"}\n' + f'{{"s": "{"x" * 1_100_000}"}}\n'
    failed = run("stream", "append", "large", "--batch-lines", 2, "--dir", data_dir, input=lines)

    assert failed.exit_code == 3
    assert failed.stderr.startswith("penstock: line 5 takes 1100")
    assert "; 2 rows before it were appended" in failed.stderr


def test_the_same_input_sent_again_as_the_same_producer_is_appended_once(data_dir: Path) -> None:
    run("stream", "create", "loaded", "n long", "--dir", data_dir)
    lines = "".join(f'{{"n": {n}}}\n' for n in range(5))
    command = ("stream", "append", "loaded", "--producer", "loader", "--seq", 0)

    first = run_json(*command, "--batch-lines", 2, "--dir", data_dir, input=lines)
    again = run_json(*command, "--batch-lines", 2, "--dir", data_dir, input=lines)

    assert (first["duplicates"], again["duplicates"]) == (0, 5)
    assert first["first_lsn"] == again["first_lsn"]
    assert run("stream", "read", "loaded", "--dir", data_dir).stdout == lines.replace(" ", "")


def test_read_takes_positions_a_limit_and_an_envelope(data_dir: Path) -> None:
    run("stream", "create", "ranged", "n long", "--dir", data_dir)
    lsns = [
        run_json("stream", "append", "ranged", "--dir", data_dir, input=f'{{"n": {n}}}')[
            "first_lsn"
        ]
        for n in range(3)
    ]

    def read(*options: object) -> list[Any]:
        found = run("stream", "read", "ranged", "--dir", data_dir, *options)
        assert found.exit_code == 0, found.output
        return [json.loads(line) for line in found.stdout.splitlines()]

    assert [row["n"] for row in read()] == [0, 1, 2]
    assert [row["n"] for row in read("--start", lsns[1])] == [1, 2]
    assert [row["n"] for row in read("--end", lsns[1])] == [0]
    assert [row["n"] for row in read("-n", 2)] == [0, 1]
    assert read("-n", 0) == []
    assert read("--start", "2100-01-01") == []
    assert len(read("--start", "2001-01-01T00:00:00Z", "--end", 10**9)) == 3
    enveloped = read("--envelope")
    assert [each["lsn"] for each in enveloped] == lsns
    assert [each["row"] for each in enveloped] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert set(enveloped[0]) == {"lsn", "time", "producer", "row"}
    assert read("--start", enveloped[0]["time"])[0] == {"n": 0}


def test_list_and_describe_show_the_schema_as_text_and_as_json(data_dir: Path) -> None:
    listed = run_json("stream", "list", "--dir", data_dir)
    described = run_json("stream", "describe", "bids", "--dir", data_dir)
    text = run("stream", "describe", "bids", "--dir", data_dir).stdout

    assert "bids" in [each["name"] for each in listed]
    assert [column["name"] for column in described["columns"]] == ["n", "s", "d", "ts", "m", "b"]
    assert (described["columns"][0]["nullable"], described["last_lsn"]) == (False, None)
    assert "d       decimal(10,2)    yes       -" in text
    assert run("stream", "list", "--dir", data_dir).stdout.startswith("NAME")


def test_creating_twice_is_quiet_and_another_schema_is_refused(data_dir: Path) -> None:
    assert run("stream", "create", "twice", "n long", "--dir", data_dir).exit_code == 0
    assert run("stream", "create", "twice", "n long", "--dir", data_dir).exit_code == 0
    refused = run("stream", "create", "twice", "n string", "--dir", data_dir)
    assert refused.exit_code == 3
    assert "column n: expected bigint, got string" in refused.stderr


# ---- the log


def test_status_trim_and_what_is_left_after_it(own_dir: Path) -> None:
    run("stream", "create", "s", "n long", "--dir", own_dir)
    run("stream", "append", "s", "--dir", own_dir, input='{"n": 1}')
    before = run_json("log", "status", "--dir", own_dir)

    assert "trim point     0" in run("log", "status", "--dir", own_dir).stdout
    would = run_json("log", "trim", before["tail"], "--dry-run", "--dir", own_dir)
    assert (would["dry_run"], would["entries"]) == (True, before["tail"])
    assert run_json("log", "status", "--dir", own_dir)["trim_point"] == 0
    too_far = run("log", "trim", 10**6, "--dry-run", "--dir", own_dir)
    assert (too_far.exit_code, "the tail is" in too_far.stderr) == (3, True)

    assert run_json("log", "trim", before["tail"], "--dir", own_dir)["trim_point"] == before["tail"]

    assert run("stream", "read", "s", "--dir", own_dir).stdout == ""
    assert run("stream", "read", "s", "--start", 0, "--dir", own_dir).exit_code == 3
    assert run("explain", 0, "--dir", own_dir).exit_code == 3
    past = run_json("log", "trim", "--before", "2001-01-01", "--dir", own_dir)
    assert past["entries"] == 0


@pytest.mark.parametrize("server_is_running", [True, False])
def test_verify_finds_nothing_wrong_with_a_good_log_and_names_a_flipped_bit(
    own_dir: Path, server_is_running: bool
) -> None:
    with penstock.connect(own_dir) as log:
        stream = log.create_stream("s", "n long, s string")
        for n in range(20):
            stream.append({"n": n, "s": "find this row"})
        if server_is_running:
            assert run_json("log", "verify", own_dir)["ok"]
    stop_server(own_dir)
    good = run_json("log", "verify", own_dir)
    assert (good["ok"], good["findings"]) == (True, [])
    assert good["entries"] > 20

    segment = max((own_dir / "log").glob("*.log"), key=lambda path: path.stat().st_size)
    flip_bit(segment, segment.read_bytes().index(b"find this row"))
    result = run("log", "verify", own_dir, "--json")

    assert result.exit_code == 8
    found = json.loads(result.stdout)
    assert not found["ok"]
    assert found["findings"][0]["file"] == segment.name
    text = run("log", "verify", own_dir)
    assert text.stdout.startswith(f"damage {segment.name} bytes=")
    assert "damage found" in text.stdout


# ---- explain


def test_explain_tells_what_an_entry_is_who_wrote_it_and_what_stands_around(own_dir: Path) -> None:
    with penstock.connect(own_dir) as log:
        stream = log.create_stream("s", "n long")
        created = log.bounds().tail - 1
        with stream.producer("p") as producer:
            claimed = log.bounds().tail - 1
            first = producer.append([{"n": n} for n in range(7)]).first_lsn
            other = log.client.append([NewEntry(b"x", ("tag", "s/none"))] * 3).first_lsn
            last = producer.append({"n": 9}).first_lsn

    def explain(lsn: int | None) -> dict[str, Any]:
        found: dict[str, Any] = run_json("explain", lsn, "--dir", own_dir)
        return found

    meta = explain(created)
    assert (meta["kind"], meta["sets"][0]["key"]) == ("meta", "stream/s")
    claim = explain(claimed)
    assert (claim["group"]["claim"], claim["producer"]) == (True, "s/p")
    assert claim["producer_next"]["lsn"] == first
    data = explain(first)
    assert (data["stream"], data["rows"], data["seq"], data["instance"]) == ("s", 7, 0, 1)
    assert data["first_rows"] == [{"n": n} for n in range(5)]
    stream, lane = data["neighbours"]
    assert stream == {"tag": "s/s", "previous_lsn": None, "next_lsn": last}
    assert lane["tag"].startswith("l/s/")
    assert data["producer_next"]["lsn"] == last
    middle = explain(other + 1)
    assert middle["group"] == {"first_lsn": other, "count": 3, "claim": False, "retire": False}
    assert middle["neighbours"][0] == {"tag": "tag", "previous_lsn": other, "next_lsn": other + 2}
    assert middle["stream"] is None
    assert explain(last)["producer_next"] is None

    text = run("explain", first, "--dir", own_dir).stdout
    assert "producer  s/p instance 1 seq 0" in text
    assert 'row       {"n": 0}' in text
    assert "row       … 2 more" in text
    assert run("explain", 10**6, "--dir", own_dir).exit_code == 3


# ---- errors and exit codes


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (click.UsageError("x"), 2),
        (errors.BadRow("x"), 3),
        (errors.NotFound("x"), 3),
        (errors.Unauthorized("x"), 4),
        (errors.Unavailable("x"), 5),
        (errors.Overloaded("x"), 5),
        (errors.Unknown("x"), 6),
        (errors.StaleInstance("x"), 7),
        (errors.ChecksumMismatch("x"), 8),
        (errors.InvariantBroken("x"), 1),
        (ZeroDivisionError("x"), 1),
        (OSError("x"), 1),
    ],
)
def test_each_error_class_has_its_exit_code_and_one_line(error: Exception, code: int) -> None:
    assert exit_code(error) == code
    assert error_text(error, as_json=False) == "penstock: x"
    found = json.loads(error_text(error, as_json=True))
    assert found == {"error": type(error).__name__, "message": "x", "exit_code": code}


def test_a_message_of_several_lines_is_printed_as_one() -> None:
    assert error_text(errors.BadRow("a\n  b"), as_json=False) == "penstock: a b"


def test_wrong_usage_is_2_and_with_json_an_object(data_dir: Path) -> None:
    assert run("log", "trim", "--dir", data_dir).exit_code == 2
    assert run("stream", "read").exit_code == 2
    assert run("stream", "read", "bids", "--start", "soon").exit_code == 2
    assert run("stream", "list", "--dir", data_dir, "--connect", "penstock://x").exit_code == 2
    failed = run("log", "trim", "--json", "--dir", data_dir)
    assert failed.exit_code == 2
    assert json.loads(failed.stderr)["error"] == "UsageError"


def test_a_missing_stream_or_log_is_3_and_makes_nothing(data_dir: Path, own_dir: Path) -> None:
    no_stream = run("stream", "read", "bid", "--dir", data_dir)
    assert no_stream.exit_code == 3
    assert no_stream.stderr == "penstock: no stream bid: did you mean bids?\n"

    for command in (["stream", "list"], ["log", "status"], ["explain", "0"]):
        no_log = run(*command, "--dir", own_dir, "--json")
        assert no_log.exit_code == 3
        assert json.loads(no_log.stderr)["error"] == "NotFound"
    assert run("log", "verify", own_dir).exit_code == 3
    assert not own_dir.exists()


def test_a_wrong_token_is_4_and_no_server_is_5(data_dir: Path, tmp_path: Path) -> None:
    port = json.loads((data_dir / "server.json").read_text())["port"]
    wrong = token_file(tmp_path / "token")
    url = f"penstock://127.0.0.1:{port}"

    right = run("stream", "list", "--connect", url, "--token-file", data_dir / "token")
    refused = run("stream", "list", "--connect", url, "--token-file", wrong)
    nobody = run(
        *("stream", "list", "--connect", "penstock://127.0.0.1:1", "--token-file", wrong),
        *("--timeout", 0.2),
    )

    assert (right.exit_code, refused.exit_code, nobody.exit_code) == (0, 4, 5)
    assert "no log server answers at 127.0.0.1:1" in nobody.stderr


# ---- what holds for all commands


def all_commands(command: click.Command, path: str = "penstock") -> Iterator[tuple[str, Any]]:
    """Our own, not those of packages beside."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in sorted({*command.list_commands(context)} - {*BENCHMARK_COMMANDS}):
            child = command.get_command(context, name)
            assert child is not None
            yield from all_commands(child, f"{path} {name}")
    else:
        yield path, command


@pytest.mark.parametrize(("path", "command"), list(all_commands(cli)))
def test_every_command_has_json_and_help_with_examples(path: str, command: click.Command) -> None:
    options = {name for parameter in command.params for name in parameter.opts}
    assert "--json" in options
    assert command.help is not None and "Examples:" in command.help
    assert path in command.help
    assert run(*path.split()[1:], "--help").exit_code == 0


def test_serve_has_an_option_for_every_setting() -> None:
    serve = dict(all_commands(cli))["penstock log serve"]
    names = {parameter.name for parameter in serve.params}
    assert {field.name for field in fields(ServerConfig)} <= names


def test_text_is_plain_where_it_is_not_a_terminal(data_dir: Path) -> None:
    for command in (["log", "status"], ["stream", "list"], ["stream", "describe", "bids"]):
        text = run(*command, "--dir", data_dir).stdout
        assert text.isascii()
        assert "\x1b" not in text


def test_sizes_and_times_read_well() -> None:
    assert [bytes_text(size) for size in (0, 999, 1500, 64_000_000, 5 * 10**12)] == [
        *("0 B", "999 B", "1.5 kB", "64.0 MB", "5.0 TB")
    ]
    assert time_text(1_763_193_600_007) == "2025-11-15T08:00:00.007Z"


def test_writers_that_staged_rows_and_died_are_listed_and_forgotten(data_dir: Path) -> None:
    with penstock.connect(data_dir) as log:
        log.client.compare_and_set(
            staging_key("dead", 7), expected=None, value=encode_reservation(0, "token")
        )
    listed = run("log", "forget", "--dir", data_dir)
    assert "dead.7" in listed.stdout
    assert run_json("log", "forget", "dead.7", "--dir", data_dir)["forgotten"] == "dead.7"
    assert run_json("log", "forget", "--dir", data_dir)["writers"] == {}
    again = run("log", "forget", "dead.7", "--dir", data_dir)
    assert again.exit_code == 3
    assert "no writer dead.7" in again.stderr


# ---- real processes


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        **options,
    )


def finish(process: subprocess.Popen[str], *, number: int | None = None) -> tuple[int, str, str]:
    """Send a signal, if one is given, and wait: exit code, what is left of stdout, stderr."""
    if number is not None:
        process.send_signal(number)
    try:
        output, complaint = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # it says where each of its threads stands
        pytest.fail(f"it does not end: {process.communicate()}")
    return process.returncode, output, complaint


def test_serve_says_where_a_tail_follows_it_and_both_end_cleanly_on_ctrl_c(own_dir: Path) -> None:
    server = start("log", "serve", "--dir", own_dir, "--port", 0, "--json")
    assert server.stdout is not None
    where = json.loads(server.stdout.readline())
    target = ("--connect", where["url"], "--token-file", where["token_file"])
    assert "arrow" not in Path(f"/proc/{server.pid}/maps").read_text()
    with penstock.connect(where["url"], token_file=where["token_file"]) as log:
        stream = log.create_stream("s", "n long")
        stream.append({"n": 0})
        tail = start("stream", "tail", "s", "--start", "earliest", *target)
        assert tail.stdout is not None
        assert tail.stdout.readline() == '{"n":0}\n'
        stream.append({"n": 1})
        assert tail.stdout.readline() == '{"n":1}\n'

        assert finish(tail, number=signal.SIGINT) == (0, "", "")

    code, _, logged = finish(server, number=signal.SIGINT)
    assert code == 0
    line = next(line for line in logged.splitlines() if " serving " in line)
    time, level, logger, *words = line.split()
    assert (time[-1], level, logger, words[0]) == (
        *("Z", "INFO", "penstock.log.server.server", "serving"),
    )
    assert all("=" in word for word in words[1:])


def test_a_second_server_is_5_and_an_open_address_without_tls_is_3(data_dir: Path) -> None:
    second = start("log", "serve", "--dir", data_dir, "--port", 0)
    code, output, complaint = finish(second)
    assert (code, output) == (5, "")
    assert "another server has" in complaint.splitlines()[-1]

    open_code, _, open_complaint = finish(start("log", "serve", "--host", "0.0.0.0", "--json"))
    assert open_code == 3
    assert json.loads(open_complaint.splitlines()[-1])["error"] == "BadConfig"


def test_a_server_whose_disk_refuses_a_write_ends_with_70(own_dir: Path) -> None:
    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    server = start("log", "serve", "--dir", own_dir, "--port", 0, "--json", preexec_fn=limit_files)
    assert server.stdout is not None
    where = json.loads(server.stdout.readline())
    options = {"token_file": where["token_file"], "timeout": 5.0}
    with (
        penstock.connect(where["url"], **options) as log,
        pytest.raises((errors.Unknown, errors.Retryable)),
    ):
        log.client.append([NewEntry(b"x" * (1 << 19))] * 6)

    code, _, complaint = finish(server)
    assert code == 70
    assert "the log stopped" in complaint


def test_a_reader_that_has_had_enough_ends_read_silently(data_dir: Path) -> None:
    with penstock.connect(data_dir) as log:
        stream = log.create_stream("many", "n long, s string")
        stream.append([{"n": n, "s": "x" * 1000} for n in range(3000)])
    read = start("stream", "read", "many", "--dir", data_dir)
    assert read.stdout is not None
    assert read.stdout.readline().startswith('{"n":0,')
    read.stdout.close()
    assert read.stderr is not None
    assert read.stderr.read() == ""
    read.stderr.close()
    assert read.wait(timeout=60) == 0


def test_status_is_of_the_server_that_the_directory_names(data_dir: Path) -> None:
    assert run_json("log", "status", "--dir", data_dir)["pid"] == server_pid(data_dir)


def test_status_of_a_log_says_why_appends_wait(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "appends wait" not in run("log", "status", "--dir", data_dir).stdout
    told = BlockingLog.status

    def tell(client: BlockingLog) -> str:
        return json.dumps({**json.loads(told(client)), "stalled": "full: trim"})

    monkeypatch.setattr(BlockingLog, "status", tell)

    lines = run("log", "status", "--dir", data_dir).stdout.splitlines()

    assert lines[1].split("  ", 1) == ["appends wait", " full: trim"]
