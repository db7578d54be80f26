"""`penstock token`: what it prints, the files it makes, and what their holders may do."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from embedded_server import stop_server

import penstock
from penstock.cli.main import cli
from penstock.errors import Forbidden, Unauthorized
from penstock.log.serving.directory import read_token
from penstock.wire.token import is_token


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("tokens") / "data"
    with penstock.connect(directory) as log:
        for name in ("bids", "bids2"):
            log.create_stream(name, "n long")
        yield directory
    stop_server(directory)


def run(*arguments: object, input: str | None = None) -> Result:
    return CliRunner().invoke(cli, [str(each) for each in arguments], input=input)


def run_json(*arguments: object, input: str | None = None) -> Any:
    result = run(*arguments, "--json", input=input)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_token_is_made_narrowed_used_and_revoked(data_dir: Path, tmp_path: Path) -> None:
    file, narrower = tmp_path / "team.token", tmp_path / "till.token"
    made = run_json(
        *("token", "make", "--allow", "append:bids*", "--allow", "read:bids"),
        *("--for", "1h", "--out", file, "--dir", data_dir),
    )
    assert made["allow"] == [["append:bids*", "read:bids"]] and made["file"] == str(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert is_token(read_token(file), read_token(data_dir / "token"))

    done = run("token", "narrow", file, "--allow", "append:bids", "--out", narrower)
    assert done.exit_code == 0 and made["id"] in done.output
    shown = run("token", "show", narrower)
    assert "append:bids* read:bids" in shown.stdout and made["id"] in shown.stdout
    assert read_token(narrower)[-64:] not in shown.stdout
    facts = run_json("token", "show", "-", input=narrower.read_text())
    assert facts["allow"] == [["append:bids*", "read:bids"], ["append:bids"]]
    assert not facts["expired"]

    row, till = '{"n": 1}\n', ("--dir", data_dir, "--token-file", narrower)
    assert run("stream", "append", "bids", *till, input=row).exit_code == 0
    refused = run("stream", "append", "bids2", *till, input=row)
    assert refused.exit_code == 4, refused.output
    assert run("stream", "read", "bids", *till).exit_code == 4
    team = ("--dir", data_dir, "--token-file", file)
    assert run("stream", "read", "bids", *team).stdout == '{"n":1}\n'
    assert [each["name"] for each in run_json("stream", "list", *team)] == ["bids", "bids2"]
    for command in (("log", "status"), ("log", "trim", 1), ("token", "revoke", made["id"])):
        assert run(*command, *team).exit_code == 4

    with penstock.connect(data_dir, token_file=file) as log:
        with pytest.raises(Forbidden):
            log.create_stream("others", "n long")
        log.create_stream("bids3", "n long")
        assert run_json("token", "revoke", made["id"], "--dir", data_dir)["was_revoked"] is False
        with pytest.raises(Unauthorized):
            log.stream("bids").append([{"n": 2}])
    again = run("token", "revoke", made["id"], "--dir", data_dir)
    assert again.exit_code == 0 and "before" in again.stdout
    assert run("stream", "append", "bids", *till, input=row).exit_code == 4


def test_a_token_goes_to_standard_output_and_its_id_beside_it(data_dir: Path) -> None:
    done = run("token", "make", "--allow", "metrics", "--dir", data_dir)
    token = done.stdout.strip()
    assert is_token(token, read_token(data_dir / "token"))
    assert done.stderr.startswith("made token ") and done.stderr.split()[2] in token
    everything = run_json("token", "make", "--dir", data_dir)
    assert everything["allow"] == [] and is_token(
        everything["token"], read_token(data_dir / "token")
    )
    root = run_json("token", "show", data_dir / "token")
    assert root == {"id": None, "allow": [], "logs": [], "until": None, "expired": False}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["make", "--allow", "write:bids"], 3, "is no right"),
        (["make", "--for", "soon"], 3, "--for soon"),
        (["make", "--until", "soon"], 3, "--until soon"),
        (["make", "--until", "2020-01-01"], 3, "is over"),
        (["make", "--for", "1h", "--until", "2027-01-01"], 2, "not both"),
        (["make", "--log", "a b"], 3, "log"),
        (["revoke", "nobody"], 3, "no id of a token"),
    ],
)
def test_what_makes_no_sense_is_refused(
    data_dir: Path, arguments: list[str], code: int, words: str
) -> None:
    done = run("token", *arguments, "--dir", data_dir)
    assert done.exit_code == code and words in done.output


def test_a_narrowed_token_is_not_shown_as_if_it_allowed_both(data_dir: Path) -> None:
    made = run("token", "make", "--allow", "append:bids", "--dir", data_dir).stdout
    narrow = run("token", "narrow", "-", "--allow", "read:bids", input=made).stdout
    shown = run("token", "show", "-", input=narrow).stdout.splitlines()
    assert shown[1:3] == ["allows  append:bids", "        and only read:bids"]


def test_files_are_not_overwritten_and_root_tokens_not_narrowed(
    data_dir: Path, tmp_path: Path
) -> None:
    file = tmp_path / "there"
    file.touch()
    assert run("token", "make", "--out", file, "--dir", data_dir).exit_code == 3
    assert file.read_text() == ""
    root = run("token", "narrow", data_dir / "token", "--allow", "read:bids")
    assert root.exit_code == 3 and "token make" in root.output
    made = run("token", "make", "--dir", data_dir).stdout
    assert run("token", "narrow", "-", input=made).exit_code == 2
    assert run("token", "show", "-", input=made[:-3]).exit_code == 3


def test_a_server_is_not_started_with_a_narrowed_token(data_dir: Path, tmp_path: Path) -> None:
    directory = tmp_path / "served"
    directory.mkdir(mode=0o700)
    run("token", "make", "--dir", data_dir, "--out", directory / "token")
    done = run("log", "serve", "--dir", directory, "--port", 0)
    assert done.exit_code == 3 and "root token" in done.output
