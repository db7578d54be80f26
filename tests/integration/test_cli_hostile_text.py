"""Texts that would drive a terminal: whoever may append, or name something, may write them.

Every command that prints what comes from the log is run over them, as text and as JSON.
"""

from __future__ import annotations

import ast
import json
import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from embedded_server import stop_server
from engine_samples import count_by, scan, spec_of

import penstock
from penstock.cli.cluster_status import page
from penstock.cli.live import progress_line
from penstock.cli.main import cli
from penstock.cli.output import echo, error_text, field_lines, show_json, table_lines
from penstock.errors import QueryFailed, Refused, StaleInstance
from penstock.log.embedded import endpoint
from penstock.log.records import Kind, NewEntry
from penstock.log.serving import process
from penstock.log.serving.log_lines import PlainFormatter
from penstock.plain_text import plain
from penstock.protocol.deliveries import (
    Delivered,
    RegisteredDelivery,
    encode_delivered,
    encode_delivery,
)
from penstock.protocol.names import (
    control_tag,
    deliver_key,
    delivered_key,
    pulse_tag,
    query_key,
)
from penstock.runtime.control import Pulse, encode_message
from penstock.runtime.coordinator import Coordinator
from penstock.runtime.registry import RegisteredQuery, encode_query
from penstock.runtime.run_errors import explain
from penstock.spark.query import StreamingQuery

#: Clears the screen; in eight bits; sets the title; turns the writing round; hides; forges a line.
HOSTILE = "\x1b[2J\x9b31m\x1b]0;mine\x07\u202egnp\u2066\x7f\x08\rforged\u2028\x00\nFORGED\n"
#: Names of columns and comments hold no NUL.
NAME = HOSTILE.replace("\x00", "")
RAW = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


QUERY = RegisteredQuery(
    name="q", id=HOSTILE, version=1, plan=HOSTILE, mode="update", to=f"out{HOSTILE}",
    starts={"s": 0}, tasks=[1], created_ms=1, checkpoints=f"/c{HOSTILE}",
)  # fmt: skip


DELIVERY = RegisteredDelivery(
    name="d", id=HOSTILE, stream="s", query=None, version=None, key=[NAME], route=[0] * 64,
    epoch=0, start=0, table=HOSTILE, targets=[f"sqlite:///{HOSTILE}"], strict=False,
    dead_letter=HOSTILE, created_ms=1,
)  # fmt: skip
ACK = Delivered(1, [0], [HOSTILE], [0], False, f"{HOSTILE}\nstate      running\n", 1)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[penstock.Log]:
    directory = tmp_path_factory.mktemp("hostile") / "data"
    with penstock.connect(directory) as opened:
        opened.create_stream("s", f"`{NAME}` string COMMENT '{NAME}', k long")
        opened.stream("s").append([{NAME: HOSTILE, "k": 1}])
        opened.client.compare_and_set(query_key("q"), expected=None, value=encode_query(QUERY))
        tags = (control_tag("q"), pulse_tag("q"))
        report = _last_words()
        said = NewEntry(encode_message(Pulse(report)), tags, Kind.CONTROL)
        opened.client.append([said])
        delivery, ack = encode_delivery(DELIVERY), encode_delivered(ACK)
        opened.client.compare_and_set(deliver_key("d"), expected=None, value=delivery)
        opened.client.compare_and_set(delivered_key("d"), expected=None, value=ack)
        yield opened
    stop_server(directory)


def _last_words() -> dict[str, Any]:
    task = {"worker": HOSTILE, "instance": 1, "is_running": False}
    return {
        "name": HOSTILE, "id": HOSTILE, "runId": HOSTILE, "timestamp": "2026-11-15T08:00:00.000Z",
        "isActive": False, "exception": f"ValueError: {HOSTILE}\nstate      running\n{HOSTILE}",
        "workers": 1, "numInputRowsTotal": 0, "sink": {"numOutputRows": 0}, "eventTime": {},
        "latencyMs": {HOSTILE: None}, "durationMs": {"commit": {}}, "stateOperators": [],
        "sources": [{"description": f"penstock stream {HOSTILE}", "endOffset": HOSTILE}],
        "tasks": {HOSTILE: task},
    }  # fmt: skip


def run(log: penstock.Log, *arguments: object) -> Result:
    command = [*map(str, arguments), "--dir", str(log.target)]
    result = CliRunner().invoke(cli, command)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


COMMANDS: list[tuple[object, ...]] = [
    ("stream", "list"),
    ("stream", "describe", "s"),
    ("stream", "describe", f"no{HOSTILE}"),
    ("stream", "create", f"no{HOSTILE}", "a int"),
    ("stream", "create", "made", f"`{NAME}` int"),
    ("stream", "create", "bad", f"a {NAME}"),
    ("stream", "lag", "s"),
    ("stream", "read", "s"),
    ("stream", "read", "s", "--envelope"),
    ("stream", "read", "s", "--start", HOSTILE),
    ("stream", "tail", "s", "--start", "earliest", "-e"),
    ("log", "status"),
    ("log", "forget"),
    ("log", "forget", f"no{HOSTILE}"),
    ("query", "list"),
    ("query", "status", "q"),
    ("query", "status", "q", "--watch"),
    ("query", "status", f"no{HOSTILE}"),
    ("query", "stop", "q"),
    ("delivery", "list"),
    ("delivery", "status", "d"),
    ("delivery", "status", f"no{HOSTILE}"),
    ("delivery", "remove", f"no{HOSTILE}"),
    ("deliver", "--stream", "s", "--to", f"mysql://{HOSTILE}", "--name", HOSTILE),
    ("explain", "1"),
    *(("explain", str(lsn)) for lsn in range(2, 9)),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: plain(" ".join(command))[:40])
def test_no_command_lets_a_text_drive_the_terminal(
    log: penstock.Log, command: tuple[object, ...]
) -> None:
    shown = run(log, *command)
    assert not RAW.search(shown.output), plain(shown.output)
    lines = [line.lower() for line in shown.output.splitlines()]
    assert not any(line.startswith("forged") for line in lines)
    assert not re.search(r"^state +running", shown.output, re.MULTILINE), "a forged field"

    as_json = run(log, *command, "--json")
    assert not RAW.search(as_json.output), plain(as_json.output)
    for line in as_json.stdout.splitlines() if "read" in command or "tail" in command else ():
        json.loads(line)
    if as_json.exit_code == 0 and command[:2] == ("stream", "list"):
        assert NAME in json.loads(as_json.stdout)[0]["ddl"], "JSON says all that there is"


def test_to_forget_a_query_prints_no_line_of_its_texts(log: penstock.Log) -> None:
    data = encode_query(replace(QUERY, name="r"))
    log.client.compare_and_set(query_key("r"), expected=None, value=data)
    shown = run(log, "query", "remove", "r")
    assert shown.exit_code == 0
    assert not RAW.search(shown.output) and "FORGED" not in shown.output.splitlines()


def test_to_forget_a_delivery_prints_no_line_of_its_texts(log: penstock.Log) -> None:
    data = encode_delivery(replace(DELIVERY, name="e"))
    log.client.compare_and_set(deliver_key("e"), expected=None, value=data)
    shown = run(log, "delivery", "remove", "e")
    assert shown.exit_code == 0
    assert not RAW.search(shown.output) and "FORGED" not in shown.output.splitlines()


def test_rows_are_the_same_after_they_were_printed(log: penstock.Log) -> None:
    (line,) = run(log, "stream", "read", "s").stdout.splitlines()
    assert json.loads(line) == {NAME: HOSTILE, "k": 1}


def test_whatever_an_error_repeats_is_escaped() -> None:
    for as_json in (False, True):
        text = error_text(Refused(f"no {HOSTILE}\nsuch thing"), as_json=as_json)
        assert not RAW.search(text) and "\n" not in text


def test_pages_that_are_kept_up_to_date_are_escaped() -> None:
    problem = f"node {HOSTILE} is silent"
    known = {"address": HOSTILE, "auditor": HOSTILE, "audit": None, "nodes": [], "proxies": []}
    text = "\n".join(page({**known, "logs": [], "problems": [problem]}))
    assert not RAW.search(text)
    assert not RAW.search(progress_line(_last_words()))


def test_text_that_is_meant_for_people_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = "naïve ☃ 日本語 עברית 👩‍👩‍👧 C:\\new"
    assert plain(text) == text
    assert plain("a\tb\nc\\") == r"a\tb\nc" + "\\"
    assert plain("a\nb", lines=True) == "a\nb"
    assert plain(HOSTILE) == (
        r"\x1b[2J\x9b31m\x1b]0;mine\x07\u202egnp\u2066\x7f\x08\rforged\u2028\x00\nFORGED\n"
    )
    assert plain("\ud800") == r"\ud800"
    echo(text)
    show_json({"x": HOSTILE, "text": text})
    printed = capsys.readouterr().out
    assert printed.startswith(f"{text}\n{{")
    assert json.loads(printed.partition("\n")[2]) == {"x": HOSTILE, "text": text}
    assert text in printed.partition("\n")[2].replace("\\\\", "\\")


def test_a_value_of_many_lines_cannot_be_taken_for_other_fields() -> None:
    assert field_lines([("failed", "one\nstate  running"), ("id", 1)]) == [
        "failed  one",
        "        state  running",
        "id      1",
    ]
    assert table_lines(["a", "b"], [("x\ny", 1)])[1] == r"x\ny  1"


def test_a_process_that_cannot_go_on_says_so_in_one_line_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse() -> None:
        raise Refused(f"no {HOSTILE}\nsuch thing")

    process.exit_code(refuse)

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("penstock: no") and not RAW.search(line)


def test_nobodys_text_begins_a_line_of_a_log() -> None:
    formatter = PlainFormatter("%(levelname)s %(message)s")
    try:
        raise ValueError(f"{HOSTILE}\nINFO forged")
    except ValueError:
        told = sys.exc_info()
    said = f"{HOSTILE}\nINFO forged"
    record = logging.LogRecord("", logging.INFO, "", 1, "said %s", (said,), told)
    record.stack_info = f"Stack:\n{said}"

    first, *further = formatter.format(record).split("\n")

    assert first == f"INFO said {plain(said)}"
    assert all(line.startswith("  ") and not RAW.search(line) for line in further)
    assert "  INFO forged" in further


def test_a_failed_query_repeats_nothing_that_drives_the_terminal_of_its_driver() -> None:
    """The words are a worker's, or the server's, or whoever appends to the query's tag."""
    other = explain("q", StaleInstance(f"by {HOSTILE}"))
    defect = explain("q", ValueError(f"{HOSTILE}"))

    for error in (other, defect):
        assert isinstance(error, QueryFailed) and not RAW.search(str(error))


async def test_what_a_worker_says_of_its_failure_is_shown_as_text(log: penstock.Log) -> None:
    spec = spec_of(count_by(scan(), 0))
    directory = Path(str(log.target))
    run = await Coordinator.open(endpoint(directory), spec, id="a", workers=1, trims=False)

    await run.fail(f"{HOSTILE}\nthe second line")
    await run.run()

    assert isinstance(run.error, QueryFailed) and not RAW.search(str(run.error))
    assert str(run.error).endswith("\nthe second line")


def test_a_plan_is_explained_without_what_its_names_would_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = pa.schema([pa.field(NAME, pa.int64()), pa.field("b", pa.int64())])
    query = StreamingQuery.__new__(StreamingQuery)
    query._spec = spec_of(count_by(scan(schema=rows), 0))
    coordinator: Any = SimpleNamespace(spec=query._spec, is_suspended=False)
    query._coordinator = coordinator

    query.explain()

    shown = capsys.readouterr().out
    assert "\n" in shown and not RAW.search(shown) and plain(NAME) in shown


#: Writes to the terminal, whatever it is given.
_PRINTERS = ("click.echo", "click.secho", "print")
_STREAMS = ("sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__")
#: Asking a stream writes nothing.
_QUESTIONS = ("isatty", "flush", "fileno")
#: Where text is made plain, and where tests above show that it was before.
_PLACES = ("cli/output.py", "cli/live.py", "cli/stream_read.py", "log/serving/log_lines.py")


def _ways_to_print(source: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(source)
    allowed = set[int]()
    for node in ast.walk(tree):
        text = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Attribute) and node.attr in _QUESTIONS:
            allowed.add(id(node.value))
        if isinstance(node, ast.Call) and (text in _PRINTERS or text.startswith(_STREAMS)):
            if all(_is_plain(value) for value in node.args):
                allowed.update(id(inner) for inner in ast.walk(node))
            elif text in _PRINTERS:
                yield node.lineno, text
        if isinstance(node, ast.Attribute) and ast.unparse(node) in _STREAMS:
            if id(node) not in allowed:
                yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and node.module == "sys":
            yield node.lineno, "from sys import"


def _is_plain(value: ast.expr) -> bool:
    """A text of ours, or one of which every other part was made plain."""
    if isinstance(value, ast.JoinedStr):
        parts = [part.value for part in value.values if isinstance(part, ast.FormattedValue)]
        return all(map(_is_plain, parts))
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) in ("plain", "plain_line", "plain_json")
    return isinstance(value, ast.Constant)


@pytest.mark.parametrize(
    "source",
    [
        "print(error)",
        "click.echo(text)",
        "print(f'penstock: {error}', file=sys.stderr)",
        "sys.stdout.write(text)",
        "sys.stderr.writelines([text])",
        "out = sys.stdout.buffer",
        "from sys import stdout",
        "print(text, file=sys.__stderr__)",
    ],
)
def test_ways_to_print_are_found(source: str) -> None:
    assert list(_ways_to_print(source))


@pytest.mark.parametrize(
    "source",
    [
        "print(f'penstock: {plain_line(str(error))}', file=sys.stderr)",
        "sys.stdout.write(plain(text, lines=True))",
        "sys.stderr.isatty()",
        "sys.stderr.write('\\n')",
    ],
)
def test_what_was_made_plain_may_be_printed(source: str) -> None:
    assert not list(_ways_to_print(source))


def test_everything_is_printed_through_one_place() -> None:
    """`print`, `click.echo` and streams know nothing of control characters."""
    package = Path(penstock.__path__[0])
    found = [
        f"{path.relative_to(package)}:{line}: {way}"
        for path in sorted(package.rglob("*.py"))
        if str(path.relative_to(package)) not in _PLACES
        for line, way in _ways_to_print(path.read_text())
    ]
    assert not found, "\n".join(found)
